"""Certificates that isoconv writes, examined by the checker that shares no code with it."""

import copy
import math
import tracemalloc
from collections import OrderedDict
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import isoconv.nn as ours
from certify.certificates import check, read, write, write_all
from certify.exact_network import images, linear_classifier
from isoconv import IsoconvError
from isoconv.certify import Certifier, open_certificate, weights_sha256, write_certificate
from isoconv.certify.rules import RULES
from isoconv.check.proof import KINDS
from isoconv.models import CONVOLUTIONS, ShiftNet, Small
from judge import compare
from judge.networks import build, inputs

torch.manual_seed(0)  # of the networks in the tables


def named(**layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(OrderedDict(layers))


def behind(layer: nn.Module, shape: tuple[int, ...]) -> nn.Module:
    """A classifier that begins with a layer, which has seen no image yet."""
    features = copy.deepcopy(layer)(torch.zeros(1, *shape)).numel()
    return nn.Sequential(layer, ours.MaxMin(), nn.Flatten(), ours.OrthogonalLinear(features, 3)).eval()


ORTHOGONAL: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "an odd image": (ours.BCOPConv2d(2, 8, 3, 2), (2, 7, 7)),
    "fewer outputs": (ours.BCOPConv2d(2, 20, 4, 3, 1), (2, 7, 7)),
    "groups": (ours.BCOPConv2d(4, 8, 3, 2, groups=2), (4, 6, 6)),
    "dilation and stride": (ours.BCOPConv2d(2, 4, 3, 2, dilation=3), (2, 8, 8)),
    "rectangular": (ours.BCOPConv2d(2, 6, (3, 2), (2, 1)), (2, 6, 5)),
    "zeros": (ours.BCOPConv2d(2, 6, 3, 2, 1, padding_mode="zeros"), (2, 7, 6)),
    "transposed": (ours.BCOPConvTranspose2d(4, 2, 3, 2, 1), (4, 3, 3)),
    "one axis": (ours.BCOPConv1d(2, 6, 3, 2), (2, 7)),
}
NETWORKS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    **{conv: (Small((1, 8, 8), conv=conv), (1, 8, 8)) for conv in CONVOLUTIONS},
    **{name: (behind(layer, shape), shape) for name, (layer, shape) in ORTHOGONAL.items()},
    "shift": (ShiftNet((3, 9, 7), 5, 16, blocks=(2,), patch=3), (3, 9, 7)),
    "one layer": (nn.Linear(4, 2), (4,)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_the_checker_finds_them_valid(name: str, tmp_path: Path) -> None:
    """All methods with all their options; those that are orthogonal have a bound of 1, and the deployed form is theirs."""
    model, shape = NETWORKS[name]
    arguments = write_all(model, images(3, *shape), tmp_path, torch.zeros(3, dtype=torch.int64))
    assert check(arguments) == 0
    header, lines = read(Path(arguments[0]))
    assert [line["index"] for line in lines] == list(range(3)) and header["images"] == 3
    assert any(float.fromhex(line["radius"]) > 0 for line in lines)
    tight = name in (*ORTHOGONAL, "shift") or name.startswith("bcop")
    assert not tight or float.fromhex(header["lipschitz"]) <= 1.0001
    x = images(2, *shape)
    assert (Certifier(model, shape).logits(x) - model.eval()(x.float())).abs().max() <= 1e-4


LIES: list[tuple[str, dict[str, Any]]] = [
    *(("MaxMin", {"axis": axis}) for axis in (9, 0)),  # other channels: another function
    ("GroupSort", {"axis": 1}),
    *(("LayerCentering", {"axes": axes}) for axes in ([0, 1], [1, 1])),
    *(("L2NormPool2d", {"stride": stride}) for stride in ([1, 1], None)),  # overlap
    ("L2NormPool2d", {"kernel_size": [9, 9], "stride": [9, 9]}),
    *(("ChannelShift", {"channels": count}) for count in (0, 100)),
    *(("ConvexPotential2d", {"padding_mode": mode}) for mode in ("zeros", "reflect")),
    ("ConvexPotential2d", {"padding": [[0, 0], [0, 0]]}),
]


def test_lies_about_settings_are_found(tmp_path: Path, capsys: Any) -> None:
    model = nn.Sequential(
        *(nn.Conv2d(3, 4, 3), ours.ConvexPotential2d(4, 3, 3), ours.LayerCentering((2, 3)), ours.ChannelShift(0.25)),
        *(ours.L2NormPool2d(2), ours.MaxMin(2), ours.GroupSort(2, dim=3), nn.Flatten(), nn.Linear(16, 4)),
    )
    nn.init.normal_(model[1].weight, std=0.3)
    arguments = write_all(model, images(2, 3, 7, 6), tmp_path)
    assert check(arguments) == 0 and capsys.readouterr().out.startswith("valid")
    header, lines = read(Path(arguments[0]))
    for kind, change in LIES:
        told = copy.deepcopy(header)
        next(node for node in told["nodes"] if node["kind"] == kind)["settings"] |= change
        write(Path(arguments[0]), told, lines)
        assert check(arguments) != 0, kind
        assert len("".join(capsys.readouterr()).splitlines()) == 1, kind
    for term in ("error_offset", "error_slope"):
        write(Path(arguments[0]), header | {term: (float.fromhex(header[term]) * 0.2).hex()}, lines)
        assert check(arguments) == 1 and term in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_random_networks_are_found_valid(tmp_path: Path) -> None:
    """Unequal axes, strides, dilations, paddings, all kinds of modules, names that do not count up, both arithmetics."""
    accepted = 0
    for spec in (network["spec"] for network in compare.load(compare.NETWORKS)["networks"][:1800:23]):
        arithmetic = "float32" if spec["seed"] % 3 == 0 and spec["dtype"] == "float32" else "float64"
        with suppress(IsoconvError):
            certifier = Certifier(build(spec), tuple(spec["shape"]), arithmetic=arithmetic)
            if certifier.error.offset < math.inf:
                accepted += 1
                assert check(write_all(certifier, inputs(spec, 2), tmp_path)) == 0, spec
    assert accepted >= 36


@pytest.mark.parametrize("arithmetic", ["float64", "float32"])
def test_logits_moved_by_what_a_second_run_may_differ_by(arithmetic: str, tmp_path: Path, capsys) -> None:
    """Logits in the file may lie off those that are recomputed; a radius that only they carry is refused."""
    weight = torch.tensor([[1.0, -1.0], [-1.0, 1.0]]).repeat(1, 200) / 32  # every sum is exact in any order
    x = torch.full((1, 400), 0.5, dtype=torch.float64)
    x[0, 1:100:2] = 0.75
    arguments = write_all(linear_classifier(weight, None), x, tmp_path, arithmetic=arithmetic)
    assert check(arguments) == 0
    header, (image,) = read(Path(arguments[0]))
    offset, slope = (float.fromhex(header[name]) for name in ("error_offset", "error_slope"))
    p, logits = image["prediction"], [float.fromhex(logit) for logit in image["logits"]]
    moved = 1.99 * (offset + slope * float(x.norm()))
    logits[p], logits[1 - p] = logits[p] + moved, logits[1 - p] - moved
    room = math.sqrt(2) * (2 * offset + 2 * slope * float.fromhex(image["input_norm"]))
    radius = (logits[p] - logits[1 - p] - room) / (1.25 + math.sqrt(2) * slope) * (1 - 1e-15)
    header["pair_constants"] = [[(0.0).hex(), (1.25).hex()], [(1.25).hex(), (0.0).hex()]]  # what it is exactly
    image["logits"], image["radius"] = [logit.hex() for logit in logits], radius.hex()
    assert Fraction(radius) > Fraction(abs(float((weight[0] - weight[1]).double() @ x[0]))) / Fraction(5, 4)  # a lie
    write(Path(arguments[0]), header, [image])
    capsys.readouterr()
    assert check(arguments) == 1 and "the network's margin to class" in capsys.readouterr().out


def test_a_factor_that_float32_cannot_hold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = write_all(
        nn.Sequential(nn.Linear(4, 2), ours.Scale(1.0)), images(1, 4).float(), tmp_path, arithmetic="float32"
    )
    header, lines = read(Path(arguments[0]))
    header["nodes"][1]["settings"]["factor"] = (1 - 2.0**-30).hex()
    write(Path(arguments[0]), header, lines)
    assert check(arguments) == 1 and "float32 cannot hold" in capsys.readouterr().out


def test_nodes_name_their_inputs_and_their_tensors(tmp_path: Path) -> None:
    """Also where a module is called "input", which is the name of the network's own."""
    inner = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    header, _ = read(Path(write_all(named(input=inner, neck=nn.Identity()), images(1, 4), tmp_path)[0]))
    nodes = [(node["name"], node["module"], node["inputs"]) for node in header["nodes"]]
    inputs = {"input.0": "input", "input.1": "input.0", "neck": "input.1"}
    assert nodes == [(name, name, [source]) for name, source in inputs.items()]
    assert header["output"] == "neck" and len(header["assumptions"]) == 1
    header, _ = read(Path(write_all(named(input=nn.Linear(4, 4)), images(1, 4), tmp_path)[0]))
    assert header["nodes"][0]["name"] != "input" == header["nodes"][0]["module"] and header["assumptions"] == []


def test_batches_are_written_as_they_come(tmp_path: Path) -> None:
    """The file holds what all at once would, and while it is written no more than a batch is held."""
    certifier, x = Certifier(nn.Sequential(nn.Linear(8, 10)), (8,)), images(200, 8)
    write_certificate(tmp_path / "whole", certifier, certifier(x))
    with open_certificate(tmp_path / "parts", certifier, images=200) as file:
        for part in x.split(7):
            file.add(certifier(part))
        assert not (tmp_path / "parts").exists()
    assert (tmp_path / "whole").read_bytes() == (tmp_path / "parts").read_bytes()
    certificates = certifier(x[:50])

    def peak(batches: int) -> int:
        tracemalloc.start()
        with open_certificate(tmp_path / "long", certifier) as file:
            for _ in range(batches):
                file.add(certificates)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    peak(1)
    assert peak(40) < 1.2 * peak(2)


def test_the_hash_knows_names_types_shapes_and_bytes() -> None:
    model = nn.Sequential(nn.Linear(4, 3))
    changed = copy.deepcopy(model)
    with torch.no_grad():
        changed[0].weight[0, 0] = torch.nextafter(changed[0].weight[0, 0], torch.tensor(torch.inf))
    half, double = copy.deepcopy(model).to(torch.bfloat16), copy.deepcopy(model).double()
    others = model, changed, half, double, nn.Sequential(nn.Identity(), model[0])
    assert len({weights_sha256(other) for other in others}) == 5
    assert weights_sha256(model) == weights_sha256(copy.deepcopy(model))


FLAT = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
NO_FILE: list[tuple[nn.Module, dict[str, Any], str]] = [
    (FLAT, {"p": 1}, "p = 2"),
    (FLAT, {"criterion": "per-class"}, "criterion pairs"),
    (nn.Sequential(nn.Flatten(), nn.Linear(4, 2).half()), {}, "float16"),
    (nn.Sequential(nn.Flatten(), ours.Scale(1e200), ours.Scale(1e200), nn.Linear(4, 2)), {}, "overflow"),
]


def test_what_is_refused_leaves_no_file_but_what_was_there(tmp_path: Path) -> None:
    for model, options, message in NO_FILE:
        certifier = Certifier(model, (1, 2, 2), **options)
        with pytest.raises(IsoconvError, match=message):
            write_certificate(tmp_path / "c", certifier, certifier(torch.rand(1, 1, 2, 2)))
    certifier, x = Certifier(nn.Sequential(nn.Linear(4, 3)), (4,)), images(2, 4)
    found = certifier(x)
    weak = nn.Sequential(nn.Linear(4, 3))
    with torch.no_grad():
        weak[0].weight.div_(100)
    cases = [
        (tmp_path / "missing" / "c", found, None, "Cannot write"),
        (tmp_path, found, None, "which is a folder"),
        (tmp_path / "c", certifier(torch.full((1, 4), torch.nan)), None, "image 0"),
        (tmp_path / "c", Certifier(weak, (4,))(x), None, "radii"),
        *((tmp_path / "c", found, labels, "label") for labels in (torch.tensor([0]), torch.tensor([0, 7]), x[:, 0])),
    ]
    for path, certificates, labels, message in cases:
        with pytest.raises(IsoconvError, match=message):
            write_certificate(path, certifier, certificates, labels)
    assert not list(tmp_path.iterdir())
    (tmp_path / "c").write_text("old")
    with pytest.raises(IsoconvError, match="something else"):  # no certificate: it is not replaced
        write_certificate(tmp_path / "c", certifier, found)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]
    (tmp_path / "c").unlink()
    write_certificate(tmp_path / "c", certifier, found)
    old = (tmp_path / "c").read_bytes()
    with pytest.raises(IsoconvError, match="2 images"), open_certificate(tmp_path / "c", certifier, images=2) as file:
        file.add(certifier(images(1, 4)))
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [old]
    write_certificate(tmp_path / "c", certifier, certifier(images(1, 4)))
    assert (tmp_path / "c").read_bytes() != old


def test_the_checker_knows_every_kind_that_a_certificate_may_name():
    assert {kind.__name__ for kind, rule in RULES.items() if rule.settings} == set(KINDS)
