"""Attacks that see only the decision: foolbox's boundary and pointwise attacks, held to a budget.

They look for the nearest point that is misclassified. Here they start from the nearest known image that is, and what they
ask the network is watched: the nearest misclassified point that they ever ask about is what counts, so they may be
stopped at any moment. foolbox works in float32; the judgement is in float64 like everywhere.
"""

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from isoconv.attacks.ball import column
from isoconv.attacks.checks import checked_count
from isoconv.attacks.deployed import Deployed
from isoconv.attacks.findings import Findings, Progress
from isoconv.attacks.result import AttackResult
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
    batch_size: int | None = None,
    device: torch.device | str | None = None,
    progress: Progress | None = None,
) -> AttackResult:
    """The boundary attack (Brendel et al., 2018): a walk along the boundary of the class, drawn towards the image.

    Success is a misclassified point within `epsilon`. Images that are attacked together share their random directions, so
    that results depend on the batch size. With `early_stop` a batch is done with when all of it is fooled. Needs foolbox.
    """
    checked_count(steps, "steps")
    foolbox = _foolbox()
    attack = foolbox.attacks.BoundaryAttack(steps=steps)
    findings = _findings(model, images, labels, epsilon, seed, batch_size, device, progress)
    _decide(findings, foolbox, attack, None, early_stop, seed)
    return findings.result()


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
    batch_size: int | None = None,
    device: torch.device | str | None = None,
    progress: Progress | None = None,
) -> AttackResult:
    """The pointwise attack (Schott et al., 2018): from a misclassified point, one pixel after the other back to the image's.

    First all the way, then half of it, and so on, until nothing is gained or the network has been asked `queries` times.
    All else as in `boundary`.
    """
    checked_count(queries, "queries")
    foolbox = _foolbox()
    attack = foolbox.attacks.PointwiseAttack()
    findings = _findings(model, images, labels, epsilon, seed, batch_size, device, progress)
    _decide(findings, foolbox, attack, queries, early_stop, seed)
    return findings.result()


def _findings(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    epsilon: float | Tensor,
    seed: int,
    batch_size: int | None,
    device: torch.device | str | None,
    progress: Progress | None,
) -> Findings:
    checked_count(seed, "seed", least=0)
    return Findings(
        model,
        images,
        labels,
        epsilon,
        batch_size=batch_size,
        device=device,
        progress=progress,
        search_dtype=torch.float32,  # foolbox's, however small the budget
    )


def _foolbox() -> Any:
    """foolbox, which on import warns of its use of scipy, and imports GitPython, which wants a git that it never runs."""
    setting = os.environ.get("GIT_PYTHON_REFRESH")
    os.environ["GIT_PYTHON_REFRESH"] = "quiet"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import foolbox  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError as error:
        raise IsoconvError(
            f"Expected foolbox for the boundary and pointwise attacks. Got {error}: pip install 'isoconv[attacks]'."
        ) from None
    finally:
        if setting is None:
            del os.environ["GIT_PYTHON_REFRESH"]
        else:
            os.environ["GIT_PYTHON_REFRESH"] = setting
    return foolbox


def _decide(findings: Findings, foolbox: Any, attack: Any, queries: int | None, early_stop: bool, seed: int) -> None:
    pool = _pool(findings, seed)
    for number, index in enumerate(findings.batches(findings.standing())):
        images, labels, epsilon = findings.rows(index)
        starts, found = _starting_points(findings.network, images.float(), labels, pool)
        rows = found.nonzero()[:, 0]
        if len(rows):
            watched = Watched(
                findings.network, images[rows].float(), labels[rows], epsilon[rows].float(), queries, early_stop
            )
            with _own_randomness(findings.network.device, seed, number):
                _run(foolbox, attack, watched, starts[rows])
            places = index[rows.to(index.device)]
            away = watched.closest.to(images) - images[rows]
            findings.judge(places, images[rows] + away)
            # And as far out in that direction as is allowed: float64 may see the boundary a little further away.
            norms = torch.linalg.vector_norm(away.flatten(1), dim=1).clamp_min(torch.finfo(torch.float64).tiny)
            findings.judge(places, images[rows] + away * column(epsilon[rows] / norms, away))
        findings.finish(len(index))


