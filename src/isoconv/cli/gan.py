"""isoconv gan"""

import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from isoconv.cli.output import interruptible
from isoconv.cli.wasserstein import DifferenceProgress, check_same, checked_seed, show_reading
from isoconv.data import EpochBatches
from isoconv.errors import IsoconvError
from isoconv.models.generator import Generator
from isoconv.train.distributed import choose_device
from isoconv.train.engine import Stopped
from isoconv.train.run_folder import RunFolder
from isoconv.wasserstein.gan import GanConfig, start_gan, train_gan
from isoconv.wasserstein.sources import SourceOptions, read_images


def gan(
    data: Annotated[str, typer.Argument(help="digits, mnist, cifar10, stl10, or a folder of images")],
    out: Annotated[Path, typer.Option(help="the run's folder")] = Path("runs/gan"),
    folder: Annotated[Path | None, typer.Option("--data", help="where the data set's files are")] = None,
    download: Annotated[bool, typer.Option("--download", help="fetch the data set if it is not there")] = False,
    size: Annotated[int | None, typer.Option(help="resize images; 64 for stl10, if nothing is said")] = None,
    channels: Annotated[int | None, typer.Option(help="1 for grey, 3 for colour, for a folder of images")] = None,
    epochs: Annotated[int, typer.Option(help="passes over the training images")] = 128,
    batch_size: Annotated[int, typer.Option(help="images per update")] = 64,
    lr: Annotated[float, typer.Option(help="learning rate of both networks")] = 2e-4,
    seed: Annotated[int, typer.Option(help="of every random choice")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
    resume: Annotated[bool, typer.Option("--resume", help="go on with the run in --out; same options")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="replace the run in --out")] = False,
) -> None:
    """Train the paper's WGAN-GP: a generator whose distance from the data can then be measured.

    Example: isoconv gan stl10 --data DIR --out runs/gan
    """
    chosen_device = choose_device(device)
    if resume and overwrite:
        raise IsoconvError("Expected --resume or --overwrite. Got both.")
    size = 64 if data == "stl10" and size is None else size
    options = SourceOptions(folder, download, size, channels, progress=show_reading)
    images = read_images(data, options)
    config = GanConfig(data, images.shape, epochs=epochs, batch_size=batch_size, lr=lr, seed=checked_seed(seed))
    updates = len(EpochBatches(images, batch_size)) * epochs
    run = RunFolder(out)
    if resume:
        check_same(run, asdict(GanConfig.read(run.config)) if run.exists else None, asdict(config))
    else:
        Generator(config.image_shape)  # a shape that it cannot make is refused before anything is written
        start_gan(config, run, overwrite)
    with interruptible() as should_stop, DifferenceProgress(updates, run.updates_done() if resume else 0) as shown:
        try:
            train_gan(config, run, images, shown, device=chosen_device, resume=resume, should_stop=should_stop)
        except Stopped:
            shown.close()
            again = shlex.join(["isoconv", *sys.argv[1:], *([] if resume else ["--resume"])])
            print(f"Stopped, and saved in {out}. To go on: {again.replace(' --overwrite', '')}", file=sys.stderr)
            raise SystemExit(130) from None
    print(f"The generator is in {out}, and a grid of its images in {out / 'samples.png'}")
