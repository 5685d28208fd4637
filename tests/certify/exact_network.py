"""What the tests of certificates compare with: networks in exact rational arithmetic, and in any order of summation.

Nothing of isoconv but the types of its modules.
"""

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor, nn
from torch.nn.functional import pad

import isoconv
import isoconv.nn as ours
from isoconv.certify import Certifier
from isoconv.models import CONVOLUTIONS, ShiftNet, Small
from isoconv.nn.convolution import convolve_same

# Modules that only move numbers about, or put zeros between them.
MOVES = (
    *(nn.Identity, nn.Flatten, nn.Unflatten, nn.PixelShuffle, nn.PixelUnshuffle, nn.Upsample),
    *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.AlphaDropout, nn.FeatureAlphaDropout),
    *(nn.CircularPad1d, nn.CircularPad2d, nn.ReflectionPad1d, nn.ReflectionPad2d),
    *(ours.ChannelShift, ours.Slice, ours.Flip),
    *(nn.ReplicationPad1d, nn.ReplicationPad2d, nn.ZeroPad1d, nn.ZeroPad2d),
)
AFFINE = (nn.Linear, nn.Conv1d, nn.Conv2d)
METHODS = (*CONVOLUTIONS, "shift")  # of `trained_small`
FINE = 600  # bits behind the point of what is no fraction: far beyond every error that is measured
mpmath.mp.prec = 700


def exact(tensor: Tensor) -> np.ndarray:
    """The numbers of a floating-point tensor as fractions."""
    return _array([Fraction(value) for value in tensor.detach().double().flatten().tolist()], tuple(tensor.shape))


def _array(values: Iterable[Any], shape: Sequence[int]) -> np.ndarray:
    listed = list(values)
    result = np.empty(len(listed), dtype=object)
    result[:] = listed
    return result.reshape(tuple(shape))


def leaves(model: nn.Module) -> Iterator[nn.Module]:
    """The modules of nested Sequentials in the order in which they run."""
    if isinstance(model, nn.Sequential):
        for child in model:
            yield from leaves(child)
    else:
        yield model


def exact_logits(model: nn.Module, x: Tensor) -> list[Fraction]:
    """The plain network of `model` at one image, over the rationals."""
    values = exact(x)
    for module in leaves(isoconv.plain(model).eval()):
        values = exact_module(module, values)
    return list(values.ravel())


