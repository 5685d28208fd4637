"""Distorted images: what each number does, that nothing depends on the neighbours, and that an epoch can be drawn again."""

import math

import pytest
import torch
from torch.nn.functional import grid_sample

from data.fakes import image_set
from isoconv.data import EpochBatches, distort
from isoconv.data import stream as stream_module
from isoconv.errors import IsoconvError

DATA = image_set(n=40)
STILL = torch.full((1, 11), 0.5)  # the middle of every range: no change


def numbers(**changes: float) -> torch.Tensor:
    """Numbers that say: this image, and these changes."""
    names = [
        "colour",
        "contrast",
        "brightness",
        "saturation",
        "turn",
        "angle",
        "wide",
        "high",
        "shear",
        "right",
        "down",
    ]
    result = STILL.clone()
    for name, value in {"colour": 0.0, "turn": 0.0, **changes}.items():
        result[0, names.index(name)] = value
    return result


def test_without_a_share_a_strength_or_a_change_images_stay_as_they_are() -> None:
    drawn = torch.rand(40, 11, generator=torch.Generator().manual_seed(0))
    for share, strength in ((0.0, 2.0), (1.0, 0.0)):
        assert torch.equal(distort(DATA.images, drawn, share, strength), DATA.images)
    assert torch.equal(distort(DATA.images[:1], numbers(), 1.0, 1.0), DATA.images[:1])


@pytest.mark.parametrize("shape", [(3, 8, 8), (1, 6, 10)], ids=str)
def test_each_number_does_its_part(shape: tuple[int, ...]) -> None:
    image = torch.randint(90, 150, (1, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    value, mean = image.double(), image.double().mean()
    grey = value.mean(dim=1, keepdim=True)
    expected = {
        "contrast": (value - mean) * 1.2 + mean,
        "brightness": value + 0.2 * mean,
        "saturation": (value - grey) * 1.3 + grey,
    }
    for name, pixels in expected.items():
        changed = distort(image, numbers(**{name: 1.0}), 1.0, 0.5).double()
        assert (changed - pixels).abs().max() <= 0.501, name
    height, width = shape[1:]
    for name, axis, side in (("right", 3, width), ("down", 2, height)):
        # A strength that moves by a whole pixel, the other way round: what is shown comes from the right.
        moved = distort(image, numbers(**{name: 1.0}), 1.0, 2 / side / 0.12)
        assert torch.equal(moved.narrow(axis, 0, side - 1), image.narrow(axis, 1, side - 1))
        assert not moved.narrow(axis, side - 1, 1).any()


def test_a_turn_is_a_rotation_of_the_plane_also_of_oblong_images() -> None:
    """Compared with a rotation in pixels about the centre, in float64."""
    image = torch.randint(0, 256, (1, 1, 9, 15), dtype=torch.uint8, generator=torch.Generator().manual_seed(2))
    y, x = torch.meshgrid(torch.arange(9.0) - 4, torch.arange(15.0) - 7, indexing="ij")
    angle = 0.35
    source_x, source_y = math.cos(angle) * x - math.sin(angle) * y, math.sin(angle) * x + math.cos(angle) * y
    grid = torch.stack([source_x / 7.5, source_y / 4.5], dim=-1)[None].double()
    expected = grid_sample(image.double(), grid, align_corners=False)
    assert (distort(image, numbers(angle=1.0), 1.0, 1.0) - expected).abs().max() <= 0.51


def test_a_share_of_the_images_is_distorted_and_none_depends_on_its_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    images, drawn = DATA.images.repeat(25, 1, 1, 1), torch.rand(1000, 11, generator=torch.Generator().manual_seed(3))
    whole = distort(images, drawn, 0.5, 1.0)
    assert 0.70 < (whole != images).flatten(1).any(dim=1).float().mean() < 0.80  # half by colour, half by place
    monkeypatch.setitem(stream_module._PIECE, "cpu", 1)
    assert torch.equal(distort(images[:50], drawn[:50], 0.5, 1.0), whole[:50])


@pytest.mark.parametrize("options", [{}, {"padding": 2, "flip": True}], ids=["alone", "with crops"])
def test_an_epoch_is_drawn_from_its_seed_and_number_wherever_the_images_are(options: dict[str, object]) -> None:
    def collect(epoch: int, **others: object) -> torch.Tensor:
        batches = EpochBatches(DATA, 10, augment=(0.5, 0.5), **options, **others)
        return torch.cat([images for images, _ in batches.epoch(epoch)])

    first = collect(1, seed=4)
    assert torch.equal(collect(1, seed=4, resident=False), first)
    assert not torch.equal(collect(2, seed=4), first) and not torch.equal(collect(1, seed=5), first)
    plain = torch.cat([images for images, _ in EpochBatches(DATA, 10, seed=4, **options).epoch(1)])
    unchanged = (plain == first).flatten(1).all(dim=1).float().mean()
    assert 0 < unchanged < 1  # the same order and crops: some images are not distorted


@pytest.mark.parametrize("augment", [(-0.1, 1.0), (1.5, 1.0), (0.5, 3.0), (math.nan, 1.0)])
def test_what_cannot_be_distorted_is_refused(augment: tuple[float, float]) -> None:
    with pytest.raises(IsoconvError, match="share"):
        EpochBatches(DATA, 10, augment=augment)
    with pytest.raises(IsoconvError, match="numbers"):
        distort(DATA.images, torch.rand(3, 11), 0.5, 0.5)
