"""Certificate files for the tests: written by the library, examined by the checker."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import save_file
from torch import Tensor, nn

from isoconv.certify import Certifier, write_certificate
from isoconv.check.__main__ import main as check

__all__ = ["check", "read", "write", "write_all"]


def read(file: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the header and the images of a certificate."""
    header, *images = map(json.loads, file.read_text().splitlines())
    return header, images


def write(file: Path, header: dict[str, Any], images: list[dict[str, Any]]) -> None:
    file.write_text("".join(json.dumps(line) + "\n" for line in (header, *images)))


def write_all(
    model: nn.Module | Certifier, x: Tensor, folder: Path, labels: Tensor | None = None, **options: Any
) -> list[str]:
    """Write a certificate, the model that it is about, and the images; return the checker's arguments."""
    certifier = model if isinstance(model, Certifier) else Certifier(model, tuple(x.shape[1:]), **options)
    write_certificate(folder / "certificate.jsonl", certifier, certifier(x), labels)
    state = certifier.deployed.state_dict().items()
    save_file({name: tensor.clone().contiguous() for name, tensor in state}, folder / "model.safetensors")
    np.save(folder / "images.npy", x.double().numpy())
    names = ("certificate.jsonl", "model.safetensors")
    return [*(str(folder / name) for name in names), "--images", str(folder / "images.npy")]
