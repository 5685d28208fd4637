"""Images with labels, as bytes: what every reader returns and everything else takes."""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from isoconv.errors import IsoconvError, require

Array = np.ndarray[Any, np.dtype[Any]]
Batch = tuple[Tensor, Tensor]  # images and labels


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
        fits = images.dtype == torch.uint8 and images.ndim == 4 and 0 not in images.shape[1:]
        require(fits, "images as a uint8 tensor (N, C, H, W)", _describe(images))
        fits = labels.dtype == torch.int64 and labels.shape == images.shape[:1]
        require(fits, f"an int64 label for each of {len(images)} images", _describe(labels))
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
        index = torch.as_tensor(indices, device=self.labels.device)
        if index.numel() == 0:
            index = index.reshape(0).to(torch.int64)  # torch takes an empty list for floats
        is_list = index.ndim == 1 and not index.is_floating_point() and index.dtype != torch.bool
        require(is_list, "a list of indices", _describe(index))
        _check_range("indices", index, len(self))
        return self._part(index)

    def take(self, n: int) -> "ImageSet":
        """Return the first n images, without a copy."""
        require(0 <= n <= len(self), f"a number of images from 0 to {len(self)}", n)
        return self._part(slice(n))

    def _part(self, at: Tensor | slice) -> "ImageSet":
        return replace(self, images=self.images[at], labels=self.labels[at])

    def batches(self, batch_size: int) -> Iterator[Batch]:
        """Yield images and labels, so many at a time, in their order."""
        return zip(self.images.split(batch_size), self.labels.split(batch_size), strict=True) if len(self) else iter(())

    def select(self, indices: Sequence[Tensor], pinned: bool = False) -> Generator[Batch, None, None]:
        """Yield images and labels of each batch of indices, in host memory, which is pinned if asked for."""
        for index in indices:
            yield gather(self.images, index, pinned), gather(self.labels, index, pinned)


def gather(source: Tensor, index: Tensor, pinned: bool) -> Tensor:
    """Return a part of a tensor in new host memory."""
    host = torch.empty(len(index), *source.shape[1:], dtype=source.dtype, pin_memory=pinned)
    return torch.index_select(source, 0, index, out=host)


def _describe(tensor: Tensor) -> str:
    return f"{tensor.dtype} of shape {tuple(tensor.shape)}"


def _check_range(name: str, values: Tensor, count: int) -> None:
    if len(values):
        low, high = int(values.min()), int(values.max())
        require(low >= 0 and high < count, f"{name} from 0 to {count - 1}", f"{low} to {high}")


Part = ImageSet | Callable[[], ImageSet]


class Splits:
    """A training set and a test set of the same classes and shape.

    Each may be a function instead, which is called when the part is first asked for: certifying reads no training
    images. The test set may be missing (STL-10 is often kept without it); `why_no_test` is then the error of whoever
    asks for it. `train, test = splits` asks for both.

    listing : for a user's own image files, a hash of their names, sizes in bytes and classes, which decide what is held out
    ignored : by their ending, how many files were passed over, because they are no images or in no class's folder
    left_out : the image files that could not be read, of the parts that have been asked for; see `skip_broken`
    """

    def __init__(
        self,
        train: Part,
        test: Part | None,
        why_no_test: str = "This data set has no test images.",
        *,
        listing: str = "",
        ignored: Mapping[str, int] | None = None,
        left_out: Sequence[str] = (),
    ):
        self._train, self._test, self._why_no_test = train, test, why_no_test
        self.listing, self.ignored, self.left_out = listing, dict(ignored or {}), left_out
        if isinstance(train, ImageSet) and isinstance(test, ImageSet):
            self.load()

    @property
    def has_test(self) -> bool:
        return self._test is not None

    @cached_property
    def train(self) -> ImageSet:
        return self._read(self._train, "test")

    @cached_property
    def test(self) -> ImageSet:
        if self._test is None:
            raise IsoconvError(self._why_no_test)
        return self._read(self._test, "train")

    def _read(self, part: Part, other: str) -> ImageSet:
        """Read a part, and compare it with the other one if that has been read."""
        images = part if isinstance(part, ImageSet) else part()
        known = vars(self).get(other, images)
        same = (images.shape, images.classes) == (known.shape, known.classes)
        problem = " and ".join(f"{x.shape} with {len(x.classes)} classes" for x in (known, images))
        require(same, f"training and test images of {images.name} of one shape, with the same classes", problem)
        return images

    def load(self) -> "Splits":
        """Read both parts now, so that whatever is wrong with their files is said at once. Return the splits."""
        _ = self.train, self.has_test and self.test
        return self

    def map(self, change: Callable[[ImageSet], ImageSet]) -> "Splits":
        """Return splits with both parts changed, or the one that there is, when they are asked for."""
        test = (lambda: change(self.test)) if self.has_test else None
        return Splits(lambda: change(self.train), test, self._why_no_test, listing=self.listing, ignored=self.ignored)

    def __iter__(self) -> Iterator[ImageSet]:
        return iter((self.train, self.test))

    def __repr__(self) -> str:
        test = len(self.test) if self.has_test else "no"
        return f"<Splits of {self.train.name}: {len(self.train)} training and {test} test images of {self.train.shape}>"


def as_float(images: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return bytes as numbers in [0, 1]: divided by 255, correctly rounded, and the same on every device.

    There is no normalisation: a certified radius is in these units.
    """
    require(images.dtype == torch.uint8, "images as bytes, torch.uint8", images.dtype)
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
    problem = f"{len(labels)} images in {int((counts > 0).sum())} classes"
    require(most > 0, "a class with at least two images, one to train and one to hold out", problem)
    count = isinstance(amount, int) and not isinstance(amount, bool)
    fits = least <= amount <= most if count else 0 < amount < 1
    images = f"from {least} to {most} images, so that each class with two is on both sides"
    require(fits, f"a fraction between 0 and 1 to hold out, or {images}", amount)
    total = int(amount) if count else min(max(round(amount * len(labels)), least), most)
    random = _random_state(seed)
    held = torch.zeros(len(labels), dtype=torch.bool)
    for label, share in enumerate(_apportion(counts, total, low, high)):
        members = torch.nonzero(labels == label).flatten()
        held[members[torch.from_numpy(random.permutation(len(members))[:share])]] = True
    return torch.nonzero(~held).flatten(), torch.nonzero(held).flatten()


def shuffle_indices(count: int, seed: int = 0) -> Tensor:
    """Return an order for images that lie class by class: the first n are then a fair sample."""
    return torch.from_numpy(_random_state(seed).permutation(count))


def _random_state(seed: int) -> np.random.RandomState:
    require(0 <= seed < 2**32, "a seed from 0 to 2³² − 1", seed)
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
    return shares.tolist()
