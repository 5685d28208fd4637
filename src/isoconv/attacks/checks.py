"""What every attack asks of its arguments, and how it says so."""

import math
from numbers import Real

import torch
from torch import Tensor, nn

from isoconv.errors import IsoconvError

_PIXELS = {"cuda": 2500 * 3 * 32 * 32, "cpu": 250 * 3 * 32 * 32}
_MOST_IMAGES = 2500


def checked_images(images: Tensor) -> Tensor:
    """A copy in float64."""
    if not isinstance(images, Tensor) or not images.is_floating_point():
        got = images.dtype if isinstance(images, Tensor) else type(images).__name__
        raise IsoconvError(f"Expected floating-point images with pixels in [0, 1]. Got {got}.")
    if images.dim() < 2 or not math.prod(images.shape[1:]):
        raise IsoconvError(f"Expected a batch of images (N, …). Got shape {tuple(images.shape)}.")
    inside = (images >= 0) & (images <= 1)  # false for NaN too
    if not bool(inside.all()):
        raise IsoconvError(f"Expected pixels in [0, 1]. Got {float(images[~inside][0])}.")
    return images.detach().to(torch.float64, copy=True)


def checked_labels(labels: Tensor, count: int) -> Tensor:
    """In int64; whether they fit the classes is seen when the network has answered."""
    integer = isinstance(labels, Tensor) and not (labels.is_floating_point() or labels.is_complex())
    if not integer or labels.dtype == torch.bool:
        got = labels.dtype if isinstance(labels, Tensor) else type(labels).__name__
        raise IsoconvError(f"Expected integer labels. Got {got}.")
    if labels.shape != (count,):
        raise IsoconvError(f"Expected one label for each of {count} images. Got shape {tuple(labels.shape)}.")
    return labels.detach().to(torch.int64)


def checked_classes(labels: Tensor, classes: int) -> None:
    wrong = (labels < 0) | (labels >= classes)
    if bool(wrong.any()):
        raise IsoconvError(f"Expected labels from 0 to {classes - 1}. Got {int(labels[wrong][0])}.")


def checked_budget(budget: float | Tensor, count: int, name: str) -> Tensor:
    """One budget per image, in float64 on the CPU."""
    if isinstance(budget, Tensor):
        if not budget.is_floating_point() or budget.shape not in (torch.Size(), (count,)):
            raise IsoconvError(
                f"Expected {name}, one number or one for each of {count} images. "
                f"Got {budget.dtype} of shape {tuple(budget.shape)}."
            )
        values = budget.detach().to("cpu", torch.float64).expand(count).contiguous()
    elif isinstance(budget, Real) and not isinstance(budget, bool):
        values = torch.full((count,), float(budget), dtype=torch.float64, device="cpu")
        _require_budget(float(budget), name)
    else:
        raise IsoconvError(f"Expected {name}, one number or one for each of {count} images. Got {budget!r}.")
    for value in values[~((values >= 0) & values.isfinite())].tolist():
        _require_budget(value, name)
    return values


def _require_budget(value: float, name: str) -> None:
    if not (math.isfinite(value) and value >= 0):
        raise IsoconvError(f"Expected {name} finite and not negative. Got {value}.")


def checked_count(value: int, name: str, least: int = 1) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise IsoconvError(f"Expected {name}, a whole number of at least {least}. Got {value!r}.")
    return value


def checked_step_size(value: float) -> float:
    if not isinstance(value, Real) or isinstance(value, bool) or not (math.isfinite(value) and value > 0):
        raise IsoconvError(f"Expected step_size finite and positive. Got {value!r}.")
    return float(value)


def checked_device(model: nn.Module, device: torch.device | str | None) -> torch.device:
    """The one asked for, or else the model's."""
    if not isinstance(model, nn.Module):
        raise IsoconvError(f"Expected a torch.nn.Module. Got {type(model).__name__}.")
    if device is None:
        tensors = [*model.parameters(), *model.buffers()]
        device = tensors[0].device if tensors else "cpu"
    try:
        probe = torch.zeros((), dtype=torch.float64, device=device)
        float(probe)  # the meta device has no numbers
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise IsoconvError(f"Expected a device that has float64. Got {str(device)!r}: {reason}") from None
    return probe.device


def checked_batch_size(batch_size: int | None, images: Tensor, device: torch.device) -> int:
    """By default as many images as keep the device busy and fit into its memory, for networks of the paper's size."""
    if batch_size is not None:
        return checked_count(batch_size, "batch_size")
    pixels = _PIXELS["cpu" if device.type == "cpu" else "cuda"]
    return max(1, min(_MOST_IMAGES, pixels // math.prod(images.shape[1:])))
