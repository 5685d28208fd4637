"""isoconv certify"""

import json
from pathlib import Path
from typing import Annotated

import typer

from isoconv.cli import print_line
from isoconv.cli.options import Data, Device, Download, Epsilons, Images, Json, Run, given
from isoconv.data import ProgressLine


def certify(
    run: Run,
    epsilons: Epsilons = None,
    certificate: Annotated[Path | None, typer.Option(help="file to write the certificates to")] = None,
    folder: Data = None,
    download: Download = False,
    images: Images = None,
    arithmetic: Annotated[str, typer.Option(help="float64 or float32: what the network runs in")] = "float64",
    criterion: Annotated[str, typer.Option(help="pairs, or per-class, as if each class had its own network")] = "pairs",
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Certify a trained network: no perturbation below an image's radius changes its prediction.

    Example: isoconv certify runs/large --data DIR --epsilon 36/255 --epsilon 0.1 --certificate large.jsonl
    """
    options = given(locals(), "as_json")
    from isoconv.cli.output import print_certified
    from isoconv.train import certify_run

    records = certify_run(**options, progress=ProgressLine("images", 1), say=print_line)
    if as_json:
        print(json.dumps([record.to_fields() for record in records]))
    else:
        print_certified(records, f"{run}: {records[0].images:,} test images, {arithmetic}")
