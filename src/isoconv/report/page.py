"""One self-contained HTML file: style, script, data and images inside it, and nothing fetched from anywhere.

What users chose (names of classes, paths) reaches the page in two ways only: as text that the template escapes, and as
JSON in which no character can end the element that it stands in. The page's own policy allows no other script than its
own, by hash, and no connection at all.
"""

import base64
import hashlib
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from isoconv import __version__
from isoconv.data.datasets import DATASETS, FROM_FILES
from isoconv.data.fetch import format_duration
from isoconv.data.shards import is_there
from isoconv.errors import require
from isoconv.files import read_bytes, write_text
from isoconv.linalg.rounding import show_up
from isoconv.losses import LOSSES
from isoconv.models.catalogue import MODELS
from isoconv.nn.methods import ACTIVATIONS, METHODS
from isoconv.pretrained import is_pretrained
from isoconv.records import Record
from isoconv.report.run_files import RunFiles, command_of, read_run_files
from isoconv.train.config import TrainConfig, is_own
from isoconv.train.diagnostics import Gallery, complete_run, find_test_images, lacks_images
from isoconv.train.distributed import choose_device
from isoconv.train.runs import Progress, be_silent, open_runs

LARGEST = 3_000_000  # bytes of a page; what would make it larger is left out, galleries first

_MARK = b'<meta name="generator" content="isoconv report'
_NUMBERS = ("No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine")
_SCRIPT = ("elements", "summary", "robustness", "gallery", "classes", "layers", "main")  # in one scope, in this order
_OF_AN_ATTACK = ("attack", "epsilon", "images", "accuracy", "clean")
_DIGITS = 8  # of a radius on the page, rounded down: it never claims more than the file


@dataclass
class RunView:
    """One run as the page shows it."""

    files: RunFiles
    name: str
    notes: list[str]
    gallery: Gallery | None

    def to_script(self) -> dict[str, object]:
        """Return what the page's script draws."""
        run, tested = self.files, self.files.certified or self.files.result
        held_out = [epoch.validation for epoch in run.epochs]
        diagnosed, shown = (record.to_fields() if record else {} for record in (run.diagnostics, self.gallery))
        return {
            "name": self.name,
            "classes": run.config.classes,
            "clean": tested.clean,
            "images": tested.images,
            "epsilons": list(run.result.certified_accuracy),
            "robust": list(run.result.certified_accuracy.items()),
            "radii": None if run.certified is None else round_radii_down(run.certified.radii),
            "attacks": [{key: getattr(row, key) for key in _OF_AN_ATTACK} for row in run.attacks],
            "metrics": {key: [getattr(epoch, key) for epoch in run.epochs] for key in ("epoch", "loss", "accuracy")},
            "validation": held_out if any(share is not None for share in held_out) else None,
            "kept": run.result.best_epoch,
            "spectra": diagnosed.get("layers"),
            "gradients": diagnosed.get("gradient_norms"),
            "pixels": math.prod(run.config.input_shape),
            "gallery": shown.get("images"),
            **{name: shown.get(name) for name in ("confusion", "mistakes", "mistake_count")},
        }


@dataclass(frozen=True)
class Report(Record):
    """A page that was written, its size, and the folders of the runs on it, one seed's each.

    made : the files that were computed for it, by run
    notes : why parts of a run are left out, by run
    """

    page: str
    bytes: int
    runs: tuple[str, ...]
    made: dict[str, tuple[str, ...]]
    notes: dict[str, str]


