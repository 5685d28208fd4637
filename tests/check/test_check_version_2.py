"""Certificates of version 2: every kind is accepted as it is honest, and each lie about it is found."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from check.certificate_maker import Abs, Certificate, Scale, check, put, weights_hash
from isoconv.nn import GroupSort, MaxMin


def batch_norm(kind: type[nn.Module], channels: int, **options: Any) -> nn.Module:
    """One that has seen something."""
    module = kind(channels, **options)
    module.running_mean.uniform_(-1, 1)
    module.running_var.uniform_(0.1, 2)
    for parameter in module.parameters():
        nn.init.uniform_(parameter, -1, 1)
    return module


# On images (3, 7, 5), of which each gives some image.
KINDS_2D: dict[str, Callable[[], nn.Module]] = {
    "Hardtanh": lambda: nn.Hardtanh(0.25, 0.75),
    "ReLU6": nn.ReLU6,
    "LeakyReLU": lambda: nn.LeakyReLU(-1.5),
    "Softsign": nn.Softsign,
    "Tanh": nn.Tanh,
    "Sigmoid": nn.Sigmoid,
    "Scale": lambda: Scale(0.75),
    "GroupSort": lambda: GroupSort(3),
    "BatchNorm2d": lambda: batch_norm(nn.BatchNorm2d, 3),
    "BatchNorm2d without weights": lambda: batch_norm(nn.BatchNorm2d, 3, affine=False),
    "ConstantPad2d": lambda: nn.ConstantPad2d((1, 0, -2, 3), 0.5),
    "ZeroPad2d": lambda: nn.ZeroPad2d((-1, 1, 2, -3)),
    "ReflectionPad2d": lambda: nn.ReflectionPad2d((4, 0, 1, 6)),
    "ReplicationPad2d": lambda: nn.ReplicationPad2d((1, 3, 0, 2)),
    "CircularPad2d": lambda: nn.CircularPad2d((1, 3, 0, 2)),
    "Upsample": lambda: nn.Upsample(scale_factor=2),
    "MaxPool2d": lambda: nn.MaxPool2d(2, ceil_mode=True),
    "MaxPool2d dilated": lambda: nn.MaxPool2d((3, 2), stride=(2, 3), padding=1, dilation=(1, 2), ceil_mode=True),
    "AvgPool2d": lambda: nn.AvgPool2d(3, stride=2, padding=1),
    "AvgPool2d divided": lambda: nn.AvgPool2d(2, divisor_override=-3),
    "Conv2d reflect": lambda: nn.Conv2d(3, 4, 3, padding=(2, 1), padding_mode="reflect"),
    "Conv2d replicate": lambda: nn.Conv2d(3, 4, (2, 3), stride=2, padding=2, padding_mode="replicate"),
    "Conv2d circular": lambda: nn.Conv2d(3, 4, 3, stride=2, padding_mode="circular"),
    "Conv2d same": lambda: nn.Conv2d(3, 6, (2, 4), padding="same", groups=3),
    "Flatten": lambda: nn.Sequential(nn.Flatten(2, 3), nn.Unflatten(2, (5, 7))),
}
KINDS_1D: dict[str, Callable[[], nn.Module]] = {
    "BatchNorm1d": lambda: batch_norm(nn.BatchNorm1d, 4),
    "ReflectionPad1d": lambda: nn.ReflectionPad1d((8, 3)),
    "ReplicationPad1d": lambda: nn.ReplicationPad1d((0, 12)),
    "ConstantPad1d": lambda: nn.ConstantPad1d((-2, 4), -1.0),
    "Upsample": lambda: nn.Upsample(scale_factor=3),
    "MaxPool1d": lambda: nn.MaxPool1d(4, stride=3, ceil_mode=True),
    "Conv1d": lambda: nn.Conv1d(4, 3, 3, stride=2, padding=2, dilation=2, padding_mode="reflect"),
}


def around(module: nn.Module, shape: tuple[int, ...]) -> nn.Module:
    """The module between a convolution and a linear layer, so that its rounding matters to what follows."""
    first = (nn.Conv2d if len(shape) == 3 else nn.Conv1d)(shape[0], shape[0], 1)
    body = nn.Sequential(first, module, nn.Flatten())
    with torch.no_grad():
        features = body.eval()(torch.zeros(2, *shape)).shape[1]
    return nn.Sequential(*body, nn.Linear(features, 3))


def make(folder: Path, model: nn.Module, shape: tuple[int, ...], **options: Any) -> Certificate:
    return Certificate(folder, model, shape, version=2, **options)


CASES = [(name, build, (3, 7, 5)) for name, build in KINDS_2D.items()]
CASES += [(name, build, (4, 9)) for name, build in KINDS_1D.items()]


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize(("name", "build", "shape"), CASES, ids=[f"{n} {len(s) - 1}" for n, _, s in CASES])
def test_every_kind(name, build, shape, tmp_path):
    torch.manual_seed(len(name))
    for arithmetic in ("float64", "float32"):
        honest = make(tmp_path, around(build(), shape), shape, arithmetic=arithmetic, images=2)
        outcome = honest.check(images=honest.pixels.numpy())
        assert outcome.code == 0, outcome
    for number in range(1, len(honest.layers) - 2):
        norm = honest.layers[number].norm
        outcome = honest.check(put(f"nodes.{number}.lipschitz", (norm * (1 - 2e-6)).hex()))
        assert outcome.code == 1 and f"layer {honest.layers[number].name} " in outcome.out, outcome


@pytest.mark.parametrize(
    "name", ["Hardtanh", "Sigmoid", "Softsign", "Tanh", "ConstantPad2d", "BatchNorm2d", "LeakyReLU"]
)
def test_what_a_kind_rounds_is_claimed(name, tmp_path):
    """Half of the error terms is too little, although every bound in them is taken generously."""
    torch.manual_seed(1)
    honest = make(tmp_path, around(KINDS_2D[name](), (3, 7, 5)), (3, 7, 5))
    for term in ("error_offset", "error_slope"):
        lie = honest.check(put(term, lambda value: (float.fromhex(value) / 2).hex()))
        assert lie.code == 1 and term in lie.out


def test_pooling_that_counts_what_it_sees(tmp_path):
    """Divisors that differ: the root of the largest row sum times the largest column sum is a bound."""
    pools = (
        nn.AvgPool2d(3, stride=2, padding=1, count_include_pad=False),
        nn.AvgPool2d(2, stride=2, ceil_mode=True),
        nn.AvgPool2d(3, stride=2, padding=1, ceil_mode=True),
    )
    for pool in pools:
        torch.manual_seed(0)
        honest = make(tmp_path, around(pool, (3, 6, 5)), (3, 6, 5))
        true, generous = honest.layers[1].norm, 1.0
        outcome = {}
        for claim in (true * (1 - 1e-5), generous * 2):
            honest.table["nodes"][1]["lipschitz"] = claim.hex()
            honest.table["lipschitz"] = (1e3).hex()
            honest.table["pair_constants"] = [
                [(0.0).hex() if i == j else (1e3).hex() for j in range(3)] for i in range(3)
            ]
            honest.table |= {"error_offset": (1e-9).hex(), "error_slope": (1e-9).hex()}
            for image in honest.table["images"]:
                image["radius"] = (0.0).hex()
            outcome[claim] = honest.check(images=honest.pixels.numpy())
        assert [o.code for o in outcome.values()] == [1, 0], outcome


def test_taps_that_see_no_pixel_do_nothing(tmp_path):
    """A kernel of two taps, of which on an image one pixel high only zeros are seen: the constant is 0."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, (2, 1), padding=(2, 0), dilation=(3, 1)), nn.Flatten(), nn.Linear(12, 3))
    honest = make(tmp_path, model, (2, 1, 2))
    assert honest.layers[0].norm == 0 and honest.check(images=honest.pixels.numpy()).code == 0


