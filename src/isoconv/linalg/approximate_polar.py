"""The direction of steepest descent under the operator norm: a matrix with all its singular values set to one.

The paper's Lemma ("Steepest descent by matrix 2-norm"). Unlike `polar`, a few steps are enough here: a direction need
not be orthonormal to the last bit, and a singular value that is a hundredth of the largest says little anyway.
"""

import torch
from torch import Tensor

from isoconv.linalg.gram import add_product, as_tall, frobenius, identity_like
from isoconv.linalg.minimax import minimax_schedule

_LOWEST = 0.01  # singular values from here on, relative to the largest, come out near 1


def approximate_polar(matrix: Tensor, steps: int = 4) -> Tensor:
    """About U Vᵀ for each matrix U Σ Vᵀ of a batch (…, m, n), by `steps` minimax quintics; never looks at the numbers.

    A zero matrix stays zero. Works in the precision of its input; may be captured in a CUDA graph or compiled.
    """
    tall, wide = as_tall(matrix)
    if tall.numel() == 0:
        return matrix
    tiny = torch.finfo(tall.dtype).tiny
    tall = tall / tall.abs().amax(dim=(-2, -1), keepdim=True).clamp_min(tiny)
    gram = tall.mT @ tall
    # ‖G²‖_F^½ bounds the largest eigenvalue of G. A little more than rounding is added to the diagonal: an eigenvalue
    # that rounding made negative would grow under the steps, where every honest one goes to 1.
    bound = (frobenius(gram @ gram).sqrt()[..., None, None] * 1.02).clamp_min(tiny)
    eye = identity_like(gram)
    gram = gram / bound + tall.shape[-1] * torch.finfo(tall.dtype).eps * eye
    total: Tensor | None = None
    for k, (a, b, c) in enumerate(minimax_schedule(_LOWEST, steps=steps), start=1):
        step = add_product(a * eye + b * gram, gram, gram, c)
        total = step if total is None else total @ step
        if k < steps:
            gram = step @ gram @ step
    result = tall @ (eye if total is None else total) / bound.sqrt()
    return result.mT if wide else result
