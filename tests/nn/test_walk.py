"""How far a reader has to go: one layer's forward pass after an optimiser step."""

import runpy
from pathlib import Path


def test_few_frames_in_few_files() -> None:
    calls = runpy.run_path(str(Path(__file__).parents[2] / "tools/walk.py"))["walk"]()
    assert calls
    assert sum(calls.values()) <= 80
    assert len({file for file, _ in calls}) <= 6
