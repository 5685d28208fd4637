"""The checker of certificates: every kind is accepted as it is honest, and each lie about it is found."""

import math
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import isoconv
import isoconv.check.__main__ as entry_point
from check.certificate_maker import DROP, Certificate, check, largest_radius, put, weights_hash
from isoconv.models.networks import Classifier
from isoconv.nn import Abs, GroupSort, MaxMin, Scale

Table = dict[str, Any]
Maker = Callable[..., Certificate]


@pytest.fixture
def certificate(tmp_path: Path) -> Maker:
    def make(model: nn.Module, *shape: int, **options: Any) -> Certificate:
        return Certificate(tmp_path, model, shape, **{"version": 1} | options)

    return make


class LargeLike(Classifier):
    convolutions, hidden = ((4, 3, 1), (4, 4, 2), (6, 3, 1), (6, 4, 2)), (16, 16)


def every_kind_2d() -> nn.Module:
    """On (2, 9, 6): every two-dimensional kind, odd sizes, images and kernels that are not square."""
    return nn.Sequential(
        nn.Conv2d(2, 4, (3, 2), stride=(1, 2), padding=(1, 0), padding_mode="circular"),  # (4, 9, 3)
        MaxMin(),
        nn.Conv2d(4, 8, 3, stride=2, padding=1, groups=2, bias=False),  # zeros: (8, 5, 2)
        nn.Sequential(nn.ZeroPad2d((1, 1, 0, 1)), GroupSort(4), nn.AvgPool2d(3, stride=1, padding=1)),  # (8, 6, 4)
        nn.PixelUnshuffle(2),  # (32, 3, 2)
        nn.Conv2d(32, 4, (2, 1), dilation=(2, 1)),  # (4, 1, 2)
        nn.PixelShuffle(2),  # (1, 2, 4)
        Abs(),
        nn.CircularPad2d((1, 3, 1, 0)),  # (1, 3, 8)
        nn.Identity(),
        nn.MaxPool2d(2, stride=(1, 2), padding=(1, 0)),  # (1, 4, 4)
        nn.Sequential(nn.CircularPad2d((1, 2, 2, 2)), nn.Conv2d(1, 3, (2, 3), stride=(1, 2))),  # (3, 7, 3)
        nn.Dropout(),
        Scale(-0.75),
        nn.Flatten(),
        nn.Linear(63, 7),
        nn.ReLU(),
        nn.Linear(7, 4),
    )


def one_dimension() -> nn.Module:
    """On (3, 11). The last layer is not linear."""
    return nn.Sequential(
        nn.Sequential(nn.CircularPad1d((2, 1)), nn.Conv1d(3, 4, 4, stride=3)),  # 11 is no multiple of 3: (4, 4)
        MaxMin(),
        nn.Linear(4, 2),  # along the last axis
        nn.Flatten(),
        nn.Linear(8, 4),
        Scale(1.5),
    )


NETWORKS = {
    "bcop": (lambda: isoconv.plain(LargeLike((2, 8, 8), 5, "bcop")), (2, 8, 8)),
    "svcm": (lambda: isoconv.plain(LargeLike((2, 8, 8), 5, "svcm")), (2, 8, 8)),
    "2d": (every_kind_2d, (2, 9, 6)),
    "1d": (one_dimension, (3, 11)),
}


def network(name: str) -> tuple[nn.Module, tuple[int, ...]]:
    torch.manual_seed(0)
    model, shape = NETWORKS[name]
    return model(), shape


@pytest.fixture
def small(certificate: Maker) -> Certificate:
    """The network "1d" and its certificate, which has been written."""
    model, shape = network("1d")
    honest = certificate(model, *shape)
    assert honest.check().code == 0
    return honest


def times(factor: float) -> Callable[[str], str]:
    return lambda value: (float.fromhex(value) * factor).hex()


def up(value: str) -> str:
    return math.nextafter(float.fromhex(value), math.inf).hex()


def down(value: str) -> str:
    return math.nextafter(float.fromhex(value), -math.inf).hex()


