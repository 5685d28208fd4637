"""A critic: its configuration, its network, its training, and the bound that it proves on samples it has not seen."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from isoconv.errors import require
from isoconv.models.catalogue import MODELS
from isoconv.nn import Scale
from isoconv.nn.methods import METHODS
from isoconv.records import Record
from isoconv.train.capture import lay_out
from isoconv.train.classifier import device_name
from isoconv.train.config import PAPERS_PROJECTIONS, NetworkSettings, OneOf, Positive, PositiveInt
from isoconv.train.engine import fit
from isoconv.train.run_folder import RunFolder, locked
from isoconv.wasserstein.bound import Interval, WassersteinBound, as_values, wasserstein_lower_bound
from isoconv.wasserstein.samples import FiniteSamples, Samples, require_one_shape
from isoconv.wasserstein.vector_critic import FC_ACTIVATIONS, AnchorCritics, FCCritic

#: The critics, each with the options that it alone uses.
CRITICS = {
    **{model: {"conv", "activation", "upsample"} for model in ("dcgan", "small", "large")},
    "fc": {"width", "depth", "activation"},
    "anchors": {"anchors"},
}
VECTOR_CRITICS = ("fc", "anchors")  # for vectors both are trained
# Found on funnel pairs of seed 0: in high dimension the anchors begin close together and part, and the minimum begins
# soft, on the scale of the differences between distances there.
_ANCHOR_SPREAD = 3.4
_ANCHOR_HEAT = 0.02
_CPU = torch.device("cpu")
_PASSES = 40  # over the smaller set of vectors, at most
_LEAST_EPOCHS = 3  # of 100 updates: with fewer a critic has not learnt


@dataclass(frozen=True)
class CriticConfig(NetworkSettings):
    """All that is needed to repeat the training of one critic between two distributions; `config.json` holds it whole.

    model : dcgan, small, large for images; fc (orthogonal layers) or anchors (distances to learned points) for vectors
    contents : hashes of the two sets, where they are finite; with other samples, others would be held out
    upsample : how many times larger images are made (nearest neighbour) in front of the critic; part of its constant
    scale : what vectors are multiplied by in front of the critic; part of its constant
    width, depth, group_size : of fc
    anchors : number of points
    repeats : what equal rows of a sample are; see Note [Repeated rows]
    confidence, value_range, method, count : how it is judged; see `distance_bound`. None where that did not make the run
    An epoch is `steps_per_epoch` updates, whatever the size of the data.
    """

    not_compared = ("contents",)
    brief = ("confidence", "value_range", "method", "count")

    first: str
    second: str
    input_shape: tuple[int, ...]
    contents: tuple[str, str] = ("", "")
    model: Annotated[str, OneOf(CRITICS)] = "dcgan"
    activation: Annotated[str, OneOf(FC_ACTIVATIONS)] = field(default="maxmin", kw_only=True)
    upsample: PositiveInt = 1
    scale: Positive = 1.0
    width: PositiveInt = 256
    depth: int = 3
    group_size: int = 8
    anchors: PositiveInt = 512
    steps_per_epoch: PositiveInt = 100
    pixel_range: tuple[float, float] | None = None
    whole: tuple[bool, bool] = (False, False)
    held_out: float = 0.25
    repeats: str = "either"
    confidence: float | None = None
    value_range: Interval | None = None
    method: str | None = None
    count: int | None = None
    epochs: PositiveInt = field(default=100, kw_only=True)
    batch_size: PositiveInt = field(default=64, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        purpose = f"images for the critic {self.model}" if self.upsample == 1 else "images to upsample"
        takes = len(self.input_shape) == 3 or (self.model not in MODELS and self.upsample == 1)
        require(takes, purpose, f"samples of shape {self.input_shape}")

    def require_same(self, folder: RunFolder) -> None:
        """Raise unless the run in the folder has this configuration, and samples of the same contents."""
        super().require_same(folder)  # first: what is held out depends on the options too
        then = type(self).read(folder.config).contents
        for name, old, new in zip((self.first, self.second), then, self.contents, strict=True):
            changed = f"others: {name} has changed since"
            require(old in ("", new), "the samples that the run was started with", changed)


def critic_config(
    first: str,
    second: str,
    shape: tuple[int, ...],
    model: str = "dcgan",
    *,
    conv: str = "bcop",
    activation: str | None = None,
    recipe: str = "default",
    **changes: Any,
) -> CriticConfig:
    """Return the configuration that a recipe makes of a critic; `changes` are other fields of `CriticConfig`.

    The recipe "paper" is RMSprop, 25,600 updates of 64 pairs, a tenth of the rate every 6,000, 1e-4 with MaxMin and 1e-3
    with ReLU; "default" is steepest descent where the layers live on a manifold, Adam elsewhere, the rate falling linearly
    to 0.
    """
    if activation is None:
        activation = "groupsort" if model == "fc" and recipe == "default" else "maxmin"
    if recipe == "paper":
        settings: dict[str, object] = {"optimiser": "rmsprop", "lr": 1e-3 if activation == "relu" else 1e-4}
        settings |= {"schedule": "exponential", "epochs": 256, "orthogonalisation": "bjorck"} | PAPERS_PROJECTIONS
    elif model == "anchors":
        settings = {"optimiser": "adam", "lr": 0.02, "epochs": 10, "batch_size": 1024}
    elif model == "fc":
        settings = {"epochs": 10, "batch_size": 256}
    elif conv in METHODS and METHODS[conv].on_manifold:
        settings = {}
    else:
        # Convolutions that are not matrices on a manifold: Adam for all of the network. At ten times this rate OSSN's
        # critics run away from their power iteration, to constants of up to 66,000 (results/critics, "lr0.001").
        settings = {"optimiser": "adam", "lr": 1e-4}
    settings |= {"recipe": recipe, "model": model, "conv": conv, "activation": activation}
    return CriticConfig(first, second, shape, **{**settings, **changes})


def choose_configs(
    first: Samples, second: Samples, critic: str | None, pixels: Interval, settings: dict[str, Any]
) -> list[CriticConfig]:
    """Return the configuration of each critic to train, fitted to the samples where nothing else is asked for.

    By default it is the paper's critic for images that it can take, and a smaller one for others. For vectors there are
    two; settings that only one of them has ask for that one.
    """
    shape, names = first.shape, [*VECTOR_CRITICS]
    if critic is not None:
        names = [critic]
    elif len(shape) == 3:
        divisor = math.gcd(*shape[1:])
        names = ["dcgan" if divisor % 16 == 0 else "large" if divisor % 4 == 0 else "fc"]
    elif "anchors" in settings:
        names = ["anchors"]
    elif settings.keys() & {"activation", "width", "depth", "lr", "optimiser"} or settings.get("recipe") == "paper":
        names = ["fc"]
    finite = [samples for samples in (first, second) if isinstance(samples, FiniteSamples)]
    parts = [len(samples.train) for samples in finite if not samples.whole]
    configs = []
    for name in names:
        config = critic_config(first.name, second.name, shape, name, **settings)
        unused = sorted(settings.keys() & set[str]().union(*CRITICS.values()) - CRITICS[name])
        require(not unused, f"options of the critic {name}", f"--{''.join(unused[:1])}, which it does not use")
        if "batch_size" not in settings:
            config = replace(config, batch_size=min([config.batch_size, *(len(side.train) for side in finite)]))
        if len(shape) != 3 and "epochs" not in settings and parts:
            # A critic that sees few vectors too often learns them by heart, and its value on others falls.
            passes = -(-_PASSES * min(parts) // (config.batch_size * config.steps_per_epoch))
            config = replace(config, epochs=min(config.epochs, max(_LEAST_EPOCHS, passes)))
        changes: dict[str, Any] = {"pixel_range": pixels, "value_range": pixels}
        if len(shape) != 3:
            changes = {"scale": typical_scale(first, second, config)}
        configs.append(replace(config, **changes))
        next(PairBatches(first, second, config).epoch(0))  # raises if there are too few samples for a batch
    return configs


# The network ------------------------------------------------------------------------------------------------------


def make_critic(config: CriticConfig, first: Samples, second: Samples) -> nn.Module:
    """Return the critic of a configuration, initialised from its seed, on the CPU so that every device starts alike.

    Only the anchors' critic looks at the distributions: it begins with training samples for anchors.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        features = math.prod(config.input_shape)
        if config.model == "anchors":
            # f is to be low on the second distribution and high on the first.
            wells, peaks = (_starting_points(*side, config) for side in ((second, "wells"), (first, "peaks")))
            steps = config.epochs * config.steps_per_epoch
            critics = AnchorCritics(wells, peaks, _ANCHOR_HEAT * math.sqrt(features), steps)
            return nn.Sequential(nn.Flatten(), Scale(config.scale), critics)
        if config.model == "fc":
            require(config.conv != "standard", "an orthogonal method for the critic fc, such as bcop", config.conv)
            names = ("width", "depth", "activation", "group_size", "scale", "orthogonalisation")
            return FCCritic(features, **{name: getattr(config, name) for name in names})
        channels, height, width = config.input_shape
        shape = (channels, height * config.upsample, width * config.upsample)
        options = {name: getattr(config, name) for name in ("conv", "activation", "orthogonalisation")}
        options |= {} if config.model == "dcgan" else {"classes": 1}
        critic: nn.Module = MODELS[config.model].make(shape, **options)
        return critic if config.upsample == 1 else nn.Sequential(nn.Upsample(scale_factor=config.upsample), critic)


