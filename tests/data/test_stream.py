"""Batches: the same wherever the images are and however many processes share them. Crops and distortions by definition."""

import math
from itertools import chain, product

import pytest
import torch
from torch.nn.functional import grid_sample

from data.fakes import DEVICES, image_set, random_bytes
from isoconv.data import EpochBatches, crop_and_flip, distort, draw, epoch_generator, stream
from isoconv.data.stream import fits

DATA = image_set(n=50)
AUGMENTED = {"padding": 3, "flip": True, "augment": (0.5, 0.5)}


def collected(batches, epoch=0):
    return [(images.cpu(), labels.cpu()) for images, labels in batches.epoch(epoch)]


def same(a, b):
    return len(a) == len(b) and all(map(torch.equal, chain(*a), chain(*b)))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("size", "options"),
    [
        (1, {"padding": 2}),
        (7, {}),
        (7, {"drop_last": False, **AUGMENTED}),
        (20, {"drop_last": False, "augment": (0.5, 0.5)}),
        (50, {"flip": True}),
    ],
)
def test_resident_and_streamed_batches_are_the_same(size, options, device):
    for epoch in (0, 3):
        expected = collected(EpochBatches(DATA, size, **options), epoch)
        for resident in (True, False):
            batches = EpochBatches(DATA, size, device=device, resident=resident, **options)
            assert len(batches) == len(expected) and same(collected(batches, epoch), expected)


@pytest.mark.parametrize("resident", [True, False])
def test_every_image_once_an_epoch(resident):
    """All batches are kept until the end, so that none may share its memory with a later one."""
    batches = EpochBatches(DATA, 8, drop_last=False, resident=resident)
    kept = list(batches.epoch(0))
    assert [len(labels) for _, labels in kept] == [8] * 6 + [2] and len(EpochBatches(DATA, 8)) == 6
    assert sorted(torch.cat(batches.indices(0)).tolist()) == list(range(50))
    for index, (images, labels) in zip(batches.indices(0), kept, strict=True):
        assert (images.dtype, labels.dtype) == (torch.uint8, torch.int64)
        assert torch.equal(images, DATA.images[index]) and torch.equal(labels, DATA.labels[index])


@pytest.mark.parametrize(
    ("world_size", "drop_last", "resident"), [(2, True, True), (4, True, False), (2, False, False)]
)
def test_processes_share_each_batch(world_size, drop_last, resident):
    options = {"drop_last": drop_last, "resident": resident, "seed": 7, **AUGMENTED}
    alone = collected(EpochBatches(DATA, 8, **options), 2)
    ranks = [EpochBatches(DATA, 8, rank=rank, world_size=world_size, **options) for rank in range(world_size)]
    shares = [collected(batches, 2) for batches in ranks]
    together = [tuple(torch.cat(part) for part in zip(*batch, strict=True)) for batch in zip(*shares, strict=True)]
    assert same(together, alone)
    assert all(len({len(labels) for _, labels in batch}) == 1 for batch in zip(*shares, strict=True))


def test_an_epoch_depends_on_seed_and_number_alone():
    run = EpochBatches(DATA, 10, seed=1, **AUGMENTED)
    epochs = [collected(run, epoch) for epoch in range(3)]
    assert same(collected(EpochBatches(DATA, 10, seed=1, **AUGMENTED), 2), epochs[2])  # resumed
    assert not same(epochs[0], epochs[1])
    assert not same(collected(EpochBatches(DATA, 10, seed=0, **AUGMENTED), 1), epochs[0])
    next(iter(run.epoch(1)))  # broken off
    assert same(collected(run, 1), epochs[1])
    cropped = crop_and_flip(DATA.images, *draw(50, 3, True, epoch_generator(1, 2, "augmentation")), 3)
    plain = torch.cat([images for images, _ in EpochBatches(DATA, 10, seed=1, padding=3, flip=True).epoch(2)])
    assert torch.equal(plain, cropped[torch.cat(run.indices(2))])
    distorted = torch.cat([images for images, _ in epochs[2]])  # the same order and crops, some of them distorted
    assert 0 < (plain == distorted).flatten(1).all(dim=1).float().mean() < 1


def test_generators_are_independent_and_do_not_change():
    choices = product(range(4), range(4), ("order", "augmentation"))
    assert len({int(torch.randint(0, 2**60, (), generator=epoch_generator(*choice))) for choice in choices}) == 32
    assert epoch_generator(3, 5, "order").initial_seed() == 9428001226478652317  # for ever: or no run could be repeated


def test_what_fits():
    assert fits(1 << 60, "cpu")
    assert EpochBatches(image_set(), 4).resident
    if torch.cuda.is_available():
        assert fits(1 << 20, "cuda")
        assert not fits(1 << 50, "cuda")
        assert EpochBatches(image_set(), 4, device="cuda").resident


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("resident", [True, False])
def test_a_busy_gpu_gets_the_right_batches(resident):
    """The work on a batch is still queued while later ones arrive: nothing may be written over or given away."""
    data = image_set(n=2048, shape=(3, 32, 32))
    batches = EpochBatches(data, 64, device="cuda", resident=resident, padding=4, flip=True)
    heavy = torch.randn(2048, 2048, device="cuda")
    sums = []
    for images, labels in batches.epoch(1):
        for _ in range(5):
            heavy = torch.tanh(heavy @ heavy)
        sums.append((images.double().sum((1, 2, 3)) + labels, heavy[0, 0]))
    reference = EpochBatches(data, 64, padding=4, flip=True)
    expected = [images.double().sum((1, 2, 3)) + labels for images, labels in reference.epoch(1)]
    assert all(torch.equal(mine.cpu(), theirs) for (mine, _), theirs in zip(sums, expected, strict=True))


