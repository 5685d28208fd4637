"""Optimisers for constrained layers: steepest descent under the operator norm, for weights on the orthogonal manifold."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from isoconv.errors import require
from isoconv.linalg.orthogonalisation import descend

__all__ = ["SteepestDescent"]


class SteepestDescent(Optimizer):
    """Matrices move along the momentum with its singular values set to one (the paper's Lemma A.1); vectors by Adam.

    A step of learning rate `lr` moves a matrix by `lr` in operator norm, whatever the size of the gradient, so one rate
    suits layers of every shape. isoconv's layers come back to the manifold by themselves at the next training pass.

    Parameters with two dimensions are matrices; with three, batches of matrices; with four or five, convolution
    kernels, taken as (c_out, everything else). Parameters with fewer dimensions (biases) take Adam steps of `vector_lr`.

    lr : the step's operator norm; a float, or a tensor so that a captured CUDA graph follows a schedule
    momentum : the share of the old momentum that stays
    half : compute the directions of large matrices in bfloat16; parameters and momentum stay as they are
    vector_lr : Adam's learning rate for vectors; follows the schedule of `lr` in proportion when given as None
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 0.01,
        momentum: float = 0.9,
        vector_lr: float | None = None,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        steps: int = 3,
        half: bool = False,
    ) -> None:
        for rate in (lr, 0 if vector_lr is None else vector_lr):
            require(isinstance(rate, Tensor) or 0 <= rate < math.inf, "a learning rate of at least 0", rate)
        fading = all(0 <= beta < 1 for beta in betas) and eps >= 0
        require(fading, "betas in [0, 1) and eps of at least 0", f"{betas} and {eps}")
        require(0 <= momentum < 1, "momentum in [0, 1)", momentum)
        require(steps >= 1, "at least one step", steps)
        defaults = {"lr": lr, "momentum": momentum, "vector_lr": vector_lr, "betas": betas, "eps": eps, "steps": steps}
        super().__init__(params, {**defaults, "half": half})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            self.update(group, group["params"])
        return loss

    @torch.no_grad()
    def update(self, group: dict[str, Any], parameters: Iterable[Tensor]) -> None:
        """Take the step of some parameters of a group alone: those of them that have a gradient."""
        moving = [p for p in parameters if p.grad is not None and p.numel()]
        matrices, vectors = [p for p in moving if p.dim() >= 2], [p for p in moving if p.dim() < 2]
        if matrices:
            for p in matrices:
                if not self.state[p]:
                    self.state[p]["momentum"] = torch.zeros_like(p)
            buffers = [self.state[p]["momentum"] for p in matrices]
            for p, buffer in zip(matrices, buffers, strict=True):
                torch.add(p.grad, buffer, alpha=group["momentum"], out=buffer)  # type: ignore[arg-type]
                self._move_matrix(p, buffer, group)
        for kind in dict.fromkeys((p.device, p.dtype) for p in vectors):
            self._move_vectors([p for p in vectors if (p.device, p.dtype) == kind], group)

    def _move_matrix(self, p: Tensor, momentum: Tensor, group: dict[str, Any]) -> None:
        precise = momentum.to(torch.promote_types(momentum.dtype, torch.float32))
        matrix = precise.flatten(1) if p.dim() > 3 else precise
        moved = p.to(matrix.dtype).contiguous()  # the parameter itself, unless it is in half precision or strided
        descend(moved.view(matrix.shape), matrix, group["lr"], group["steps"], group.get("half", False))
        if moved is not p:
            p.copy_(moved)

    def _move_vectors(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        """Adam, for vectors of one dtype and device. Step counts live there too, so that a captured graph advances them."""
        for p in parameters:
            if not self.state[p]:
                precise = torch.promote_types(p.dtype, torch.float32)
                self.state[p]["step"] = torch.zeros((), device=p.device, dtype=torch.float64)
                self.state[p]["first"] = torch.zeros_like(p, dtype=precise)
                self.state[p]["second"] = torch.zeros_like(p, dtype=precise)
            # `load_state_dict` leaves a count where it was read to; there a captured graph could not advance it.
            self.state[p]["step"] = self.state[p]["step"].to(p.device)
        gradients = [p.grad.to(self.state[p]["first"].dtype) for p in parameters if p.grad is not None]
        counts, first, second = ([self.state[p][key] for p in parameters] for key in ("step", "first", "second"))
        beta1, beta2 = group["betas"]
        rate = group["lr"] * 0.1 if group["vector_lr"] is None else group["vector_lr"]
        torch._foreach_add_(counts, 1)
        torch._foreach_lerp_(first, gradients, 1 - beta1)
        torch._foreach_mul_(second, beta2)
        torch._foreach_addcmul_(second, gradients, gradients, 1 - beta2)
        # The rest in one piece: vectors are short and many, and on a GPU every operation on one is a kernel.
        lengths = [p.numel() for p in parameters]
        count = torch.cat([one.expand(n) for one, n in zip(counts, lengths, strict=True)])
        m, v = (torch.cat([one.flatten() for one in ones]) for ones in (first, second))
        size, root = rate / (1 - beta1**count), (1 - beta2**count).sqrt()
        change = size.to(m.dtype) * m / (v.sqrt() / root.to(v.dtype) + group["eps"])
        changes = [one.view_as(p).to(p.dtype) for one, p in zip(change.split(lengths), parameters, strict=True)]
        torch._foreach_sub_(parameters, changes)
