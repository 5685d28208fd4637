"""A run is a folder: what was asked for, what happened, what came out, and what it takes to go on."""

import json
import os
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from isoconv.errors import IsoconvError
from isoconv.files import read_tensors, write_json, write_tensors, write_text
from isoconv.nn import plain
from isoconv.records import Record
from isoconv.train.config import TrainConfig, make_model

if TYPE_CHECKING:
    from isoconv.train.engine import Learner

try:
    import fcntl
except ImportError:  # on Windows; there runs are not locked
    fcntl = None  # type: ignore[assignment]

#: What other commands find out about a run and keep in its folder.
FINDINGS = ("certified.json", "attacks.json", "diagnostics.json", "gallery.json", "estimate.png", "samples.png")
_LOCK = ".lock"
_RENAMED = {"loss_sum": "sums/loss", "right": "sums/accuracy"}  # in states that older versions have written


class RunFolder:
    """One seed's folder.

    config.json        all that is needed to repeat the run
    metrics.jsonl      one line per epoch
    model.safetensors  the plain kernels: what is deployed and certified
    state.safetensors  raw parameters, the optimiser's state and the position in the epoch, to go on from
    result.json        the final figures
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config, self.metrics = path / "config.json", path / "metrics.jsonl"
        self.model, self.state = path / "model.safetensors", path / "state.safetensors"
        self.result = path / "result.json"
        self._held: weakref.finalize[[Path, int], RunFolder] | None = None
        self.users = 0  # contexts that hold the lock

    @property
    def exists(self) -> bool:
        return self.config.exists()

    # Beginning ----------------------------------------------------------------------------------------------------

    def check_free(self, overwrite: bool) -> None:
        """Raise unless a run may begin here. An existing run is neither replaced nor deleted unless `overwrite`."""
        if self.path.exists() and not self.path.is_dir():
            raise IsoconvError(f"Expected a folder for the run. {self.path} is a file.")
        if self.exists and not overwrite:
            raise IsoconvError(
                f"{self.path} already holds a run: go on with it (--resume), replace it (--overwrite), "
                f"or name another folder (--out)."
            )
        if self.path.exists() and not self.exists and any(file.name != _LOCK for file in self.path.iterdir()):
            raise IsoconvError(f"Expected a new or empty folder for the run. {self.path} holds other files.")

    def start(self, config: Record, overwrite: bool) -> None:
        """Begin a new run here, where `check_free` allows it, and hold its lock."""
        self.check_free(overwrite)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.lock()
            for old in (self.metrics, self.model, self.state, self.result, *(self.path / name for name in FINDINGS)):
                old.unlink(missing_ok=True)
            config.write(self.config)
        except BaseException as error:
            self.unlock()
            if isinstance(error, OSError):
                raise IsoconvError(f"Cannot write the run to {self.path}: {error.strerror}.") from None
            raise

    def lock(self) -> None:
        """Claim the folder, or raise if another process trains in it.

        The lock is the kernel's: it ends with the process, however that ends, or with this object.
        """
        if self._held is not None or fcntl is None:
            return
        try:
            handle = _take_lock(self.path / _LOCK)
        except BlockingIOError:
            raise IsoconvError(
                f"{self.path} is in use: another process trains in it. Wait for it, or stop it first."
            ) from None
        except OSError as error:
            raise IsoconvError(f"Cannot write the run to {self.path}: {error.strerror}.") from None
        self._held = weakref.finalize(self, _release_lock, self.path / _LOCK, handle)

    def unlock(self) -> None:
        """Let others train here."""
        if self._held is not None:
            self._held()
            self._held = None

    # Going on -----------------------------------------------------------------------------------------------------

    def save(self, learner: "Learner") -> None:
        """Write the state after the updates so far; the sums of a part of an epoch go with it."""
        progress = {
            "done": torch.tensor(learner.done),
            "seconds": torch.tensor(learner.seconds, dtype=torch.float64),
            **{f"sums/{name}": value for name, value in learner.sums.items()},
            "random/cpu": torch.get_rng_state(),
        }
        if learner.device.type == "cuda":
            progress["random/cuda"] = torch.cuda.get_rng_state(learner.device)
        tensors = {f"progress/{name}": value for name, value in progress.items()}
        tensors |= {f"model/{name}": value for name, value in learner.model.state_dict().items()}
        for index, state in learner.optimiser.state_dict()["state"].items():
            for key, value in state.items():
                if value is not None:
                    tensors[f"optimiser/{index}/{key}"] = value if isinstance(value, Tensor) else torch.tensor(value)
        write_tensors(self.state, tensors)

    def load(self, learner: "Learner") -> None:
        """Go on where `save` left off; a run killed before its first save begins anew."""
        if self.state.exists():
            tensors = read_tensors(self.state)
            _load_state(tensors, learner.model, learner.optimiser)
            progress = {_RENAMED.get(name, name): value for name, value in _under("progress/", tensors).items()}
            try:
                learner.done, learner.seconds = int(progress["done"]), float(progress["seconds"])
            except (KeyError, RuntimeError) as error:
                raise IsoconvError(f"Expected the state of a run in {self.state}. Got another file: {error}.") from None
            sums = sorted(_under("sums/", progress).items(), key=lambda item: item[0] != "loss")
            learner.sums |= {name: value.to(learner.device) for name, value in sums}
            learner.random_state = _under("random/", progress)
        epochs = learner.done // learner.steps_per_epoch
        lines = self.read_metrics()
        kept = "".join(json.dumps(line) + "\n" for line in lines if line["epoch"] <= epochs)
        if self.metrics.exists() and self.metrics.read_text() != kept:  # cut off, or of epochs that are done again
            write_text(self.metrics, kept)

    def updates_done(self) -> int:
        """Return how many updates the saved state has behind it."""
        return int(read_tensors(self.state).get("progress/done", 0)) if self.state.exists() else 0

    def append_metrics(self, line: Mapping[str, float]) -> None:
        """Add the line of an epoch."""
        try:
            with self.metrics.open("a") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise IsoconvError(f"Cannot write {self.metrics}: {error.strerror}.") from None

    def read_metrics(self) -> list[dict[str, Any]]:
        """Return the lines of the epochs, up to one that a killed run may have left incomplete."""
        lines: list[dict[str, Any]] = []
        for line in self.metrics.read_text().splitlines() if self.metrics.exists() else ():
            try:
                lines.append(json.loads(line))
            except ValueError:  # its epoch is done again
                break
        return lines

    # Ending -------------------------------------------------------------------------------------------------------

    def finish(self, model: nn.Module, result: Mapping[str, Any]) -> None:
        """Write the plain model and the final figures."""
        write_tensors(self.model, plain(model).state_dict(), {"format": "pt"})
        write_json(self.result, {**result, "finished": time.strftime("%Y-%m-%dT%H:%M:%S")})


def _take_lock(file: Path) -> int:
    """Return the handle of a file that is locked, or raise `BlockingIOError` if another process has locked it."""
    while True:
        handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            raise
        except OSError:  # a file system without locks
            return handle
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), file.stat()):
                return handle
        os.close(handle)  # another process has removed it as it was opened


def _release_lock(file: Path, handle: int) -> None:
    with suppress(OSError):
        file.unlink()
    os.close(handle)


@contextmanager
def locked(folders: Sequence[RunFolder]) -> Iterator[None]:
    """Hold the locks of all folders within this context, and the contexts around it, or raise if one is in use."""
    held = []
    try:
        for folder in folders:
            folder.lock()
            folder.users += 1
            held.append(folder)
        yield
    finally:
        for folder in held:
            folder.users -= 1
            if folder.users == 0:
                folder.unlock()


def seeds_in(out: Path) -> list[int]:
    """Return the seeds whose folders, seed-0, seed-1, …, are in a folder, in rising order."""
    names = (path.name.removeprefix("seed-") for path in out.glob("seed-*"))
    return sorted(int(name) for name in names if name.isdecimal())


def seed_folders(out: Path, seeds: Sequence[int]) -> list[RunFolder]:
    """Return the folders of seeds: one seed lives in the run's folder itself, several in seed-0, seed-1, … inside it."""
    return [RunFolder(out if len(seeds) == 1 else out / f"seed-{seed}") for seed in seeds]


def load_run(path: Path | str) -> tuple[nn.Module, TrainConfig]:
    """Return the plain model of a finished run, in evaluation mode, and its configuration."""
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


def _load_state(tensors: Mapping[str, Tensor], model: nn.Module, optimiser: torch.optim.Optimizer) -> None:
    """Put saved tensors into a model and an optimiser of the same kind."""
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in _under("optimiser/", tensors).items():
        index, key = name.split("/", 1)
        state.setdefault(int(index), {})[key] = value
    try:
        model.load_state_dict(_under("model/", tensors))
    except RuntimeError as error:
        raise IsoconvError(
            f"Expected a saved state of this network. Got another: {str(error).splitlines()[-1]}"
        ) from None
    groups = optimiser.state_dict()["param_groups"]
    rates = [group["lr"] for group in optimiser.param_groups]
    optimiser.load_state_dict({"state": state, "param_groups": groups})
    for group, rate in zip(optimiser.param_groups, rates, strict=True):
        group["lr"] = rate  # the very tensor that the schedule writes to: loading has put a copy in its place


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
