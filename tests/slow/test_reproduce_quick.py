"""`isoconv reproduce table1 --quick`: the whole of table 1, from training to rows, in under three minutes on two cores."""

import json
import os
import subprocess
import sys
import time

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "2", "CUDA_VISIBLE_DEVICES": ""}


def test_table_1_in_three_minutes(tmp_path):
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "isoconv", "reproduce", "table1", "--quick", "--json"],
        cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    seconds = time.monotonic() - began
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert len(rows) == 16 and {row["status"] for row in rows} == {"ok"}
    assert {(row["dataset"], row["model"]) for row in rows} == {
        (data, model) for data in ("mnist", "cifar10") for model in ("small", "large")
    }
    assert all(row["robust"]["mean"] <= row["clean"]["mean"] and row["seeds"] == [0, 1] for row in rows)
    assert seconds < 180