# Augmentation


def one_by_one(images, offsets, flips, padding):
    """The definition, image by image."""
    _, C, H, W = images.shape
    result = []
    for image, (top, left), flip in zip(images, offsets.tolist(), flips.tolist(), strict=True):
        framed = torch.zeros(C, H + 2 * padding, W + 2 * padding, dtype=images.dtype, device=images.device)
        framed[:, padding : padding + H, padding : padding + W] = image
        crop = framed[:, top : top + H, left : left + W]
        result.append(crop.flip(-1) if flip else crop)
    return torch.stack(result)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("shape", "padding", "dtype"),
    [
        ((1, 1, 1, 1), 9, torch.float64),
        ((30, 3, 8, 8), 4, torch.uint8),
        ((17, 1, 5, 9), 9, torch.float32),
        ((17, 1, 5, 9), 0, torch.uint8),
        ((9, 2, 12, 3), 1, torch.float64),
    ],
)
@pytest.mark.parametrize("piece", [1, 700])
def test_each_image_is_what_the_definition_says(shape, padding, dtype, device, piece, monkeypatch):
    """In pieces of any size, and in any memory format."""
    monkeypatch.setitem(stream._PIECE, device, piece)
    images = torch.from_numpy(random_bytes(*shape)).to(device, dtype)
    offsets, flips = draw(shape[0], padding, True, torch.Generator(device).manual_seed(1))
    expected = one_by_one(images, offsets, flips, padding)
    for form in (images, images.contiguous(memory_format=torch.channels_last)):
        assert torch.equal(crop_and_flip(form, offsets, flips, padding), expected)
    assert len(crop_and_flip(images[:0], offsets[:0], flips[:0], padding)) == 0


def test_chance_is_fair():
    offsets, flips = draw(90_000, 4, True, torch.Generator().manual_seed(0))
    counts = torch.bincount(offsets[:, 0] * 9 + offsets[:, 1], minlength=81)
    # 90,000 draws from 81 cells: six standard deviations of a cell's count.
    assert float((counts - 90_000 / 81).abs().max()) < 6 * (90_000 / 81) ** 0.5
    assert abs(int(flips.sum()) - 45_000) < 6 * 150
    assert not bool(draw(100, 4, False, torch.Generator().manual_seed(0))[1].any())


# Distortion


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
    result = torch.full((1, 11), 0.5)  # the middle of every range: no change
    for name, value in {"colour": 0.0, "turn": 0.0, **changes}.items():
        result[0, names.index(name)] = value
    return result


def test_without_a_share_a_strength_or_a_change_images_stay_as_they_are():
    drawn = torch.rand(50, 11, generator=torch.Generator().manual_seed(0))
    for share, strength in ((0.0, 2.0), (1.0, 0.0)):
        assert torch.equal(distort(DATA.images, drawn, share, strength), DATA.images)
    assert torch.equal(distort(DATA.images[:1], numbers(), 1.0, 1.0), DATA.images[:1])


@pytest.mark.parametrize("shape", [(3, 8, 8), (1, 6, 10)], ids=str)
def test_each_number_does_its_part(shape):
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


def test_a_turn_is_a_rotation_of_the_plane_also_of_oblong_images():
    """Compared with a rotation in pixels about the centre, in float64."""
    image = torch.randint(0, 256, (1, 1, 9, 15), dtype=torch.uint8, generator=torch.Generator().manual_seed(2))
    y, x = torch.meshgrid(torch.arange(9.0) - 4, torch.arange(15.0) - 7, indexing="ij")
    angle = 0.35
    source_x, source_y = math.cos(angle) * x - math.sin(angle) * y, math.sin(angle) * x + math.cos(angle) * y
    grid = torch.stack([source_x / 7.5, source_y / 4.5], dim=-1)[None].double()
    expected = grid_sample(image.double(), grid, align_corners=False)
    assert (distort(image, numbers(angle=1.0), 1.0, 1.0) - expected).abs().max() <= 0.51


def test_a_share_of_the_images_is_distorted_and_none_depends_on_its_neighbours(monkeypatch):
    images, drawn = DATA.images.repeat(20, 1, 1, 1), torch.rand(1000, 11, generator=torch.Generator().manual_seed(3))
    whole = distort(images, drawn, 0.5, 1.0)
    assert 0.70 < (whole != images).flatten(1).any(dim=1).float().mean() < 0.80  # half by colour, half by place
    monkeypatch.setitem(stream._PIECE, "cpu", 1)
    assert torch.equal(distort(images[:50], drawn[:50], 0.5, 1.0), whole[:50])
