"""What the page shows of a run beyond what training leaves in its folder: made by `isoconv report` and `isoconv demo`."""

import json
import time
from collections.abc import Sequence
from typing import Any

from isoconv.certify import RobustAccuracy, robust_accuracy
from isoconv.cli.certify import certified_record
from isoconv.cli.progress import CountingProgress
from isoconv.cli.runs import TrainedRun
from isoconv.data import ImageSet
from isoconv.train.diagnostics import collect_diagnostics


def certify_run(
    one: TrainedRun, data: ImageSet, epsilons: Sequence[float], device: str = "cpu"
) -> tuple[RobustAccuracy, dict[str, Any]]:
    """Certify, and write certified.json as `isoconv certify` does; what was found, and what was written."""
    began = time.perf_counter()
    with CountingProgress(f"certifying {one.folder.name}", "images") as shown:
        found = robust_accuracy(one.model.to(device), data, epsilons, progress=shown.show)
    record = certified_record(found, one.config.seed, time.perf_counter() - began)
    one.keep("certified.json", json.dumps(record, indent=2) + "\n")
    return found, record


def diagnose_run(
    one: TrainedRun, data: ImageSet | None, found: RobustAccuracy | None = None, device: str = "cpu"
) -> list[str]:
    """Write those of diagnostics.json and gallery.json that are missing; their names."""
    certifier = None if found is None else found.certifier
    with CountingProgress(f"looking for adversarial examples near {one.folder.name}'s images", "rounds") as shown:
        return collect_diagnostics(one.folder, data, certifier=certifier, device=device, progress=shown.show)
