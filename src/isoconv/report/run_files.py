"""The files of a finished run, read and checked: whatever is wrong with one becomes a line that names it."""

import json
import math
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from isoconv.errors import IsoconvError
from isoconv.train.config import TrainConfig

T = TypeVar("T")
Record = dict[str, Any]

_PICTURE = re.compile(r"data:image/png;base64,[A-Za-z0-9+/]+={0,2}\Z")
_SLACK = 1e-9  # of a percentage that was written in decimals


@dataclass(frozen=True)
class RunFiles:
    """What a run's folder holds; None for what has not been made yet.

    Each part is plain data of a known shape, with finite numbers: what `page` shows needs no further look.
    """

    path: Path
    config: TrainConfig
    result: Record
    metrics: list[Record]
    certified: Record | None
    attacks: list[Record] | None
    diagnostics: Record | None
    gallery: list[Record] | None


def read_run_files(path: Path) -> RunFiles:
    """Of one seed's folder."""
    if not (path / "config.json").is_file():
        raise IsoconvError(f"Expected a run in {path}. There is no config.json in it.")
    config, quoted = TrainConfig.read(path / "config.json"), shlex.quote(str(path))
    if not (path / "result.json").is_file():
        raise IsoconvError(
            f"The run in {path} is not finished: it has no result.json. Go on: isoconv train --resume --out {quoted}."
        )
    classes = len(config.classes)
    remake = "Delete it and make the report again"
    result = _read(path / "result.json", "a run's result", "Train again", _result)
    certified = _read_if_there(
        path / "certified.json", "certified radii", f"Make it again: isoconv certify {quoted}", _certified
    )
    if certified is not None and not _same_network(result, certified):
        raise IsoconvError(
            f"Expected the certified radii of this run's network in {path / 'certified.json'}. Got those of another, "
            f"{certified['clean']:g} % right instead of {result['clean']:g}. Make it again: isoconv certify {quoted}."
        )
    return RunFiles(
        path,
        config,
        result,
        _read(path / "metrics.jsonl", "a line of figures per epoch", "Train again", _metrics, parse=_lines),
        certified,
        _read_if_there(
            path / "attacks.json", "the results of attacks", f"Make it again: isoconv attack {quoted}", _attacks
        ),
        _read_if_there(path / "diagnostics.json", "singular values and gradient norms", remake, _diagnostics),
        _read_if_there(path / "gallery.json", "a gallery of images", remake, lambda found: _gallery(found, classes)),
    )


# Reading ------------------------------------------------------------------------------------------------------------


class _WrongError(ValueError):
    """What does not belong into a file, in words that follow "Got"."""


def _read_if_there(path: Path, what: str, remedy: str, check: Callable[[Any], T]) -> T | None:
    return _read(path, what, remedy, check) if path.exists() else None


def _read(path: Path, what: str, remedy: str, check: Callable[[Any], T], parse: Callable[[str], Any] = json.loads) -> T:
    try:
        return check(parse(path.read_text()))
    except _WrongError as error:
        reason = str(error)
    except OSError as error:
        reason = f"a file that cannot be read ({error.strerror})"
    except (ValueError, RecursionError):
        reason = "a file that is not JSON"
    raise IsoconvError(f"Expected {what} in {path}. Got {reason}. {remedy}.")


def _lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


def _same_network(result: Record, certified: Record) -> bool:
    """Whether certified.json can be of the network that the result is of; one image may tip over on another device."""
    if "clean" not in result or result["images"] != certified["images"]:
        return True
    return abs(result["clean"] - certified["clean"]) <= 100 / result["images"] + _SLACK


# Checking -----------------------------------------------------------------------------------------------------------


def _member(record: Any, name: str) -> Any:
    if not isinstance(record, dict):
        raise _WrongError(f"{_shown(record)} where an object belongs")
    if name not in record:
        raise _WrongError(f"an object without {name!r}")
    return record[name]


def _number(value: Any, name: str, low: float = -math.inf, high: float = math.inf) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise _WrongError(f"{_shown(value)} for {name!r}, which is a number")
    if not low <= value <= high:
        raise _WrongError(f"{_shown(value)} for {name!r}, which is from {low:g} to {high:g}")
    return value


def _numbers(value: Any, name: str, low: float = -math.inf) -> list[float]:
    return [_number(each, name, low) for each in _list(value, name)]


def _count(value: Any, name: str, low: float = 0, high: float = math.inf) -> int:
    if not float(_number(value, name, low, high)).is_integer():
        raise _WrongError(f"{_shown(value)} for {name!r}, which is a whole number")
    return int(value)


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise _WrongError(f"{_shown(value)} for {name!r}, which is a text")
    return value


def _list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise _WrongError(f"{_shown(value)} for {name!r}, which is a list")
    return value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "…"


def _percent(record: Any, name: str) -> float:
    return _number(_member(record, name), name, -_SLACK, 100 + _SLACK)


# One function per file: what the page needs of it, or an error --------------------------------------------------------


