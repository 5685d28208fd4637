"""What must not take long: importing isoconv, and a quick look at table 1."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.speed import measure_imports
from reproduction.measure import Session

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "2", "CUDA_VISIBLE_DEVICES": ""}


def test_importing_isoconv_takes_less_than_1_3_times_as_long_as_importing_torch():
    _, rows = measure_imports(Session(Path(), Path()), rounds=3)
    assert rows["torch"]["ratio"] == 1 and rows["isoconv"]["ratio"] < 1.3 and rows["all rooms"]["ratio"] < 1.3


def test_table_1_from_training_to_rows_in_three_minutes_on_two_cores():
    began = time.monotonic()
    command = [sys.executable, "-W", "error", "-m", "reproduction", "table1", "--quick", "--format", "json"]
    done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=900)
    seconds = time.monotonic() - began
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert len(rows) == 16 and {row["epochs"] for row in rows} == {"1"}
    for row in rows:
        clean, certified = (float(row[name].split(" ")[0]) for name in ("clean %", "certified %"))
        assert certified <= clean
    assert seconds < 180
