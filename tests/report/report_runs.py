"""For the tests of the page: run folders made of files alone, without any network behind them."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from isoconv.train.config import TrainConfig, recipe_settings

PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="
)
RADII = [0.0, 0.05, 0.2, 0.2, 0.4, 0.5, 0.75, 1.0]


def config(**changes: Any) -> TrainConfig:
    usual = {"recipe": "default", "data": "digits", "conv": "bcop"}
    settings = recipe_settings(*(changes.get(name, value) for name, value in usual.items()))
    basic = {"data": "digits", "input_shape": (1, 28, 28), "classes": ("a", "b"), "model": "small", "epochs": 3}
    return TrainConfig(**(settings | basic | changes))


def certified(**changes: Any) -> dict[str, Any]:
    return {
        "seed": 0, "images": 8, "clean": 100.0, "robust": {"0.3": 50.0}, "lipschitz_bound": 1.0000012,
        "layers": [{"name": name, "kind": kind, "bound": 1.0000006} for name, kind in (("0.1", "Conv2d"), ("5", "Linear"))],
        "arithmetic": "float64", "criterion": "pairs", "error_offset": 1e-12, "error_slope": 1e-12,
        "radii": RADII, "seconds": 0.1,
    } | changes  # fmt: skip


def attacks() -> list[dict[str, Any]]:
    common = {
        "seed": 0,
        "images": 8,
        "settings": {},
        "clean": 100.0,
        "seconds": 0.1,
        "certified": 50.0,
        "violations": 0,
    }
    points = [("pgd", 0.3, 75.0), ("pgd", 0.6, 50.0), ("fgsm", 0.3, 87.5)]
    rows = [{"attack": kind, "epsilon": epsilon, "accuracy": share} | common for kind, epsilon, share in points]
    return [*rows, {"attack": "rounding", "epsilon": None} | common | {"accuracy": None, "certified": None}]


def diagnostics() -> dict[str, Any]:
    def moment(*counts: int) -> dict[str, Any]:
        return {"min": 0.0, "mean": 0.5, "max": 1.0, "counts": list(counts)}

    norms = {"mean": [0.5, 1.0], "low": [0.4, 1.0], "high": [0.6, 1.0]}
    layer = {"title": "convolution 1", "name": "0.1", "kind": "Conv2d", "width": 0.5}
    return {
        "weights_sha256": "0",
        "layers": [layer | {"before": moment(1, 5, 2), "after": moment(0, 0, 8)}],
        "gradient_norms": {"images": 8, "places": ["image", "logits"], "before": norms, "after": norms},
    }


def gallery(label: int = 0, prediction: int = 0) -> dict[str, Any]:
    other = {"norm": 0.9, "prediction": 1, "image": PIXEL, "change": PIXEL}
    entry = {"index": 3, "label": label, "prediction": prediction, "radius": 0.4, "image": PIXEL, "adversarial": other}
    wrong = entry | {"prediction": 1, "adversarial": None}
    mistakes = {"confusion": [[5, 2], [0, 1]], "mistakes": [wrong | {"file": "a/1.png"}, wrong], "mistake_count": 2}
    return {"weights_sha256": "0", "images": [entry, wrong], **mistakes}


def fake_run(path: Path, changed: TrainConfig | None = None, without: tuple[str, ...] = (), **more: Any) -> Path:
    """A finished run with everything that a page can show, or without some of the files; `more` is in its result."""
    path.mkdir(parents=True)
    epochs = [{"epoch": k, "loss": 1 / k, "accuracy": 90.0 + k, "seconds": 0.5} for k in (1, 2, 3)]
    if "best_epoch" in more:
        epochs = [line | {"validation": share} for line, share in zip(epochs, (80.0, 84.5, 83.0), strict=True)]
    result = {
        "seed": 0, "epochs": 3, "train_seconds": 1.5, "replicas": 1, "device": "CPU, 1 threads", "torch": "2.13",
        "images": 8, "clean": 100.0, "robust": {"1.58": 0.0, "0.3": 50.0}, "lipschitz_bound": 1.0000012,
        "finished": "2020-01-01T00:00:00",
    } | more  # fmt: skip
    content = {
        "config.json": json.dumps(asdict(changed or config())),
        "metrics.jsonl": "".join(json.dumps(line) + "\n" for line in epochs),
        "result.json": json.dumps(result),
        "certified.json": json.dumps(certified()),
        "attacks.json": json.dumps(attacks()),
        "diagnostics.json": json.dumps(diagnostics()),
        "gallery.json": json.dumps(gallery()),
    }
    for name, text in content.items():
        if name not in without:
            (path / name).write_text(text)
    return path


def data_of(page: Path | str) -> list[dict[str, Any]]:
    """Return what the script of a page, a file or its text, draws of each run."""
    text = page if isinstance(page, str) else page.read_text()
    return json.loads(text.split('id="data">')[1].split("</script>")[0])["runs"]