def write_report(
    runs: Sequence[Path | str],
    out: Path | str = "report.html",
    *,
    folder: Path | None = None,
    download: bool = False,
    as_is: bool = False,
    device: str = "auto",
    progress: Progress = be_silent,
) -> Report:
    """Write a report of one or several runs: one HTML file that works offline. An earlier report is replaced.

    Certified radii, singular values, gradient norms and a gallery are computed and stored if a run lacks them and its test
    images are found. The curves of attacks come from `isoconv.train.attack_run`.

    folder, download : where the data set is, or a user's images if they have moved; whether to fetch it
    as_is : compute nothing; show only what the folders hold
    """
    device, out = choose_device(device), Path(out)
    require(folder is None or is_there(folder), "a folder for --data", f"{folder}, which does not exist")
    check_replaceable(out)
    trained = {run.folder.resolve(): run for path in runs for run in open_runs(path)}
    for run in trained.values():
        problem = f"{run.folder.name}, which comes with isoconv, without its training curves"
        require(not is_pretrained(run.folder), "runs of your own", problem)
        read_run_files(run.folder)  # raises, before any work is done, if something is wrong with one
    made, notes = dict[str, tuple[str, ...]](), dict[str, str]()
    for run in () if as_is else trained.values():
        images = find_test_images(run, folder, download) if lacks_images(run) else None
        if isinstance(images, str):
            notes[str(run.folder)] = f"Some parts are left out: the test images are missing. {images}"
            images = None
        made[str(run.folder)] = tuple(complete_run(run, images, device=device, progress=progress))
    folders = [run.folder for run in trained.values()]
    size = write_page(folders, out, notes)
    for path in folders:
        if note := _note_of(read_run_files(path)):
            notes[str(path)] = f"{notes[str(path)]} {note}" if str(path) in notes else note
    return Report(str(out), size, tuple(map(str, folders)), made, notes)


def write_page(runs: Sequence[Path], out: Path, notes: Mapping[str, str] | None = None) -> int:
    """Write the page about these run folders (one seed's each) as they are, and return its size in bytes.

    `notes` say why something of a run is missing. An existing file is replaced if it is such a page.
    """
    require(len(runs) > 0, "at least one run to report on", "none")
    check_replaceable(out)
    read = [read_run_files(path) for path in dict.fromkeys(runs)]
    names = name_runs([run.path for run in read])
    views = [RunView(run, name, _notes(run, notes or {}), run.gallery) for run, name in zip(read, names, strict=True)]
    page = _render(views)
    for view, whole in [(view, whole) for whole in (False, True) for view in reversed(views)]:
        if len(page.encode()) > LARGEST and view.gallery is not None and (whole or view.gallery.mistakes):
            view.gallery = None if whole else replace(view.gallery, mistakes=())
            part = "gallery is" if whole else "misclassified images are"
            view.notes.append(f"The {part} left out to keep the page small: report on this run alone.")
            page = _render(views)
    fits, problem = len(page.encode()) <= LARGEST, f"{len(views)}: report on fewer runs"
    require(fits, f"runs that fit into a page of {LARGEST // 10**6} MB", problem)
    write_text(out, page)
    return len(page.encode())


def describe_network(config: TrainConfig) -> str:
    """Say in a line what a network consists of, from the records of its parts."""
    model = MODELS.get(config.model)
    sentences = [f"{model.title}: {model.summary}." if model else f"A network of your own, {config.model}."]
    if config.has_methods:
        method, activation = METHODS[config.conv], ACTIVATIONS[config.activation]
        title = method.title[0].upper() + method.title[1:]
        sentences.append(f"{title} convolutions are {method.summary}.")
        sentences.append(f"{activation.title} {activation.summary}.")
    return " ".join(sentences)


def explain_radii(datasets: Sequence[str]) -> str:
    """Say where the radii on the slider come from."""
    titles = ["MNIST" if name == "digits" else DATASETS[name].title for name in datasets if name in DATASETS]
    if titles:
        return f"The buttons' radii are those at which papers report certified accuracy on {' and '.join(titles)}."
    return "The buttons' radii are those of the run (--epsilon; by default 0.1 and 36/255)."


def check_replaceable(out: Path) -> None:
    """Raise unless a page may be written there: a report is replaced, anything else is left alone."""
    require(not out.is_dir(), f"a file for the report, such as {out / 'report.html'}", f"{out}, a folder")
    require(out.parent.is_dir(), "a folder to write the report to", f"{out.parent}, which does not exist")
    ours = not out.exists() or _MARK in read_bytes(out)[:4096]
    require(ours, "a new file, or an isoconv report to replace (--out)", f"{out}, which is something else")


