"""What is impossible: orthogonal zero padding, orthogonal residual connections, spectral normalisation by Euclidean steps.

And what is possible, dynamical isometry.

Note [Zero padding]
A tap at offset j meets the padding at |j| of the positions, and there its share of the norm is lost. For a kernel
that is orthogonal with circular padding, the zero-padded operator M is a piece of an orthogonal operator on longer
signals, so I − MMᵀ ⪰ 0, and on signals of at least the kernel's length the trace counts what is lost:

    tr(I − MMᵀ) = Σ_j |j|·‖A_j‖²_F.

So M is orthogonal only if all outer taps vanish. The paper's proof assumes only that M itself is orthogonal, and
compares the first and the last block row, which lack the taps of one side, with one in the middle, which has all:
this needs a signal as long as the kernel. On a shorter one it is false: the taps (−sin θ, cos θ, sin θ) give, on
signals of length 2, the rotation by θ.

Note [Residual connections]
For g = (f + x)/2 with Lip f ≤ 1 and J the Jacobian of f, the parallelogram law gives, for every unit vector v,

    1 − ‖(J + I)v/2‖² = 1 − ½‖Jv‖² − ½ + ¼‖(J − I)v‖² ≥ ¼‖(J − I)v‖²,

so g preserves gradient norms only where J = I: f is the identity plus a constant. Without the ½, Lip f = L guarantees
no more than Lip(x + f) ≤ 1 + L, attained by f = Lx: no bound of 1 unless f is constant. But a particular f can do:
with a rotation R, f(x) = (R − I)x has Lip f = ‖R − I‖ > 0 and x + f(x) = Rx is orthogonal.

Note [Spectral normalisation]
The paper, appendix "Optimizing under spectral normalization": dividing a matrix by its spectral norm is a projection
onto {‖A‖₂ ≤ 1} for the operator norm, not for the Frobenius norm. Joined to the Euclidean gradient it can converge to
a point that is no solution; joined to the steepest direction of its own norm, it reaches the solution.

Note [Dynamical isometry]
A composition of orthogonal layers and MaxMin has a Jacobian with orthonormal rows wherever no layer enlarges the
dimension: all its singular values are 1. A layer that enlarges it, say from 3 to 12 channels, has orthonormal columns
instead; what follows can then remove some of the directions that carry the input, and the network keeps singular
values of at most 1.

(The paper, appendix D.)
"""

from collections.abc import Callable
from math import cos, sin

import torch
from torch import Tensor

from isoconv.errors import require
from isoconv.theory.one_dimensional import describe, is_square, require_one_shape


def zero_padded_matrix(kernel: Tensor, length: int) -> Tensor:
    """Return the block Toeplitz matrix (length·c_out, length·c_in) of a zero-padded 1-D convolution of odd size.

    Block (i, j) is the tap at offset j − i, as `conv1d(x, kernel, padding=K // 2)` applies it; positions are the outer
    index, channels the inner one. In the precision of the kernel.
    """
    half = _half(kernel)
    require(length >= 1, "a length of at least 1", length)
    reach = min(half, length - 1)
    shifts = {j: torch.diag(kernel.new_ones(length - abs(j)), j) for j in range(-reach, reach + 1)}
    return torch.stack([torch.kron(shift, kernel[:, :, j + half]) for j, shift in shifts.items()]).sum(0)


def zero_padding_loss(kernel: Tensor) -> Tensor:
    """Return Σ_j |j|·‖A_j‖²_F, which is tr(I − MMᵀ) for an orthogonal kernel on long signals; see Note [Zero padding]."""
    half = _half(kernel)
    offsets = torch.arange(-half, half + 1, dtype=kernel.dtype, device=kernel.device).abs()
    return (kernel.square().sum((0, 1)) * offsets).sum()


