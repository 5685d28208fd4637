"""Attacks on the networks of a cell, and whether any of them succeeds where the network is certified."""

import json
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from isoconv import attacks
from isoconv.attacks import AttackResult
from isoconv.certify import robust_accuracy
from isoconv.data import ImageSet, as_float
from isoconv.errors import IsoconvError
from isoconv.files import read_json, write_text
from isoconv.train.classifier import device_name
from isoconv.train.engine import Stopped
from isoconv.train.reproduction.cells import AttackCell
from isoconv.train.reproduction.classifiers import trained_networks
from isoconv.train.reproduction.data import DataSets
from isoconv.train.reproduction.results import environment
from isoconv.train.reproduction.settings import Settings
from isoconv.train.run_folder import RunFolder, load_run

_FEW = 100  # the paper's number of images for attacks that ask thousands of questions per image
_SETTINGS: dict[str, dict[str, Any]] = {  # the paper's, as far as it says; foolbox's own number of steps for boundary
    "pgd": {"steps": 200, "step_size": 0.01, "restarts": 1, "seed": 0},
    "fgsm": {},
    "boundary": {"steps": 25_000, "seed": 0},
    "pointwise": {"queries": 10_000, "seed": 0},
}
_QUICK: dict[str, dict[str, Any]] = {
    "pgd": {"steps": 5, "step_size": 0.05, "restarts": 1, "seed": 0},
    "fgsm": {},
    "boundary": {"steps": 20, "seed": 0},
    "pointwise": {"queries": 50, "seed": 0},
}


def attack_record(cell: AttackCell, settings: Settings, data: DataSets) -> dict[str, Any]:
    """Attack every network of the cell, training those that are missing; `Stopped` if there is no time left for one."""
    folders = trained_networks(cell.network, settings, data)
    test = data.splits(cell.network.dataset).test
    if cell.attack in ("boundary", "pointwise"):
        test = test.take(min(_FEW, len(test)))
    rows, longest = [], 0.0
    for folder in folders:
        if settings.should_stop() or settings.seconds_left() < 1.3 * longest:
            raise Stopped
        began = time.monotonic()
        rows.append(_attacked(cell, folder, test, settings))
        longest = max(longest, time.monotonic() - began)
    broken = sum(row["violations"] for row in rows)
    if broken:
        raise IsoconvError(f"Expected no attack to succeed where the network is certified. Got {broken} that did.")
    return {
        **cell.identity(),
        "status": "ok",
        "seeds": [row["seed"] for row in rows],
        "epochs": load_run(folders[0].path)[1].epochs,
        "epsilon": cell.network.epsilon,
        "images": len(test),
        "settings": _settings(cell, settings),
        "results": rows,
        "violations": broken,
        "hardware": device_name(torch.device(settings.device)),
        **environment(),
    }


def _settings(cell: AttackCell, settings: Settings) -> dict[str, Any]:
    return (_QUICK if settings.quick else _SETTINGS)[cell.attack]


def _attacked(cell: AttackCell, folder: RunFolder, test: ImageSet, settings: Settings) -> dict[str, Any]:
    """One network's row; kept beside its weights, so that a reproduction that was stopped does not attack it again."""
    kept = folder.path / f"attacked-{cell.attack}.json"
    asked = {"epsilon": cell.network.epsilon, "images": len(test), **_settings(cell, settings)}
    if kept.exists() and (found := read_json(kept)).get("asked") == asked:
        return dict(found["row"])
    model, config = load_run(folder.path)
    model.to(settings.device)
    certified = robust_accuracy(model, test, [cell.network.epsilon])
    began = time.perf_counter()
    result = _attack(cell.attack, model, test, cell.network.epsilon, _settings(cell, settings))
    row = {"seed": config.seed, **attacks.against_certificates(result, certified, cell.network.epsilon)}
    row["seconds"] = time.perf_counter() - began
    settings.watcher.say(f"{cell.name}, seed {config.seed}: {row['accuracy']:.2f} % survive, {row['seconds']:.1f} s")
    write_text(kept, json.dumps({"asked": asked, "row": row}) + "\n")
    return row


def _attack(name: str, model: nn.Module, test: ImageSet, epsilon: float, options: dict[str, Any]) -> AttackResult:
    attack: Callable[..., AttackResult] = getattr(attacks, name)
    return attack(model, as_float(test.images, torch.float64), test.labels, epsilon, **options)
