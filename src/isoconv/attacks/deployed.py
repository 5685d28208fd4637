"""The network under attack: what is deployed, in float64 to judge with and in a cheaper precision to search with."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from isoconv.errors import IsoconvError
from isoconv.linalg.matrices import full_precision, matmul_precision
from isoconv.nn import plain


class Deployed:
    """`plain(model)` in evaluation on one device, with frozen weights, twice.

    Its weights are built here, once. The model itself is left alone.
    """

    def __init__(self, model: nn.Module, device: torch.device, search_dtype: torch.dtype) -> None:
        frozen = plain(model).eval().requires_grad_(False)
        self.device, self.search_dtype = device, search_dtype
        self.searched = copy.deepcopy(frozen).to(device, search_dtype)
        self.judged = frozen.to(device, torch.float64)

    def logits(self, images: Tensor) -> Tensor:
        """In float64. The images stay as they are even if the network's first module works in place."""
        return self._run(self.judged, images.to(self.device, torch.float64, copy=True))

    def margins(self, images: Tensor, labels: Tensor) -> Tensor:
        """In float64: positive where the network is right."""
        return margins_of(self.logits(images), labels)

    def search_logits(self, images: Tensor) -> Tensor:
        """Without TF32, which keeps ten bits of a pixel: who sees only decisions feels the way in smaller steps."""
        with full_precision(images):
            return self._run(self.searched, images)

    def gradient(self, images: Tensor, loss: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Logits, the loss of each image, and its gradient in the pixels, in the precision of the search."""
        images = images.detach().requires_grad_()
        with torch.enable_grad(), matmul_precision(images, "high"):
            logits = self._run(self.searched, images * 1)  # times one: a module in place must not meet a leaf
            values = loss(logits)
            if not values.requires_grad:
                raise IsoconvError("Expected logits that can be differentiated in the pixels. Got a constant.")
            with self._explained(images):
                (gradient,) = torch.autograd.grad(values.sum(), images)
        return logits.detach(), values.detach(), gradient

    def _run(self, network: nn.Module, images: Tensor) -> Tensor:
        with self._explained(images):
            logits = network(images)
        if not isinstance(logits, Tensor) or logits.dim() != 2 or len(logits) != len(images) or logits.shape[1] < 2:
            got = f"shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else type(logits).__name__
            raise IsoconvError(f"Expected logits ({len(images)}, classes) of at least 2 classes. Got {got}.")
        return logits

    @contextmanager
    def _explained(self, images: Tensor) -> Iterator[None]:
        """Without autocast, whose products are too rough even to search with, and with what goes wrong in one line."""
        try:
            with torch.autocast(self.device.type, enabled=False):
                yield
        except IsoconvError:
            raise
        except torch.OutOfMemoryError as error:
            raise IsoconvError(
                f"Expected a batch that fits into the memory of {self.device}. Got {len(images)} images: "
                f"choose a smaller batch_size."
            ) from error
        except (RuntimeError, ValueError, TypeError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise IsoconvError(
                f"Expected images that the model can take in {images.dtype}. Got shape {tuple(images.shape)}: {reason}"
            ) from error


def margins_of(logits: Tensor, labels: Tensor) -> Tensor:
    """y_t − max_{j ≠ t} y_j; −inf where that is NaN, so that right means positive."""
    margins = -margin_loss(logits, labels.to(logits.device))
    return torch.where(margins.isnan(), -torch.inf, margins)


def margin_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """max_{j ≠ t} y_j − y_t, the loss of Carlini and Wagner without a limit: positive where the label has lost."""
    right = logits.gather(1, labels[:, None])[:, 0]
    others = logits.scatter(1, labels[:, None], -torch.inf)
    return others.max(dim=1).values - right
