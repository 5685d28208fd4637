"""Retracting large matrices, whose many small errors add up to a large Frobenius norm, from near and from farther away."""

import pytest
import torch

from isoconv.linalg import is_orthonormal, retract


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("shape", [(300, 120), (90, 200), (2, 100, 100)], ids=str)
@pytest.mark.parametrize("distance", [0.02, 0.1, 0.2, 0.35, 0.42, 0.6, 2.0])
def test_a_retraction_is_the_polar_factor(distance: float, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """All singular values off by up to `distance`, one way or the other, and one of them by all of it."""
    generator = torch.Generator().manual_seed(0)
    U, S, V = torch.linalg.svd(torch.randn(shape, dtype=torch.float64, generator=generator), full_matrices=False)
    values = 1 + distance * (2 * torch.rand(S.shape, dtype=torch.float64, generator=generator) - 1)
    values = values.abs().clamp_min(0.05)
    values[..., 0] = 1 + distance
    matrix, factor = (U * values[..., None, :] @ V).to(dtype), U @ V
    result = retract(matrix)
    condition = float(values.max() / values.min())
    assert (result.double() - factor).abs().max() <= 60 * condition * torch.finfo(dtype).eps
    assert is_orthonormal(result) and torch.equal(retract(result), result)
