"""Convolutions that are made frequency by frequency, for circular images of one size: the kernel is as large as the image.

Note [Frequencies]
On a torus of n pixels the convolution y_i = Σ_t W_t x_{i+t−⌊n/2⌋} multiplies the transformed image by one matrix for each
frequency, the conjugate of Ŵ(ω) = Σ_t W_t e^{−2πi⟨ω, t−⌊n/2⌋⟩/n}. The operator is orthogonal, or has norm at most 1, if each
of them does. So a method takes the transform of its small kernel to such matrices, and their inverse transform is
`weight`. What it does commutes with conjugation, so that the weight is real. Multiplying transforms is also how the layer
convolves: with a kernel as large as the image that is far cheaper. A kernel of one tap has the same matrix at every
frequency, a real one: it is made once, and is the weight.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from isoconv.errors import require
from isoconv.linalg.matrices import without_overflow
from isoconv.linalg.spectrum import fold_kernel
from isoconv.nn.built_weight import constraint_dtype
from isoconv.nn.convolution import SizedConv2d, same_padding
from isoconv.nn.downsampling import downsample


class TorusConv2d(SizedConv2d):
    """A convolution of circular images of one size, made frequency by frequency. Subclasses fill in `_transform`.

    Arguments as for `torch.nn.Conv2d`, with "same" padding, circular, and `input_size`, the height and width of the
    layer's input. The parameter `kernel` has k×k taps; `weight` covers the image, unless there is one tap. A parameter with
    entries beyond 2²⁰ stands for the multiple whose largest is 2²⁰.
    """

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        require(self.padding_mode == "circular", f"{type(self).__name__} with circular padding", self.padding_mode)
        one_tap = set(self.kernel_shape[2:]) == {1}
        self._torus = (1, 1) if one_tap else self.convolved_size
        self.kernel_shape = *self.kernel_shape[:2], *self._torus
        self._pads = tuple(map(same_padding, self._torus))

    def _make_parameters(self, factory: dict[str, Any]) -> None:
        taps = self.kernel_shape[2:]
        self.kernel = nn.Parameter(torch.empty(*self._channels(max(self.kernel_shape[:2])), *taps, **factory))

    def _channels(self, most: int) -> tuple[int, int]:
        """Return the channels of the parameter; `most` is the larger number of the weight's."""
        return most, most

    def _transform(self, symbol: Tensor) -> Tensor:
        """Return matrices of norm at most 1, (…, at least c_out, at least c_in), given the parameter's, complex or real."""
        raise NotImplementedError

    def _build(self, kernel: Tensor) -> Tensor:
        kernel, size, (c_out, c_in) = without_overflow(kernel), self._torus, self.kernel_shape[:2]
        if size == (1, 1):
            return self._transform(kernel.sum((2, 3)))[:c_out, :c_in, None, None]
        folded = fold_kernel(kernel, size)
        padded = F.pad(folded, (0, size[1] - folded.shape[3], 0, size[0] - folded.shape[2]))
        centred = padded.roll([-(taps // 2) for taps in kernel.shape[2:]], (2, 3))
        matrices = self._transform(torch.fft.rfft2(centred).permute(2, 3, 0, 1))[..., :c_out, :c_in]
        return torch.fft.irfft2(matrices.permute(2, 3, 0, 1), s=size).roll([n // 2 for n in size], (2, 3))

    def _apply_to(self, batch: Tensor) -> Tensor:
        if not batch.numel() or self._torus == (1, 1):  # libraries do not transform empty batches
            return super()._apply_to(batch)
        weight, size = self.weight, self.convolved_size
        dtype = constraint_dtype(weight)
        centred = weight.to(dtype).roll([-(n // 2) for n in size], (2, 3))
        waves = torch.fft.rfft2(downsample(batch, self.stride[0]).to(dtype)).permute(2, 3, 1, 0)
        product = torch.fft.rfft2(centred).permute(2, 3, 0, 1).conj() @ waves
        y = torch.fft.irfft2(product.permute(3, 2, 0, 1), s=size)
        return (y if self.bias is None else y + self.bias.to(dtype)[:, None, None]).to(batch.dtype)


def approach_unitary(matrices: Tensor, steps: int) -> Tensor:
    """Return matrices with singular values σ ≤ 1 closer to 1, by σ ← σ(3 − σ²)/2: none passes 1, and the gap is squared."""
    for _ in range(steps):
        matrices = 1.5 * matrices - 0.5 * matrices @ (matrices.mH @ matrices)
    return matrices
