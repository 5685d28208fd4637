"""Convolutions whose constraint is made for one image size."""

from torch import Tensor

from isoconv.errors import IsoconvError
from isoconv.nn.convolution import Conv2dWithKernel


class SizedConv2d(Conv2dWithKernel):
    """A convolution that is told the spatial size of its input, and refuses another: its norm there is not known."""

    def _set_input_size(self, input_size: int | tuple[int, int]) -> None:
        size = tuple(input_size) if isinstance(input_size, (tuple, list)) else (input_size, input_size)
        if len(size) != 2 or any(not isinstance(n, int) or n < 1 for n in size):
            raise IsoconvError(f"Expected input_size to be a number or (height, width). Got {input_size!r}.")
        if any(n % self.stride for n in size):
            raise IsoconvError(
                f"Expected an input_size that the stride {self.stride} divides. Got {size[0]}×{size[1]}."
            )
        self.input_size = size

    @property
    def convolved_size(self) -> tuple[int, int]:
        """The size of the image that is convolved, after downsampling."""
        return self.input_size[0] // self.stride, self.input_size[1] // self.stride

    def _check_input_size(self, batch: Tensor) -> None:
        if tuple(batch.shape[2:]) != self.input_size:
            got = "×".join(str(n) for n in batch.shape[2:])
            raise IsoconvError(
                f"{type(self).__name__}: Expected images of size {self.input_size[0]}×{self.input_size[1]}, "
                f"for which its norm is constrained. Got {got}."
            )

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, input_size={self.input_size}"
