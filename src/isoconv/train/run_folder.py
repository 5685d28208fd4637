"""A run is a folder: its configuration, its metrics, its network, and the state to resume from."""

import hashlib
import json
import os
import shlex
import time
import weakref
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from isoconv.errors import IsoconvError, require
from isoconv.files import read_bytes, read_json, read_tensors, write_json, write_tensors, write_text
from isoconv.nn import plain
from isoconv.nn.graph import GraphRecord
from isoconv.pretrained import pretrained_names
from isoconv.records import Record
from isoconv.train.config import Settings, TrainConfig, is_own, make_model
from isoconv.train.own_model import from_graph, load_weights, to_graph

if TYPE_CHECKING:
    from isoconv.train.engine import Learner

try:
    import fcntl
except ImportError:  # on Windows; there runs are not locked
    fcntl = None  # type: ignore[assignment]

#: What other commands find out about a run's network and keep in its folder.
FINDINGS = ("certified.json", "attacks.json", "diagnostics.json", "gallery.json")
_PICTURES = ("estimate.png", "samples.png")  # of critics and of generators
_LOCK = ".lock"
_CHECKSUM, _SETTINGS = "progress/checksum", "progress/settings"
_RENAMED = {"progress/loss_sum": "progress/sums/loss", "progress/right": "progress/sums/accuracy"}  # in older states


class Finding(Record):
    """What a file of a run's folder holds. One that another version has written may hold more."""

    ignores_unknown: ClassVar[bool] = True


@dataclass(frozen=True)
class BestEpoch:
    """The last epoch after which a network scored highest in validation, counted from 1, and the network's state then.

    gained : the first epoch with that score
    """

    epoch: int
    score: float
    state: dict[str, Tensor]
    gained: int


