"""The direction of steepest descent under the operator norm: a matrix with all its singular values set to one.

The paper's Lemma ("Steepest descent by matrix 2-norm"). Unlike `polar`, a few steps are enough here: a direction need
not be orthonormal to the last bit, and a singular value that is a thirtieth of the largest says little anyway.
"""

import torch
from torch import Tensor

from isoconv.linalg.gram import add_product, as_tall, frobenius, identity_like, largest_entry
from isoconv.linalg.minimax import minimax_schedule
from isoconv.linalg.precision import matmul_precision, without_autocast

_LOWEST = 0.03  # singular values from here on, relative to the largest, come out near 1: within 4 % after 3 steps


def approximate_polar(matrix: Tensor, steps: int = 3) -> Tensor:
    """About U Vᵀ for each matrix U Σ Vᵀ of a batch (…, m, n), by `steps` minimax quintics; never looks at the numbers.

    A zero matrix stays zero. Works in the precision of its input; may be captured in a CUDA graph or compiled.
    """
    if matrix.numel() == 0:
        return matrix
    tall, root, scale, wide = _factors(matrix, steps)
    with without_autocast(tall), matmul_precision(tall, "high"):
        result = tall @ (root * scale)
    return result.mT if wide else result


def descend(point: Tensor, matrix: Tensor, rate: float | Tensor, steps: int = 3) -> None:
    """point −= rate · approximate_polar(matrix), in place, without the direction ever being in memory.

    Both are one matrix (m, n) or a batch (b, m, n), of one dtype.
    """
    if matrix.numel() == 0:
        return
    tall, root, scale, wide = _factors(matrix, steps)
    root = root * (scale * rate).to(root.dtype)
    left, right = (root.mT, tall.mT) if wide else (tall, root)
    with without_autocast(tall), matmul_precision(tall, "high"):
        if point.dim() == 2:
            point.addmm_(left, right, alpha=-1)
        else:
            point.baddbmm_(left, right, alpha=-1)


def _factors(matrix: Tensor, steps: int) -> tuple[Tensor, Tensor, Tensor, bool]:
    """A tall matrix, a small one and its scale, whose product is the direction, and whether that is to be transposed."""
    tall, wide = as_tall(matrix)
    tall = tall / largest_entry(tall).clamp_min(torch.finfo(tall.dtype).tiny)
    with without_autocast(tall), matmul_precision(tall, "highest"):
        gram = tall.mT @ tall
    # A direction may be off by ten bits; the Gram matrix of a small one may not.
    with without_autocast(tall), matmul_precision(tall, "high"):
        return tall, *_inverse_root(gram, steps), wide


def _inverse_root(gram: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """About G^(−½) but for its scale (…, 1, 1): minimax quintics for singular values from `_LOWEST` times the largest on."""
    # ‖G²‖_F^½ bounds the largest eigenvalue of G. A little more than rounding is added to the diagonal: an eigenvalue
    # that rounding made negative would grow under the steps, where every honest one goes to 1.
    eye = identity_like(gram)
    bound = (1.02 * frobenius(gram @ gram)[..., None, None].sqrt()).clamp_min(torch.finfo(gram.dtype).tiny)
    gram = torch.add(gram / bound, eye, alpha=gram.shape[-1] * torch.finfo(gram.dtype).eps)
    total: Tensor | None = None
    for k, (a, b, c) in enumerate(minimax_schedule(_LOWEST, steps=steps), start=1):
        curved = add_product(gram, gram, gram, c, b)  # the step multiplies by aI + this
        total = torch.add(curved, eye, alpha=a) if total is None else add_product(total, total, curved, 1, a)
        if k < steps:
            half = add_product(gram, curved, gram, 1, a)
            gram = add_product(half, half, curved, 1, a)
    assert total is not None
    return total, bound.rsqrt()