# ---------------------------------------------------------------------------------------------- honest certificates


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize(("arithmetic", "version"), [("float64", 1), ("float32", 2)])
def test_honest_certificates_are_accepted(name, arithmetic, version, certificate):
    model, shape = network(name)
    honest = certificate(model, *shape, arithmetic=arithmetic, version=version)
    outcome = honest.check(images=honest.pixels.numpy())
    assert outcome.code == 0 and outcome.err == "" and outcome.out.count("\n") == 1
    assert outcome.out.startswith(f"valid: Lipschitz constant at most {float.fromhex(honest.table['lipschitz'])!r} ")
    certified = sum(float.fromhex(image["radius"]) > 0 for image in honest.table["images"])
    assert f"and {certified} of 3 images with a proved radius" in outcome.out and "3 recomputed" in outcome.out
    for term in ("error_offset", "error_slope"):
        assert honest.check(put(term, down)).out.startswith(f"INVALID: {term} is ")
    if arithmetic == "float64":
        assert certified == 3 and certificate(model.double(), *shape).check().code == 0


def test_it_says_what_it_did_not_check(small):
    assert check(small.folder / "certificate.json", small.folder).code == 0  # a run's folder stands for its model
    assert "Not checked without --images: the images' norms and logits" in small.check().out
    outcome = small.check(images=small.pixels.numpy()[:2])
    assert "2 recomputed" in outcome.out and "not checked: 1 images that the file does not hold, labels" in outcome.out


def test_images_as_bytes_are_values_over_255(small):
    bytes_ = np.random.default_rng(0).integers(0, 256, (3, 3, 11), dtype=np.uint8)
    small.pixels = torch.from_numpy(bytes_ / 255)
    pairs = [[float.fromhex(value) for value in row] for row in small.table["pair_constants"]]
    terms = [float.fromhex(small.table[name]) for name in ("error_offset", "error_slope")]
    small.table["images"] = [small._image(k, pairs, *terms) for k in range(3)]
    assert small.check(images=bytes_).code == 0
    bytes_[1, 0, 0] ^= 1
    assert small.check(images=bytes_).code == 1


def test_it_runs_as_a_module_and_as_a_plain_folder_on_python_and_numpy_alone(small, tmp_path):
    """Copied to a folder of its own, with no site-packages on the path and numpy the only package that can be found."""

    def run(*arguments, **options):
        command = [sys.executable, *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=False, **options)

    files = [tmp_path / "certificate.json", small.model_file]
    shutil.copytree(Path(entry_point.__file__).parent, tmp_path / "check")
    (tmp_path / "site").mkdir()
    for folder in Path(np.__file__).parents[1].glob("numpy*"):
        (tmp_path / "site" / folder.name).symlink_to(folder)
    alone = {"cwd": "/", "env": {"PYTHONPATH": str(tmp_path / "site")}}
    for done in (run("-m", "isoconv.check", *files), run("-S", tmp_path / "check", *files, **alone)):
        assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith("valid: ")
    for package in ("isoconv", "torch", "safetensors"):
        assert run("-S", "-c", f"import {package}", **alone).returncode == 1


# --------------------------------------------------------------------------------------------------------------- lies


@pytest.mark.parametrize("name", ["svcm", "2d", "1d"])
def test_a_constant_below_the_truth_is_found_in_every_layer_and_one_close_to_it_accepted(name, certificate):
    """To a relative 1e-9 above it, where the checker's own rounding has to stay below that."""
    model, shape = network(name)
    honest = certificate(model, *shape)
    for number, layer in enumerate(honest.layers):
        weighted = hasattr(layer.module, "weight") or isinstance(layer.module, (nn.AvgPool1d, nn.AvgPool2d))
        lie = (layer.norm / (1 + 1e-6) if weighted else layer.norm) * (1 - 1e-6)
        outcome = honest.check(put(f"layers.{number}.lipschitz", lie.hex()))
        assert outcome.code == 1, layer
        kind = type(layer.module).__name__
        assert outcome.out.startswith(f"INVALID: layer {layer.node.path} ({kind}) claims a constant of {lie!r}")
    honest.table["images"] = []
    for entry, layer in zip(honest.table["layers"], honest.layers, strict=True):
        if hasattr(layer.module, "weight"):
            entry["lipschitz"] = (layer.norm / (1 + 1e-6) * (1 + 1e-9)).hex()
    assert honest.check().code == 0