def _starting_points(samples: Samples, purpose: str, config: CriticConfig) -> Tensor:
    points = training_samples(samples, config, purpose, config.anchors) * config.scale
    centre = points.mean(dim=0)
    return centre + (points - centre) * min(1.0, _ANCHOR_SPREAD / math.sqrt(math.prod(config.input_shape)))


def training_samples(samples: Samples, config: CriticConfig, purpose: str, count: int) -> Tensor:
    """Return `count` flattened float32 samples out of training batches, on the CPU."""
    size = min(config.batch_size, count)
    batches = samples.batches(config.seed, 0, -(-count // size), size, purpose, _CPU)
    return as_values(torch.cat(list(batches))[:count], config.pixel_range, torch.float32).flatten(1)


def typical_scale(first: Samples, second: Samples, config: CriticConfig) -> float:
    """Return a power of two (so that it does not round) that brings coordinates to a deviation of about 1, for fc 4.

    Learning rates are absolute, so without it they would suit data of one size only.
    """
    both = torch.cat([training_samples(samples, config, "scale", 1024).double() for samples in (first, second)])
    spread = float((both - both.mean(dim=0)).square().mean().sqrt())
    apart = "samples that float32 can tell apart (scale them, or narrow their range)"
    require(2.0**-100 < spread < 2.0**100, apart, f"a standard deviation of {spread:g}")
    return 2.0 ** -round(math.log2(spread)) * (4 if config.model == "fc" else 1)


# Training ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class PairBatches:
    """Batches (xs, ys) of two distributions: `pairs.epoch(e)` iterates over those of epoch e."""

    first: Samples
    second: Samples
    config: CriticConfig
    device: torch.device = _CPU

    def __post_init__(self) -> None:
        require_one_shape(self.first, self.second)

    def __len__(self) -> int:
        return self.config.steps_per_epoch

    def epoch(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        settings = self.config.seed, epoch, self.config.steps_per_epoch, self.config.batch_size
        sides = (self.first, "first"), (self.second, "second")
        return zip(*(side.batches(*settings, name, self.device) for side, name in sides), strict=True)


@dataclass(frozen=True)
class CriticTask:
    """Maximise mean f(xs) − mean f(ys). A critic with several columns is several critics, each maximised for itself."""

    config: CriticConfig

    def __call__(self, model: nn.Module, xs: Tensor, ys: Tensor) -> Tensor:
        """Return minus the difference (the largest one, of several columns)."""
        pixels = self.config.pixel_range
        scores = model(lay_out(torch.cat([as_values(part, pixels, torch.float32) for part in (xs, ys)]))).float()
        differences = scores[: len(xs)].mean(dim=0) - scores[len(xs) :].mean(dim=0)
        total = differences.sum()
        # The value is that of the best column, the gradient that of all of them.
        return total.detach() - differences.detach().amax() - total


@dataclass(frozen=True)
class CriticFigures(Record):
    """What one of several critics found."""

    estimate: float
    lower: float


@dataclass(frozen=True)
class DistanceBound(WassersteinBound):
    """A bound, and the training that led to it. `critics` has the figures of each, if several were trained."""

    first: str = ""
    second: str = ""
    model: str = ""
    conv: str = ""
    activation: str = ""
    recipe: str = ""
    seed: int = 0
    updates: int = 0
    train_seconds: float = 0.0
    replicas: int = 1
    device: str = ""
    torch: str = ""
    finished: str = ""
    critics: dict[str, CriticFigures] = field(default_factory=dict)

    def __str__(self) -> str:
        better = f" The critic is {self.model}, the better one of {' and '.join(self.critics)}." if self.critics else ""
        return super().__str__() + better

    @classmethod
    def best_of(cls, bounds: Sequence[Self], confidence: float) -> Self:
        """Return the best of several bounds that hold at once with this confidence."""
        figures = {bound.model: CriticFigures(bound.estimate, bound.lower) for bound in bounds}
        seconds = sum(bound.train_seconds for bound in bounds)
        best = max(bounds, key=lambda bound: bound.lower)
        return replace(best, confidence=confidence, train_seconds=seconds, critics=figures)


class TrainedCritic(NamedTuple):
    """A critic after training, and what it proves on samples that it was not trained on."""

    critic: nn.Module
    bound: DistanceBound


def train_critics(
    configs: Sequence[CriticConfig],
    folders: Sequence[RunFolder] | None,
    first: Samples,
    second: Samples,
    *,
    confidence: float = 0.95,
    value_range: Interval | None = None,
    method: str = "auto",
    units: str | None = None,
    device: str = "cpu",
    critics: Sequence[nn.Module] | None = None,
    **training: Any,
) -> list[TrainedCritic]:
    """Train one critic per configuration and judge the last epoch of each by `wasserstein_lower_bound`.

    folders : one for each, started; or None, and nothing is kept
    value_range : an interval known to hold every coordinate of both distributions; by default the pixel range
    critics : the untrained networks, if they have been made already
    training : how to resume, stop, save and show progress; see `fit`

    The configurations may differ in all but the data and the number of updates; on a GPU critics train side by side.
    """
    target, trained = torch.device(device), []
    models = list(critics or (make_critic(config, first, second) for config in configs))
    pairs = [PairBatches(first, second, config, target) for config in configs]
    own = {name: [getattr(config, name) for config in configs] for name in ("optimiser", "lr", "schedule")}
    training |= configs[0].training | own
    judging: dict[str, Any] = {"confidence": confidence, "method": method, "units": units}
    judging |= {"whole": (first.whole, second.whole), "group": (first.group, second.group)}
    judging["value_range"] = value_range or configs[0].pixel_range
    with locked(folders or ()):
        tasks = [CriticTask(config) for config in configs]
        fits = fit(models, pairs, tasks, folder=folders, device=target, **training)
        for k, (config, fitted) in enumerate(zip(configs, fits, strict=True)):
            critic = _best_column(models[k].eval(), config, first, second, target)
            judged = first.judged(config.seed, "first", target), second.judged(config.seed, "second", target)
            bounds = [wasserstein_lower_bound(critic, *pair, **judging) for pair in itertools.product(*judged)]
            bound = min(bounds, key=lambda bound: bound.lower)
            reported = ("first", "second", "model", "conv", "activation", "recipe", "seed")
            facts = vars(bound) | {name: getattr(config, name) for name in reported}
            facts["warnings"] = (*bound.warnings, *filter(None, (first.repeated, second.repeated)))
            facts |= {"updates": fitted.updates, "train_seconds": fitted.seconds, "replicas": len(configs)}
            result = DistanceBound(**facts, device=device_name(target), torch=torch.__version__)
            if folders is not None:
                folders[k].finish(critic, result.to_fields())
            trained.append(TrainedCritic(critic, result))
    return trained


@torch.no_grad()
def _best_column(
    model: nn.Module, config: CriticConfig, first: Samples, second: Samples, device: torch.device
) -> nn.Module:
    """Return the better of two anchors' critics, by the difference on training samples; any other critic unchanged."""
    if not isinstance(model, nn.Sequential) or not isinstance(model[-1], AnchorCritics):
        return model
    xs, ys = (training_samples(samples, config, "choice", 4096).to(device) for samples in (first, second))
    column = int((model(xs).mean(dim=0) - model(ys).mean(dim=0)).argmax())
    return nn.Sequential(*list(model)[:-1], model[-1].column(column))
