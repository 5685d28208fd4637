"""All that is needed to repeat a run, and the recipes that fill it in. Does not import torch."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple, Self, get_type_hints

from isoconv.data.augmentation import Augmentation
from isoconv.data.datasets import DATASETS, OWN_IMAGES, RESIZES
from isoconv.errors import IsoconvError, require
from isoconv.files import read_json
from isoconv.losses import LOSSES
from isoconv.models.catalogue import MODELS
from isoconv.nn.methods import ACTIVATIONS, METHODS, ORTHOGONALISATIONS, load
from isoconv.records import Record, fit_value

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from isoconv.train.run_folder import RunFolder

PRECISIONS = ("float32", "bf16")
#: Learning rates over time, as factors of the initial one: the factor in step `step` of `steps`, counted from 0, as a
#: function of (step, steps, steps_per_epoch).
Schedule = Callable[[int, int, int], float]
SCHEDULES: dict[str, Schedule] = {
    # The paper's: a tenth every 60 epochs, γ^e with γ = 0.1^(1/60) and e the epoch counted from 1.
    "exponential": lambda step, steps, steps_per_epoch: float(0.1 ** ((step // steps_per_epoch + 1) / 60)),
    # From 1 in the first step towards 0 after the last.
    "linear": lambda step, steps, steps_per_epoch: 1 - step / steps,
    "cosine": lambda step, steps, steps_per_epoch: (1 + math.cos(math.pi * (step / steps))) / 2,
    # From 0 to 1 over the first tenth of the steps, then back, both linearly.
    "one-cycle": lambda step, steps, steps_per_epoch: min((step + 0.5) / steps / 0.1, (1 - (step + 0.5) / steps) / 0.9),
    "constant": lambda step, steps, steps_per_epoch: 1.0,
}
CLASSIFIERS = {name: model for name, model in MODELS.items() if not model.is_critic}
#: How the paper projects SVCM's kernels: rarely, and then 50 times. The default recipe does so once after every update.
PAPERS_PROJECTIONS = {"project_every": 100, "project_iterations": 50}
RECIPES = {"default": "the best settings found on validation splits", "paper": "the paper's settings"}


@dataclass(frozen=True)
class Optimiser:
    """What is known of an optimiser: what users write, what tables print, "module:class".

    warm_up : eager steps before a step is captured as a CUDA graph. PyTorch asks for a few. The first steps of Adam are
        so long (every entry of a matrix moves by the full rate, all in step) that the captured retraction, which cannot
        look at the matrix, would not quite make up for them. A steepest-descent step is never longer than its rate.
    on_gpu : arguments that it takes there, so that its steps can be captured
    """

    name: str
    title: str
    kind: str
    warm_up: int = 20
    on_gpu: tuple[str, ...] = ()
    is_ours: bool = False

    def make(self, parameters: "Iterable[Tensor]", rate: "Tensor", momentum: float, half: bool = False) -> "Optimizer":
        """Return the optimiser of these parameters, with the learning rate in a tensor; the rest is for ours alone."""
        options: dict[str, Any] = dict.fromkeys(self.on_gpu, rate.is_cuda)
        options |= {"momentum": momentum, "half": half} if self.is_ours else {}
        return load(self.kind)(parameters, lr=rate, **options)  # type: ignore[no-any-return]


_STEEPEST = "steepest descent under the operator norm"
_ALL = (
    Optimiser("steepest", _STEEPEST, "isoconv.optim:SteepestDescent", warm_up=3, is_ours=True),
    Optimiser("adam", "Adam", "torch.optim:Adam", on_gpu=("fused", "capturable")),
    Optimiser("rmsprop", "RMSprop", "torch.optim:RMSprop", on_gpu=("capturable",)),
)
OPTIMISERS = {optimiser.name: optimiser for optimiser in _ALL}


def is_own(model: str) -> bool:
    """Return whether the name of a network is that of a user's function, FILE.py:FUNCTION."""
    return ":" in model or model.endswith(".py")


class OneOf(NamedTuple):
    """The names that a field may have, in the field's annotation."""

    names: Collection[str]

    def admits(self, value: str) -> bool:
        return value in self.names

    def __str__(self) -> str:
        return f"one of {', '.join(self.names)}"


