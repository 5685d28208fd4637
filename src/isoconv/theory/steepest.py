"""Descent under the operator norm (the paper, appendix "Optimizing under spectral normalization").

Dividing a matrix by its spectral norm is a projection onto {‖A‖₂ ≤ 1} for the operator norm, not for the Frobenius
norm. Joined to the Euclidean gradient it can converge to a point that is no solution; joined to the steepest
direction of its own norm, it reaches the solution.
"""

import torch
from torch import Tensor

from isoconv.errors import IsoconvError


def steepest_direction(gradient: Tensor) -> Tensor:
    """−U·1[Λ ≠ 0]·Vᵀ for the gradient G = UΛVᵀ: the Lemma "Steepest descent by matrix 2-norm"; batched.

    Among all D with ‖D‖₂ ≤ 1 it minimises Tr(GDᵀ), and the minimum is −‖G‖_*, minus the sum of the singular values.
    Those below max(m, n)·eps·λ_max count as zero. A zero gradient gives a zero direction. In the precision of the
    gradient.
    """
    if gradient.dim() < 2 or not gradient.is_floating_point():
        raise IsoconvError(
            f"Expected a floating-point matrix (…, m, n). Got {gradient.dtype} of shape {tuple(gradient.shape)}."
        )
    if not bool(gradient.isfinite().all()):
        raise IsoconvError("Expected a finite gradient. Got infinities or NaN.")
    left, values, right = torch.linalg.svd(gradient, full_matrices=False)
    threshold = max(gradient.shape[-2:]) * torch.finfo(gradient.dtype).eps * values[..., :1]
    direction: Tensor = -(left * (values > threshold)[..., None, :]) @ right
    return direction


def spectrally_normalised(matrix: Tensor) -> Tensor:
    """A / max(1, ‖A‖₂): one-sided spectral normalisation."""
    norm: Tensor = torch.linalg.matrix_norm(matrix, ord=2)
    return matrix / norm.clamp_min(1.0)


def ascend(D: Tensor, start: Tensor, *, steepest: bool, rate: float = 0.1, steps: int = 500) -> Tensor:
    """Maximise Tr(ADᵀ) over ‖A‖₂ ≤ 1 from `start`, each step followed by spectral normalisation.

    The paper's counter-example is D = diag(2, 1), whose maximiser is I. With `steepest=False` each step is rate·D, the
    Euclidean gradient. A fixed point then satisfies A + rate·D = cA, so it is D/‖D‖₂ = diag(1, ½) wherever one starts.
    With `steepest=True` each step is rate times the Lemma's direction, and the fixed point is the polar factor of D: I.
    """
    if D.dim() != 2 or start.shape != D.shape:
        raise IsoconvError(f"Expected two matrices of one shape. Got {tuple(D.shape)} and {tuple(start.shape)}.")
    direction = -steepest_direction(D) if steepest else D
    A = start
    for _ in range(steps):
        A = spectrally_normalised(A + rate * direction)
    return A
