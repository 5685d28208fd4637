"""isoconv predict"""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from isoconv.cli.options import Device, Json, Run


def predict(
    run: Run,
    images: Annotated[list[Path], typer.Argument(help="pictures: PNG, JPEG, BMP, WebP, GIF")],
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Classify pictures, and print the radius within which each class cannot change.

    The radius is in the L2 norm, for the resized picture that the network sees. It is printed for pixels from 0 to 1 and
    for pixels from 0 to 255.

    Example: isoconv predict runs/mine photo.png
    """
    from isoconv.cli.output import print_table
    from isoconv.train import open_run

    trained = open_run(run)
    predictions = trained.predict(images, device)
    if as_json:
        print(json.dumps([prediction.to_fields() for prediction in predictions]))
        return
    channels, height, width = trained.config.input_shape
    title = f"as {height}×{width} pixels in {'grey' if channels == 1 else 'colour'}"
    rows = [
        [x.image, x.label, *((f"{x.radius:.4f}", f"{x.radius_255:.2f}") if x.radius > 0 else ("none", "none"))]
        for x in predictions
    ]
    print_table(title, ("image", "class"), ("certified radius (pixels 0–1)", "(pixels 0–255)"), rows)
    print("The radius is for the resized picture, not for the file.", file=sys.stderr)
