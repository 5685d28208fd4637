"""Runs under pressure: killed, run twice at once, on a full disk, in a read-only folder, with a clock that jumps."""

import contextlib
import errno
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from isoconv.cli.output import interruptible
from isoconv.errors import IsoconvError
from isoconv.train.config import TrainConfig
from isoconv.train.run_folder import RunFolder, locked, open_runs
from isoconv.train.runs import open_run
from train.toys import Watcher, refused, same_run, stopped, toy_config, train_toy

RUN = """
import sys, time
from pathlib import Path
from train.toys import Watcher, toy_config, train_toy

class Slow(Watcher):
    def step(self, steps):
        super().step(steps)
        time.sleep(0.05)
        print(self.steps, flush=True)

path = Path(sys.argv[1])
train_toy(path, toy_config(epochs=8), resume=(path / "config.json").exists(), observer=Slow(), save_every=0.1)
"""


def start(path: Path) -> subprocess.Popen[str]:
    places = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(places)}
    return subprocess.Popen([sys.executable, "-c", RUN, str(path)], env=environment, stdout=subprocess.PIPE, text=True)


def steps_done(path: Path) -> int:
    return RunFolder(path).updates_done()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing happened to."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    train_toy(folder, toy_config())
    return folder


def test_killed_again_and_again_it_ends_as_if_never_killed(tmp_path):
    """SIGKILL at random moments; every time it goes on from a state in the middle of an epoch or at its end."""
    config, run, reached = toy_config(epochs=8), tmp_path / "killed", 0
    train_toy(tmp_path / "whole", config)
    for _ in range(2):
        with start(run) as process:
            assert process.stdout.readline()  # while it trains, others are refused
            refused("in use", train_toy, run, config, resume=True)
            refused("in use", RunFolder(run).start, config, overwrite=True)
            for line in process.stdout:
                if int(line) >= 4:
                    break
            time.sleep(random.Random(reached).uniform(0, 0.3))
            process.kill()
        assert process.returncode == -signal.SIGKILL and steps_done(run) > reached
        reached = steps_done(run)
    train_toy(run, config, resume=True)
    assert same_run(tmp_path / "whole", run)


