"""Train and certify on a folder of generated JPEG images that stay in their files: memory, equality, speed of decoding.

Measured: the resident memory of the process and of its workers while it trains some steps and certifies some images;
whether the batches of an epoch of a part are those of that part in memory; images per second of decoding alone, beside a
bare loop of Pillow in as many processes.

    python -m benchmarks.streaming FOLDER [--pictures 30000] [--side 256] [--size 224] [--steps 100] [--certified 500]

The images are written into FOLDER if they are not there yet, and stay.
"""

import argparse
import json
import multiprocessing
import os
import resource
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from benchmarks.measuring import Report
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


def read_bare(paths: list[str], size: int) -> None:
    """Decode in the plainest way."""
    for path in paths:
        with Image.open(path) as file:
            np.asarray(file.convert("RGB").resize((size, size), Image.Resampling.BICUBIC))


def read_bare_in_processes(paths: list[str], size: int, workers: int) -> None:
    """Decode in processes that need not tell each other anything."""
    start = multiprocessing.get_context("fork").Process
    processes = [start(target=read_bare, args=(paths[k::workers], size)) for k in range(workers)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()


def time_once(work: Callable[[], object]) -> tuple[float, float]:
    """Return seconds on the clock, and of the processor in this process and in those that it started."""

    def used() -> float:
        usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(one.ru_utime + one.ru_stime for one in usage)

    began, before = time.perf_counter(), used()
    work()
    return time.perf_counter() - began, used() - before


def decoding_speed(
    splits: Splits, size: int, workers: int, count: int, batch_size: int, rounds: int
) -> dict[str, object]:
    """Compare a bare loop in as many processes with streaming, in turns.

    Return pictures per second at best, milliseconds of the processor per picture at best, and of each round the share of
    the bare loop's speed, on the clock and by the processor. On a machine that does other things too the latter says
    more: with as many workers as cores, speed is what the processor is needed for.
    """
    train = splits.train.take(count)
    assert isinstance(train, StreamedSet)
    paths = [str(train.files.sources[index]) for index in train.index.tolist()]
    read_bare_in_processes(paths, size, workers)  # from here on the files are in memory
    batches = EpochBatches(train, batch_size, drop_last=False)
    pairs = []
    for _ in range(rounds):
        bare = time_once(lambda: read_bare_in_processes(paths, size, workers))
        streamed = time_once(lambda: [len(images) for images, _ in batches.epoch(0)])
        pairs.append((bare, streamed))
    figures: dict[str, object] = {"pictures": count, "batch_size": batch_size, "workers": workers, "rounds": rounds}
    for k, name in enumerate(("bare", "streamed")):
        figures[f"{name}_per_second"] = round(count / min(pair[k][0] for pair in pairs), 1)
        figures[f"{name}_processor_ms"] = round(1e3 * min(pair[k][1] for pair in pairs) / count, 3)
    for k, name in enumerate(("share", "share_by_processor")):
        shares = [bare[k] / streamed[k] for bare, streamed in pairs]
        figures[name] = {"median": round(statistics.median(shares), 3), "rounds": [round(share, 3) for share in shares]}
    return figures


def time_decoding(splits: Splits, asked: argparse.Namespace) -> list[dict[str, object]]:
    count = min(asked.decoded, len(splits.train))
    return [decoding_speed(splits, asked.size, asked.workers, count, size, asked.rounds) for size in (64, 16)]


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
    parser.add_argument("--compared", type=int, default=1000, help="images to compare with memory")
    parser.add_argument("--decoded", type=int, default=6000, help="images to decode in each round")
    parser.add_argument("--rounds", type=int, default=5, help="of decoding, bare and streamed in turns")
    parser.add_argument("--only-decoding", action="store_true", help="measure nothing else")
    parser.add_argument("--json", type=Path, default=None, help="write the figures to this file too")
    asked = parser.parse_args()
    write_pictures(asked.folder, asked.pictures, asked.side)
    began = time.perf_counter()
    splits = read_folder(asked.folder, size=asked.size, stream=True, workers=asked.workers)
    sizes = {name: getattr(asked, name) for name in ("pictures", "side", "size", "workers")}
    report = Report(asked.json, "cpu", **sizes, threads=torch.get_num_threads())
    record = report.figures
    record["listing_seconds"] = round(time.perf_counter() - began, 2)
    if asked.only_decoding:
        print(json.dumps(time_decoding(splits, asked), indent=2))
        return
    record |= train_and_certify(splits, asked.steps, asked.certified, asked.batch_size)
    part = splits.train.take(min(asked.compared, len(splits.train)))
    pairs = zip(*(EpochBatches(x, 16, flip=True).epoch(0) for x in (part, part.to("cpu"))), strict=True)
    record["same_batches"] = all(torch.equal(a, c) and torch.equal(b, d) for (a, b), (c, d) in pairs)
    record["decoding"] = time_decoding(splits, asked)
    print(json.dumps(record, indent=1))
    report.write()


if __name__ == "__main__":
    main()
