"""How data sets, networks, methods and figures are written in tables."""

from typing import Any

DATA = {"mnist": "MNIST", "cifar10": "CIFAR-10", "stl10": "STL-10"}
NETWORKS = {
    "small": "Small",
    "large": "Large",
    "fc3": "FC-3",
    "dcgan": "DCGAN critic",
    "kw-small": "KW-Small",
    "kw-large": "KW-Large",
    "kw-resnet": "KW-Resnet",
    "mmr-universal": "MMR-Universal",
    "qw-3": "QW-3",
    "qw-4": "QW-4",
}
METHODS = {
    "bcop": "BCOP",
    "bcop-fixed": "BCOP-Fixed",
    "rko": "RKO",
    "ossn": "OSSN",
    "svcm": "SVCM",
    "rkl2ne": "RK-L2NE",
    "standard": "ordinary",
}
ACTIVATIONS = {"maxmin": "MaxMin", "relu": "ReLU"}
RECIPES = {"default": "", "paper": "the paper's"}
NOTHING = "–"


def shown_radius(epsilon: float) -> str:
    """The paper's 36/255 as people write it, other radii as numbers."""
    return "36/255" if abs(epsilon - 36 / 255) < 1e-9 else f"{epsilon:g}"


def shown(figure: dict[str, Any] | None, digits: int = 2) -> str:
    """mean ± standard deviation."""
    if figure is None:
        return NOTHING
    spread = "" if figure.get("std") is None else f" ± {figure['std']:.{digits}f}"
    return f"{figure['mean']:.{digits}f}{spread}"


def shown_seconds(seconds: float | None) -> str:
    """In the unit that fits."""
    if seconds is None:
        return NOTHING
    for limit, scale, unit in ((1e-3, 1e6, "µs"), (1.0, 1e3, "ms"), (120.0, 1.0, "s"), (7200.0, 1 / 60, "min")):
        if seconds < limit:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds / 3600:.3g} h"
