"""Linear layers of the field's methods: each is the convolution of its method with one tap, on images of one pixel."""

from typing import Any

from torch import Tensor, nn

from isoconv.errors import IsoconvError
from isoconv.nn.aol import AOLConv2d
from isoconv.nn.bro import BROConv2d
from isoconv.nn.built_weight import with_parameters
from isoconv.nn.cayley import CayleyConv2d
from isoconv.nn.convolution import Conv2dWithKernel, SizedConv2d, chain
from isoconv.nn.cpl import CPLConv2d
from isoconv.nn.potential import PotentialConv2d
from isoconv.nn.sll import SLLConv2d


class _OnePixel(Conv2dWithKernel):
    """Take (…, in_features), as `torch.nn.Linear` does. `options` are those of the convolution."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True, **options: Any) -> None:
        options |= {"input_size": 1} if isinstance(self, SizedConv2d) else {}
        super().__init__(in_features, out_features, 1, bias=bias, **options)
        self.in_features, self.out_features = in_features, out_features

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1:] != (self.in_features,):
            name = type(self).__name__
            raise IsoconvError(f"{name}: Expected input (…, {self.in_features}). Got shape {tuple(x.shape)}.")
        return super().forward(x.reshape(-1, self.in_features, 1, 1)).reshape(*x.shape[:-1], self.out_features)

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}, bias={self.bias is not None}"

    def plain(self) -> nn.Module:
        """The same function as `nn.Linear`, or as a `ConvexPotential2d` of images of one pixel."""
        if isinstance(self, PotentialConv2d):
            return chain(nn.Unflatten(-1, (self.in_features, 1, 1)), super().plain(), nn.Flatten(-3))
        linear = nn.Linear(self.in_features, self.out_features, bias=False, device="meta")
        return with_parameters(linear, self.evaluation_weight()[:, :, 0, 0], self.bias)


class AOLLinear(_OnePixel, AOLConv2d):
    """`torch.nn.Linear` with its columns divided by the roots of the row sums of |WᵀW|: norm at most 1."""


class CayleyLinear(_OnePixel, CayleyConv2d):
    """`torch.nn.Linear` whose weight is a Cayley transform: all singular values are 1."""


class BROLinear(_OnePixel, BROConv2d):
    """`torch.nn.Linear` whose weight is the reflection I − 2P, P a projector of a given `rank`: orthogonal."""


class SLLLinear(_OnePixel, SLLConv2d):
    """x − 2WᵀT⁻¹relu(Wx + b), rescaled by weighted row sums of |WWᵀ|: 1-Lipschitz. Replaces a layer and its activation."""


class CPLLinear(_OnePixel, CPLConv2d):
    """x − (2/‖W‖²)·Wᵀrelu(Wx + b): 1-Lipschitz. Replaces a linear layer and its activation."""
