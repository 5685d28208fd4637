"""Certificates that isoconv writes, examined by the checker that shares no code with it."""

import tracemalloc
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from certify.certificates import as_version_1, check, read, write, write_all
from isoconv import IsoconvError
from isoconv.certify import Certifier, open_certificate, weights_sha256, write_certificate
from isoconv.models import CONVOLUTIONS, Small
from isoconv.nn import Abs, GroupSort, MaxMin, Scale
from judge.networks import build, inputs, random_spec


def sequence(*layers: nn.Module) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(*layers)


def images(count: int, *shape: int) -> Tensor:
    return torch.rand(count, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


# Networks of every module that a certificate may hold; odd, rectangular and one-dimensional ones among them.
NETWORKS: list[tuple[nn.Module, tuple[int, ...]]] = [
    *((Small((1, 8, 8), conv=conv), (1, 8, 8)) for conv in CONVOLUTIONS),
    (Small((3, 8, 12), conv="bcop", activation="relu"), (3, 8, 12)),
    (
        sequence(
            *(nn.Conv2d(2, 4, 3, padding=1, groups=2), nn.ReLU(), nn.Conv2d(4, 6, 3, stride=2, padding=1), Abs()),
            *(Scale(0.5), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(12, 3)),
        ),
        (2, 7, 5),
    ),
    (
        sequence(
            *(nn.ZeroPad2d(1), nn.Conv2d(1, 4, 2, dilation=2), GroupSort(4), nn.PixelShuffle(2)),
            *(nn.MaxPool2d(3, stride=2, padding=1), nn.Dropout(), nn.PixelUnshuffle(2), nn.Flatten()),
            *(nn.Linear(16, 2), nn.Identity()),
        ),
        (1, 4, 4),
    ),
    (
        sequence(
            *(nn.CircularPad1d((2, 1)), nn.Conv1d(2, 4, 4), MaxMin(), nn.MaxPool1d(2), nn.Flatten(), nn.Linear(12, 4))
        ),
        (2, 6),
    ),
    (sequence(nn.Conv2d(1, 2, 5, padding=2, padding_mode="circular"), nn.Flatten(), nn.Linear(8, 3)), (1, 2, 2)),
    (sequence(nn.Linear(4, 6), nn.Hardtanh(-0.5, 1.0), nn.Linear(6, 6), nn.Softsign(), nn.Linear(6, 3)), (4,)),
    (sequence(nn.Linear(4, 6), nn.Tanh(), nn.ReLU6(), nn.Linear(6, 6), nn.Sigmoid(), nn.Linear(6, 3)), (4,)),
    (
        sequence(
            *(
                nn.ConstantPad2d((1, 0, 2, -1), 0.5),
                nn.ReflectionPad2d((1, 0, 0, 1)),
                nn.ReplicationPad2d((0, 2, 1, 0)),
            ),
            *(
                nn.Conv2d(1, 3, (2, 3), stride=(2, 1)),
                nn.BatchNorm2d(3),
                nn.LeakyReLU(0.2),
                nn.Upsample(scale_factor=2),
            ),
            *(nn.MaxPool2d(3, 2, ceil_mode=True), nn.Flatten(-3), nn.Unflatten(1, (-1, 6)), nn.BatchNorm1d(12)),
            *(nn.Flatten(), nn.Linear(72, 3)),
        ),
        (1, 5, 4),
    ),
    (sequence(nn.Conv1d(2, 3, 3, padding="same", padding_mode="reflect"), nn.Flatten(), nn.Linear(15, 2)), (2, 5)),
    (nn.Linear(4, 2), (4,)),
]


@pytest.mark.parametrize("number", range(len(NETWORKS)))
def test_the_checker_finds_them_valid(number: int, tmp_path: Path) -> None:
    model, shape = NETWORKS[number]
    arguments = write_all(model, images(6, *shape), tmp_path, torch.zeros(6, dtype=torch.int64))
    assert check(arguments) in (0, None)
    header, lines = read(Path(arguments[0]))
    assert [line["index"] for line in lines] == list(range(6)) and header["images"] == 6
    assert any(float.fromhex(line["radius"]) > 0 for line in lines)


@pytest.mark.parametrize("block", range(6))
def test_random_networks_are_found_valid(block: int, tmp_path: Path) -> None:
    """Whatever the certifier accepts has a certificate file, and the checker finds it valid: unequal axes, strides,
    dilations, paddings, all kinds of modules, names that do not count up, both arithmetics."""
    examined = accepted = 0
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
        verdict = check(write_all(model, x, tmp_path, arithmetic=arithmetic))
        assert verdict in (0, None), (seed, spec)
        examined += verdict == 0
    assert accepted >= 12 and examined >= 2


def test_a_larger_radius_or_another_weight_is_found_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = write_all(Small((1, 8, 8)), images(3, 1, 8, 8), tmp_path)
    header, lines = read(Path(arguments[0]))
    lines[0]["radius"] = (float.fromhex(lines[0]["radius"]) * (1 + 1e-6)).hex()
    write(Path(arguments[0]), header, lines)
    assert check(arguments) == 1 and "image 0" in capsys.readouterr().out
    (tmp_path / "other").mkdir()
    other = write_all(Small((1, 8, 8)), images(3, 1, 8, 8), tmp_path / "other")
    assert check(other) == 0 and check([other[0], *arguments[1:]]) == 1


def test_equal_logits_are_written_with_a_radius_of_zero(tmp_path: Path) -> None:
    model = sequence(nn.Flatten(), nn.Linear(4, 3))
    with torch.no_grad():
        model[1].weight.zero_()
        model[1].bias.zero_()
    arguments = write_all(model, images(3, 1, 2, 2), tmp_path)
    assert check(arguments) == 0
    assert {line["radius"] for line in read(Path(arguments[0]))[1]} == {(0.0).hex()}


def test_nodes_name_their_inputs_and_their_tensors(tmp_path: Path) -> None:
    """Also where a module is called "input", which is the name of the network's own."""
    model = nn.Sequential()
    model.add_module("input", nn.Sequential(nn.Linear(4, 4), nn.Tanh()))
    model.add_module("neck", nn.Identity())
    header, _ = read(Path(write_all(model, images(1, 4), tmp_path)[0]))
    names = [(node["name"], node["inputs"], node["module"]) for node in header["nodes"]]
    assert names == [
        ("input.0", ["input"], "input.0"), ("input.1", ["input.0"], "input.1"), ("neck", ["input.1"], "neck"),
    ]  # fmt: skip
    assert header["output"] == "neck" and len(header["assumptions"]) == 1
    alone = nn.Sequential()
    alone.add_module("input", nn.Linear(4, 4))
    header, _ = read(Path(write_all(alone, images(1, 4), tmp_path)[0]))
    assert header["nodes"][0]["name"] != "input" and header["nodes"][0]["module"] == "input"
    assert header["assumptions"] == []


def test_version_1_has_words_for_most_of_them(tmp_path: Path) -> None:
    """The old checker judges the certifier by these."""
    convertible = [as_version_1(*read(Path(write_all(m, images(1, *s), tmp_path)[0]))) for m, s in NETWORKS[7:12]]
    assert all(convertible)


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


@pytest.mark.parametrize(("count", "error"), [(2, IsoconvError), (None, KeyboardInterrupt)])
def test_an_interruption_leaves_what_was_there(count: int | None, error: type[BaseException], tmp_path: Path) -> None:
    """Whether somebody stops it or there are fewer images than were promised."""
    certifier = Certifier(sequence(nn.Linear(4, 2)), (4,))
    (tmp_path / "c").write_text("old")

    def write_one() -> None:
        with open_certificate(tmp_path / "c", certifier, images=count) as file:
            file.add(certifier(images(1, 4)))
            if count is None:
                raise KeyboardInterrupt

    with pytest.raises(error):
        write_one()
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
