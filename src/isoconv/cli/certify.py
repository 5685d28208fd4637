"""isoconv certify"""

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from isoconv.cli.options import (
    DataOption,
    DeviceOption,
    DownloadOption,
    ImagesOption,
    JsonOption,
    RunArgument,
    parse_epsilons,
)
from isoconv.errors import IsoconvError

if TYPE_CHECKING:
    from isoconv.data import ImageSet


def certify(
    run: RunArgument,
    epsilon: Annotated[list[str] | None, typer.Option(help="radii to certify at, such as 36/255")] = None,
    certificate: Annotated[Path | None, typer.Option(help="write the certificates of all images to this file")] = None,
    folder: DataOption = None,
    download: DownloadOption = False,
    images: ImagesOption = None,
    arithmetic: Annotated[
        str, typer.Option(help="arithmetic that the network is run in: float64 or float32")
    ] = "float64",
    criterion: Annotated[str, typer.Option(help="pairs; or per-class, as for one network per class")] = "pairs",
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Prove how robust a trained network is: no change of an image below its radius changes the prediction.

    Example: isoconv certify runs/large --data DIR --epsilon 36/255 --epsilon 0.1 --certificate large.jsonl
    """
    from isoconv.certify import write_certificate
    from isoconv.cli.output import CountingProgress, print_certified
    from isoconv.train.config import default_epsilons
    from isoconv.train.distributed import choose_device
    from isoconv.train.runs import certify_run, open_runs, read_test_images

    radii, chosen_device, runs = parse_epsilons(epsilon), choose_device(device), open_runs(run)
    if certificate is not None and len(runs) > 1:
        raise IsoconvError(
            f"Expected a run of one seed for --certificate. Got {len(runs)}: name one, {runs[0].folder}."
        )
    data = read_test_images(runs[0].config, folder, download, images)
    records = []
    for one in runs:
        with CountingProgress(f"certifying {one.folder.name}", "images") as shown:
            accuracy, record = certify_run(
                one,
                data,
                radii or default_epsilons(one.config.data),
                device=chosen_device,
                progress=shown.show,
                arithmetic=arithmetic,
                criterion=criterion,
            )
        records.append(record)
        if certificate is not None:
            write_certificate(certificate, accuracy.certifier, accuracy.certificates, accuracy.labels)
            check = ["python", "-m", "isoconv.check", str(certificate), str(one.folder)]
            print(f"Written to {certificate}. To check it: {shlex.join(check)}", file=sys.stderr)
    if as_json:
        print(json.dumps([record.to_fields() for record in records]))
    else:
        print_certified(records, f"{len(data):,} images of {data.name}, {arithmetic}")
        _print_majority(data)
    partial = images is not None or (arithmetic, criterion) != ("float64", "pairs")
    for one, record in zip(runs, records, strict=True):
        if partial and (one.folder / "certified.json").exists():
            print(f"Not kept: {one.folder / 'certified.json'} holds what was certified before.", file=sys.stderr)
        else:
            one.keep("certified.json", record.to_fields())


def _print_majority(data: "ImageSet") -> None:
    """Print the share of the most frequent class, the accuracy to compare with, where classes differ in size."""
    counts = data.labels.bincount(minlength=len(data.classes))
    most = int(counts.argmax())
    share = int(counts[most]) / len(data)
    if share > 1.5 / len(data.classes):
        print(f"{100 * share:.1f} % of these images belong to the most frequent class, {data.classes[most]}.")
