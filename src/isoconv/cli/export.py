"""isoconv export"""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from isoconv.cli.options import Json, Overwrite, Run
from isoconv.errors import require

_ENDINGS = {"onnx": ".onnx", "torch": ".safetensors"}


def export(
    run: Run,
    kind: Annotated[str, typer.Option("--format", help="onnx; or torch: weights and the code to load them")] = "onnx",
    out: Annotated[Path | None, typer.Option(help="file to write; by default named like the run")] = None,
    dtype: Annotated[str, typer.Option(help="arithmetic the network runs in: float32 or float64")] = "float32",
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Write a trained network to a file that runs without isoconv.

    The weights are the certified ones, bit for bit, and the file holds their hash. Certificates are for float64 by
    default: --dtype float64 writes a network that runs in it.

    Example: isoconv export runs/mine --format onnx --out mine.onnx
    """
    require(kind in _ENDINGS, f"--format to be one of {', '.join(_ENDINGS)}", repr(kind))
    from isoconv.export import export_onnx, export_torch
    from isoconv.export.torch_code import code_path
    from isoconv.train import open_run

    trained = open_run(run)
    path = Path(trained.folder.resolve().name + _ENDINGS[kind]) if out is None else out
    write = export_onnx if kind == "onnx" else export_torch
    config = trained.config
    written = write(trained.model, config.input_shape, path, dtype=dtype, classes=config.classes, overwrite=overwrite)
    files = [path] if kind == "onnx" else [path, code_path(path)]
    if as_json:
        result: dict[str, object] = {"format": kind, "files": [str(file) for file in files], "dtype": dtype}
        result |= {"weights_sha256": written.sha256, "input_shape": written.input_shape, "classes": written.classes}
        print(json.dumps(result))
    else:
        print(f"Written to {' and '.join(str(file) for file in files)}. {written.claim}", file=sys.stderr)
