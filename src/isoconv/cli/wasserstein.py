"""isoconv wasserstein and gan: distances between distributions, and a generator to measure."""

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from isoconv.cli import options as cli
from isoconv.cli.options import list_choices, parse_interval, parsed
from isoconv.data.datasets import NAMES
from isoconv.errors import require
from isoconv.nn.methods import ACTIVATIONS, METHODS
from isoconv.train.config import OPTIMISERS, RECIPES

_WHOLE = {"none": (False, False), "a": (True, False), "b": (False, True), "both": (True, True)}
_METHODS = [name for name in METHODS if name != "standard"]
_SIDES = "sides that are distributions, not samples: none (default), a, b, both"
_RECIPES = "; ".join(f"{name}: {meaning}" for name, meaning in RECIPES.items())
_SOURCE = f"{list_choices(NAMES)}, a folder of images, a .npy file of vectors or images, or a generator's run folder"
_RANGE = "range of the values, such as 0,1: coordinates of vectors, black and white of images (their default: -1,1)"
_Data = Annotated[Path | None, typer.Option("--data", help="path of the data set")]


def wasserstein(
    a: Annotated[str, typer.Argument(metavar="A", help=_SOURCE)],
    b: Annotated[str, typer.Argument(metavar="B", help="another of these")],
    folder: Annotated[Path, typer.Option("--out", help="folder of the run")] = Path("runs/wasserstein"),
    data: _Data = None,
    download: cli.Download = False,
    size: Annotated[int | None, typer.Option(help="resize images to this height and width")] = None,
    channels: Annotated[int | None, typer.Option(help="1 for grey, 3 for colour, for folders of images")] = None,
    critic: Annotated[str | None, typer.Option(help="dcgan, small, large, fc, anchors; vectors: fc, anchors")] = None,
    conv: Annotated[str | None, typer.Option(help=list_choices(_METHODS, "bcop"))] = None,
    activation: Annotated[str | None, typer.Option(help=f"{list_choices(ACTIVATIONS)}; for fc also groupsort")] = None,
    recipe: Annotated[str | None, typer.Option(help=_RECIPES)] = None,
    epochs: Annotated[int | None, typer.Option(help="number of epochs, 100 updates each")] = None,
    batch_size: Annotated[int | None, typer.Option(help="samples of each distribution per update")] = None,
    optimiser: Annotated[str | None, typer.Option(help=list_choices(OPTIMISERS))] = None,
    lr: Annotated[float | None, typer.Option(help="learning rate")] = None,
    width: Annotated[int | None, typer.Option(help="width of each hidden layer of fc")] = None,
    depth: Annotated[int | None, typer.Option(help="hidden layers of fc; 0 for a linear critic")] = None,
    anchors: Annotated[int | None, typer.Option(help="number of points of the critic anchors")] = None,
    upsample: Annotated[int | None, typer.Option(help="enlarge images by this factor for the critic")] = None,
    whole: Annotated[str | None, typer.Option(help=_SIDES)] = None,
    held_out: Annotated[
        float | None, typer.Option(help="fraction of each sample to evaluate on (default: 0.25)")
    ] = None,
    repeats: Annotated[str | None, typer.Option(help="equal samples are: copies, draws, either (default)")] = None,
    count: Annotated[
        int | None, typer.Option("--samples", help="images of a generator to evaluate on (default: 6400)")
    ] = None,
    value_range: Annotated[Any, parsed(parse_interval, "--range", "<low,high>", _RANGE)] = None,
    confidence: Annotated[
        float | None, typer.Option(help="confidence of the lower bound and of the interval (default: 0.95)")
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="auto (default), betting (a bound) or asymptotic (an estimate)")
    ] = None,
    seed: cli.Seed = None,
    device: cli.Device = "auto",
    resume: cli.Resume = False,
    overwrite: cli.Overwrite = False,
    as_json: cli.Json = False,
) -> None:
    """Prove a lower bound on the Wasserstein-1 distance between two distributions.

    Example: isoconv wasserstein photos/ paintings/ --size 64
    """
    options = cli.given(locals(), "as_json", "whole")
    if whole is not None:
        require(whole in _WHOLE, f"--whole to be one of {', '.join(_WHOLE)}", repr(whole))
        options["whole"] = _WHOLE[whole]
    from isoconv.cli.output import resumable, show_reading, watch_critic
    from isoconv.wasserstein import distance_bound

    with resumable(folder, resume) as should_stop:
        result = distance_bound(**options, watch=watch_critic, progress=show_reading, should_stop=should_stop)
    if find_spec("matplotlib") is None:
        print("No plot: that needs matplotlib, pip install 'isoconv[plots]'.", file=sys.stderr)
    for warning in result.warnings:
        print(f"Warning: {warning}", file=sys.stderr)
    print(json.dumps(result.to_fields()) if as_json else result)
    if not as_json:
        print(f"The run is in {folder}", file=sys.stderr)


def gan(
    data: Annotated[str, typer.Argument(help=f"{list_choices(NAMES)}, or a folder of images")],
    folder: Annotated[Path, typer.Option("--out", help="folder of the run")] = Path("runs/gan"),
    files: _Data = None,
    download: cli.Download = False,
    size: Annotated[int | None, typer.Option(help="resize images; stl10: 64 by default")] = None,
    channels: Annotated[int | None, typer.Option(help="1 for grey, 3 for colour, for a folder of images")] = None,
    epochs: Annotated[int | None, typer.Option(help="passes over the training images (default: 128)")] = None,
    batch_size: Annotated[int | None, typer.Option(help="images per update (default: 64)")] = None,
    lr: Annotated[float | None, typer.Option(help="learning rate of both networks (default: 2e-4)")] = None,
    seed: cli.Seed = None,
    device: cli.Device = "auto",
    resume: cli.Resume = False,
    overwrite: cli.Overwrite = False,
) -> None:
    """Train the paper's WGAN-GP, a generator whose distance from the data isoconv wasserstein can measure.

    Example: isoconv gan stl10 --data DIR --out runs/gan
    """
    options = cli.given(locals())
    from isoconv.cli.output import DifferenceProgress, resumable, show_reading
    from isoconv.wasserstein import train_generator

    with resumable(folder, resume) as should_stop:
        train_generator(**options, watch=DifferenceProgress, progress=show_reading, should_stop=should_stop)
    print(f"The generator is in {folder}, and a grid of its images in {folder / 'samples.png'}")