LIES: dict[str, tuple[Callable[[Table], Any], str]] = {
    "product": (put("lipschitz", down), "lipschitz is .*, less than the product"),
    "pair": (put("pair_constants.1.3", down, "pair_constants.3.1", down), "the pair constant of classes 1 and 3, .* small"),
    "pairs not symmetric": (put("pair_constants.1.3", up), "pair_constants of classes 1 and 3: expected symmetric"),
    "pairs' diagonal": (put("pair_constants.2.2", (1.0).hex()), "pair_constants of classes 2 and 2"),
    "radius": (put("images.1.radius", up), "image 1: the margin to class . does not carry a radius"),
    "prediction": (put("images.2.prediction", lambda p: (p + 1) % 5), "image 2: class . has the largest logit, not class"),
    "tie": (put("images.0.logits", lambda y: [max(y, key=float.fromhex)] * 5), "image 0: the largest logit is tied"),
    "image twice": (put("images.2.index", 0), "image 0 occurs twice"),
    "norm": (put("images.0.input_norm", times(255)), "image 0: no input in the range has the norm"),
    "hash": (put("weights_sha256", lambda h: f"0{h[1:-1]}g"), "weights_sha256 is '0.*g', but"),
    "linear layer left out": (put("layers.13", DROP), "the model holds 1[13].bias, which no"),
    "last layers left out": (put("layers.-1", DROP, "layers.-1", DROP), "the model holds 13.bias, which no"),
    "layer renamed": (put("layers.-1.name", "14"), "layer 14 .*: the model holds no 14.weight"),
}  # fmt: skip


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    return Certificate(tmp_path_factory.mktemp("large"), *network("bcop"), at_the_centre=1, version=1)


@pytest.fixture(scope="module")
def two_dimensions(tmp_path_factory):
    return Certificate(tmp_path_factory.mktemp("2d"), *network("2d"), version=1)


def test_a_layer_left_out_shows_in_the_logits(small):
    """Of an activation nothing is left in the weights: without the images it is said not to have been checked."""
    place = small.layer("MaxMin")
    unseen = small.check(put(f"layers.{place}", DROP))
    assert unseen.code == 0 and "Not checked" in unseen.out and "as they are listed" in unseen.out
    assert small.check(put(f"layers.{place}", DROP), images=small.pixels.numpy()).code == 1


@pytest.mark.parametrize("lie", LIES)
def test_each_lie_is_found_and_named(lie, large):
    tell, message = LIES[lie]
    outcome = large.check(tell)
    assert outcome.code == 1 and outcome.err == ""
    assert re.match(f"INVALID: {message}", outcome.out)


def test_the_inequality_is_met_to_the_last_digit(large):
    """The honest radius is the largest that the inequality allows; the one above it is a lie (in LIES)."""
    assert large.check().code == 0
    zero = large.check(put("images.1.radius", (0.0).hex()))
    assert zero.code == 0 and "2 of 3 images with a proved radius" in zero.out


def test_pair_constants_may_use_either_bound(large):
    """√2 times the whole constant, where the rows of the last layer are farther apart than its norm promises."""
    root = math.sqrt(2) * float.fromhex(large.table["lipschitz"]) * (1 + 1e-12)
    larger = [[(root if i != j else 0.0).hex() for j in range(5)] for i in range(5)]
    assert large.check(put("pair_constants", larger, "images", [])).code == 0


def test_a_pad_that_is_part_of_a_convolution_does_not_round(large):
    """A larger constant of its own makes the product larger, but the error terms are those of the convolution alone."""
    assert large.table["layers"][2]["kind"] == "CircularPad2d"
    pairs = [[times(2)(constant) for constant in row] for row in large.table["pair_constants"]]
    doubled = put("layers.2.lipschitz", times(2), "lipschitz", times(2), "pair_constants", pairs, "images", [])
    assert large.check(doubled).code == 0


