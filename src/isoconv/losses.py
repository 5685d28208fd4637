"""Losses for networks with a known Lipschitz constant. They ask for a margin, so that there is something to certify.

Every function takes logits (n, classes), labels (n,) and options, and is called like those of `torch.nn.functional`:
`reduction` is "mean", "sum" or "none". `functools.partial(hinge_kr_loss, alpha=0.9)` is a criterion. Nothing is kept
between calls. Logits in half precision are taken to float32 first. NaN in the logits is NaN in the loss.

`LOSSES` holds one record for each loss that `isoconv train` offers. This module does not import torch before a loss is
computed, so that help texts are there at once. To add a loss, write a function with defaults, and add a line to `LOSSES`.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from isoconv.errors import is_number, require

if TYPE_CHECKING:
    from torch import Tensor

REDUCTIONS = ("mean", "sum", "none")
_SQRT2 = math.sqrt(2)  # ‖w_i − w_j‖ between orthonormal rows of the last layer


class Option(NamedTuple):
    """A setting of a loss: what it means, and the numbers that it may be."""

    help: str
    low: float = -math.inf
    high: float = math.inf
    above: bool = False  # the lowest number itself is excluded

    def check(self, name: str, value: float) -> None:
        """Raise unless the value is a number that the option may be."""
        fits = is_number(value) and self.low <= value <= self.high and not (self.above and value == self.low)
        least = f" {'above' if self.above else 'of at least'} {self.low:g}" if self.low > -math.inf else ""
        most = f", at most {self.high:g}" if self.high < math.inf else ""
        require(fits, f"the option {name} to be a number{least}{most}", value)


OPTIONS = {
    "margin": Option("margin of the hinge loss", 0, above=True),
    "temperature": Option("temperature of the softmax", 0, above=True),
    "offset": Option("offset of the cross-entropy: the margin that it asks for"),
    "tau": Option("inverse temperature of the cross-entropy", 0, above=True),
    "power": Option("exponent of the weights", 0),
    "radius": Option("radius up to which it asks for more margin", 0),
    "weight": Option("weight of the certified radius", 0),
    "alpha": Option("weight of the hinge, from 0 to 1", 0, 1),
}


# Hinge and cross-entropies ----------------------------------------------------------------------------------------


def hinge_loss(logits: "Tensor", labels: "Tensor", margin: float = 0.7071, reduction: str = "mean") -> "Tensor":
    """Return Σ_j max(0, margin − y_t + y_j) over the classes j ≠ t, divided by the number of classes.

    A margin of √2·r is what a network with constant 1 and orthonormal last rows needs to be certified at the radius r.
    """
    import torch

    logits = _check(logits, labels, reduction, margin=margin)
    loss = torch.nn.functional.multi_margin_loss(logits, labels, margin=margin, reduction=reduction)
    finite = torch.isfinite(logits)
    finite = finite.all(dim=1) if reduction == "none" else finite.all()
    return torch.where(finite, loss, torch.nan)  # torch's own takes NaN for a loss of zero


def offset_cross_entropy(
    logits: "Tensor", labels: "Tensor", temperature: float = 0.125, offset: float = 0.7071, reduction: str = "mean"
) -> "Tensor":
    """Return the cross-entropy of (y − offset·e_t)/temperature, times the temperature.

    The offset is subtracted from the right class's logit, so that the loss goes on asking for a margin of that size; the
    temperature sets how sharply. A 1-Lipschitz network cannot enlarge its logits at will, so both matter.
    """
    from torch.nn import functional as F

    logits = _check(logits, labels, reduction, temperature=temperature, offset=offset)
    return F.cross_entropy(_lower(logits, labels, offset) / temperature, labels, reduction=reduction) * temperature


def tau_cross_entropy(logits: "Tensor", labels: "Tensor", tau: float = 8.0, reduction: str = "mean") -> "Tensor":
    """Return the cross-entropy of τ·y, divided by τ (Béthune et al., 2022).

    A large τ gives accuracy, a small one margins. It is `offset_cross_entropy` of temperature 1/τ without an offset.
    """
    from torch.nn import functional as F

    logits = _check(logits, labels, reduction, tau=tau)
    return F.cross_entropy(tau * logits, labels, reduction=reduction) / tau


def annealed_loss(
    logits: "Tensor",
    labels: "Tensor",
    temperature: float = 0.125,
    offset: float = 0.7071,
    power: float = 2.0,
    reduction: str = "mean",
) -> "Tensor":
    """Return the cross-entropy with an offset, each image weighted by (1 − p)^power, p its softmax of the right class.

    Logit annealing (Lai et al., 2025): images that have reached their margin count less than the others. The paper has
    temperature 0.75, offset 2 and power 5.
    """
    import torch
    from torch.nn import functional as F

    logits = _check(logits, labels, reduction, temperature=temperature, offset=offset, power=power)
    entropy = F.cross_entropy(_lower(logits, labels, offset) / temperature, labels, reduction="none")
    # Where p rounds to 1, a power below 1 has no slope at 0.
    weights = (-entropy).expm1().neg().clamp_min(torch.finfo(entropy.dtype).tiny) ** power
    return _reduce(weights * entropy, reduction) * temperature


def emma_loss(
    logits: "Tensor",
    labels: "Tensor",
    temperature: float = 0.125,
    radius: float = 108 / 255,
    constants: "Tensor | float" = _SQRT2,
    reduction: str = "mean",
) -> "Tensor":
    """Return the cross-entropy of logits in which each wrong class j has y_j + min(K_tj·radius, y_t − y_j), where j loses.

    EMMA (Hu et al., 2023): the loss asks each image for twice the margin that it has, up to what the radius needs. The
    added term counts as a constant.

    constants : Lipschitz constants K_ij of y_i − y_j, (classes, classes), or one number; √2 for orthonormal last rows
    """
    from torch.nn import functional as F

    logits = _check(logits, labels, reduction, temperature=temperature, radius=radius)
    lead = (logits.gather(1, labels[:, None]) - logits).detach()  # 0 for the right class itself
    most = _choose_constants(constants, logits, labels, radius)
    raised = logits + lead.clamp_min(0).minimum(most)
    return F.cross_entropy(raised / temperature, labels, reduction=reduction) * temperature


def certificate_loss(
    logits: "Tensor",
    labels: "Tensor",
    temperature: float = 0.125,
    offset: float = 0.7071,
    weight: float = 0.1,
    constants: "Tensor | float" = _SQRT2,
    reduction: str = "mean",
) -> "Tensor":
    """Return the cross-entropy with an offset, minus `weight` times the certified radius, 0 for a misclassified image.

    Certificate regularisation (Singla et al., 2022). The radius is the least (y_t − y_j)/K_tj over the classes j ≠ t.

    constants : as for `emma_loss`
    """
    entropy = offset_cross_entropy(logits, labels, temperature, offset, reduction)
    logits = _check(logits, labels, reduction, weight=weight)
    index = labels[:, None]
    scales = _choose_constants(constants, logits, labels).scatter(1, index, 1.0)  # K_tt may be 0
    radii = ((logits.gather(1, index) - logits) / scales).scatter(1, index, math.inf).amin(dim=1)
    return entropy - weight * _reduce(radii.relu(), reduction)


# Kantorovich–Rubinstein -------------------------------------------------------------------------------------------

# Note [Losses of whole batches]
# KR is a difference of means over a batch, and has no values per image of its own. The value of an image is defined so
# that the mean over the batch is the loss: y·n/n₊ for one of n₊ positive images of n, −y·n/n₋ for a negative one. "sum"
# is n times the mean. A batch that has images of one side only knows no distance: its KR is 0. Otherwise, dividing by
# the count of the side that is empty would give NaN, or a mean over one side, which a network can raise without limit.


def binary_kr_loss(scores: "Tensor", labels: "Tensor", reduction: str = "mean") -> "Tensor":
    """Return minus the Kantorovich–Rubinstein difference: mean score where the label is 0, minus mean where it is 1.

    Minimised by a 1-Lipschitz network, minus the loss tends to the Wasserstein-1 distance of the two classes.

    scores : (n,) or (n, 1)
    labels : n numbers, 1 or True for one class, 0, −1 or False for the other
    """
    scores, positive = _check_binary(scores, labels, reduction)
    return _reduce_kr(-_contribute_kr(scores, positive), reduction)


def binary_hinge_kr_loss(
    scores: "Tensor", labels: "Tensor", margin: float = 0.7071, alpha: float = 0.98, reduction: str = "mean"
) -> "Tensor":
    """Return alpha·hinge − (1 − alpha)·KR of two classes (Serrurier et al., 2021).

    The hinge is max(0, margin/2 − y) for images with label 1 and max(0, margin/2 + y) for the others. The sign of the
    score is the class, and its absolute value a certified radius. Arguments as for `binary_kr_loss`.
    """
    scores, positive = _check_binary(scores, labels, reduction, margin=margin, alpha=alpha)
    hinge = _reduce(_lack(scores, positive, margin)[:, 0], reduction)
    return alpha * hinge - (1 - alpha) * _reduce_kr(_contribute_kr(scores, positive), reduction)


def kr_loss(logits: "Tensor", labels: "Tensor", reduction: str = "mean") -> "Tensor":
    """Return minus the Kantorovich–Rubinstein difference of each class to all others, and its mean over the classes.

    That of class k is the mean of y_k over its images, minus that over all other images: a lower bound of their
    Wasserstein-1 distance. Alone it gives large margins and poor accuracy: see `hinge_kr_loss`.
    """
    logits = _check(logits, labels, reduction)
    return _reduce_kr(-_contribute_kr(logits, _mark(logits, labels)), reduction)


def hinge_kr_loss(
    logits: "Tensor", labels: "Tensor", margin: float = 0.7071, alpha: float = 0.98, reduction: str = "mean"
) -> "Tensor":
    """Return alpha·hinge − (1 − alpha)·KR, each class against all others, and its mean over the classes.

    Hinge-Kantorovich–Rubinstein (Serrurier et al., 2021); see `kr_loss`. A class that has none in the batch, or all, has
    a KR of 0. The hinge is max(0, margin/2 − y_k) for its images and max(0, margin/2 + y_k) for others, the former
    weighted by the number of other classes, its mean over images.
    """
    logits = _check(logits, labels, reduction, margin=margin, alpha=alpha)
    is_of = _mark(logits, labels)
    lack = _lack(logits, is_of, margin)
    weighted = ((logits.shape[1] - 1) * lack).where(is_of, lack)
    hinge = weighted.mean() if reduction == "mean" else _reduce(weighted.mean(dim=1), reduction)
    return alpha * hinge - (1 - alpha) * _reduce_kr(_contribute_kr(logits, is_of), reduction)


def soft_hinge_kr_loss(
    logits: "Tensor",
    labels: "Tensor",
    margin: float = 0.7071,
    alpha: float = 0.98,
    temperature: float = 0.125,
    reduction: str = "mean",
) -> "Tensor":
    """Return alpha·hinge − (1 − alpha)·KR of each image, its wrong classes weighted by their softmax.

    Serrurier et al. (2023): with w the softmax of y/temperature over the wrong classes, the hinge is max(0, margin/2 − y_t)
    + Σ w_j max(0, margin/2 + y_j), and KR is y_t − Σ w_j y_j. So the classes that come close to winning count most, which
    matters where there are many. The published code adapts the temperature to a moving average; here it is fixed.
    """
    logits = _check(logits, labels, reduction, margin=margin, alpha=alpha, temperature=temperature)
    is_of = _mark(logits, labels)
    weights = (logits / temperature).masked_fill(is_of, -math.inf).softmax(dim=1).masked_fill(is_of, 1.0)
    signed = logits.where(is_of, -logits)
    return _reduce((weights * (alpha * _lack(logits, is_of, margin) - (1 - alpha) * signed)).sum(dim=1), reduction)


# What they share --------------------------------------------------------------------------------------------------


def _check(logits: "Tensor", labels: "Tensor", reduction: str, **options: float) -> "Tensor":
    """Return the logits in at least single precision; raise unless all arguments fit together."""
    import torch

    _check_options(reduction, options)
    fits = isinstance(logits, torch.Tensor) and logits.dim() == 2 and len(logits) > 0 and logits.shape[1] > 1
    require(fits and logits.is_floating_point(), "logits (n, classes) of at least 2 classes", _describe(logits))
    fits = isinstance(labels, torch.Tensor) and labels.shape == logits.shape[:1] and labels.dtype == torch.int64
    require(fits, f"labels ({len(logits)},) of int64", _describe(labels))
    if labels.device.type == "cpu":  # elsewhere a look would make the host wait, and no CUDA graph allows it
        low, high = int(labels.min()), int(labels.max())
        require(low >= 0 and high < logits.shape[1], f"labels from 0 to {logits.shape[1] - 1}", f"{low} to {high}")
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _check_binary(scores: "Tensor", labels: "Tensor", reduction: str, **options: float) -> "tuple[Tensor, Tensor]":
    """Return scores (n, 1) and which of them are of the first class; raise unless all arguments fit together."""
    import torch

    _check_options(reduction, options)
    fits = isinstance(scores, torch.Tensor) and scores.dim() in (1, 2) and scores.numel() == len(scores) > 0
    require(fits and scores.is_floating_point(), "scores (n,) or (n, 1)", _describe(scores))
    fits = isinstance(labels, torch.Tensor) and labels.shape in (scores.shape, scores.shape[:1])
    require(fits, f"labels ({len(scores)},)", _describe(labels))
    if labels.device.type == "cpu":
        known = bool(((labels == 0) | (labels == 1) | (labels == -1)).all())
        require(known, "labels 0 or 1, or −1 or 1", sorted(set(labels.flatten().tolist()))[:5])
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    return scores.reshape(-1, 1), labels.reshape(-1, 1) > 0


def _check_options(reduction: str, options: Mapping[str, float]) -> None:
    for name, value in options.items():
        OPTIONS[name].check(name, value)
    require(reduction in REDUCTIONS, f"reduction to be one of {', '.join(REDUCTIONS)}", repr(reduction))


def _describe(value: object) -> str:
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    return type(value).__name__ if shape is None else f"{tuple(shape)} of {dtype}"


def _reduce(values: "Tensor", reduction: str) -> "Tensor":
    return values if reduction == "none" else values.sum() if reduction == "sum" else values.mean()


def _mark(logits: "Tensor", labels: "Tensor") -> "Tensor":
    """Return where a logit is that of the right class."""
    import torch

    return torch.nn.functional.one_hot(labels, logits.shape[1]).bool()


def _lower(logits: "Tensor", labels: "Tensor", offset: float) -> "Tensor":
    """Return the logits, those of the right classes lower by the offset."""
    return logits - _mark(logits, labels).to(logits.dtype) * offset


def _lack(logits: "Tensor", is_of: "Tensor", margin: float) -> "Tensor":
    """Return what each logit lacks to half the margin, on its side of 0."""
    return (margin / 2 - logits.where(is_of, -logits)).relu()


def _choose_constants(constants: "Tensor | float", logits: "Tensor", labels: "Tensor", factor: float = 1.0) -> "Tensor":
    """Return factor·K_tj for each image, of right class t, and each class j."""
    import torch

    classes = logits.shape[1]
    if not isinstance(constants, torch.Tensor):
        Option("", 0, above=True).check("constants", constants)
        return torch.full_like(logits, factor * constants)
    require(constants.shape == (classes, classes), f"constants ({classes}, {classes})", _describe(constants))
    return factor * constants.to(logits)[labels]


def _contribute_kr(logits: "Tensor", is_of: "Tensor") -> "Tensor":
    """Return what each logit adds to its column's difference of means; see Note [Losses of whole batches]."""
    own, others = is_of.sum(dim=0), (~is_of).sum(dim=0)
    counts = own.clamp_min(1).where(is_of, -others.clamp_min(1))
    return (logits / counts).where((own > 0) & (others > 0), 0.0 * logits)  # NaN stays NaN


