"""Layers built from orthonormal matrices, and the two ways to have them.

* "manifold" (the default): the parameter itself stays orthonormal; see Note [Staying on the manifold] in
  `isoconv.linalg.manifold`. After any optimiser's step the next training pass brings it back.
* "bjorck": the paper's way. The parameter is unconstrained; 20 first-order Björck steps, differentiated through.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from isoconv.errors import IsoconvError
from isoconv.linalg.manifold import on_manifold, retract
from isoconv.linalg.polar import bjorck
from isoconv.nn.built_weight import BuiltWeight

ORTHOGONALISATIONS = ("manifold", "bjorck")


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

    def _settle(self, *sources: Tensor, steps: int | None = None) -> tuple[Tensor, ...]:
        if self.orthogonalisation == "bjorck":
            return sources
        # A step that works blindly is one of training, where ten bits of the correction are enough.
        return tuple(retract(source, steps, "highest" if steps is None else "high") for source in sources)

    def _join(self, sources: Sequence[Tensor], points: Sequence[Tensor]) -> Sequence[Tensor]:
        if self.orthogonalisation == "bjorck":
            return points
        return [on_manifold(source, point) for source, point in zip(sources, points, strict=True)]

    @property
    def _writes_back(self) -> bool:
        # Half precision cannot hold an orthonormal matrix; there only the built weight is retracted, in float32.
        matrices = self._sources()
        precise = all(matrix.dtype in (torch.float32, torch.float64) for matrix in matrices)
        return self.orthogonalisation == "manifold" and precise and all(matrix.requires_grad for matrix in matrices)

    def _orthonormal(self, point: Tensor) -> Tensor:
        """Return the orthonormal matrix (or matrices) of a settled parameter, differentiable."""
        if self.orthogonalisation == "manifold":
            return point
        batch = point.flatten(0, -3) if point.dim() > 3 else point
        return bjorck(batch, iterations=20, order=1).reshape(point.shape)

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
