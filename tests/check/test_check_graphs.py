"""Certificates of networks that are no chains: what is accepted is true, what is sharp is accepted, each lie is found."""

import json
import math
import random
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from check.certificate_maker import Certificate, check, make_graph, put, weights_hash
from isoconv.certify import Certifier, write_certificate
from isoconv.check import Invalid
from isoconv.check.proof import examine
from isoconv.files import write_tensors
from isoconv.nn import Abs, Add, Concat, Graph, MaxMin, Permute, Reshape, Scale, Slice, Translate

Table = dict[str, Any]


def jacobians(model: nn.Module, points: Tensor) -> Tensor:
    """(points, outputs, inputs), in float64."""
    model = model.double()
    rows = torch.stack([torch.autograd.functional.jacobian(lambda x: model(x[None])[0], point) for point in points])
    return rows.flatten(2)


def slack(table: Table, lipschitz: float, pairs: float | None = None) -> None:
    """Claim this constant, and of everything else so much that only it can be wrong."""
    classes = table["classes"]
    pairs = 1e9 if pairs is None else pairs
    table["lipschitz"] = lipschitz.hex()
    table["pair_constants"] = [[(0.0 if i == j else pairs).hex() for j in range(classes)] for i in range(classes)]
    table["images"] = []


def draw_function(draw: random.Random, x: Tensor) -> nn.Module:
    choices = [Abs(), nn.ReLU(), Scale(draw.choice((-1.0, 0.5, 1.25))), nn.Linear(x.shape[-1], x.shape[-1])]
    choices += [MaxMin()] * (x.shape[1] % 2 == 0) + [nn.Tanh()]
    if x.dim() == 4:
        choices += [nn.Conv2d(x.shape[1], x.shape[1], draw.choice((1, 3)), padding="same", padding_mode="circular")] * 2
        choices += [nn.Conv2d(x.shape[1], x.shape[1], 3, padding=1)]
    return draw.choice(choices)


