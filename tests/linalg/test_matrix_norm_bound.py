"""The bound of a matrix's norm. That it is above is proved for each matrix here, by exact rational arithmetic."""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import torch
from torch import Tensor

from isoconv.errors import IsoconvError
from isoconv.linalg import matrix_norm_bound
from isoconv.linalg.bounds import _frobenius
from linalg.linalg_reference import DEVICES, exact, norm_at_most, normal, orthonormal, spectral_norm

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
SHAPES = [(1, 1), (1, 5), (5, 1), (2, 2), (3, 4), (6, 6), (8, 3)]


def proved(matrix: Tensor, bound: float) -> bool:
    return norm_at_most(exact(matrix), bound)


def test_the_proof_itself_can_fail():
    """norm_at_most decides by a hair: ‖[3 4]‖ = 5, ‖H‖ = √2."""
    row, hadamard = torch.tensor([[3.0, 4.0]]), torch.tensor([[1.0, 1.0], [1.0, -1.0]])
    assert proved(row, 5.0)
    assert not proved(row, math.nextafter(5.0, 0))
    assert math.sqrt(2.0) ** 2 > 2
    assert proved(hadamard, math.sqrt(2.0))
    assert not proved(hadamard, math.nextafter(math.sqrt(2.0), 0))
    assert not proved(torch.tensor([[0.0, 1.0], [1.0, 0.0], [1.0, 2.0]]), 2.0)
    assert proved(torch.zeros(2, 3), 0.0)
    for seed in range(20):
        a = normal(4, 3, seed=seed)
        norm = float(np.linalg.norm(a.numpy(), 2))
        assert proved(a, norm * (1 + 1e-14))
        assert not proved(a, norm * (1 - 1e-14))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_is_a_bound_and_close(shape, dtype):
    for seed in range(5):
        a = normal(*shape, seed=seed).to(dtype)
        bound = matrix_norm_bound(a)
        assert proved(a, bound)
        with mpmath.workdps(40):
            true = mpmath.svd_r(mpmath.matrix(a.double().tolist()), compute_uv=False)[0]
            # Gram iteration ends at most n^(1/2^15) above; what rounding adds is far below.
            assert bound <= true * (min(shape) ** 2.0**-15 + 1e-12)


