"""isoconv report"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from isoconv.cli.collect import certify_run, diagnose_run
from isoconv.cli.runs import TrainedRun, open_runs, test_images
from isoconv.data import NAMES, ImageSet
from isoconv.errors import IsoconvError
from isoconv.pretrained import is_pretrained
from isoconv.report import check_replaceable, read_run_files, write_report
from isoconv.train.config import default_epsilons
from isoconv.train.diagnostics import needs_images
from isoconv.train.distributed import choose_device


def report(
    runs: Annotated[list[Path], typer.Argument(help="the runs' folders")],
    out: Annotated[Path, typer.Option(help="the page; an earlier report is replaced")] = Path("report.html"),
    folder: Annotated[
        Path | None, typer.Option("--data", help="where the data set is, or pictures that have moved")
    ] = None,
    download: Annotated[bool, typer.Option("--download", help="fetch the data set if it is not there")] = False,
    as_is: Annotated[bool, typer.Option("--as-is", help="compute nothing: show what the folders hold")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="print what was made as JSON on stdout")] = False,
) -> None:
    """Make one page of pictures about one or several runs: an HTML file that needs no network.

    What a run's folder does not hold yet (certified radii, singular values, gradient norms, a gallery) is computed and
    kept there, if the test images are found; the attacks' curves come from isoconv attack.

    Example: isoconv report runs/large runs/small --data DIR
    """
    place = choose_device(device)
    if folder is not None and not folder.exists():
        raise IsoconvError(f"Expected a folder for --data. Got {folder}, which does not exist.")
    check_replaceable(out)
    distinct: dict[Path, TrainedRun] = {}
    for one in (one for run in runs for one in open_runs(run)):
        distinct.setdefault(one.folder.resolve(), one)
    opened = list(distinct.values())
    folders = [one.folder for one in opened]
    for one in opened:
        if is_pretrained(one.folder):
            raise IsoconvError(
                f"Expected runs of your own: {one.folder.name} comes with isoconv, without the curves of its training."
            )
    for path in folders:
        read_run_files(path)  # what is wrong with one is said before any work is done
    made, notes = ({}, {}) if as_is else _complete(opened, folder, download, place)
    size = write_report(folders, out, notes)
    if as_json:
        print(json.dumps({"page": str(out), "bytes": size, "runs": [str(path) for path in folders], "made": made}))
        return
    for path, sentences in notes.items():
        for sentence in sentences:
            print(f"{path}: {sentence}", file=sys.stderr)
    print(f"The page is in {out}: open it in a browser.", file=sys.stderr)


def _complete(
    opened: Sequence[TrainedRun], folder: Path | None, download: bool, device: str
) -> tuple[dict[str, list[str]], dict[Path, list[str]]]:
    """Make what is missing, run by run: which files were made, and why others could not be."""
    made: dict[str, list[str]] = {}
    notes: dict[Path, list[str]] = {}
    sets: dict[tuple[object, ...], ImageSet | str] = {}
    for one in opened:
        uncertified = not (one.folder / "certified.json").exists()
        data: ImageSet | None = None
        if uncertified or needs_images(one.folder):
            key = (one.config.data, one.config.listing, one.config.input_shape, one.config.classes)
            if key not in sets:
                sets[key] = _images_or_reason(one, folder, download)
            found = sets[key]
            if isinstance(found, str):
                notes[one.folder] = [f"Some parts are left out, for want of the test images. {found}"]
            else:
                data = found
        written, certified = [], None
        if uncertified and data is not None:
            certified, _ = certify_run(one, data, default_epsilons(one.config.data), device)
            written.append("certified.json")
        made[str(one.folder)] = written + diagnose_run(one, data, certified, device)
    return made, notes


def _images_or_reason(one: TrainedRun, folder: Path | None, download: bool) -> ImageSet | str:
    """The run's test images, or why there are none. A data set that was pointed at, or is to be fetched, must be there.

    `folder` is for all runs of the page: one's own pictures may be there, or still where they were.
    """
    if one.config.data in NAMES:
        try:
            return test_images(one.config, folder, download, None)
        except IsoconvError as error:
            if folder is not None or download:
                raise
            return str(error)
    reason = ""
    for place in (None, folder) if folder is not None else (None,):
        try:
            return test_images(one.config, place, False, None)
        except IsoconvError as error:
            reason = reason or str(error)
    return reason
