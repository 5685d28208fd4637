"""What it costs to build a layer, against its channels c and its image size s: the paper's appendix, measured."""

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import nn

from isoconv.nn import BCOPConv2d, OSSNConv2d, RKL2NEConv2d, RKOConv2d, SVCMConv2d
from isoconv.train.classifier import device_name
from isoconv.train.engine import Stopped
from isoconv.train.reproduction.cells import MeasuredCell
from isoconv.train.reproduction.results import environment
from isoconv.train.reproduction.settings import Settings

_KERNEL = 3
_CHANNELS, _AT_SIZE = (16, 32, 64, 128, 256), 16
_SIZES, _AT_CHANNELS = (8, 16, 32, 64), 32
_QUICK = {"channels": (4, 8), "sizes": (4, 8)}
_REPEATS, _ENOUGH = 5, 10.0  # builds, and seconds after which fewer will do

Make = Callable[[int, int], nn.Module]
_METHODS: dict[tuple[str, str], Make] = {
    ("bcop", "default"): lambda c, s: BCOPConv2d(c, c, _KERNEL),
    ("bcop", "paper"): lambda c, s: BCOPConv2d(c, c, _KERNEL, orthogonalisation="bjorck"),
    ("rko", "default"): lambda c, s: RKOConv2d(c, c, _KERNEL),
    ("rko", "paper"): lambda c, s: RKOConv2d(c, c, _KERNEL, orthogonalisation="bjorck"),
    ("rkl2ne", "default"): lambda c, s: RKL2NEConv2d(c, c, _KERNEL),
    ("ossn", "default"): lambda c, s: OSSNConv2d(c, c, _KERNEL, input_size=s),
    ("svcm", "default"): lambda c, s: SVCMConv2d(c, c, _KERNEL, input_size=s),
}


def complexity_record(cell: MeasuredCell, settings: Settings) -> dict[str, Any]:
    """The time to make a kernel of 3×3 from c to c channels after its parameters have changed, without a gradient.

    For OSSN that is ten power iterations at the image's size, for SVCM fifty projections (which are made once in a
    hundred steps), for the others their orthogonalisation or normalisation.
    """
    device = torch.device(settings.device)
    channels, sizes = (_QUICK["channels"], _QUICK["sizes"]) if settings.quick else (_CHANNELS, _SIZES)
    results = []
    for (conv, recipe), make in _METHODS.items():
        settings.watcher.say(f"complexity: {conv}, {recipe} recipe")
        by_channels = [[c, _seconds(make, c, _AT_SIZE, device, settings)] for c in channels]
        by_size = [[s, _seconds(make, _AT_CHANNELS, s, device, settings)] for s in sizes]
        results.append({"conv": conv, "recipe": recipe, "channels": by_channels, "sizes": by_size})
    return {
        **cell.identity(),
        "status": "ok",
        "kernel_size": _KERNEL,
        "image_size_for_channels": _AT_SIZE,
        "channels_for_image_size": _AT_CHANNELS,
        "results": results,
        "hardware": device_name(device),
        **environment(),
    }


def _seconds(make: Make, channels: int, size: int, device: torch.device, settings: Settings) -> float:
    """The median of a few builds; the first one does not count, unless it was so long that it is the only one."""
    torch.manual_seed(0)
    layer = make(channels, size).to(device).train()
    parameters: list[torch.Tensor] = list(layer.parameters())
    noise = [1e-3 * torch.randn_like(p) / p.shape[-1] ** 0.5 for p in parameters]
    times: list[float] = []
    while len(times) < 1 + (1 if settings.quick else _REPEATS) and sum(times) < _ENOUGH:
        if settings.should_stop():
            raise Stopped
        with torch.no_grad():
            torch._foreach_add_(parameters, noise)  # as an update would: a little
        start = _now(device)
        with torch.no_grad():
            if isinstance(layer, SVCMConv2d):
                layer.project()
            else:
                layer.weight  # noqa: B018
        times.append(_now(device) - start)
    return median(times[1:] or times)


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
