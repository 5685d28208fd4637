"""Certificates that isoconv writes, examined by the checker that shares no code with it."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import isoconv
from isoconv import IsoconvError
from isoconv.certify import Certifier, weights_sha256, write_certificate
from isoconv.check.__main__ import main
from isoconv.models import CONVOLUTIONS, FC3, Small
from isoconv.nn import Abs, GroupSort, MaxMin, Scale


def sequence(*layers: nn.Module) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(*layers)


# Networks of every module that a certificate may hold; odd, rectangular and one-dimensional ones among them.
NETWORKS: list[tuple[nn.Module, tuple[int, ...]]] = [
    *((Small((1, 8, 8), conv=conv), (1, 8, 8)) for conv in CONVOLUTIONS),
    (Small((3, 8, 12), conv="bcop", activation="relu"), (3, 8, 12)),
    (FC3((1, 4, 4)), (1, 4, 4)),
    (
        sequence(
            nn.Conv2d(2, 4, 3, padding=1, groups=2),
            nn.ReLU(),
            nn.Conv2d(4, 6, 3, stride=2, padding=1),
            Abs(),
            Scale(0.5),
            nn.AvgPool2d(2),
            nn.Flatten(),
            nn.Linear(12, 3),
        ),
        (2, 7, 5),
    ),
    (
        sequence(
            nn.ZeroPad2d(1),
            nn.Conv2d(1, 4, 2, dilation=2),
            GroupSort(4),
            nn.PixelShuffle(2),
            nn.MaxPool2d(3, stride=2, padding=1),
            nn.Dropout(),
            nn.PixelUnshuffle(2),
            nn.Flatten(),
            nn.Linear(16, 2),
            nn.Identity(),
        ),
        (1, 4, 4),
    ),
    (
        sequence(
            nn.CircularPad1d((2, 1)), nn.Conv1d(2, 4, 4), MaxMin(), nn.MaxPool1d(2), nn.Flatten(), nn.Linear(12, 4)
        ),
        (2, 6),
    ),
    (sequence(nn.Conv2d(1, 2, 5, padding=2, padding_mode="circular"), nn.Flatten(), nn.Linear(8, 3)), (1, 2, 2)),
]


def write(model: nn.Module, shape: tuple[int, ...], folder: Path, count: int = 6) -> tuple[Path, Path, Path]:
    """A certificate, the model that it is about, and the images, as files."""
    images = torch.rand(count, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    certifier = Certifier(model, shape)
    file, weights, pixels = folder / "certificate.json", folder / "model.safetensors", folder / "images.npy"
    write_certificate(file, certifier, certifier(images), torch.zeros(count, dtype=torch.int64))
    save_file({name: tensor.contiguous() for name, tensor in isoconv.plain(model).state_dict().items()}, weights)
    np.save(pixels, images.numpy())
    return file, weights, pixels


@pytest.mark.parametrize(
    ("model", "shape"), NETWORKS, ids=[f"{type(m).__name__}-{s}-{k}" for k, (m, s) in enumerate(NETWORKS)]
)
def test_the_checker_finds_them_valid(
    model: nn.Module, shape: tuple[int, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, weights, pixels = write(model, shape, tmp_path)
    code = main([str(file), str(weights), "--images", str(pixels)])
    assert (code, capsys.readouterr().out[:6]) == (0, "valid:")
    assert any(float.fromhex(image["radius"]) > 0 for image in json.loads(file.read_text())["images"])


def test_a_larger_radius_or_another_weight_is_found_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, weights, _ = write(Small((1, 8, 8)), (1, 8, 8), tmp_path)
    content = json.loads(file.read_text())
    content["images"][0]["radius"] = (float.fromhex(content["images"][0]["radius"]) * (1 + 1e-6)).hex()
    file.write_text(json.dumps(content))
    assert main([str(file), str(weights)]) == 1
    assert "image 0" in capsys.readouterr().out + capsys.readouterr().err
    file, _, _ = write(Small((1, 8, 8)), (1, 8, 8), tmp_path)
    assert main([str(file), str(weights)]) == 0  # written together: valid
    save_file(isoconv.plain(Small((1, 8, 8))).state_dict(), weights)
    assert main([str(file), str(weights)]) == 1


def test_equal_logits_are_written_with_a_radius_of_zero(tmp_path: Path) -> None:
    model = sequence(nn.Flatten(), nn.Linear(4, 3))
    with torch.no_grad():
        model[1].weight.zero_()
        model[1].bias.zero_()
    file, weights, _ = write(model, (1, 2, 2), tmp_path)
    assert main([str(file), str(weights)]) == 0
    assert {image["radius"] for image in json.loads(file.read_text())["images"]} == {(0.0).hex()}


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


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (sequence(nn.Flatten(), nn.Linear(4, 2), nn.LeakyReLU()), {}, "Got LeakyReLU at 2"),
        (sequence(nn.AvgPool2d(2, divisor_override=3), nn.Flatten(), nn.Linear(1, 2)), {}, "Got AvgPool2d at 0"),
        (sequence(nn.Flatten(), nn.Linear(4, 2)), {"p": 1}, "p = 2"),
        (sequence(nn.Flatten(), nn.Linear(4, 2)), {"criterion": "per-class"}, "per pair"),
    ],
)
def test_what_has_no_file(model: nn.Module, options: dict[str, object], message: str, tmp_path: Path) -> None:
    certifier = Certifier(model, (1, 2, 2), **options)  # type: ignore[arg-type]
    with pytest.raises(IsoconvError, match=message):
        write_certificate(tmp_path / "c.json", certifier, certifier(torch.rand(1, 1, 2, 2)))
    assert not list(tmp_path.iterdir())


def test_nan_and_places_that_cannot_be_written_to(tmp_path: Path) -> None:
    certifier = Certifier(sequence(nn.Flatten(), nn.Linear(4, 2)), (1, 2, 2))
    with pytest.raises(IsoconvError, match=r"finite inputs and logits .* image 0"):
        write_certificate(tmp_path / "c.json", certifier, certifier(torch.full((1, 1, 2, 2), torch.nan)))
    with pytest.raises(IsoconvError, match=r"Cannot write .*missing"):
        write_certificate(tmp_path / "missing" / "c.json", certifier, certifier(torch.rand(1, 1, 2, 2)))
    assert not list(tmp_path.iterdir())