def _run(foolbox: Any, attack: Any, watched: "Watched", starts: Tensor) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its statistics take means of nothing
        network = foolbox.PyTorchModel(watched.eval(), bounds=(0, 1), device=starts.device)
        with suppress(_EnoughError):
            attack.run(network, watched.images, foolbox.Misclassification(watched.labels), starting_points=starts)


class _EnoughError(Exception):
    """Leaves an attack that has no way out of its own."""


class Watched(nn.Module):
    """A network that remembers, of each image, the nearest misclassified point that it was asked about.

    It is always asked about the whole batch, in order, first about the starting points.
    """

    def __init__(
        self,
        network: Deployed,
        images: Tensor,
        labels: Tensor,
        epsilon: Tensor,
        queries: int | None,
        early_stop: bool,
    ) -> None:
        super().__init__()
        self.network: Callable[[Tensor], Tensor] = network.search_logits
        self.images, self.labels = images, labels
        self.enough = 0.999 * epsilon if early_stop else torch.full_like(epsilon, -1.0)
        self.queries, self.asked = queries, 0
        self.closest = images
        self.distance = torch.full_like(epsilon, torch.inf)

    def forward(self, points: Tensor) -> Tensor:
        logits = self.network(points.clone())
        distance = torch.linalg.vector_norm((points - self.images).flatten(1), dim=1)
        closer = (logits.argmax(dim=1) != self.labels) & (distance < self.distance)
        self.closest = torch.where(column(closer, points), points, self.closest)
        self.distance = torch.where(closer, distance, self.distance)
        self.asked += 1
        if self.asked == 1:
            # foolbox asks whether it was given misclassified points, and gives up all of them if one is not. They are, but
            # one at the very boundary may round the other way in a batch of another size.
            return logits.scatter(1, self.labels[:, None], -torch.inf)
        if self.asked == self.queries:
            raise _EnoughError
        if self.asked % _CHECK_EVERY == 0 and bool((self.distance <= self.enough).all()):
            raise _EnoughError
        return logits


def _pool(findings: Findings, seed: int) -> Tensor:
    """Where an attack may start: the images themselves, noise, black, grey and white."""
    originals = findings.originals[:_POOL].to(findings.network.device, torch.float32)
    shape = originals.shape[1:]
    generator = torch.Generator("cpu").manual_seed(seed)
    noise = torch.rand(_NOISE, *shape, generator=generator, dtype=torch.float32, device="cpu").to(originals)
    plain = [torch.full((1, *shape), shade, dtype=torch.float32, device=originals.device) for shade in (0.0, 0.5, 1.0)]
    return torch.cat([originals, noise, *plain])


def _starting_points(network: Deployed, images: Tensor, labels: Tensor, pool: Tensor) -> tuple[Tensor, Tensor]:
    """For each image the nearest of the pool with another decision, drawn to the boundary; and whether there is one."""
    decisions = network.search_logits(pool.clone()).argmax(dim=1)
    distances = torch.cdist(images.flatten(1), pool.flatten(1))
    distances = torch.where(decisions[None] == labels[:, None], torch.inf, distances)
    nearest = distances.min(dim=1)
    outer, inner = pool[nearest.indices], images
    for _ in range(_BISECTIONS):
        middle = (outer + inner) / 2
        fooled = column(network.search_logits(middle.clone()).argmax(dim=1) != labels, images)
        outer, inner = torch.where(fooled, middle, outer), torch.where(fooled, inner, middle)
    return outer, nearest.values.isfinite()


@contextmanager
def _own_randomness(device: torch.device, *seed: int) -> Iterator[None]:
    """foolbox draws from the global generators of torch and numpy: seed them, and put them back afterwards."""
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
