"""The files of a finished run as typed records: whatever is wrong with one becomes a line that names it."""

import json
import math
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar, get_args, get_type_hints

from isoconv.errors import IsoconvError
from isoconv.records import Record
from isoconv.train.config import TrainConfig

T = TypeVar("T")
R = TypeVar("R", bound=Record)

_SLACK = 1e-9  # of a percentage that was written in decimals


class Range(NamedTuple):
    """What the numbers of a field may be, in the field's annotation."""

    low: float
    high: float = math.inf


Size = Annotated[float, Range(0)]
Index = Annotated[int, Range(0)]
Count = Annotated[int, Range(1)]
Percent = Annotated[float, Range(-_SLACK, 100 + _SLACK)]
Picture = Annotated[str, re.compile(r"data:image/png;base64,[A-Za-z0-9+/]+={0,2}\Z")]


class _Part(Record):
    """What the page needs of a file, which may hold more. Numbers are in the range that their annotation says."""

    ignores_unknown: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name, annotation in get_type_hints(type(self), include_extras=True).items():
            _check(annotation, getattr(self, name, None), name)


@dataclass(frozen=True)
class Result(_Part):
    """result.json. A run without test images has no accuracy."""

    train_seconds: Size
    device: str = ""
    torch: str = ""
    finished: str = ""
    replicas: Count = 1
    clean: Percent | None = None
    images: Count | None = None
    lipschitz_bound: Size | None = None
    robust: dict[str, Percent] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        missing = [value is None for value in (self.clean, self.images, self.lipschitz_bound)]
        _require(all(missing) or not any(missing), "clean, images and lipschitz_bound together", "a part of them")
        _require(all(map(_is_radius, self.robust)), "radii in robust", ", ".join(self.robust))

    @property
    def certified_accuracy(self) -> dict[float, float]:
        """Return the percentage of images certified at each radius."""
        return {float(radius): percent for radius, percent in self.robust.items()}


@dataclass(frozen=True)
class Epoch(_Part):
    """One line of metrics.jsonl."""

    epoch: float
    loss: float
    accuracy: float


@dataclass(frozen=True)
class LayerBound(_Part):
    name: str
    kind: str
    bound: Size


