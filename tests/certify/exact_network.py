"""What the tests of certificates compare with: networks in exact rational arithmetic, and in any order of summation.

Nothing of isoconv but the types of its modules.
"""

import copy
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import mpmath
import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor, nn
from torch.nn.functional import pad

import isoconv
from isoconv.certify import Certifier
from isoconv.models import CONVOLUTIONS, ShiftNet, Small
from isoconv.nn import (
    Abs,
    BatchCentering,
    ChannelShift,
    ConvexPotential2d,
    GroupSort,
    HalfAbs,
    Householder,
    L2NormPool2d,
    LayerCentering,
    MaxMin,
    Normalize,
    PositionBias,
    Scale,
    Slice,
)
from isoconv.nn.convolution import convolve_same

# Modules that only move numbers about, or put zeros between them.
MOVES = (
    *(nn.Identity, nn.Flatten, nn.Unflatten, nn.PixelShuffle, nn.PixelUnshuffle, nn.Upsample),
    *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.AlphaDropout, nn.FeatureAlphaDropout),
    *(nn.CircularPad1d, nn.CircularPad2d, nn.ReflectionPad1d, nn.ReflectionPad2d),
    *(ChannelShift, Slice),
    *(nn.ReplicationPad1d, nn.ReplicationPad2d, nn.ZeroPad1d, nn.ZeroPad2d),
)
AFFINE = (nn.Linear, nn.Conv1d, nn.Conv2d)
METHODS = (*CONVOLUTIONS, "shift")  # of `trained_small`
FINE = 600  # bits behind the point of what is no fraction: far beyond every error that is measured
mpmath.mp.prec = 700


class Exact(NamedTuple):
    """The real numbers whole × unit: one image (no batch), `whole` an array of Python integers."""

    whole: np.ndarray
    unit: Fraction


