"""Certificates of networks that are no chains: what is accepted is true, what is sharp is accepted, each lie is found."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import isoconv
from certify.random_graphs import SHAPE, RandomGraph
from check.certificate_maker import Certificate, check, claim_only, make_graph, put, weights_hash
from isoconv.certify import Certifier, write_certificate
from isoconv.check import Invalid
from isoconv.check.proof import examine
from isoconv.files import write_tensors
from isoconv.nn import Abs, Add, Concat, Flip, Permute, Reshape, Slice, Translate

Table = dict[str, Any]


def jacobians(model: nn.Module, points: Tensor) -> Tensor:
    """(points, outputs, inputs), in float64."""
    model = model.double()
    rows = torch.stack([torch.autograd.functional.jacobian(lambda x: model(x[None])[0], point) for point in points])
    return rows.flatten(2)


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("seed", range(8))
def test_what_is_accepted_is_true(seed, tmp_path):
    model = isoconv.plain(RandomGraph(seed, steps=10, usual=True).eval(), SHAPE)
    for arithmetic in ("float32", "float64"):
        honest = Certificate(tmp_path, model, SHAPE, arithmetic=arithmetic)
        outcome = honest.check(images=honest.pixels.numpy())
        assert outcome.code == 0, outcome
        for term in ("error_offset", "error_slope"):
            lie = honest.check(put(term, lambda value: (float.fromhex(value) * (1 - 1e-9)).hex()))
            assert lie.code == 1 and term in lie.out
    found = jacobians(model, 4 * torch.rand(8, *SHAPE, dtype=torch.float64) - 1.5)
    largest = float(torch.linalg.matrix_norm(found, 2).max())
    lie = honest.check(lambda table: claim_only(table, largest * (1 - 1e-9)))
    assert lie.code == 1 and "lipschitz" in lie.out, lie
    pair = float(torch.linalg.vector_norm(found[:, 0] - found[:, 1], dim=1).max())
    lie = honest.check(lambda table: claim_only(table, 1e9, pair * (1 - 1e-9)))
    assert lie.code == 1 and "pair" in lie.out, lie


def halves(name: str, source: str, axis: int = 0, size: int = 4) -> list[Any]:
    middle = size // 2
    return [(f"{name}0", Slice(axis + 1, 0, middle), [source]), (f"{name}1", Slice(axis + 1, middle, size), [source])]


@pytest.fixture
def honest(tmp_path: Path) -> Certificate:
    """A residual block, halves that go different ways, and a module that is used twice."""
    torch.manual_seed(0)
    conv = nn.Conv2d(4, 4, 3, padding=1)
    model = make_graph(
        ("conv", conv, ["input"]),
        ("tanh", nn.Tanh(), ["conv"]),
        ("conv#2", conv, ["tanh"]),
        ("sum", Add(), ["input", "conv#2"]),
        *halves("h", "sum"),
        ("abs", Abs(), ["h0"]),
        ("cat", Concat(1), ["abs", "h1"]),
        ("turn", Flip(3), ["cat"]),
        ("move", Permute((1, 2, 0)), ["turn"]),
        ("bias", Translate(torch.randn(3, 4)), ["move"]),
        ("flat", Reshape((36,)), ["bias"]),
        ("last", nn.Linear(36, 3), ["flat"]),
    )
    return Certificate(tmp_path, model, (4, 3, 3))


NODES = ["conv", "tanh", "conv#2", "sum", "h0", "h1", "abs", "cat", "turn", "move", "bias", "flat", "last"]


def at(name: str, part: str) -> str:
    return f"nodes.{NODES.index(name)}.{part}"


LIES: list[tuple[str, Any, int, str]] = [
    ("assumptions", [], 1, "assumptions"),
    ("assumptions", ["all is well"], 1, "assumptions"),
    ("claim", "x", 2, "claim"),
    ("images.1.note", "x", 2, "note"),
    ("images.1.index", 0, 1, "twice"),
    ("images", "3", 2, "images"),
    ("output", "flat", 2, "goes nowhere"),
    (at("tanh", "note"), "x", 2, "note"),
    (at("tanh", "name"), "conv", 2, "once"),
    (at("tanh", "name"), "input", 2, "once"),
    (at("conv", "module"), None, 1, "holds no"),
    (at("conv", "settings.padding"), [1, 1], 2, "padding"),  # as in version 1
    (at("sum", "inputs"), ["input", "sum"], 2, "after its inputs"),
    (at("sum", "inputs"), ["input", "cat"], 2, "after its inputs"),
    (at("sum", "inputs"), ["input"], 2, "2 inputs"),
    (at("sum", "inputs"), ["input", "input"], 2, "goes nowhere"),
    (at("sum", "inputs"), ["conv#2", "conv#2", "input", "input"], 1, "lipschitz"),
    (at("conv", "settings.padding"), [[0, 0], [0, 0]], 2, "inputs of one shape"),
    (at("sum", "lipschitz"), (1 - 2.0**-52).hex(), 1, "sum"),
    (at("sum", "lipschitz"), (2.0).hex(), 1, "lipschitz"),
    (at("sum", "settings"), {"alpha": 1}, 2, "alpha"),
    (at("sum", "kind"), "Concat", 2, "axis"),
    (at("cat", "inputs"), ["abs", "abs"], 2, "goes nowhere"),
    (at("cat", "inputs"), ["h1", "abs"], 0, ""),  # another network, of the same constants
    (at("cat", "inputs"), ["abs", "h1", "h1"], 2, "Expected"),
    (at("cat", "settings.axis"), 3, 2, "axis 3"),
    (at("cat", "settings.axis"), -1, 2, "axis"),
    (at("cat", "settings.axis"), 1, 2, "[6, 3, 2]"),
    (at("h0", "settings.axis"), 1, 2, "but for axis 0"),
    (at("cat", "lipschitz"), (0.5).hex(), 1, "cat"),
    (at("h0", "settings.start"), -1, 2, "start"),
    (at("h0", "settings.start"), 2, 2, "from 2"),
    (at("h0", "settings.stop"), 5, 2, "up to 5"),
    (at("h0", "settings.step"), 0, 2, "step"),
    (at("turn", "settings.axis"), 3, 2, "axis"),
    (at("turn", "settings.axis"), -1, 2, "axis"),
    (at("h0", "settings.step"), 1 << 62, 2, ""),
    (at("h0", "settings.axis"), 1 << 40, 2, "axis"),
    (at("move", "settings.order"), [1, 2, 2], 2, "axes"),
    (at("move", "settings.order"), [1, 2, 3], 2, "axes"),
    (at("flat", "settings.shape"), [35], 2, "36 numbers"),
    (at("flat", "settings.shape"), [-1], 2, "shape"),
    (at("flat", "settings.shape"), [1 << 25, 1 << 25], 2, "36 numbers"),
    (at("flat", "settings.shape"), [1] * 59 + [36], 2, "logits"),
    (at("bias", "module"), "conv", 1, "bias.bias"),
    (at("bias", "module"), None, 1, "holds no"),
    (at("conv#2", "module"), "last", 2, "kernel"),
    (at("tanh", "inputs"), ["conv", "conv"], 2, "1 inputs"),
]


@pytest.mark.parametrize("number", range(len(LIES)))
def test_lies(number, honest):
    path, value, code, word = LIES[number]
    outcome = honest.check(put(path, value))
    assert outcome.code == code and word in outcome.out + outcome.err, outcome
    assert (outcome.out + outcome.err).count("\n") == 1


def test_that_another_axis_is_flipped_is_seen_in_the_logits(honest):
    pixels = honest.pixels.numpy()
    assert honest.check(images=pixels).code == 0
    outcome = honest.check(put(at("turn", "settings.axis"), 1), images=pixels)
    assert outcome.code == 1 and "logit" in outcome.out


def test_lines(honest, tmp_path):
    """The file is read line by line: each is checked, none may be missing, the number of them may be unknown."""
    assert "assuming" in honest.check().out
    text = (tmp_path / "certificate.json").read_text()
    lines = text.splitlines(keepends=True)
    unknown = json.dumps({**json.loads(lines[0]), "images": None}) + "\n"
    for content, code in {
        text: 0,
        text.rstrip("\n"): 0,
        "".join([unknown, *lines[1:]]): 0,
        unknown: 0,
        "".join(lines[:-1]): 2,
        text[:-40]: 2,
        text + "\n": 2,
        text + lines[-1]: 2,
        "".join([lines[1], *lines]): 2,
        "\n" + text: 2,
    }.items():
        (tmp_path / "certificate.json").write_text(content)
        outcome = check(tmp_path / "certificate.json", honest.model_file)
        assert outcome.code == code and (outcome.out + outcome.err).count("\n") == 1, (content[:60], outcome)


def test_images_in_any_order_each_once_in_constant_memory(tmp_path):
    model = nn.Sequential(nn.Linear(3, 2)).double()
    certifier = Certifier(model, (3,))
    write_tensors(tmp_path / "model.safetensors", certifier.deployed.state_dict(), {"format": "pt"})

    def peak(count: int, order: list[int]) -> int:
        """Check a certificate of images with these indices; return the most bytes that were needed."""
        path = tmp_path / "certificate.jsonl"
        write_certificate(path, certifier, certifier(torch.rand(count, 3, dtype=torch.float64)))
        header, *lines = path.read_text().splitlines()
        listed = [json.dumps({**json.loads(line), "index": k}) for line, k in zip(lines, order, strict=True)]
        path.write_text("\n".join([header, *listed]))
        tracemalloc.start()
        try:
            assert f"of {count} images" in examine(path, tmp_path / "model.safetensors")
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak(5, [3, 1, 0, 2, 10**30])
    for order in ([0, 1, 0], [2, 0, 2], [1, 0, 1], [0, 1, 2, 4, 3, 3]):
        with pytest.raises(Invalid, match=f"image {order[-1]} occurs twice"):
            peak(len(order), order)
    assert peak(5200, [*range(5200)]) < 2 * peak(500, [*range(500)])


def test_replay_sees_what_goes_where(honest):
    """Halves that are exchanged have the same constants: only the images tell."""
    images = honest.pixels.numpy()
    assert honest.check(images=images).code == 0
    lie = honest.check(put(at("cat", "inputs"), ["h1", "abs"]), images=images)
    assert lie.code == 1 and "logit" in lie.out


@pytest.mark.parametrize("shape", [(), (1, 1), (6,), (4, 1), (1, 4, 6), (4,), (3, 6)])
def test_a_bias_never_enlarges(shape, tmp_path):
    fits = shape not in ((1, 4, 6), (4,), (3, 6))
    translate = Translate(torch.randn(shape if fits else (4, 6)))
    model = make_graph(("t", translate, ["input"]), ("f", nn.Flatten(), ["t"]))
    honest = Certificate(tmp_path, model, (4, 6))
    if not fits:
        translate.bias = nn.Parameter(torch.randn(shape))
        honest.save_model()
        honest.table["weights_sha256"] = weights_hash(model.state_dict())
    assert honest.check(images=honest.pixels.numpy()).code == (0 if fits else 2)
