"""isoconv certify"""

import json
import shlex
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from isoconv.certify import RobustAccuracy, robust_accuracy, write_certificate
from isoconv.cli.progress import CountingProgress
from isoconv.cli.runs import open_runs, test_images
from isoconv.cli.tables import print_certified
from isoconv.cli.values import parse_number
from isoconv.data import ImageSet
from isoconv.errors import IsoconvError
from isoconv.train.config import default_epsilons
from isoconv.train.distributed import choose_device


def certify(
    run: Annotated[Path, typer.Argument(help="the run's folder")],
    epsilon: Annotated[list[str] | None, typer.Option(help="radii to certify at, such as 36/255")] = None,
    certificate: Annotated[Path | None, typer.Option(help="write the certificates of all images to this file")] = None,
    folder: Annotated[
        Path | None, typer.Option("--data", help="where the data set is, or pictures that have moved")
    ] = None,
    download: Annotated[bool, typer.Option("--download", help="fetch the data set if it is not there")] = False,
    images: Annotated[int | None, typer.Option(help="only the first of the test images")] = None,
    arithmetic: Annotated[str, typer.Option(help="in which the network will be run: float64 or float32")] = "float64",
    criterion: Annotated[str, typer.Option(help="pairs; or per-class, as for one network per class")] = "pairs",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="print the results as JSON on stdout")] = False,
) -> None:
    """Prove how robust a trained network is: no change of an image below its radius can change the prediction.

    Example: isoconv certify runs/large --data DIR --epsilon 36/255 --epsilon 0.1 --certificate large.json
    """
    radii = [parse_number(text, "--epsilon") for text in epsilon or []]
    place = choose_device(device)
    runs = open_runs(run)
    if certificate is not None and len(runs) > 1:
        raise IsoconvError(
            f"Expected a run of one seed for --certificate. Got {len(runs)}: name one, {runs[0].folder}."
        )
    data = test_images(runs[0].config, folder, download, images)
    results = []
    for one in runs:
        began = time.perf_counter()
        chosen = radii or list(default_epsilons(one.config.data))
        with CountingProgress(f"certifying {one.folder.name}", "images") as shown:
            found = robust_accuracy(
                one.model.to(place), data, chosen, arithmetic=arithmetic, criterion=criterion, progress=shown.show
            )
        result = certified_record(found, one.config.seed, time.perf_counter() - began)
        if certificate is not None:
            write_certificate(certificate, found.certifier, found.certificates, found.labels)
            check = ["python", "-m", "isoconv.check", str(certificate), str(one.folder)]
            print(f"Written to {certificate}. To check it: {shlex.join(check)}", file=sys.stderr)
        results.append(result)
    if as_json:
        print(json.dumps(results))
    else:
        print_certified(results, f"{len(data):,} images of {data.name}, {arithmetic}")
        _say_the_most_frequent(data)
    a_part = images is not None or (arithmetic, criterion) != ("float64", "pairs")
    for one, result in zip(runs, results, strict=True):
        if a_part and (one.folder / "certified.json").exists():
            print(f"Not kept: {one.folder / 'certified.json'} holds what was certified before.", file=sys.stderr)
        else:
            one.keep("certified.json", json.dumps(result, indent=2) + "\n")


def _say_the_most_frequent(data: ImageSet) -> None:
    """What accuracies are to be compared with, where classes are of different sizes."""
    counts = data.labels.bincount(minlength=len(data.classes))
    most = int(counts.argmax())
    share = int(counts[most]) / len(data)
    if share > 1.5 / len(data.classes):
        print(f"{100 * share:.1f} % of these images are of the most frequent class, {data.classes[most]}.")


def certified_record(found: RobustAccuracy, seed: int, seconds: float) -> dict[str, Any]:
    certifier = found.certifier
    return {
        "seed": seed,
        "images": len(found.labels),
        "clean": found.clean,
        "robust": {str(radius): percent for radius, percent in found.certified.items()},
        "lipschitz_bound": found.lipschitz_bound,
        "layers": [{"name": x.name, "kind": x.kind, "bound": x.bound} for x in certifier.lipschitz.layers],
        "arithmetic": certifier.arithmetic,
        "criterion": certifier.criterion,
        "error_offset": certifier.error.offset,
        "error_slope": certifier.error.slope,
        "radii": found.radii.tolist(),
        "seconds": seconds,
    }
