"""From a data set to clean and certified accuracy."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

from isoconv.certify.certifier import Certified, Certifier, check_batch_size
from isoconv.errors import require
from isoconv.linalg.rounding import up

_BATCH = 500  # images of 3×32×32 or smaller
_BEYOND = 1e300  # any radius; whole numbers may be too large to be a float


@dataclass(frozen=True, eq=False, repr=False)
class RobustAccuracy:
    """Accuracy of a network on N images, in percent, and the certificates that it follows from.

    An image is certified at ε if its prediction is correct and proved for all of the closed ball of radius ε.
    `certified` has the accuracy at each of `epsilons`, the radii that were asked for.
    """

    certificates: Certified
    labels: Tensor
    certifier: Certifier
    epsilons: Sequence[float] = ()

    def __repr__(self) -> str:
        percentages = (f", {percent:.2f} % certified at {epsilon:.4g}" for epsilon, percent in self.certified.items())
        return f"<RobustAccuracy of {len(self.labels)} images: {self.clean:.2f} % right{''.join(percentages)}>"

    @property
    def clean(self) -> float:
        return self.at(0)

    @property
    def certified(self) -> dict[float, float]:
        return {epsilon: self.at(epsilon) for epsilon in self.epsilons}

    @property
    def lipschitz_bound(self) -> float:
        return self.certifier.lipschitz.value

    @cached_property
    def right(self) -> Tensor:
        """Return which images are classified correctly, by a unique largest and finite logit."""
        logits, prediction = self.certificates.logits, self.certificates.prediction
        largest = logits.gather(1, prediction[:, None])[:, 0]
        others = logits.scatter(1, prediction[:, None], -torch.inf).amax(dim=1)
        return (prediction == self.labels) & (largest > others) & logits.isfinite().all(dim=1)

    @property
    def radii(self) -> Tensor:
        """Return the radius within which each image is certified with the correct class; 0 where it is not."""
        return torch.where(self.right, self.certificates.radius, 0.0)

    def at(self, epsilon: float) -> float:
        """Return certified accuracy at ε; at 0, clean accuracy."""
        (epsilon,) = _check_radii([epsilon])
        counted = self.right & (self.certificates.radius >= epsilon) if epsilon > 0 else self.right
        return 100 * int(counted.sum()) / len(counted)

    def curve(self) -> tuple[Tensor, Tensor]:
        """Return the whole curve: radii in rising order and the accuracy certified at each, which falls just beyond it."""
        radii = self.radii[self.radii > 0].sort().values
        remaining = torch.arange(len(radii), 0, -1, dtype=torch.float64)
        return radii, 100 * remaining / len(self.labels)


@torch.no_grad()
def robust_accuracy(
    model: nn.Module | Certifier,
    data: Any,
    epsilons: Sequence[float] = (),
    *,
    batch_size: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    certified: Callable[[Certified, Tensor], None] | None = None,
    **options: object,
) -> RobustAccuracy:
    """Return clean and certified accuracy of `plain(model)` on images in [0, 1], or uint8 ones, which are divided by 255.

    data : a pair (images, labels), a data set of `isoconv.data`, a `DataLoader` (of batches in the order wanted), or a torch
        data set of (image, label). Only the images of a batch are held in memory, apart from those that were before
    batch_size : by default 500, or fewer of images larger than 3×32×32
    progress : called with how many images are done, and of how many, if that is known
    certified : called with the certificates and the labels of each batch, such as `CertificateFile.add`
    options : those of `Certifier`
    """
    epsilons = _check_radii(epsilons)
    pairs = iter(_pairs(data))
    first = next(pairs, None)
    require(first is not None, "at least one image", "none")
    assert first is not None
    shape = first[0].shape[1:]
    size = default_batch_size(shape) if batch_size is None else batch_size
    check_batch_size(size)
    if isinstance(model, Certifier):
        require(not options, "no options beside a certifier, which has its own", ", ".join(options))
    certifier = model if isinstance(model, Certifier) else Certifier(model, shape, **options)  # type: ignore[arg-type]
    classes, count = len(certifier.pair_constants), _count(data)
    # A table, because on a GPU division by a number is multiplication by its rounded reciprocal.
    device = next((p.device for p in certifier.network.parameters()), first[0].device)
    bytes_as_numbers = (torch.arange(256, dtype=torch.float64) / 255).to(device, getattr(torch, certifier.arithmetic))
    results, done = _Columns(count), 0
    for images, labels in _batches(chain([first], pairs), size):
        least, most = int(labels.min()), int(labels.max())
        require(least >= 0 and most < classes, f"labels from 0 to {classes - 1}", f"{least} to {most}")
        part = images.to(device)
        proved = certifier(bytes_as_numbers[part.int()] if part.dtype == torch.uint8 else part).cpu()
        labels = labels.cpu().long()
        results.add(*vars(proved).values(), labels)
        done += len(labels)
        if certified is not None:
            certified(proved, labels)
        if progress is not None:
            progress(done, max(done, count))
    *fields, known = results.take()
    return RobustAccuracy(Certified(*fields), known, certifier, epsilons)


class _Columns:
    """Results of batch after batch, in a few tensors that grow by doubling.

    Not in a list of small tensors: each would lie where a large one of its batch was, so that the next batch would not fit
    there. What is certified would then take as much memory as all the images together.
    """

    def __init__(self, expected: int) -> None:
        self.columns, self.count, self.room = list[Tensor](), 0, expected

    def add(self, *values: Tensor) -> None:
        end = self.count + len(values[0])
        if not self.columns or end > len(self.columns[0]):
            self.room = max(self.room, end, 2 * self.count)
            grown = [value.new_empty(self.room, *value.shape[1:]) for value in values]
            for new, old in zip(grown, self.columns, strict=False):
                new[: self.count] = old[: self.count]
            self.columns = grown
        for column, value in zip(self.columns, values, strict=True):
            column[self.count : end] = value
        self.count = end

    def take(self) -> list[Tensor]:
        return [column if self.count == len(column) else column[: self.count].clone() for column in self.columns]


def default_batch_size(shape: Sequence[int]) -> int:
    """Return how many images of a shape to certify at a time: of large ones fewer, so that they need as much memory."""
    return max(1, min(_BATCH, _BATCH * 3 * 32 * 32 // max(1, math.prod(shape))))


def _count(data: Any) -> int:
    """Return the number of images where it is known without counting, else 0."""
    if _is_pair(data):
        return len(data[0])
    data = getattr(data, "dataset", data)  # of a loader
    return len(data) if hasattr(data, "__len__") else 0


def _is_pair(data: Any) -> bool:
    return isinstance(data, (tuple, list)) and len(data) == 2 and all(isinstance(part, Tensor) for part in data)


def _pairs(data: Any) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield images and labels of batches (x, y), or of a data set of one image each, whose y is one number."""
    if not _is_pair(data) and isinstance(getattr(data, "labels", None), Tensor):
        if callable(getattr(data, "batches", None)):  # a data set of isoconv.data
            yield from data.batches(default_batch_size(data.shape))
            return
        data = (getattr(data, "images", None), data.labels)
    if _is_pair(data):
        yield _check_pair(*data)
        return
    indexed = hasattr(data, "__getitem__") and hasattr(data, "__len__")
    pairs = data if hasattr(data, "__iter__") else (data[i] for i in range(len(data))) if indexed else [data]
    for pair in pairs:
        paired = isinstance(pair, (tuple, list)) and len(pair) == 2 and isinstance(pair[0], Tensor)
        expected = "images and labels: a pair of tensors, a data set of isoconv.data, or a torch data set or loader"
        require(paired, f"{expected} of (image, label)", type(data).__name__)
        x, y = pair[0], torch.as_tensor(pair[1])
        single = y.dim() == 0 or (y.numel() == 1 and x.dim() == 3)  # some data sets have labels of shape (1,)
        if single or len(x):
            yield _check_pair(x[None] if single else x, y.reshape(-1))


