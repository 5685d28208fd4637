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


_ALL = (
    Loss("hinge", "multi-class hinge", hinge_loss, {"margin": Option(0.7071, "margin of the hinge loss")}),
    Loss(
        "cross-entropy",
        "cross-entropy with an offset",
        offset_cross_entropy,
        {
            "temperature": Option(0.125, "temperature of the cross-entropy"),
            "offset": Option(0.7071, "offset of the cross-entropy: the margin that it asks for"),
        },
    ),
)
LOSSES = {loss.name: loss for loss in _ALL}
