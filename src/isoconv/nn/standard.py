"""An ordinary convolution with the interface of the others, for comparison."""

from torch import Tensor

from isoconv.nn.convolution import Conv2dWithKernel


class StandardConv2d(Conv2dWithKernel):
    """An unconstrained convolution: not 1-Lipschitz. Arguments as for `torch.nn.Conv2d`, with "same" padding."""

    @property
    def weight(self) -> Tensor:
        return self.kernel

    def _sources(self) -> tuple[Tensor, ...]:
        return ()  # nothing is built