def _result(found: Any) -> Record:
    result: Record = {"train_seconds": _number(_member(found, "train_seconds"), "train_seconds", 0)}
    for name in ("device", "torch", "finished"):
        result[name] = _text(found.get(name, ""), name)
    result["replicas"] = _count(found.get("replicas", 1), "replicas", 1)
    if "clean" in found:  # a run without test images has no accuracy
        result["clean"] = _percent(found, "clean")
        result["images"] = _count(_member(found, "images"), "images", 1)
        result["lipschitz_bound"] = _number(_member(found, "lipschitz_bound"), "lipschitz_bound", 0)
        result["robust"] = _radii_and_percents(_member(found, "robust"))
    return result


def _radii_and_percents(found: Any) -> dict[float, float]:
    if not isinstance(found, dict):
        raise _WrongError(f"{_shown(found)} for 'robust', which is an object")
    percents = {}
    for radius in found:
        try:
            percents[float(radius)] = _percent(found, radius)
        except ValueError as error:
            raise _WrongError(f"{_shown(radius)} for a radius in 'robust'") from error
    return percents


def _metrics(found: list[Any]) -> list[Record]:
    names = ("epoch", "loss", "accuracy", "seconds")
    return [{name: _number(_member(line, name), name) for name in names} for line in found]


def _certified(found: Any) -> Record:
    images = _count(_member(found, "images"), "images", 1)
    radii = _numbers(_member(found, "radii"), "radii", 0)
    if len(radii) != images:
        raise _WrongError(f"{len(radii)} radii of {images} images")
    layers = [
        {
            "name": _text(_member(layer, "name"), "name"),
            "kind": _text(_member(layer, "kind"), "kind"),
            "bound": _number(_member(layer, "bound"), "bound", 0),
        }
        for layer in _list(_member(found, "layers"), "layers")
    ]
    clean = _percent(found, "clean")
    if 100 * sum(radius > 0 for radius in radii) > clean * images + 100 * _SLACK * images:
        raise _WrongError(f"more images with a radius than the {clean:g} % that are right")
    return {
        "images": images,
        "clean": clean,
        "radii": radii,
        "layers": layers,
        "lipschitz_bound": _number(_member(found, "lipschitz_bound"), "lipschitz_bound", 0),
        "arithmetic": _text(_member(found, "arithmetic"), "arithmetic"),
        "criterion": _text(_member(found, "criterion"), "criterion"),
    }


def _attacks(found: Any) -> list[Record]:
    rows = []
    for row in _list(found, "attacks"):
        if _member(row, "epsilon") is None:  # a search within each image's own radius has no budget to plot it at
            continue
        rows.append(
            {
                "attack": _text(_member(row, "attack"), "attack"),
                "epsilon": _number(row["epsilon"], "epsilon", 0),
                "images": _count(_member(row, "images"), "images", 1),
                "accuracy": _percent(row, "accuracy"),
                "clean": _percent(row, "clean"),
            }
        )
    return rows


def _diagnostics(found: Any) -> Record:
    layers = []
    for layer in _list(_member(found, "layers"), "layers"):
        one: Record = {name: _text(_member(layer, name), name) for name in ("title", "name", "kind")}
        one["width"] = _number(_member(layer, "width"), "width", 1e-12)
        for moment in ("before", "after"):
            values = _member(layer, moment)
            one[moment] = {name: _number(_member(values, name), name, 0) for name in ("min", "mean", "max")}
            one[moment]["counts"] = [_count(n, "counts") for n in _list(_member(values, "counts"), "counts")]
        if len(one["before"]["counts"]) != len(one["after"]["counts"]):
            raise _WrongError(f"other bins before than after training in {_shown(one['title'])}")
        layers.append(one)
    return {"layers": layers, "gradient_norms": _gradients(_member(found, "gradient_norms"))}


def _gradients(found: Any) -> Record | None:
    if found is None:
        return None
    places = [_text(place, "places") for place in _list(_member(found, "places"), "places")]
    summary: Record = {"images": _count(_member(found, "images"), "images", 1), "places": places}
    for moment in ("before", "after"):
        norms = _member(found, moment)
        summary[moment] = {name: _numbers(_member(norms, name), name, 0) for name in ("mean", "low", "high")}
        if any(len(values) != len(places) for values in summary[moment].values()):
            raise _WrongError(f"another number of norms than the {len(places)} places")
    return summary


def _gallery(found: Any, classes: int) -> list[Record]:
    def entry(image: Any) -> Record:
        shown: Record = {name: _count(_member(image, name), name, 0, classes - 1) for name in ("label", "prediction")}
        shown["index"] = _count(_member(image, "index"), "index")
        shown["radius"] = _number(_member(image, "radius"), "radius", 0)
        shown["image"] = _picture(_member(image, "image"))
        adversarial = _member(image, "adversarial")
        shown["adversarial"] = (
            None
            if adversarial is None
            else {
                "norm": _number(_member(adversarial, "norm"), "norm", 0),
                "prediction": _count(_member(adversarial, "prediction"), "prediction", 0, classes - 1),
                "image": _picture(_member(adversarial, "image")),
                "change": _picture(_member(adversarial, "change")),
            }
        )
        return shown

    return [entry(image) for image in _list(_member(found, "images"), "images")]


def _picture(value: Any) -> str:
    if not _PICTURE.match(_text(value, "image")):
        raise _WrongError(f"{_shown(value)} for a picture, which is a PNG as a data URI")
    return str(value)
