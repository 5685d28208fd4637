"""What every attack shares: checked input, the network as it is deployed, and the strongest point found for each image."""

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Real
from typing import Any, TypedDict

import torch
from torch import Tensor, nn

from isoconv.attacks.ball import into_ball
from isoconv.certify import RobustAccuracy
from isoconv.errors import IsoconvError
from isoconv.linalg.matrices import full_precision, matmul_precision
from isoconv.nn import plain

Progress = Callable[[int, int], None]
"""Called as progress(done, total) whenever images are finished."""

_PIXELS = {"cuda": 2500 * 3 * 32 * 32, "cpu": 250 * 3 * 32 * 32}  # of a batch by default
_LARGEST_BATCH = 2500
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
_SMALL = 1e-4  # a step of this length changes the loss by little more than float32 rounds it by


class Options(TypedDict, total=False):
    """Keyword arguments that every attack takes.

    batch_size : images attacked at a time; by default as many as keep the device busy, for networks of the paper's size
    device : where the network runs; by default where the model is
    progress : called as progress(done, total) whenever images are finished
    """

    batch_size: int | None
    device: torch.device | str | None
    progress: Progress | None


@dataclass(frozen=True)
class AttackResult:
    """The points that an attack found: one row per image, on the images' device, all measured in float64.

    images : the adversarial example, in [0, 1]; where the attack failed, the point of the smallest margin that it saw; the
        image itself where the network misclassifies it from the start
    norms : an upper bound of the exact L2 distance between that point and the image; never above `epsilon`
    clean : whether the network classifies the image itself correctly
    success : whether it misclassifies the point (ties and NaN count as misclassified)
    margins : y_t − max_{j ≠ t} y_j at the point, t the label; −inf where the logits are NaN
    epsilon : the budget of each image
    """

    images: Tensor
    norms: Tensor
    clean: Tensor
    success: Tensor
    margins: Tensor
    epsilon: Tensor

    @property
    def survived(self) -> Tensor:
        """Return which images are classified correctly before the attack and after it."""
        return self.clean & ~self.success

    @property
    def accuracy(self) -> float:
        """Return the percentage of all images that survived; NaN without images."""
        return _percent(self.survived)

    @property
    def clean_accuracy(self) -> float:
        """Return the percentage of all images that are classified correctly before the attack; NaN without images."""
        return _percent(self.clean)


def against_certificates(result: AttackResult, certified: RobustAccuracy, epsilon: float) -> dict[str, float]:
    """Return clean, certified and attacked accuracy of the attacked images in percent, and the number of violations.

    The attacked images are the first of those certified. An image survives only if it is classified correctly before and
    after the attack; a violation is a success within the image's own certified radius.
    """
    success, norms = result.success.cpu(), result.norms.cpu()
    right, radius = certified.right[: len(success)], certified.certificates.radius[: len(success)]
    return {
        "clean": _percent(right),
        "certified": _percent(right & (radius >= epsilon)),
        "accuracy": _percent(right & ~success),
        "violations": int((right & success & (norms <= radius)).sum()),
    }


def _percent(mask: Tensor) -> float:
    return 100 * int(mask.sum()) / len(mask) if len(mask) else math.nan


