"""isoconv certify"""

import json
from pathlib import Path
from typing import Annotated

import typer

from isoconv.cli import print_line
from isoconv.cli.options import Data, Device, Download, Epsilons, Images, Json, Sides, given
from isoconv.data import ProgressLine

_RUN = "folder of a run, the name of a network that comes with isoconv, or FILE.py:FUNCTION, which builds your own"


def certify(
    run: Annotated[Path, typer.Argument(help=_RUN)],
    data: Annotated[
        str | None, typer.Argument(help="of FILE.py:FUNCTION: as for isoconv train, or only --data")
    ] = None,
    epsilons: Epsilons = None,
    certificate: Annotated[Path | None, typer.Option(help="file to write the certificates to")] = None,
    folder: Data = None,
    weights: Annotated[Path | None, typer.Option(help="of FILE.py:FUNCTION: its .safetensors file")] = None,
    size: Sides = None,
    download: Download = False,
    images: Images = None,
    arithmetic: Annotated[str, typer.Option(help="float64 or float32: what the network runs in")] = "float64",
    criterion: Annotated[str, typer.Option(help="pairs, or per-class, as if each class had its own network")] = "pairs",
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Certify a trained network: no perturbation below an image's radius changes its prediction.

    Example: isoconv certify runs/large --data DIR --epsilon 36/255 --epsilon 0.1 --certificate large.jsonl

    Your own network: isoconv certify mymodel.py:build --weights w.safetensors --data DIR runs the function build.
    """
    options = given(locals(), "as_json")
    from isoconv.cli.output import print_certified
    from isoconv.train import certify_run

    records = certify_run(**options, progress=ProgressLine("images", 1), say=print_line)
    if as_json:
        print(json.dumps([record.to_fields() for record in records]))
    else:
        print_certified(records, f"{run}: {records[0].images:,} test images, {arithmetic}")
