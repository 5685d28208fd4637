"""Which precision a GPU multiplies float32 matrices in, for a few lines at a time."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


@contextmanager
def matmul_precision(tensor: Tensor, precision: str) -> Iterator[None]:
    """float32 products of matrices like `tensor` in "highest" (float32) or "high" (TF32) precision within this context.

    TF32 keeps ten bits: enough for a direction or for a small correction, never for what decides orthonormality. It
    changes nothing on a CPU, nor in a compiled function, which makes its own choice.
    """
    before = torch.get_float32_matmul_precision() if tensor.is_cuda and not torch.compiler.is_compiling() else precision
    if before == precision:
        yield
        return
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
