"""How far a kernel is from an orthogonal convolution, and the check that every theorem here begins with."""

import torch
from torch import Tensor

from isoconv.errors import IsoconvError
from isoconv.linalg.bcop import block_convolve, is_projector, projector_rank


def orthogonality_residual(kernel: Tensor) -> float:
    """The largest entry of W □ Wᵀ − I, or of Wᵀ □ W − I if there are more outputs than inputs; computed in float64.

    Wᵀ is the adjoint convolution: matrices transposed, taps reversed. The residual is zero exactly if the circular
    convolution with this 1-D or 2-D kernel is orthogonal on every image that is large enough for its taps not to meet.
    """
    weight = kernel.detach().double()
    adjoint = weight.transpose(0, 1).flip(tuple(range(2, weight.dim())))
    product = block_convolve(weight, adjoint) if weight.shape[0] <= weight.shape[1] else block_convolve(adjoint, weight)
    identity = torch.zeros_like(product)
    identity.movedim((0, 1), (-2, -1))[tuple(size - 1 for size in weight.shape[2:])] = torch.eye(
        product.shape[0], dtype=product.dtype, device=product.device
    )
    return float((product - identity).abs().max())


def orthogonality_tolerance(kernel: Tensor) -> float:
    """What rounding may leave of `orthogonality_residual`: ten times the terms of one sum times eps of the kernel."""
    return 10 * kernel[0].numel() * torch.finfo(kernel.dtype).eps


def require_orthogonal(kernel: Tensor, dimensions: int, tolerance: float | None = None) -> None:
    """Refuse everything that is not the kernel of a square orthogonal convolution, and say by how much it is not."""
    shape = "(n, n" + ", K" * dimensions + ")"
    square = kernel.dim() == 2 + dimensions and kernel.shape[0] == kernel.shape[1] and len(set(kernel.shape[2:])) == 1
    if not (square and kernel.numel() and kernel.is_floating_point()):
        raise IsoconvError(
            f"Expected a square floating-point kernel {shape}. Got {kernel.dtype} of shape {tuple(kernel.shape)}."
        )
    tolerance = orthogonality_tolerance(kernel) if tolerance is None else tolerance
    residual = orthogonality_residual(kernel)
    if not residual <= tolerance:  # so that NaN is refused too
        raise IsoconvError(
            f"Expected an orthogonal kernel, ‖W □ Wᵀ − I‖_max ≤ {tolerance:.1e}. Got a residual of {residual:.1e}."
        )


def require_orthonormal_rows(matrix: Tensor) -> None:
    """Refuse an H whose rows are not orthonormal: what BCOP's kernels are built on."""
    residual = orthogonality_residual(matrix[..., None]) if matrix.dim() == 2 and matrix.numel() else float("nan")
    if not residual <= orthogonality_tolerance(matrix):
        raise IsoconvError(
            f"Expected H to have orthonormal rows. Got a residual of {residual:.1e} at shape {tuple(matrix.shape)}."
        )


def require_projector(projector: Tensor) -> int:
    """The rank of a symmetric projector; anything else is refused."""
    if projector.dim() != 2 or not projector.is_floating_point() or not is_projector(projector):
        raise IsoconvError(f"Expected a symmetric projector, P = Pᵀ = P². Got shape {tuple(projector.shape)}.")
    return int(projector_rank(projector))


def range_and_null(projector: Tensor) -> tuple[Tensor, Tensor]:
    """Orthonormal bases (n, rank) and (n, n − rank) of the range and of the null space of a symmetric projector."""
    rank = require_projector(projector)
    # Eigenvalues come in ascending order, and a projector's are zeros and ones.
    vectors = torch.linalg.eigh((projector + projector.mT) / 2).eigenvectors
    return vectors[:, projector.shape[0] - rank :], vectors[:, : projector.shape[0] - rank]


def nearest_orthogonal(matrix: Tensor) -> Tensor:
    """The orthogonal matrix closest to a square one, which need not be invertible."""
    factors = torch.linalg.svd(matrix)
    nearest: Tensor = factors.U @ factors.Vh
    return nearest


def determinant_sign(matrix: Tensor) -> int:
    """+1 or −1 for an orthogonal matrix."""
    return 1 if float(torch.linalg.det(matrix)) > 0 else -1
