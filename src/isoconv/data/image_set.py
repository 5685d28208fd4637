"""Images with labels, as bytes: what every reader gives and everything else takes."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from isoconv.errors import IsoconvError


@dataclass(frozen=True, eq=False)
class ImageSet:
    """N images, uint8 (N, C, H, W), with labels, int64 (N,), that count into `classes`.

    Pixels stay bytes until they are used: a quarter of the memory, and exact. `as_float` makes numbers of them.
    """

    images: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    name: str

    def __post_init__(self) -> None:
        images, labels = self.images, self.labels
        if images.dtype != torch.uint8 or images.ndim != 4 or 0 in images.shape[1:]:
            raise IsoconvError(
                f"Expected images as a uint8 tensor (N, C, H, W). Got {images.dtype} of shape {tuple(images.shape)}."
            )
        if labels.dtype != torch.int64 or labels.shape != images.shape[:1]:
            raise IsoconvError(
                f"Expected one int64 label for each of the {len(images)} images. "
                f"Got {labels.dtype} of shape {tuple(labels.shape)}."
            )
        object.__setattr__(self, "classes", tuple(self.classes))
        if len(labels) and not (int(labels.min()) >= 0 and int(labels.max()) < len(self.classes)):
            raise IsoconvError(
                f"Expected labels from 0 to {len(self.classes) - 1}, for {len(self.classes)} classes. "
                f"Got labels from {int(labels.min())} to {int(labels.max())}."
            )

    def __len__(self) -> int:
        return len(self.images)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W): what a model for these images takes."""
        _, C, H, W = self.images.shape
        return C, H, W

    def to(self, device: torch.device | str) -> "ImageSet":
        return replace(self, images=self.images.to(device), labels=self.labels.to(device))

    def subset(self, indices: Tensor | Sequence[int]) -> "ImageSet":
        """The images with these indices, in this order; repeated where an index is."""
        index = torch.as_tensor(indices, device=self.images.device)
        if index.numel() == 0:
            index = index.reshape(0).to(torch.int64)  # torch takes an empty list for floats
        if index.ndim != 1 or index.is_floating_point() or index.dtype == torch.bool:
            raise IsoconvError(f"Expected a list of indices. Got {index.dtype} of shape {tuple(index.shape)}.")
        if len(index) and not (int(index.min()) >= 0 and int(index.max()) < len(self)):
            raise IsoconvError(
                f"Expected indices from 0 to {len(self) - 1}. Got {int(index.min())} to {int(index.max())}."
            )
        return replace(self, images=self.images[index], labels=self.labels[index])

    def take(self, n: int) -> "ImageSet":
        """The first n images, without a copy."""
        if not 0 <= n <= len(self):
            raise IsoconvError(f"Expected a number of images from 0 to {len(self)}, all there are. Got {n}.")
        return replace(self, images=self.images[:n], labels=self.labels[:n])


class Splits:
    """A training set and a test set of the same classes and shape.

    The test set may be missing (STL-10 is often kept without it); `why_no_test` then says what was looked for, and is
    the error of whoever asks for it. `train, test = splits` asks for both.

    listing : of one's own pictures, a hash of their names, sizes in bytes and classes; with others, others would be held out
    ignored : how many files were passed over, because they are no pictures or in no class's folder
    """

    def __init__(
        self,
        train: ImageSet,
        test: ImageSet | None,
        why_no_test: str = "This data set has no test images.",
        *,
        listing: str = "",
        ignored: int = 0,
    ):
        if test is not None and (train.shape, train.classes) != (test.shape, test.classes):
            raise IsoconvError(
                f"Expected a training and a test set of one shape, with the same classes. "
                f"Got {train.shape} with {len(train.classes)} classes and {test.shape} with {len(test.classes)}."
            )
        self.train = train
        self._test = test
        self._why_no_test = why_no_test
        self.listing, self.ignored = listing, ignored

    @property
    def has_test(self) -> bool:
        return self._test is not None

    @property
    def test(self) -> ImageSet:
        if self._test is None:
            raise IsoconvError(self._why_no_test)
        return self._test

    def map(self, change: Callable[[ImageSet], ImageSet]) -> "Splits":
        """The same change to both sets, or to the one that there is."""
        test = change(self.test) if self.has_test else None
        return Splits(change(self.train), test, self._why_no_test, listing=self.listing, ignored=self.ignored)

    def __iter__(self) -> Iterator[ImageSet]:
        yield self.train
        yield self.test

    def __repr__(self) -> str:
        test = len(self.test) if self.has_test else "no"
        return f"<Splits of {self.train.name}: {len(self.train)} training and {test} test images of {self.train.shape}>"


def as_float(images: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Bytes as numbers in [0, 1]: divided by 255, correctly rounded, and the same on every device.

    There is no normalisation: a certified radius is in these units.
    """
    if images.dtype != torch.uint8:
        raise IsoconvError(f"Expected images as bytes, torch.uint8. Got {images.dtype}.")
    # Not `/ 255`: on CUDA, division by a Python number is multiplication by its rounded reciprocal.
    return images.to(dtype) / torch.full((), 255, dtype=dtype, device=images.device)
