"""The images of one attack, and the strongest point that was found for each so far."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from isoconv.attacks.ball import into_ball
from isoconv.attacks.checks import (
    checked_batch_size,
    checked_budget,
    checked_classes,
    checked_device,
    checked_images,
    checked_labels,
)
from isoconv.attacks.deployed import Deployed, margins_of
from isoconv.attacks.result import AttackResult
from isoconv.errors import IsoconvError

Progress = Callable[[int, int], None]
"""Called as progress(done, total) whenever images are finished with."""

_SMALL = 1e-4  # a step of this length changes the loss by little more than float32 rounds it by


class Findings:
    """Judges candidates in float64 and keeps, of each image, the one of the smallest margin.

    Images and findings stay where the images were; what is being worked on goes to the network's device. Rows are named by
    `index`, a tensor on the images' device.
    """

    def __init__(
        self,
        model: nn.Module,
        images: Tensor,
        labels: Tensor,
        epsilon: float | Tensor,
        *,
        batch_size: int | None,
        device: torch.device | str | None,
        progress: Progress | None,
        search_dtype: torch.dtype | None = None,
        budget: str = "epsilon",
    ) -> None:
        self.originals = checked_images(images)
        self.labels = checked_labels(labels, len(images)).to(images.device)
        self.epsilon = checked_budget(epsilon, len(images), budget).to(images.device)
        self.progress, self.done = progress, 0
        if search_dtype is None:
            small = len(images) > 0 and float(self.epsilon.max()) < _SMALL
            search_dtype = torch.float64 if small else torch.float32
        self.network = Deployed(model, checked_device(model, device), search_dtype)
        self.batch_size = checked_batch_size(batch_size, images, self.network.device)
        self.points = self.originals.clone()
        self.norms = torch.zeros_like(self.epsilon)
        self.margins = torch.zeros_like(self.epsilon)
        self.classes = 0
        for index in self.batches(torch.arange(len(images), device=images.device)):
            self._judge_clean(index)
        self.clean = self.margins > 0
        self.finish(len(images) - len(self.standing()))

    def _judge_clean(self, index: Tensor) -> None:
        logits = self.network.logits(self.originals[index])
        self.classes = logits.shape[1]
        checked_classes(self.labels[index], self.classes)
        nan = logits.isnan().any(dim=1).to(index.device)
        if bool(nan.any()):
            raise IsoconvError(f"Expected a model that gives numbers. Got NaN for image {int(index[nan][0])}.")
        self.margins[index] = margins_of(logits, self.labels[index]).to(index.device)

    def batches(self, index: Tensor) -> list[Tensor]:
        return list(index.split(self.batch_size)) if len(index) else []

    def rows(self, index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Images, labels and budgets on the network's device."""
        device = self.network.device
        return self.originals[index].to(device), self.labels[index].to(device), self.epsilon[index].to(device)

    def judge(self, index: Tensor, candidates: Tensor) -> Tensor:
        """Bring the candidates into the ball, evaluate them there, keep what is stronger; their margins."""
        images, labels, epsilon = self.rows(index)
        points, norms = into_ball(images, candidates.to(images), epsilon)
        margins = self.network.margins(points, labels)
        self.keep(index, points, norms, margins)
        return margins

    def keep(self, index: Tensor, points: Tensor, norms: Tensor, margins: Tensor) -> None:
        """Those that are stronger than what is there. The points must lie in the ball."""
        stronger = margins.to(index.device) < self.margins[index]
        chosen = stronger.to(points.device)
        self.points[index[stronger]] = points[chosen].to(index.device)
        self.norms[index[stronger]] = norms[chosen].to(index.device)
        self.margins[index[stronger]] = margins[chosen].to(index.device)

    def standing(self, index: Tensor | None = None) -> Tensor:
        """Those of the rows (of all) for which there is still something to look for: not fooled, and with a budget."""
        if index is None:
            index = torch.arange(len(self.originals), device=self.originals.device)
        return index[(self.margins[index] > 0) & (self.epsilon[index] > 0)]

    def finish(self, count: int) -> None:
        self.done += count
        if self.progress is not None and count:
            self.progress(self.done, len(self.originals))

    def result(self) -> AttackResult:
        return AttackResult(self.points, self.norms, self.clean, self.margins <= 0, self.margins, self.epsilon)
