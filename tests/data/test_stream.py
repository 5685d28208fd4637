from itertools import chain

import pytest
import torch

from data.fakes import DEVICES, image_set, random_bytes
from isoconv.data import EpochBatches, crop_and_flip, draw, epoch_generator, stream
from isoconv.data.stream import fits

DATA = image_set(n=50)


def collected(batches, epoch=0):
    return [(images.cpu(), labels.cpu()) for images, labels in batches.epoch(epoch)]


def same(a, b):
    return len(a) == len(b) and all(map(torch.equal, chain(*a), chain(*b)))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("size", "drop_last", "options"),
    [
        (1, True, {"padding": 2}),
        (7, True, {}),
        (7, False, {"padding": 3, "flip": True}),
        (20, False, {}),
        (20, True, {"padding": 3, "flip": True}),
        (50, True, {"flip": True}),
    ],
)
def test_resident_and_streamed_batches_are_the_same(size, drop_last, options, device):
    reference = EpochBatches(DATA, size, drop_last=drop_last, **options)
    for epoch in (0, 3):
        expected = collected(reference, epoch)
        assert len(expected) == len(reference)
        for resident in (True, False):
            batches = EpochBatches(DATA, size, device=device, drop_last=drop_last, resident=resident, **options)
            assert same(collected(batches, epoch), expected)


@pytest.mark.parametrize("resident", [True, False])
def test_every_image_once_an_epoch(resident):
    """All batches are kept until the end, so that none may share its memory with a later one."""
    batches = EpochBatches(DATA, 8, drop_last=False, resident=resident)
    kept = list(batches.epoch(0))
    assert [len(labels) for _, labels in kept] == [8] * 6 + [2]
    assert sorted(torch.cat(batches.indices(0)).tolist()) == list(range(50))
    for index, (images, labels) in zip(batches.indices(0), kept, strict=True):
        assert (images.dtype, labels.dtype) == (torch.uint8, torch.int64)
        assert torch.equal(images, DATA.images[index]) and torch.equal(labels, DATA.labels[index])
    assert len(EpochBatches(DATA, 8)) == 6


@pytest.mark.parametrize(
    ("world_size", "drop_last", "resident"), [(2, True, True), (4, True, False), (2, False, False), (2, False, True)]
)
def test_processes_share_each_batch(world_size, drop_last, resident):
    options = {"drop_last": drop_last, "resident": resident, "padding": 1, "flip": True, "seed": 7}
    alone = collected(EpochBatches(DATA, 8, **options), 2)
    ranks = [EpochBatches(DATA, 8, rank=rank, world_size=world_size, **options) for rank in range(world_size)]
    shares = [collected(batches, 2) for batches in ranks]
    together = [tuple(torch.cat(part) for part in zip(*batch, strict=True)) for batch in zip(*shares, strict=True)]
    assert same(together, alone)
    assert all(len({len(labels) for _, labels in batch}) == 1 for batch in zip(*shares, strict=True))


def test_an_epoch_depends_on_seed_and_number_alone():
    options = {"padding": 1, "flip": True}
    run = EpochBatches(DATA, 10, seed=1, **options)
    epochs = [collected(run, epoch) for epoch in range(3)]
    assert same(collected(EpochBatches(DATA, 10, seed=1, **options), 2), epochs[2])  # resumed
    assert same(collected(run, 0), epochs[0])
    assert not same(epochs[0], epochs[1])
    assert not same(collected(EpochBatches(DATA, 10, seed=0, **options), 1), epochs[0])
    next(iter(run.epoch(1)))  # broken off
    assert same(collected(run, 1), epochs[1])
    augmented = crop_and_flip(DATA.images, *draw(50, 1, True, epoch_generator(1, 2, "augmentation")), 1)
    assert torch.equal(torch.cat([images for images, _ in epochs[2]]), augmented[torch.cat(run.indices(2))])


def test_generators_are_independent_and_do_not_change():
    choices = [
        (seed, epoch, purpose) for seed in range(4) for epoch in range(4) for purpose in ("order", "augmentation")
    ]
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
@pytest.mark.parametrize("piece", [1, 700, 1 << 30])
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
