"""Differentiable functions that cost little to call."""

from typing import Any

import torch


def call(function: type[torch.autograd.Function], *arguments: Any) -> Any:
    """`function.apply(*arguments)`, without the look at its signature that torch takes each time.

    That look, for default arguments, of which ours have none, takes longer than the products of a small layer.
    """
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return function.apply(*arguments)  # type: ignore[no-untyped-call]
    return super(torch.autograd.Function, function).apply(*arguments)  # type: ignore[misc]