def exact(tensor: Tensor) -> Exact:
    """A floating-point tensor, exactly."""
    # frexp would be wrong where subnormal numbers are flushed to zero; integer ratios are not.
    ratios = [float(value).as_integer_ratio() for value in tensor.detach().double().flatten().tolist()]
    bottom = max((denominator for _, denominator in ratios), default=1)
    whole = np.empty(len(ratios), dtype=object)
    whole[:] = [numerator * (bottom // denominator) for numerator, denominator in ratios]
    return Exact(whole.reshape(tuple(tensor.shape)), Fraction(1, bottom))


def fractions(values: Exact) -> list[Fraction]:
    return [value * values.unit for value in values.whole.ravel()]


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
    return fractions(values)


def exact_module(module: nn.Module, x: Exact) -> Exact:
    match module:
        case _ if isinstance(module, AFFINE):
            return _affine(module, x)
        case nn.ConvTranspose1d() | nn.ConvTranspose2d():
            return _transposed(module, x)
        case _ if type(module) in SMOOTH:
            return _entrywise(x, lambda v: _fraction(SMOOTH[type(module)](module, _real(v))))
        case nn.Softmax():
            values = np.vectorize(lambda v: mpmath.exp(_real(v * x.unit)), otypes=[object])(x.whole)
            shares = values / values.sum(axis=module.dim - (module.dim > 0), keepdims=True)
            return _fine(map(_fraction, shares.ravel()), x.whole.shape)
        case Normalize():
            means, slopes = [Fraction(v) for v in module.mean.tolist()], [1 / Fraction(v) for v in module.std.tolist()]
            return _by_channel(x, slopes, means, [Fraction(0)] * len(means))
        case _ if (matrices := axis_matrices(module, x.whole.shape[1:])) is not None:
            values = x.whole * x.unit
            for axis, matrix in enumerate(matrices, start=1):
                values = np.moveaxis(np.tensordot(matrix, values, (1, axis)), 0, axis)
            return _fine(values.ravel(), values.shape)
        case MaxMin() | GroupSort():
            axis = module.dim - 1 if module.dim > 0 else module.dim
            rows = np.moveaxis(x.whole, axis, 0)
            size = 2 if isinstance(module, MaxMin) else module.group_size or len(rows)
            groups = rows.reshape(size, len(rows) // size, *rows.shape[1:])
            return Exact(np.moveaxis(np.sort(groups, axis=0)[::-1].reshape(rows.shape), 0, axis), x.unit)
        case Householder():
            return _reflected(module, x)
        case ConvexPotential2d():
            return _stepped_down(module, x)
        case BatchCentering():
            bias = torch.zeros_like(module.running_mean) if module.bias is None else module.bias
            mean, shift = ([Fraction(v) for v in tensor.tolist()] for tensor in (module.running_mean, bias))
            return _by_channel(x, [Fraction(1)] * len(mean), mean, shift)
        case LayerCentering():
            dims = range(1, x.whole.ndim + 1) if module.dim is None else module.dim
            axes = tuple(dim - 1 if dim > 0 else dim for dim in dims)
            count = math.prod(x.whole.shape[axis] for axis in axes)
            return Exact(x.whole * count - x.whole.sum(axis=axes, keepdims=True), x.unit / count)
        case nn.ReLU():
            return Exact(np.where(x.whole > 0, x.whole, 0), x.unit)
        case nn.LeakyReLU():
            slope = Fraction(module.negative_slope)
            whole = np.where(x.whole > 0, x.whole * slope.denominator, x.whole * slope.numerator)
            return Exact(whole, x.unit / slope.denominator)
        case Abs():
            return Exact(abs(x.whole), x.unit)
        case HalfAbs():
            half = len(x.whole) // 2
            return Exact(np.concatenate([abs(x.whole[:half]), x.whole[half:]]), x.unit)
        case PositionBias():
            bias = exact(module.bias.reshape(x.whole.shape[1:]))
            unit = min(x.unit, bias.unit)  # both powers of two, or fractions of one
            return Exact(x.whole * _whole(x.unit / unit) + bias.whole * _whole(bias.unit / unit), unit)
        case L2NormPool2d():
            taps, stride = module.kernel_size or x.whole.shape[1:], module.stride or x.whole.shape[1:]
            under = sliding_window_view(x.whole, taps, axis=(1, 2))[:, :: stride[0], :: stride[1]]
            squares = (under**2).sum(axis=(3, 4))
            roots = [_fraction(mpmath.sqrt(_real(square * x.unit**2))) for square in squares.ravel()]
            return _fine(roots, squares.shape if module.kernel_size else squares.shape[:1])
        case Scale():
            factor = Fraction(module.factor)  # the unit stays positive, so that what follows can compare
            return Exact(x.whole * factor.numerator, x.unit / factor.denominator)
        case nn.MaxPool1d() | nn.MaxPool2d():
            return Exact(windows(module, x.whole, -math.inf).max(axis=0), x.unit)
        case nn.ReLU6() | nn.Hardtanh():
            low, high = (Fraction(v) for v in (module.min_val, module.max_val))
            return _entrywise(x, lambda v: min(max(v, low), high))
        case nn.Softsign():
            return _entrywise(x, lambda v: v / (1 + abs(v)))
        case nn.Tanh():
            return _entrywise(x, lambda v: _fraction(mpmath.tanh(_real(v))))
        case nn.Sigmoid():
            return _entrywise(x, lambda v: _fraction(1 / (1 + mpmath.exp(-_real(v)))))
        case nn.BatchNorm1d() | nn.BatchNorm2d():
            return _normalised(module, x)
        case nn.ConstantPad1d() | nn.ConstantPad2d() if not isinstance(module, MOVES):
            value = Fraction(module.value) / x.unit
            moved = _moved(lambda places: pad(places, module.padding), x.whole * value.denominator, value.numerator)
            return Exact(moved, x.unit / value.denominator)
        case _ if isinstance(module, MOVES):
            return Exact(_moved(module, x.whole), x.unit)
    raise AssertionError(f"the tests know no exact {type(module).__name__}")


def _fine(values: Iterable[Fraction], shape: tuple[int, ...]) -> Exact:
    whole = [round(value * 2**FINE) for value in values]
    return Exact(np.array(whole, dtype=object).reshape(shape), Fraction(1, 2**FINE))


def _by_channel(x: Exact, slopes: list[Fraction], means: list[Fraction], shifts: list[Fraction]) -> Exact:
    """Return (x − mean)·slope + shift."""
    channels = zip(x.whole.reshape(len(slopes), -1), slopes, means, shifts, strict=True)
    return _fine([(v * x.unit - m) * a + b for row, a, m, b in channels for v in row], x.whole.shape)


def _reflected(module: Householder, x: Exact) -> Exact:
    """Reflect pairs of channels by the matrix I − 2vvᵀ/vᵀv where vᵀz < 0."""
    half = len(x.whole) // 2
    vectors, rows = [Fraction(v) for v in module.vectors.tolist()], x.whole.reshape(2 * half, -1) * x.unit
    result = [list(row) for row in rows]
    for i in range(half):
        v, w = vectors[i], vectors[i + half]
        for k, (a, b) in enumerate(zip(rows[i], rows[i + half], strict=True)):
            if v * a + w * b < 0:
                along = 2 * (v * a + w * b) / (v * v + w * w)
                result[i][k], result[i + half][k] = a - along * v, b - along * w
    return _fine(itertools.chain(*result), x.whole.shape)


# Of a module and a real number, as torch documents them; torch's Softplus is the identity beyond its threshold.
SMOOTH: dict[type[nn.Module], Callable[[Any, mpmath.mpf], mpmath.mpf]] = {
    nn.ELU: lambda m, v: v if v > 0 else m.alpha * mpmath.expm1(v),
    nn.CELU: lambda m, v: v if v > 0 else m.alpha * mpmath.expm1(v / m.alpha),
    nn.SELU: lambda m, v: SELU[0] * (v if v > 0 else SELU[1] * mpmath.expm1(v)),
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


def _transposed(module: Any, x: Exact) -> Exact:
    """Each number of the Jacobian is one weight, so that torch computes it exactly."""
    basis = torch.eye(x.whole.size, dtype=torch.float64).reshape(-1, *x.whole.shape)
    twin = copy.deepcopy(module).double()
    bias, twin.bias = exact(module.bias), None
    columns = twin(basis).detach()
    matrix = exact(columns.flatten(1).T)
    whole = (matrix.whole @ x.whole.ravel() * (matrix.unit * x.unit)).reshape(columns.shape[1:])
    whole = whole + (bias.whole * bias.unit).reshape(-1, *[1] * (whole.ndim - 1))
    unit = Fraction(1, math.lcm(*(v.denominator for v in whole.ravel())))
    return Exact(np.array([int(v / unit) for v in whole.ravel()], dtype=object).reshape(whole.shape), unit)


def _stepped_down(module: ConvexPotential2d, x: Exact) -> Exact:
    """x − Wᵀ·relu(Wx + b), for kernels that fit into the image: each number of W is one weight, and so exact."""
    basis = torch.eye(x.whole.size, dtype=torch.float64).reshape(-1, *x.whole.shape)
    columns = convolve_same(basis, module.weight.detach().double(), None, module.padding_mode).flatten(1)
    matrix, values = exact(columns.T), x.whole.ravel() * x.unit
    hidden = matrix.whole @ values * matrix.unit
    if module.bias is not None:
        bias = exact(module.bias)
        hidden = hidden + np.repeat(bias.whole * bias.unit, len(hidden) // len(bias.whole))
    result = values - matrix.whole.T @ np.where(hidden > 0, hidden, 0) * matrix.unit
    unit = Fraction(1, math.lcm(*(Fraction(v).denominator for v in result)))
    return Exact(np.array([int(v / unit) for v in result], dtype=object).reshape(x.whole.shape), unit)


def _whole(value: Fraction) -> int:
    assert value.denominator == 1
    return value.numerator


def _real(value: Fraction) -> mpmath.mpf:
    return mpmath.mpf(value.numerator) / value.denominator


def _fraction(value: mpmath.mpf) -> Fraction:
    return Fraction(int(mpmath.nint(value * 2**FINE)), 2**FINE)


def _entrywise(x: Exact, function: Callable[[Fraction], Fraction]) -> Exact:
    return _fine(map(function, fractions(x)), x.whole.shape)


def _normalised(module: nn.BatchNorm1d | nn.BatchNorm2d, x: Exact) -> Exact:
    """Batch normalisation in evaluation, channel by channel."""
    ones, zeros = torch.ones(len(x.whole)), torch.zeros(len(x.whole))
    given = (module.weight, module.bias, module.running_mean, module.running_var)
    columns = [v if v is not None else other for v, other in zip(given, (ones, zeros, zeros, ones), strict=True)]
    gammas, betas, means, variances = ([Fraction(v) for v in column.tolist()] for column in columns)
    roots = [mpmath.sqrt(_real(variance + Fraction(module.eps))) for variance in variances]
    slopes = [_fraction(_real(gamma) / root) for gamma, root in zip(gammas, roots, strict=True)]
    return _by_channel(x, slopes, means, betas)


def _moved(move: Callable[[Tensor], Tensor], whole: np.ndarray, fill: int = 0) -> np.ndarray:
    """What torch does with the places of the numbers, done to the numbers. Place 0 is what padding puts in."""
    places = torch.arange(1, whole.size + 1, dtype=torch.float64).reshape(1, *whole.shape)
    return np.concatenate([[fill], whole.ravel()])[move(places)[0].long().numpy()]


def windows(module: Any, values: np.ndarray, fill: float = 0) -> np.ndarray:
    """(taps, C, …): what lies under each tap of a convolution or a pooling, wherever that stands; `fill` is outside."""
    assert not getattr(module, "ceil_mode", False)
    names = ("kernel_size", "stride", "dilation", "padding")
    taps, stride, dilation, padding = (_each(getattr(module, name, 1), values.ndim - 1) for name in names)
    spans = [(k - 1) * d + 1 for k, d in zip(taps, dilation, strict=True)]
    pads = [((span - 1) // 2, span // 2) for span in spans] if module.padding == "same" else [(p, p) for p in padding]
    mode = getattr(module, "padding_mode", "zeros")
    if mode == "zeros":
        values = np.pad(values, [(0, 0), *pads], constant_values=np.array(fill, dtype=values.dtype))
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


def _affine(module: Any, x: Exact) -> Exact:
    kernels, cols, shape = factors(module, x.whole)
    weight = exact(kernels)
    whole, unit = (weight.whole @ cols).reshape(shape), weight.unit * x.unit
    if module.bias is not None:
        bias = exact(module.bias)
        common = Fraction(1, math.lcm(unit.denominator, bias.unit.denominator))
        own = (bias.whole * int(bias.unit / common)).reshape(-1, *[1] * (whole.ndim - 1))
        whole, unit = whole * int(unit / common) + own, common
    return Exact(np.moveaxis(whole, 0, -1) if isinstance(module, nn.Linear) else whole, unit)


def root_down(square: Fraction) -> Fraction:
    """At most the square root, by less than a relative 2⁻⁶⁰⁰."""
    mantissa, exponent = mpmath.sqrt(_real(square)).man_exp  # in 700 bits
    return Fraction(int(mantissa)) * Fraction(2) ** int(exponent) * (1 - Fraction(1, 2**610))


def root_up(square: Fraction) -> Fraction:
    """At least the square root, by less than a relative 2⁻⁶⁰⁰."""
    return root_down(square) * (1 + Fraction(1, 2**605))


def norm_square(values: Sequence[Fraction]) -> Fraction:
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
    return root_down(norm_square(fractions(exact(x))))


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
