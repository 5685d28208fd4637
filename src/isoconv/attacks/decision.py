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
from torch import Tensor, nn

from isoconv.attacks.ball import column
from isoconv.attacks.search import AttackResult, Deployed, Options, Search, check_counts
from isoconv.errors import IsoconvError

_POOL = 1000  # images of the set that may serve as a starting point
_NOISE = 64
_BISECTIONS = 20
_CHECK_EVERY = 50  # queries between two looks at whether all images are fooled


@torch.inference_mode(False)
@torch.no_grad()
def boundary(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    epsilon: float | Tensor,
    *,
    steps: int = 25_000,
    early_stop: bool = True,
    seed: int = 0,
    **options: Unpack[Options],
) -> AttackResult:
    """Run the boundary attack (Brendel et al., 2018): a walk along the decision boundary, drawn towards the image.

    Success is a misclassified point within `epsilon`. Images that are attacked together share their random directions, so
    that results depend on the batch size. With `early_stop` a batch is finished when all of it is fooled. Needs foolbox.
    `options` are those of `pgd`.
    """
    check_counts(steps=steps, seed=seed)
    attack = import_foolbox().attacks.BoundaryAttack(steps=steps)
    # foolbox works in float32, however small the budget.
    search = Search(model, images, labels, epsilon, search_dtype=torch.float32, **options)
    return _decide(search, attack, None, early_stop, seed)


@torch.inference_mode(False)
@torch.no_grad()
def pointwise(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    epsilon: float | Tensor,
    *,
    queries: int = 10_000,
    early_stop: bool = True,
    seed: int = 0,
    **options: Unpack[Options],
) -> AttackResult:
    """Run the pointwise attack (Schott et al., 2018): reset one pixel after the other of a misclassified point.

    First all the way to the image's pixel, then half of it, and so on, until nothing is gained or after `queries` queries.
    All else as in `boundary`.
    """
    check_counts(queries=queries, seed=seed)
    attack = import_foolbox().attacks.PointwiseAttack()
    search = Search(model, images, labels, epsilon, search_dtype=torch.float32, **options)
    return _decide(search, attack, queries, early_stop, seed)


def import_foolbox() -> Any:
    """Import foolbox, which warns of its use of scipy, and imports GitPython, which wants a git that it never runs."""
    try:
        with patch.dict(os.environ, GIT_PYTHON_REFRESH="quiet"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import foolbox  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError as error:
        raise IsoconvError(
            f"Expected foolbox for the boundary and pointwise attacks. Got {error}: pip install 'isoconv[attacks]'."
        ) from None
    return foolbox


def _decide(search: Search, attack: Any, queries: int | None, early_stop: bool, seed: int) -> AttackResult:
    pool = _starting_pool(search, seed)
    for number, index in enumerate(search.batches(search.standing())):
        images, labels, epsilon = search.rows(index)
        starts, misclassified = _starting_points(search.network, images.float(), labels, pool)
        rows = misclassified.nonzero()[:, 0]
        if len(rows):
            enough = 0.999 * epsilon[rows].float() if early_stop else torch.full_like(epsilon[rows].float(), -1.0)
            watched = Watched(search.network, images[rows].float(), labels[rows], enough, queries)
            with _seed_global_generators(search.network.device, seed, number):
                watched.run(attack, starts[rows])
            away = watched.closest.to(images) - images[rows]
            search.judge(index[rows.to(index.device)], images[rows] + away)
            # And as far out in that direction as is allowed: float64 may see the boundary a little further away.
            norms = torch.linalg.vector_norm(away.flatten(1), dim=1).clamp_min(torch.finfo(torch.float64).tiny)
            search.judge(index[rows.to(index.device)], images[rows] + away * column(epsilon[rows] / norms, away))
        search.finish(index)
    return search.result()


class _EnoughError(Exception):
    """Leaves an attack that has no way out of its own."""


class Watched(nn.Module):
    """A network that remembers, of each image, the nearest misclassified point that it was queried about.

    Every query is about the whole batch, in order; the first is about the starting points. It raises when all distances
    are at most `enough`, or after `queries` queries.
    """

    def __init__(
        self, network: Deployed, images: Tensor, labels: Tensor, enough: Tensor, queries: int | None = None
    ) -> None:
        super().__init__()
        self.network, self.images, self.labels = network, images, labels
        self.enough, self.queries, self.count = enough, queries, 0
        self.closest, self.distance = images, torch.full_like(enough, torch.inf)

    def forward(self, points: Tensor) -> Tensor:
        logits = self.network.search_logits(points.clone())
        distance = torch.linalg.vector_norm((points - self.images).flatten(1), dim=1)
        closer = (logits.argmax(dim=1) != self.labels) & (distance < self.distance)
        self.closest = torch.where(column(closer, points), points, self.closest)
        self.distance = torch.where(closer, distance, self.distance)
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


def _starting_pool(search: Search, seed: int) -> Tensor:
    """Return points where an attack may start: the images themselves, noise, black, grey and white."""
    originals = search.originals[:_POOL].to(search.network.device, torch.float32)
    noise = torch.rand(
        _NOISE,
        *originals.shape[1:],
        generator=torch.Generator("cpu").manual_seed(seed),
        dtype=torch.float32,
        device="cpu",
    )
    shades = [torch.full_like(noise[:1], shade) for shade in (0.0, 0.5, 1.0)]
    return torch.cat([originals, torch.cat([noise, *shades]).to(originals)])


def _starting_points(network: Deployed, images: Tensor, labels: Tensor, pool: Tensor) -> tuple[Tensor, Tensor]:
    """Return the nearest of the pool with another prediction, drawn to the boundary; and whether there is one."""
    predictions = network.search_logits(pool.clone()).argmax(dim=1)
    distances = torch.cdist(images.flatten(1), pool.flatten(1))
    nearest = torch.where(predictions[None] == labels[:, None], torch.inf, distances).min(dim=1)
    outer, inner = pool[nearest.indices], images
    for _ in range(_BISECTIONS):
        middle = (outer + inner) / 2
        fooled = column(network.search_logits(middle.clone()).argmax(dim=1) != labels, images)
        outer, inner = torch.where(fooled, middle, outer), torch.where(fooled, inner, middle)
    return outer, nearest.values.isfinite()


@contextmanager
def _seed_global_generators(device: torch.device, *seed: int) -> Iterator[None]:
    """Seed the global generators of torch and numpy, which foolbox draws from, and restore them afterwards."""
    first, second = np.random.SeedSequence(seed).generate_state(2)
    state = np.random.get_state()
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.default_generator.manual_seed(int(first))
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(int(first))
        np.random.seed(int(second))
        try:
            yield
        finally:
            np.random.set_state(state)