def test_a_pad_before_a_convolution_that_pads_is_no_part_of_it(certificate):
    layers = nn.CircularPad2d(1), nn.Conv2d(2, 2, 3, padding=1), nn.Flatten(), nn.Linear(40, 3)
    honest = certificate(nn.Sequential(*layers), 2, 3, 2)
    assert honest.layers[0].norm == 2.0 and honest.check(images=honest.pixels.numpy()).code == 0


def test_swapped_and_altered_weights_are_found(large, tmp_path):
    large.check()
    data = large.model_file.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    assert b'"0.bias"' in data[:start] and b'"2.1.bias"' in data[:start]  # both of four numbers
    names = {b'"0.bias"': b'"x"', b'"2.1.bias"': b'"0.bias"', b'"x"': b'"2.1.bias"'}
    swapped = reduce(lambda content, name: content.replace(name, names[name]), names, data)
    flipped = [data[:n] + bytes([data[n] ^ 1]) + data[n + 1 :] for n in (start, len(data) - 2001, len(data) - 1)]
    for content in (swapped, *flipped):
        (tmp_path / "other.safetensors").write_bytes(content)
        outcome = check(large.folder / "certificate.json", tmp_path / "other.safetensors")
        assert outcome.code == 1 and outcome.out.startswith("INVALID: weights_sha256 is ")


# Settings of layers of "2d" that are altered, and how it shows without the images.
ALTERED = [
    ("Conv2d", 0, "stride", [1, 1], 2, "Expected an image \\(channels, height, width\\) whose size 2 divides"),
    ("Conv2d", 0, "padding", [3, 0], 2, "Expected"),
    ("Conv2d", 1, "groups", 4, 2, r"layer 2 \(Conv2d\): Expected 8 channels in 4 groups"),
    ("Conv2d", 3, "stride", [1, 1], 2, "an input of 63 features"),
    ("CircularPad2d", 1, "padding", [2, 1, 2, 2], 0, "valid"),  # a shift, which no norm notices
    ("CircularPad2d", 0, "padding", [3, 1, 1, 0], 0, "valid"),
    ("MaxPool2d", 0, "stride", [1, 1], 2, "an input of 63 features"),
    ("Flatten", 0, "start_dim", 2, 2, "an input of 63 features"),
    ("Scale", 0, "factor", (0.76).hex(), 1, r"layer 13 \(Scale\) claims a constant of 0.75"),
    ("GroupSort", 0, "group_size", 3, 2, "a number of channels that 3 divides"),
    ("GroupSort", 0, "group_size", 2, 0, "valid"),  # just as 1-Lipschitz
]


@pytest.mark.parametrize(("kind", "number", "setting", "value", "code", "message"), ALTERED)
def test_altered_settings_are_found(kind, number, setting, value, code, message, two_dimensions):
    """By a shape that does not fit or by a constant; and where both stay, by the logits."""
    honest, place = two_dimensions, two_dimensions.layer(kind, number)
    assert honest.entries[place]["settings"][setting] != value
    alter = put(f"layers.{place}.settings.{setting}", value)
    outcome = honest.check(alter)
    assert outcome.code == code and re.search(message, outcome.out + outcome.err)
    if code == 0:
        outcome = honest.check(alter, images=honest.pixels.numpy())
        assert outcome.code == 1 and ": the network gives " in outcome.out


def test_a_hidden_scale_is_found(small):
    images = small.pixels.numpy()
    as_identity = small.check(put("layers.-1.kind", "Identity", "layers.-1.settings", {}), images=images)
    assert "INVALID: image 0: the network gives" in as_identity.out
    assert "INVALID: " in small.check(put("layers.-1", DROP), images=images).out
    understated = small.check(put("layers.-1.lipschitz", (1.0).hex()))
    assert "INVALID: layer 5 (Scale) claims a constant of 1.0" in understated.out


