"""A run is a folder: what was asked for, what happened, what came out, and what it takes to go on."""

import json
import time
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from isoconv.errors import IsoconvError
from isoconv.files import read_json, read_tensors, write_tensors, write_text
from isoconv.nn import plain
from isoconv.train.checkpoint import pack_state, unpack_state
from isoconv.train.config import TrainConfig
from isoconv.train.replica import Replica
from isoconv.train.task import make_model

#: What other commands find out about a run and keep in its folder.
FINDINGS = ("certified.json", "attacks.json", "diagnostics.json", "gallery.json")


class Configuration(Protocol):
    """All that is needed to repeat a run of some kind."""

    def to_json(self) -> str: ...


class RunFolder:
    """One seed's folder.

    config.json        all that is needed to repeat the run
    metrics.jsonl      one line per epoch
    model.safetensors  the plain kernels: what is deployed and certified
    state.safetensors  raw parameters and the optimiser's state, to go on from
    result.json        the final figures
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config, self.metrics = path / "config.json", path / "metrics.jsonl"
        self.model, self.state, self.result = (
            path / "model.safetensors",
            path / "state.safetensors",
            path / "result.json",
        )

    @property
    def exists(self) -> bool:
        return self.config.exists()

    def check_free(self, overwrite: bool) -> None:
        """Whether a run may begin here. An existing one is neither overwritten nor deleted unless `overwrite` says so."""
        if self.path.exists() and not self.path.is_dir():
            raise IsoconvError(f"Expected a folder for the run. {self.path} is a file.")
        if self.exists and not overwrite:
            raise IsoconvError(
                f"{self.path} already holds a run: go on with it (--resume), replace it (--overwrite), "
                f"or name another folder (--out)."
            )
        if self.path.exists() and not self.exists and any(self.path.iterdir()):
            raise IsoconvError(f"Expected a new or empty folder for the run. {self.path} holds other files.")

    def start(self, config: Configuration, overwrite: bool) -> None:
        """Begin a new run here, where `check_free` allows it."""
        self.check_free(overwrite)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            for old in (self.metrics, self.model, self.state, self.result, *(self.path / name for name in FINDINGS)):
                old.unlink(missing_ok=True)
            write_text(self.config, config.to_json())
        except OSError as error:
            raise IsoconvError(f"Cannot write the run to {self.path}: {error.strerror}.") from None

    def save(self, replica: Replica) -> None:
        """The state after the updates done so far; the sums of a part of an epoch go with it."""
        replica.wait()
        progress = {
            "done": torch.tensor(replica.done),
            "seconds": torch.tensor(replica.seconds, dtype=torch.float64),
            "loss_sum": replica.loss_sum,
            "right": replica.right,
        }
        tensors = pack_state(replica.model, replica.optimiser)
        write_tensors(self.state, tensors | {f"progress/{name}": value for name, value in progress.items()})

    def load(self, replica: Replica) -> None:
        """Go on where `save` left off; a run killed before its first save begins anew."""
        if self.state.exists():
            tensors = read_tensors(self.state)
            unpack_state(tensors, replica.model, replica.optimiser)
            try:
                replica.done, replica.seconds = int(tensors["progress/done"]), float(tensors["progress/seconds"])
                replica.loss_sum.copy_(tensors["progress/loss_sum"])
                replica.right.copy_(tensors["progress/right"])
            except (KeyError, RuntimeError) as error:
                raise IsoconvError(f"Expected the state of a run in {self.state}. Got another file: {error}.") from None
        epochs = replica.done // replica.steps_per_epoch
        kept = [line for line in self.read_metrics() if line["epoch"] <= epochs]
        write_text(self.metrics, "".join(json.dumps(line) + "\n" for line in kept))

    def updates_done(self) -> int:
        """How many updates the saved state has behind it."""
        return int(read_tensors(self.state).get("progress/done", 0)) if self.state.exists() else 0

    def append_metrics(self, line: dict[str, Any]) -> None:
        with self.metrics.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def read_metrics(self) -> list[dict[str, Any]]:
        if not self.metrics.exists():
            return []
        lines = self.metrics.read_text().splitlines()
        parsed = []
        for line in lines:
            try:
                parsed.append(json.loads(line))
            except ValueError:  # the last line of a killed run may be cut off; its epoch is done again
                break
        return parsed

    def finish(self, model: nn.Module, result: dict[str, Any]) -> None:
        """Write the plain model and the final figures."""
        write_tensors(self.model, plain(model).state_dict(), {"format": "pt"})
        write_text(self.result, json.dumps(result | {"finished": time.strftime("%Y-%m-%dT%H:%M:%S")}, indent=2) + "\n")

    def read_result(self) -> dict[str, Any]:
        return read_json(self.result)


def load_run(path: Path | str) -> tuple[nn.Module, TrainConfig]:
    """The plain model of a finished run, in evaluation mode, and its configuration."""
    folder = RunFolder(Path(path))
    if not folder.exists:
        missing = f"There is no {folder.config.name} in it." if folder.path.exists() else "It does not exist."
        raise IsoconvError(f"Expected a run in {path}. {missing}")
    if not folder.model.exists():
        raise IsoconvError(
            f"The run in {path} is not finished: it has no {folder.model.name}. Go on with it: --resume."
        )
    config = TrainConfig.read(folder.config)
    model = plain(make_model(config)).eval()
    weights = read_tensors(folder.model)
    try:
        if any(tensor.dtype not in (torch.float32, torch.float64) for tensor in weights.values()):
            raise RuntimeError
        model.load_state_dict(weights)
    except RuntimeError:
        raise IsoconvError(f"Expected the weights of a {config.model} network in {folder.model}. Got others.") from None
    return model, config
