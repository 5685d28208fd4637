"""Training critics: one per configuration, side by side, from two distributions to a lower bound of their distance."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from isoconv.errors import IsoconvError
from isoconv.models import DCGANCritic, Large, Small
from isoconv.nn import Scale
from isoconv.train.capture import STREAMS_IN_POOL, lay_out
from isoconv.train.classifier import device_name
from isoconv.train.engine import Observer, fit
from isoconv.train.run_folder import RunFolder
from isoconv.wasserstein.bound import WassersteinBound, as_values, choose_method, wasserstein_lower_bound
from isoconv.wasserstein.critic_config import CriticConfig
from isoconv.wasserstein.samples import PairBatches, Samples
from isoconv.wasserstein.vector_critic import AnchorCritics, FCCritic

# Of the anchors' critic, found on funnel pairs of seed 0: in high dimension the anchors begin close together and part,
# and the minimum begins soft, on the scale of the differences between distances there.
_ANCHOR_SPREAD = 3.4
_ANCHOR_HEAT = 0.02


class CriticTask:
    """Maximise mean f(xs) − mean f(ys). A critic with several columns is several critics, each maximised for itself."""

    def __init__(self, config: CriticConfig) -> None:
        self.config = config

    def __call__(self, model: nn.Module, xs: Tensor, ys: Tensor) -> Tensor:
        """Return minus the difference (the largest one, of several columns)."""
        pixels, bf16 = self.config.pixel_range, self.config.precision == "bf16"
        values = lay_out(torch.cat([as_values(part, pixels, torch.float32) for part in (xs, ys)]))
        with torch.autocast(values.device.type, torch.bfloat16, enabled=bf16):
            scores = model(values)
        scores = scores.float()
        differences = scores[: len(xs)].mean(dim=0) - scores[len(xs) :].mean(dim=0)
        total = differences.sum()
        # Its value is that of the best column, its gradient that of all of them.
        return total.detach() - differences.detach().amax() - total


def make_critic(config: CriticConfig, first: Samples, second: Samples) -> nn.Module:
    """The critic of a configuration, initialised from its seed, on the CPU so that every device starts alike.

    Only the anchors' critic looks at the distributions: it begins with training samples for anchors.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        if config.model == "anchors":
            return _anchor_critics(config, first, second)
        if config.model == "fc":
            if config.conv == "standard":
                raise IsoconvError("Expected an orthogonal method for the critic fc, such as bcop. Got standard.")
            return FCCritic(
                math.prod(config.input_shape),
                config.width,
                config.depth,
                config.activation,
                config.group_size,
                config.scale,
                config.orthogonalisation,
            )
        channels, height, width = config.input_shape
        shape = (channels, height * config.upsample, width * config.upsample)
        options = {name: getattr(config, name) for name in ("conv", "activation", "orthogonalisation")}
        critic: nn.Module
        if config.model == "dcgan":
            critic = DCGANCritic(shape, **options)
        else:
            critic = {"small": Small, "large": Large}[config.model](shape, classes=1, **options)
        return critic if config.upsample == 1 else nn.Sequential(nn.Upsample(scale_factor=config.upsample), critic)


def _anchor_critics(config: CriticConfig, first: Samples, second: Samples) -> nn.Module:
    features, steps = math.prod(config.input_shape), config.epochs * config.steps_per_epoch

    def starts(samples: Samples, purpose: str) -> Tensor:
        found = training_samples(samples, config, purpose, config.anchors) * config.scale
        middle = found.mean(dim=0)
        return middle + (found - middle) * min(1.0, _ANCHOR_SPREAD / math.sqrt(features))

    # f is to be low on the second distribution and high on the first.
    wells, peaks = starts(second, "wells"), starts(first, "peaks")
    critics = AnchorCritics(wells, peaks, _ANCHOR_HEAT * math.sqrt(features), steps)
    return nn.Sequential(nn.Flatten(), Scale(config.scale), critics)


