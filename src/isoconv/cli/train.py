"""isoconv train"""

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from isoconv.cli.options import (
    DataOption,
    DeviceOption,
    DownloadOption,
    JsonOption,
    OverwriteOption,
    parse_epsilons,
    parse_numbers,
    parse_seeds,
    parse_size,
)
from isoconv.data.datasets import DATASETS, NAMES
from isoconv.train.losses import LOSSES

_NOT_MIRRORED = " and ".join(name for name, record in DATASETS.items() if not record.flip)
_DATA_HELP = f"{', '.join(NAMES)}, a folder of images (one sub-folder per class), or a CSV file"


def train(
    data: Annotated[str | None, typer.Argument(help=_DATA_HELP)] = None,
    out: Annotated[Path, typer.Option(help="folder of the run")] = Path("runs/run"),
    folder: DataOption = None,
    download: DownloadOption = False,
    size: Annotated[str | None, typer.Option(help="resize images: 32, or 32x48 (height x width)")] = None,
    model: Annotated[str | None, typer.Option(help="small, large (default) or fc3")] = None,
    conv: Annotated[
        str | None, typer.Option(help="bcop (default), bcop-fixed, rko, ossn, svcm, rkl2ne, standard")
    ] = None,
    activation: Annotated[str | None, typer.Option(help="maxmin (default) or relu")] = None,
    recipe: Annotated[str | None, typer.Option(help="default, or paper for exactly the paper's")] = None,
    epochs: Annotated[
        int | None, typer.Option(help="passes over the training set; 60, in the paper's recipe 200")
    ] = None,
    batch_size: Annotated[int | None, typer.Option(help="images per step; 128, or less for small data sets")] = None,
    optimiser: Annotated[str | None, typer.Option(help="steepest (default for bcop and rko), adam or rmsprop")] = None,
    lr: Annotated[float | None, typer.Option(help="learning rate; by default the recipe's")] = None,
    schedule: Annotated[str | None, typer.Option(help="linear (default), exponential, cosine or constant")] = None,
    loss: Annotated[str | None, typer.Option(help=f"{', '.join(LOSSES)}; cross-entropy is the default")] = None,
    margin: Annotated[float | None, typer.Option(help=LOSSES["hinge"].options["margin"].help)] = None,
    temperature: Annotated[float | None, typer.Option(help=LOSSES["cross-entropy"].options["temperature"].help)] = None,
    offset: Annotated[float | None, typer.Option(help=LOSSES["cross-entropy"].options["offset"].help)] = None,
    orthogonalisation: Annotated[str | None, typer.Option(help="manifold (default) or bjorck")] = None,
    precision: Annotated[str | None, typer.Option(help="float32 (default), or bf16 for the convolutions")] = None,
    crop_padding: Annotated[int | None, typer.Option(help="crop at random from so many zeros around")] = None,
    flip: Annotated[
        bool | None,
        typer.Option("--flip/--no-flip", help=f"mirror at random (not {_NOT_MIRRORED})"),
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="0, or several, trained side by side: 0,1,2,3,4")] = None,
    epsilon: Annotated[list[str] | None, typer.Option(help="radii to certify at, such as 36/255")] = None,
    search: Annotated[str | None, typer.Option(help="learning rates to try on a validation split first")] = None,
    device: DeviceOption = "auto",
    resume: Annotated[bool, typer.Option("--resume", help="continue the run in --out")] = False,
    overwrite: OverwriteOption = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="write TensorBoard events too")] = False,
    as_json: JsonOption = False,
) -> None:
    """Train a classifier and say how accurate and how robust it is.

    Example: isoconv train cifar10 --data DIR --model large --out runs/large --seeds 0,1,2,3,4
    """
    given = {name: value for name, value in locals().items() if name in _SETTINGS and value is not None}
    from isoconv.cli.output import TensorBoardToo, TrainingProgress, print_results, resumable
    from isoconv.train.distributed import Processes, choose_device
    from isoconv.train.job import train as train_networks

    processes = Processes.join(choose_device(device))
    quiet = not processes.first
    try:
        with resumable(out, resume, quiet) as should_stop, TrainingProgress(0, quiet=quiet) as shown:
            observer = TensorBoardToo(shown, str(out)) if tensorboard and processes.first else shown
            results, config = train_networks(
                data,
                out,
                folder=folder,
                download=download,
                size=None if size is None else parse_size(size),
                seeds=None if seeds is None else parse_seeds(seeds),
                epsilons=parse_epsilons(epsilon),
                search=None if search is None else parse_numbers(search, "--search"),
                device=device,
                resume=resume,
                overwrite=overwrite,
                observer=observer,
                should_stop=should_stop,
                begin=shown.begin,
                say=lambda line: print(line, file=sys.stderr),
                processes=processes,
                **given,
            )
    finally:
        processes.leave()
    if not processes.first:
        return
    if as_json:
        print(json.dumps([result.to_fields() for result in results]))
        return
    if results[0].clean is not None:
        plural = "s" * (config.epochs != 1)
        print_results(results, f"{config.model}, {config.conv}, {config.data}, {config.epochs:,} epoch{plural}")
    words = shlex.join([str(out), *(["--data", str(folder)] if folder is not None else [])])
    print(f"The run is in {out}. To see it: isoconv report {words}", file=sys.stderr)


_SETTINGS = {
    *("model", "conv", "activation", "recipe", "epochs", "batch_size", "optimiser", "lr", "schedule", "loss", "margin"),
    *("temperature", "offset", "orthogonalisation", "precision", "crop_padding", "flip"),
}
