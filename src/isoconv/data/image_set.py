"""Images with labels, as bytes: what every reader returns and everything else takes."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from isoconv.errors import IsoconvError

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, eq=False)
class ImageSet:
    """N images, uint8 (N, C, H, W), with labels, int64 (N,), that count into `classes`.

    Pixels stay bytes until they are used: a quarter of the memory, and exact. `as_float` turns them into numbers.
    """

    images: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    name: str

    def __post_init__(self) -> None:
        images, labels = self.images, self.labels
        if images.dtype != torch.uint8 or images.ndim != 4 or 0 in images.shape[1:]:
            raise IsoconvError(f"Expected images as a uint8 tensor (N, C, H, W). Got {_describe(images)}.")
        if labels.dtype != torch.int64 or labels.shape != images.shape[:1]:
            raise IsoconvError(f"Expected an int64 label for each of {len(images)} images. Got {_describe(labels)}.")
        object.__setattr__(self, "classes", tuple(self.classes))
        _check_range("labels", labels, len(self.classes))

    def __len__(self) -> int:
        return len(self.images)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Return (C, H, W): what a model for these images takes."""
        _, C, H, W = self.images.shape
        return C, H, W

    def to(self, device: torch.device | str) -> "ImageSet":
        return replace(self, images=self.images.to(device), labels=self.labels.to(device))

    def subset(self, indices: Tensor | Sequence[int]) -> "ImageSet":
        """Return the images with these indices, in this order, repeated where an index is."""
        index = torch.as_tensor(indices, device=self.images.device)
        if index.numel() == 0:
            index = index.reshape(0).to(torch.int64)  # torch takes an empty list for floats
        if index.ndim != 1 or index.is_floating_point() or index.dtype == torch.bool:
            raise IsoconvError(f"Expected a list of indices. Got {_describe(index)}.")
        _check_range("indices", index, len(self))
        return replace(self, images=self.images[index], labels=self.labels[index])

    def take(self, n: int) -> "ImageSet":
        """Return the first n images, without a copy."""
        if not 0 <= n <= len(self):
            raise IsoconvError(f"Expected a number of images from 0 to {len(self)}. Got {n}.")
        return replace(self, images=self.images[:n], labels=self.labels[:n])


def _describe(tensor: Tensor) -> str:
    return f"{tensor.dtype} of shape {tuple(tensor.shape)}"


def _check_range(name: str, values: Tensor, count: int) -> None:
    if len(values) and not 0 <= int(values.min()) <= int(values.max()) < count:
        raise IsoconvError(f"Expected {name} from 0 to {count - 1}. Got {int(values.min())} to {int(values.max())}.")


Part = ImageSet | Callable[[], ImageSet]


class Splits:
    """A training set and a test set of the same classes and shape.

    Each may be a function instead, which is called when the part is first asked for: certifying reads no training
    images. The test set may be missing (STL-10 is often kept without it); `why_no_test` is then the error of whoever
    asks for it. `train, test = splits` asks for both.

    listing : for a user's own pictures, a hash of their names, sizes in bytes and classes, which decide what is held out
    ignored : how many files were passed over, because they are no pictures or in no class's folder
    """

    def __init__(
        self,
        train: Part,
        test: Part | None,
        why_no_test: str = "This data set has no test images.",
        *,
        listing: str = "",
        ignored: int = 0,
    ):
        self._parts = {"train": train, "test": test}
        self._why_no_test = why_no_test
        self.listing, self.ignored = listing, ignored
        self._check()

    @property
    def has_test(self) -> bool:
        return self._parts["test"] is not None

    @property
    def train(self) -> ImageSet:
        return self._read("train")

    @property
    def test(self) -> ImageSet:
        return self._read("test")

    def load(self) -> "Splits":
        """Read both parts now, so that whatever is wrong with their files is said at once. Return the splits."""
        _ = self.train, self.has_test and self.test
        return self

    def map(self, change: Callable[[ImageSet], ImageSet]) -> "Splits":
        """Return splits with both parts changed, or the one that there is, when they are asked for."""
        test = (lambda: change(self.test)) if self.has_test else None
        return Splits(lambda: change(self.train), test, self._why_no_test, listing=self.listing, ignored=self.ignored)

    def _read(self, name: str) -> ImageSet:
        part = self._parts[name]
        if part is None:
            raise IsoconvError(self._why_no_test)
        if not isinstance(part, ImageSet):
            part = self._parts[name] = part()
            self._check()
        return part

    def _check(self) -> None:
        train, test = self._parts.values()
        if not (isinstance(train, ImageSet) and isinstance(test, ImageSet)):
            return
        if (train.shape, train.classes) != (test.shape, test.classes):
            raise IsoconvError(
                f"Expected training and test images of {train.name} of one shape, with the same classes. "
                f"Got {train.shape} with {len(train.classes)} classes and {test.shape} with {len(test.classes)}."
            )

    def __iter__(self) -> Iterator[ImageSet]:
        yield self.train
        yield self.test

    def __repr__(self) -> str:
        test = len(self.test) if self.has_test else "no"
        return f"<Splits of {self.train.name}: {len(self.train)} training and {test} test images of {self.train.shape}>"


