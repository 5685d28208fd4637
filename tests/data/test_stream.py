"""Batches: the same wherever the images are and however many processes share them."""

from itertools import product

import pytest
import torch

from data.fakes import DEVICES, image_set, same
from isoconv.data import EpochBatches, epoch_generator
from isoconv.data.stream import fits

DATA = image_set(n=50)
AUGMENTED = {"padding": 3, "flip": True, "augment": (0.5, 0.5)}
EVERYTHING = {"flip": True, "resized_crop": (0.3, 0.9), "rand_augment": (2, 15.0), "colour_jitter": (0.4, 0.4, 0.4)}
EVERYTHING |= {"augment": (0.5, 0.5)}


def collected(batches, epoch=0):
    return [(images.cpu(), labels.cpu()) for images, labels in batches.epoch(epoch)]


@pytest.mark.parametrize("resident", [True, False])
def test_what_happens_to_an_image_does_not_depend_on_its_batch(resident):
    """In batches of any size, in any order, in any process, from anywhere: the bytes that it has when it is alone."""
    batches = EpochBatches(DATA, 50, seed=4, resident=resident, **EVERYTHING)
    drawn = batches.augmentation.draw(50, seed=4, epoch=3)
    alone = torch.cat([batches.augmentation(DATA.images[k : k + 1], drawn, torch.tensor([k])) for k in range(50)])
    assert (alone != DATA.images).flatten(1).any(dim=1).float().mean() > 0.9
    for size, world_size in ((1, 1), (7, 1), (50, 1), (10, 2), (20, 4)):
        for rank in range(world_size):
            options = {"seed": 4, "resident": resident, "rank": rank, "world_size": world_size, **EVERYTHING}
            batches = EpochBatches(DATA, size, **options)
            for index, (images, _) in zip(batches.indices(3), batches.epoch(3), strict=True):
                assert torch.equal(images, alone[index])


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


@pytest.mark.parametrize(("world_size", "drop_last", "resident"), [(4, True, True), (2, False, False)])
def test_processes_share_each_batch(world_size, drop_last, resident):
    options = {"drop_last": drop_last, "resident": resident, "seed": 7, **AUGMENTED}
    alone = collected(EpochBatches(DATA, 8, **options), 2)
    ranks = [EpochBatches(DATA, 8, rank=rank, world_size=world_size, **options) for rank in range(world_size)]
    shares = [collected(batches, 2) for batches in ranks]
    together = [tuple(torch.cat(part) for part in zip(*batch, strict=True)) for batch in zip(*shares, strict=True)]
    assert same(together, alone)
    assert all(len({len(labels) for _, labels in batch}) == 1 for batch in zip(*shares, strict=True))


@pytest.mark.parametrize("options", [AUGMENTED, EVERYTHING], ids=["augmented", "everything"])
def test_an_epoch_depends_on_seed_and_number_alone(options):
    run = EpochBatches(DATA, 10, seed=1, **options)
    epochs = [collected(run, epoch) for epoch in range(3)]
    assert same(collected(EpochBatches(DATA, 10, seed=1, **options), 2), epochs[2])  # resumed
    assert not same(epochs[0], epochs[1])
    assert not same(collected(EpochBatches(DATA, 10, seed=0, **options), 1), epochs[0])
    next(iter(run.epoch(1)))  # broken off
    assert same(collected(run, 1), epochs[1])


def test_generators_are_independent_and_do_not_change():
    choices = product(range(4), range(4), ("order", "augmentation"))
    assert len({int(torch.randint(0, 2**60, (), generator=epoch_generator(*choice))) for choice in choices}) == 32
    assert epoch_generator(3, 5, "order").initial_seed() == 9428001226478652317  # for ever: or no run could be repeated


@pytest.mark.parametrize("device", DEVICES)
def test_what_fits_stays_on_the_device(device):
    assert EpochBatches(image_set(), 4, device=device).resident
    assert fits(1 << 50, device) == (device == "cpu")


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
