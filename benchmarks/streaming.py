"""Train and certify on a folder of generated JPEG pictures that stay in their files: memory, equality, speed of decoding.

Measured: the resident memory of the process and of its workers while it trains some steps and certifies some pictures;
whether the batches of an epoch of a part are those of that part in memory; pictures per second of decoding alone, beside a
bare loop of Pillow in as many processes.

    python benchmarks/streaming.py FOLDER [--pictures 30000] [--side 256] [--size 224] [--steps 100] [--certified 500]

The pictures are written into FOLDER if they are not there yet, and stay.
"""

import argparse
import json
import multiprocessing
import os
import platform
import threading
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from isoconv.certify import robust_accuracy
from isoconv.data import EpochBatches, Splits, StreamedSet, read_folder
from isoconv.train import fit
from isoconv.train.classifier import Classification
from isoconv.train.config import TrainConfig, make_model, recipe_settings

CLASSES = 10


def write_pictures(folder: Path, count: int, side: int) -> None:
    """Write pictures that compress like photographs: smooth colours of their class, and noise."""
    for k in range(count):
        path = folder / f"class-{k % CLASSES}" / f"{k:06}.jpg"
        if path.exists():
            continue
        random = np.random.RandomState(k)
        coarse = random.randint(0, 256, (8, 8, 3)).astype(np.uint8)
        coarse[..., k % 3] = 25 * (k % CLASSES)
        smooth = np.asarray(Image.fromarray(coarse).resize((side, side), Image.Resampling.BICUBIC)).astype(np.int64)
        pixels = (smooth + random.randint(-12, 13, smooth.shape)).clip(0, 255).astype(np.uint8)
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path, quality=90)


class Memory:
    """The most resident memory of this process and of its children, looked at every tenth of a second.

    own : of this process; all : with its children, less what they share (proportional set size)
    """

    def __enter__(self) -> "Memory":
        self.own = self.all = 0.0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(0.1):
            sizes = []
            for process in (os.getpid(), *(child.pid for child in multiprocessing.active_children())):
                try:
                    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
                except OSError:  # it has ended
                    continue
                sizes.append({line.split()[0]: int(line.split()[1]) / 2**20 for line in lines[1:]})
            self.own = max(self.own, sizes[0]["Rss:"])
            self.all = max(self.all, sum(size["Pss:"] for size in sizes))


def train_and_certify(splits: Splits, steps: int, certified: int, batch_size: int) -> dict[str, float]:
    data = "a folder"
    fields = recipe_settings("default", data, "bcop", "small") | {"epochs": 1, "batch_size": batch_size}
    config = TrainConfig(data, splits.train.shape, splits.train.classes, model="small", **fields)
    train = splits.train.take(steps * batch_size)
    batches = EpochBatches(train, batch_size, flip=True)
    model = make_model(config)
    with Memory() as memory:
        began = time.perf_counter()
        fit(model, batches, Classification(config), **config.training)
        trained = time.perf_counter()
        accuracy = robust_accuracy(model.eval(), splits.test.take(certified), [36 / 255])
        ended = time.perf_counter()
    return {
        "steps": len(batches),
        "batch_size": batch_size,
        "certified_pictures": len(accuracy.labels),
        "train_seconds": round(trained - began, 1),
        "certify_seconds": round(ended - trained, 1),
        "most_resident_gb": round(memory.own, 3),
        "most_with_workers_gb": round(memory.all, 3),
    }


def read_bare(paths: list[str], size: int) -> int:
    """Decode in the plainest way."""
    for path in paths:
        with Image.open(path) as file:
            np.asarray(file.convert("RGB").resize((size, size), Image.Resampling.BICUBIC))
    return len(paths)


def decoding_speed(splits: Splits, size: int, workers: int, count: int) -> dict[str, float]:
    """Return pictures per second, of a bare loop in as many processes and streamed in batches of 64, at best of three."""
    train, bare, streamed = splits.train.take(count), list[float](), list[float]()
    assert isinstance(train, StreamedSet)
    paths = [str(train.files.sources[index]) for index in train.index.tolist()]
    read_bare(paths, size)  # from here on the files are in memory
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        for _ in range(3):
            began = time.perf_counter()
            pool.starmap(read_bare, [(paths[k::workers], size) for k in range(workers)])
            bare.append(len(paths) / (time.perf_counter() - began))
            began = time.perf_counter()
            decoded = sum(len(images) for images, _ in EpochBatches(train, 64, drop_last=False).epoch(0))
            streamed.append(decoded / (time.perf_counter() - began))
    return {"bare_per_second": max(bare), "streamed_per_second": max(streamed), "share": max(streamed) / max(bare)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    numbers = {
        "pictures": 30_000,
        "side": 256,
        "size": 224,
        "steps": 100,
        "certified": 500,
        "batch-size": 8,
        "workers": 2,
    }
    for name, usual in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--compared", type=int, default=1000, help="pictures to compare with memory, and to time")
    parser.add_argument("--json", type=Path, default=None, help="write the figures to this file too")
    asked = parser.parse_args()
    write_pictures(asked.folder, asked.pictures, asked.side)
    began = time.perf_counter()
    splits = read_folder(asked.folder, size=asked.size, stream=True, workers=asked.workers)
    record = {"pictures": asked.pictures, "side": asked.side, "size": asked.size, "workers": asked.workers}
    record |= {"torch": torch.__version__, "machine": platform.processor(), "threads": torch.get_num_threads()}
    record["listing_seconds"] = round(time.perf_counter() - began, 2)
    record |= train_and_certify(splits, asked.steps, asked.certified, asked.batch_size)
    part = splits.train.take(min(asked.compared, len(splits.train)))
    pairs = zip(*(EpochBatches(x, 16, flip=True).epoch(0) for x in (part, part.to("cpu"))), strict=True)
    record["same_batches"] = all(torch.equal(a, c) and torch.equal(b, d) for (a, b), (c, d) in pairs)
    record |= decoding_speed(splits, asked.size, asked.workers, asked.compared)
    print(json.dumps(record, indent=2))
    if asked.json is not None:
        asked.json.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
