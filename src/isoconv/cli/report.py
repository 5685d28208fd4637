"""isoconv report"""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from isoconv.cli.options import DataOption, DeviceOption, DownloadOption, JsonOption
from isoconv.errors import IsoconvError


def report(
    runs: Annotated[list[Path], typer.Argument(help="folders of the runs")],
    out: Annotated[Path, typer.Option(help="file of the page; an earlier report is replaced")] = Path("report.html"),
    folder: DataOption = None,
    download: DownloadOption = False,
    as_is: Annotated[bool, typer.Option("--as-is", help="compute nothing: show what the folders hold")] = False,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Make one page about one or several runs: an HTML file that needs no network.

    What a run's folder does not hold yet (certified radii, singular values, gradient norms, a gallery) is computed and
    kept there, if the test images are found; the attacks' curves come from isoconv attack.

    Example: isoconv report runs/large runs/small --data DIR
    """
    from isoconv.cli.output import CountingProgress
    from isoconv.pretrained import is_pretrained
    from isoconv.report import check_replaceable, read_run_files, write_report
    from isoconv.train.diagnostics import complete_run, find_test_images, lacks_images
    from isoconv.train.distributed import choose_device
    from isoconv.train.runs import open_runs

    chosen_device = choose_device(device)
    if folder is not None and not folder.exists():
        raise IsoconvError(f"Expected a folder for --data. Got {folder}, which does not exist.")
    check_replaceable(out)
    opened = list({one.folder.resolve(): one for run in reversed(runs) for one in reversed(open_runs(run))}.values())[
        ::-1
    ]
    for one in opened:
        if is_pretrained(one.folder):
            raise IsoconvError(
                f"Expected runs of your own: {one.folder.name} comes with isoconv, without the curves of its training."
            )
        read_run_files(one.folder)  # raises, before any work is done, if something is wrong with one
    made: dict[str, list[str]] = {}
    notes: dict[Path, list[str]] = {}
    for one in () if as_is else opened:
        images = find_test_images(one, folder, download) if lacks_images(one) else None
        if isinstance(images, str):
            notes[one.folder] = [f"Some parts are left out, for want of the test images. {images}"]
        data = None if isinstance(images, str) else images
        with CountingProgress(f"completing {one.folder.name}", "rounds") as shown:
            made[str(one.folder)] = complete_run(one, data, device=chosen_device, progress=shown.show)
    folders = [one.folder for one in opened]
    size = write_report(folders, out, notes)
    if as_json:
        print(json.dumps({"page": str(out), "bytes": size, "runs": [str(path) for path in folders], "made": made}))
        return
    for path, sentences in notes.items():
        for sentence in sentences:
            print(f"{path}: {sentence}", file=sys.stderr)
    print(f"The page is in {out}: open it in a browser.", file=sys.stderr)
