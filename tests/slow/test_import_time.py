"""The claim of benchmarks/import_time.py, in few rounds."""

import subprocess
import sys
from pathlib import Path


def test_importing_isoconv_takes_little_longer_than_importing_torch():
    script = Path(__file__).resolve().parents[2] / "benchmarks" / "import_time.py"
    done = subprocess.run(
        [sys.executable, script, "--rounds", "3"], capture_output=True, text=True, timeout=300, check=True
    )
    ratios = [float(line.split()[-3]) for line in done.stdout.splitlines() if line.endswith("times torch")]
    assert len(ratios) == 3 and ratios[0] == 1
    assert ratios[1] < 1.3 and ratios[2] < 1.3
