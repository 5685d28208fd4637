"""Importing isoconv with all of its rooms takes less than 1.3 times as long as importing torch alone."""

from pathlib import Path

from benchmarks.speed import measure_imports
from reproduction.measure import Session


def test_importing_isoconv_takes_little_longer_than_importing_torch():
    _, rows = measure_imports(Session(Path(), Path()), rounds=3)
    assert rows["torch"]["ratio"] == 1 and rows["isoconv"]["ratio"] < 1.3 and rows["all rooms"]["ratio"] < 1.3
