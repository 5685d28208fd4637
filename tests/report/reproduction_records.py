"""Result files as measuring would leave them, with figures that one can check in one's head."""

from typing import Any

from isoconv.train.reproduction import (
    AttackCell,
    Cell,
    ClassifierCell,
    CriticCell,
    MeasuredCell,
    cells_of,
    default_epochs,
)

SEEDS = [0, 1, 2, 3, 4]
RADII = {"mnist": ("1.58", "0.3"), "cifar10": (str(36 / 255), "0.1")}


def classifier(cell: ClassifierCell, clean: float = 80.0, robust: float = 60.0, spread: float = 0.1) -> dict[str, Any]:
    """Five seeds whose population standard deviation is `spread`·√2."""
    each = [
        {
            "seed": seed,
            "clean": clean + spread * (seed - 2),
            "robust": {e: robust + 5 * k + spread * (seed - 2) for k, e in enumerate(RADII[cell.dataset])},
            "lipschitz_bound": 1 + seed * 1e-6,
        }
        for seed in SEEDS
    ]
    record = {**cell.identity(), "status": "ok", "seeds": SEEDS, "epochs": default_epochs(cell), "images": 10_000}
    record |= {"results": each, "train_seconds": 60.0, "peak_memory_mib": 4000.0, "hardware": "NVIDIA H200"}
    if cell.model == "large":
        figures = {"counts": [1] * 50, "quantiles": [0.0, 0.1, 0.2, 0.5, 0.7, 0.9, 1.0]}
        edges = [k / 40 for k in range(51)]
        record["second_layer"] = {"seed": 0, "count": 50, "edges": edges, "before": figures, "after": figures}
    return record


def attack(cell: AttackCell, accuracy: float, clean: float = 80.0, certified: float = 60.0) -> dict[str, Any]:
    images = 100 if cell.attack in ("boundary", "pointwise") else 10_000
    each = [
        {"seed": seed, "clean": clean, "certified": certified, "accuracy": accuracy, "violations": 0, "seconds": 1.0}
        for seed in SEEDS
    ]
    record = {
        **cell.identity(),
        "status": "ok",
        "seeds": SEEDS,
        "epochs": default_epochs(cell.network),
        "violations": 0,
    }
    return record | {"epsilon": cell.network.epsilon, "images": images, "results": each, "hardware": "NVIDIA H200"}


def critic(cell: CriticCell, distance: float, generator: str = "abc") -> dict[str, Any]:
    each = [{"seed": seed, "estimate": distance, "lower": distance / 2, "lipschitz_bound": 1.0} for seed in SEEDS]
    record = {**cell.identity(), "status": "ok", "seeds": SEEDS, "epochs": 100, "updates": 10_000, "results": each}
    return record | {"generator": generator, "units": "L2 distance", "train_seconds": 30.0, "hardware": "NVIDIA H200"}


def steps() -> dict[str, Any]:
    seconds = {"standard": 1e-3, "bcop": 2e-3, "rko": 1.5e-3, "ossn": 1.6e-3, "svcm": 3e-3}
    each = [
        {"conv": conv, "recipe": recipe, "seconds": {"median": s * factor, "mean": s * factor, "std": 0.0}}
        for recipe, factor in (("default", 1), ("paper", 2))
        for conv, s in seconds.items()
    ]
    return {"name": "time", "status": "ok", "results": each, "hardware": "NVIDIA H200"}


def builds() -> dict[str, Any]:
    """Seconds that follow c³ and s² exactly."""
    each = [
        {
            "conv": conv,
            "recipe": "default",
            "channels": [[c, 1e-9 * c**3] for c in (16, 32, 64)],
            "sizes": [[s, 1e-6 * s**2] for s in (8, 16, 32)],
        }
        for conv in ("bcop", "ossn")
    ]
    return {"name": "complexity", "status": "ok", "results": each, "hardware": "NVIDIA H200"}


def everything() -> dict[Cell, dict[str, Any]]:
    """A result for every cell that is measured or trained, but for the instant ones."""
    found: dict[Cell, dict[str, Any]] = {}
    for cell in cells_of("all"):
        match cell:
            case ClassifierCell():
                found[cell] = classifier(cell)
            case AttackCell():
                found[cell] = attack(
                    cell, {"pgd": 64.0, "fgsm": 65.0, "boundary": 70.0, "pointwise": 75.0}[cell.attack]
                )
            case CriticCell():
                found[cell] = critic(cell, {"bcop": 9.0, "rko": 8.1, "ossn": 7.2}[cell.conv])
            case MeasuredCell(name="time"):
                found[cell] = steps()
            case MeasuredCell(name="complexity"):
                found[cell] = builds()
    return found
