"""Block reflectors (Lai et al. 2025): I − 2V(VᴴV)⁻¹Vᴴ, frequency by frequency."""

from typing import Any

import torch
from torch import Tensor

from isoconv.errors import require
from isoconv.linalg.matrices import identity_like
from isoconv.nn.torus import TorusConv2d, approach_unitary


class BROConv2d(TorusConv2d):
    """The reflection I − 2P at each frequency, P the projector onto the columns of V, the parameter's transform.

    Arguments as for `torch.nn.Conv2d`, with "same" padding, circular, `input_size`, the height and width of the layer's
    input, and `rank`, the number of columns; by default a quarter of the channels. Where the numbers of channels differ,
    the reflection works on the larger one, and inputs or outputs are left out.

    Note [Regularised projector]. VᴴV may be singular, so V(VᴴV + εI)⁻¹Vᴴ stands for P, ε a hundred roundings of tr VᴴV. Its
    eigenvalues σ²/(σ² + ε) lie in [0, 1], those of the reflection in [−1, 1], and three steps of Newton–Schulz bring them to
    ±1, unless V is close to losing rank. Then the layer is not orthogonal, but still 1-Lipschitz.
    """

    def __init__(self, *arguments: Any, rank: int | None = None, **keywords: Any) -> None:
        require(rank is None or (isinstance(rank, int) and rank >= 1), "a rank of at least 1", repr(rank))
        self._rank = rank
        super().__init__(*arguments, **keywords)

    def _channels(self, most: int) -> tuple[int, int]:
        rank = max(1, most // 4) if self._rank is None else self._rank
        require(rank <= most, f"a rank of at most {most}", rank)
        return most, rank

    def _transform(self, symbol: Tensor) -> Tensor:
        numbers = torch.finfo(symbol.dtype)
        basis = symbol / symbol.detach().abs().amax().clamp_min(numbers.tiny)  # the scale does not matter
        gram = basis.mH @ basis
        trace = gram.diagonal(dim1=-2, dim2=-1).real.sum(-1)[..., None, None]
        room = (100 * numbers.eps * trace).clamp_min(numbers.tiny) * identity_like(gram)
        projector = basis @ torch.linalg.inv_ex(gram + room).inverse @ basis.mH
        return approach_unitary(identity_like(projector) - 2 * projector, 3)
