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
import torch

from isoconv.errors import IsoconvError
from isoconv.train.engine import Stopped
from isoconv.train.run_folder import RunFolder, load_run, locked, open_runs
from isoconv.train.runs import TrainedRun
from train.toys import Watcher, same_run, stop_after, toy_config, train_toy

TESTS = Path(__file__).parents[1]
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
train_toy(path, toy_config(epochs=int(sys.argv[2]), flip=True), resume=(path / "config.json").exists(),
          observer=Slow(), save_every=float(sys.argv[3]))
"""


def start(path: Path, epochs: int, save_every: float) -> subprocess.Popen[str]:
    places = [str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(places)}
    command = [sys.executable, "-c", RUN, str(path), str(epochs), str(save_every)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


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
    train_toy(tmp_path / "whole", toy_config(epochs=8, flip=True))
    chance, reached = random.Random(0), 0
    for _ in range(3):
        with start(tmp_path / "killed", 8, save_every=0.1) as run:
            for line in run.stdout:
                if int(line) >= 4:
                    break
            time.sleep(chance.uniform(0, 0.3))
            run.kill()
        assert run.returncode == -signal.SIGKILL
        assert steps_done(tmp_path / "killed") > reached
        reached = steps_done(tmp_path / "killed")
    train_toy(tmp_path / "killed", toy_config(epochs=8, flip=True), resume=True)
    assert same_run(tmp_path / "whole", tmp_path / "killed")


class Timed(Watcher):
    """A clock on which every step takes three seconds, and the seconds that a kill would have lost at worst."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path, self.now, self.lost = path, 1e6, 0.0

    def step(self, steps: int) -> None:
        super().step(steps)
        self.now += 3.0
        self.lost = max(self.lost, 3.0 * (self.steps - steps_done(self.path)))


def test_a_kill_loses_at_most_ten_seconds(tmp_path, monkeypatch):
    """Epochs of four steps and steps of three seconds: a state is on disk before ten seconds are at stake."""
    watcher = Timed(tmp_path / "run")
    monkeypatch.setattr(time, "monotonic", lambda: watcher.now)
    train_toy(tmp_path / "run", toy_config(epochs=6), observer=watcher)
    assert 0 < watcher.lost <= 10.0


def test_a_clock_that_jumps_changes_nothing(whole, tmp_path, monkeypatch):
    chance = random.Random(0)
    monkeypatch.setattr(time, "time", lambda: chance.uniform(-1e12, 1e12))
    train_toy(tmp_path / "jumping", toy_config(), save_every=0.0)
    assert same_run(whole, tmp_path / "jumping")


def test_a_second_process_is_refused_while_the_first_trains(tmp_path):
    with start(tmp_path / "run", 100, save_every=0.1) as run:
        assert run.stdout.readline()
        with pytest.raises(IsoconvError, match="in use"):
            train_toy(tmp_path / "run", toy_config(epochs=100, flip=True), resume=True)
        with pytest.raises(IsoconvError, match="in use"):
            RunFolder(tmp_path / "run").start(toy_config(), overwrite=True)
        run.kill()
    # The killed process has left no lock behind.
    with pytest.raises(Stopped):
        train_toy(tmp_path / "run", toy_config(epochs=100, flip=True), resume=True, should_stop=stop_after(1))


def test_the_lock_ends_with_its_context_and_nests(tmp_path):
    folder, other = RunFolder(tmp_path), RunFolder(tmp_path)
    with locked([folder]):
        with locked([folder]):
            pass
        with pytest.raises(IsoconvError, match="in use"):
            other.lock()
    with locked([other]):
        pass
    folder.start(toy_config(), overwrite=False)
    del folder  # an object that is gone holds nothing
    other.lock()


def test_nothing_is_replaced_where_one_of_several_runs_is_in_use(tmp_path):
    runs, configs = [RunFolder(tmp_path / name) for name in "ab"], [toy_config(), toy_config()]
    train_toy(tmp_path / "a", toy_config())
    runs[1].start(toy_config(), overwrite=False)
    with pytest.raises(IsoconvError, match="in use"):
        open_runs([RunFolder(run.path) for run in runs], configs, resume=False, overwrite=True)
    assert RunFolder(tmp_path / "a").finished
    runs[0].lock()  # and the first one is free again


