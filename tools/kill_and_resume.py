"""Kills a training run (SIGKILL) at random moments, resumes it each time, and compares it with one that was never killed.

Both end with the same weights and the same metrics, bit for bit. Also says what each kill lost: the time from the state
that was saved last to the kill.

    python tools/kill_and_resume.py [--kills 20] [--epochs 30] [--seed 0] [--json FILE]
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from isoconv.files import read_tensors
from isoconv.train.run_folder import RunFolder

SETTINGS = ["digits", "--model", "small", "--device", "cpu"]


def start(folder: Path, epochs: int, resume: bool) -> subprocess.Popen[str]:
    options = ["--resume"] if resume else [*SETTINGS, "--epochs", str(epochs)]
    command = [sys.executable, "-m", "isoconv", "train", "--out", str(folder), *options]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def finish(run: subprocess.Popen[str]) -> None:
    _, text = run.communicate()
    if run.returncode:
        raise SystemExit(text)


def kill_once(folder: Path, epochs: int, seconds: float) -> dict[str, float]:
    """Let a session train for so many seconds, kill it, and say how far the run has come."""
    before = RunFolder(folder).updates_done()
    with start(folder, epochs, resume=folder.exists()) as run:
        state = RunFolder(folder).state
        first = state.stat().st_mtime_ns if state.exists() else 0
        while run.poll() is None and not (state.exists() and state.stat().st_mtime_ns > first):
            time.sleep(0.05)  # until the session has saved something
        time.sleep(seconds)
        run.kill()
    lost = time.time() - state.stat().st_mtime
    return {"updates_before": before, "updates_after": RunFolder(folder).updates_done(), "seconds_lost": round(lost, 2)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--longest", type=float, default=12.0, help="seconds from a session's first save to its kill")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", default=None, help="write the figures to this file too")
    arguments = parser.parse_args()
    chance, kills = random.Random(arguments.seed), []
    with tempfile.TemporaryDirectory() as scratch:
        whole, killed = Path(scratch) / "whole", Path(scratch) / "killed"
        began = time.monotonic()
        finish(start(whole, arguments.epochs, resume=False))
        seconds = time.monotonic() - began
        for k in range(arguments.kills):
            kills.append(kill_once(killed, arguments.epochs, chance.uniform(0, arguments.longest)))
            print(f"kill {k + 1}: {kills[-1]}", flush=True)
        finish(start(killed, arguments.epochs, resume=True))
        a, b = (read_tensors(folder / "model.safetensors") for folder in (whole, killed))
        same = a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
        lines = [
            [{k: v for k, v in line.items() if k != "seconds"} for line in RunFolder(folder).read_metrics()]
            for folder in (whole, killed)
        ]
    record = {
        "torch": torch.__version__,
        "epochs": arguments.epochs,
        "seconds_unkilled": round(seconds, 1),
        "kills": len(kills),
        "resumed_from_zero": sum(kill["updates_after"] == 0 for kill in kills),
        "most_seconds_lost": max(kill["seconds_lost"] for kill in kills),
        "same_weights": same,
        "same_metrics": lines[0] == lines[1],
    }
    print(json.dumps(record))
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(record | {"each": kills}, indent=2) + "\n")
    if not (same and record["same_metrics"]):
        raise SystemExit("The runs differ.")


if __name__ == "__main__":
    main()
