"""isoconv certify, attack, predict, report and export, of networks that have been trained; demo, which trains some."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from isoconv.cli import options as cli
from isoconv.cli import print_line
from isoconv.data import ProgressLine
from isoconv.errors import require

_RUN = f"folder of a run; {cli.SHIPPED}; or FILE.py:FUNCTION, which builds your own"
_DATA = (
    "with FILE.py:FUNCTION: its data, in any form that isoconv train takes; images may also be given by --data alone"
)
_ATTACKS = "pgd, fgsm (both by default), apgd, boundary, pointwise, rounding; repeatable"
_CRITERIA = "pairs; or per-class: the looser bound that treats the logits as separate networks"
_ENDINGS = {"onnx": ".onnx", "torch": ".safetensors"}
_DEMO = Path("isoconv-demo")


def certify(
    run: Annotated[Path, typer.Argument(help=_RUN)],
    data: Annotated[str | None, typer.Argument(help=_DATA)] = None,
    epsilons: cli.Epsilons = None,
    certificate: Annotated[Path | None, typer.Option(help="file to write the certificates to")] = None,
    folder: cli.Data = None,
    weights: Annotated[
        Path | None, typer.Option(help="with FILE.py:FUNCTION: .safetensors file of its weights")
    ] = None,
    size: cli.Sides = None,
    download: cli.Download = False,
    images: cli.Images = None,
    arithmetic: Annotated[
        str, typer.Option(help="arithmetic that the network runs in: float64 or float32")
    ] = "float64",
    criterion: Annotated[str, typer.Option(help=_CRITERIA)] = "pairs",
    device: cli.Device = "auto",
    as_json: cli.Json = False,
) -> None:
    """Certify a trained network: no perturbation within an image's radius changes its prediction.

    Example: isoconv certify runs/large --data DIR --epsilon 36/255 --epsilon 0.1 --certificate large.jsonl

    Your own network: isoconv certify mymodel.py:build --weights w.safetensors --data DIR runs the function build.
    """
    options = cli.given(locals(), "as_json")
    from isoconv.cli.output import print_certified, print_json
    from isoconv.train import certify_run
    from isoconv.train.distributed import Processes, choose_device

    processes = Processes.join(choose_device(device))
    if processes.first:
        options["progress"] = ProgressLine("images", 1)
    with processes.together():
        records = certify_run(**options, say=print_line, processes=processes)
    if not processes.first:
        return
    if as_json:
        print_json(records)
    else:
        how = arithmetic if criterion == "pairs" else f"{arithmetic}, {criterion}"
        print_certified(records, f"{run}: {records[0].images:,} test images, {how}")


def attack(
    run: cli.Run,
    names: Annotated[list[str] | None, typer.Option("--attack", metavar="<name>", help=_ATTACKS)] = None,
    epsilons: cli.Epsilons = None,
    folder: cli.Data = None,
    download: cli.Download = False,
    images: cli.Images = None,
    steps: Annotated[int | None, typer.Option(help="steps of PGD and APGD (default: 200)")] = None,
    step_size: Annotated[float | None, typer.Option(help="step size of PGD (default: 0.01)")] = None,
    restarts: Annotated[int | None, typer.Option(help="restarts of PGD and APGD (default: 1)")] = None,
    seed: Annotated[int | None, typer.Option(help="seed of all attacks but FGSM (default: 0)")] = None,
    device: cli.Device = "auto",
    as_json: cli.Json = False,
) -> None:
    """Attack a trained network, and check that no attack succeeds on a certified image.

    boundary and pointwise attack the first 100 test images unless --images is given. rounding searches each certified
    ball for a point at which rounding changes the prediction.

    Example: isoconv attack runs/large --data DIR --attack pgd --attack fgsm --epsilon 36/255
    """
    options = cli.given(locals(), "as_json")
    from isoconv.cli.output import print_attacks, print_json
    from isoconv.train import attack_run, refuse_violations

    records = attack_run(**options, progress=ProgressLine("images", 1))
    if as_json:
        print_json(records)
    else:
        print_attacks(records, f"{run}: accuracy")
    refuse_violations(records)


def predict(
    run: cli.Run,
    images: Annotated[list[Path], typer.Argument(help="image files (PNG, JPEG, BMP, WebP, GIF), or folders of them")],
    device: cli.Device = "auto",
    as_csv: Annotated[bool, typer.Option("--csv", help="print the results as CSV on stdout")] = False,
    as_json: cli.Json = False,
) -> None:
    """Classify images, and print the radius within which each class cannot change.

    The radius is in the L2 norm, for the image that the network sees, resized if need be. It is printed for pixels from
    0 to 1 and for pixels from 0 to 255. The runner-up is the class with the next largest logit; the margin is the
    difference of the two. Files that cannot be read are named at the end, with exit code 2.

    Example: isoconv predict runs/mine photo.png folder/
    """
    require(not (as_csv and as_json), "--csv or --json", "both")
    from isoconv.cli.output import print_csv, print_json, print_predictions
    from isoconv.data.pictures import UnreadablePictures
    from isoconv.train import open_run

    trained = open_run(run)
    predictions = trained.predict(images, device, progress=ProgressLine("images", 1), say=print_line)
    if as_json:
        print_json(predictions)
    elif as_csv:
        print_csv(predictions)
    else:
        print_predictions([x for x in predictions if not x.error], trained.config.input_shape)
    broken = [(x.image, x.error) for x in predictions if x.error]
    if broken:
        raise UnreadablePictures(*broken)


def report(
    runs: Annotated[list[Path], typer.Argument(help="folders of the runs")],
    out: Annotated[Path, typer.Option(help="file to write; an earlier report is replaced")] = Path("report.html"),
    folder: cli.Data = None,
    download: cli.Download = False,
    as_is: Annotated[bool, typer.Option("--as-is", help="compute nothing; show only what the folders hold")] = False,
    device: cli.Device = "auto",
    as_json: cli.Json = False,
) -> None:
    """Write a report of one or several runs: one HTML file that works offline.

    Certified radii, singular values, gradient norms and a gallery are computed and stored if a run lacks them and its test
    images are found. Attack curves come from isoconv attack.

    Example: isoconv report runs/large runs/small --data DIR
    """
    options = cli.given(locals(), "as_json")
    from isoconv.report import write_report

    written = write_report(**options, progress=ProgressLine("rounds", 1))
    if as_json:
        print(json.dumps(written.to_fields()))
        return
    for path, note in written.notes.items():
        print_line(f"{path}: {note}")
    print_line(f"The report is in {out}: open it in a browser.")


def demo(
    out: Annotated[Path, typer.Option(help="folder for the runs and the report; an earlier demo is replaced")] = _DEMO,
    epochs: Annotated[int, typer.Option(help="passes over the 4,000 training digits")] = 15,
    images: Annotated[int, typer.Option(help="how many of the 1,000 test digits to certify and attack")] = 1000,
    as_json: cli.Json = False,
) -> None:
    """Train two 1-Lipschitz networks and an ordinary one on digits, certify and attack them, and write an HTML report.

    It takes less than a minute on two CPU cores and needs no download. A network that comes with isoconv is shown first.

    Example: isoconv demo
    """
    from isoconv.cli.output import print_demo, print_first, print_json
    from isoconv.report import write_demo

    show_first = None if as_json else print_first
    rows = write_demo(out, epochs=epochs, images=images, say=print_line, show_first=show_first)
    if as_json:
        print_json(rows)
    else:
        print_demo(rows)
    print_line(f"The report is in {out / 'report.html'}: open it in a browser. The runs are in {out}.")


def export(
    run: cli.Run,
    kind: Annotated[str, typer.Option("--format", help="onnx; or torch: weights and the code to load them")] = "onnx",
    out: Annotated[Path | None, typer.Option(help="file to write; by default named like the run")] = None,
    dtype: Annotated[str, typer.Option(help="arithmetic that the network runs in: float32 or float64")] = "float32",
    overwrite: cli.Overwrite = False,
    as_json: cli.Json = False,
) -> None:
    """Write a trained network to a file that runs without isoconv.

    The weights are the certified ones, bit for bit, and the file holds their hash. Certificates are for float64 by
    default: --dtype float64 writes a network that runs in float64.

    Example: isoconv export runs/mine --format onnx --out mine.onnx
    """
    require(kind in _ENDINGS, f"--format to be one of {', '.join(_ENDINGS)}", repr(kind))
    from isoconv.export import export_onnx, export_torch
    from isoconv.export.torch_code import code_path
    from isoconv.train import open_run

    trained = open_run(run)
    path = Path(trained.folder.resolve().name + _ENDINGS[kind]) if out is None else out
    write, config = export_onnx if kind == "onnx" else export_torch, trained.config
    written = write(trained.model, config.input_shape, path, dtype=dtype, classes=config.classes, overwrite=overwrite)
    files = [str(path)] if kind == "onnx" else [str(path), str(code_path(path))]
    if as_json:
        result = {"format": kind, "files": files, "dtype": dtype, "weights_sha256": written.sha256}
        print(json.dumps(result | {"input_shape": written.input_shape, "classes": written.classes}))
    else:
        print(f"Written to {' and '.join(files)}. {written.claim}", file=sys.stderr)