def halved_residual_loss(jacobian: Tensor) -> tuple[Tensor, Tensor]:
    """Return how far g = (f + x)/2 is from preserving norms, and ¼‖J − I‖²_F, for the Jacobian J of f, ‖J‖₂ ≤ 1.

    The first, tr(I − GᵀG) with G = (J + I)/2, is never below the second; see Note [Residual connections].
    """
    require(is_square(jacobian), "a square Jacobian (n, n)", describe(jacobian))
    finite = bool(jacobian.isfinite().all())
    norm = float(torch.linalg.matrix_norm(jacobian, ord=2)) if finite else float("nan")
    tolerance = 10 * len(jacobian) * torch.finfo(jacobian.dtype).eps
    require(norm <= 1 + tolerance, "a Jacobian of norm at most 1", f"{norm:.6g}")
    eye = torch.eye(len(jacobian), dtype=jacobian.dtype, device=jacobian.device)
    averaged = (jacobian + eye) / 2
    return (eye - averaged.mT @ averaged).trace(), (jacobian - eye).square().sum() / 4


def rotation_branch(angle: float, *, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return the matrix R − I of a residual branch f for which x + f(x) is a rotation of the plane by `angle`."""
    return torch.tensor([[cos(angle) - 1, -sin(angle)], [sin(angle), cos(angle) - 1]], dtype=dtype)


def _half(kernel: Tensor) -> int:
    odd = kernel.dim() == 3 and kernel.shape[-1] % 2 == 1
    require(odd, "a 1-D kernel (c_out, c_in, K) of odd size", describe(kernel))
    return kernel.shape[-1] // 2


def steepest_direction(gradient: Tensor) -> Tensor:
    """Return −U·1[Λ ≠ 0]·Vᵀ for the gradient G = UΛVᵀ: the Lemma "Steepest descent by matrix 2-norm"; batched.

    Among all D with ‖D‖₂ ≤ 1 it minimises Tr(GDᵀ), and the minimum is −‖G‖_*, minus the sum of the singular values.
    Those below max(m, n)·eps·λ_max count as zero. A zero gradient gives a zero direction. In the precision of the
    gradient.
    """
    fits = gradient.dim() >= 2 and gradient.is_floating_point()
    require(fits, "a floating-point matrix (…, m, n)", describe(gradient))
    require(bool(gradient.isfinite().all()), "a finite gradient", "infinities or NaN")
    left, values, right = torch.linalg.svd(gradient, full_matrices=False)
    threshold = max(gradient.shape[-2:]) * torch.finfo(gradient.dtype).eps * values[..., :1]
    return -(left * (values > threshold)[..., None, :]) @ right


def ascend(D: Tensor, start: Tensor, *, steepest: bool, rate: float = 0.1, steps: int = 500) -> Tensor:
    """Maximise Tr(ADᵀ) over ‖A‖₂ ≤ 1 from `start`, each step followed by one-sided spectral normalisation, A / max(1, ‖A‖₂).

    The paper's counter-example is D = diag(2, 1), whose maximiser is I. With `steepest=False` each step is rate·D, the
    Euclidean gradient. A fixed point then satisfies A + rate·D = cA, so it is D/‖D‖₂ = diag(1, ½) wherever one starts.
    With `steepest=True` each step is rate times the Lemma's direction, and the fixed point is the polar factor of D: I.
    """
    require_one_shape("matrices", D, start)
    direction = -steepest_direction(D) if steepest else D
    A = start
    for _ in range(steps):
        A = A + rate * direction
        A = A / torch.linalg.matrix_norm(A, ord=2).clamp_min(1.0)
    return A


def jacobian_spectrum(model: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return the singular values of the Jacobian of `model` at one input, in descending order: min(outputs, inputs) of them.

    `x` is a batch of one, (1, …). A model with parameters should be in evaluation mode, so that the same function is
    differentiated for every output. In the precision of the input and the model; one backward pass for each output.
    """
    fits = x.dim() >= 2 and x.shape[0] == 1 and x.is_floating_point()
    require(fits, "a floating-point batch of one input (1, …)", describe(x))
    jacobian = torch.autograd.functional.jacobian(model, x.detach())
    return torch.linalg.svdvals(jacobian.reshape(-1, x.numel()))
