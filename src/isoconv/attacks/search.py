"""What every attack shares: checked input, the network as it is deployed, and the strongest point found for each image."""

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Real
from typing import Any, TypedDict, TypeVar

import torch
from torch import Tensor, nn

from isoconv.attacks.ball import into_ball
from isoconv.certify import RobustAccuracy
from isoconv.errors import IsoconvError, is_whole, require
from isoconv.linalg.matrices import full_precision, matmul_precision
from isoconv.nn import plain

Attack = TypeVar("Attack", bound=Callable[..., Any])
Budget = float | Tensor
Progress = Callable[[int, int], None]
"""Called as progress(done, total) whenever images are finished."""

_BATCH, _CPU_BATCH = 2500, 250  # by default, of images of 3×32×32 or smaller
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
_SMALL = 1e-4  # a step of this length changes the loss by little more than float32 rounds it by


class Options(TypedDict, total=False):
    """Keyword arguments that every attack takes; fgsm neither of the last two, and `rounding_search` not the last.

    batch_size : images attacked at a time; by default as many as keep the device busy, for networks of the paper's size
    device : where the network runs; by default where the model is
    progress : called as progress(done, total) whenever images are finished
    seed : of the random choices, 0 by default; the global generators are left alone
    early_stop : leave an image once it is fooled, the default; an attack may search on
    """

    batch_size: int | None
    device: torch.device | str | None
    progress: Progress | None
    seed: int
    early_stop: bool


def refuse_options(options: Mapping[str, object], *names: str) -> None:
    """Raise if there is an option that has no meaning for an attack."""
    require(options.keys().isdisjoint(names), f"none of the options {', '.join(names)}", ", ".join(options))


def without_autograd(attack: Attack) -> Attack:
    """Run an attack outside of inference mode, whose tensors have no gradients, and record none but its own."""
    return torch.inference_mode(False)(torch.no_grad()(attack))


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
    margins = -margin_loss(logits, labels)
    return torch.where(margins.isnan(), -torch.inf, margins)


