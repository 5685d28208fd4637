"""isoconv export"""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from isoconv.cli.runs import open_runs
from isoconv.errors import IsoconvError
from isoconv.export import export_onnx, export_torch
from isoconv.export.torch_code import code_path

_ENDINGS = {"onnx": ".onnx", "torch": ".safetensors"}


def export(
    run: Annotated[Path, typer.Argument(help="the run's folder")],
    kind: Annotated[str, typer.Option("--format", help="onnx; or torch, weights with the code to load them")] = "onnx",
    out: Annotated[Path | None, typer.Option(help="the file; if nothing is said, here, named like the run")] = None,
    dtype: Annotated[str, typer.Option(help="in which the network will be run: float32 or float64")] = "float32",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="replace the file if it exists")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print what was written as JSON on stdout")] = False,
) -> None:
    """Write a trained network to a file that others can run without isoconv.

    The weights are the certified ones, bit for bit, and the file names their hash. Certificates are for float64 unless
    they say otherwise: --dtype float64 makes a file that is run in it.

    Example: isoconv export runs/mine --format onnx --out mine.onnx
    """
    if kind not in _ENDINGS:
        raise IsoconvError(f"Expected --format to be one of {', '.join(_ENDINGS)}. Got {kind!r}.")
    runs = open_runs(run)
    if len(runs) > 1:
        raise IsoconvError(f"Expected a run of one seed. Got {len(runs)}: name one, {runs[0].folder}.")
    one = runs[0]
    path = Path(one.folder.resolve().name + _ENDINGS[kind]) if out is None else out
    write = export_onnx if kind == "onnx" else export_torch
    written = write(
        one.model, one.config.input_shape, path, dtype=dtype, classes=one.config.classes, overwrite=overwrite
    )
    files = [path] if kind == "onnx" else [path, code_path(path)]
    if as_json:
        result: dict[str, object] = {"format": kind, "files": [str(file) for file in files], "dtype": dtype}
        result |= {"weights_sha256": written.sha256, "input_shape": written.input_shape, "classes": written.classes}
        print(json.dumps(result))
    else:
        print(f"Written to {' and '.join(str(file) for file in files)}. {written.claim}", file=sys.stderr)