def _check_pair(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    numbered = labels.shape == images.shape[:1] and not labels.is_floating_point()
    require(numbered, f"a whole number as label of each of {len(images)} images", tuple(labels.shape))
    require(len(images) > 0, "at least one image", "none")
    return images, labels


def _batches(pairs: Iterable[tuple[Tensor, Tensor]], size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the same images and labels, so many at a time: what is certified does not depend on how they came."""
    xs, ys, waiting, shape = list[Tensor](), list[Tensor](), 0, None
    for x, y in pairs:
        shape = shape or tuple(x.shape[1:])
        same = tuple(x.shape[1:]) == shape
        require(same, "images of one shape", f"{shape} and {tuple(x.shape[1:])}")
        xs.append(x)
        ys.append(y)
        waiting += len(x)
        if waiting >= size:
            whole = waiting - waiting % size
            images, labels = torch.cat(xs) if len(xs) > 1 else x, torch.cat(ys)
            yield from zip(images[:whole].split(size), labels[:whole].split(size), strict=True)
            xs, ys, waiting = [images[whole:]], [labels[whole:]], waiting - whole
    if waiting:
        yield torch.cat(xs), torch.cat(ys)


def _check_radii(epsilons: Iterable[float]) -> list[float]:
    """Return radii as floats, fractions rounded up."""
    listed = isinstance(epsilons, Iterable) and not isinstance(epsilons, str)
    require(listed, "radii as a list of numbers", epsilons)
    radii: list[float] = []
    for epsilon in epsilons:
        require(isinstance(epsilon, Real) and bool(epsilon >= 0), "numbers of at least 0 as radii", repr(epsilon))
        value = float(min(epsilon, _BEYOND))
        radii.append(up(value) if value < min(epsilon, _BEYOND) else value)
    return radii
