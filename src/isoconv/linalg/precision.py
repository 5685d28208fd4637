"""Which precision matrices are multiplied in, for a few lines at a time."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor


def without_autocast(tensor: Tensor) -> AbstractContextManager[Any]:
    """No autocast of what is like `tensor`. Where there is none, no context of torch's is entered, which takes a while."""
    device = tensor.device.type
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()


@contextmanager
def full_precision(tensor: Tensor) -> Iterator[None]:
    """No autocast, and no TF32 in matrix products and convolutions, for tensors like this one."""
    with without_autocast(tensor), matmul_precision(tensor, "highest"):
        if not tensor.is_cuda or torch.compiler.is_compiling() or not torch.backends.cudnn.allow_tf32:
            yield
            return
        torch.backends.cudnn.allow_tf32 = False
        try:
            yield
        finally:
            torch.backends.cudnn.allow_tf32 = True


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