def test_images_that_are_not_those_of_the_certificate_are_found(small):
    images = small.pixels.numpy()

    def broken(value: float) -> np.ndarray:
        changed = images.copy()
        changed[2, 0, 0] = value
        return changed

    for change, pixels, message in (
        (None, images * (1 - 1e-3), "image 0: the network gives"),
        (None, images[::-1], "image 0"),
        (None, 255 * images, "image 0: a pixel lies outside of the input range from 0.0 to 1.0"),
        *((None, broken(value), "image 2: a pixel lies outside") for value in (np.nan, np.nextafter(0.0, -1))),
        (put("images.1.input_norm", down), images, "image 1: its norm is larger than input_norm"),
        (put("images.2.logits.1", times(1 - 1e-3)), images, "image 2: the network gives .* for logit 1"),
    ):
        outcome = small.check(change, images=pixels)
        assert outcome.code == 1 and re.search(message, outcome.out)


def test_a_network_that_is_one_module(certificate):
    honest = certificate(nn.Sequential(nn.Linear(4, 3)), 4, version=2)
    renamed = {name.removeprefix("0."): tensor for name, tensor in honest.model.state_dict().items()}
    save_file(renamed, honest.model_file)
    honest.table["weights_sha256"] = weights_hash(renamed)
    rename = put("nodes.0.module", "", "nodes.0.name", "model")
    assert honest.check(rename).code == 2  # the output has another name
    assert honest.check(lambda table: [rename(table), table.update(output="model")]).code == 0


def test_a_radius_is_proved_from_the_checkers_own_logits_too(small):
    """A logit in the file that is raised by less than it may err by: its radius is proved from the file alone."""
    pairs = [[float.fromhex(value) for value in row] for row in small.table["pair_constants"]]
    alpha, beta = (float.fromhex(small.table[name]) for name in ("error_offset", "error_slope"))
    image = small.table["images"][0]
    norm, logits = float.fromhex(image["input_norm"]), [float.fromhex(value) for value in image["logits"]]
    logits[image["prediction"]] += 0.7 * (alpha + beta * norm)
    image["logits"] = [value.hex() for value in logits]
    image["radius"] = largest_radius(logits, norm, pairs, alpha, beta).hex()
    assert small.check().code == 0
    outcome = small.check(images=small.pixels.numpy())
    assert outcome.code == 1 and "image 0: the network's margin" in outcome.out


# -------------------------------------------------------------------------------------------------------------- traps


def trap_network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1, padding_mode="circular", bias=False), MaxMin(),
        nn.Conv2d(4, 3, 3, padding=1, bias=False), nn.Flatten(), nn.Linear(3 * 12, 3, bias=False),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("factor", "dtype"),
    [
        (1e-30, torch.float32),  # squares underflow in float32
        (1e-41, torch.float32),  # subnormal in float32
        (1e30, torch.float32),
        (1e-170, torch.float64),  # squares underflow in float64
        (3e-310, torch.float64),  # subnormal in float64
        (1e150, torch.float64),
    ],
)
def test_weights_of_any_size(factor, dtype, certificate):
    """Accepted at the true norm, and not below it, by the same relative margins as ordinary weights."""
    model = trap_network().to(dtype)
    conv = model[0] if factor > 1 else model[2]
    conv.weight.data *= factor
    honest = certificate(model, 2, 3, 4)
    assert honest.check(images=honest.pixels.numpy()).code == 0
    for number in (0, 2, 4):
        lower = honest.layers[number].norm * (1 - 2e-6)
        outcome = honest.check(put(f"layers.{number}.lipschitz", lower.hex()))
        assert outcome.code == 1 and f"INVALID: layer {number} " in outcome.out