class Timed(Watcher):
    """A clock on which steps take six seconds, one a day; and the seconds that a kill would have lost at worst."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path, self.now, self.lost = path, 1e6, 0.0

    def step(self, steps: int) -> None:
        super().step(steps)
        self.now += 86400.0 if self.steps == 6 else 6.0  # as if the machine had slept
        self.lost = max(self.lost, 6.0 * (self.steps - steps_done(self.path)))


def test_a_kill_loses_at_most_ten_seconds_and_a_clock_that_jumps_changes_nothing(whole, tmp_path, monkeypatch):
    """Epochs of four steps and steps of six seconds: a state is on disk before ten seconds are at stake."""
    watcher, chance = Timed(tmp_path / "run"), random.Random(0)
    monkeypatch.setattr(time, "monotonic", lambda: watcher.now)
    monkeypatch.setattr(time, "time", lambda: chance.uniform(-1e12, 1e12))
    train_toy(tmp_path / "run", toy_config(), observer=watcher)
    assert 0 < watcher.lost <= 10.0 and same_run(whole, tmp_path / "run")


def test_a_damaged_record_of_epochs_is_named_and_a_last_line_that_was_cut_off_is_not(whole, tmp_path):
    stopped(9, train_toy, tmp_path, toy_config())
    metrics = tmp_path / "metrics.jsonl"
    good = metrics.read_bytes()
    for damage in (b"[1]\n", b"{}\n", b'{"epoch": "one"}\n', b"\xff\n"):
        metrics.write_bytes(damage + good)
        refused(r"line 1 of .*metrics\.jsonl", train_toy, tmp_path, toy_config(), resume=True)
        assert metrics.read_bytes() == damage + good
    metrics.write_bytes(good + b'{"epoch": \xff')
    train_toy(tmp_path, toy_config(), resume=True)
    assert same_run(whole, tmp_path)


def test_locks_end_with_their_context_and_nest(tmp_path):
    folder, other, third = (RunFolder(tmp_path / name) for name in "aab")
    with locked([folder]):
        with locked([folder]):
            pass
        refused("in use", other.lock)
    with locked([other]):
        pass
    folder.start(toy_config(), overwrite=False)
    del folder  # an object that is gone holds nothing
    other.lock()
    third.start(toy_config(), overwrite=False)
    third.unlock()
    runs = RunFolder(third.path), RunFolder(other.path)
    # Nothing is replaced where one of several runs is in use.
    refused("in use", open_runs, runs, [toy_config(seed=1)] * 2, resume=False, overwrite=True)
    assert json.loads(third.config.read_text())["seed"] == 0
    third.lock()  # the first one is free again


def test_a_folder_that_was_removed_and_begun_anew_belongs_to_the_new_run(tmp_path):
    class Replace(Watcher):
        def step(self, steps: int) -> None:
            super().step(steps)
            if self.steps == 3:
                shutil.rmtree(tmp_path / "run")
                other.start(toy_config(seed=1), overwrite=False)

    other = RunFolder(tmp_path / "run")
    refused("replaced", train_toy, tmp_path / "run", toy_config(), observer=Replace())
    assert {file.name for file in other.path.iterdir()} == {"config.json", ".lock"}


def test_a_damaged_state_is_one_line(tmp_path):
    (tmp_path / ".state.safetensors.abc").write_bytes(b"half")  # what a kill left half-written is removed
    stopped(2, train_toy, tmp_path, toy_config())
    assert not (tmp_path / ".state.safetensors.abc").exists()
    folder, chance = RunFolder(tmp_path), random.Random(0)
    saved = folder.state.read_bytes()
    length = 8 + int.from_bytes(saved[:8], "little")
    for place in [*range(4), *chance.sample(range(4, length), 30), *chance.sample(range(length, len(saved)), 30)]:
        damaged = bytearray(saved)
        damaged[place] ^= 1 << chance.randrange(8)
        folder.state.write_bytes(damaged)
        with contextlib.suppress(IsoconvError):  # a bit of the header may mean nothing
            assert folder.updates_done() == 2 and place < length
    for content in (saved[: len(saved) // 2], b"", b"not tensors at all"):
        folder.state.write_bytes(content)
        refused(r"state\.safetensors", train_toy, tmp_path, toy_config(), resume=True)


def test_findings_are_not_kept_beside_another_network(tmp_path):
    train_toy(tmp_path, toy_config(epochs=1))
    run = open_run(tmp_path)
    run.keep("certified.json", {})
    next(run.model.parameters()).data.mul_(0.5)  # as if the folder had been trained anew since
    refused("another", run.keep, "certified.json", {})


def test_settings_that_were_edited_are_refused_and_what_is_saved_is_kept(whole, tmp_path):
    stopped(2, train_toy, tmp_path, toy_config())
    file, watcher = tmp_path / "config.json", Watcher()
    settings, saved = json.loads(file.read_text()), (tmp_path / "state.safetensors").read_bytes()
    for change in ({"lr": 0.5}, {"epochs": 9}, {"batch_size": 32}, {"seed": 1}):
        file.write_text(json.dumps(settings | change))
        refused(r"config\.json has changed", train_toy, tmp_path, TrainConfig.read(file), resume=True, observer=watcher)
    assert watcher.steps == 0 and (tmp_path / "state.safetensors").read_bytes() == saved
    file.write_text(json.dumps(dict(reversed(settings.items()))))  # the same settings in another order
    train_toy(tmp_path, toy_config(), resume=True)
    assert same_run(whole, tmp_path)


@pytest.mark.parametrize("after", [0, 1, 5, 11])
@pytest.mark.parametrize("fault", ["a full disk", "two interrupts"])
def test_a_save_that_fails_loses_nothing(fault, after, whole, tmp_path, monkeypatch):
    """After so many that did not: one after every step but the last of an epoch, then of that."""
    run, fsync, count = tmp_path / "run", os.fsync, itertools.count()
    RunFolder(run).start(toy_config(), overwrite=False)

    def fail(handle: int) -> None:
        fails = next(count) >= after
        if fails and fault == "a full disk":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(handle)
        for _ in range(2) if fails else ():  # the second one cuts the save short
            os.kill(os.getpid(), signal.SIGINT)

    error, words = (IsoconvError, "No space left") if fault == "a full disk" else (KeyboardInterrupt, None)
    with monkeypatch.context() as patch, interruptible() as should_stop:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(error, match=words):
            train_toy(run, toy_config(), resume=True, save_every=0.0, should_stop=should_stop)
    assert steps_done(run) == after
    train_toy(run, toy_config(), resume=True)
    assert same_run(whole, run) and not [file for file in run.iterdir() if file.name.startswith(".")]


def test_a_read_only_folder_is_one_line_before_any_work(tmp_path, monkeypatch):
    stopped(2, train_toy, tmp_path, toy_config())
    watcher, open_file = Watcher(), os.open

    def read_only(path: object, flags: int, *mode: int, **options: int) -> int:
        if str(path).startswith(str(tmp_path)) and flags & (os.O_WRONLY | os.O_RDWR):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return open_file(path, flags, *mode, **options)

    monkeypatch.setattr(os, "open", read_only)
    refused("Read-only", train_toy, tmp_path, toy_config(), resume=True, observer=watcher)
    assert watcher.steps == 0 and steps_done(tmp_path) == 2
