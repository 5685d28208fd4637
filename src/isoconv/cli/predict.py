"""isoconv predict"""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from isoconv.certify import Certifier
from isoconv.cli.runs import open_runs
from isoconv.cli.tables import console
from isoconv.data import as_float, load_image
from isoconv.errors import IsoconvError
from isoconv.train.distributed import choose_device


def predict(
    run: Annotated[Path, typer.Argument(help="the run's folder")],
    images: Annotated[list[Path], typer.Argument(help="pictures: PNG, JPEG, BMP, WebP, GIF")],
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="print the results as JSON on stdout")] = False,
) -> None:
    """Say what is on pictures, and how far each may be changed without a change of mind.

    The radius is the L2 norm of the change to the picture as the network sees it, resized: once with pixels from 0 to 1,
    once in steps of 0 … 255.

    Example: isoconv predict runs/mine photo.png
    """
    import torch

    runs = open_runs(run)
    if len(runs) > 1:
        raise IsoconvError(f"Expected a run of one seed. Got {len(runs)}: name one, {runs[0].folder}.")
    one, place = runs[0], choose_device(device)
    shape = one.config.input_shape
    pixels = as_float(torch.stack([load_image(path, shape) for path in images]), torch.float64)
    certifier = Certifier(one.model.to(place), shape)
    found = certifier(pixels).cpu()
    answers = [
        {
            "image": str(path),
            "class": one.config.classes[prediction],
            "radius": radius,
            "radius_255": 255 * radius,
            "certified": radius > 0,
        }
        for path, prediction, radius in zip(images, found.prediction.tolist(), found.radius.tolist(), strict=True)
    ]
    if as_json:
        print(json.dumps(answers))
        return
    table = Table(title=f"as {shape[1]}×{shape[2]} pixels in {'grey' if shape[0] == 1 else 'colour'}")
    for heading in ("image", "class"):
        table.add_column(heading, overflow="fold")
    for heading in ("certified radius (pixels 0–1)", "(pixels 0–255)"):
        table.add_column(heading, justify="right")
    for answer in answers:
        proved = (f"{answer['radius']:.4f}", f"{answer['radius_255']:.2f}") if answer["certified"] else ("none", "none")
        table.add_row(Text(str(answer["image"])), Text(str(answer["class"])), *proved)  # as they are, without markup
    console().print(table)
    print("The radius is for the picture as it was resized, not for the file.", file=sys.stderr)
