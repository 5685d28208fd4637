"""What takes no training: the counts of parameters, and the numbers behind the paper's two drawings."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import torch

from isoconv.linalg import projector_pair_1d
from isoconv.models import FC3, DCGANCritic, Large, Small
from isoconv.nn import InvertibleDownsampling, InvertibleUpsampling, plain
from isoconv.nn.convolution import convolve_same
from isoconv.train.reproduction.cells import Cell, MeasuredCell
from isoconv.version import __version__

_SHAPES = {"mnist": (1, 28, 28), "cifar10": (3, 32, 32), "stl10": (3, 64, 64)}
_NETWORKS = {"small": Small, "large": Large, "fc3": FC3}
_COUNTED = ("bcop", "rko", "ossn", "svcm", "rkl2ne")


def with_instant(cells: Sequence[Cell], results: dict[Cell, dict[str, Any]]) -> dict[Cell, dict[str, Any]]:
    """The results, and those of instant cells, which nobody needs to ask for."""
    instant = [cell for cell in cells if isinstance(cell, MeasuredCell) and cell.instant and cell not in results]
    return results | {cell: instant_record(cell) for cell in instant}


def instant_record(cell: MeasuredCell) -> dict[str, Any]:
    found = {
        "parameters": _parameters,
        "figure-bconv": _block_convolution,
        "figure-downsampling": _downsampling,
    }[cell.name]()
    return {**cell.identity(), "status": "ok", **found, "isoconv": __version__}


def _parameters() -> dict[str, Any]:
    """Effective, as the paper counts: entries of the kernels that are applied, and biases. Raw: what is trained."""
    rows = []
    for dataset, model in product(("mnist", "cifar10"), _NETWORKS):
        for conv in _COUNTED if model != "fc3" else ("bcop",):
            network = _NETWORKS[model](_SHAPES[dataset], conv=conv)
            rows.append(_counted(network, dataset, model, None if model == "fc3" else conv))
    rows += [_counted(DCGANCritic(_SHAPES["stl10"], conv=conv), "stl10", "dcgan", conv) for conv in _COUNTED]
    return {"results": rows}


def _counted(network: torch.nn.Module, dataset: str, model: str, conv: str | None) -> dict[str, Any]:
    raw, effective = (sum(p.numel() for p in part.parameters()) for part in (network, plain(network)))
    return {"dataset": dataset, "model": model, "conv": conv, "raw": raw, "effective": effective}


def _block_convolution() -> dict[str, Any]:
    """[P  I−P] on a signal of three places and two channels, P the projection onto the first: two parts and their sum.

    As PyTorch counts taps, P meets the place before (the first one's is the last), I−P the place itself.
    """
    signal = torch.tensor([[1.0, -0.6, 0.4], [0.7, 0.9, -0.8]], dtype=torch.float64)
    projector = torch.tensor([[1.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    kernel = projector_pair_1d(projector)

    def applied(part: torch.Tensor) -> torch.Tensor:
        return convolve_same(signal[None], part, None, "circular", [(1, 0)])[0]

    moved, kept = kernel.clone(), kernel.clone()
    moved[:, :, 1], kept[:, :, 0] = 0, 0
    parts = {"moved": applied(moved), "kept": applied(kept), "output": applied(kernel)}
    norms = {"input": float(signal.norm()), "output": float(parts["output"].norm())}
    figures = {name: value.tolist() for name, value in parts.items()}
    return {"projector": projector.tolist(), "input": signal.tolist(), **figures, "norms": norms}


def _downsampling() -> dict[str, Any]:
    """An image of 4×4 with its pixels numbered, its four channels of 2×2 after downsampling, and back again."""
    image = torch.arange(1.0, 17.0).reshape(1, 1, 4, 4)
    channels = InvertibleDownsampling(2)(image)
    back = InvertibleUpsampling(2)(channels)
    return {
        "input": image[0, 0].int().tolist(),
        "channels": channels[0].int().tolist(),
        "back": back[0, 0].int().tolist(),
        "inverted": bool(torch.equal(back, image)),
    }