def test_a_folder_that_was_removed_and_begun_anew_belongs_to_the_new_run(tmp_path):
    class Replace(Watcher):
        def step(self, steps: int) -> None:
            super().step(steps)
            if self.steps == 3:
                shutil.rmtree(tmp_path / "run")
                other.start(toy_config(seed=1), overwrite=False)

    other = RunFolder(tmp_path / "run")
    with pytest.raises(IsoconvError, match="replaced"):
        train_toy(tmp_path / "run", toy_config(), observer=Replace())
    assert {file.name for file in other.path.iterdir()} == {"config.json", ".lock"}


def test_what_a_kill_left_half_written_is_removed(tmp_path):
    for name in (".state.safetensors.abc", ".config.json.abc"):
        (tmp_path / name).write_bytes(b"half")
    RunFolder(tmp_path).start(toy_config(), overwrite=False)
    assert not (tmp_path / ".state.safetensors.abc").exists()


def test_a_damaged_state_is_one_line(tmp_path):
    with pytest.raises(Stopped):
        train_toy(tmp_path, toy_config(), should_stop=stop_after(2))
    folder, chance = RunFolder(tmp_path), random.Random(0)
    saved = folder.state.read_bytes()
    length = 8 + int.from_bytes(saved[:8], "little")
    for place in [*range(4), *chance.sample(range(4, length), 40), *chance.sample(range(length, len(saved)), 40)]:
        damaged = bytearray(saved)
        damaged[place] ^= 1 << chance.randrange(8)
        folder.state.write_bytes(damaged)
        with contextlib.suppress(IsoconvError):  # a bit of the header may mean nothing
            done = folder.updates_done()
            assert place < length and done == 2
    folder.state.write_bytes(saved[: len(saved) // 2])
    with pytest.raises(IsoconvError, match="cannot be read"):
        folder.updates_done()


def test_findings_are_not_kept_beside_another_network(tmp_path):
    train_toy(tmp_path, toy_config())
    run = TrainedRun(tmp_path, *load_run(tmp_path))
    run.keep("certified.json", {})
    with torch.no_grad():
        next(run.model.parameters()).mul_(0.5)  # as if the folder had been trained anew since
    with pytest.raises(IsoconvError, match="another"):
        run.keep("certified.json", {})


def raise_full(*arguments: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("after", [0, 1, 5, 11])
def test_a_disk_that_fills_while_saving_loses_nothing(after, whole, tmp_path, monkeypatch):
    """It is full after so many files."""
    RunFolder(tmp_path / "full").start(toy_config(), overwrite=False)
    fsync, count = os.fsync, itertools.count()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: (fsync if next(count) < after else raise_full)(handle))
        with pytest.raises(IsoconvError, match="No space left"):
            train_toy(tmp_path / "full", toy_config(), resume=True, save_every=0.0)
    assert steps_done(tmp_path / "full") == after  # a save after every step but the last of an epoch, then of that
    train_toy(tmp_path / "full", toy_config(), resume=True)
    assert same_run(whole, tmp_path / "full")
    assert not [file.name for file in (tmp_path / "full").iterdir() if file.name.startswith(".state")]


def test_a_disk_that_fills_in_the_middle_of_a_line_of_metrics(whole, tmp_path, monkeypatch):
    def cut_off(self: RunFolder, line: object) -> None:
        with self.metrics.open("a") as file:
            file.write(json.dumps(line)[:20])
        raise_full()

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "append_metrics", cut_off)
        with pytest.raises(OSError, match="No space left"):
            train_toy(tmp_path / "full", toy_config(), save_every=0.0)
    train_toy(tmp_path / "full", toy_config(), resume=True)
    assert same_run(whole, tmp_path / "full")


def test_a_read_only_folder_is_one_line_before_any_work(tmp_path, monkeypatch):
    with pytest.raises(Stopped):
        train_toy(tmp_path / "run", toy_config(), should_stop=stop_after(2))
    watcher, open_file = Watcher(), os.open

    def read_only(path: object, flags: int, *mode: int, **options: int) -> int:
        if str(path).startswith(str(tmp_path)) and flags & (os.O_WRONLY | os.O_RDWR):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return open_file(path, flags, *mode, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", read_only)
        with pytest.raises(IsoconvError, match="Read-only"):
            train_toy(tmp_path / "run", toy_config(), resume=True, observer=watcher)
    assert watcher.steps == 0 and steps_done(tmp_path / "run") == 2
    train_toy(tmp_path / "run", toy_config(), resume=True)