class Above(NamedTuple):
    """The limit that the finite number in a field is above, in the field's annotation."""

    low: float

    def admits(self, value: float) -> bool:
        return self.low < value < math.inf

    def __str__(self) -> str:
        return f"a number above {self.low:g}"


Positive = Annotated[float, Above(0)]
PositiveInt = Annotated[int, Above(0)]


#: Whose run a config.json belongs to, by a field that no other kind of run has.
_KINDS = {"classes": "a classifier", "image_shape": "a generator", "first": "a critic"}


class Settings(Record):
    """Base of configurations, whose fields are checked against their annotations when they are made.

    not_compared : fields that may be others when a run is resumed
    brief : fields that a file mentions only where they are not their default
    """

    not_compared: ClassVar[tuple[str, ...]] = ()
    brief: ClassVar[tuple[str, ...]] = ()
    seed: int

    def __post_init__(self) -> None:
        for name, kind in get_type_hints(type(self)).items():
            if name in vars(self):
                fitting = fit_value(name, kind, getattr(self, name), infinite=True)  # the limits know better
                object.__setattr__(self, name, fitting)
        for name, annotation in get_type_hints(type(self), include_extras=True).items():
            for limit in getattr(annotation, "__metadata__", ()):
                require(limit.admits(getattr(self, name)), f"{name} to be {limit}", repr(getattr(self, name)))
        require(0 <= self.seed < 2**32, "a seed from 0 to 2³² − 1", self.seed)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the configuration of a run. Raise if it is the run of another kind of network."""
        stored, own = read_json(path), _kind_of(get_type_hints(cls))
        kind = _kind_of(stored)
        require(None in (own, kind) or kind == own, f"the run of {own} in {path.parent}", f"that of {kind}")
        return cls.from_fields(stored, str(path))

    def to_fields(self) -> dict[str, Any]:
        usual = {name: getattr(type(self), name, {}) for name in self.brief}  # of a dictionary the class holds none
        return {name: value for name, value in super().to_fields().items() if name not in usual or value != usual[name]}

    @classmethod
    def read_resumed(cls, folder: "RunFolder") -> Self:
        """Read the configuration of the run in the folder. Raise if there is none."""
        if not folder.exists:
            raise IsoconvError(f"Expected a run to resume in {folder.path}. There is none.")
        return cls.read(folder.config)

    def require_same(self, folder: "RunFolder") -> None:
        """Raise unless the run in the folder has this configuration."""
        asked = {name: value for name, value in vars(self).items() if name not in self.not_compared}
        refuse_other_options(vars(type(self).read(folder.config)), asked)


def _kind_of(fields: Collection[str]) -> str | None:
    return next((kind for name, kind in _KINDS.items() if name in fields), None)


def refuse_other_options(stored: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    """Raise if a run to be resumed was started with other options."""
    for name, value in asked.items():
        known, value = (tuple(one) if isinstance(one, list) else one for one in (stored[name], value))
        got = f"{name} {value}, where it has {known}"
        require(known == value, "the options of the run that is resumed", got)


@dataclass(frozen=True, kw_only=True)
class NetworkSettings(Settings):
    """What a network of this library is made of and trained by, whatever it is trained for."""

    conv: Annotated[str, OneOf(METHODS)] = "bcop"
    activation: str = "maxmin"
    orthogonalisation: Annotated[str, OneOf(ORTHOGONALISATIONS)] = "manifold"
    optimiser: Annotated[str, OneOf(OPTIMISERS)] = "steepest"
    lr: Positive = 0.01
    momentum: float = 0.9
    schedule: Annotated[str, OneOf(SCHEDULES)] = "linear"
    epochs: PositiveInt = 60
    batch_size: PositiveInt = 128
    project_every: PositiveInt = 1
    project_iterations: PositiveInt = 1
    precision: Annotated[str, OneOf(PRECISIONS)] = "float32"
    seed: int = 0
    recipe: Annotated[str, OneOf(RECIPES)] = "default"

    @property
    def training(self) -> dict[str, Any]:
        """The settings that `fit` takes, as its keyword arguments."""
        names = ("optimiser", "lr", "momentum", "schedule", "epochs", "project_every", "project_iterations")
        return {name: getattr(self, name) for name in (*names, "precision")}


@dataclass(frozen=True)
class TrainConfig(NetworkSettings):
    """One seed of one run. `config.json` holds it whole.

    model : a name of isoconv's, or FILE.py:FUNCTION of a network of the user's
    listing : for a user's own images, a hash of which ones there were: with others, others would be held out
    graph : for a network of the user's, a hash of what it computes: with another function, another would be resumed
    margin, temperature, offset : options of the losses; `loss_options` holds those of losses that have others
    crop_padding, flip, augment, resized_crop, rand_augment, colour_jitter, augment_epochs : see
        `isoconv.data.Augmentation`
    resize : how the user's own images came to their size; see `isoconv.data.pictures`
    accumulate : how many batches give the gradient of one update
    patch : the side of the patches that the network sees as one position; see the networks in `isoconv.models`. 0, which
        is what runs mean that do not say, becomes the network's usual one, and stays where it has none
    checkpoint_activations : see `fit`; a run may be resumed with or without
    skip_broken : see `isoconv.data.pictures.PictureOptions`
    validation : the share of the training images that is held out: the epoch with most of them right by the margin of the
        data set's first radius is kept; 0 keeps the last one
    patience : for how many epochs without a gain to go on, with `validation`; 0 for all. A run may be resumed with another
    prolonged : the epochs that the run had, and the updates it had behind it, whenever it was given another number
    """

    not_compared = ("checkpoint_activations", "patience", "prolonged")
    brief = (
        *("graph", "augment", "loss_options", "resize", "accumulate", "resized_crop", "rand_augment", "colour_jitter"),
        *("augment_epochs", "checkpoint_activations", "skip_broken", "validation", "patience", "prolonged"),
    )

    data: str
    input_shape: tuple[int, int, int]
    classes: tuple[str, ...]
    listing: str = ""
    model: str = "large"
    graph: str = ""
    activation: Annotated[str, OneOf(ACTIVATIONS)] = field(default="maxmin", kw_only=True)
    loss: Annotated[str, OneOf(LOSSES)] = "hinge"
    margin: Positive = 0.7071
    temperature: Positive = 0.125
    offset: float = 0.7071
    crop_padding: int = 0
    flip: bool = False
    augment: tuple[float, float] = (0.0, 1.0)
    loss_options: dict[str, float] = field(default_factory=dict)
    resize: Annotated[str, OneOf(RESIZES)] = "squash"
    accumulate: PositiveInt = 1
    resized_crop: tuple[float, float] = (1.0, 1.0)
    rand_augment: tuple[int, float] = (0, 9.0)
    colour_jitter: tuple[float, float, float] = (0.0, 0.0, 0.0)
    augment_epochs: int = 0
    patch: int = 0
    checkpoint_activations: bool = False
    skip_broken: bool = False
    validation: float = 0.0
    patience: int = 0
    prolonged: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "patch", self.patch or self._usual_patch)
        require(self.patch >= 0, "a patch of at least 1 pixel", self.patch)
        require(self.patch == 0 or self._usual_patch > 0, f"no patch for {self.model}, which takes none", self.patch)
        own = is_own(self.model)
        require(own or self.model in CLASSIFIERS, f"model to be one of {', '.join(CLASSIFIERS)}", repr(self.model))
        others = [value for value in (self.conv, self.activation) if value not in ("bcop", "maxmin")]
        fits = self.has_methods or not others
        require(fits, f"no conv and no activation for {self.model}, which has its own", " and ".join(others))
        fits = not own or self.orthogonalisation == "manifold"
        require(fits, f"no orthogonalisation for {self.model}, which has its own", self.orthogonalisation)
        self.augmentation.check_channels(self.input_shape[0])
        shape, known = self.input_shape, LOSSES[self.loss].options
        require(math.isfinite(self.offset), "offset to be a number", self.offset)
        require(0 <= self.validation < 1, "a share of the training images for validation, such as 0.1", self.validation)
        require(self.patience >= 0, "a patience of at least 1 epoch", self.patience)
        alone = self.patience > 0 and self.validation == 0
        require(not alone, "a share for validation with patience, such as --validation 0.1", "patience alone")
        require(all(1 <= size <= 2**16 for size in shape), "input_shape (channels, height, width)", shape)
        for name, value in self.loss_options.items():
            require(name in known, f"options of the loss {self.loss}: {', '.join(known)}", repr(name))
            known[name].check(name, value)

    @property
    def training(self) -> dict[str, Any]:
        return super().training | {name: getattr(self, name) for name in ("accumulate", "checkpoint_activations")}

    @property
    def _usual_patch(self) -> int:
        return MODELS[self.model].patch if self.model in MODELS else 0

    @property
    def augmentation(self) -> Augmentation:
        """What happens to the training images at random."""
        names = ("flip", "resized_crop", "rand_augment", "colour_jitter", "augment", "augment_epochs")
        return Augmentation(padding=self.crop_padding, **{name: getattr(self, name) for name in names})

    @property
    def has_methods(self) -> bool:
        """Whether conv and activation say what the network consists of."""
        return self.model in MODELS and MODELS[self.model].has_methods

    @property
    def network(self) -> tuple[str, ...]:
        """The network in words: its name and, where they were chosen, its convolution and activation."""
        return (self.model, self.conv, self.activation) if self.has_methods else (self.model,)

    def to_fields(self) -> dict[str, Any]:
        fields = super().to_fields()
        if self.patch == self._usual_patch:
            del fields["patch"]
        return fields

    def options_of_loss(self) -> dict[str, float]:
        """Return the options that the loss is called with."""
        defaults = LOSSES[self.loss].defaults
        return {name: getattr(self, name, default) for name, default in defaults.items()} | self.loss_options


def make_model(config: TrainConfig, build: "Callable[..., nn.Module] | None" = None) -> "nn.Module":
    """Return the network of a configuration, initialised from its seed, on the CPU so that every device starts alike.

    build : the function of a network that is the user's own
    """
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        if is_own(config.model):
            from isoconv.train.own_model import build_network

            return build_network(build, config)
        options = {name: getattr(config, name) for name in ("conv", "activation", "orthogonalisation", "patch")}
        return MODELS[config.model].make(config.input_shape, len(config.classes), **options)  # type: ignore[no-any-return]


def default_epsilons(data: str) -> tuple[float, ...]:
    """Return the radii at which robust accuracy is stated for a data set, or for a user's own images."""
    return DATASETS.get(data, OWN_IMAGES).epsilons