@pytest.fixture
def honest(tmp_path: Path) -> Certificate:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(80, 3))
    return make(tmp_path, model, (2, 5, 4))


LIES: list[tuple[str, Any, int, str]] = [
    ("assumptions", [], 1, "assumptions"),
    ("assumptions", ["all is well"], 1, "assumptions"),
    ("claim", "x", 2, "claim"),
    ("nodes.1.note", "x", 2, "note"),
    ("images.1.note", "x", 2, "note"),
    ("nodes.1.settings.slope", 1, 2, "slope"),
    ("output", "2", 2, "goes nowhere"),
    ("nodes.0.inputs", ["3"], 2, "after its inputs"),
    ("nodes.1.inputs", ["0", "0"], 2, "1 inputs"),
    ("nodes.1.inputs", [], 2, "1 inputs"),
    ("nodes.2.inputs", ["0"], 2, "goes nowhere"),
    ("nodes.1.name", "0", 2, "once"),
    ("nodes.1.name", "input", 2, "once"),
    ("nodes.0.module", None, 1, "holds no"),
    ("nodes.0.module", "3", 2, "kernel"),
    ("nodes.0.settings.padding", [1, 1], 2, "padding"),  # as in version 1
    ("images.1.index", 0, 1, "twice"),
    ("images", "3", 2, "images"),
]


@pytest.mark.parametrize(("path", "value", "code", "word"), LIES, ids=[f"{n} {lie[0]}" for n, lie in enumerate(LIES)])
def test_lies_about_the_graph(path, value, code, word, honest):
    outcome = honest.check(put(path, value))
    assert outcome.code == code and word in outcome.out + outcome.err, outcome


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


def test_one_module_in_two_places(tmp_path):
    model = nn.Sequential(nn.Linear(4, 4), Abs(), nn.Linear(4, 4), MaxMin(), nn.Linear(4, 2))
    model[2].load_state_dict(model[0].state_dict())
    honest = make(tmp_path, model, (4,))
    honest.model_file.unlink()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    state = {name: tensor for name, tensor in state.items() if not name.startswith("2.")}
    save_file(state, honest.model_file)
    honest.table["weights_sha256"] = weights_hash(state)
    assert honest.check().code == 1
    assert honest.check(lambda t: t["nodes"][2].update(module="0"), images=honest.pixels.numpy()).code == 0


def test_a_network_that_is_one_module(tmp_path):
    torch.manual_seed(0)
    honest = make(tmp_path, nn.Sequential(nn.Linear(4, 3)), (4,))
    renamed = {name.removeprefix("0."): tensor for name, tensor in honest.model.state_dict().items()}

    save_file(renamed, honest.model_file)
    honest.table["weights_sha256"] = weights_hash(renamed)
    assert (
        honest.check(lambda t: t["nodes"][0].update(module="", name="model")).code == 2
    )  # the output has another name
    assert honest.check(lambda t: [t["nodes"][0].update(module="", name="model"), t.update(output="model")]).code == 0
