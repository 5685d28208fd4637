"""Certificates that isoconv writes, examined by the checker that shares no code with it."""

import math
import tracemalloc
from collections import OrderedDict
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from torch import nn

from certify.certificates import check, read, write, write_all
from certify.exact_network import images, linear_classifier
from isoconv import IsoconvError
from isoconv.certify import Certifier, open_certificate, weights_sha256, write_certificate
from isoconv.certify.rules import RULES
from isoconv.check.proof import KINDS
from isoconv.models import CONVOLUTIONS, Small
from isoconv.nn import Scale
from judge.networks import build, inputs, random_spec


def sequence(*layers: nn.Module) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(*layers)


def named(**layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(OrderedDict(layers))


NETWORKS: list[tuple[nn.Module, tuple[int, ...]]] = [
    *((Small((1, 8, 8), conv=conv), (1, 8, 8)) for conv in CONVOLUTIONS),
    (Small((3, 8, 12), conv="bcop", activation="relu"), (3, 8, 12)),
    (sequence(nn.Linear(4, 6), nn.Tanh(), nn.ReLU6(), nn.Hardtanh(-0.5, 1.0), nn.Sigmoid(), nn.Linear(6, 3)), (4,)),
    (sequence(nn.Flatten(-3), nn.Unflatten(1, (-1, 6)), nn.BatchNorm1d(10), nn.Flatten(), nn.Linear(60, 3)), (3, 4, 5)),
    (
        sequence(
            *(nn.ConstantPad2d((1, 0, 2, -1), 0.5), nn.Conv2d(1, 4, (2, 3), stride=(2, 1)), nn.BatchNorm2d(4)),
            *(nn.PixelShuffle(2), nn.Upsample(scale_factor=2), nn.MaxPool2d(3, 2, ceil_mode=True)),
            *(nn.PixelUnshuffle(3), nn.Flatten(2), nn.ReplicationPad1d((1, 0)), nn.Flatten(), nn.Linear(45, 3)),
        ),
        (1, 5, 4),
    ),
    (nn.Linear(4, 2), (4,)),
]


@pytest.mark.parametrize("number", range(len(NETWORKS)))
def test_the_checker_finds_them_valid(number: int, tmp_path: Path) -> None:
    """All methods, and kinds that are rare among the random networks below."""
    model, shape = NETWORKS[number]
    arguments = write_all(model, images(6, *shape), tmp_path, torch.zeros(6, dtype=torch.int64))
    assert check(arguments) == 0
    header, lines = read(Path(arguments[0]))
    assert [line["index"] for line in lines] == list(range(6)) and header["images"] == 6
    assert any(float.fromhex(line["radius"]) > 0 for line in lines)


@pytest.mark.parametrize("block", range(6))
def test_random_networks_are_found_valid(block: int, tmp_path: Path) -> None:
    """Whatever the certifier accepts has a certificate file, and the checker finds it valid: unequal axes, strides,
    dilations, paddings, all kinds of modules, names that do not count up, both arithmetics."""
    accepted = 0
    for seed in range(10_000 + 25 * block, 10_000 + 25 * (block + 1)):
        spec = random_spec(seed)
        model, x = build(spec), inputs(spec, 2)
        arithmetic = "float32" if seed % 3 == 0 and spec["dtype"] == "float32" else "float64"
        try:
            certifier = Certifier(model, tuple(spec["shape"]), arithmetic=arithmetic)
        except IsoconvError:
            continue
        if not certifier.error.offset < torch.inf:
            continue
        accepted += 1
        assert check(write_all(model, x, tmp_path, arithmetic=arithmetic)) == 0, (seed, spec)
    assert accepted >= 12


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
    arguments = write_all(sequence(nn.Linear(4, 2), Scale(1.0)), images(1, 4).float(), tmp_path, arithmetic="float32")
    header, lines = read(Path(arguments[0]))
    header["nodes"][1]["settings"]["factor"] = (1 - 2.0**-30).hex()
    write(Path(arguments[0]), header, lines)
    assert check(arguments) == 1 and "float32 cannot hold" in capsys.readouterr().out


def test_nodes_name_their_inputs_and_their_tensors(tmp_path: Path) -> None:
    """Also where a module is called "input", which is the name of the network's own."""
    inner = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    header, _ = read(Path(write_all(named(input=inner, neck=nn.Identity()), images(1, 4), tmp_path)[0]))
    names = {node["name"]: (node["inputs"], node["module"]) for node in header["nodes"]}
    inputs = {"input.0": "input", "input.1": "input.0", "neck": "input.1"}
    assert names == {name: ([source], name) for name, source in inputs.items()}
    assert header["output"] == "neck" and len(header["assumptions"]) == 1
    header, _ = read(Path(write_all(named(input=nn.Linear(4, 4)), images(1, 4), tmp_path)[0]))
    assert header["nodes"][0]["name"] != "input" == header["nodes"][0]["module"] and header["assumptions"] == []


def test_batches_are_written_as_they_come(tmp_path: Path) -> None:
    """The file holds what all at once would, and while it is written no more than a batch is held."""
    certifier, x = Certifier(sequence(nn.Linear(8, 10)), (8,)), images(1000, 8)
    write_certificate(tmp_path / "whole", certifier, certifier(x))
    with open_certificate(tmp_path / "parts", certifier, images=1000) as file:
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


def test_fewer_images_than_promised_leave_what_was_there(tmp_path: Path) -> None:
    certifier = Certifier(sequence(nn.Linear(4, 2)), (4,))
    (tmp_path / "c").write_text("old")
    with pytest.raises(IsoconvError, match="2 images"), open_certificate(tmp_path / "c", certifier, images=2) as file:
        file.add(certifier(images(1, 4)))
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


def test_the_hash_knows_names_types_shapes_and_bytes() -> None:
    model = sequence(nn.Linear(4, 3))
    found = weights_sha256(model)
    assert found == weights_sha256(sequence(nn.Linear(4, 3)))
    assert found != weights_sha256(model.double())
    assert found != weights_sha256(nn.Sequential(nn.Identity(), sequence(nn.Linear(4, 3))[0]))
    changed = sequence(nn.Linear(4, 3))
    with torch.no_grad():
        changed[0].weight[0, 0] = torch.nextafter(changed[0].weight[0, 0], torch.tensor(torch.inf))
    assert found != weights_sha256(changed)
    assert len(weights_sha256(model.to(torch.bfloat16))) == 64


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (sequence(nn.Flatten(), nn.Linear(4, 2)), {"p": 1}, "p = 2"),
        (sequence(nn.Flatten(), nn.Linear(4, 2)), {"criterion": "per-class"}, "per pair"),
        (sequence(nn.Flatten(), nn.Linear(4, 2).half()), {}, "float16"),
        (sequence(nn.Flatten(), *(Scale(1e200) for _ in range(2)), nn.Linear(4, 2)), {}, "overflow"),
    ],
)
def test_what_has_no_file(model: nn.Module, options: dict[str, object], message: str, tmp_path: Path) -> None:
    certifier = Certifier(model, (1, 2, 2), **options)  # type: ignore[arg-type]
    with pytest.raises(IsoconvError, match=message):
        write_certificate(tmp_path / "c", certifier, certifier(torch.rand(1, 1, 2, 2)))
    assert not list(tmp_path.iterdir())


def test_what_is_refused_leaves_no_file(tmp_path: Path) -> None:
    certifier, x = Certifier(sequence(nn.Linear(4, 3)), (4,)), images(2, 4)
    found = certifier(x)
    weak = sequence(nn.Linear(4, 3))
    with torch.no_grad():
        weak[0].weight.div_(100)
    cases = [
        (tmp_path / "missing" / "c", found, None, "Cannot write"),
        (tmp_path, found, None, "Cannot write"),
        (tmp_path / "c", certifier(torch.full((1, 4), torch.nan)), None, "image 0"),
        (tmp_path / "c", Certifier(weak, (4,))(x), None, "radii"),
        *((tmp_path / "c", found, labels, "label") for labels in (torch.tensor([0]), torch.tensor([0, 7]), x[:, 0])),
    ]
    for path, certificates, labels, message in cases:
        with pytest.raises(IsoconvError, match=message):
            write_certificate(path, certifier, certificates, labels)
    assert not list(tmp_path.iterdir())


def test_the_checker_knows_every_kind_that_a_certificate_may_name():
    assert {kind.__name__ for kind, rule in RULES.items() if rule.settings} == set(KINDS)