def training_samples(samples: Samples, config: CriticConfig, purpose: str, count: int) -> Tensor:
    """About `count` flattened float32 samples out of training batches, on the CPU."""
    batch = min(config.batch_size, count)
    steps = -(-count // batch)
    batches = samples.batches(config.seed, 0, steps, batch, purpose, torch.device("cpu"))
    values = torch.cat(list(itertools.islice(batches, steps)))[:count]
    return as_values(values, config.pixel_range, torch.float32).flatten(1)


def typical_scale(first: Samples, second: Samples, config: CriticConfig) -> float:
    """A power of two (so that it does not round) that brings coordinates to a standard deviation of about 1, for fc 4.

    Learning rates are absolute, so without it they would suit data of one size only.
    """
    both = torch.cat([training_samples(samples, config, "scale", 1024).double() for samples in (first, second)])
    spread = float((both - both.mean(dim=0)).square().mean().sqrt())
    if not 2.0**-500 < spread < 2.0**500:
        raise IsoconvError(f"Expected samples that differ. Got a standard deviation of {spread:g}.")
    return 2.0 ** -round(math.log2(spread)) * (4 if config.model == "fc" else 1)


@dataclass(frozen=True, eq=False)
class TrainedCritic:
    """A critic after training, what it proves on samples that it was not trained on, and the figures in its folder."""

    critic: nn.Module
    bound: WassersteinBound
    result: dict[str, Any]


def train_critics(
    configs: Sequence[CriticConfig],
    folders: Sequence[RunFolder],
    first: Samples,
    second: Samples,
    observer: Observer,
    *,
    confidence: float = 0.95,
    value_range: tuple[float, float] | None = None,
    method: str = "auto",
    units: str | None = None,
    device: str = "cpu",
    resume: bool = False,
    should_stop: Callable[[], bool] = lambda: False,
    save_every: float = 10.0,
) -> list[TrainedCritic]:
    """Train one critic per configuration and evaluate the last epoch of each, by `wasserstein_lower_bound`.

    The folders must have been started. The configurations may differ in all but the data; on a GPU they train side by
    side. `value_range` (by default the pixel range) is what the distributions are known to lie in.
    """
    place = torch.device(device)
    models = [make_critic(config, first, second) for config in configs]
    batches = [
        PairBatches(first, second, config.batch_size, config.steps_per_epoch, seed=config.seed, device=place)
        for config in configs
    ]
    fits = fit(
        models,
        batches,
        [CriticTask(config) for config in configs],
        [config.optimiser for config in configs],
        epochs=configs[0].epochs,
        lr=[config.lr for config in configs],
        momentum=configs[0].momentum,
        schedule=[config.schedule for config in configs],
        project_every=configs[0].project_every,
        project_iterations=configs[0].project_iterations,
        folder=folders,
        resume=resume,
        device=place,
        observer=observer,
        should_stop=should_stop,
        save_every=save_every,
    )
    trained = []
    for config, model, fitted, folder in zip(configs, models, fits, folders, strict=True):
        critic = _best_column(model.eval(), config, first, second, place)
        xs, ys = first.judged(config.seed, "first", place), second.judged(config.seed, "second", place)
        bound = wasserstein_lower_bound(
            critic,
            xs.values,
            ys.values,
            confidence,
            value_range=config.pixel_range if value_range is None else value_range,
            whole=(xs.whole, ys.whole),
            group=(xs.group, ys.group),
            method=method,
            units=units,
        )
        result = bound.to_dict() | {"first": config.first, "second": config.second, "model": config.model}
        result |= {name: getattr(config, name) for name in ("conv", "activation", "recipe", "seed")}
        result |= {"updates": fitted.updates, "train_seconds": fitted.seconds, "replicas": len(configs)}
        result |= {"device": device_name(place), "torch": torch.__version__}
        folder.finish(critic, result)
        trained.append(TrainedCritic(critic, bound, result))
    return trained


def check_critics(
    configs: Sequence[CriticConfig], first: Samples, second: Samples, device: str, method: str, bounded: bool
) -> None:
    """Refuse what cannot be trained or judged before anything is written."""
    choose_method(method, bounded, (first.observations, second.observations))
    if device == "cuda" and len(configs) > STREAMS_IN_POOL:
        raise IsoconvError(f"Expected at most {STREAMS_IN_POOL} critics side by side on a GPU. Got {len(configs)}.")
    for config in configs:
        pairs = PairBatches(first, second, config.batch_size, config.steps_per_epoch, seed=config.seed)
        next(pairs.epoch(0))
        make_critic(config, first, second)


@torch.no_grad()
def _best_column(
    model: nn.Module, config: CriticConfig, first: Samples, second: Samples, device: torch.device
) -> nn.Module:
    """Of two anchors' critics the one with the larger difference on training samples; any other critic as it is."""
    if not isinstance(model, nn.Sequential) or not isinstance(model[-1], AnchorCritics):
        return model
    xs, ys = (training_samples(samples, config, "choice", 4096).to(device) for samples in (first, second))
    column = int((model(xs).mean(dim=0) - model(ys).mean(dim=0)).argmax())
    return nn.Sequential(*list(model)[:-1], model[-1].chosen(column))
