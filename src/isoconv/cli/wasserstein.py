"""isoconv wasserstein"""

import json
import math
import shlex
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from isoconv.cli.output import TrainingProgress, interruptible
from isoconv.data import ProgressLine
from isoconv.errors import IsoconvError
from isoconv.files import write_text
from isoconv.train.distributed import choose_device
from isoconv.train.engine import EpochReport, Stopped
from isoconv.train.run_folder import RunFolder
from isoconv.wasserstein.critic import check_critics, train_critics, typical_scale
from isoconv.wasserstein.critic_config import CriticConfig, critic_settings
from isoconv.wasserstein.samples import FiniteSamples, Samples, require_one_shape
from isoconv.wasserstein.sources import SourceOptions, centre_vectors, open_samples

_MANY = 2000  # pictures, from which on reading them is worth a line
_PASSES = 40  # over the smaller set of vectors, at most
_LEAST_EPOCHS = 3  # of 100 updates: with fewer it has not learnt
_WHOLE = {"none": (False, False), "a": (True, False), "b": (False, True), "both": (True, True)}
_SOURCE = "digits, mnist, cifar10, stl10, a folder of images, a .npy file of vectors, or a generator's run folder"


def wasserstein(
    first: Annotated[str, typer.Argument(metavar="A", help=_SOURCE)],
    second: Annotated[str, typer.Argument(metavar="B", help="the same kinds")],
    out: Annotated[Path, typer.Option(help="the run's folder")] = Path("runs/wasserstein"),
    folder: Annotated[Path | None, typer.Option("--data", help="where a data set's files are")] = None,
    download: Annotated[bool, typer.Option("--download", help="fetch the data set if it is not there")] = False,
    size: Annotated[int | None, typer.Option(help="resize images to this height and width")] = None,
    channels: Annotated[int | None, typer.Option(help="1 for grey, 3 for colour, for folders of images")] = None,
    model: Annotated[
        str | None, typer.Option("--critic", help="dcgan, small, large, fc, anchors; vectors: both")
    ] = None,
    conv: Annotated[str, typer.Option(help="bcop, bcop-fixed, rko, ossn, svcm or rkl2ne")] = "bcop",
    activation: Annotated[str | None, typer.Option(help="maxmin or relu; for fc groupsort too")] = None,
    recipe: Annotated[str, typer.Option(help="default, or paper for exactly the paper's")] = "default",
    epochs: Annotated[int | None, typer.Option(help="how often 100 updates are made")] = None,
    batch_size: Annotated[int | None, typer.Option(help="samples of each distribution per update")] = None,
    optimiser: Annotated[str | None, typer.Option(help="steepest, adam or rmsprop")] = None,
    lr: Annotated[float | None, typer.Option(help="learning rate")] = None,
    width: Annotated[int | None, typer.Option(help="of each hidden layer of fc")] = None,
    depth: Annotated[int | None, typer.Option(help="hidden layers of fc; 0 for a linear critic")] = None,
    anchors: Annotated[int | None, typer.Option(help="points of the critic anchors")] = None,
    upsample: Annotated[int | None, typer.Option(help="make images so many times larger for the critic")] = None,
    whole: Annotated[str, typer.Option(help="which are whole distributions, not samples: none, a, b, both")] = "none",
    held_out: Annotated[float, typer.Option(help="the part of a sample that is kept for the evaluation")] = 0.25,
    samples: Annotated[int, typer.Option(help="images that a generator is judged by")] = 6400,
    pixels: Annotated[str, typer.Option(help="what black and white are, for images")] = "-1,1",
    bounds: Annotated[str | None, typer.Option("--range", help="where all coordinates lie, for vectors: 0,1")] = None,
    confidence: Annotated[float, typer.Option(help="of the lower bound and of the interval")] = 0.95,
    method: Annotated[str, typer.Option(help="auto, betting or asymptotic")] = "auto",
    seed: Annotated[int, typer.Option(help="of every random choice")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
    resume: Annotated[bool, typer.Option("--resume", help="go on with the run in --out; same options")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="replace the run in --out")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print the result as JSON on stdout")] = False,
) -> None:
    """Prove a lower bound of the Wasserstein-1 distance between two distributions.

    Example: isoconv wasserstein photos/ paintings/ --size 64
    """
    given = {
        "epochs": epochs,
        "batch_size": batch_size,
        "optimiser": optimiser,
        "lr": lr,
        "width": width,
        "depth": depth,
        "anchors": anchors,
        "upsample": upsample,
    }
    explicit = {name: value for name, value in given.items() if value is not None}
    chosen_device = choose_device(device)
    if resume and overwrite:
        raise IsoconvError("Expected --resume or --overwrite. Got both.")
    if whole not in _WHOLE:
        raise IsoconvError(f"Expected --whole to be one of {', '.join(_WHOLE)}. Got {whole!r}.")
    if not 0 < confidence < 1:
        raise IsoconvError(f"Expected a confidence between 0 and 1, such as 0.95. Got {confidence:g}.")
    pixel_range = parse_range(pixels, "--pixels")
    box = None if bounds is None else parse_range(bounds, "--range")
    options = SourceOptions(
        folder, download, size, channels, held_out, samples, pixel_range, checked_seed(seed), show_reading
    )
    sides = _WHOLE[whole]
    pair = (
        open_samples(first, options, whole=sides[0], side="first"),
        open_samples(second, options, whole=sides[1], side="second"),
    )
    require_one_shape(*pair)
    contents = tuple(s.fingerprint() if isinstance(s, FiniteSamples) else "" for s in pair)
    value_range, units = _centred(pair, box)
    configs = []
    for critic in [model] if model else _default_critics(pair[0].shape, recipe, activation, explicit):
        config = _config(pair, (first, second), critic, conv, activation, recipe, explicit)
        config = replace(config, whole=sides, held_out=held_out, seed=seed, contents=(contents[0], contents[1]))
        if len(config.input_shape) == 3:
            config = replace(config, pixel_range=pixel_range)
        else:
            config = replace(config, scale=typical_scale(*pair, config))
        bounded = value_range is not None or config.pixel_range is not None
        check_critics([config], *pair, chosen_device, method, bounded)
        configs.append(config)
    runs = _open_runs(out, configs, resume, overwrite)
    share = confidence if len(configs) == 1 else 1 - (1 - confidence) / len(configs)  # so that all hold at once
    results = []
    for config, run in zip(configs, runs, strict=True):
        done = run.updates_done()
        unit = config.scale * config.upsample
        if len(configs) > 1:
            print(f"critic {config.model}", file=sys.stderr)
        with (
            interruptible() as should_stop,
            DifferenceProgress(config.epochs * config.steps_per_epoch, done, unit=unit) as shown,
        ):
            try:
                (trained,) = train_critics(
                    [config],
                    [run],
                    *pair,
                    shown,
                    confidence=share,
                    value_range=value_range,
                    method=method,
                    units=units,
                    device=chosen_device,
                    resume=done > 0,
                    should_stop=should_stop,
                )
            except Stopped:
                shown.close()
                again = shlex.join(["isoconv", *sys.argv[1:], *([] if resume else ["--resume"])])
                print(f"Stopped, and saved in {out}. To go on: {again.replace(' --overwrite', '')}", file=sys.stderr)
                raise SystemExit(130) from None
        plot_estimate(run)
        results.append(trained.result)
    result = _best(results, confidence)
    if len(runs) > 1:
        write_text(out / "result.json", json.dumps(result, indent=2) + "\n")
    if as_json:
        print(json.dumps(result))
    else:
        print(_sentence(result))
        print(f"The run is in {out}", file=sys.stderr)


def _open_runs(out: Path, configs: list[CriticConfig], resume: bool, overwrite: bool) -> list[RunFolder]:
    """Where each critic is trained, begun if it is new: `out` itself for one, a folder of the critic's name for several."""
    several = len(configs) > 1
    runs = [RunFolder(out / config.model) for config in configs] if several else [RunFolder(out)]
    if several and RunFolder(out).exists:
        raise IsoconvError(f"{out} already holds a run of one critic: name it (--critic), or another folder (--out).")
    if resume and not any(run.exists for run in runs):
        raise IsoconvError(f"Expected a run to resume in {out}. There is none.")
    for run, config in zip(runs, configs, strict=True):
        if resume and run.exists:
            check_same(run, asdict(CriticConfig.read(run.config)), asdict(config))
        else:
            run.check_free(overwrite)
    for run, config in zip(runs, configs, strict=True):
        if not (resume and run.exists):
            run.start(config, overwrite)
            (run.path / "estimate.png").unlink(missing_ok=True)
    if several and not resume:
        (out / "result.json").unlink(missing_ok=True)
    return runs


def _best(results: list[dict[str, Any]], confidence: float) -> dict[str, Any]:
    """The result with the highest lower bound, at the confidence with which all of them hold at once."""
    best = max(results, key=lambda result: result["lower"])
    if len(results) == 1:
        return best
    critics = {result["model"]: {name: result[name] for name in ("estimate", "lower")} for result in results}
    seconds = sum(result["train_seconds"] for result in results)
    return best | {"confidence": confidence, "train_seconds": seconds, "critics": critics}


def _centred(
    pair: tuple[Samples, Samples], box: tuple[float, float] | None
) -> tuple[tuple[float, float] | None, str | None]:
    """Vectors are centred, which W1 does not notice; the range moves with them."""
    first, second = pair
    vectors = isinstance(first, FiniteSamples) and isinstance(second, FiniteSamples) and len(first.shape) == 1
    if not vectors:
        if box is not None:
            raise IsoconvError("Expected --range for vectors. Images have --pixels.")
        return None, None
    assert isinstance(first, FiniteSamples) and isinstance(second, FiniteSamples)
    units = f"L2 distance between vectors of dimension {first.shape[0]}"
    if box is None:
        centre_vectors(first, second)
        return None, units
    for samples in (first, second):
        low = min(float(part.min()) for part in (samples.train, samples.rest))
        high = max(float(part.max()) for part in (samples.train, samples.rest))
        if not box[0] <= low <= high <= box[1]:
            raise IsoconvError(
                f"Expected numbers from {box[0]:g} to {box[1]:g} in {samples.name} (--range). Got {low:g} to {high:g}."
            )
    middle = (box[0] + box[1]) / 2
    centre_vectors(first, second, middle)
    half = math.nextafter(max(box[1] - middle, middle - box[0]), math.inf)
    return (-half, half), f"{units}, coordinates from {box[0]:g} to {box[1]:g}"


def _config(
    pair: tuple[Samples, Samples],
    names: tuple[str, str],
    critic: str,
    conv: str,
    activation: str | None,
    recipe: str,
    explicit: dict[str, Any],
) -> CriticConfig:
    shape = pair[0].shape
    settings = critic_settings(recipe, critic, conv, activation) | explicit
    if "batch_size" not in explicit:
        asked = settings.get("batch_size", CriticConfig.batch_size)
        settings["batch_size"] = min([asked, *(len(s.train) for s in pair if isinstance(s, FiniteSamples))])
    config = CriticConfig(*names, shape, **settings)
    _refuse_unused(critic, conv, activation, explicit)
    parts = [len(s.train) for s in pair if isinstance(s, FiniteSamples) and not s.whole]
    if "epochs" in explicit or not parts or len(shape) == 3:
        return config
    # A critic that sees few vectors too often learns them by heart, and its value on others falls.
    passes = -(-_PASSES * min(parts) // (config.batch_size * config.steps_per_epoch))
    return replace(config, epochs=min(config.epochs, max(_LEAST_EPOCHS, passes)))


def _refuse_unused(critic: str, conv: str, activation: str | None, explicit: dict[str, Any]) -> None:
    """An option that the critic has no use for is not passed over in silence."""
    given = {"width", "depth", "anchors", "upsample"} & explicit.keys()
    given = given | ({"activation"} if activation is not None else set()) | ({"conv"} if conv != "bcop" else set())
    used = {"fc": {"width", "depth", "activation"}, "anchors": {"anchors"}}.get(
        critic, {"conv", "activation", "upsample"}
    )
    if unused := sorted(given - used):
        raise IsoconvError(f"Expected options of the critic {critic}. Got --{unused[0]}, which it has no use for.")


def _default_critics(
    shape: tuple[int, ...], recipe: str, activation: str | None, explicit: dict[str, Any]
) -> list[str]:
    """The paper's critic for images that it can take, a smaller one for others.

    For vectors two, of which either may be much the better one; or the one that the options are about.
    """
    if len(shape) == 3:
        if shape[1] % 16 == 0 and shape[2] % 16 == 0:
            return ["dcgan"]
        return ["large"] if shape[1] % 4 == 0 and shape[2] % 4 == 0 else ["fc"]
    if "anchors" in explicit:
        return ["anchors"]
    about_layers = (
        activation is not None or recipe == "paper" or explicit.keys() & {"width", "depth", "lr", "optimiser"}
    )
    return ["fc"] if about_layers else ["fc", "anchors"]


def check_same(run: RunFolder, saved: dict[str, Any] | None, wanted: dict[str, Any]) -> None:
    """A run is resumed with the options that it was started with."""
    if saved is None:
        raise IsoconvError(f"Expected a run to resume in {run.path}. There is none.")
    for name, value in wanted.items():
        if saved[name] != value and name != "contents":
            raise IsoconvError(
                f"Expected the options of the run that is resumed. Got {name} {value}, where it has {saved[name]}."
            )
    # Last, because what is held out depends on the options too.
    contents = zip(saved.get("contents", ()), wanted.get("contents", ()), strict=True)  # a generator's run has none
    for side, (then, now) in zip(("first", "second"), contents, strict=False):
        if then and then != now:
            raise IsoconvError(f"Expected the samples that the run was started with. {wanted[side]} has changed since.")


def checked_seed(seed: int) -> int:
    if not 0 <= seed < 2**32:
        raise IsoconvError(f"Expected a seed from 0 to 2³² − 1. Got {seed}.")
    return seed


def parse_range(text: str, name: str) -> tuple[float, float]:
    """Two numbers, the smaller first: -1,1."""
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        raise IsoconvError(f"Expected two numbers such as -1,1 for {name}. Got {text!r}.") from None
    if not -1e8 <= low < high <= 1e8:
        raise IsoconvError(f"Expected two numbers up to 1e8, the smaller first, for {name}. Got {text!r}.")
    return low, high


# What is shown ----------------------------------------------------------------------------------------------------


_reading = ProgressLine("pictures", 1.0)


def show_reading(what: str, done: int, total: int) -> None:
    """Of many pictures; a few are read before anyone could wonder."""
    if total >= _MANY:
        _reading(what, done, total)


class DifferenceProgress(TrainingProgress):
    """Epochs, the critic's difference of means on its training batches, samples per second and the time left.

    unit : about what the critic's Lipschitz constant is; differences are shown divided by it
    """

    def __init__(self, steps: int, done: int = 0, quiet: bool = False, unit: float = 1.0) -> None:
        super().__init__(steps, done, quiet)
        self.unit = unit

    def figures(self, report: EpochReport) -> str:
        return f"difference {-report.loss / self.unit:.4f}  {report.images_per_second:,.0f} samples/s"


def _sentence(result: dict[str, Any]) -> str:
    low, high = result["interval"]
    first, second = result["samples"]
    how = {
        "exact": "both sets are whole distributions, so this is exact",
        "betting": f"confidence {result['confidence']:g}, by betting: valid for every sample size",
        "asymptotic": f"confidence {result['confidence']:g}, asymptotic",
    }[result["method"]]
    critics = result.get("critics", {})
    chosen = f" The critic is {result['model']}, of {' and '.join(critics)} the better one." if critics else ""
    return (
        f"W1 ≥ {max(0.0, result['lower']):.6g} ({how}). The critic's difference of means is {result['estimate']:.6g}, "
        f"interval {low:.6g} to {high:.6g}, on {first:,} and {second:,} samples, after division by its proved Lipschitz "
        f"bound {result['lipschitz_bound']:.7f}, which includes the scaling in front of it. "
        f"{result['units']}.{chosen}"
    )


def plot_estimate(run: RunFolder) -> None:
    """`estimate.png` beside the figures: the difference on training batches over time, and the final interval."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("No plot: that needs a package, pip install 'isoconv[plots]'.", file=sys.stderr)
        return
    lines, result = run.read_metrics(), run.read_result()
    bound = result["lipschitz_bound"]
    per_epoch = CriticConfig.read(run.config).steps_per_epoch
    figure = Figure(figsize=(7, 4))
    axes = figure.add_subplot()
    axes.plot(
        [line["epoch"] * per_epoch for line in lines], [-line["loss"] / bound for line in lines], label="training"
    )
    axes.axhline(result["estimate"], color="C1", label="held-out estimate")
    axes.axhspan(*result["interval"], color="C1", alpha=0.2)
    axes.axhline(result["lower"], color="C2", linestyle="--", label="lower bound of W1")
    axes.set_xlabel("updates")
    axes.set_ylabel("mean difference / Lipschitz bound")
    axes.legend()
    figure.savefig(run.path / "estimate.png", dpi=120, bbox_inches="tight")
