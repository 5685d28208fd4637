"""isoconv wasserstein"""

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from isoconv.cli.options import Data, Device, Download, Json, Overwrite, Resume, Seed, list_choices, parse_interval
from isoconv.data.datasets import NAMES
from isoconv.nn.methods import ACTIVATIONS, METHODS
from isoconv.records import require
from isoconv.train.config import OPTIMISERS, RECIPES

_WHOLE = {"none": (False, False), "a": (True, False), "b": (False, True), "both": (True, True)}
_METHODS = [name for name in METHODS if name != "standard"]
_RECIPES = "; ".join(f"{name}: {meaning}" for name, meaning in RECIPES.items())
_SOURCE = f"{list_choices(NAMES)}, a folder of images, a .npy file of vectors, or a generator's run folder"


def wasserstein(
    first: Annotated[str, typer.Argument(metavar="A", help=_SOURCE)],
    second: Annotated[str, typer.Argument(metavar="B", help="another of these")],
    out: Annotated[Path, typer.Option(help="folder of the run")] = Path("runs/wasserstein"),
    data: Data = None,
    download: Download = False,
    size: Annotated[int | None, typer.Option(help="resize images to this height and width")] = None,
    channels: Annotated[int | None, typer.Option(help="1 for grey, 3 for colour, for folders of images")] = None,
    critic: Annotated[str | None, typer.Option(help="dcgan, small, large, fc, anchors; vectors: fc, anchors")] = None,
    conv: Annotated[str | None, typer.Option(help=list_choices(_METHODS, "bcop"))] = None,
    activation: Annotated[str | None, typer.Option(help=f"{list_choices(ACTIVATIONS)}; for fc also groupsort")] = None,
    recipe: Annotated[str, typer.Option(help=_RECIPES)] = "default",
    epochs: Annotated[int | None, typer.Option(help="number of epochs, 100 updates each")] = None,
    batch_size: Annotated[int | None, typer.Option(help="samples of each distribution per update")] = None,
    optimiser: Annotated[str | None, typer.Option(help=list_choices(OPTIMISERS))] = None,
    lr: Annotated[float | None, typer.Option(help="learning rate")] = None,
    width: Annotated[int | None, typer.Option(help="width of each hidden layer of fc")] = None,
    depth: Annotated[int | None, typer.Option(help="hidden layers of fc; 0 for a linear critic")] = None,
    anchors: Annotated[int | None, typer.Option(help="number of points of the critic anchors")] = None,
    upsample: Annotated[int | None, typer.Option(help="enlarge images by this factor for the critic")] = None,
    whole: Annotated[str, typer.Option(help="sides that are distributions, not samples: none, a, b, both")] = "none",
    held_out: Annotated[float, typer.Option(help="fraction of each sample held out for evaluation")] = 0.25,
    repeats: Annotated[str, typer.Option(help="what equal samples are: copies, draws, or either")] = "either",
    samples: Annotated[int, typer.Option(help="images of a generator to evaluate on")] = 6400,
    pixels: Annotated[str, typer.Option(help="values of black and white, for images")] = "-1,1",
    bounds: Annotated[str | None, typer.Option("--range", help="range of all coordinates of vectors: 0,1")] = None,
    confidence: Annotated[float, typer.Option(help="confidence of the lower bound and of the interval")] = 0.95,
    method: Annotated[str, typer.Option(help="auto, betting (a bound) or asymptotic (an estimate)")] = "auto",
    seed: Seed = 0,
    device: Device = "auto",
    resume: Resume = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Prove a lower bound of the Wasserstein-1 distance between two distributions.

    Example: isoconv wasserstein photos/ paintings/ --size 64
    """
    require(whole in _WHOLE, f"--whole to be one of {', '.join(_WHOLE)}", repr(whole))
    network = {"conv": conv, "activation": activation, "width": width, "depth": depth}
    network |= {"anchors": anchors, "upsample": upsample}
    training = {"recipe": recipe, "epochs": epochs, "batch_size": batch_size, "optimiser": optimiser, "lr": lr}
    split = {"whole": _WHOLE[whole], "held_out": held_out, "repeats": repeats, "seed": seed}
    from isoconv.cli.output import resumable, show_reading, watch_critic
    from isoconv.wasserstein import distance_bound

    with resumable(out, resume) as should_stop:
        result = distance_bound(
            first,
            second,
            confidence=confidence,
            critic=critic,
            value_range=None if bounds is None else parse_interval(bounds, "--range"),
            pixels=parse_interval(pixels, "--pixels"),
            method=method,
            count=samples,
            data=data,
            download=download,
            size=size,
            channels=channels,
            device=device,
            folder=out,
            resume=resume,
            overwrite=overwrite,
            watch=watch_critic,
            progress=show_reading,
            should_stop=should_stop,
            **network,
            **training,
            **split,
        )
    if find_spec("matplotlib") is None:
        print("No plot: that needs matplotlib, pip install 'isoconv[plots]'.", file=sys.stderr)
    for warning in result.warnings:
        print(f"Warning: {warning}", file=sys.stderr)
    print(json.dumps(result.to_fields()) if as_json else result)
    if not as_json:
        print(f"The run is in {out}", file=sys.stderr)