@contextmanager
def _explain(images: Tensor) -> Iterator[None]:
    """Turn off autocast, whose products are too rough to search with, and turn torch's errors into one line."""
    try:
        with torch.autocast(images.device.type, enabled=False):
            yield
    except IsoconvError:
        raise
    except (RuntimeError, ValueError, TypeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        if isinstance(error, torch.OutOfMemoryError):
            reason = f"more than fits into the memory of {images.device}, choose a smaller batch_size."
        expected = f"Expected images that the model can take in {images.dtype}"
        raise IsoconvError(f"{expected}. Got shape {tuple(images.shape)}: {reason}") from error


def _run(network: nn.Module, images: Tensor) -> Tensor:
    """Return the logits of a copy of the images, which the first module may change in place."""
    with _explain(images):
        logits = network(images.clone())
    fits = isinstance(logits, Tensor) and logits.dim() == 2 and len(logits) == len(images) and logits.shape[1] > 1
    require(fits, f"logits ({len(images)}, classes) of at least 2 classes", _kind(logits))
    return logits  # type: ignore[no-any-return]


class Search:
    """Judge points by the network as it is deployed and keep, for each image, the one of the smallest margin.

    The network is `plain(model)` in evaluation mode, twice: in float64 to judge with, in `dtype` to search with (float32 by
    default, or float64 where float32 could not see the budget). Its weights are built here, once, and frozen; the model
    itself is left alone. Everything is on one device until `result`. Rows are selected by `index`. `budget` is what errors
    call `epsilon`.
    """

    def __init__(
        self,
        model: nn.Module,
        images: Tensor,
        labels: Tensor,
        epsilon: Budget,
        *,
        dtype: torch.dtype | None = None,
        budget: str = "epsilon",
        batch_size: int | None = None,
        device: torch.device | str | None = None,
        progress: Progress | None = None,
        seed: int = 0,
        early_stop: bool = True,
    ) -> None:
        _check_images(images)
        self.device = device = _check_device(model, device)
        self.home, self.progress, self.seed, self.early_stop = images.device, progress, seed, early_stop
        self.originals = images.detach().to(device, torch.float64, copy=True)
        self.labels = _check_labels(labels, len(images)).to(device)
        self.epsilon = _check_budget(epsilon, len(images), budget).to(device)
        small = len(images) > 0 and float(self.epsilon.max()) < _SMALL
        self.dtype = dtype or (torch.float64 if small else torch.float32)
        frozen = plain(model).eval().requires_grad_(False)
        self.searching = copy.deepcopy(frozen).to(device, self.dtype)
        self.judging = frozen.to(device, torch.float64)
        usual = (_CPU_BATCH if device.type == "cpu" else _BATCH) * 3 * 32 * 32 // math.prod(images.shape[1:])
        self.batch_size = max(1, min(_BATCH, usual)) if batch_size is None else batch_size
        check_counts(batch_size=self.batch_size, seed=seed)
        self.points = self.originals.clone()
        self.norms, self.margins = torch.zeros_like(self.epsilon), torch.zeros_like(self.epsilon)
        self.classes = 0
        self.everything = torch.arange(len(images), device=device)
        for index in self.batches(self.everything):
            logits, true = _run(self.judging, self.originals[index]), self.labels[index]
            self.classes = logits.shape[1]
            unknown = true[(true < 0) | (true >= self.classes)].tolist()
            require(not unknown, f"labels from 0 to {self.classes - 1}", unknown[:3])
            nan = index[logits.isnan().any(dim=1)].tolist()
            require(not nan, "a model that gives numbers", f"NaN for images {nan[:3]}")
            self.margins[index] = margins_of(logits, true)
        self.clean = self.margins > 0
        self.finished = torch.zeros_like(self.clean)
        self.finish(self.everything[~self.clean | (self.epsilon == 0)])

    def batches(self, index: Tensor) -> list[Tensor]:
        return list(index.split(self.batch_size)) if len(index) else []

    def judge_points(self, points: Tensor, labels: Tensor) -> Tensor:
        """Return the margins in float64: positive where the network is correct."""
        return margins_of(_run(self.judging, points), labels)

    def logits(self, points: Tensor) -> Tensor:
        """Return logits in the precision of the search, without TF32: decision attacks take steps below its ten bits."""
        with full_precision(points):
            return _run(self.searching, points)

    def gradient(self, points: Tensor, loss: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits, the loss of each image, and its gradient in the pixels, in the precision of the search."""
        points = points.detach().requires_grad_()
        with torch.enable_grad(), matmul_precision(points, "high"), _explain(points):
            logits = _run(self.searching, points)
            losses = loss(logits)
            require(losses.requires_grad, "logits that can be differentiated in the pixels", "a constant")
            (gradient,) = torch.autograd.grad(losses.sum(), points)
        return logits.detach(), losses.detach(), gradient

    def judge(self, index: Tensor, perturbations: Tensor) -> Tensor:
        """Project perturbed images into the ball, keep those stronger than what is known, and return their margins."""
        images = self.originals[index]
        points, norms = into_ball(images, images + perturbations.to(images), self.epsilon[index])
        margins = self.judge_points(points, self.labels[index])
        self.keep(index, points, norms, margins)
        return margins

    def keep(self, index: Tensor, points: Tensor, norms: Tensor, margins: Tensor, better: Tensor | None = None) -> None:
        """Keep points, which must lie in the ball, where they are better than what is known (of smaller margin)."""
        better = margins < self.margins[index] if better is None else better
        rows = index[better]
        self.points[rows], self.norms[rows], self.margins[rows] = points[better], norms[better], margins[better]

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
        """Return what is known, on the images' device."""
        tensors = self.points, self.norms, self.clean, self.margins <= 0, self.margins, self.epsilon
        return AttackResult(*(tensor.to(self.home) for tensor in tensors))


def check_counts(least: int = 1, /, **counts: int) -> None:
    """Raise unless every count is a whole number of at least `least`, and every seed of at least 0."""
    for name, count in counts.items():
        low = 0 if name == "seed" else least
        require(is_whole(count, low), f"{name}, a whole number of at least {low}", repr(count))


def _check_images(images: Tensor) -> None:
    fits = isinstance(images, Tensor) and images.is_floating_point() and images.dim() > 1
    require(fits and math.prod(images.shape[1:]) > 0, "a batch of floating-point images (N, …)", _kind(images))
    outside = images[~((images >= 0) & (images <= 1))]  # NaN among them
    require(not len(outside), "pixels in [0, 1]", outside[:3].tolist())


def _check_labels(labels: Tensor, count: int) -> Tensor:
    """Return labels in int64. Whether they fit the classes is known when the network has answered."""
    fits = isinstance(labels, Tensor) and labels.dtype in _INTEGERS and labels.shape == (count,)
    require(fits, f"integer labels, one for each of {count} images", _kind(labels))
    return labels.detach().to(torch.int64)


def _check_budget(budget: Any, count: int, name: str) -> Tensor:
    """Return one budget per image, in float64 on the CPU."""
    number = isinstance(budget, Real) and not isinstance(budget, bool)
    values = torch.tensor(float(budget), dtype=torch.float64, device="cpu") if number else budget
    fits = isinstance(values, Tensor) and values.is_floating_point() and values.shape in ((), (count,))
    require(fits, f"{name}, one number or one for each of {count} images", _kind(budget))
    values = values.detach().to("cpu", torch.float64)
    wrong = values[~((values >= 0) & values.isfinite())].tolist()
    require(not wrong, f"{name} finite and not negative", wrong[:3])
    return values.expand(count).contiguous()  # type: ignore[no-any-return]


def _check_device(model: nn.Module, device: torch.device | str | None) -> torch.device:
    """Return the device asked for, by default the model's."""
    require(isinstance(model, nn.Module), "a torch.nn.Module", type(model).__name__)
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
    return f"{value.dtype} of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
