"""One-sided spectral normalisation: divide the kernel by the norm of its convolution, where that exceeds 1."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from isoconv.errors import require
from isoconv.linalg.matrices import full_precision, without_overflow
from isoconv.nn.built_weight import constraint_dtype
from isoconv.nn.convolution import SizedConv2d, convolve_same, same_padding

PROJECTIONS = ("forward", "after_update")


class OSSNConv2d(SizedConv2d):
    """A convolution divided by max(1, σ̂), σ̂ from power iterations on the convolution itself at full image size.

    Arguments as for `torch.nn.Conv2d`, with "same" padding, and these:

    input_size : the height and width of the layer's input
    power_iterations : how many a training pass (or a projection) adds, starting from the vector of the last one
    projection : "forward", the normalisation is part of the forward pass and the gradient flows through σ̂ (the paper
        found this better); or "after_update", the parameter itself is divided, by `project()` after each update

    A power iteration estimates the norm from below, so the layer's Lipschitz constant may exceed 1 a little.
    """

    vector: Tensor

    def __init__(
        self,
        *arguments: Any,
        input_size: int | tuple[int, int],
        power_iterations: int = 10,
        projection: str = "forward",
        **keywords: Any,
    ) -> None:
        require(projection in PROJECTIONS, f"projection to be one of {PROJECTIONS}", repr(projection))
        require(power_iterations >= 1, "at least one power iteration", power_iterations)
        super().__init__(*arguments, input_size=input_size, **keywords)
        self.power_iterations, self.projection = power_iterations, projection
        start = torch.randn(1, self.kernel_shape[1], *self.convolved_size).to(self.kernel)
        self.register_buffer("vector", start / torch.linalg.vector_norm(start))

    def power_iterate(self, iterations: int | None = None) -> None:
        """Sharpen the estimate of the norm by more iterations; changes only the stored vector."""
        iterations = self.power_iterations if iterations is None else iterations
        with torch.no_grad(), full_precision(self.kernel):
            self.vector.copy_(self._iterate(*self._precise_sources(), iterations))

    def project(self) -> None:
        """Divide the parameter by max(1, σ̂): what training calls after each update with `projection="after_update"`."""
        self.power_iterate()
        with torch.no_grad(), full_precision(self.kernel):
            self.kernel.copy_(self._normalise(*self._precise_sources()))

    def norm_estimate(self) -> float:
        """σ̂ of the parameter, from below, with the stored vector."""
        with torch.no_grad(), full_precision(self.kernel):
            return float(torch.linalg.vector_norm(self._convolve(self.kernel, self.vector)))

    def _sources(self) -> tuple[Tensor, ...]:
        return (self.kernel, self.vector)

    def _precise_sources(self) -> tuple[Tensor, Tensor]:
        dtype = constraint_dtype(self.kernel)
        return self.kernel.to(dtype), self.vector.to(dtype)

    def _before_training_forward(self) -> None:
        if self.projection == "forward":
            self.power_iterate()

    def _settle(self, *sources: Tensor, steps: int | None = None) -> tuple[Tensor, ...]:
        if self.projection == "after_update" or self.training:
            return sources
        # The parameters may have moved since the vector was stored. It stays as it is: evaluation has no memory.
        return sources[0], self._iterate(sources[0].detach(), sources[1], self.power_iterations)

    def _build(self, kernel: Tensor, vector: Tensor) -> Tensor:
        return kernel.clone() if self.projection == "after_update" else self._normalise(kernel, vector)

    def _normalise(self, kernel: Tensor, vector: Tensor) -> Tensor:
        kernel = without_overflow(kernel)
        image = self._convolve(kernel, vector.detach())
        direction = F.normalize(image.detach().flatten(), dim=0).reshape(image.shape)
        return kernel / (direction * image).sum().clamp_min(1)

    def _convolve(self, kernel: Tensor, vector: Tensor) -> Tensor:
        return convolve_same(vector, kernel, None, self.padding_mode)

    def _iterate(self, kernel: Tensor, vector: Tensor, iterations: int) -> Tensor:
        """v ← AᵀAv / ‖AᵀAv‖, `iterations` times."""
        kernel = without_overflow(kernel)
        adjoint = kernel.transpose(0, 1).flip(2, 3)
        mirrored = [(after, before) for before, after in map(same_padding, kernel.shape[2:])]
        for _ in range(iterations):
            back = convolve_same(self._convolve(kernel, vector), adjoint, None, self.padding_mode, mirrored)
            vector = F.normalize(back.flatten(), dim=0).reshape(vector.shape)
        return vector
