"""Certificate files for the tests: written by the library, examined by the checker, in the version that it can read."""

import json
import tempfile
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from isoconv.certify import Certifier, write_certificate
from isoconv.check.__main__ import main

_SAME = ("MaxMin", "ReLU", "Abs", "Identity", "Dropout", "Linear", "Flatten", "GroupSort", "Scale")


def read(file: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the header and the images of a certificate."""
    header, *images = map(json.loads, file.read_text().splitlines())
    return header, images


def write(file: Path, header: dict[str, Any], images: list[dict[str, Any]]) -> None:
    file.write_text("".join(json.dumps(line) + "\n" for line in (header, *images)))


def write_all(model: nn.Module, x: Tensor, folder: Path, labels: Tensor | None = None, **options: Any) -> list[str]:
    """Write a certificate, the model that it is about, and the images; return the checker's arguments."""
    certifier = Certifier(model, tuple(x.shape[1:]), **options)
    write_certificate(folder / "certificate.jsonl", certifier, certifier(x), labels)
    state = certifier.deployed.state_dict().items()
    save_file({name: tensor.clone().contiguous() for name, tensor in state}, folder / "model.safetensors")
    np.save(folder / "images.npy", x.double().numpy())
    names = ("certificate.jsonl", "model.safetensors")
    return [*(str(folder / name) for name in names), "--images", str(folder / "images.npy")]


def check(arguments: list[str]) -> int | None:
    """Return the checker's exit code; None if it reads version 1 alone, in which this network cannot be described."""
    if not reads_version_2():
        file = Path(arguments[0])
        old = as_version_1(*read(file))
        if old is None:
            return None
        converted = file.with_name(f"{file.stem}-1.json")
        converted.write_text(json.dumps(old))
        arguments = [str(converted), *arguments[1:]]
    return main(arguments)


@cache
def reads_version_2() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        return main(write_all(nn.Sequential(nn.Linear(2, 2)), torch.ones(1, 2), Path(folder))) == 0


def as_version_1(header: dict[str, Any], images: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the certificate of a chain as one JSON object of version 1, or None if that version has no words for it."""
    for earlier, later in pairwise(node["name"].split(".") for node in header["nodes"]):
        a, b = next(((a, b) for a, b in zip(earlier, later, strict=False) if a != b), ("", ""))
        if a.isdecimal() and b.isdecimal() and int(b) != int(a) + 1:
            return None  # the checker of version 1 takes a gap for a layer that was left out
    layers = []
    for node in header["nodes"]:
        settings = _settings_1(node["kind"], dict(node["settings"]))
        if settings is None or node["module"] != node["name"]:
            return None
        layers.append(
            {"name": node["name"], "kind": node["kind"], "settings": settings, "lipschitz": node["lipschitz"]}
        )
    kept = {k: v for k, v in header.items() if k not in ("isoconv", "assumptions", "nodes", "output")}
    return {**kept, "version": 1, "claim": "", "layers": layers, "images": images}


def _settings_1(kind: str, settings: dict[str, Any]) -> dict[str, Any] | None:
    if kind in _SAME:
        return settings
    if kind.startswith("Pixel"):
        return {"upscale_factor" if kind == "PixelShuffle" else "downscale_factor": settings["factor"]}
    pads = settings.get("padding", [])
    if kind.startswith("Conv"):
        symmetric = all(before == after for before, after in pads)
        known = symmetric and settings["padding_mode"] in ("zeros", "circular")
        return {**settings, "padding": [before for before, _ in pads]} if known else None
    if kind.startswith(("ZeroPad", "CircularPad")):
        flat = [amount for pair in reversed(pads) for amount in pair]
        return {"padding": flat} if min(flat) >= 0 else None
    if "Pool" in kind:
        usual = not settings.pop("ceil_mode") and settings.pop("divisor_override", None) is None
        settings.pop("count_include_pad", None)
        return settings if usual else None
    return None