def margin_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return max_{j ≠ t} y_j − y_t, the loss of Carlini and Wagner without a limit: positive where the label has lost."""
    label_logits = logits.gather(1, labels[:, None])[:, 0]
    return logits.scatter(1, labels[:, None], -torch.inf).max(dim=1).values - label_logits


def margins_of(logits: Tensor, labels: Tensor) -> Tensor:
    """Return y_t − max_{j ≠ t} y_j; −inf where that is NaN, so that positive means correct."""
    margins = -margin_loss(logits, labels.to(logits.device))
    return torch.where(margins.isnan(), -torch.inf, margins)


class Deployed:
    """`plain(model)` in evaluation mode on one device, twice: in float64 to judge with, in `search_dtype` to search with.

    Its weights are built here, once, and frozen. The model itself is left alone.
    """

    def __init__(self, model: nn.Module, device: torch.device, search_dtype: torch.dtype) -> None:
        frozen = plain(model).eval().requires_grad_(False)
        self.device, self.search_dtype = device, search_dtype
        self.searched = copy.deepcopy(frozen).to(device, search_dtype)
        self.judged = frozen.to(device, torch.float64)

    def logits(self, images: Tensor) -> Tensor:
        """Return logits in float64. A copy of the images is passed on: the first module may work in place."""
        return self._run(self.judged, images.to(self.device, torch.float64, copy=True))

    def margins(self, images: Tensor, labels: Tensor) -> Tensor:
        """Return the margins in float64: positive where the network is correct."""
        return margins_of(self.logits(images), labels)

    def search_logits(self, images: Tensor) -> Tensor:
        """Return logits in the precision of the search, without TF32: decision attacks take steps below its ten bits."""
        with full_precision(images):
            return self._run(self.searched, images)

    def gradient(self, images: Tensor, loss: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits, the loss of each image, and its gradient in the pixels, in the precision of the search."""
        images = images.detach().requires_grad_()
        with torch.enable_grad(), matmul_precision(images, "high"):
            logits = self._run(self.searched, images * 1)  # a module that works in place must not get the leaf itself
            losses = loss(logits)
            if not losses.requires_grad:
                raise IsoconvError("Expected logits that can be differentiated in the pixels. Got a constant.")
            with self._explain(images):
                (gradient,) = torch.autograd.grad(losses.sum(), images)
        return logits.detach(), losses.detach(), gradient

    def _run(self, network: nn.Module, images: Tensor) -> Tensor:
        with self._explain(images):
            logits = network(images)
        if not isinstance(logits, Tensor) or logits.dim() != 2 or len(logits) != len(images) or logits.shape[1] < 2:
            got = f"shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else type(logits).__name__
            raise IsoconvError(f"Expected logits ({len(images)}, classes) of at least 2 classes. Got {got}.")
        return logits

    @contextmanager
    def _explain(self, images: Tensor) -> Iterator[None]:
        """Turn off autocast, whose products are too rough to search with, and turn torch's errors into one line."""
        try:
            with torch.autocast(self.device.type, enabled=False):
                yield
        except IsoconvError:
            raise
        except torch.OutOfMemoryError as error:
            raise IsoconvError(
                f"Expected a batch that fits into the memory of {self.device}. Got {len(images)} images: "
                f"choose a smaller batch_size."
            ) from error
        except (RuntimeError, ValueError, TypeError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise IsoconvError(
                f"Expected images that the model can take in {images.dtype}. Got shape {tuple(images.shape)}: {reason}"
            ) from error


class Search:
    """Judge candidates in float64 and keep, for each image, the one of the smallest margin.

    Images and points stay on the images' device; batches go to the network's. Rows are selected by `index`, a tensor on
    the images' device. `search_dtype` is float32 by default, or float64 where float32 could not see the budget.
    `budget` is what errors call `epsilon`.
    """

    def __init__(
        self,
        model: nn.Module,
        images: Tensor,
        labels: Tensor,
        epsilon: float | Tensor,
        *,
        search_dtype: torch.dtype | None = None,
        budget: str = "epsilon",
        batch_size: int | None = None,
        device: torch.device | str | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.originals = _check_images(images)
        self.labels = _check_labels(labels, len(images)).to(images.device)
        self.epsilon = _check_budget(epsilon, len(images), budget).to(images.device)
        self.progress = progress
        if search_dtype is None:
            small = len(images) > 0 and float(self.epsilon.max()) < _SMALL
            search_dtype = torch.float64 if small else torch.float32
        self.network = Deployed(model, _check_device(model, device), search_dtype)
        pixels = _PIXELS["cpu" if self.network.device.type == "cpu" else "cuda"] // math.prod(images.shape[1:])
        self.batch_size = max(1, min(_LARGEST_BATCH, pixels)) if batch_size is None else batch_size
        check_counts(batch_size=self.batch_size)
        self.points = self.originals.clone()
        self.norms, self.margins = torch.zeros_like(self.epsilon), torch.zeros_like(self.epsilon)
        self.classes = 0
        self.everything = torch.arange(len(images), device=images.device)
        for index in self.batches(self.everything):
            self._judge_clean(index)
        self.clean = self.margins > 0
        self.finished = torch.zeros_like(self.clean)
        self.finish((~self.clean | (self.epsilon == 0)).nonzero()[:, 0])

    def _judge_clean(self, index: Tensor) -> None:
        logits, labels = self.network.logits(self.originals[index]), self.labels[index]
        self.classes = logits.shape[1]
        unknown = (labels < 0) | (labels >= self.classes)
        if bool(unknown.any()):
            raise IsoconvError(f"Expected labels from 0 to {self.classes - 1}. Got {int(labels[unknown][0])}.")
        nan = logits.isnan().any(dim=1).to(index.device)
        if bool(nan.any()):
            raise IsoconvError(f"Expected a model that gives numbers. Got NaN for image {int(index[nan][0])}.")
        self.margins[index] = margins_of(logits, labels).to(index.device)

    def batches(self, index: Tensor) -> list[Tensor]:
        return list(index.split(self.batch_size)) if len(index) else []

    def rows(self, index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return images, labels and budgets on the network's device."""
        device = self.network.device
        return self.originals[index].to(device), self.labels[index].to(device), self.epsilon[index].to(device)

    def judge(self, index: Tensor, candidates: Tensor) -> Tensor:
        """Project the candidates into the ball, keep those stronger than what is known, and return their margins."""
        images, labels, epsilon = self.rows(index)
        points, norms = into_ball(images, candidates.to(images), epsilon)
        margins = self.network.margins(points, labels)
        self.keep(index, points, norms, margins)
        return margins

    def keep(self, index: Tensor, points: Tensor, norms: Tensor, margins: Tensor) -> None:
        """Keep points, which must lie in the ball, where they are stronger than what is known."""
        stronger = margins < self.margins[index].to(margins.device)
        rows = index[stronger.to(index.device)]
        for kept, values in ((self.points, points), (self.norms, norms), (self.margins, margins)):
            kept[rows] = values[stronger].to(index.device)

    def standing(self, index: Tensor | None = None) -> Tensor:
        """Return those of the rows (by default of all) that are still worth attacking: not fooled, and with a budget."""
        index = self.everything if index is None else index
        return index[(self.margins[index] > 0) & (self.epsilon[index] > 0)]

    def finish(self, index: Tensor) -> None:
        """Report that these images are finished."""
        more = not bool(self.finished[index].all())
        self.finished[index] = True
        if self.progress is not None and more:
            self.progress(int(self.finished.sum()), len(self.finished))

    def result(self) -> AttackResult:
        return AttackResult(self.points, self.norms, self.clean, self.margins <= 0, self.margins, self.epsilon)


def check_counts(least: int = 1, /, **counts: int) -> None:
    """Raise unless every count is a whole number of at least `least`, and every seed of at least 0."""
    for name, count in counts.items():
        low = 0 if name == "seed" else least
        if not isinstance(count, int) or isinstance(count, bool) or count < low:
            raise IsoconvError(f"Expected {name}, a whole number of at least {low}. Got {count!r}.")


def is_number(value: Any) -> bool:
    """Return True for real numbers, which True and False are not."""
    return isinstance(value, Real) and not isinstance(value, bool)


def _check_images(images: Tensor) -> Tensor:
    """Return a copy in float64."""
    if not isinstance(images, Tensor) or not images.is_floating_point():
        raise IsoconvError(f"Expected floating-point images with pixels in [0, 1]. Got {_kind(images)}.")
    if images.dim() < 2 or not math.prod(images.shape[1:]):
        raise IsoconvError(f"Expected a batch of images (N, …). Got shape {tuple(images.shape)}.")
    inside = (images >= 0) & (images <= 1)  # False for NaN
    if not bool(inside.all()):
        raise IsoconvError(f"Expected pixels in [0, 1]. Got {float(images[~inside][0])}.")
    return images.detach().to(torch.float64, copy=True)


def _check_labels(labels: Tensor, count: int) -> Tensor:
    """Return labels in int64. Whether they fit the classes is known when the network has answered."""
    if not isinstance(labels, Tensor) or labels.dtype not in _INTEGERS:
        raise IsoconvError(f"Expected integer labels. Got {_kind(labels)}.")
    if labels.shape != (count,):
        raise IsoconvError(f"Expected one label for each of {count} images. Got shape {tuple(labels.shape)}.")
    return labels.detach().to(torch.int64)


def _check_budget(budget: Any, count: int, name: str) -> Tensor:
    """Return one budget per image, in float64 on the CPU."""
    values = torch.tensor(float(budget), dtype=torch.float64, device="cpu") if is_number(budget) else budget
    if not (isinstance(values, Tensor) and values.is_floating_point() and values.shape in ((), (count,))):
        got = f"{budget.dtype} of shape {tuple(budget.shape)}" if isinstance(budget, Tensor) else repr(budget)
        raise IsoconvError(f"Expected {name}, one number or one for each of {count} images. Got {got}.")
    values = values.detach().to("cpu", torch.float64)
    wrong = ~((values >= 0) & values.isfinite())
    if bool(wrong.any()):
        raise IsoconvError(f"Expected {name} finite and not negative. Got {float(values[wrong][0])}.")
    return values.expand(count).contiguous()


def _check_device(model: nn.Module, device: torch.device | str | None) -> torch.device:
    """Return the device asked for, by default the model's."""
    if not isinstance(model, nn.Module):
        raise IsoconvError(f"Expected a torch.nn.Module. Got {type(model).__name__}.")
    if device is None:
        device = next((tensor.device for tensor in [*model.parameters(), *model.buffers()]), torch.device("cpu"))
    try:
        probe = torch.zeros((), dtype=torch.float64, device=device)
        float(probe)  # the meta device has no numbers
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise IsoconvError(f"Expected a device that has float64. Got {str(device)!r}: {reason}") from None
    return probe.device


def _kind(value: Any) -> str:
    return str(value.dtype) if isinstance(value, Tensor) else type(value).__name__