def draw_graph(seed: int, nodes: int = 12) -> tuple[Graph, tuple[int, ...]]:
    """A graph with sums, concatenations, slices and modules that are used twice; its input has three axes."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    shape = (draw.choice((2, 4)), draw.randint(2, 4), draw.randint(2, 4))
    known: list[tuple[str, nn.Module, Sequence[str]]] = []
    values: dict[str, Tensor] = {"input": torch.rand(2, *shape)}

    def add(module: nn.Module, *inputs: str) -> str:
        name = f"{len(known)} {type(module).__name__}"
        values[name] = module(*(values[before] for before in inputs)).detach()
        known.append((name, module, inputs))
        return name

    while len(known) < nodes:
        recent = draw.choice(list(values)[-4:])
        x = values[recent]
        alike = [name for name, value in values.items() if value.shape == x.shape]
        axis = draw.randrange(x.dim() - 1)
        size = x.shape[axis + 1]
        cut = draw.randint(1, max(1, size - 1))
        match draw.randrange(11):
            case 0:
                add(Add(), *(draw.choice(alike) for _ in range(draw.choice((2, 2, 3)))))
            case 1 if x[0].numel() <= 100:
                add(Concat(axis + 1), *(draw.choice(alike) for _ in range(2)))
            case 2 if size > 1:
                add(Slice(axis + 1, *sorted(draw.sample(range(size + 1), 2)), draw.choice((1, 2))), recent)
            case 3 if size > 1:  # in two, and together again
                parts = (add(Slice(axis + 1, 0, cut), recent), add(Slice(axis + 1, cut, size), recent))
                add(Concat(axis + 1), add(draw_function(draw, values[parts[0]]), parts[0]), parts[1])
            case 4:
                add(Reshape(draw.choice((x.shape[1:], x.shape[:0:-1], (x[0].numel(),)))), recent)
            case 5:
                add(Permute(draw.sample(range(x.dim() - 1), x.dim() - 1)), recent)
            case 6:
                bias = torch.randn(x.shape[1:] if draw.random() < 0.5 else (x.shape[1], *(1,) * (x.dim() - 2)))
                add(Translate(bias), recent)
            case 7 if known:  # once more
                name, module, _ = draw.choice(known)
                inputs = next(inputs for other, _, inputs in known if other == name)
                fits = [v for v, value in values.items() if value.shape == values[inputs[0]].shape]
                add(module, *(draw.choice(fits) if len(inputs) == 1 else before for before in inputs))
            case _:
                add(draw_function(draw, x), recent)
    taken = {before for _, _, inputs in known for before in inputs}
    flat = [add(nn.Flatten(), name) for name in list(values) if name not in taken]
    last = add(Concat(1), *flat)
    add(nn.Linear(values[last].shape[1], 3), last)
    return make_graph(*known), shape


@pytest.mark.parametrize("seed", range(8))
def test_what_is_accepted_is_true(seed, tmp_path):
    model, shape = draw_graph(seed)
    for arithmetic in ("float32", "float64"):
        honest = Certificate(tmp_path, model, shape, arithmetic=arithmetic)
        outcome = honest.check(images=honest.pixels.numpy())
        assert outcome.code == 0, outcome
        for term in ("error_offset", "error_slope"):
            lie = honest.check(put(term, lambda value: (float.fromhex(value) * (1 - 1e-9)).hex()))
            assert lie.code == 1 and term in lie.out
    found = jacobians(model, 4 * torch.rand(8, *shape, dtype=torch.float64) - 1.5)
    largest = float(torch.linalg.matrix_norm(found, 2).max())
    lie = honest.check(lambda table: slack(table, largest * (1 - 1e-9)))
    assert lie.code == 1 and "lipschitz" in lie.out, lie
    pair = float(torch.linalg.vector_norm(found[:, 0] - found[:, 1], dim=1).max())
    lie = honest.check(lambda table: slack(table, 1e9, pair * (1 - 1e-9)))
    assert lie.code == 1 and "pair" in lie.out, lie


def halves(name: str, source: str, axis: int = 0, size: int = 4) -> list[Any]:
    middle = size // 2
    return [(f"{name}0", Slice(axis + 1, 0, middle), [source]), (f"{name}1", Slice(axis + 1, middle, size), [source])]


def orthogonal(size: int, seed: int) -> nn.Module:
    layer = nn.Linear(size, size, bias=False, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(torch.linalg.qr(torch.randn(size, size, generator=torch.Generator().manual_seed(seed)))[0])
    return layer


def swap(size: int) -> nn.Module:
    """Halves exchanged, by a matrix."""
    layer = nn.Linear(size, size, bias=False)
    layer.weight.data = torch.eye(size).roll(size // 2, 1)
    return layer


def scale(name: str, factor: float, source: str) -> tuple[str, nn.Module, list[str]]:
    return name, Scale(factor), [source]


def cut(name: str, axis: int, start: int, stop: int, source: str, step: int = 1) -> tuple[str, nn.Module, list[str]]:
    return name, Slice(axis + 1, start, stop, step), [source]


def concat(name: str, axis: int, *sources: str) -> tuple[str, nn.Module, list[str]]:
    return name, Concat(axis + 1), list(sources)


def repeated_halves(source: str, k: int) -> list[Any]:
    turned = (f"r{k}", orthogonal(6, k), [f"h{k}0"])
    return [*halves(f"h{k}", source), turned, concat(f"c{k}", 0, f"r{k}", f"h{k}1")]


# Each is linear, and its constant is what the relations give: (nodes, constant) on an input of (4, 6).
SHARP: dict[str, tuple[list[Any], float]] = {
    "one value twice": ([("s", Add(), ["input"] * 2)], 2.0),
    "one value thrice, and less": ([scale("a", 0.5, "input"), ("s", Add(), ["input", "a", "input", "input"])], 3.5),
    "a value beside itself": ([concat("c", 1, *["input"] * 3)], math.sqrt(3)),
    "chunk and cat": (
        [*halves("h", "input"), scale("a", 3.0, "h0"), scale("b", -0.5, "h1"), concat("c", 0, "b", "a")], 3.0,
    ),
    "chunk and cat, again and again": (
        [part for k in range(6) for part in repeated_halves(f"c{k - 1}" if k else "input", k)], 1.0,
    ),
    "slices that overlap": (
        [cut("a", 1, 0, 4, "input"), cut("b", 1, 3, 6, "input"), scale("d", 2.0, "b"), concat("c", 1, "a", "d")],
        math.sqrt(5),
    ),
    "even and odd, after moving": (
        [("p", Permute((1, 0)), ["input"]), ("r", Reshape((3, 8)), ["p"]), ("f", nn.Flatten(), ["r"]),
         cut("a", 0, 0, 24, "f", 2), cut("b", 0, 1, 24, "f", 2), ("u", nn.Unflatten(1, (3, 4)), ["b"]),
         ("v", nn.Flatten(), ["u"]), scale("d", 2.0, "v"), concat("c", 0, "d", "a")], 2.0,
    ),
    "a sum of halves": ([*halves("h", "input"), ("s", Add(), ["h1", "h0"])], math.sqrt(2)),
    "residual": ([scale("r", 0.25, "input"), ("s", Add(), ["input", "r"]), scale("t", 2.0, "s")], 2.5),
    "halves of halves": (
        [("t", Translate(torch.ones(1, 6)), ["input"]), *halves("h", "t"), *halves("k", "h0", axis=1, size=6),
         scale("a", 2.0, "k0"), concat("c", 1, "a", "k1"), concat("d", 0, "c", "h1")], 2.0,
    ),
    "a base behind a base": (  # ‖(x, 2x, 3x[:2])‖ where 2x is taken twice, and so a base itself
        [scale("a", 2.0, "input"), *halves("h", "a"), concat("c", 0, "h0", "h1"), cut("s", 0, 0, 2, "input"),
         scale("t", 3.0, "s"), concat("d", 0, "input", "c", "t")], math.sqrt(1 + 4 + 9),
    ),
    "a selection that is taken twice": (  # columns of the input beside its first two rows
        [("p", Permute((1, 0)), ["input"]), *halves("h", "p", size=6), scale("a", 3.0, "h0"), cut("r", 0, 0, 2, "input"),
         cut("q", 1, 3, 6, "r"), scale("b", 5.0, "q"), *((f"f{n}", nn.Flatten(), [n]) for n in ("a", "h1", "b")),
         concat("c", 0, "fa", "fh1", "fb")], math.sqrt(26),
    ),
    "what a layer moves is no selection": (
        [("m", swap(6), ["input"]), cut("s", 1, 0, 3, "m"), cut("t", 1, 3, 6, "input"), concat("c", 0, "s", "t", "t")],
        math.sqrt(3),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", SHARP)
def test_what_is_sharp_is_accepted(case, tmp_path):
    nodes, constant = SHARP[case]
    model = make_graph(*nodes, ("logits", nn.Flatten(), [nodes[-1][0]]))
    honest = Certificate(tmp_path, model, (4, 6))
    assert honest.check(images=honest.pixels.numpy()).code == 0
    true = float(torch.linalg.matrix_norm(jacobians(model, honest.pixels[:1]), 2).max())
    assert true == pytest.approx(constant, rel=1e-5)
    room = 1 + 1e-5 * any(isinstance(layer.module, nn.Linear) for layer in honest.layers)  # bounded generously
    for factor, code in ((room * (1 + 1e-12), 0), (1 - 1e-9, 1)):
        outcome = honest.check(lambda table, factor=factor: slack(table, constant * factor))
        assert outcome.code == code, outcome


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
        ("move", Permute((1, 2, 0)), ["cat"]),
        ("bias", Translate(torch.randn(3, 4)), ["move"]),
        ("flat", Reshape((36,)), ["bias"]),
        ("last", nn.Linear(36, 3), ["flat"]),
    )
    return Certificate(tmp_path, model, (4, 3, 3))


NODES = ["conv", "tanh", "conv#2", "sum", "h0", "h1", "abs", "cat", "move", "bias", "flat", "last"]


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
    (at("cat", "lipschitz"), (0.5).hex(), 1, "cat"),
    (at("h0", "settings.start"), -1, 2, "start"),
    (at("h0", "settings.start"), 2, 2, "from 2"),
    (at("h0", "settings.stop"), 5, 2, "up to 5"),
    (at("h0", "settings.step"), 0, 2, "step"),
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


def test_a_circular_pad_that_two_take_is_no_part_of_a_convolution(tmp_path):
    """Alone, it copies pixels; in front of one convolution, it is bounded with it."""
    nodes = [
        ("pad", nn.CircularPad2d(1), ["input"]),
        ("a", nn.Conv2d(2, 2, 3), ["pad"]),
        ("b", nn.Conv2d(2, 2, 3), ["pad"]),
        ("sum", Add(), ["a", "b"]),
        ("flat", nn.Flatten(), ["sum"]),
    ]
    honest = Certificate(tmp_path, make_graph(*nodes), (2, 3, 3))
    assert honest.check(images=honest.pixels.numpy()).code == 0
    assert honest.layers[0].norm == 2.0
    assert honest.check(put("nodes.0.lipschitz", (1.5).hex())).code == 1
