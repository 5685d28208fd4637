"""Trained networks that come with isoconv.

Each is a folder here, named for its data set and network, with the two files of a finished run that it needs:
`config.json` and `model.safetensors`, the plain kernels. To add one, copy these two from a run.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from isoconv.errors import require

if TYPE_CHECKING:
    from torch import nn

_HERE = Path(__file__).resolve().parent


def pretrained_names() -> list[str]:
    """Return the names of the networks."""
    return sorted(folder.name for folder in _HERE.iterdir() if (folder / "model.safetensors").is_file())


def pretrained_folder(name: str) -> Path:
    """Return the folder of a network, which any command takes for a run; it must not be written to."""
    names = pretrained_names()
    require(name in names, f"a network that comes with isoconv: {', '.join(names)}", repr(name))
    return _HERE / name


def is_pretrained(folder: Path) -> bool:
    """Return True if this folder is one of those that come with isoconv."""
    return folder.resolve().parent == _HERE


def load_pretrained(name: str) -> "nn.Module":
    """Return a trained network made of ordinary torch modules, in evaluation mode, on the CPU, in float32.

    It takes images (N, C, H, W) with pixels in [0, 1], not normalised, and gives logits.

    >>> load_pretrained("cifar10-large")[0].weight.shape
    torch.Size([32, 3, 3, 3])
    """
    from isoconv.train.run_folder import load_run

    return load_run(pretrained_folder(name))[0]
