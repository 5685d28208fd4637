"""Normalisation that keeps networks 1-Lipschitz: means are subtracted, nothing is divided by a deviation."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from isoconv.errors import IsoconvError, is_number, is_whole, require
from isoconv.nn.activations import check_batch, is_axis
from isoconv.nn.graph import Described


class BatchCentering(Described):
    """Subtract each channel's mean, and add a learned bias: of the batch in training, the running mean in evaluation.

    So in evaluation it is a translation. `isoconv.plain` folds it into the bias of a layer in front of it. Works on
    (N, C, …). Arguments as for `nn.BatchNorm2d`; the running mean begins at 0 and moves by `momentum` of the way to the
    mean of each batch.
    """

    running_mean: Tensor
    bias: nn.Parameter | None

    def __init__(
        self,
        num_features: int,
        momentum: float = 0.1,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        require(is_whole(num_features, 1), "at least one feature", repr(num_features))
        require(is_number(momentum) and 0 <= momentum <= 1, "a momentum from 0 to 1", repr(momentum))
        self.num_features, self.momentum = num_features, float(momentum)
        zeros = torch.zeros(num_features, device=device, dtype=dtype)
        self.register_buffer("running_mean", zeros)
        self.register_parameter("bias", nn.Parameter(zeros.clone()) if bias else None)

    def forward(self, x: Tensor) -> Tensor:
        mean = self.running_mean
        if self.training and x.numel() > 0:
            check_batch(x, self.num_features, "BatchCentering")
            mean = x.mean(list(range(2 - x.dim(), 1))).to(mean.dtype)
            self.running_mean.lerp_(mean.detach(), self.momentum)
        return centre_channels(x, mean, self.bias)


class LayerCentering(Described):
    """Subtract the mean over all entries of a sample, or over the axes `dim`: an orthogonal projection, so 1-Lipschitz.

    `dim` counts the batch, which is axis 0 and is left alone: 1 is the mean over channels at each position, (2, 3) that of
    each channel over an image.
    """

    def __init__(self, dim: int | Sequence[int] | None = None) -> None:
        super().__init__()
        axes = [dim] if isinstance(dim, int) else dim
        whole = axes is None or all(map(is_axis, axes))
        require(whole and (axes is None or len(axes) > 0), "axes that are not the batch's, which is 0", repr(dim))
        self.dim = None if axes is None else list(axes)

    def forward(self, x: Tensor) -> Tensor:
        return subtract_mean(x, self.dim)


@torch.fx.wrap
def centre_channels(x: Tensor, mean: Tensor, bias: Tensor | None) -> Tensor:
    """Return x − mean + bias, one number of each for each channel."""
    check_batch(x, mean.shape[0], "BatchCentering")
    precise = torch.promote_types(x.dtype, mean.dtype)
    shift = mean.to(precise) if bias is None else mean.to(precise) - bias.to(precise)
    return x - shift.to(x.dtype).view([-1] + [1] * (x.dim() - 2))


@torch.fx.wrap
def subtract_mean(x: Tensor, dim: list[int] | None) -> Tensor:
    """Return what `LayerCentering(dim)` does to `x`."""
    if not torch.jit.is_scripting():  # type: ignore[attr-defined]
        _check_axes(x, dim)
    return x - x.mean(list(range(1, x.dim())) if dim is None else dim, keepdim=True)


def _check_axes(x: Tensor, dim: list[int] | None) -> None:
    if not all(-x.dim() < axis < x.dim() for axis in dim or [1]):
        axes = "" if dim is None else f" with axes {dim} behind the first"
        raise IsoconvError(f"LayerCentering: Expected a batch{axes}. Got shape {tuple(x.shape)}.")
