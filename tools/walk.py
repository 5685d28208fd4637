"""Count the Python frames that one layer's forward pass goes through after an optimiser step, and the files they are in.

python tools/walk.py            # prints the counts, then the calls
"""

import sys
from collections import Counter
from pathlib import Path
from types import FrameType

import torch

import isoconv
from isoconv.nn import BCOPConv2d
from isoconv.optim import SteepestDescent

HOME = str(Path(isoconv.__file__).parent)


def walk() -> Counter[tuple[str, str]]:
    """Return how often each function of isoconv is called, by file and name, in one forward pass in training."""
    layer, x = BCOPConv2d(4, 8, 3), torch.rand(2, 4, 8, 8)
    optimiser = SteepestDescent(layer.parameters())
    for _ in range(2):
        optimiser.zero_grad()
        layer(x).square().sum().backward()
        optimiser.step()
    calls: Counter[tuple[str, str]] = Counter()

    def count(frame: FrameType, event: str, _: object) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(HOME):
            calls[file[len(HOME) + 1 :], frame.f_code.co_name] += 1

    sys.setprofile(count)
    try:
        layer(x)
    finally:
        sys.setprofile(None)
    return calls


if __name__ == "__main__":
    calls = walk()
    print(f"{sum(calls.values())} frames in {len({file for file, _ in calls})} files")
    for (file, name), times in sorted(calls.items()):
        print(f"  {times:3}  {file}: {name}")
