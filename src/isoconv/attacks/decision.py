"""Decision attacks: foolbox's boundary and pointwise attacks, which see only the predicted class, held to a budget.

They look for the nearest misclassified point. Here they start from the nearest known one, and every query is watched: the
nearest misclassified point that they ever query is what counts, so they may be stopped at any moment. foolbox works in
float32; the result is judged in float64 as everywhere.
"""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Unpack
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor
from torch.nn import Module

from isoconv.attacks.ball import choose, column
from isoconv.attacks.search import AttackResult, Budget, Options, Search, check_counts, without_autograd
from isoconv.errors import IsoconvError

_POOL = 1000  # images of the set that may serve as a starting point
_NOISE = 64
_BISECTIONS = 20
_CHECK_EVERY = 50  # queries between two looks at whether all images are fooled


@without_autograd
def boundary(
    model: Module, images: Tensor, labels: Tensor, epsilon: Budget, *, steps: int = 25_000, **options: Unpack[Options]
) -> AttackResult:
    """Run the boundary attack (Brendel et al., 2018): a walk along the decision boundary, drawn towards the image.

    Success is a misclassified point within `epsilon`. Images that are attacked together share their random directions, so
    that results depend on the batch size. With early stopping a batch is finished when all of it is fooled. Needs foolbox.
    """
    check_counts(steps=steps)
    attack = import_foolbox().attacks.BoundaryAttack(steps=steps)
    # foolbox works in float32, however small the budget.
    return _decide(Search(model, images, labels, epsilon, dtype=torch.float32, **options), attack)


@without_autograd
def pointwise(
    model: Module, images: Tensor, labels: Tensor, epsilon: Budget, *, queries: int = 10_000, **options: Unpack[Options]
) -> AttackResult:
    """Run the pointwise attack (Schott et al., 2018): reset one pixel after the other of a misclassified point.

    First all the way to the image's pixel, then half of it, and so on, until nothing is gained or after `queries` queries.
    All else as in `boundary`.
    """
    check_counts(queries=queries)
    attack = import_foolbox().attacks.PointwiseAttack()
    return _decide(Search(model, images, labels, epsilon, dtype=torch.float32, **options), attack, queries)


def import_foolbox() -> Any:
    """Import foolbox, which warns of its use of scipy, and imports GitPython, which wants a git that it never runs."""
    try:
        with patch.dict(os.environ, GIT_PYTHON_REFRESH="quiet"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import foolbox  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError as error:
        text = f"The attacks boundary and pointwise need foolbox ({error}): pip install 'isoconv[attacks]'."
        raise IsoconvError(text) from None
    return foolbox


def _decide(search: Search, attack: Any, queries: int | None = None) -> AttackResult:
    pool = _starting_pool(search)
    predictions = search.logits(pool).argmax(dim=1)
    for number, index in enumerate(search.batches(search.standing())):
        images, labels = search.originals[index], search.labels[index]
        distances = torch.cdist(images.float().flatten(1), pool.flatten(1))
        nearest = torch.where(predictions[None] == labels[:, None], torch.inf, distances).min(dim=1)
        starts = _approach(search, images.float(), labels, pool[nearest.indices])
        rows = nearest.values.isfinite()  # where a misclassified point is known
        if bool(rows.any()):
            watched = Watched(search, index[rows], queries)
            with _seed_global_generators(search.device, search.seed, number):
                watched.run(attack, starts[rows])
            away = watched.closest.to(images) - images[rows]
            search.judge(index[rows], away)
            # And as far out in that direction as is allowed: float64 may see the boundary a little further away.
            norms = torch.linalg.vector_norm(away.flatten(1), dim=1).clamp_min(torch.finfo(torch.float64).tiny)
            search.judge(index[rows], away * column(search.epsilon[index[rows]] / norms, away))
        search.finish(index)
    return search.result()


def _starting_pool(search: Search) -> Tensor:
    """Return points where an attack may start: the images themselves, noise, black, grey and white."""
    originals = search.originals[:_POOL].float()
    stream = torch.Generator("cpu").manual_seed(search.seed)
    noise = torch.rand(_NOISE, *originals.shape[1:], generator=stream, dtype=torch.float32, device="cpu")
    shades = [torch.full_like(noise[:1], shade) for shade in (0.0, 0.5, 1.0)]
    return torch.cat([originals, torch.cat([noise, *shades]).to(originals)])


def _approach(search: Search, images: Tensor, labels: Tensor, starts: Tensor) -> Tensor:
    """Draw misclassified points towards the images, up to the boundary."""
    outer, inner = starts, images
    for _ in range(_BISECTIONS):
        middle = (outer + inner) / 2
        fooled = search.logits(middle).argmax(dim=1) != labels
        outer, inner = choose(fooled, middle, outer), choose(fooled, inner, middle)
    return outer


class _EnoughError(Exception):
    """Leaves an attack that has no way out of its own."""


class Watched(Module):
    """A network that remembers, of each image, the nearest misclassified point that it was queried about.

    Every query is about the whole batch, in order; the first is about the starting points. It raises when all images are
    fooled within their budget, if that is a reason to stop early, or after `queries` queries.
    """

    def __init__(self, search: Search, index: Tensor, queries: int | None = None) -> None:
        super().__init__()
        self.search, self.queries, self.count = search, queries, 0
        self.closest = self.images = search.originals[index].float()
        self.labels, epsilon = search.labels[index], search.epsilon[index].float()
        self.enough = 0.999 * epsilon if search.early_stop else -torch.ones_like(epsilon)
        self.distance = torch.full_like(epsilon, torch.inf)

    def forward(self, points: Tensor) -> Tensor:
        logits = self.search.logits(points)
        distance = torch.linalg.vector_norm((points - self.images).flatten(1), dim=1)
        closer = (logits.argmax(dim=1) != self.labels) & (distance < self.distance)
        self.closest, self.distance = choose(closer, points, self.closest), choose(closer, distance, self.distance)
        self.count += 1
        if self.count == 1:
            # foolbox first asks whether the starting points are misclassified, and gives up all of them if one is not. They
            # are, but one at the very boundary may round the other way in a batch of another size.
            return logits.scatter(1, self.labels[:, None], -torch.inf)
        fooled = self.count % _CHECK_EVERY == 0 and bool((self.distance <= self.enough).all())
        if self.count == self.queries or fooled:
            raise _EnoughError
        return logits

    def run(self, attack: Any, starts: Tensor) -> None:
        """Let foolbox's attack query the network until it ends or is stopped."""
        foolbox = import_foolbox()
        with warnings.catch_warnings(), suppress(_EnoughError):
            warnings.simplefilter("ignore")  # its statistics take means of nothing
            network = foolbox.PyTorchModel(self.eval(), bounds=(0, 1), device=starts.device)
            attack.run(network, self.images, foolbox.Misclassification(self.labels), starting_points=starts)


@contextmanager
def _seed_global_generators(device: torch.device, *seed: int) -> Iterator[None]:
    """Seed the global generators of torch and numpy, which foolbox draws from, and restore them afterwards."""
    first, second = np.random.SeedSequence(seed).generate_state(2)
    on_device = [torch.cuda.default_generators[device.index]] if device.type == "cuda" else []
    state = np.random.get_state()
    with torch.random.fork_rng(devices=[device] if on_device else []):
        for generator in (torch.default_generator, *on_device):
            generator.manual_seed(int(first))
        np.random.seed(int(second))
        try:
            yield
        finally:
            np.random.set_state(state)
