"""From a data set to clean and certified accuracy."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

from isoconv.certify.certifier import Certified, Certifier, check_batch_size, join
from isoconv.linalg.rounding import up
from isoconv.records import require

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
    batch_size: int = 500,
    progress: Callable[[int, int], None] | None = None,
    **options: object,
) -> RobustAccuracy:
    """Return clean and certified accuracy of `plain(model)` on images in [0, 1], or uint8 ones, which are divided by 255.

    `data` is a pair (images, labels), a data set of `isoconv.data`, a `DataLoader` (of batches in the order wanted), or a
    torch data set of (image, label), and is held in memory. `options` are those of `Certifier`.
    """
    images, labels = _images_and_labels(data)
    epsilons = _check_radii(epsilons)
    check_batch_size(batch_size)
    if isinstance(model, Certifier):
        require(not options, "no options beside a certifier, which has its own", ", ".join(options))
    certifier = model if isinstance(model, Certifier) else Certifier(model, images.shape[1:], **options)  # type: ignore[arg-type]
    classes, least, most = len(certifier.pair_constants), int(labels.min()), int(labels.max())
    require(least >= 0 and most < classes, f"labels from 0 to {classes - 1}", f"{least} to {most}")
    # A table, because on a GPU division by a number is multiplication by its rounded reciprocal.
    device = next((p.device for p in certifier.network.parameters()), images.device)
    bytes_as_numbers = (torch.arange(256, dtype=torch.float64) / 255).to(device, getattr(torch, certifier.arithmetic))
    parts = []
    for start in range(0, len(images), batch_size):
        part = images[start : start + batch_size].to(device)
        parts.append(certifier(bytes_as_numbers[part.int()] if part.dtype == torch.uint8 else part).cpu())
        if progress is not None:
            progress(min(start + batch_size, len(images)), len(images))
    return RobustAccuracy(join(parts), labels.cpu(), certifier, epsilons)


def _images_and_labels(data: Any) -> tuple[Tensor, Tensor]:
    whole = data if isinstance(data, (tuple, list)) else (getattr(data, "images", None), getattr(data, "labels", None))
    tensors = len(whole) == 2 and all(isinstance(part, Tensor) for part in whole)
    images, labels = whole if tensors else _gather(data)
    numbered = labels.shape == images.shape[:1] and not labels.is_floating_point()
    require(numbered, f"a whole number as label of each of {len(images)} images", tuple(labels.shape))
    require(len(images) > 0, "at least one image", "none")
    return images, labels


def _gather(data: Any) -> tuple[Tensor, Tensor]:
    """Return the images and labels of batches (x, y), or of a data set of one image each, whose y is one number."""
    indexed = hasattr(data, "__getitem__") and hasattr(data, "__len__")
    pairs = data if hasattr(data, "__iter__") else (data[i] for i in range(len(data))) if indexed else [data]
    xs, ys = list[Tensor](), list[Tensor]()
    for pair in pairs:
        paired = isinstance(pair, (tuple, list)) and len(pair) == 2 and isinstance(pair[0], Tensor)
        expected = "images and labels: a pair of tensors, a data set of isoconv.data, or a torch data set or loader"
        require(paired, f"{expected} of (image, label)", type(data).__name__)
        x, y = pair[0], torch.as_tensor(pair[1])
        single = y.dim() == 0 or (y.numel() == 1 and x.dim() == 3)  # some data sets have labels of shape (1,)
        xs.append(x[None] if single else x)
        ys.append(y.reshape(-1))
    shapes = sorted({tuple(x.shape[1:]) for x in xs})
    require(bool(shapes), "at least one image", "none")
    require(len(shapes) == 1, "images of one shape", " and ".join(map(str, shapes[:2])))
    return torch.cat(xs), torch.cat(ys)


def _check_radii(epsilons: Iterable[float]) -> list[float]:
    """Return radii as floats, fractions rounded up."""
    listed = isinstance(epsilons, Iterable) and not isinstance(epsilons, str)
    require(listed, "radii as a list of numbers", epsilons)
    radii: list[float] = []
    for epsilon in epsilons:
        require(isinstance(epsilon, Real) and bool(epsilon >= 0), "radii of at least 0", epsilon)
        value = float(min(epsilon, _BEYOND))
        radii.append(up(value) if value < min(epsilon, _BEYOND) else value)
    return radii