def test_the_constant_of_a_batch_norm_is_its_largest_gain(certificate):
    """√(variance + eps) is 1 for all channels but one; that the gains are rounded takes nothing from the claim."""
    norm = nn.BatchNorm1d(3, eps=0.25)
    norm.running_var.copy_(torch.tensor([0.75, 3.75, 0.75]))
    honest = certificate(nn.Sequential(norm), 3, images=0, version=2)
    enough = ("error_offset", (1e-9).hex(), "error_slope", (1e-9).hex())
    assert honest.check(put(*enough)).code == 0
    lie = honest.check(put(*enough, "nodes.0.lipschitz", down))
    assert lie.code == 1 and "BatchNorm1d) claims a constant" in lie.out


def test_zero_weights(certificate):
    model = trap_network()
    model[2].weight.data.zero_()
    honest = certificate(model, 2, 3, 4, images=0)
    assert float.fromhex(honest.table["lipschitz"]) == 0 and honest.check().code == 0
    model[2].weight.data[0, 0, 1, 1] = 2.0**-149
    honest = certificate(model, 2, 3, 4, images=0)
    assert honest.check().code == 0
    for low in (0.0, 2.0**-150):
        assert honest.check(put("layers.2.lipschitz", low.hex())).code == 1


def test_sums_that_may_overflow_are_not_certified(certificate):
    """A float32 certificate whose logits came from elsewhere: 1e30·1e30 is no float32, though the last layer undoes it."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 2))
    for layer, factor in zip(model, (1e30, 1e30, 1e-38), strict=True):
        layer.weight.data *= factor
    honest = certificate(model, 3)
    assert honest.check().code == 0
    in_float32 = ("arithmetic", "float32", "error_slope", (1e25).hex(), "error_offset", (1e25).hex())
    without_radii = [change for k in range(3) for change in (f"images.{k}.radius", (0.0).hex())]
    assert honest.check(put(*in_float32, *without_radii)).code == 0
    outcome = honest.check(put(*in_float32))
    assert outcome.code == 1 and "layer 1 (Linear): sums may overflow in float32" in outcome.out


SMALL_IMAGES = [
    # channels, height, width, kernel, stride, pad (left, right, top, bottom)
    (2, 1, 1, (1, 1), (1, 1), (0, 0, 0, 0)),
    (2, 1, 1, (3, 3), (1, 1), (1, 1, 1, 1)),
    (2, 1, 1, (2, 2), (1, 1), (1, 1, 1, 1)),
    (3, 2, 3, (4, 5), (1, 1), (2, 2, 1, 2)),
    (2, 3, 5, (3, 2), (1, 1), (4, 5, 3, 3)),
    (1, 5, 4, (2, 3), (2, 3), (1, 2, 2, 0)),
]


@pytest.mark.parametrize(("channels", "height", "width", "kernel", "stride", "pad"), SMALL_IMAGES)
def test_padding_that_reaches_around(channels, height, width, kernel, stride, pad, certificate):
    model = nn.Sequential(nn.CircularPad2d(pad), nn.Conv2d(channels, 2, kernel, stride=stride), nn.Flatten())
    model.append(nn.Linear(model(torch.zeros(1, channels, height, width)).shape[1], 3))
    honest = certificate(model, channels, height, width)
    assert honest.check(images=honest.pixels.numpy()).code == 0
    lower = honest.layers[1].norm / (1 + 1e-6) * (1 - 1e-9)
    outcome = honest.check(put("layers.1.lipschitz", lower.hex()))
    assert outcome.code == 1 and "INVALID: layer 1 (Conv2d) claims" in outcome.out
    for term in ("error_offset", "error_slope"):  # which count the copies too
        outcome = honest.check(put(term, down))
        assert outcome.code == 1 and f"INVALID: {term} is " in outcome.out


def test_taps_that_see_no_pixel_do_nothing(certificate):
    """A kernel of two taps, of which on an image one pixel high only zeros are seen: the constant is 0."""
    model = nn.Sequential(nn.Conv2d(2, 3, (2, 1), padding=(2, 0), dilation=(3, 1)), nn.Flatten(), nn.Linear(12, 3))
    honest = certificate(model, 2, 1, 2)
    assert honest.layers[0].norm == 0 and honest.check(images=honest.pixels.numpy()).code == 0
