"""Losses that ask for a margin, so that there is something to certify. One record each, readable without torch.

To add a loss, write a function of logits, labels and its options, and add a line to `LOSSES`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor


class Option(NamedTuple):
    """A setting of a loss: its default and what it means."""

    default: float
    help: str


@dataclass(frozen=True)
class Loss:
    """What is known of a loss. `function(logits, labels, **options)` returns a scalar."""

    name: str
    title: str
    function: "Callable[..., Tensor]"
    options: Mapping[str, Option]


def hinge_loss(logits: "Tensor", labels: "Tensor", margin: float) -> "Tensor":
    """Return Σ_j max(0, margin − y_t + y_j) over the classes j ≠ t, its mean over the batch and over all classes."""
    import torch

    loss = torch.nn.functional.multi_margin_loss(logits, labels, margin=margin)
    return torch.where(torch.isfinite(logits).all(), loss, torch.nan)  # torch's own takes NaN for a loss of zero


def offset_cross_entropy(logits: "Tensor", labels: "Tensor", temperature: float, offset: float) -> "Tensor":
    """Return the cross-entropy of (y − offset·e_t)/temperature, times the temperature.

    The offset is subtracted from the right class's logit, so that the loss goes on asking for a margin of that size; the
    temperature sets how sharply. A 1-Lipschitz network cannot enlarge its logits at will, so both matter.
    """
    from torch.nn import functional as F

    offsets = F.one_hot(labels, logits.shape[1]).to(logits.dtype) * offset
    return F.cross_entropy((logits - offsets) / temperature, labels) * temperature


def annealed_loss(logits: "Tensor", labels: "Tensor", temperature: float, offset: float, power: float) -> "Tensor":
    """Return the cross-entropy with an offset, each image weighted by (1 − p)^power, p its softmax of the right class.

    Logit annealing (Lai et al., 2025): images that have reached their margin count less than the others.
    """
    from torch.nn import functional as F

    offsets = F.one_hot(labels, logits.shape[1]).to(logits.dtype) * offset
    entropy = F.cross_entropy((logits - offsets) / temperature, labels, reduction="none")
    return ((-entropy).expm1().neg() ** power * entropy).mean() * temperature


def emma_loss(logits: "Tensor", labels: "Tensor", temperature: float, radius: float) -> "Tensor":
    """Return the cross-entropy of logits in which each wrong class j has y_j + min(√2·radius, y_t − y_j), where j loses.

    EMMA (Hu et al., 2023): the loss asks each image for twice the margin that it has, up to what the radius needs between
    orthonormal rows. The added term counts as a constant.
    """
    from torch.nn import functional as F

    lead = (logits.gather(1, labels[:, None]) - logits).detach()  # 0 for the right class itself
    return F.cross_entropy((logits + lead.clamp(0, 2**0.5 * radius)) / temperature, labels) * temperature


def certificate_loss(logits: "Tensor", labels: "Tensor", temperature: float, offset: float, weight: float) -> "Tensor":
    """Return the cross-entropy with an offset, minus `weight` times the mean certified radius (y_t − y_j)/√2, if positive.

    Certificate regularisation (Singla et al., 2022).
    """
    import torch

    right = logits.gather(1, labels[:, None])[:, 0]
    others = logits.scatter(1, labels[:, None], -torch.inf).amax(dim=1)
    return (
        offset_cross_entropy(logits, labels, temperature, offset) - weight * ((right - others) / 2**0.5).relu().mean()
    )


def hinge_kr_loss(logits: "Tensor", labels: "Tensor", margin: float, alpha: float) -> "Tensor":
    """Return alpha·hinge − (1 − alpha)·KR, each class against all others, and its mean over the classes.

    Hinge-Kantorovich–Rubinstein (Serrurier et al., 2021). KR of class k is the mean of y_k over its images, minus that
    over all other images: a lower bound of their Wasserstein distance. A class that has none in the batch, or all, has
    0. The hinge is max(0, margin/2 − y_k) for its images and max(0, margin/2 + y_k) for others, the former weighted by
    the number of other classes, its mean over images.
    """
    import torch

    is_of = torch.nn.functional.one_hot(labels, logits.shape[1]).bool()
    own, others = is_of.sum(dim=0), (~is_of).sum(dim=0)
    distances = (logits * is_of).sum(dim=0) / own.clamp_min(1) - (logits * ~is_of).sum(dim=0) / others.clamp_min(1)
    distance = torch.where((own > 0) & (others > 0), distances, 0.0).mean()
    hinges = (margin / 2 - torch.where(is_of, logits, -logits)).relu()
    hinge = torch.where(is_of, (logits.shape[1] - 1) * hinges, hinges).mean()
    return alpha * hinge - (1 - alpha) * distance


_TEMPERATURE = Option(0.125, "temperature of the cross-entropy")
_OFFSET = Option(0.7071, "offset of the cross-entropy: the margin that it asks for")
_MARGIN = Option(0.7071, "margin of the hinge loss")
_SOFT = {"temperature": _TEMPERATURE, "offset": _OFFSET}

_ALL = (
    Loss("hinge", "multi-class hinge", hinge_loss, {"margin": _MARGIN}),
    Loss("cross-entropy", "cross-entropy with an offset", offset_cross_entropy, _SOFT),
    Loss("annealed", "logit annealing", annealed_loss, _SOFT | {"power": Option(2.0, "exponent of the weights")}),
    Loss(
        "emma",
        "EMMA",
        emma_loss,
        {"temperature": _TEMPERATURE, "radius": Option(108 / 255, "radius up to which it asks for more margin")},
    ),
    Loss(
        "certificate",
        "cross-entropy with certificate regularisation",
        certificate_loss,
        _SOFT | {"weight": Option(0.1, "weight of the certified radius")},
    ),
    Loss(
        "hinge-kr",
        "hinge-KR",
        hinge_kr_loss,
        {"margin": _MARGIN, "alpha": Option(0.98, "weight of the hinge, from 0 to 1")},
    ),
)
LOSSES = {loss.name: loss for loss in _ALL}
