import numpy as np
import pytest
import torch

from data.fakes import DEVICES, image_set
from isoconv.data import EpochBatches, ImageSet, Splits, as_float, hold_out, resize


def test_subset_and_take():
    images = image_set(n=7, shape=(3, 8, 6), classes=4)
    assert (len(images), images.shape, images.classes) == (7, (3, 8, 6), ("a", "b", "c", "d"))
    part = images.subset([4, 0, 4])
    assert part.labels.tolist() == [0, 0, 0] and torch.equal(part.images, images.images[[4, 0, 4]])
    assert len(images.subset([])) == len(images.take(0)) == 0
    first = images.take(3).images
    assert torch.equal(first, images.images[:3]) and first.data_ptr() == images.images.data_ptr()


@pytest.mark.parametrize("device", DEVICES)
def test_a_set_on_a_device(device):
    images = image_set(n=20).to(device)
    train, held = hold_out(images, 0.2)
    for tensor in (images.images, images.subset([3, 1]).images, train.images, held.labels):
        assert tensor.device.type == device
    # Several users of one copy, as replicas are, do not make more of it.
    assert EpochBatches(images, 4, device=device)._data.images.data_ptr() == images.images.data_ptr()


def test_parts_are_read_once_and_when_they_are_asked_for():
    read = []
    splits = Splits(lambda: read.append("train") or image_set(), lambda: read.append("test") or image_set(n=9))
    changed = splits.map(lambda part: part.take(len(part) - 5))
    assert read == []
    assert len(changed.test) == len(changed.test) == 4
    assert read == ["test"]
    train, test = changed.load()
    assert (len(train), len(test)) == (15, 4) and read == ["test", "train"]
    alone = Splits(image_set(), None).map(lambda part: part.take(2))
    assert not alone.has_test and "no test images" in repr(alone) and len(alone.load().train) == 2


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_pixels_are_the_nearest_numbers_to_255ths(device, dtype):
    """IEEE division is correctly rounded; a product with the reciprocal of 255 would be off for some of the 256."""
    pixels = torch.arange(256, dtype=torch.uint8, device=device)
    kind = np.float32 if dtype == torch.float32 else np.float64
    assert np.array_equal(as_float(pixels, dtype).cpu().numpy(), np.arange(256).astype(kind) / kind(255))
    assert as_float(pixels).dtype == torch.float32


def with_counts(*counts: int) -> ImageSet:
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    images = torch.arange(len(labels), dtype=torch.uint8).reshape(-1, 1, 1, 1)
    return ImageSet(images, labels, tuple(map(str, range(len(counts)))), "counted")


def test_each_class_gives_its_share():
    for counts, amount, expected in (
        ((50, 30, 20), 10, [5, 3, 2]), ((2, 2, 2), 0.01, [1, 1, 1]), ((2, 2, 2), 0.99, [1, 1, 1]),
        ((0, 3, 1, 6), 2, [0, 1, 0, 1]), ((100, 2), 51, [50, 1]), ((7, 5, 3), 12, [6, 4, 2]),
    ):  # fmt: skip
        train, held = hold_out(with_counts(*counts), amount)
        assert torch.bincount(held.labels, minlength=len(counts)).tolist() == expected
        assert sorted(train.images.flatten().tolist() + held.images.flatten().tolist()) == list(range(sum(counts)))
    random = np.random.RandomState(0)
    for _ in range(100):
        counts = random.randint(0, 12, random.randint(2, 9))
        if counts.max() < 2:
            continue
        amount = float(random.uniform(0.01, 0.99))
        train, held = hold_out(with_counts(*counts.tolist()), amount, seed=1)
        shares = torch.bincount(held.labels, minlength=len(counts)).numpy()
        assert len(train) + len(held) == counts.sum()
        assert ((shares >= (counts >= 2)) & (shares <= np.maximum(counts - 1, 0))).all()
        lowest, highest = int((counts >= 2).sum()), int(np.maximum(counts - 1, 0).sum())
        assert len(held) == min(max(round(amount * counts.sum()), lowest), highest)


def test_hold_out_depends_on_the_seed_alone():
    whole = with_counts(40, 40)
    first, again, other = (hold_out(whole, 20, seed=seed)[1].images.flatten().tolist() for seed in (3, 3, 4))
    assert first == again != other
    # For ever: another choice would change published splits.
    assert hold_out(with_counts(5, 5), 4, seed=0)[1].images.flatten().tolist() == [0, 2, 5, 7]


@pytest.mark.parametrize("size", [(64, 64), (10, 33), (120, 96), (1, 1)])
def test_resizing_is_what_pillow_calls_bilinear(size):
    image = pytest.importorskip("PIL.Image")
    images = image_set(n=3, shape=(3, 96, 96))
    for resized, original in zip(resize(images, size).images, images.images, strict=True):
        picture = image.fromarray(original.permute(1, 2, 0).numpy())
        expected = np.asarray(picture.resize(size[::-1], image.Resampling.BILINEAR))
        assert np.array_equal(resized.permute(1, 2, 0).numpy(), expected)
    assert resize(images, 96) is images
    assert resize(image_set(n=9, shape=(5, 4, 4)).take(0), 2).images.shape == (0, 5, 2, 2)