class RunFolder:
    """One seed's folder.

        config.json        all that is needed to repeat the run
        metrics.jsonl      one line per epoch
        model.safetensors  the plain kernels: what is deployed and certified
        graph.json         of a network that is the user's own: what it computes with them, as data
        state.safetensors  raw parameters, the optimiser's state and the position in the epoch, to resume from
        best.safetensors   with validation, raw parameters after the best epoch so far
        result.json        the final figures

    A run of several seeds has a folder for each.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config, self.metrics = path / "config.json", path / "metrics.jsonl"
        self.model, self.state = path / "model.safetensors", path / "state.safetensors"
        self.graph, self.result, self.best = path / "graph.json", path / "result.json", path / "best.safetensors"
        self._release: weakref.finalize[[Path, int], RunFolder] | None = None
        self._handle, self._users = -1, 0  # of the lock's file; contexts that hold the lock
        self._settings: Tensor | None = None  # a hash of config.json, as it was when the run went on
        self._is_unchanged = False  # whether config.json is known to be what it was when the state was saved

    @property
    def exists(self) -> bool:
        return self.config.exists()

    @property
    def finished(self) -> bool:
        return self.model.exists() and self.result.exists()

    # Beginning ----------------------------------------------------------------------------------------------------

    def check_free(self, overwrite: bool) -> None:
        """Raise unless a run may begin here. An existing run is neither replaced nor deleted unless `overwrite`."""
        if self.path.exists() and not self.path.is_dir():
            raise IsoconvError(f"Expected a folder for the run. {self.path} is a file.")
        if self.exists and not overwrite:
            advice = "resume it (--resume), replace it (--overwrite), or name another folder (--out)"
            raise IsoconvError(f"{self.path} already holds a run: {advice}.")
        if self.path.exists() and not self.exists and any(not f.name.startswith(".") for f in self.path.iterdir()):
            raise IsoconvError(f"Expected a new or empty folder for the run. {self.path} holds other files.")

    def start(self, config: Settings, overwrite: bool) -> None:
        """Begin a new run here, where `check_free` allows it, and hold its lock."""
        self.check_free(overwrite)
        self.lock()
        files = self.metrics, self.model, self.graph, self.state, self.result, self.best
        with self._writing():
            for old in (*files, *(self.path / name for name in (*FINDINGS, *_PICTURES))):
                old.unlink(missing_ok=True)
        config.write(self.config)
        self._settings = None

    def lock(self) -> None:
        """Claim the folder, or raise if another process trains in it.

        The lock is the kernel's: it ends with the process, however that ends, or with this object.
        """
        if self._release is not None or fcntl is None:
            return
        with self._writing():
            self.path.mkdir(parents=True, exist_ok=True)
            handle = _take_lock(self.path / _LOCK)
        if handle is None:
            raise IsoconvError(f"{self.path} is in use: another process trains in it. Wait for it, or stop it first.")
        self._handle, self._release = handle, weakref.finalize(self, _release_lock, self.path / _LOCK, handle)
        for part in self.path.glob(".*.safetensors.*"):  # a process was killed as it wrote them
            part.unlink(missing_ok=True)

    def _check_lock(self) -> None:
        """Raise if the folder was removed since it was locked, and perhaps made anew by another run."""
        if self._release is not None and not _is_file(self._handle, self.path / _LOCK):
            raise IsoconvError(f"{self.path} was removed or replaced while the run was training. It is not written to.")

    def unlock(self) -> None:
        """Let others train here."""
        if self._release is not None:
            self._release()
            self._release = None

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Turn what a file system has to say into one line."""
        try:
            yield
        except OSError as error:
            raise IsoconvError(f"Cannot write the run to {self.path}: {error.strerror}.") from None

    # Going on -----------------------------------------------------------------------------------------------------

    def save(self, learner: "Learner", sums: Mapping[str, Tensor] | None = None) -> None:
        """Write the state after the updates so far; the sums of a part of an epoch go with it, or others in their place."""
        self._check_lock()
        optimiser = learner.optimiser.state_dict()["state"]
        tensors = {
            "progress/done": torch.tensor(learner.done),
            "progress/seconds": torch.tensor(learner.seconds, dtype=torch.float64),
            "progress/random/cpu": torch.get_rng_state(),
            **{f"progress/sums/{name}": value for name, value in (sums or learner.sums).items()},
            **{f"model/{name}": value for name, value in learner.model.state_dict().items()},
        }
        for index, state in optimiser.items():
            named = {f"optimiser/{index}/{key}": value for key, value in state.items()}
            tensors |= {name: torch.as_tensor(value) for name, value in named.items() if value is not None}
        if learner.device.type == "cuda":
            tensors["progress/random/cuda"] = torch.cuda.get_rng_state(learner.device)
        _write_state(self.state, tensors | {_SETTINGS: self._hash_settings()})

    def save_best(self, best: BestEpoch) -> None:
        """Write the network of the best epoch so far."""
        self._check_lock()
        figures = {"best/epoch": torch.tensor(best.epoch), "best/score": torch.tensor(best.score, dtype=torch.float64)}
        figures["best/gained"] = torch.tensor(best.gained)
        _write_state(self.best, figures | {f"model/{name}": value for name, value in best.state.items()})

    def read_best(self) -> BestEpoch | None:
        """Return the network of the best epoch so far.

        It may be of an epoch that was done, but not saved, before the run was killed: that one is done again.
        """
        if not self.best.exists():
            return None
        tensors = _read_state(self.best)
        try:
            epoch, gained = (int(tensors.get(name, tensors["best/epoch"])) for name in ("best/epoch", "best/gained"))
            return BestEpoch(epoch, float(tensors["best/score"]), _under("model/", tensors), gained)
        except (KeyError, ValueError, RuntimeError) as error:
            problem = f"no {error}" if isinstance(error, KeyError) else "something else"
            raise IsoconvError(f"Expected the network of the best epoch in {self.best}. Got {problem}.") from None

    def load(self, learner: "Learner", writes: bool = True) -> None:
        """Go on where `save` left off; a run killed before its first save begins anew.

        writes : whether to take the lines of epochs that are done again out of the metrics
        """
        if tensors := self._read_saved():
            try:
                learner.model.load_state_dict(_under("model/", tensors))
                learner.done, learner.seconds = int(tensors["progress/done"]), float(tensors["progress/seconds"])
            except (KeyError, RuntimeError) as error:
                reason = str(error).splitlines()[-1]
                raise IsoconvError(f"Expected a saved state of this network in {self.state}. Got: {reason}") from None
            _load_optimiser(learner.optimiser, _under("optimiser/", tensors))
            sums = sorted(_under("progress/sums/", tensors).items(), key=lambda item: item[0] != "loss")
            learner.sums |= {name: value.to(learner.device) for name, value in sums}
            learner.random_state = _under("progress/random/", tensors)
        epochs = learner.done // learner.steps_per_epoch
        kept = "".join(json.dumps(line) + "\n" for line in self.read_metrics() if line["epoch"] <= epochs)
        # Other lines are cut off, or of epochs that are done again.
        if writes and self.metrics.exists() and self.metrics.read_bytes() != kept.encode():
            write_text(self.metrics, kept)

    def _read_saved(self) -> dict[str, Tensor]:
        """Return the saved state, or nothing. Raise if config.json was changed since, and not by `revise`."""
        if not self.state.exists():
            return {}
        tensors = {_RENAMED.get(name, name): value for name, value in _read_state(self.state).items()}
        started_with = tensors.get(_SETTINGS)  # older states do not say, or of all that config.json says
        known = [*self._read_settings(), read_json(self.config) if self.exists else {}]
        self._is_unchanged |= started_with is None or any(torch.equal(started_with, _hash(one)) for one in known)
        if not self._is_unchanged:
            advice = "bring it back, or begin a new run with other settings (--out)"
            raise IsoconvError(f"{self.config} has changed since the run was saved: {advice}.")
        return tensors

    def _hash_settings(self) -> Tensor:
        """Return a hash of what config.json says, however it is written; of nothing where there is none."""
        if self._settings is None:
            self._settings = _hash(self._read_settings()[0])
        return self._settings

    def _read_settings(self) -> list[dict[str, Any]]:
        """Return what config.json says and no resumed run may change, with the epochs that it has and those that it had."""
        settings = read_json(self.config) if self.exists else {}
        fixed = {name: value for name, value in settings.items() if name not in TrainConfig.not_compared}
        return [fixed, *(fixed | {"epochs": epochs} for epochs, _ in reversed(settings.get("prolonged", [])))]

    def revise(self, config: TrainConfig) -> None:
        """Give a run that is resumed its new configuration. The network that it may have stays until there is another."""
        self.lock()
        config.write(self.config)
        self._settings = None

    def updates_done(self) -> int:
        """Return how many updates the saved state has behind it."""
        return int(self._read_saved().get("progress/done", 0))

    def append_metrics(self, line: Mapping[str, float]) -> None:
        """Add the line of an epoch."""
        self._check_lock()
        with self._writing(), self.metrics.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def read_metrics(self) -> list[dict[str, Any]]:
        """Return the lines of the epochs, without one at the end that a killed run may have left incomplete."""
        rows = read_bytes(self.metrics).splitlines() if self.metrics.exists() else []
        lines: list[dict[str, Any]] = []
        for number, row in enumerate(rows, start=1):
            line: Any = None
            with suppress(ValueError, RecursionError):
                line = json.loads(row)
            is_whole = isinstance(line, dict) and type(line.get("epoch")) in (int, float)
            if not is_whole and number == len(rows):
                break  # its epoch is done again
            require(is_whole, f"an epoch in line {number} of {self.metrics}", f"{row[:60]!r}")
            lines.append(line)
        return lines

    # Ending -------------------------------------------------------------------------------------------------------

    def finish(self, model: nn.Module, result: Mapping[str, Any], config: TrainConfig | None = None) -> None:
        """Write the plain model, its graph if the configuration says that it is the user's own, and the final figures.

        What was found out about another network, that of a shorter run, is deleted.
        """
        self._check_lock()
        network, graph = (plain(model), None) if config is None or not is_own(config.model) else to_graph(model, config)
        with self._writing():
            for old in FINDINGS:
                (self.path / old).unlink(missing_ok=True)
        if graph is not None:
            graph.write(self.graph)
        write_tensors(self.model, network.state_dict(), {"format": "pt"})
        write_json(self.result, {**result, "finished": time.strftime("%Y-%m-%dT%H:%M:%S")})


