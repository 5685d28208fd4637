"""From logits to certified radii.

Note [The certificate]
Let y(x) be the exact logits of the plain network and ŷ(x) those that it computes, ‖ŷ(x) − y(x)‖₂ ≤ e(x) = α + β‖x‖
(Note [Forward error]). Let i be the class that ŷ(x) predicts, and |(y_i − y_j)(x) − (y_i − y_j)(x')| ≤ L_ij‖x − x'‖.
For every x' with ‖x' − x‖ ≤ r, whatever the order of summation there,

    (ŷ_i − ŷ_j)(x') ≥ (ŷ_i − ŷ_j)(x) − √2·e(x) − L_ij·r − √2·(α + β(‖x‖ + r)),

as a difference of two entries errs by at most √2 times the norm. So the prediction is the same on the whole closed ball
where the right-hand side is positive for all j, that is, for all r below

    ((ŷ_i − ŷ_j)(x) − √2·(2α + 2β‖x‖)) / (L_ij + √2·β).

Here a little more is subtracted, in float64 4 errors instead of 2 (see `_AT_THE_CENTRE`), so that somebody who computes
the logits again can prove the radius from his own; and every operation is rounded towards the safe side. The label
plays no part. Equal logits give 0, and 0 means: not certified.
"""

import copy
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from isoconv.certify import composition
from isoconv.certify.composition import LARGEST_NORM
from isoconv.certify.graph import nodes_of, plain_network, refuse_global_hooks
from isoconv.certify.rules import ARITHMETICS
from isoconv.errors import require
from isoconv.linalg.bounds import matrix_norm_bound, row_distance_bounds
from isoconv.linalg.rounding import add_up, gamma, mul_up, sqrt_up, up
from isoconv.nn.graph import check_shape

CRITERIA = ("pairs", "per-class")
# Bounds from weights are enlarged by this, so that a checker with another method of proof finds them true with room.
_ROOM = 1e-9
_SQRT2 = sqrt_up(2.0)
# How many times the error bound the logits are given at the centre. Once would do; but who computes them again, in float64
# and in another order, finds others, up to twice float64's bound away, and must be able to prove the radius from those.
_AT_THE_CENTRE = {"float64": 3.0, "float32": 1 + 2.0**-20}


@dataclass(frozen=True, eq=False)
class Certified:
    """What is proved of N inputs: `prediction` (N,) holds within `radius` (N,), float64; 0 where nothing is proved."""

    prediction: Tensor
    radius: Tensor
    logits: Tensor
    input_norm: Tensor

    def cpu(self) -> "Certified":
        return Certified(*(tensor.cpu() for tensor in vars(self).values()))