def as_float(images: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return bytes as numbers in [0, 1]: divided by 255, correctly rounded, and the same on every device.

    There is no normalisation: a certified radius is in these units.
    """
    if images.dtype != torch.uint8:
        raise IsoconvError(f"Expected images as bytes, torch.uint8. Got {images.dtype}.")
    # Not `/ 255`: on CUDA, division by a Python number is multiplication by its rounded reciprocal.
    return images.to(dtype) / torch.full((), 255, dtype=dtype, device=images.device)


def hold_out(images: ImageSet, amount: float | int, seed: int = 0) -> tuple[ImageSet, ImageSet]:
    """Return (train, validation), with `amount` images in the second: a count if an int, a fraction if a float.

    Stratified: each class gives its share, and every class of at least two images is on both sides. A class of one
    image stays in the training set. A fraction is moved to the nearest count for which that is possible; a count is
    met exactly or refused. Both parts keep the order of the whole. The same seed gives the same split.
    """
    train, held = hold_out_indices(images.labels, len(images.classes), amount, seed)
    return images.subset(train), images.subset(held)


def hold_out_indices(labels: Tensor, classes: int, amount: float | int, seed: int) -> tuple[Tensor, Tensor]:
    """Return the indices of the images that `hold_out` trains on, and of those that it holds out."""
    labels = labels.cpu()
    counts = torch.bincount(labels, minlength=classes).numpy()
    high = np.maximum(counts - 1, 0)
    low = np.minimum(1, high)
    least, most = int(low.sum()), int(high.sum())
    if most == 0:
        raise IsoconvError(
            f"Expected a class with at least two images, one to train and one to hold out. "
            f"Got {len(labels)} images in {int((counts > 0).sum())} classes."
        )
    count = isinstance(amount, int) and not isinstance(amount, bool)
    if not (least <= amount <= most if count else 0 < amount < 1):
        raise IsoconvError(
            f"Expected a fraction between 0 and 1 to hold out, or from {least} to {most} images, so that each class "
            f"with two is on both sides. Got {amount}."
        )
    total = int(amount) if count else min(max(round(amount * len(labels)), least), most)
    random = _random_state(seed)
    held = torch.zeros(len(labels), dtype=torch.bool)
    for label, share in enumerate(_apportion(counts, total, low, high)):
        members = torch.nonzero(labels == label).flatten()
        held[members[torch.from_numpy(random.permutation(len(members))[:share])]] = True
    return torch.nonzero(~held).flatten(), torch.nonzero(held).flatten()


def shuffle(images: ImageSet, seed: int = 0) -> ImageSet:
    """Return the images in another order, for sets that lie class by class: the first n are then a fair sample."""
    return images.subset(shuffle_indices(len(images), seed))


def shuffle_indices(count: int, seed: int) -> Tensor:
    """Return the order in which `shuffle` brings the images."""
    return torch.from_numpy(_random_state(seed).permutation(count))


def _random_state(seed: int) -> np.random.RandomState:
    if not 0 <= seed < 2**32:
        raise IsoconvError(f"Expected a seed from 0 to 2³² − 1. Got {seed}.")
    return np.random.RandomState(seed)  # numpy promises that its stream never changes: one seed, one split, for ever


def _apportion(counts: Array, total: int, low: Array, high: Array) -> list[int]:
    """Return integers from low to high that add up to total, as close to proportional to the counts as that allows."""
    ideal = counts * (total / counts.sum())
    shares = np.clip(np.floor(ideal).astype(np.int64), low, high)
    while (gap := total - int(shares.sum())) != 0:
        # Move one image at a time, to (or from) the class that is furthest from its ideal and not yet at its limit.
        need = (ideal - shares) * np.sign(gap)
        free = shares < high if gap > 0 else shares > low
        shares[int(np.argmax(np.where(free, need, -np.inf)))] += np.sign(gap)
    return [int(share) for share in shares]
