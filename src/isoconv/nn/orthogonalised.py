"""Layers built from orthonormal matrices, and the two ways to have them.

* "manifold" (the default): the parameter itself stays orthonormal; see Note [Staying on the manifold] in
  `isoconv.linalg.manifold`. After any optimiser's step the next training pass brings it back.
* "bjorck": the paper's way. The parameter is unconstrained; 20 first-order Björck steps, differentiated through.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from isoconv.errors import IsoconvError
from isoconv.linalg.bjorck import bjorck
from isoconv.linalg.manifold import on_manifold, retract
from isoconv.nn.built_weight import BuiltWeight
from isoconv.nn.side_streams import in_parts

ORTHOGONALISATIONS = ("manifold", "bjorck")
_BLIND_STEPS = 1  # enough after a step of 0.02 in operator norm; what a longer one leaves, the next retraction takes


class OrthogonalisedLayer(BuiltWeight):
    """A layer some of whose parameters stand for orthonormal matrices (batches of them), named in `_matrix_names`."""

    _matrix_names: tuple[str, ...] = ()

    def __init__(self, orthogonalisation: str) -> None:
        super().__init__()
        if orthogonalisation not in ORTHOGONALISATIONS:
            raise IsoconvError(
                f"Expected orthogonalisation to be one of {ORTHOGONALISATIONS}. Got {orthogonalisation!r}."
            )
        self.orthogonalisation = orthogonalisation

    def _matrices(self) -> list[nn.Parameter]:
        found = (getattr(self, name) for name in self._matrix_names)
        return [parameter for parameter in found if parameter is not None]

    def _sources(self) -> tuple[Tensor, ...]:
        return tuple(self._matrices())

    def _orthonormal(self, matrix: Tensor) -> Tensor:
        """The orthonormal matrix (or matrices) that a parameter stands for, differentiable."""
        batch = matrix.flatten(0, -3) if matrix.dim() > 3 else matrix
        if self.orthogonalisation == "bjorck":
            return bjorck(batch, iterations=20, order=1).reshape(matrix.shape)
        return on_manifold(batch, None if self._written_back else _retracted(batch)).reshape(matrix.shape)

    def _write_back(self) -> bool:
        return self._bring_back(self._matrices())

    def _bring_back(self, matrices: Sequence[Tensor]) -> bool:
        """Put the orthonormal matrices that these stand for in their place, where that is how it is done."""
        # Half precision cannot hold an orthonormal matrix; there only the built weight is retracted, in float32.
        precise = all(matrix.dtype in (torch.float32, torch.float64) for matrix in matrices)
        if self.orthogonalisation == "bjorck" or not precise or not all(matrix.requires_grad for matrix in matrices):
            return False
        if torch.compiler.is_compiling():
            for matrix in matrices:
                matrix.copy_(_retracted(matrix))
        else:
            in_parts([partial(_retract_in_place, matrix) for matrix in matrices])
        return True

    def _reset_matrices(self, gain: float) -> None:
        """Random orthonormal matrices; times `gain` in the paper's way, where the scale is the parameter's own."""
        with torch.no_grad():
            for parameter in self._matrices():
                if parameter.is_meta:
                    continue
                for matrix in parameter.reshape(-1, *parameter.shape[-2:]):
                    precise = torch.empty_like(matrix, dtype=torch.promote_types(matrix.dtype, torch.float32))
                    nn.init.orthogonal_(precise, gain if self.orthogonalisation == "bjorck" else 1.0)
                    matrix.copy_(precise)


def _retract_in_place(matrix: Tensor) -> None:
    retracted = _retracted(matrix)
    if retracted.data_ptr() != matrix.data_ptr():
        matrix.copy_(retracted)


def _retracted(matrix: Tensor) -> Tensor:
    """Retract looking at the matrix where Python may, blindly where it is traced, transformed or captured.

    A captured step is one of training, where ten bits of the correction are enough; evaluation always looks.
    """
    if torch.compiler.is_compiling() or torch._C._functorch.is_functorch_wrapped_tensor(matrix):
        return retract(matrix, steps=_BLIND_STEPS)
    capturing = matrix.is_cuda and torch.cuda.is_current_stream_capturing()
    return retract(matrix, steps=_BLIND_STEPS, precision="high") if capturing else retract(matrix)
