"""isoconv report"""

import json
from pathlib import Path
from typing import Annotated

import typer

from isoconv.cli import print_line
from isoconv.cli.options import Data, Device, Download, Json
from isoconv.data import ProgressLine
from isoconv.errors import require


def report(
    runs: Annotated[list[Path], typer.Argument(help="folders of the runs")],
    out: Annotated[Path, typer.Option(help="file to write; an earlier report is replaced")] = Path("report.html"),
    folder: Data = None,
    download: Download = False,
    as_is: Annotated[bool, typer.Option("--as-is", help="compute nothing; show only what the folders hold")] = False,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Write a report of one or several runs: one HTML file that works offline.

    Certified radii, singular values, gradient norms and a gallery are computed and stored if a run lacks them and its test
    images are found. The curves of attacks come from isoconv attack.

    Example: isoconv report runs/large runs/small --data DIR
    """
    from isoconv.pretrained import is_pretrained
    from isoconv.report import check_replaceable, read_run_files, write_report
    from isoconv.train import complete_run, open_runs
    from isoconv.train.diagnostics import find_test_images, lacks_images
    from isoconv.train.distributed import choose_device

    device = choose_device(device)
    require(folder is None or folder.exists(), "a folder for --data", f"{folder}, which does not exist")
    check_replaceable(out)
    trained = {run.folder.resolve(): run for path in runs for run in open_runs(path)}
    for run in trained.values():
        problem = f"{run.folder.name}, which comes with isoconv, without its training curves"
        require(not is_pretrained(run.folder), "runs of your own", problem)
        read_run_files(run.folder)  # raises, before any work is done, if something is wrong with one
    folders = [run.folder for run in trained.values()]
    made: dict[str, list[str]] = {}
    notes: dict[Path, list[str]] = {}
    for run in () if as_is else trained.values():
        images = find_test_images(run, folder, download) if lacks_images(run) else None
        if isinstance(images, str):
            notes[run.folder] = [f"Some parts are left out: the test images are missing. {images}"]
            images = None
        made[str(run.folder)] = complete_run(run, images, device=device, progress=ProgressLine("rounds", 1))
    size = write_report(folders, out, notes)
    if as_json:
        print(json.dumps({"page": str(out), "bytes": size, "runs": [str(path) for path in folders], "made": made}))
        return
    for path, sentences in notes.items():
        print_line(f"{path}: {sentences[0]}")
    print_line(f"The report is in {out}: open it in a browser.")
