"""The Cayley transform of a convolution (Trockman and Kolter 2021), frequency by frequency."""

import torch
from torch import Tensor

from isoconv.linalg.matrices import identity_like
from isoconv.nn.torus import TorusConv2d, approach_unitary

_LARGEST = 100.0


class CayleyConv2d(TorusConv2d):
    """An orthogonal convolution: (I − A)(I + A)⁻¹ at each frequency, A = U − Uᴴ + VᴴV, and −2V(I + A)⁻¹ below it.

    U is the square part of the parameter's transform, V the rest. All singular values are 1. Arguments as for
    `torch.nn.Conv2d`, with "same" padding, circular, and `input_size`, the height and width of the layer's input.

    I + A has no singular value below 1, but a large A would cost digits. So a parameter whose transforms have Frobenius
    norms above 100 stands for the multiple with 100; and one step of Newton–Schulz squares the error of the inverse.
    """

    def _channels(self, most: int) -> tuple[int, int]:
        return self.kernel_shape[0], self.kernel_shape[1]

    def _transform(self, symbol: Tensor) -> Tensor:
        largest = torch.linalg.vector_norm(symbol, dim=(-2, -1)).amax()
        symbol = symbol * (_LARGEST / largest.clamp_min(_LARGEST))
        is_wide = symbol.shape[-2] < symbol.shape[-1]
        tall = symbol.mH if is_wide else symbol
        square, rest = tall.split([tall.shape[-1], tall.shape[-2] - tall.shape[-1]], dim=-2)
        identity = identity_like(square)
        inverse = torch.linalg.inv_ex(identity + square - square.mH + rest.mH @ rest).inverse
        isometry = approach_unitary(torch.cat([2 * inverse - identity, -2 * rest @ inverse], dim=-2), 1)
        return isometry.mH if is_wide else isometry
