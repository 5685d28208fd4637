"""Shared by the tests of layers and networks: tables of layers and shapes, dense Jacobians, an independent convolution."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import conv1d, conv2d, pixel_unshuffle, smooth_l1_loss

from isoconv.nn import (
    METHODS,
    BCOPConv1d,
    BCOPConv2d,
    BCOPConvTranspose2d,
    NormalisedLinear,
    OrthogonalLinear,
    OSSNConv2d,
    RKOConv2d,
)
from isoconv.nn.convolution import SizedConv2d
from isoconv.nn.methods import load
from isoconv.nn.torus import TorusConv2d

# Every 2-D convolution with every option that changes how its kernel is made.
CONVOLUTIONS: dict[str, partial[nn.Module]] = {
    **{name: partial(load(method.layer), **method.options) for name, method in METHODS.items()},
    "bcop-bjorck": partial(BCOPConv2d, orthogonalisation="bjorck"),
    "rko-bjorck": partial(RKOConv2d, orthogonalisation="bjorck"),
    "ossn-after-update": partial(OSSNConv2d, projection="after_update"),
}


def convolution(kind: str, c_in: int, c_out: int, k: int, stride: int, *size: int, **options: Any) -> nn.Module:
    """One of CONVOLUTIONS, for a row of SHAPES_2D."""
    make = CONVOLUTIONS[kind]
    sized = {"input_size": size} if issubclass(make.func, SizedConv2d) else {}
    return make(c_in, c_out, k, stride, **sized, **options)


# A small one of everything, and the shape of its input without the batch.
LAYERS: dict[str, tuple[Callable[..., nn.Module], tuple[int, ...]]] = {
    **{kind: (partial(convolution, kind, 2, 4, 3, 1, 5, 4), (2, 5, 4)) for kind in CONVOLUTIONS},
    **{
        f"{kind} s2": (partial(convolution, kind, 2, 6, 4, 2, 6, 4), (2, 6, 4))
        for kind in ("bcop", "rko", "ossn", "svcm", "aol", "soc", "cpl")
    },
    "bcop groups": (partial(BCOPConv2d, 4, 20, (3, 4), 2, groups=2), (4, 6, 4)),  # a stride that does not divide k
    "bcop dilated": (partial(BCOPConv2d, 2, 4, 3, dilation=(2, 1)), (2, 5, 4)),
    "bcop 1x1": (partial(BCOPConv2d, 3, 4, 1), (3, 2, 3)),
    "bcop square": (partial(BCOPConv2d, 4, 4, 2), (4, 3, 3)),
    "1d": (partial(BCOPConv1d, 3, 4, 3), (3, 7)),
    "1d s2": (partial(BCOPConv1d, 3, 4, 4, 2), (3, 6)),
    "1d ranks": (partial(BCOPConv1d, 4, 4, 4, ranks=[1, 3, 2]), (4, 5)),
    "1d-bjorck": (partial(BCOPConv1d, 4, 3, 3, orthogonalisation="bjorck"), (4, 5)),
    "transposed": (partial(BCOPConvTranspose2d, 4, 3, 3), (4, 5, 4)),
    "transposed s2": (partial(BCOPConvTranspose2d, 6, 2, 4, 2), (6, 2, 3)),
    "transposed groups": (partial(BCOPConvTranspose2d, 4, 6, 3, 2, 1, 1, 2), (4, 3, 4)),
    "transposed-bjorck": (partial(BCOPConvTranspose2d, 3, 4, 2, orthogonalisation="bjorck"), (3, 3, 3)),
    "linear": (partial(OrthogonalLinear, 7, 5), (7,)),
    "linear tall": (partial(OrthogonalLinear, 4, 9), (4,)),
    "linear square": (partial(OrthogonalLinear, 6, 6), (6,)),
    "linear-bjorck": (partial(OrthogonalLinear, 7, 5, orthogonalisation="bjorck"), (7,)),
    "linear-normalised": (partial(NormalisedLinear, 7, 5), (7,)),
}


def is_manifold(name: str) -> bool:
    """Whether the layer of LAYERS keeps its own parameters orthonormal."""
    methods = [method.name for method in METHODS.values() if method.on_manifold]
    return name.split()[0] in (*methods, "1d", "transposed", "linear")


def is_built(name: str) -> bool:
    """Whether the layer of LAYERS computes its weight from its parameters (the others' weight is a parameter)."""
    return name.split()[0] not in ("svcm", "standard", "ossn-after-update")


def padding_modes(name: str) -> tuple[str, ...]:
    """How the convolution of LAYERS or CONVOLUTIONS may pad."""
    kind = CONVOLUTIONS.get(name.removesuffix(" s2"))
    return ("circular",) if kind is not None and issubclass(kind.func, TorusConv2d) else ("circular", "zeros")


def made(name: str, **options: Any) -> tuple[nn.Module, Tensor]:
    """A layer of LAYERS and a batch of two inputs for it."""
    factory, shape = LAYERS[name]
    return factory(**options), torch.randn(2, *shape, dtype=options.get("dtype"))


# (c_in, c_out, kernel_size, stride, height, width): channels less, equal, more, odd and 1; kernels odd and even, from 1,
# larger than the image; images odd, not square, of one pixel; strides 1, 2, 3.
SHAPES_2D = [
    *[(1, 1, 1, 1, 1, 1), (3, 5, 1, 1, 5, 4), (4, 4, 1, 1, 3, 3)],
    *[(1, 2, 2, 1, 4, 5), (4, 3, 2, 1, 5, 3), (2, 3, 4, 1, 6, 5), (1, 3, 6, 1, 7, 6)],
    *[(1, 1, 3, 1, 4, 4), (3, 5, 3, 1, 5, 4), (5, 3, 3, 1, 4, 5), (8, 8, 3, 1, 4, 4), (2, 3, 5, 1, 5, 5)],
    *[(2, 3, 3, 1, 1, 1), (2, 2, 4, 1, 2, 3), (2, 2, 7, 1, 3, 2), (1, 2, 9, 1, 2, 4)],  # larger than the image
    *[(16, 16, 3, 1, 5, 5), (32, 16, 2, 1, 3, 4)],  # as wide as layers of real networks
    *[(1, 4, 2, 2, 6, 4), (3, 5, 4, 2, 6, 6), (3, 1, 4, 2, 4, 6), (1, 5, 6, 2, 10, 6), (2, 9, 4, 2, 2, 2)],
    *[(1, 1, 3, 3, 6, 9), (2, 5, 6, 3, 6, 9), (1, 3, 9, 3, 3, 6)],
]


def named(rows: Sequence[Sequence[int]]) -> list[str]:
    """Test ids: "3-5-k4-s2-6x6" for (c_in, c_out, kernel_size, stride, height, width)."""
    return [f"{a}-{b}-k{k}-s{s}-" + "x".join(map(str, size)) for a, b, k, s, *size in rows]


def polar_by_svd(matrix: Tensor) -> Tensor:
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    return left @ right


def linear_part(layer: nn.Module, x: Tensor) -> Tensor:
    """The layer without its bias."""
    biases = {name: torch.zeros_like(p) for name, p in layer.named_parameters() if name == "bias"}
    return functional_call(layer, biases, (x,))


def jacobian(layer: nn.Module, *shape: int) -> Tensor:
    """The dense matrix of the layer's linear part, for one input of this shape: (outputs, inputs)."""
    size = math.prod(shape)
    p = next(layer.parameters())
    identity = torch.eye(size, dtype=p.dtype, device=p.device).reshape(size, *shape)
    return linear_part(layer, identity).detach().reshape(size, -1).T


def jacobian_at(module: nn.Module, x: Tensor) -> Tensor:
    """The dense Jacobian (outputs, inputs) of any module at one sample."""
    return torch.autograd.functional.jacobian(lambda z: module(z[None])[0].flatten(), x).reshape(-1, x.numel())


def singular_values(layer: nn.Module, *shape: int) -> Tensor:
    return torch.linalg.svdvals(jacobian(layer, *shape).double())


def padded(x: Tensor, taps: int | Sequence[int], mode: str = "circular") -> Tensor:
    """k // 2 pixels before and (k − 1) // 2 after, in each of the two (or, for (N, C, L), one) directions."""
    sizes = [taps] * (x.ndim - 2) if isinstance(taps, int) else taps
    for dim, k in enumerate(sizes, start=2):
        n = x.shape[dim]
        index = torch.arange(-(k // 2), n + (k - 1) // 2)
        taken = x.index_select(dim, index % n)
        inside = ((index >= 0) & (index < n)).to(x.dtype)
        x = taken if mode == "circular" else taken * inside.reshape(-1, *[1] * (x.ndim - 1 - dim))
    return x


def unshuffled(x: Tensor, stride: int) -> Tensor:
    if x.ndim == 4:
        return pixel_unshuffle(x, stride)
    N, C, L = x.shape  # (N, C, L) → (N, C·s, L/s), the position in the block running fastest among the channels
    return x.reshape(N, C, L // stride, stride).transpose(2, 3).reshape(N, C * stride, L // stride)


def convolved(x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, mode: str = "circular") -> Tensor:
    """The definition of every convolution of isoconv: unshuffle, pad, convolve with `weight`."""
    x = padded(unshuffled(x, stride), weight.shape[2:], mode)
    return conv2d(x, weight, bias) if x.ndim == 4 else conv1d(x, weight, bias)


def randomised(layer: nn.Module, gain: float = 3.0, seed: int = 0) -> nn.Module:
    """Normal entries in all parameters, large enough that every constraint has something to do."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in layer.parameters():
            p.copy_(gain * torch.randn(p.shape, generator=generator, dtype=torch.float64))
    return layer


def train(
    layer: nn.Module, shape: Sequence[int], steps: int, optimiser: type[torch.optim.Optimizer], **options: Any
) -> None:
    """Steps on a regression to random targets, with bounded gradients so that the bias does not run away."""
    generator = torch.Generator().manual_seed(1)
    p = next(layer.parameters())
    x = torch.randn(2, *shape, generator=generator, dtype=torch.float64).to(p.dtype)
    y = torch.randn(layer(x).shape, generator=generator, dtype=torch.float64).to(p.dtype)
    descent = optimiser([p for p in layer.parameters() if p.requires_grad], **options)
    layer.train()
    for _ in range(steps):
        descent.zero_grad()
        smooth_l1_loss(layer(x), y, reduction="sum").backward()
        descent.step()


def winding_number(kernel: Tensor) -> int:
    """Count how often det Σ_t W_t zᵗ of an orthogonal kernel turns around 0 while z turns around once; by no theorem."""
    n, _, K = kernel.shape
    angles = torch.arange(64 * n * K + 1, dtype=torch.float64) * 2 * torch.pi / (64 * n * K)
    powers = torch.exp(1j * angles[:, None] * torch.arange(K))
    determinant = torch.linalg.det(torch.einsum("fk,ijk->fij", powers, kernel + 0j))
    assert (determinant.abs() - 1).abs().max() < 1e-9
    turns = torch.angle(determinant[1:] / determinant[:-1]).sum() / (2 * torch.pi)
    assert abs(turns - turns.round()) < 1e-9
    return int(turns.round())


def imported(path: Any) -> Any:
    """Return the module in a file, such as an exported network."""
    spec = spec_from_file_location("exported_network", path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
