"""A quick look at table 1: every network of it is trained and certified, for an epoch on a few images."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "2", "CUDA_VISIBLE_DEVICES": ""}


def test_table_1_from_training_to_rows():
    command = [sys.executable, "-W", "error", "-m", "reproduction", "table1", "--quick", "--format", "json"]
    done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert len(rows) == 16 and {row["epochs"] for row in rows} == {"1"}
    for row in rows:
        clean, certified = (float(row[name].split(" ")[0]) for name in ("clean %", "certified %"))
        assert certified <= clean