def default_patch(model: str, input_shape: Sequence[int]) -> int:
    """Return the patches of a new run: larger ones for large images; 0 for a network that takes none."""
    return MODELS[model].choose_patch(*input_shape[1:]) if model in MODELS else 0


def recipe_settings(recipe: str, data: str, conv: str, model: str = "large") -> dict[str, Any]:
    """Return the settings of a recipe for a data set, a method and a network, as keyword arguments of `TrainConfig`."""
    require(recipe in RECIPES, f"recipe to be one of {', '.join(RECIPES)}", repr(recipe))
    require(conv in METHODS, f"conv to be one of {', '.join(METHODS)}", repr(conv))
    defaults = DATASETS.get(data, OWN_IMAGES)
    settings = {name: getattr(defaults, name) for name in ("margin", "crop_padding", "flip")} | {"recipe": recipe}
    if recipe == "paper":
        adam = {"optimiser": "adam", "lr": 1e-3, "schedule": "exponential", "epochs": 200, "batch_size": 128}
        return settings | adam | PAPERS_PROJECTIONS | ({} if is_own(model) else {"orthogonalisation": "bjorck"})
    # The best of those tried on a validation split of the training set (results/recipes).
    settings |= {"loss": "cross-entropy", "temperature": 0.18, "offset": defaults.offset}
    if METHODS[conv].on_manifold:
        own = MODELS[model].recipe if model in MODELS else {}
        return {**settings, "optimiser": "steepest", "lr": defaults.lr, **own}
    # Methods whose convolutions are not matrices on a manifold: Adam for all of the network.
    return settings | {"optimiser": "adam", "lr": 1e-3}
