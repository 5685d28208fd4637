"""Claim: `import isoconv` takes less than 1.3 times as long as `import torch` alone, with all of its rooms loaded too.

Each import runs in a process of its own, the three in turn, so that a busy machine slows all of them alike; the processor's
time is compared, best of all rounds, and the time on the clock is printed beside it (median). `import isoconv` by itself
loads nothing: torch comes with the first room that is used, so the honest figure is the one with all rooms.

    python benchmarks/import_time.py [--rounds 9]
"""

import argparse
import platform
import subprocess
import sys
from statistics import median

STATEMENTS = {
    "torch": "import torch",
    "isoconv": "import isoconv",
    "isoconv with all rooms": "from isoconv import *",
}
_TIMED = """
import time
wall, processor = time.perf_counter(), time.process_time()
{}
print(time.perf_counter() - wall, time.process_time() - processor)
"""


def seconds(statement: str) -> tuple[float, float]:
    """Of one import in a new process: on the clock, and of the processor."""
    command = [sys.executable, "-c", _TIMED.format(statement)]
    wall, processor = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return float(wall), float(processor)


def measure(rounds: int) -> dict[str, tuple[float, float]]:
    """For each statement the median on the clock and the least of the processor, after a round that warms the disk."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in STATEMENTS}
    for number in range(rounds + 1):
        for name, statement in STATEMENTS.items():
            times = seconds(statement)
            if number:
                found[name].append(times)
    return {name: (median(wall for wall, _ in times), min(cpu for _, cpu in times)) for name, times in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    results = measure(parser.parse_args().rounds)
    print(f"Python {platform.python_version()}, {platform.machine()}")
    for name, (wall, processor) in results.items():
        ratio = processor / results["torch"][1]
        print(f"{name:24} {wall:.3f} s on the clock, {processor:.3f} s of the processor, {ratio:.3f} times torch")


if __name__ == "__main__":
    main()