def _notes(run: RunFiles, notes: Mapping[str, str]) -> list[str]:
    """Return the notes on a run, and the commands that compute what is missing."""
    where = shlex.quote(str(run.path)) + (" --data DIR" if run.config.data in FROM_FILES else "")
    sentences = [notes[str(run.path)]] if str(run.path) in notes else []
    if run.certified is None and not sentences:
        sentences.append(f"The certified radii are missing: isoconv certify {where} computes them.")
    sentences += [note] if (note := _note_of(run)) else []
    if not run.attacks:
        sentences.append(f"No attacks yet: isoconv attack {where} runs them.")
    return sentences


def _note_of(run: RunFiles) -> str:
    """Return why something is missing in the diagnostics."""
    return "" if run.diagnostics is None else run.diagnostics.note


def _select_settings(config: TrainConfig) -> dict[str, Any]:
    """Return the settings that a run used."""
    unused = {name for option in LOSSES.values() for name in option.options} - LOSSES[config.loss].options.keys()
    unused |= set() if config.has_methods else {"conv", "activation"}
    unused |= {"orthogonalisation"} if is_own(config.model) else set()
    return {name: value for name, value in vars(config).items() if name not in unused}


def _render(runs: Sequence[RunView]) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("isoconv", "report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "allow_nan": False, "separators": (",", ":")}
    environment.filters |= {"percent": show_percent, "bound": show_up, "duration": format_duration, "show": _show}
    environment.filters["describe"] = describe_network
    environment.globals |= {"settings_of": _select_settings, "command_of": command_of, "version": __version__}
    style, parts = _resource("page.css"), [_resource("script", f"{name}.js") for name in _SCRIPT]
    script = '"use strict";\n(() => {\n' + "\n".join(parts) + "})();\n"
    page = environment.get_template("page.html").render(
        runs=runs,
        count=_NUMBERS[len(runs)] if len(runs) < len(_NUMBERS) else str(len(runs)),
        datasets=list(dict.fromkeys(Path(run.files.config.data).name or run.files.config.data for run in runs)),
        tested={(run.files.certified or run.files.result).images for run in runs},
        radii=explain_radii(list(dict.fromkeys(run.files.config.data for run in runs))),
        sizes=sorted({run.files.config.input_shape[1:] for run in runs}),
        data={"runs": [run.to_script() for run in runs]},
        style=Markup(style),
        script=Markup(script),
        style_hash=_sha256(style),
        script_hash=_sha256(script),
    )
    return page.encode(errors="replace").decode()  # a path need not be text; what is not becomes a question mark


def _resource(*parts: str) -> str:
    return files("isoconv.report").joinpath(*parts).read_text(encoding="utf-8")


def _sha256(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def name_runs(paths: Sequence[Path]) -> list[str]:
    """Return the last parts of the paths, as few as tell them apart."""
    parts = [path.resolve().parts for path in paths]
    for length in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part[-length:]) for part in parts]
        # The folder seed-3 alone says nothing of the run that it belongs to.
        if len(set(names)) == len(names) and not (length == 1 and any(name.startswith("seed-") for name in names)):
            return names
    return [str(path) for path in paths]


def show_radius(radius: float, digits: int) -> str:
    """Show a certified radius, never rounded up."""
    text = f"{radius:.{digits}f}"
    return text if float(text) <= radius else f"{float(text) - 10.0**-digits:.{digits}f}"


def round_radii_down(radii: Sequence[float]) -> list[float]:
    """Return the radii in rising order, rounded down, without those that become zero."""
    rounded = (float(show_radius(radius, _DIGITS)) for radius in radii)
    return sorted(radius for radius in rounded if radius > 0)


def show_percent(percent: float, images: int) -> str:
    """Show a percentage of so many images, never rounded up: it may be certified."""
    digits = 2 if images and 1000 % images else 1  # enough to be exact, up to 10,000 images
    return f"{math.floor(percent * 10**digits + 1e-6) / 10**digits:.{digits}f} %"


def _show(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return (" × " if all(isinstance(part, int) for part in value) else ", ").join(map(str, value))
    return f"{value:.6g}" if isinstance(value, float) else str(value)
