"""isoconv gan"""

from pathlib import Path
from typing import Annotated

import typer

from isoconv.cli.options import Data, Device, Download, Overwrite, Resume, Seed, list_choices
from isoconv.data.datasets import NAMES


def gan(
    data: Annotated[str, typer.Argument(help=f"{list_choices(NAMES)}, or a folder of images")],
    out: Annotated[Path, typer.Option(help="folder of the run")] = Path("runs/gan"),
    folder: Data = None,
    download: Download = False,
    size: Annotated[int | None, typer.Option(help="resize images; stl10: 64 by default")] = None,
    channels: Annotated[int | None, typer.Option(help="1 for grey, 3 for colour, for a folder of images")] = None,
    epochs: Annotated[int, typer.Option(help="passes over the training images")] = 128,
    batch_size: Annotated[int, typer.Option(help="images per update")] = 64,
    lr: Annotated[float, typer.Option(help="learning rate of both networks")] = 2e-4,
    seed: Seed = 0,
    device: Device = "auto",
    resume: Resume = False,
    overwrite: Overwrite = False,
) -> None:
    """Train the paper's WGAN-GP, a generator whose distance from the data isoconv wasserstein can measure.

    Example: isoconv gan stl10 --data DIR --out runs/gan
    """
    from isoconv.cli.output import DifferenceProgress, resumable, show_reading
    from isoconv.wasserstein import train_generator

    with resumable(out, resume) as should_stop:
        train_generator(
            data,
            out,
            files=folder,
            download=download,
            size=size,
            channels=channels,
            epochs=epochs,
            batch_size=batch_size,
            lr=lr,
            seed=seed,
            device=device,
            resume=resume,
            overwrite=overwrite,
            watch=DifferenceProgress,
            progress=show_reading,
            should_stop=should_stop,
        )
    print(f"The generator is in {out}, and a grid of its images in {out / 'samples.png'}")