class Certifier:
    """A network with all that is proved of it, ready to certify inputs.

    p : the norm of the perturbation: 2; 1 and ∞ by the better of their own Lipschitz bound (where every module has one)
        and what follows from p = 2; any other p ≥ 1 from p = 2
    arithmetic : "float64" or "float32": the certificate is about the network run in it
    criterion : "pairs", a constant L_ij per pair of classes; "per-class", the looser L_i + L_j, which treats the logits as
        separate networks
    input_range : the range of pixels; inputs outside it are refused
    """

    def __init__(
        self,
        model: nn.Module,
        input_shape: Sequence[int],
        *,
        p: float = 2,
        arithmetic: str = "float64",
        criterion: str = "pairs",
        input_range: tuple[float, float] = (0.0, 1.0),
    ) -> None:
        require(arithmetic in ARITHMETICS, f"arithmetic to be one of {', '.join(ARITHMETICS)}", repr(arithmetic))
        require(criterion in CRITERIA, f"criterion to be one of {', '.join(CRITERIA)}", repr(criterion))
        require(isinstance(p, (int, float)) and p >= 1, "a number p of at least 1, or math.inf, for the norm", repr(p))
        self.p, self.arithmetic, self.criterion = p, arithmetic, criterion
        self.input_range, self.input_shape = _check_range(input_range), check_shape(input_shape)
        self.deployed = plain_network(model, self.input_shape)  # as it is kept in a file
        wide = any(tensor.dtype == torch.float64 for tensor in self.deployed.state_dict().values())
        require(arithmetic == "float64" or not wide, "float32 weights for a float32 certificate", "float64 weights")
        self.network = copy.deepcopy(self.deployed).to(getattr(torch, arithmetic))  # as it is run
        self.nodes = nodes_of(self.network, self.input_shape)
        bounds = ((node, composition.node_bound(node)) for node in self.nodes)
        self.bounds = [mul_up(bound, 1 + _ROOM) if node.rule.from_weights else bound for node, bound in bounds]
        self.lipschitz = composition.describe_bounds(self.nodes, self.bounds)
        self.error = composition.forward_error(self.nodes, self.bounds, arithmetic)
        output = self.nodes[-1].output_shape
        logits = len(output) == 1 and output[0] >= 2
        require(logits, "a classifier with at least two logits", f"outputs of shape {tuple(output)}")
        self.pair_constants = self._pair_constants()
        self._stretch = _stretch(p, self.input_shape.numel())
        # (L_ij + √2·β, stretch) for each way to a radius, which is the margin over their product
        slope = mul_up(_SQRT2, self.error.slope)
        self._denominators = [(_up(self.pair_constants + slope), self._stretch)]
        if p in (1, math.inf) and (own := composition.constant_in_norm(self.nodes, p)) is not None:
            # The paper's theorem: a difference of two logits has 2^((p−1)/p) times the network's constant.
            constant = add_up(mul_up(1.0 if p == 1 else 2.0, own), mul_up(slope, self._stretch))
            self._denominators.append((torch.full_like(self.pair_constants, constant), 1.0))

    def _pair_constants(self) -> Tensor:
        """Return L_ij for p = 2, (classes, classes): float64, on the CPU."""
        classes, last = self.nodes[-1].output_shape[0], self.nodes[-1].module
        if type(last) is nn.Linear:
            before = composition.network_constants(self.nodes, self.bounds)[self.nodes[-1].inputs[0]]
            if self.criterion == "pairs":
                own = row_distance_bounds(last.weight).clamp(max=mul_up(_SQRT2, self.bounds[-1]))
            else:
                rows = torch.tensor([matrix_norm_bound(row[None]) for row in last.weight], dtype=torch.float64)
                own = _up(rows[:, None] + rows[None, :])
            constants = _up(_up(own * (1 + _ROOM)) * before)
        else:
            factor = _SQRT2 if self.criterion == "pairs" else 2.0
            constants = torch.full((classes, classes), mul_up(factor, self.lipschitz.value), dtype=torch.float64)
        return constants.fill_diagonal_(0)

    # Inputs ---------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Certified:
        """Certify a batch (N, *input_shape) of floating-point inputs; they are read exactly."""
        refuse_global_hooks()
        x = self._checked(x)
        return self.from_logits(self.logits(x), _norm_up(x))

    def from_logits(self, logits: Tensor, norm: Tensor) -> Certified:
        """Certify from computed logits (N, classes) of inputs whose norms are at most `norm` (N,)."""
        prediction = logits.argmax(dim=1)
        numerators = _down(logits.gather(1, prediction[:, None]) - logits)
        times = 1 + _AT_THE_CENTRE[self.arithmetic]  # and once in the ball
        errors = _up(_SQRT2 * _up(mul_up(times, self.error.offset) + _up(_up(norm * self.error.slope) * times)))
        numerators = _down(numerators - errors[:, None])
        others = torch.ones_like(logits, dtype=torch.bool).scatter_(1, prediction[:, None], False)
        radii = []
        for constants, stretch in self._denominators:  # the smallest over all competitors j of the largest r
            quotients = _down(numerators / constants.to(numerators.device)[prediction])
            smallest = torch.where(others, quotients, math.inf).amin(dim=1)
            radii.append(smallest if stretch == 1 else _down(smallest / stretch))
        whole = logits.isfinite().all(dim=1) & (norm < LARGEST_NORM / 2)  # false if a pixel is NaN or infinite
        won = torch.where(others, numerators > 0, True).all(dim=1)  # false for NaN
        radius = torch.where(whole & won, torch.stack(radii).amax(dim=0), 0.0)
        return Certified(prediction, radius.clamp(max=LARGEST_NORM / 2 / self._stretch), logits, norm)

    def logits(self, x: Tensor) -> Tensor:
        """Run the network in the certificate's arithmetic; logits as float64. Modules in place work on a copy."""
        with _sums_as_they_are(self.arithmetic, x):
            return self.network(x.to(getattr(torch, self.arithmetic), copy=True)).double()

    def _checked(self, x: Tensor) -> Tensor:
        """Return inputs as float64 numbers on the network's device, or refuse them."""
        floating = isinstance(x, Tensor) and x.is_floating_point()
        kind = x.dtype if isinstance(x, Tensor) else type(x).__name__
        require(floating, "inputs as a floating-point tensor of pixels", kind)
        dense = x.layout == torch.strided and not x.is_meta
        require(dense, "inputs with a value for each pixel", f"a {x.layout} tensor on {x.device}")
        expected = ", ".join(map(str, self.input_shape))
        fits = x.shape[1:] == self.input_shape and x.dim() == len(self.input_shape) + 1
        require(fits, f"inputs of shape (N, {expected})", tuple(x.shape))
        held = self.arithmetic == "float64" or x.dtype != torch.float64 or torch.equal(x.float().double(), x)
        require(held, "inputs that float32 can hold, for a float32 certificate", "others: round them to float32 first")
        (low, high), finite = self.input_range, x[x.isfinite()]
        if len(finite):
            least, most = float(finite.min()), float(finite.max())
            inside = low <= least and most <= high
            require(inside, f"pixels from {low:g} to {high:g}", f"values from {least:g} to {most:g}")
        device = next((p.device for p in self.network.parameters()), x.device)
        return x.detach().as_subclass(Tensor).to(device, torch.float64)


