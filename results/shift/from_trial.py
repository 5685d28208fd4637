"""Make a run that `isoconv certify` takes of weights that trial.py has saved.

    python results/shift/from_trial.py WEIGHTS OUT [--share 0.125] [--settings '{"epochs": 400, "seed": 0}']

WEIGHTS is a .pt or .npz file, or a folder of such files, which may hold parts of tensors: R1.0, R1.1, … are R1, cut along its
first axis. The network must have the size of a preset. Its configuration is the recipe's, changed by --settings: trial.py
does not save its own.

What differs from the trial: matrices are brought to the manifold in float64, and the pooling has no 1e-6 under its root.
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from isoconv.data.datasets import DATASETS
from isoconv.errors import IsoconvError
from isoconv.files import write_tensors
from isoconv.linalg import polar
from isoconv.models import MODELS, ShiftNet
from isoconv.nn import BCOPConv2d, OrthogonalLinear, PositionBias, plain
from isoconv.train import recipe_settings
from isoconv.train.config import TrainConfig
from isoconv.train.run_folder import RunFolder

SHAPE = (3, 32, 32)


def read_weights(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file, or of all files in a folder, by name."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    parts: dict[str, dict[int, Tensor]] = {}
    for file in files:
        if file.suffix == ".npz":
            with np.load(file) as arrays:
                found = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
        elif file.suffix == ".pt":
            found = torch.load(file, map_location="cpu", weights_only=True)
        else:
            continue
        for key, tensor in found.items():
            name, _, number = key.partition(".")
            parts.setdefault(name, {})[int(number or 0)] = tensor
    if not parts:
        raise IsoconvError(f"Expected .pt or .npz files in {path}. Got none.")
    for name, tensors in parts.items():
        if sorted(tensors) != list(range(len(tensors))):
            raise IsoconvError(f"Expected all parts of {name}, from 0 on. Got {sorted(tensors)}.")
    return {name: torch.cat([tensors[k] for k in range(len(tensors))]) for name, tensors in parts.items()}


def sizes_of(weights: Mapping[str, Tensor]) -> dict[str, object]:
    """Return channels, blocks and patch of the network that has these weights."""
    stages = sum(name.startswith("R") for name in weights)
    shapes = [(tuple(weights[f"R{s}"].shape), tuple(weights[f"p{s}"].shape)) for s in range(stages)]
    if not stages or "N" in weights or any(position[-1] != 1 for _, position in shapes):
        raise IsoconvError("Expected R0, R1, …, and neither a neck nor position biases per channel. Got others.")
    grids, widths = [position[1] for _, position in shapes], [matrix[1] for matrix, _ in shapes]
    if any(g != 2 * h for g, h in zip(grids, grids[1:])) or any(4 * c != d for c, d in zip(widths, widths[1:])):
        raise IsoconvError(f"Expected half the grid and four times the channels at each stage. Got {grids}, {widths}.")
    return {"channels": widths[-1], "blocks": tuple(matrix[0] for matrix, _ in shapes), "patch": SHAPE[1] // grids[-1]}


@torch.no_grad()
def build_network(weights: Mapping[str, Tensor], share: float = 1 / 8) -> ShiftNet:
    """Return the network in float32. The trial multiplies rows, x @ R, and numbers the channels of a patch (i, j, c)."""
    sizes = sizes_of(weights)
    model = ShiftNet(SHAPE, weights["H"].shape[1], share=share, **sizes)  # type: ignore[arg-type]
    rotations = iter(m for m in model if isinstance(m, BCOPConv2d) and not m.frozen)
    biases = iter(m for m in model if isinstance(m, PositionBias))
    channels, factor = SHAPE[0], sizes["patch"] // 2 ** (len(sizes["blocks"]) - 1)  # type: ignore[operator,arg-type]
    for stage, count in enumerate(sizes["blocks"]):  # type: ignore[arg-type,var-annotated]
        R, M = (polar(weights[f"{name}{stage}"].double()) for name in "RM")
        width = channels * factor**2
        for block in range(count):
            if block == 0:  # torch numbers the channels of a patch (c, i, j); those beyond were zeros
                patch = R[0, :width].reshape(factor, factor, channels, -1)
                R[0, :width] = patch.permute(2, 0, 1, 3).reshape(width, -1)
            next(biases).bias.copy_(weights[f"p{stage}"][block].flatten())
            first, second = next(rotations), next(rotations)
            first.O.copy_(R[block].mT)
            second.O.copy_(M[block].mT)
            second.bias.copy_(weights[f"b{stage}"][block])
        channels, factor = R.shape[-1], 2
    head = model[-1]
    assert isinstance(head, OrthogonalLinear) and isinstance(head.bias, nn.Parameter)
    head.matrix.copy_(polar(weights["H"].double()).mT)
    head.bias.copy_(weights["h"])
    return model.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--share", type=float, default=1 / 8)
    parser.add_argument("--settings", type=json.loads, default={})
    arguments = parser.parse_args()
    weights = read_weights(arguments.weights)
    sizes = sizes_of(weights)
    presets = [name for name, record in MODELS.items() if record.options and record.options.items() <= sizes.items()]
    if not presets or sizes["patch"] != 4 or arguments.share != 1 / 8:
        raise IsoconvError(f"Expected the size of a preset. Got {sizes}, share {arguments.share}.")
    settings = recipe_settings("default", "cifar10", "bcop", presets[0]) | arguments.settings
    classes = DATASETS["cifar10"].classes
    config = TrainConfig(data="cifar10", input_shape=SHAPE, classes=classes, model=presets[0], **settings)
    model, folder = build_network(weights, arguments.share), RunFolder(arguments.out)
    folder.start(config, overwrite=False)
    write_tensors(folder.model, plain(model).state_dict(), {"format": "pt"})
    folder.unlock()
    print(f"{presets[0]}, written to {arguments.out}. To certify it: isoconv certify {arguments.out} --data DIR")


if __name__ == "__main__":
    main()
