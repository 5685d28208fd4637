"""Differentiable functions that cost little to call."""

from typing import Any

import torch


class Function(torch.autograd.Function):
    """`torch.autograd.Function` without the look at its own signature in every call, which takes longer than a small layer.

    torch's `apply` binds default arguments through `inspect.signature` each time; ours have none.
    """

    @classmethod
    def apply(cls, *arguments: Any) -> Any:
        if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
            return super().apply(*arguments)  # type: ignore[no-untyped-call]
        return super(torch.autograd.Function, cls).apply(*arguments)  # type: ignore[misc]
