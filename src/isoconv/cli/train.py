"""isoconv train"""

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from isoconv.cli import options as cli
from isoconv.cli import print_line
from isoconv.cli.options import list_choices
from isoconv.data.datasets import DATASETS, NAMES, RESIZES
from isoconv.losses import LOSSES
from isoconv.nn.methods import ACTIVATIONS, METHODS, ORTHOGONALISATIONS
from isoconv.train.config import CLASSIFIERS, OPTIMISERS, PRECISIONS, RECIPES, SCHEDULES

_DATA = f"{list_choices(NAMES)}, a folder of images (one sub-folder per class), a CSV file, or shards (.tar)"
_MODELS = f"{list_choices(CLASSIFIERS, 'large')}; or a function that builds your own: FILE.py:FUNCTION"
_PATCHES = "side in pixels of the patch that the network sees as one position (default: more for large images)"
_RECIPES = "; ".join(f"{name}: {meaning}" for name, meaning in RECIPES.items())
_LOSS_OPTIONS = "; ".join(f"{name}: {', '.join(loss.options)}" for name, loss in LOSSES.items() if loss.options)
_EPOCHS = (
    "passes over the training set (default: 60; recipe paper: 200); another number extends or shortens a resumed run"
)
_VALIDATION = "hold out this share of the training images, and keep the epoch with most of them right by a margin: 0.1"
_PATIENCE = "with --validation, stop after this many epochs without a gain"
_AUGMENT_EPOCHS = "only in so many epochs, the first: --augment, --rand-augment, --colour-jitter (default: in all)"
_NOT_MIRRORED = ", ".join(name for name, record in DATASETS.items() if not record.flip)


def train(
    data: Annotated[str | None, typer.Argument(help=_DATA)] = None,
    out: Annotated[Path, typer.Option(help="folder of the run")] = Path("runs/run"),
    folder: cli.Data = None,
    download: cli.Download = False,
    size: cli.Sides = None,
    resize: Annotated[str | None, typer.Option(help=f"how to resize: {list_choices(RESIZES, 'squash')}")] = None,
    skip_broken: Annotated[
        bool | None, typer.Option("--skip-broken", help="leave out images that cannot be read, instead of stopping")
    ] = None,
    stream: cli.Stream = None,
    workers: cli.Workers = None,
    model: Annotated[str | None, typer.Option(help=_MODELS)] = None,
    conv: Annotated[str | None, typer.Option(help=list_choices(METHODS, "bcop"))] = None,
    activation: Annotated[str | None, typer.Option(help=list_choices(ACTIVATIONS, "maxmin"))] = None,
    recipe: Annotated[str | None, typer.Option(help=_RECIPES)] = None,
    epochs: Annotated[int | None, typer.Option(help=_EPOCHS)] = None,
    batch_size: Annotated[int | None, typer.Option(help="images per step: 128, or less for small data sets")] = None,
    accumulate: Annotated[int | None, typer.Option(help="batches whose gradients make one step (default: 1)")] = None,
    optimiser: Annotated[str | None, typer.Option(help=f"{list_choices(OPTIMISERS)}; by default the recipe's")] = None,
    lr: Annotated[float | None, typer.Option(help="learning rate; by default the recipe's")] = None,
    schedule: Annotated[str | None, typer.Option(help=list_choices(SCHEDULES, "linear"))] = None,
    loss: Annotated[str | None, typer.Option(help=list_choices(LOSSES, "cross-entropy"))] = None,
    margin: Annotated[float | None, typer.Option(help=LOSSES["hinge"].options["margin"].help)] = None,
    temperature: Annotated[float | None, typer.Option(help=LOSSES["cross-entropy"].options["temperature"].help)] = None,
    offset: Annotated[float | None, typer.Option(help=LOSSES["cross-entropy"].options["offset"].help)] = None,
    loss_options: Annotated[
        list[Any] | None, cli.parsed(cli.parse_setting, "--loss-option", "<name=number>", _LOSS_OPTIONS)
    ] = None,
    patch: Annotated[int | None, typer.Option(help=_PATCHES)] = None,
    orthogonalisation: Annotated[str | None, typer.Option(help=list_choices(ORTHOGONALISATIONS, "manifold"))] = None,
    precision: Annotated[
        str | None, typer.Option(help=f"of matrix products: {list_choices(PRECISIONS, 'float32')}")
    ] = None,
    checkpoint_activations: cli.CheckpointActivations = None,
    crop_padding: Annotated[int | None, typer.Option(help="pad with this many zeros, then crop at random")] = None,
    flip: Annotated[
        bool | None, typer.Option("--flip/--no-flip", help=f"mirror at random (default: yes; {_NOT_MIRRORED}: no)")
    ] = None,
    resized_crop: cli.ResizedCrop = None,
    rand_augment: cli.RandAugment = None,
    colour_jitter: cli.ColourJitter = None,
    augment: cli.Augment = None,
    augment_epochs: Annotated[int | None, typer.Option(help=_AUGMENT_EPOCHS)] = None,
    seeds: cli.Seeds = None,
    epsilons: cli.Epsilons = None,
    search: cli.Search = None,
    validation: Annotated[float | None, typer.Option(help=_VALIDATION)] = None,
    patience: Annotated[int | None, typer.Option(help=_PATIENCE)] = None,
    device: cli.Device = "auto",
    resume: cli.Resume = False,
    overwrite: cli.Overwrite = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="also write TensorBoard events")] = False,
    as_json: cli.Json = False,
) -> None:
    """Train a classifier, then print its clean and certified accuracy.

    Example: isoconv train cifar10 --data DIR --model large --out runs/large --seeds 0,1,2,3,4
    """
    options = cli.given(locals(), "as_json")
    if loss_options:
        options["loss_options"] = dict(loss_options)
    from isoconv.cli.output import TrainingProgress, print_json, print_results, resumable
    from isoconv.train import train as train_networks
    from isoconv.train.distributed import Processes, choose_device

    processes = Processes.join(choose_device(device))
    if processes.first:  # the others show nothing
        options["watch"] = TrainingProgress
    with processes.together(), resumable(out, resume, quiet=not processes.first) as should_stop:
        results, config = train_networks(**options, should_stop=should_stop, say=print_line, processes=processes)
    if not processes.first:
        return
    if as_json:
        print_json(results)
        return
    if results[0].clean is not None:
        count = results[0].epochs
        epochs_done = f"{count:,} epoch{'s' * (count != 1)}"
        print_results(results, ", ".join([*config.network[:2], Path(config.data).name, epochs_done]))
    words = shlex.join([str(out), *(["--data", str(folder)] if folder is not None else [])])
    print_line(f"The run is in {out}. Next: isoconv certify {words}, or isoconv report {words}")
