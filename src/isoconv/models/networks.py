"""The networks of the paper, a few lines each: Small, Large and FC-3 (its appendix E), the critic, and those of its WGAN-GP.

And the network in which "1-Lipschitz Layers Compared" (Prach et al. 2024) compares methods, and networks of rotations and
pixel shifts: BCOP left in factors, which are matrix products and scale as those do.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from isoconv.errors import require
from isoconv.nn import (
    BCOPConv2d,
    ChannelShift,
    HalfAbs,
    InvertibleDownsampling,
    L2NormPool2d,
    MaxMin,
    Normalize,
    OrthogonalLinear,
    PositionBias,
    Slice,
)
from isoconv.nn.methods import ACTIVATIONS, METHODS


class Classifier(nn.Sequential):
    """Convolutions (channels, kernel size, stride), hidden linear layers (features), and one to the classes.

    conv : a name of `isoconv.nn.METHODS`; "standard" is unconstrained, with ordinary linear layers
    activation : a name of `isoconv.nn.methods.ACTIVATIONS`
    orthogonalisation : "manifold" (fast) or "bjorck" (the paper's own), see `isoconv.nn.built_weight`
    patch : squares of patch×patch pixels become channels in front of the first convolution: for large images
    """

    convolutions: ClassVar[Sequence[tuple[int, int, int]]] = ()
    hidden: ClassVar[Sequence[int]] = ()

    def __init__(
        self,
        input_shape: Sequence[int],
        classes: int = 10,
        conv: str = "bcop",
        activation: str = "maxmin",
        orthogonalisation: str = "manifold",
        patch: int = 1,
    ) -> None:
        require(isinstance(classes, int) and classes >= 1, "at least one class", repr(classes))
        require(isinstance(patch, int) and patch >= 1, "a patch of at least one pixel", repr(patch))
        require(conv in METHODS, f"conv to be one of {', '.join(METHODS)}", repr(conv))
        require(activation in ACTIVATIONS, f"activation to be one of {', '.join(ACTIVATIONS)}", repr(activation))
        has_them = len(self.convolutions) > 0 or conv in ("bcop", "standard")
        require(has_them, f"conv to be bcop or standard in {type(self).__name__}, which has no convolutions", conv)
        method, shape = METHODS[conv], check_shape(input_shape)
        _check_size(shape[1:], math.prod(stride for *_, stride in self.convolutions), patch)
        layers: list[nn.Module] = [InvertibleDownsampling(patch)] if patch > 1 else []
        shape = shape[0] * patch**2, shape[1] // patch, shape[2] // patch
        for out_channels, kernel_size, stride in self.convolutions:
            channels, height, width = shape
            size = height, width
            convolution = method.make(
                channels, out_channels, kernel_size, stride, orthogonalisation=orthogonalisation, input_size=size
            )
            layers += [convolution, ACTIVATIONS[activation].make(out_channels)]
            shape = out_channels, height // stride, width // stride
        layers.append(nn.Flatten())
        sizes = [math.prod(shape), *self.hidden]
        for in_features, out_features in itertools.pairwise(sizes):
            linear = method.make_linear(in_features, out_features, orthogonalisation)
            layers += [linear, ACTIVATIONS[activation].make(out_features)]
        super().__init__(*layers, method.make_linear(sizes[-1], classes, orthogonalisation))


def check_shape(input_shape: Sequence[int]) -> tuple[int, int, int]:
    """Return (channels, height, width). Raise if it is something else."""
    shape = tuple(input_shape)
    right = len(shape) == 3 and all(isinstance(n, int) and n >= 1 for n in shape)
    require(right, "input_shape (channels, height, width)", repr(input_shape))
    return shape[0], shape[1], shape[2]


def _check_size(size: tuple[int, int], strides: int, patch: int = 1) -> None:
    """Raise unless strides × patch divides both sides of an image; name the sizes next to it that would do."""
    unit = strides * patch
    around = [[max(1, count) * unit for count in (side // unit, -(-side // unit))] for side in size]
    near = dict.fromkeys(f"{height}×{width}" for height, width in zip(*around, strict=True))
    expected = f"a height and a width that are divisible by {unit}, such as {' or '.join(near)}"
    got = "×".join(map(str, size)) + f" with --patch {patch}" * (patch > 1)
    require(all(side % unit == 0 for side in size), expected, got)


class Small(Classifier):
    """Two convolutions (k4 s2 → 16, k4 s2 → 32) and two linear layers (100, classes). Arguments as for `Classifier`."""

    convolutions = ((16, 4, 2), (32, 4, 2))
    hidden = (100,)


class Large(Classifier):
    """Four convolutions (k3 → 32, k4 s2 → 32, k3 → 64, k4 s2 → 64) and three linear layers (512, 512, classes)."""

    convolutions = ((32, 3, 1), (32, 4, 2), (64, 3, 1), (64, 4, 2))
    hidden = (512, 512)


class FC3(Classifier):
    """Fully connected, three hidden layers of 1,024. Its layers are orthogonal, or ordinary with `conv="standard"`."""

    hidden = (1024, 1024, 1024)


class DCGANCritic(Classifier):
    """The critic of the paper's Wasserstein experiments: k4 s2 → 64, 128, 256, 512, for images that 16 divides.

    The linear layer to one number is what the paper calls its fifth convolution: it covers the whole 4×4 image that a
    64×64 one leaves.
    """

    convolutions = tuple((channels, 4, 2) for channels in (64, 128, 256, 512))

    def __init__(
        self,
        input_shape: Sequence[int],
        conv: str = "bcop",
        activation: str = "maxmin",
        orthogonalisation: str = "manifold",
    ) -> None:
        super().__init__(input_shape, 1, conv, activation, orthogonalisation)


class Generator(nn.Sequential):
    """From z ~ U[0, 1)^62 to an image in [−1, 1]: two linear layers, two transposed convolutions, for sizes that 4 divides.

    It normalises over its batch whenever it runs, in evaluation too: a batch of images is one draw of dependent images.
    """

    def __init__(self, image_shape: Sequence[int], latent: int = 62) -> None:
        channels, height, width = check_shape(image_shape)
        _check_size((height, width), 4)
        small = 32 * (height // 4) * (width // 4)
        super().__init__(
            nn.Linear(latent, 1024),
            nn.BatchNorm1d(1024, track_running_stats=False),
            nn.ReLU(),
            nn.Linear(1024, small),
            nn.BatchNorm1d(small, track_running_stats=False),
            nn.ReLU(),
            nn.Unflatten(1, (32, height // 4, width // 4)),
            nn.ConvTranspose2d(32, 64, 4, 2, 1),
            nn.BatchNorm2d(64, track_running_stats=False),
            nn.ReLU(),
            nn.ConvTranspose2d(64, channels, 4, 2, 1),
            nn.Tanh(),
        )
        self.latent, self.image_shape = latent, (channels, height, width)
        _start(self)

    def noise(self, count: int, generator: torch.Generator) -> Tensor:
        """`count` draws of z, on the generator's device."""
        return torch.rand(count, self.latent, generator=generator, device=generator.device)


class Discriminator(nn.Sequential):
    """From an image to one number, unconstrained: two convolutions, two linear layers, LeakyReLU 0.2."""

    def __init__(self, image_shape: Sequence[int]) -> None:
        channels, height, width = check_shape(image_shape)
        _check_size((height, width), 4)
        super().__init__(
            nn.Conv2d(channels, 64, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(64, 32, 4, 2, 1),
            nn.BatchNorm2d(32),
            nn.LeakyReLU(0.2),
            nn.Flatten(),
            nn.Linear(32 * (height // 4) * (width // 4), 1024),
            nn.BatchNorm1d(1024),
            nn.LeakyReLU(0.2),
            nn.Linear(1024, 1),
        )
        _start(self)


def _start(network: nn.Module) -> None:
    """All weights N(0, 0.02²), all biases zero, as the paper's code has it; batch normalisation as torch does."""
    for module in network.modules():
        if isinstance(module, (nn.Linear, nn.Conv2d, nn.ConvTranspose2d)):
            nn.init.normal_(module.weight, 0.0, 0.02)
            assert module.bias is not None
            nn.init.zeros_(module.bias)


class ConvNet(nn.Sequential):
    """The network of "1-Lipschitz Layers Compared": blocks of five 3×3 convolutions and MaxMin, each half as wide and high.

    A 1×1 convolution from the image to `width` channels and MaxMin; then blocks, each of which ends by keeping half of the
    pairs that MaxMin sorts, and the pixels of 2×2 squares become channels, so that their number doubles; at last
    orthonormal rows, one per class. On images of 2×2 convolutions are 1×1. `width` is 16, 32, 64, 128 for XS, S, M, L.

    centre : the mean of each channel of the images, which is subtracted first
    """

    def __init__(
        self,
        input_shape: Sequence[int],
        classes: int = 10,
        conv: str = "bcop",
        width: int = 32,
        depth: int = 5,
        centre: Sequence[float] | None = None,
    ) -> None:
        channels, height, side = check_shape(input_shape)
        require(conv in METHODS, f"conv to be one of {', '.join(METHODS)}", repr(conv))
        require(height == side >= 2 and side & (side - 1) == 0, "square images, 2, 4, 8, … pixels wide", input_shape)
        require(isinstance(width, int) and width >= 4 and width % 4 == 0, "a width that 4 divides", repr(width))
        options: dict[str, Any] = {"orthogonalisation": "manifold"}
        method = METHODS[conv]
        layers: list[nn.Module] = [] if centre is None else [Normalize(tuple(centre), (1.0,) * channels)]
        layers += [method.make(channels, width, 1, 1, input_size=(side, side), **options), MaxMin()]
        while side > 1:
            taps = 3 if side > 2 else 1
            for _ in range(depth):
                layers += [method.make(width, width, taps, 1, input_size=(side, side), **options), MaxMin()]
            # Channels i and i + width/2 are a pair, so that every second channel is every second pair.
            layers += [Slice(1, 0, width, 2), InvertibleDownsampling(2)]
            width, side = 2 * width, side // 2
        super().__init__(*layers, nn.Flatten(), method.make_linear(width, classes, **options))


# Rotations and shifts ------------------------------------------------------------------------------------------------


class ShiftNet(nn.Sequential):
    """A classifier made of blocks σ(M·S(R(x + p)) + b), in stages, with a norm over positions and an orthonormal head.

    R and M are orthogonal matrices that act on the channels, S moves some channels by one pixel (`ChannelShift`), p is a
    number per position, b one per channel, and σ takes the absolute value of half the channels. A fresh block rotates,
    shifts and rotates back: M is the inverse of R. Where the first stage has channels for it, each pixel comes there with
    its four neighbours, all divided by √5.

    input_shape : (channels, height, width); images whose size `patch` does not divide are padded with zeros
    channels : of the last stage; each stage before has a quarter of the next one's
    blocks : how many blocks each stage has
    patch : the last stage sees patches of patch×patch pixels as one position; each stage before, of half the side
    share : of the channels that move in each of the four directions
    """

    def __init__(
        self,
        input_shape: Sequence[int],
        classes: int = 10,
        channels: int = 1024,
        blocks: Sequence[int] = (3, 8),
        patch: int = 4,
        share: float = 1 / 8,
        orthogonalisation: str = "manifold",
    ) -> None:
        width, *size = check_shape(input_shape)
        require(isinstance(classes, int) and classes >= 1, "at least one class", repr(classes))
        full = bool(blocks) and all(isinstance(count, int) and count >= 1 for count in blocks)
        require(full, "at least one block in every stage", f"blocks={blocks!r}")
        halvings = len(blocks) - 1
        for name, value, unit in (("patch", patch, 2**halvings), ("channels", channels, 4**halvings)):
            divides = isinstance(value, int) and value >= 1 and value % unit == 0
            require(divides, f"{name} that {unit} divides, for {len(blocks)} stages", repr(value))
        layers: list[nn.Module] = []
        if any(side % patch for side in size):
            missing = [-side % patch for side in size]
            layers.append(nn.ZeroPad2d((0, missing[1], 0, missing[0])))
            size = [side + more for side, more in zip(size, missing, strict=True)]
        factor = patch >> halvings  # of the pixels that become channels in front of a stage
        for stage, count in enumerate(blocks):
            wide = channels >> 2 * (halvings - stage)
            if stage == 0 and factor > 1 and 5 * width * factor**2 <= wide:
                layers += _neighbours(width, orthogonalisation)
                width *= 5
            layers += [InvertibleDownsampling(factor)] if factor > 1 else []
            width, size, factor = width * factor**2, [side // factor for side in size], 2
            layers += [_embedding(width, wide, orthogonalisation)] if width != wide else []
            width = wide
            for _ in range(count):
                layers += _block(wide, size, share, orthogonalisation)
        head = OrthogonalLinear(channels, classes, orthogonalisation=orthogonalisation)
        super().__init__(*layers, L2NormPool2d(), head)


def _neighbours(width: int, orthogonalisation: str) -> list[nn.Module]:
    """Return an isometry that puts a pixel's neighbours below, above, to the right and to the left beside it."""
    copies = BCOPConv2d(width, 5 * width, 1, bias=False, orthogonalisation=orthogonalisation, frozen=True)
    with torch.no_grad():
        copies.O.copy_(torch.eye(width).repeat(1, 5) / 5**0.5)
    return [copies, ChannelShift(1 / 5)]


def _embedding(width: int, channels: int, orthogonalisation: str) -> nn.Module:
    """Return the map from the channels of a patch to those of the first stage.

    Where a patch has fewer, it adds zeros and is not trained: the first rotation is. The position bias of the first
    block fills them, which is how that block learns where it is.
    """
    layer = BCOPConv2d(width, channels, 1, bias=False, orthogonalisation=orthogonalisation, frozen=width < channels)
    if layer.frozen:
        nn.init.eye_(layer.O)
    return layer


def _block(channels: int, size: Sequence[int], share: float, orthogonalisation: str) -> list[nn.Module]:
    first = BCOPConv2d(channels, channels, 1, bias=False, orthogonalisation=orthogonalisation)
    second = BCOPConv2d(channels, channels, 1, orthogonalisation=orthogonalisation)
    assert second.bias is not None
    with torch.no_grad():
        nn.init.zeros_(second.bias)
        second.O.copy_(first.O.mT)
    return [PositionBias(size[0], size[1]), first, ChannelShift(share), second, HalfAbs()]