@dataclass(frozen=True)
class Certified(_Part):
    """certified.json."""

    images: Count
    clean: Percent
    lipschitz_bound: Size
    layers: tuple[LayerBound, ...]
    arithmetic: str
    radii: tuple[Size, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        _require(len(self.radii) == self.images, f"radii of {self.images} images", len(self.radii))
        certified = 100 * sum(radius > 0 for radius in self.radii) / self.images
        _require(certified <= self.clean + 100 * _SLACK, f"radii of at most {self.clean:g} % of the images", certified)


@dataclass(frozen=True)
class Attacked(_Part):
    """One row of attacks.json: an attack with one budget."""

    attack: str
    epsilon: Size
    images: Count
    accuracy: Percent
    clean: Percent


@dataclass(frozen=True)
class Histogram(_Part):
    """Singular values, counted in bins."""

    min: Size
    max: Size
    counts: tuple[Index, ...]


@dataclass(frozen=True)
class Spectrum(_Part):
    """The singular values of one layer before and after training, over the same bins."""

    title: str
    width: Annotated[float, Range(1e-12)]
    before: Histogram
    after: Histogram

    def __post_init__(self) -> None:
        super().__post_init__()
        before, after = len(self.before.counts), len(self.after.counts)
        _require(before == after, f"the {before} bins of before training after it in {self.title!r}", after)


@dataclass(frozen=True)
class Norms(_Part):
    """Gradient norms by depth."""

    mean: tuple[Size, ...]
    low: tuple[Size, ...]
    high: tuple[Size, ...]


@dataclass(frozen=True)
class GradientNorms(_Part):
    places: tuple[str, ...]
    before: Norms
    after: Norms

    def __post_init__(self) -> None:
        for norms in (self.before, self.after):
            lengths = {len(norms.mean), len(norms.low), len(norms.high)}
            _require(lengths == {len(self.places)}, f"a norm for each of {len(self.places)} places", sorted(lengths))


@dataclass(frozen=True)
class Diagnostics(_Part):
    """diagnostics.json. Without test images there are no gradient norms."""

    layers: tuple[Spectrum, ...]
    gradient_norms: GradientNorms | None


@dataclass(frozen=True)
class Adversarial(_Part):
    """The nearest adversarial example of an image."""

    norm: Size
    prediction: Index
    image: Picture
    change: Picture


@dataclass(frozen=True)
class GalleryImage(_Part):
    index: Index
    label: Index
    prediction: Index
    radius: Size
    image: Picture
    adversarial: Adversarial | None


@dataclass(frozen=True)
class Gallery(_Part):
    """gallery.json."""

    images: tuple[GalleryImage, ...]

    def check_classes(self, count: int) -> None:
        """Raise if a label or a prediction is not one of so many classes."""
        for image in self.images:
            numbers = [image.label, image.prediction, image.adversarial.prediction if image.adversarial else 0]
            _require(max(numbers) < count, f"classes from 0 to {count - 1}", max(numbers))


@dataclass(frozen=True)
class RunFiles:
    """What the folder of one seed holds; None or nothing for what has not been made yet."""

    path: Path
    config: TrainConfig
    result: Result
    epochs: tuple[Epoch, ...]
    certified: Certified | None
    attacks: tuple[Attacked, ...]
    diagnostics: Diagnostics | None
    gallery: Gallery | None


def read_run_files(path: Path) -> RunFiles:
    """Read the folder of one seed of a finished run. Raise one line that names the file if something is wrong."""
    if not (path / "config.json").is_file():
        raise IsoconvError(f"Expected a run in {path}. There is no config.json in it.")
    config, quoted = TrainConfig.read(path / "config.json"), shlex.quote(str(path))
    if not (path / "result.json").is_file():
        raise IsoconvError(
            f"The run in {path} is not finished: it has no result.json. Go on: isoconv train --resume --out {quoted}."
        )
    remake = "Delete it and make the report again"
    certify = f"Make it again: isoconv certify {quoted}"
    result = _read(path / "result.json", _parse(Result), "Train again")
    certified = _read_if_there(path / "certified.json", _parse(Certified), certify)
    if certified is not None and not _same_network(result, certified):
        raise IsoconvError(
            f"{path / 'certified.json'}: Expected the radii of this run's network. Got those of another, with a clean "
            f"accuracy of {certified.clean:g} instead of {result.clean:g}. {certify}."
        )

    def parse_gallery(text: str) -> Gallery:
        gallery = _parse(Gallery)(text)
        gallery.check_classes(len(config.classes))
        return gallery

    return RunFiles(
        path,
        config,
        result,
        _read(path / "metrics.jsonl", lambda text: tuple(map(_parse(Epoch), text.splitlines())), "Train again"),
        certified,
        _read_if_there(path / "attacks.json", _parse_attacks, f"Make it again: isoconv attack {quoted}") or (),
        _read_if_there(path / "diagnostics.json", _parse(Diagnostics), remake),
        _read_if_there(path / "gallery.json", parse_gallery, remake),
    )


def _same_network(result: Result, certified: Certified) -> bool:
    """Return whether both can be of one network; one image may tip over on another device."""
    if result.clean is None or result.images != certified.images:
        return True
    return abs(result.clean - certified.clean) <= 100 / certified.images + _SLACK


def _read_if_there(path: Path, parse: Callable[[str], T], remedy: str) -> T | None:
    return _read(path, parse, remedy) if path.exists() else None


def _read(path: Path, parse: Callable[[str], T], remedy: str) -> T:
    try:
        return parse(path.read_text(encoding="utf-8"))
    except IsoconvError as error:
        reason = str(error)
    except OSError as error:
        reason = f"Expected a file that can be read. Got: {error.strerror}."
    except (ValueError, RecursionError, OverflowError):
        reason = "Expected JSON. Got something else."
    raise IsoconvError(f"{path}: {reason} {remedy}.")


def _parse(kind: type[R]) -> Callable[[str], R]:
    return lambda text: kind.from_fields(json.loads(text))


def _parse_attacks(text: str) -> tuple[Attacked, ...]:
    rows = json.loads(text)
    _require(isinstance(rows, list), "a list of attacks", type(rows).__name__)
    # A search within each image's own certified radius has no budget to draw it at.
    drawn = [row for row in rows if not isinstance(row, dict) or row.get("epsilon", 0) is not None]
    return tuple(map(Attacked.from_fields, drawn))


def _require(holds: bool, expected: str, got: object) -> None:
    if not holds:
        raise IsoconvError(f"Expected {expected}. Got {str(got)[:60]}.")


def _check(annotation: Any, value: Any, name: str) -> None:
    """Raise if a number is out of the range, or a text not of the pattern, that stands in its annotation."""
    for limit in getattr(annotation, "__metadata__", ()):
        if isinstance(limit, Range):
            _require(limit.low <= value <= limit.high, f"{name} from {limit.low:g} to {limit.high:g}", value)
        else:
            _require(limit.match(value) is not None, f"{name} to be a PNG as a data URI", value)
        return
    values = value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else [value]
    for inner in get_args(annotation):
        for each in values if value is not None else ():
            _check(inner, each, name)


def _is_radius(text: Any) -> bool:
    try:
        return 0 <= float(text) < math.inf
    except ValueError:
        return False
