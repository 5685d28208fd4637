"""Losses that ask for a margin, so that there is something to certify."""

import torch
from torch import Tensor
from torch.nn import functional as F


def hinge_loss(logits: Tensor, labels: Tensor, margin: float) -> Tensor:
    """Multi-class hinge, Σ_j max(0, margin − y_t + y_j) over the classes j ≠ t, mean over the batch and over all classes."""
    loss = F.multi_margin_loss(logits, labels, margin=margin)
    return torch.where(torch.isfinite(logits).all(), loss, torch.nan)  # torch's own takes NaN for a loss of zero


def offset_cross_entropy(logits: Tensor, labels: Tensor, temperature: float, offset: float) -> Tensor:
    """Cross-entropy of (y − offset·e_t)/temperature, times the temperature.

    The offset is taken from the right class's logit, so that the loss goes on asking for a margin of that size; the
    temperature sets how sharply. A 1-Lipschitz network cannot enlarge its logits at will, so both matter.
    """
    offsets = F.one_hot(labels, logits.shape[1]).to(logits.dtype) * offset
    return F.cross_entropy((logits - offsets) / temperature, labels) * temperature


def margins(logits: Tensor, labels: Tensor) -> Tensor:
    """y_t − max_{j ≠ t} y_j: positive where the label wins, and by how much; ties and NaN are not positive."""
    right = logits.gather(1, labels[:, None])[:, 0]
    others = logits.scatter(1, labels[:, None], -torch.inf)
    return right - others.amax(dim=1)