def exact_module(module: nn.Module, x: np.ndarray) -> np.ndarray:
    match module:
        case _ if isinstance(module, AFFINE):
            kernels, columns, shape = factors(module, x)
            y = _shifted(_multiply(exact(kernels), columns).reshape(shape), module.bias)
            return np.moveaxis(y, 0, -1) if isinstance(module, nn.Linear) else y
        case nn.ConvTranspose1d() | nn.ConvTranspose2d():
            twin = copy.deepcopy(module).double()
            twin.bias = None
            return _shifted(_apply(twin, x), module.bias)
        case ours.ConvexPotential2d():
            kernel = module.weight.detach().double()
            hidden = _apply(lambda basis: convolve_same(basis, kernel, None, module.padding_mode), x)
            active = np.maximum(_shifted(hidden, module.bias), 0)
            return x - _apply(lambda basis: convolve_same(basis, kernel, None, module.padding_mode), active, x.shape)
        case _ if type(module) in SMOOTH:
            return _array((_fraction(SMOOTH[type(module)](module, _real(v))) for v in x.ravel()), x.shape)
        case nn.Softmax():
            powers = _array((mpmath.exp(_real(v)) for v in x.ravel()), x.shape)
            shares = powers / powers.sum(axis=module.dim - (module.dim > 0), keepdims=True)
            return _array(map(_fraction, shares.ravel()), x.shape)
        case _ if (matrices := axis_matrices(module, x.shape[1:])) is not None:
            for axis, matrix in enumerate(matrices, start=1):
                x = np.moveaxis(np.tensordot(matrix, x, (1, axis)), 0, axis)
            return _rounded(x)
        case ours.MaxMin() | ours.GroupSort():
            axis = module.dim - 1 if module.dim > 0 else module.dim
            rows = np.moveaxis(x, axis, 0)
            size = 2 if isinstance(module, ours.MaxMin) else module.group_size or len(rows)
            groups = rows.reshape(size, len(rows) // size, *rows.shape[1:])
            return np.moveaxis(np.sort(groups, axis=0)[::-1].reshape(rows.shape), 0, axis)
        case ours.Householder():  # pairs of channels by the matrix I − 2vvᵀ/vᵀv where vᵀz < 0
            (v, w), (a, b) = exact(module.vectors).reshape(2, -1, 1), x.reshape(2, len(x) // 2, -1)
            along = 2 * np.minimum(v * a + w * b, 0) / (v * v + w * w)
            return _rounded(np.concatenate([a - along * v, b - along * w]).reshape(x.shape))
        case ours.Normalize():
            return _rounded(_shifted(x, -module.mean.double()) / _shifted(x * 0, module.std))
        case ours.BatchCentering():
            return _shifted(_shifted(x, -module.running_mean.double()), module.bias)
        case nn.BatchNorm1d() | nn.BatchNorm2d():
            eps, ones = Fraction(module.eps), torch.ones(len(x))
            gammas, variances = (exact(ones if v is None else v) for v in (module.weight, module.running_var))
            slopes = [_fraction(_real(g) / mpmath.sqrt(_real(v + eps))) for g, v in zip(gammas, variances, strict=True)]
            scaled = _shifted(x, -module.running_mean.double()).reshape(len(x), -1) * _array(slopes, (-1, 1))
            return _rounded(_shifted(scaled.reshape(x.shape), module.bias))
        case ours.LayerCentering():
            dims = range(1, x.ndim + 1) if module.dim is None else module.dim
            axes = tuple(dim - 1 if dim > 0 else dim for dim in dims)
            return x - x.sum(axis=axes, keepdims=True) / math.prod(x.shape[axis] for axis in axes)
        case nn.ReLU():
            return np.maximum(x, 0)
        case nn.LeakyReLU():
            return np.where(x > 0, x, x * Fraction(module.negative_slope))
        case nn.ReLU6() | nn.Hardtanh():
            return np.minimum(np.maximum(x, Fraction(module.min_val)), Fraction(module.max_val))
        case nn.Softsign():
            return _rounded(x / (1 + abs(x)))
        case ours.Abs():
            return abs(x)
        case ours.HalfAbs():
            return np.concatenate([abs(x[: len(x) // 2]), x[len(x) // 2 :]])
        case ours.PositionBias():
            return x + exact(module.bias.reshape(x.shape[1:]))
        case ours.Scale():
            return x * Fraction(module.factor)
        case ours.L2NormPool2d():
            taps, stride = module.kernel_size or x.shape[1:], module.stride or x.shape[1:]
            under = sliding_window_view(x, taps, axis=(1, 2))[:, :: stride[0], :: stride[1]]
            squares = (under**2).sum(axis=(3, 4))
            roots = [_fraction(mpmath.sqrt(_real(square))) for square in squares.ravel()]
            return _array(roots, squares.shape if module.kernel_size else squares.shape[:1])
        case nn.MaxPool1d() | nn.MaxPool2d():
            order = np.sort(x.ravel())  # numbers by their ranks, which torch compares as well
            ranks = torch.from_numpy(np.searchsorted(order, x.ravel()).reshape(1, *x.shape)).double()
            return order[module(ranks)[0].long().numpy()]
        case nn.ConstantPad1d() | nn.ConstantPad2d() if not isinstance(module, MOVES):
            return _moved(lambda places: pad(places, module.padding), x, Fraction(module.value))
        case _ if isinstance(module, MOVES):
            return _moved(module, x)
    raise AssertionError(f"the tests know no exact {type(module).__name__}")


def _multiply(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The product of matrices of fractions, by whole numbers over their common denominators."""
    below = [math.lcm(*(v.denominator for v in matrix.ravel())) for matrix in (a, b)]
    whole = [_array(((v * n).numerator for v in m.ravel()), m.shape) for m, n in zip((a, b), below, strict=True)]
    return (whole[0] @ whole[1]) * Fraction(1, math.prod(below))


def _apply(
    function: Callable[[Tensor], Tensor], x: np.ndarray, transposed: tuple[int, ...] | None = None
) -> np.ndarray:
    """A linear function of an image whose matrix has weights for entries, so that torch computes it exactly.

    With `transposed`, the shape of the function's inputs: its transpose.
    """
    shape = transposed or x.shape
    columns = function(torch.eye(math.prod(shape), dtype=torch.float64).reshape(-1, *shape)).detach()
    matrix = exact(columns.flatten(1) if transposed else columns.flatten(1).T)
    return _multiply(matrix, x.reshape(-1, 1)).reshape(transposed or tuple(columns.shape[1:]))


def _shifted(x: np.ndarray, bias: Tensor | None) -> np.ndarray:
    """With a number added to each channel."""
    return x if bias is None else x + exact(bias).reshape(-1, *[1] * (x.ndim - 1))


def _rounded(x: np.ndarray) -> np.ndarray:
    return _array((Fraction(round(v * 2**FINE), 2**FINE) for v in x.ravel()), x.shape)


# Of a module and a real number, as torch documents them; torch's Softplus is the identity beyond its threshold.
SMOOTH: dict[type[nn.Module], Callable[[Any, mpmath.mpf], mpmath.mpf]] = {
    nn.ELU: lambda m, v: v if v > 0 else m.alpha * mpmath.expm1(v),
    nn.CELU: lambda m, v: v if v > 0 else m.alpha * mpmath.expm1(v / m.alpha),
    nn.SELU: lambda m, v: SELU[0] * (v if v > 0 else SELU[1] * mpmath.expm1(v)),
    nn.Tanh: lambda m, v: mpmath.tanh(v),
    nn.Sigmoid: lambda m, v: 1 / (1 + mpmath.exp(-v)),
    nn.SiLU: lambda m, v: v / (1 + mpmath.exp(-v)),
    nn.GELU: lambda m, v: v * (mpmath.ncdf(v) if m.approximate == "none" else (1 + mpmath.tanh(_gelu_argument(v))) / 2),
    nn.Mish: lambda m, v: v * mpmath.tanh(mpmath.log1p(mpmath.exp(v))),
    nn.Softplus: lambda m, v: mpmath.log1p(mpmath.exp(v * m.beta)) / m.beta,
    nn.LogSigmoid: lambda m, v: -mpmath.log1p(mpmath.exp(-v)),
    nn.Hardswish: lambda m, v: v * min(max(v + 3, 0), 6) / 6,
    nn.Hardsigmoid: lambda m, v: min(max(v + 3, 0), 6) / mpmath.mpf(6),
}
SELU = mpmath.mpf("1.0507009873554804934193349852946"), mpmath.mpf("1.6732632423543772848170429916717")


def _gelu_argument(v: mpmath.mpf) -> mpmath.mpf:
    return mpmath.sqrt(2 / mpmath.pi) * (v + mpmath.mpf("0.044715") * v**3)


def axis_matrices(module: Any, sizes: Sequence[int]) -> list[np.ndarray] | None:
    """The matrix of fractions for each axis, of pooling by averages and of linear interpolation; None of other modules."""
    if isinstance(module, (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d)):
        outputs = [n if o is None else o for o, n in zip(_each(module.output_size, len(sizes)), sizes, strict=True)]
        windows = [[(i * n // o, -(-(i + 1) * n // o)) for i in range(o)] for o, n in zip(outputs, sizes, strict=True)]
        return [_averages(n, [(a, b, b - a) for a, b in rows]) for n, rows in zip(sizes, windows, strict=True)]
    if isinstance(module, (nn.AvgPool1d, nn.AvgPool2d)):
        result, divisor = [], getattr(module, "divisor_override", None)
        settings = (_each(getattr(module, name), len(sizes)) for name in ("kernel_size", "stride", "padding"))
        for axis, (n, k, s, p) in enumerate(zip(sizes, *settings, strict=True)):
            count = (n + 2 * p - k + (s - 1) * module.ceil_mode) // s + 1
            starts = [i * s - p for i in range(count) if not module.ceil_mode or i * s - p < n]
            rows = []
            for a in starts:
                b = min(a + k, n + p)
                by = b - a if module.count_include_pad else min(b, n) - max(a, 0)
                rows.append((a, b, by if divisor is None else divisor if axis == 0 else 1))
            result.append(_averages(n, rows))
        return result
    if isinstance(module, nn.Upsample) and "linear" in module.mode:
        scales = None if module.scale_factor is None or module.recompute_scale_factor else module.scale_factor
        outputs = module(torch.zeros(1, 1, *sizes)).shape[2:]
        result = []
        for axis, (n, o) in enumerate(zip(sizes, outputs, strict=True)):
            step = Fraction(n, o) if scales is None else 1 / Fraction(float(_each(scales, len(sizes))[axis]))
            corners, half = Fraction(n - 1, max(o - 1, 1)), Fraction(1, 2)
            at = [i * corners if module.align_corners else (i + half) * step - half for i in range(o)]
            at = [min(max(p, Fraction(0)), Fraction(n - 1)) for p in at]
            result.append(np.array([[max(Fraction(0), 1 - abs(p - q)) for q in range(n)] for p in at]))
        return result
    return None


def _averages(size: int, windows: Sequence[tuple[int, int, int]]) -> np.ndarray:
    """The matrix whose rows hold 1/divisor from start to end: (start, end, divisor) for each row."""
    return np.array([[Fraction(int(a <= q < b), by) for q in range(size)] for a, b, by in windows])


def _real(value: Fraction) -> mpmath.mpf:
    return mpmath.mpf(value.numerator) / value.denominator


def _fraction(value: mpmath.mpf) -> Fraction:
    return Fraction(int(mpmath.nint(value * 2**FINE)), 2**FINE)


def _moved(move: Callable[[Tensor], Tensor], x: np.ndarray, fill: Fraction = Fraction(0)) -> np.ndarray:
    """What torch does with the places of the numbers, done to the numbers. Place 0 is what padding puts in."""
    places = torch.arange(1, x.size + 1, dtype=torch.float64).reshape(1, *x.shape)
    return np.concatenate([[fill], x.ravel()])[move(places)[0].long().numpy()]


def windows(module: Any, values: np.ndarray) -> np.ndarray:
    """(taps, C, …): what lies under each tap of a convolution, wherever that stands."""
    names = ("kernel_size", "stride", "dilation", "padding")
    taps, stride, dilation, padding = (_each(getattr(module, name), values.ndim - 1) for name in names)
    spans = [(k - 1) * d + 1 for k, d in zip(taps, dilation, strict=True)]
    pads = [((span - 1) // 2, span // 2) for span in spans] if module.padding == "same" else [(p, p) for p in padding]
    mode = module.padding_mode
    if mode == "zeros":
        values = np.pad(values, [(0, 0), *pads], constant_values=np.array(0, dtype=values.dtype))
    else:
        values = np.pad(values, [(0, 0), *pads], mode={"circular": "wrap", "replicate": "edge"}.get(mode, mode))
    under = sliding_window_view(values, spans, axis=tuple(range(1, values.ndim)))
    under = under[(slice(None), *(slice(None, None, step) for step in (*stride, *dilation)))]
    return np.moveaxis(under.reshape(*under.shape[: values.ndim], -1), -1, 0)


def _each(value: Any, count: int) -> tuple[int, ...]:
    value = 0 if isinstance(value, str) else value
    return tuple(value) if isinstance(value, Sequence) else (value,) * count


def factors(module: Any, values: np.ndarray) -> tuple[np.ndarray, np.ndarray, tuple[int, ...]]:
    """(groups, outputs, terms) of kernels and (groups, terms, positions) of inputs to multiply, and the result's shape."""
    if isinstance(module, nn.Linear):
        return module.weight.detach()[None], values.reshape(-1, values.shape[-1]).T[None], (-1, *values.shape[:-1])
    under = np.moveaxis(windows(module, values), 0, 1)  # (C, taps, …)
    kernels = module.weight.detach().reshape(module.groups, -1, module.weight[0].numel())
    return kernels, under.reshape(module.groups, kernels.shape[2], -1), (module.out_channels, *under.shape[2:])


def root_down(square: Fraction) -> Fraction:
    """At most the square root, by less than a relative 2⁻⁶⁰⁰."""
    mantissa, exponent = mpmath.sqrt(_real(square)).man_exp  # in 700 bits
    return Fraction(int(mantissa)) * Fraction(2) ** int(exponent) * (1 - Fraction(1, 2**610))


def root_up(square: Fraction) -> Fraction:
    """At least the square root, by less than a relative 2⁻⁶⁰⁰."""
    return root_down(square) * (1 + Fraction(1, 2**605))


def norm_square(values: Iterable[Fraction]) -> Fraction:
    return sum((value**2 for value in values), Fraction(0))


def distance_square(a: Tensor, b: Tensor) -> Fraction:
    """‖a − b‖₂² of two tensors of floats, exactly."""
    pairs = zip(a.flatten().tolist(), b.flatten().tolist(), strict=True)
    return norm_square([Fraction(p) - Fraction(q) for p, q in pairs])


def logit_error(computed: Tensor, truth: Sequence[Fraction]) -> Fraction:
    """An upper bound, by less than 2⁻⁶⁰⁰ of itself, of ‖computed − truth‖₂."""
    return root_up(norm_square([Fraction(c) - t for c, t in zip(computed.flatten().tolist(), truth, strict=True)]))


def input_norm(x: Tensor) -> Fraction:
    """A lower bound, by less than 2⁻⁶⁰⁰ of itself, of ‖x‖₂."""
    return root_down(norm_square(exact(x).ravel()))


def error_bound(certifier: Certifier, x: Tensor) -> Fraction:
    """What the certifier claims of the error of the logits of one image."""
    return Fraction(certifier.error.offset) + Fraction(certifier.error.slope) * input_norm(x)


def summed_in_order(model: nn.Module, x: Tensor, order: str, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """The logits of one image where every sum of a convolution or linear layer runs one term after the other.

    order : "forward", "backward", "random" (the bias too), "rising" or "falling" (by absolute value, bias last)
    """
    generator = np.random.default_rng(seed)
    x = x.to(dtype)[None]
    for module in leaves(isoconv.plain(model).eval().to(dtype)):
        if not isinstance(module, AFFINE):
            x = module(x)
            continue
        kernels, cols, shape = factors(module, x[0].detach().numpy())
        terms = kernels.numpy()[:, :, :, None] * cols[:, None]
        terms = terms.reshape(-1, *terms.shape[2:])
        bias = np.zeros((len(terms), 0, 1), dtype=terms.dtype)
        if module.bias is not None:
            bias = module.bias.detach().numpy()[:, None, None]
        bias = np.broadcast_to(bias, (len(terms), bias.shape[1], terms.shape[2]))
        if order == "backward":
            terms = terms[:, ::-1]
        if order in ("rising", "falling"):
            ranks = np.argsort(abs(terms), axis=1)
            terms = np.take_along_axis(terms, ranks if order == "rising" else ranks[:, ::-1], axis=1)
        terms = np.concatenate([bias, terms] if order == "falling" else [terms, bias], axis=1)
        if order == "random":
            terms = generator.permuted(terms, axis=1)
        sums = np.cumsum(terms, axis=1)[:, -1]
        assert sums.dtype == terms.dtype
        x = torch.from_numpy(sums.copy()).reshape(1, *shape)
        x = x.movedim(1, -1) if isinstance(module, nn.Linear) else x
    return x[0]


def images(count: int, *shape: int, seed: int = 0) -> Tensor:
    """Random images in [0, 1], as exact in float32 as in float64."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(count, *shape, generator=generator, dtype=torch.float32).double()


def linear_classifier(weight: Sequence[Sequence[float]] | Tensor, bias: Sequence[float] | Tensor | None) -> nn.Linear:
    """In the dtype of the tensor, or float64."""
    W = weight if isinstance(weight, Tensor) else torch.tensor(weight, dtype=torch.float64)
    layer = nn.Linear(W.shape[1], W.shape[0], bias=bias is not None, dtype=W.dtype)
    with torch.no_grad():
        layer.weight.copy_(W)
        if bias is not None:
            layer.bias.copy_(torch.as_tensor(bias, dtype=W.dtype))
    return layer


def trained_small(
    conv: str, shape: tuple[int, int, int], steps: int = 12, classes: int = 4, seed: int = 0
) -> nn.Module:
    """Small, or ShiftNet, after a few steps on images with a class each, in evaluation: no longer at its initialisation."""
    torch.manual_seed(seed)
    if conv == "shift":
        model = ShiftNet(shape, classes, channels=32, blocks=(1, 2))
        descent: torch.optim.Optimizer = isoconv.optim.SteepestDescent(model.parameters(), lr=0.03)
    else:
        model = Small(shape, classes=classes, conv=conv)
        descent = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=3e-3)
    data, labels = labelled_images(32, shape, classes, seed)
    for _ in range(steps):
        descent.zero_grad()
        nn.functional.multi_margin_loss(model(data.float()), labels, margin=2.0).backward()
        descent.step()
    return model.eval()


def labelled_images(count: int, shape: Sequence[int], classes: int = 4, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Noise around one random picture per class: easy enough to learn in a few steps."""
    generator = torch.Generator().manual_seed(seed)
    pictures = torch.rand(classes, *shape, generator=generator)
    labels = torch.arange(count) % classes
    noise = torch.rand(count, *shape, generator=torch.Generator().manual_seed(seed + 1))
    return (0.7 * pictures[labels] + 0.3 * noise).double(), labels
