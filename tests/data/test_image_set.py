import numpy as np
import pytest
import torch

from data.fakes import image_set
from isoconv.data import EpochBatches, ImageSet, Splits, as_float, hold_out, resize
from isoconv.data.image_set import shuffle

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]


def test_what_a_set_knows():
    images = image_set(n=7, shape=(3, 8, 6), classes=4)
    assert len(images) == 7
    assert images.shape == (3, 8, 6)
    assert images.classes == ("a", "b", "c", "d")
    assert isinstance(ImageSet(images.images, images.labels, ["a", "b", "c", "d"], "x").classes, tuple)


def test_subset_and_take():
    images = image_set(n=7)
    part = images.subset([4, 0, 4])
    assert part.labels.tolist() == [0, 0, 0]
    assert torch.equal(part.images, images.images[[4, 0, 4]])
    assert len(images.subset([])) == 0
    assert len(images.subset(torch.tensor([], dtype=torch.int64))) == 0
    assert torch.equal(images.take(3).images, images.images[:3])
    assert images.take(3).images.data_ptr() == images.images.data_ptr()
    assert len(images.take(0)) == 0


@pytest.mark.parametrize("device", DEVICES)
def test_a_set_on_a_device(device):
    images = image_set(n=20).to(device)
    assert images.images.device.type == images.labels.device.type == device
    part = images.subset([3, 1])
    assert part.images.device.type == device
    train, held = hold_out(images, 0.2)
    assert train.images.device.type == held.labels.device.type == device
    # Several users of one copy, as replicas are, do not make more of it.
    assert EpochBatches(images, 4, device=device)._images.data_ptr() == images.images.data_ptr()


def test_splits_with_and_without_a_test_set():
    images = image_set()
    train, test = Splits(images, images.take(4))
    assert (len(train), len(test)) == (20, 4)
    alone = Splits(images, None, "there is none")
    assert not alone.has_test
    assert "no test images" in repr(alone)
    assert len(alone.map(lambda part: part.take(2)).train) == 2
    assert not alone.map(lambda part: part.take(2)).has_test


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_pixels_are_the_nearest_numbers_to_255ths(device, dtype):
    """IEEE division is correctly rounded; a product with the reciprocal of 255 would be off for some of the 256."""
    pixels = torch.arange(256, dtype=torch.uint8, device=device)
    kind = np.float32 if dtype == torch.float32 else np.float64
    exact = np.arange(256).astype(kind) / kind(255)
    assert np.array_equal(as_float(pixels, dtype).cpu().numpy(), exact)
    assert as_float(pixels).dtype == torch.float32
    assert (float(as_float(pixels).min()), float(as_float(pixels).max())) == (0.0, 1.0)


def with_counts(*counts: int) -> ImageSet:
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    images = torch.arange(len(labels), dtype=torch.uint8).reshape(-1, 1, 1, 1)
    return ImageSet(images, labels, tuple(map(str, range(len(counts)))), "counted")


@pytest.mark.parametrize(
    ("counts", "amount", "expected"),
    [
        ((10, 10), 4, [2, 2]),
        ((10, 10), 0.2, [2, 2]),
        ((50, 30, 20), 10, [5, 3, 2]),
        ((2, 2, 2), 0.01, [1, 1, 1]),
        ((2, 2, 2), 0.99, [1, 1, 1]),
        ((1, 9), 3, [0, 3]),
        ((0, 3, 1, 6), 2, [0, 1, 0, 1]),
        ((100, 2), 2, [1, 1]),
        ((100, 2), 51, [50, 1]),
        ((7, 5, 3), 12, [6, 4, 2]),
    ],
)
def test_hold_out_is_stratified(counts, amount, expected):
    train, held = hold_out(with_counts(*counts), amount)
    assert torch.bincount(held.labels, minlength=len(counts)).tolist() == expected
    assert sorted(train.images.flatten().tolist() + held.images.flatten().tolist()) == list(range(sum(counts)))


def test_hold_out_on_many_random_counts():
    random = np.random.RandomState(0)
    for _ in range(100):
        counts = random.randint(0, 12, random.randint(2, 9))
        if counts.max() < 2:
            continue
        amount = float(random.uniform(0.01, 0.99))
        whole = with_counts(*counts.tolist())
        train, held = hold_out(whole, amount, seed=1)
        held_counts = torch.bincount(held.labels, minlength=len(counts)).numpy()
        assert len(train) + len(held) == len(whole)
        assert (held_counts[counts >= 2] >= 1).all()
        assert (held_counts[counts >= 2] < counts[counts >= 2]).all()
        assert (held_counts[counts == 1] == 0).all()
        lowest, highest = int((counts >= 2).sum()), int(np.maximum(counts - 1, 0).sum())
        assert len(held) == min(max(round(amount * len(whole)), lowest), highest)


def test_hold_out_depends_on_the_seed_alone():
    whole = with_counts(40, 40)
    first, again, other = (hold_out(whole, 20, seed=seed)[1].images.flatten().tolist() for seed in (3, 3, 4))
    assert first == again != other
    # For ever: another choice would change published splits.
    assert hold_out(with_counts(5, 5), 4, seed=0)[1].images.flatten().tolist() == [0, 2, 5, 7]


def test_shuffling_keeps_images_and_labels_together():
    mixed = shuffle(with_counts(30, 30), seed=0)
    assert sorted(mixed.images.flatten().tolist()) == list(range(60))
    assert torch.equal(mixed.labels, (mixed.images.flatten() >= 30).long())
    assert 5 < int(mixed.take(20).labels.sum()) < 15


@pytest.mark.parametrize("size", [(64, 64), (10, 33), (120, 96), (1, 1), (96, 50)])
def test_resizing_is_what_pillow_calls_bilinear(size):
    image = pytest.importorskip("PIL.Image")
    images = image_set(n=3, shape=(3, 96, 96))
    resized = resize(images, size)
    assert resized.shape == (3, *size)
    for mine, original in zip(resized.images, images.images, strict=True):
        picture = image.fromarray(original.permute(1, 2, 0).numpy())
        expected = np.asarray(picture.resize(size[::-1], image.Resampling.BILINEAR))
        assert np.array_equal(mine.permute(1, 2, 0).numpy(), expected)


def test_resizing_to_the_same_size_or_with_other_channels():
    pytest.importorskip("PIL")
    images = image_set(n=9, shape=(5, 4, 4))
    assert resize(images, 4) is images
    assert resize(images, 2).images.shape == (9, 5, 2, 2)
    assert resize(images.take(0), 2).images.shape == (0, 5, 2, 2)