@pytest.mark.parametrize(
    ("dtype", "scale"),
    [(torch.float64, s) for s in (1e-308, 1e-200, 1e-160, 1.001, 1e160, 1e307)]
    + [(torch.float32, s) for s in (1e-44, 1e-30, 1e37)]
    + [(torch.float16, 1e-7), (torch.float16, 1e4), (torch.bfloat16, 1e-39), (torch.bfloat16, 1e30)],
)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_any_scale(shape, dtype, scale):
    a = (scale * normal(*shape, seed=7)).to(dtype)
    bound = matrix_norm_bound(a)
    assert proved(a, bound)
    if not a.any():
        return
    exponent = math.frexp(float(a.double().abs().max()))[1]
    unit = torch.ldexp(torch.ldexp(a.double(), torch.tensor(-exponent // 2)), torch.tensor(-exponent - -exponent // 2))
    smallest = math.ldexp(1.0, -1073 - exponent)  # two subnormal steps
    assert math.ldexp(bound, -exponent) <= spectral_norm(unit) * (1 + 1e-4) + smallest


def adversaries() -> dict[str, Tensor]:
    eps = np.finfo(float).eps
    hadamard = torch.tensor([[1.0, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]], dtype=torch.float64)
    graded = normal(4, 4, seed=1)
    found = {
        "below one": torch.full((1, 1), 1 - eps / 2, dtype=torch.float64),
        "above one": torch.full((1, 1), 1 + eps, dtype=torch.float64),
        "smallest": torch.full((1, 1), math.ulp(0.0), dtype=torch.float64),
        "largest": torch.full((1, 1), 1.7976931348623157e308, dtype=torch.float64),
        "all largest": torch.full((3, 3), 1.7976931348623157e308, dtype=torch.float64),
        "all smallest": torch.full((3, 5), math.ulp(0.0), dtype=torch.float64),
        "hadamard": hadamard,
        "nearly hadamard": hadamard + eps * normal(4, 4, seed=2).sign(),
        "nearly identity": torch.eye(5, dtype=torch.float64) * (1 + eps) - eps / 2 * torch.ones(5, 5),
        "ones less an ulp": torch.full((5, 4), 1 - eps / 2, dtype=torch.float64),
        "parallel rows": torch.stack([normal(6, seed=3), normal(6, seed=3) * (1 + eps)]),
        "one entry": torch.nn.functional.pad(torch.full((1, 1), 1e-200, dtype=torch.float64), (2, 1, 1, 3)),
        "columns 1 and 1e-160": normal(4, 5, seed=6)
        * torch.tensor([1.0, 1e-160, 1.0, 1e-160, 1e-300], dtype=torch.float64),
        "jordan": torch.diag(torch.ones(4, dtype=torch.float64)) + torch.diag(torch.ones(3, dtype=torch.float64), 1),
        "mean diagonal zero after rounding": graded * 2.0 ** (-60 * torch.arange(4, dtype=torch.float64))[:, None],
    }
    # Entries whose squares, or whose products with the largest, fall just above and below what a float can hold.
    for power in (-511, -512, -536, -537, -538, -900, -901, -1021, -1022, -1023, -1074):
        small = torch.full((3, 3), 2.0**power, dtype=torch.float64)
        found[f"all 2^{power}"] = small * (1 + eps)
        found[f"one and 2^{power}"] = small.clone().fill_diagonal_(1.0)
        found[f"off the diagonal 2^{power}"] = torch.eye(3, dtype=torch.float64) + small
    return found


ADVERSARIES = adversaries()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ADVERSARIES)
def test_adversaries(name, device):
    a = ADVERSARIES[name]
    for matrix in (a, a.mT, -a, a.flip(0), a.contiguous().mT[:1], a[:, :1]):
        assert proved(matrix, matrix_norm_bound(matrix.to(device)))


def test_random_exponents():
    """Entries of all magnitudes in one matrix, 400 times."""
    rng = np.random.default_rng(0)
    powers = [0, 0, 0, -1, -26, -53, -160, -500, -537, -1000, -1074, 400, 900]
    for _ in range(400):
        shape = tuple(rng.integers(1, 5, 2))
        a = torch.tensor(np.ldexp(rng.standard_normal(shape), rng.choice(powers, size=shape)))
        assert proved(a, matrix_norm_bound(a))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [(10, 10), (100, 300), (512, 512)], ids=str)
@pytest.mark.parametrize(("dtype", "within"), [(torch.float64, 1e-10), (torch.float32, 1e-6), (torch.float16, 5e-3)])
def test_orthonormal_and_random_matrices_are_bounded_tightly(shape, dtype, within, device):
    a = orthonormal(*shape).to(device, dtype)
    for scale in (1.0, 1.001, 1e-8):
        scaled = a.double() * scale
        true, bound = spectral_norm(scaled), matrix_norm_bound(scaled)
        assert true * (1 - 1e-13) <= bound <= true * (1 + within)
    random = normal(*shape, seed=8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        true, bound = spectral_norm(random), matrix_norm_bound(torch.nn.Parameter(random.to(device)))
    assert true * (1 - 1e-13) <= bound <= true * (min(shape) ** 2.0**-15 + 1e-10)


def test_half_precision_of_an_orthonormal_matrix_stays_within_the_promise_of_the_gram_iteration():
    """A spectrum that is flat but for bfloat16's rounding: neither near a multiple of I nor with a gap to feed on."""
    a = orthonormal(512, 512).bfloat16()
    true = spectral_norm(a)
    assert true <= matrix_norm_bound(a) <= true * 512**2.0**-14


@pytest.mark.parametrize("shape", [(3, 4), (0, 4), (3, 0), (0, 0)], ids=str)
def test_nothing_and_zeros(shape):
    assert matrix_norm_bound(torch.zeros(shape)) == 0.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_subnormal_weights_where_the_processor_flushes_them(dtype):
    """A bound of zero would be no bound. It may refuse."""
    a = torch.full((3, 3), torch.finfo(dtype).tiny / 16, dtype=dtype)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor does not flush")
    try:
        bound = matrix_norm_bound(a)
    except IsoconvError:
        bound = math.inf
    finally:
        torch.set_flush_denormal(False)
    assert proved(a, bound)


@pytest.mark.parametrize("entry", [1.0, 1e-155, 2.0**-530, 1e-162, 1e-250, math.ulp(0.0)])
@pytest.mark.parametrize("shape", [(1, 1), (4, 4), (30, 7)], ids=str)
def test_the_frobenius_norm_is_rounded_up_where_squares_underflow(shape, entry):
    """All bounds are sums of these."""
    matrix = torch.full(shape, entry, dtype=torch.float64)
    assert Fraction(_frobenius(matrix)) ** 2 >= math.prod(shape) * Fraction(entry) ** 2
