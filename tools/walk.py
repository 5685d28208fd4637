"""Print how far the code walks: for one layer's forward pass, for `isoconv certify RUN`, for `isoconv train`.

python tools/walk.py            # a forward pass after an optimiser step: Python frames, and files they are in
                                # certifying a run: how often `plain` is called, which images are read
                                # training: how often each network is built
"""

import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import torch

import isoconv
from isoconv.nn import BCOPConv2d
from isoconv.optim import SteepestDescent
from isoconv.train import certify_run, train

HOME = str(Path(isoconv.__file__).parent)


def count_calls(work: Callable[[], object]) -> Counter[tuple[str, str]]:
    """Return how often each function of isoconv is called, by file and name."""
    calls: Counter[tuple[str, str]] = Counter()

    def count(frame: FrameType, event: str, _: object) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(HOME):
            calls[file[len(HOME) + 1 :], frame.f_code.co_name] += 1

    for module in (sys, threading):
        module.setprofile(count)
    try:
        work()
    finally:
        for module in (sys, threading):
            module.setprofile(None)
    return calls


def walk() -> Counter[tuple[str, str]]:
    """Return the calls of one layer's forward pass in training, after an optimiser step."""
    layer, x = BCOPConv2d(4, 8, 3), torch.rand(2, 4, 8, 8)
    optimiser = SteepestDescent(layer.parameters())
    for _ in range(2):
        optimiser.zero_grad()
        layer(x).square().sum().backward()
        optimiser.step()
    return count_calls(lambda: layer(x))


def walk_run() -> tuple[Counter[tuple[str, str]], Counter[tuple[str, str]]]:
    """Return the calls of training a network on 80 pictures of two classes, and of certifying it on its 16 test images."""
    from PIL import Image

    with tempfile.TemporaryDirectory() as folder:
        pictures, run = Path(folder, "pictures"), Path(folder, "run")
        for k in range(80):
            path = pictures / "ab"[k % 2] / f"{k}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("L", (8, 8), 3 * k).save(path)
        options = {"model": "small", "epochs": 1, "device": "cpu"}
        training = count_calls(lambda: train(str(pictures), run, **options))
        return training, count_calls(lambda: certify_run(run, device="cpu"))


if __name__ == "__main__":
    calls = walk()
    print(f"forward pass: {sum(calls.values())} frames in {len({file for file, _ in calls})} files")
    for (file, name), times in sorted(calls.items()):
        print(f"  {times:3}  {file}: {name}")
    training, certifying = walk_run()
    print(f"train: builds {training['train/config.py', 'make_model']} network for 1 seed")
    plain = sum(times for (file, name), times in certifying.items() if name == "plain" and "plain" in file)
    images = certifying["data/pictures.py", "__call__"]
    print(f"certify: calls plain {plain} times, reads {images} pictures of 80, of which 16 are test images")