def _reduce_kr(contributions: "Tensor", reduction: str) -> "Tensor":
    """Return the mean over columns of their differences, or what each image adds to it."""
    count = len(contributions)
    if reduction == "none":
        return count * contributions.mean(dim=1)
    loss = contributions.sum(dim=0).mean()
    return loss if reduction == "mean" else count * loss


# Records ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Loss:
    """What is known of a loss. `function(logits, labels, **options)` returns a scalar."""

    name: str
    title: str
    function: "Callable[..., Tensor]"

    @property
    def defaults(self) -> dict[str, float]:
        """Return the default of each option: of the parameters of the function that `OPTIONS` has."""
        parameters = inspect.signature(self.function).parameters
        return {name: parameter.default for name, parameter in parameters.items() if name in OPTIONS}

    @property
    def options(self) -> dict[str, Option]:
        """Return what each option may be."""
        return {name: OPTIONS[name] for name in self.defaults}


_ALL = (
    Loss("hinge", "multi-class hinge", hinge_loss),
    Loss("cross-entropy", "cross-entropy with an offset", offset_cross_entropy),
    Loss("tau-cross-entropy", "τ-cross-entropy", tau_cross_entropy),
    Loss("annealed", "logit annealing", annealed_loss),
    Loss("emma", "EMMA", emma_loss),
    Loss("certificate", "cross-entropy with certificate regularisation", certificate_loss),
    Loss("kr", "Kantorovich–Rubinstein", kr_loss),
    Loss("hinge-kr", "hinge-KR", hinge_kr_loss),
    Loss("soft-hinge-kr", "soft hinge-KR", soft_hinge_kr_loss),
)
LOSSES = {loss.name: loss for loss in _ALL}
