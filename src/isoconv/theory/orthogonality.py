"""How far a kernel or a whole network is from orthogonal, and the checks that every theorem here begins with.

Note [Dynamical isometry]
A composition of orthogonal layers and MaxMin has a Jacobian with orthonormal rows wherever no layer enlarges the
dimension: all its singular values are 1. A layer that enlarges it, say from 3 to 12 channels, has orthonormal columns
instead; what follows can then remove some of the directions that carry the input, and the network keeps singular
values of at most 1.

(The paper, appendix D.)
"""

from collections.abc import Callable

import torch
from torch import Tensor

from isoconv.linalg.bcop import block_convolve, is_projector, projector_rank
from isoconv.records import require


def orthogonality_residual(kernel: Tensor) -> float:
    """Return the largest entry of W □ Wᵀ − I, or of Wᵀ □ W − I if there are more outputs than inputs; computed in float64.

    Wᵀ is the adjoint convolution: matrices transposed, taps reversed. The residual is zero exactly if the circular
    convolution with this 1-D or 2-D kernel is orthogonal on every image that is large enough for its taps not to meet.
    """
    weight = kernel.detach().double()
    adjoint = weight.transpose(0, 1).flip(tuple(range(2, weight.dim())))
    product = block_convolve(weight, adjoint) if weight.shape[0] <= weight.shape[1] else block_convolve(adjoint, weight)
    centre = product.movedim((0, 1), (-2, -1))[tuple(size - 1 for size in weight.shape[2:])]
    centre -= torch.eye(len(centre), dtype=product.dtype, device=product.device)  # in place, in `product`
    return float(product.abs().max())


def orthogonality_tolerance(kernel: Tensor) -> float:
    """Return what rounding may leave of `orthogonality_residual`: ten times the terms of one sum times eps of the kernel."""
    return 10 * kernel[0].numel() * torch.finfo(kernel.dtype).eps


def require_orthogonal(kernel: Tensor, dimensions: int, tolerance: float | None = None) -> float:
    """Raise if this is not the kernel of a square orthogonal convolution to the tolerance, and return that."""
    shape = "(n, n" + ", K" * dimensions + ")"
    square = kernel.dim() == 2 + dimensions and kernel.shape[0] == kernel.shape[1] and len(set(kernel.shape[2:])) == 1
    fits = square and kernel.numel() > 0 and kernel.is_floating_point()
    require(fits, f"a square floating-point kernel {shape}", describe(kernel))
    tolerance = orthogonality_tolerance(kernel) if tolerance is None else tolerance
    residual = orthogonality_residual(kernel)
    bound = f"an orthogonal kernel, ‖W □ Wᵀ − I‖_max ≤ {tolerance:.1e}"
    require(residual <= tolerance, bound, f"a residual of {residual:.1e}")  # NaN is refused too
    return tolerance


def require_orthonormal_rows(matrix: Tensor) -> None:
    """Raise if the rows of H, which BCOP's kernels are built on, are not orthonormal."""
    residual = orthogonality_residual(matrix[..., None]) if matrix.dim() == 2 and matrix.numel() else float("nan")
    got = f"a residual of {residual:.1e} at shape {tuple(matrix.shape)}"
    require(residual <= orthogonality_tolerance(matrix), "H to have orthonormal rows", got)


def require_projector(projector: Tensor) -> int:
    """Return the rank of a symmetric projector, and raise if this is none."""
    fits = projector.dim() == 2 and projector.is_floating_point() and is_projector(projector)
    require(fits, "a symmetric projector, P = Pᵀ = P²", describe(projector))
    return int(projector_rank(projector))


def range_basis(projector: Tensor) -> Tensor:
    """Return an orthonormal basis (n, rank) of the range of a symmetric projector."""
    rank = require_projector(projector)
    # Eigenvalues come in ascending order, and a projector's are zeros and ones.
    return torch.linalg.eigh((projector + projector.mT) / 2).eigenvectors[:, len(projector) - rank :]


def leading_projector(n: int, rank: int, dtype: torch.dtype) -> Tensor:
    """Return diag(1, …, 1, 0, …, 0) with `rank` ones."""
    return torch.diag((torch.arange(n) < rank).to(dtype))


def signed_identity(n: int, sign: int, dtype: torch.dtype) -> Tensor:
    """Return diag(sign, 1, …, 1)."""
    return torch.diag(torch.tensor([sign] + [1] * (n - 1), dtype=dtype))


def describe(tensor: Tensor) -> str:
    """Return the type and shape of a tensor in words."""
    return f"{tensor.dtype} of shape {tuple(tensor.shape)}"


def is_square(matrix: Tensor) -> bool:
    return matrix.dim() == 2 and matrix.shape[0] == matrix.shape[1]


def require_one_shape(what: str, a: Tensor, b: Tensor) -> None:
    """Raise if two tensors differ in shape."""
    require(a.shape == b.shape, f"two {what} of one shape", f"{tuple(a.shape)} and {tuple(b.shape)}")


def require_orthogonal_matrix(H: Tensor) -> int:
    """Raise if H is not a square orthogonal matrix, and return the sign of its determinant."""
    require(is_square(H), "a square matrix H (n, n)", describe(H))
    require_orthonormal_rows(H)
    return determinant_sign(H)


def determinant_sign(matrix: Tensor) -> int:
    """Return +1 or −1 for an orthogonal matrix."""
    return 1 if float(torch.linalg.det(matrix)) > 0 else -1


def jacobian_spectrum(model: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return the singular values of the Jacobian of `model` at one input, in descending order: min(outputs, inputs) of them.

    `x` is a batch of one, (1, …). A model with parameters should be in evaluation mode, so that the same function is
    differentiated for every output. In the precision of the input and the model; one backward pass for each output.
    """
    fits = x.dim() >= 2 and x.shape[0] == 1 and x.is_floating_point()
    require(fits, "a floating-point batch of one input (1, …)", describe(x))
    jacobian = torch.autograd.functional.jacobian(model, x.detach())
    return torch.linalg.svdvals(jacobian.reshape(-1, x.numel()))