def check_batch_size(batch_size: int) -> None:
    require(isinstance(batch_size, int) and batch_size >= 1, "a batch size of at least 1", batch_size)


def join(parts: Sequence[Certified]) -> Certified:
    """Join batches to one."""
    return Certified(*map(torch.cat, zip(*(vars(part).values() for part in parts), strict=True)))


def certify(model: nn.Module, x: Tensor, *, batch_size: int = 500, **options: object) -> Certified:
    """Return predictions and the radii within which they are proved; `options` are those of `Certifier`."""
    shape = tuple(x.shape) if isinstance(x, Tensor) else None if x is None else type(x).__name__
    require(isinstance(shape, tuple) and len(shape) >= 2, "a batch of inputs (N, …)", shape)
    check_batch_size(batch_size)
    certifier = Certifier(model, x.shape[1:], **options)  # type: ignore[arg-type]
    whole = not len(x) or x.layout != torch.strided  # sparse inputs cannot be split, and are refused
    return join([certifier(part) for part in ([x] if whole else x.split(batch_size))])


def certified_radius(model: nn.Module, x: Tensor, *, batch_size: int = 500, **options: object) -> Tensor:
    """Return a radius for each input (N, …) within which the prediction of `plain(model)` in float64 cannot change.

    float64, (N,); 0 where nothing is proved (equal logits, NaN, infinities). `options` are those of `Certifier`.
    """
    return certify(model, x, batch_size=batch_size, **options).radius


def _check_range(limits: tuple[float, float]) -> tuple[float, float]:
    pair = isinstance(limits, (tuple, list)) and [isinstance(n, (int, float)) for n in limits] == [True, True]
    require(pair and -math.inf < limits[0] < limits[1] < math.inf, "an input range such as (0, 1)", limits)
    return float(limits[0]), float(limits[1])


# Rounding towards the safe side -----------------------------------------------------------------------------------


def _up(value: Tensor) -> Tensor:
    return torch.nextafter(value, torch.full_like(value, math.inf))


def _down(value: Tensor) -> Tensor:
    return torch.nextafter(value, torch.full_like(value, -math.inf))


def _norm_up(x: Tensor) -> Tensor:
    """Return upper bounds of the norms of float64 inputs, with what covers squares that vanish."""
    flat = x.flatten(1)
    norms = torch.linalg.vector_norm(flat, dim=1) * (1 + gamma(flat.shape[1] + 8))
    return _up(_up(norms) + mul_up(2.0**-511, sqrt_up(float(flat.shape[1]))))


def _stretch(p: float, dimension: int) -> float:
    """Return the stretch in ‖·‖_2 ≤ stretch·‖·‖_p for vectors of so many numbers."""
    power = 0.0 if p <= 2 else 0.5 - (0.0 if p == math.inf else 1 / p)
    return 1.0 if power == 0 else up(up(float(dimension) ** up(power)) * (1 + 2.0**-50))


@contextmanager
def _sums_as_they_are(arithmetic: str, x: Tensor) -> Iterator[None]:
    """Switch off autocast, TF32, Winograd and FFT, which libraries may otherwise choose."""
    without_autocast = torch.autocast(x.device.type, enabled=False)
    with without_autocast, torch.backends.cudnn.flags(enabled=False), torch.backends.nnpack.flags(enabled=False):
        if arithmetic == "float64":
            yield
            return
        precision, onednn = torch.get_float32_matmul_precision(), torch._C._get_mkldnn_enabled()
        torch.set_float32_matmul_precision("highest")
        torch._C._set_mkldnn_enabled(False)  # torch.backends.mkldnn.flags warns of Intel GPUs
        try:
            yield
        finally:
            torch._C._set_mkldnn_enabled(onednn)
            torch.set_float32_matmul_precision(precision)
