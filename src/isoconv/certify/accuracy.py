"""From a data set to clean and certified accuracy."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from isoconv.certify.certifier import Certified, Certifier, check_batch_size, join
from isoconv.errors import IsoconvError

_BEYOND = 1e300  # any radius; whole numbers may be too large to be a float


class LabelledImages(Protocol):
    """Images, uint8 (N, C, H, W), with labels: what `isoconv.data` reads."""

    @property
    def images(self) -> Tensor: ...

    @property
    def labels(self) -> Tensor: ...


@dataclass(frozen=True, eq=False, repr=False)
class RobustAccuracy:
    """Accuracy of a network on N images, in percent, and the certificates that it follows from.

    An image counts as certified at ε if its prediction is proved for all of the closed ball of radius ε, and is right.
    """

    clean: float
    certified: dict[float, float]
    certificates: Certified
    labels: Tensor
    certifier: Certifier

    def __repr__(self) -> str:
        certified = "".join(
            f", {percent:.2f} % certified at {epsilon:.4g}" for epsilon, percent in self.certified.items()
        )
        return f"<RobustAccuracy of {len(self.labels)} images: {self.clean:.2f} % right{certified}>"

    @property
    def lipschitz_bound(self) -> float:
        return self.certifier.lipschitz.value

    @property
    def right(self) -> Tensor:
        """Which images are predicted right, with no other class as likely."""
        return _right(self.certificates, self.labels)

    @property
    def radii(self) -> Tensor:
        """How far each image is certified with the right class; 0 where it is not."""
        return torch.where(self.right, self.certificates.radius, 0.0)

    def at(self, epsilon: float) -> float:
        """Certified accuracy at ε; at 0, clean accuracy."""
        (epsilon,) = _check_radii([epsilon])
        return self.clean if epsilon == 0 else _percent(self.right & (self.certificates.radius >= epsilon))

    def curve(self) -> tuple[Tensor, Tensor]:
        """All of it: radii in rising order and the accuracy certified at each, which falls just behind it."""
        radii = self.radii[self.radii > 0].sort().values.cpu()
        remaining = torch.arange(len(radii), 0, -1, dtype=torch.float64)
        return radii, 100 * remaining / max(1, len(self.labels))


@torch.no_grad()
def robust_accuracy(
    model: nn.Module | Certifier,
    data: LabelledImages | tuple[Tensor, Tensor] | Iterable[Any],
    epsilons: Sequence[float] = (),
    *,
    batch_size: int = 500,
    progress: Callable[[int, int], None] | None = None,
    **options: object,
) -> RobustAccuracy:
    """Clean and certified accuracy of `plain(model)` on images in [0, 1], or uint8 ones, which are divided by 255.

    `data` is a pair (images, labels), a data set of `isoconv.data`, a `DataLoader` (of batches in the order wanted), or a
    torch data set of (image, label); it is held in memory. `options` are those of `Certifier`.
    """
    images, labels = _images_and_labels(data)
    epsilons = _check_radii(epsilons)
    check_batch_size(batch_size)
    if isinstance(model, Certifier) and options:
        raise IsoconvError(f"Expected no options beside a certifier, which has its own. Got {', '.join(options)}.")
    certifier = model if isinstance(model, Certifier) else Certifier(model, images.shape[1:], **options)  # type: ignore[arg-type]
    classes = certifier.pair_constants.shape[0]
    if not (int(labels.min()) >= 0 and int(labels.max()) < classes):
        raise IsoconvError(f"Expected labels from 0 to {classes - 1}. Got {int(labels.min())} to {int(labels.max())}.")
    # A table, because on a GPU division by a number is multiplication by its rounded reciprocal.
    device = next((p.device for p in certifier.network.parameters()), images.device)
    bytes_as_numbers = (torch.arange(256, dtype=torch.float64) / 255).to(device, getattr(torch, certifier.arithmetic))
    parts = []
    for start in range(0, len(images), batch_size):
        part = images[start : start + batch_size].to(device)
        parts.append(certifier(bytes_as_numbers[part.int()] if part.dtype == torch.uint8 else part).cpu())
        if progress is not None:
            progress(min(start + batch_size, len(images)), len(images))
    found = join(parts)
    labels = labels.cpu()
    right = _right(found, labels)
    certified = {float(e): _percent(right & (found.radius >= e) if e > 0 else right) for e in epsilons}
    return RobustAccuracy(_percent(right), certified, found, labels, certifier)


def _images_and_labels(data: Any) -> tuple[Tensor, Tensor]:
    whole = data if isinstance(data, (tuple, list)) else (getattr(data, "images", None), getattr(data, "labels", None))
    if len(whole) == 2 and all(isinstance(part, Tensor) for part in whole):
        images, labels = whole
    else:
        images, labels = _gather(data)
    if labels.shape != images.shape[:1] or labels.is_floating_point():
        raise IsoconvError(
            f"Expected a whole number as label of each of {len(images)} images. Got {tuple(labels.shape)}."
        )
    if not len(images):
        raise IsoconvError("Expected at least one image. Got none.")
    return images, labels


def _gather(data: Any) -> tuple[Tensor, Tensor]:
    """The images and labels of batches (x, y), or of a data set of one image each, whose y is one number."""
    if hasattr(data, "__iter__"):
        found = list(data)
    elif hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        found = [data[i] for i in range(len(data))]
    else:
        found = [data]
    if not found:
        raise IsoconvError("Expected at least one image. Got none.")
    xs, ys = [], []
    for pair in found:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2 or not isinstance(pair[0], Tensor):
            raise IsoconvError(
                "Expected images and labels: a pair of tensors, a data set of isoconv.data, or a torch data set or loader "
                f"of (image, label). Got {type(data).__name__}."
            )
        x, y = pair[0], torch.as_tensor(pair[1])
        single = y.dim() == 0 or (y.numel() == 1 and x.dim() == 3)  # some data sets have labels of shape (1,)
        xs.append(x[None] if single else x)
        ys.append(y.reshape(-1))
    shapes = sorted({tuple(x.shape[1:]) for x in xs})
    if len(shapes) > 1:
        raise IsoconvError(f"Expected images of one shape. Got {shapes[0]} and {shapes[1]}.")
    return torch.cat(xs), torch.cat(ys)


def _check_radii(epsilons: Iterable[float]) -> list[float]:
    if not isinstance(epsilons, Iterable) or isinstance(epsilons, str):
        raise IsoconvError(f"Expected radii as a list of numbers. Got {epsilons}.")
    found: list[float] = []
    for epsilon in epsilons:
        if not isinstance(epsilon, Real) or not epsilon >= 0:
            raise IsoconvError(f"Expected radii of at least 0. Got {epsilon}.")
        value = float(epsilon) if epsilon < _BEYOND else _BEYOND
        found.append(math.nextafter(value, math.inf) if value < epsilon < _BEYOND else value)  # a fraction, rounded up
    return found


def _right(found: Certified, labels: Tensor) -> Tensor:
    """Predicted right by the only largest of finite logits."""
    labels = labels.to(found.prediction.device)
    others = found.logits.scatter(1, found.prediction[:, None], -torch.inf).amax(dim=1)
    largest = found.logits.gather(1, found.prediction[:, None])[:, 0]
    return (found.prediction == labels) & (largest > others) & found.logits.isfinite().all(dim=1)


def _percent(which: Tensor) -> float:
    return 100 * int(which.sum()) / len(which)
