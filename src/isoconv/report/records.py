"""From a run's files to what the page shows of it: one plain record per run."""

import math
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from isoconv.data.load import FROM_FILES
from isoconv.report.command import train_command
from isoconv.report.run_files import Record, RunFiles

_DIGITS = 8  # of a radius on the page, rounded down: it never claims more than the file


def run_record(run: RunFiles, name: str, notes: list[str]) -> Record:
    config, result, certified = run.config, run.result, run.certified
    where = shlex.quote(str(run.path)) + (" --data DIR" if config.data in FROM_FILES else "")
    if certified is None and not notes:
        notes.append(f"The certified radii are missing: isoconv certify {where} makes them.")
    if not run.attacks:
        notes.append(f"No attacks yet: isoconv attack {where} makes them.")
    known = certified or result
    return {
        "name": name,
        "about": " · ".join([config.model, config.conv, config.activation, f"seed {config.seed}"]),
        "data": config.data,
        "shape": list(config.input_shape),
        "classes": list(config.classes),
        "clean": known.get("clean"),
        "images": known.get("images"),
        "bound": known.get("lipschitz_bound"),
        "seconds": result["train_seconds"],
        "epsilons": list(result.get("robust", {})),
        "robust": list(result.get("robust", {}).items()),
        "radii": None if certified is None else _floored(certified["radii"]),
        "layers": [] if certified is None else certified["layers"],
        "attacks": run.attacks or [],
        "metrics": {key: [line[key] for line in run.metrics] for key in ("epoch", "loss", "accuracy")},
        "spectra": None if run.diagnostics is None else run.diagnostics["layers"],
        "gradients": None if run.diagnostics is None else run.diagnostics["gradient_norms"],
        "gallery": run.gallery,
        "command": _command(run),
        "config": [[key.replace("_", " "), _value(value)] for key, value in asdict(config).items()],
        "made": [[key, result[key]] for key in ("device", "torch", "finished") if result[key]]
        + ([] if certified is None else [["certified for", certified["arithmetic"] + " arithmetic"]]),
        "notes": notes,
    }


def _floored(radii: Sequence[float]) -> list[float]:
    """In rising order, rounded down, without those that come to nothing."""
    scale = 10**_DIGITS

    def floored(radius: float) -> float:
        steps = math.floor(radius * scale)
        return (steps if steps / scale <= radius else steps - 1) / scale  # the product may have been rounded up

    return sorted(radius for radius in map(floored, radii) if radius > 0)


def _command(run: RunFiles) -> str | None:
    epsilons = list(run.result.get("robust", {}))
    seeds, out = _side_by_side(run)
    return train_command(run.config, out, seeds, epsilons)


def _side_by_side(run: RunFiles) -> tuple[list[int], Path]:
    """The seeds that were trained together with this one, and the folder that they share."""
    if run.result["replicas"] > 1 and run.path.name == f"seed-{run.config.seed}":
        siblings = [path.name.removeprefix("seed-") for path in run.path.parent.glob("seed-*")]
        seeds = sorted(int(seed) for seed in siblings if seed.isdecimal())
        if len(seeds) == run.result["replicas"]:
            return seeds, run.path.parent
    return [run.config.seed], run.path


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (tuple, list)):
        return (
            " × ".join(map(str, value)) if all(isinstance(part, int) for part in value) else ", ".join(map(str, value))
        )
    return str(value)


def short_names(paths: Sequence[Path]) -> list[str]:
    """The last parts of the paths, as few as tell them apart."""
    parts = [path.resolve().parts for path in paths]
    longest = max(len(part) for part in parts)
    for length in range(1, longest + 1):
        names = ["/".join(part[-length:]) for part in parts]
        # The folder seed-3 alone says nothing of the run that it belongs to.
        if len(set(names)) == len(names) and not (length == 1 and any(name.startswith("seed-") for name in names)):
            return names
    return [str(path) for path in paths]