def _hash(settings: Mapping[str, Any]) -> Tensor:
    content = json.dumps(settings, sort_keys=True) if settings else ""
    return torch.tensor(list(hashlib.sha256(content.encode()).digest()), dtype=torch.uint8)


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _write_state(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors with their checksum."""
    tensors = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    write_tensors(path, tensors | {_CHECKSUM: _checksum(tensors)})


def _read_state(path: Path) -> dict[str, Tensor]:
    """Return saved tensors; raise unless they are as they were saved. Older states have no checksum."""
    tensors = read_tensors(path)
    checksum = tensors.pop(_CHECKSUM, None)
    if checksum is not None and not torch.equal(checksum, _checksum(tensors)):
        raise IsoconvError(f"{path} is damaged: bring it back, or remove it to begin again.")
    return tensors


def _checksum(tensors: Mapping[str, Tensor]) -> Tensor:
    total = 0
    for name, value in sorted(tensors.items()):
        total = zlib.crc32(f"{name} {value.dtype} {tuple(value.shape)}".encode(), total)
        total = zlib.crc32(value.flatten().view(torch.uint8).numpy().data, total)
    return torch.tensor(total)


def _load_optimiser(optimiser: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        index, key = name.split("/", 1)
        state.setdefault(int(index), {})[key] = value
    rates = [group["lr"] for group in optimiser.param_groups]
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})
    for group, rate in zip(optimiser.param_groups, rates, strict=True):
        group["lr"] = rate  # the very tensor that the schedule writes to: loading has put a copy in its place


def _take_lock(file: Path) -> int | None:
    """Return the handle of a file that is locked now, or None if another process has locked it."""
    while True:
        handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return None
        except OSError:  # a file system without locks
            return handle
        if _is_file(handle, file):
            return handle
        os.close(handle)  # another process has removed it as it was opened


def _is_file(handle: int, file: Path) -> bool:
    with suppress(OSError):
        return os.path.samestat(os.fstat(handle), file.stat())
    return False


def _release_lock(file: Path, handle: int) -> None:
    with suppress(OSError):
        if _is_file(handle, file):
            file.unlink()
    os.close(handle)


@contextmanager
def locked(folders: Sequence[RunFolder]) -> Iterator[None]:
    """Hold the locks of all folders within this context, and the contexts around it, or raise if one is in use."""
    held: list[RunFolder] = []
    try:
        for folder in folders:
            folder.lock()
            folder._users += 1
            held.append(folder)
        yield
    finally:
        for folder in held:
            folder._users -= 1
            if folder._users == 0:
                folder.unlock()


def open_runs(runs: Sequence[RunFolder], configs: Sequence[Settings], resume: bool, overwrite: bool) -> None:
    """Start a run per configuration; or resume those that are there, if they have the same one. All of them or none."""
    if resume and not any(run.exists for run in runs):
        raise IsoconvError(f"Expected a run to resume in {runs[0].path}. There is none.")
    new = {run: config for run, config in zip(runs, configs, strict=True) if not (resume and run.exists)}
    for run, config in zip(runs, configs, strict=True):
        if run in new:
            run.check_free(overwrite)
        else:
            config.require_same(run)
    with ExitStack() as failing:
        for run in runs:  # nothing is deleted before all of them are known to be free
            failing.callback(run.unlock)
            run.lock()
        for run, config in new.items():
            run.start(config, overwrite)
        failing.pop_all()


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
        if folder.path.is_dir():
            inside = ", ".join(sorted(config.parent.name for config in folder.path.glob(f"*/{folder.config.name}")))
            missing = f"There is no {folder.config.name} in it" + (
                f", but there are runs: {inside}." if inside else "."
            )
        else:
            missing = f"It {'is a file' if folder.path.exists() else 'does not exist'}."
            missing += f" Networks that come with isoconv: {', '.join(pretrained_names())}."
        raise IsoconvError(f"Expected a run in {path}. {missing}")
    config = TrainConfig.read(folder.config)
    if not folder.model.exists():
        advice = f"Finish it: isoconv train --resume --out {shlex.quote(str(path))}"
        raise IsoconvError(f"The run in {path} is not finished: it has no {folder.model.name}. {advice}")
    if is_own(config.model):
        weights = read_tensors(folder.model)
        try:
            return from_graph(GraphRecord.read(folder.graph), weights, config), config
        except Exception as error:  # whatever torch may have to say of modules and weights that do not fit
            problem = (str(error).splitlines() or [""])[-1].strip()
            raise IsoconvError(f"Expected a network in {folder.graph}, and its weights. {problem}") from None
    model = plain(make_model(config)).eval()
    load_weights(model, folder.model, f"a {config.model} network")
    return model, config
