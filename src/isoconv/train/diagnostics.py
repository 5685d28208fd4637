"""Two more files of a finished run, for people to look at: diagnostics.json and gallery.json.

diagnostics.json  the singular values of every layer and the norm of the gradient by depth, before and after training
gallery.json      a few test images with what is proved of them and the nearest point found that fools the network

Both carry the hash of the weights that they were made from, so that what is left of an older network is never shown.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from isoconv.certify import Certifier, RobustAccuracy, weights_sha256
from isoconv.certify.diagnostics import gradient_norms, singular_values
from isoconv.data import NAMES, ImageSet, as_float
from isoconv.errors import IsoconvError
from isoconv.files import read_json, write_text
from isoconv.train.config import TrainConfig, make_model
from isoconv.train.gallery import gallery_entries
from isoconv.train.run_folder import load_run
from isoconv.train.runs import TrainedRun, certify_run, read_test_images

DIAGNOSTICS, GALLERY = "diagnostics.json", "gallery.json"

_GRADIENT_IMAGES = 128
_BIN, _BINS = 0.01, 200  # bins of a histogram are this wide, or wider if that would make many more than so many


def collect_diagnostics(
    run: Path | str,
    data: ImageSet | None = None,
    *,
    certifier: Certifier | None = None,
    images: int = 12,
    device: torch.device | str = "cpu",
    progress: Callable[[int, int], None] | None = None,
) -> list[str]:
    """Make those of the two files that the run's folder does not hold yet, and give their names.

    The gallery and the gradients need test images, `data`; without them only the singular values are written. `certifier`
    is of the run's own model, if there is one already. `progress(done, total)` follows the search for the gallery.
    """
    folder = Path(run)
    model, config = load_run(folder)
    weights, made = weights_sha256(model), []
    diagnostics, gallery = _current(folder / DIAGNOSTICS, weights), _current(folder / GALLERY, weights)
    if diagnostics is None or (diagnostics.get("gradient_norms") is None and data is not None):
        found = {"weights_sha256": weights, **_diagnostics(config, model, data)}
        write_text(folder / DIAGNOSTICS, json.dumps(found, indent=1) + "\n")
        made.append(DIAGNOSTICS)
    if gallery is None and data is not None:
        certifier = certifier or Certifier(model.to(device), config.input_shape)
        entries = gallery_entries(certifier, data, images, seed=config.seed, progress=progress)
        write_text(folder / GALLERY, json.dumps({"weights_sha256": weights, "images": entries}, indent=1) + "\n")
        made.append(GALLERY)
    elif gallery is None:
        (folder / GALLERY).unlink(missing_ok=True)  # of another network
    return made


def needs_images(run: Path | str) -> bool:
    """Whether `collect_diagnostics` has something to do that it needs test images for."""
    folder = Path(run)
    weights = weights_sha256(load_run(folder)[0])
    diagnostics, gallery = _current(folder / DIAGNOSTICS, weights), _current(folder / GALLERY, weights)
    return gallery is None or diagnostics is None or diagnostics.get("gradient_norms") is None


def _current(path: Path, weights: str) -> dict[str, Any] | None:
    """What the file holds; None if it is not there or of other weights."""
    found = read_json(path) if path.exists() else {}
    return found if found.get("weights_sha256") == weights else None


def _diagnostics(config: TrainConfig, trained: nn.Module, data: ImageSet | None) -> dict[str, Any]:
    fresh = make_model(config)  # from the run's seed: what training began with
    layers = [
        {"title": after.title, "name": after.name, "kind": after.kind, **_histograms(before.values, after.values)}
        for before, after in zip(
            singular_values(fresh, config.input_shape), singular_values(trained, config.input_shape), strict=True
        )
    ]
    return {"layers": layers, "gradient_norms": None if data is None else _gradients(fresh, trained, data)}


def _histograms(before: Tensor, after: Tensor) -> dict[str, Any]:
    """Both over the same bins, centred at 0, width, 2·width, …: the many values at 1, give or take 1e-7, share one."""
    largest = max(float(before.max()), float(after.max()))
    width = _round_number(max(_BIN, largest / _BINS))
    bins = round(largest / width) + 1

    def histogram(values: Tensor) -> dict[str, Any]:
        places = torch.round(values / width).long().clamp(0, bins - 1)
        return {
            "min": float(values.min()),
            "mean": float(values.mean()),
            "max": float(values.max()),
            "counts": torch.bincount(places, minlength=bins).tolist(),
        }

    return {"width": width, "before": histogram(before), "after": histogram(after)}


def _round_number(least: float) -> float:
    """The nearest 1, 2 or 5 times a power of ten: so that below 1, a bin lies around 1."""
    power = 10.0 ** math.floor(math.log10(least))
    return min((1.0, 2.0, 5.0, 10.0), key=lambda digit: abs(digit * power - least)) * power


def _gradients(fresh: nn.Module, trained: nn.Module, data: ImageSet) -> dict[str, Any]:
    part = data.take(min(_GRADIENT_IMAGES, len(data)))
    pixels = as_float(part.images, torch.float64)
    before, after = (gradient_norms(model, pixels, part.labels) for model in (fresh, trained))

    def summary(norms: Tensor) -> dict[str, list[float]]:
        low, high = norms.quantile(0.1, dim=1), norms.quantile(0.9, dim=1)
        return {"mean": norms.mean(dim=1).tolist(), "low": low.tolist(), "high": high.tolist()}

    return {
        "images": len(part),
        "places": list(after.places),
        "before": summary(before.norms),
        "after": summary(after.norms),
    }


def complete_run(
    run: TrainedRun,
    data: ImageSet | None,
    *,
    device: str = "cpu",
    accuracy: RobustAccuracy | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[str]:
    """Make what the page shows of a run and its folder does not hold yet; return the names of the files made.

    Without test images, `data`, only what needs none is made. `accuracy` is of this network, if it was certified before.
    """
    made = []
    if data is not None and accuracy is None and not (run.folder / "certified.json").exists():
        accuracy, record = certify_run(run, data, default_epsilons(run.config.data), device=device, progress=progress)
        run.keep("certified.json", record.to_fields())
        made.append("certified.json")
    certifier = None if accuracy is None else accuracy.certifier
    return made + collect_diagnostics(run.folder, data, certifier=certifier, device=device, progress=progress)


def lacks_images(run: TrainedRun) -> bool:
    """Return True if `complete_run` has something to do that it needs test images for."""
    return not (run.folder / "certified.json").exists() or needs_images(run.folder)


def find_test_images(run: TrainedRun, folder: Path | None, download: bool) -> ImageSet | str:
    """Return a run's test images, or why there are none. A data set that was pointed at, or is to be fetched, must be there.

    `folder` is for all runs of a page: a user's own pictures may be there, or still where they were.
    """
    if run.config.data in NAMES:
        try:
            return read_test_images(run.config, folder, download)
        except IsoconvError as error:
            if folder is not None or download:
                raise
            return str(error)
    reason = ""
    for source in (None, folder) if folder is not None else (None,):
        try:
            return read_test_images(run.config, source)
        except IsoconvError as error:
            reason = reason or str(error)
    return reason
