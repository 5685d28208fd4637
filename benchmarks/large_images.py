"""Networks for large images: STL-10 from memory and from files, and a shift network of 100 M weights at 224×224.

python -m benchmarks.large_images stl10 --data DIR     # on a GPU, four minutes: results/large_images/stl10.json
python -m benchmarks.large_images imagenet             # on a GPU, under two minutes: results/large_images/imagenet.json
python -m benchmarks.large_images page                 # write the tables of docs/how-to/large-images.md
python -m benchmarks.large_images stl10 --small        # on a CPU, minutes, writes nothing: that everything runs

stl10: the 5,000 labelled training images of 96×96, a fifth of each class held out, on which nothing is chosen. `shift-s`
and Large are trained with the default recipe and the same seed, once with the images in memory and once streamed from PNG
files, for as many epochs; clean and certified accuracy of the last epoch, certified for the network run in float64. The two
ways differ by the GPU's order of summation alone.

imagenet: generated images of 224×224 on the device. Images per second of a training step in bfloat16, with all
activations kept and with activation checkpointing; the share of the speed that bare bfloat16 products of the same shapes
have in the same run; the most memory that was allocated and reserved, warm-up and capture included.

Each part stands for itself, has a limit of seconds, and writes what it has as it goes; what fails is written down too.
"""

import argparse
import gc
import json
import math
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.measuring import Report, fill_marks, to_markdown
from benchmarks.shift_step import Bench, count_work, time_product
from isoconv.data import EpochBatches, ImageSet, StreamedSet, load_splits, read_folder
from isoconv.errors import IsoconvError
from isoconv.models import ShiftNet
from isoconv.train import train
from isoconv.train.distributed import choose_device

ROOT = Path(__file__).parents[1]
RESULTS, PAGE = ROOT / "results" / "large_images", ROOT / "docs" / "how-to" / "large-images.md"
STREAMING = ROOT / "results" / "streaming" / "cpu.json"
RADIUS = 36 / 255
NETWORKS = {"shift-s": "Shift-S", "large": "Large"}
#: The network of 100 M weights: 28×28 positions of 512 channels, then 14×14 of 2,048.
SHAPE: dict[str, Any] = {"channels": 2048, "blocks": (4, 12), "patch": 16}
SIDE, CLASSES = 224, 1000

# On paper ---------------------------------------------------------------------------------------------------------------
IMAGENET, EPOCHS = 1_281_167, 100
PRICE = 3.0  # of an hour of one GPU, in dollars: an assumption
EFFICIENCY = 0.9  # of eight GPUs, of eight times the speed of one: an assumption, not measured


# STL-10 -----------------------------------------------------------------------------------------------------------------


def write_pictures(images: ImageSet, folder: Path) -> None:
    """Write images as PNG files, which lose nothing, in a folder per class; leave those that are there."""
    from PIL import Image

    def write(k: int) -> None:
        path = folder / images.classes[int(images.labels[k])] / f"{k:05}.png"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.ascontiguousarray(pixels[k])).save(path, compress_level=3)

    pixels = images.images.cpu().numpy().transpose(0, 2, 3, 1)
    with ThreadPoolExecutor() as pool:
        list(pool.map(write, range(len(pixels))))


def time_epochs(folder: Path, workers: int, batch_size: int) -> dict[str, Any]:
    """Return the seconds of decoding an epoch, at best of two, by processes and by threads, and which are faster.

    Compare the batches with those of memory.
    """
    kept = read_folder(folder, stream=False).train
    figures: dict[str, Any] = {"pictures": len(kept), "same_batches": True, "epoch_seconds": {}}
    options: dict[str, Any] = {"padding": 4, "flip": True}
    for count in (workers, 0):
        streamed = read_folder(folder, stream=True, workers=count).train
        assert isinstance(streamed, StreamedSet)
        try:
            for _ in range(2):
                began = time.perf_counter()
                batches = list(EpochBatches(streamed, batch_size, **options).epoch(0))
                seconds = time.perf_counter() - began
                figures["epoch_seconds"][count] = min(seconds, figures["epoch_seconds"].get(count, math.inf))
        except IsoconvError as error:  # little shared memory, say
            figures[f"failed with {count} workers"] = str(error)
            continue
        for ours, theirs in zip(batches, EpochBatches(kept, batch_size, **options).epoch(0), strict=True):
            figures["same_batches"] &= all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    figures["workers"] = min(figures["epoch_seconds"], key=figures["epoch_seconds"].get)
    return figures


def measure_stl10(asked: argparse.Namespace, report: Report) -> None:
    """Train each network from memory and from files, for as many epochs as decoding allows in `--seconds`."""
    device, began = choose_device("cpu" if asked.small else "auto"), time.perf_counter()

    def left() -> float:
        return asked.limit - (time.perf_counter() - began)

    with tempfile.TemporaryDirectory(prefix="large-images-") as scratch:
        folder = asked.pictures or Path(scratch) / "pictures"
        with report.part("pictures", 120) as figures:
            splits = load_splits("stl10", asked.data)
            write_pictures(splits.train.take(120 if asked.small else len(splits.train)), folder)
            figures |= {"pictures": sum(1 for _ in folder.rglob("*.png")), "side": splits.train.shape[1]}
        with report.part("decoding", 60) as figures:
            figures |= time_epochs(folder, asked.workers, 16 if asked.small else 128)
        if "failed" in report.figures["decoding"]:
            return
        asked.workers = report.figures["decoding"]["workers"]
        usual = int(asked.seconds / (1.3 * report.figures["decoding"]["epoch_seconds"][asked.workers]))
        epochs = asked.epochs or (1 if asked.small else max(1, min(150, usual)))
        for model in NETWORKS:
            for way in ("streamed", "memory"):
                with report.part(f"{model}, {way}", left()) as figures:
                    if left() < 5:
                        raise TimeoutError("no time left")
                    figures |= train_one(folder, Path(scratch) / f"{model}-{way}", model, way, epochs, asked, device)
        compare(report.figures)
        report.write()


def train_one(
    folder: Path, out: Path, model: str, way: str, epochs: int, asked: argparse.Namespace, device: str
) -> dict[str, Any]:
    """Return the figures of one training by the command's own function, and of certifying the held-out pictures."""
    stop = time.perf_counter() + 2.5 * asked.seconds
    options: dict[str, Any] = {"stream": way == "streamed", "workers": asked.workers, "device": device}
    options |= {"epsilons": [RADIUS], "should_stop": lambda: time.perf_counter() > stop, "model": model}
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    (result,), config = train(str(folder), out, epochs=epochs, **options)
    assert result.robust is not None
    seconds, trained = result.train_seconds, sum(1 for _ in folder.rglob("*.png")) - (result.images or 0)
    return {
        "epochs": epochs,
        "workers": asked.workers if way == "streamed" else None,
        "batch_size": config.batch_size,
        "patch": config.patch,
        "lr": config.lr,
        "images": result.images,
        "clean": result.clean,
        "certified": result.robust[str(RADIUS)],
        "lipschitz_bound": result.lipschitz_bound,
        "train_seconds": seconds,
        "pictures_per_second": epochs * config.batch_size * (trained // config.batch_size) / seconds,
        "other_seconds": time.perf_counter() - began - seconds,
        "peak_memory_mib": result.peak_memory_mib,
    }


def compare(figures: dict[str, Any]) -> None:
    """Add how far the two ways differ, in points, beside the standard error of a difference of independent runs."""
    for model in NETWORKS:
        ways = [figures.get(f"{model}, {way}", {}) for way in ("streamed", "memory")]
        if all("certified" in way for way in ways):
            differences = {}
            for name in ("clean", "certified"):
                first, second = (way[name] for way in ways)
                share = (first + second) / 200
                error = 100 * math.sqrt(2 * share * (1 - share) / ways[0]["images"])
                differences[name] = {"points": first - second, "standard_error": error}
            figures[f"{model}, difference"] = differences


# 224×224 ----------------------------------------------------------------------------------------------------------------


def measure_imagenet(asked: argparse.Namespace, report: Report) -> None:
    """Time bare products and steps; see the head of this file."""
    bench, began = Bench(asked.small), time.perf_counter()
    bench.batch, bench.rounds, bench.calls = asked.batch, 3, 2 if asked.small else 4
    shape = {"channels": 64, "blocks": (1, 2), "patch": 16} if asked.small else SHAPE
    with torch.device("meta"):
        network = ShiftNet((3, SIDE, SIDE), CLASSES, **shape)
    work = count_work(network, bench.batch, SIDE)
    weights = sum(p.numel() for p in network.parameters())
    shown = {name: list(value) if isinstance(value, tuple) else value for name, value in shape.items()}
    report.figures |= {"side": SIDE, "classes": CLASSES, "batch": bench.batch, "weights": weights, "network": shown}
    report.figures["work_tflop"] = 1e-12 * sum(work.values())

    def left() -> float:
        return max(5.0, asked.limit - (time.perf_counter() - began))

    with report.part("products", left()) as figures:
        seconds = 0.0
        for (positions, width), operations in work.items():
            figures[f"{width} channels"] = time_product(bench, bench.batch * positions, width, calls=10)
            seconds += 1e-12 * operations / figures[f"{width} channels"]["tflops"]
        figures |= {"tflops": 1e-12 * sum(work.values()) / seconds, "ms_of_all_in_a_step": 1e3 * seconds}
    for name, again in (("kept", False), ("checkpointed", True)):
        with report.part(name, left()) as figures:
            figures |= time_steps(bench, shape, again)
            figures["pictures_per_second"] = 1e3 * bench.batch / figures["ms"]
            figures["tflops"] = 1e-9 * sum(work.values()) / figures["ms"]
            figures["of_bare_product"] = figures["tflops"] / report.figures["products"].get("tflops", math.nan)
        gc.collect()
        if bench.device.type == "cuda":
            torch.cuda.empty_cache()


def time_steps(bench: Bench, shape: dict[str, Any], again: bool) -> dict[str, Any]:
    """Return the milliseconds of a step and the memory that it needs."""
    on_gpu, began = bench.device.type == "cuda", time.perf_counter()
    before = [0, 0]
    if on_gpu:
        before = [torch.cuda.memory_allocated(), torch.cuda.memory_reserved()]
        torch.cuda.reset_peak_memory_stats()
    torch.manual_seed(0)
    with torch.device(bench.device):
        network = ShiftNet((3, SIDE, SIDE), CLASSES, **shape)
    settings: dict[str, Any] = {"precision": "bf16", "checkpoint_activations": again}
    step = bench.make_step("shift-m", network, SIDE, CLASSES, warm=14, **settings)
    figures = {**bench.built, "setup_seconds": round(time.perf_counter() - began, 1)}
    rounds = bench.race({"": step})[""]
    figures |= {"ms": median(rounds), "rounds_ms": rounds}
    if on_gpu:
        figures["before_gib"] = [number / 2**30 for number in before]  # of what others have left, which is not counted
        figures["peak_allocated_gib"] = (torch.cuda.max_memory_allocated() - before[0]) / 2**30
        figures["peak_reserved_gib"] = (torch.cuda.max_memory_reserved() - before[1]) / 2**30
    return figures


# The page ---------------------------------------------------------------------------------------------------------------


def read(name: str, results: Path) -> dict[str, Any] | None:
    path = results / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def describe_stl10(results: Path) -> str:
    """Return the table of STL-10, or that there is none."""
    found = read("stl10", results)
    if found is None:
        return "Not measured yet.\n"
    rows, notes = [], []
    for model, title in NETWORKS.items():
        for way, label in (("memory", "in memory"), ("streamed", "from files")):
            row = found.get(f"{model}, {way}", {"failed": "not run"})
            if "failed" in row:
                rows.append([title, label, f"failed: {row['failed']}", *[""] * 4])
                continue
            figures = [f"{row['clean']:.1f}", f"{row['certified']:.1f}", f"{row['epochs']}"]
            rows.append([title, label, *figures, f"{row['train_seconds']:.0f} s", f"{row['pictures_per_second']:,.0f}"])
        difference = found.get(f"{model}, difference")
        if difference:
            pair = " / ".join(f"{abs(difference[name]['points']):.1f}" for name in ("clean", "certified"))
            errors = " / ".join(f"{difference[name]['standard_error']:.1f}" for name in ("clean", "certified"))
            notes.append(f"{title}'s two trainings differ by {pair} points; the standard error is {errors}.")
    head = ["network", "images", "clean %", "certified at 36/255 %", "epochs", "training", "images/s"]
    images = next((row["images"] for row in found.values() if isinstance(row, dict) and "images" in row), 0)
    where = f"{found['hardware']}, torch {found['torch']}, commit {found['commit']}"
    return f"{to_markdown(head, rows)}\n{images:,} held-out images, one seed. {' '.join(notes)} {where}.\n"


def describe_imagenet(results: Path, streaming: Path, price: float = PRICE, efficiency: float = EFFICIENCY) -> str:
    """Return what was measured at 224×224, and from it hours and cost of ImageNet, or that there is nothing."""
    found = read("imagenet", results)
    if found is None:
        return "Not measured yet.\n"
    titles = {"kept": "all activations kept", "checkpointed": "`--checkpoint-activations`"}
    head = ["step", "images/s", "TFLOP/s", "of a bare product", "memory allocated", "reserved"]
    rows = []
    for name, title in titles.items():
        row = found.get(name, {"failed": "not run"})
        if "failed" in row:
            rows.append([title, f"failed: {row['failed']}", *[""] * 4])
            continue
        memory = [f"{row[key]:.1f} GiB" if key in row else "–" for key in ("peak_allocated_gib", "peak_reserved_gib")]
        figures = [
            f"{row['pictures_per_second']:,.0f}",
            f"{row['tflops']:.0f}",
            f"{100 * row['of_bare_product']:.0f} %",
        ]
        rows.append([title, *figures, *memory])
    where = f"{found['hardware']}, torch {found['torch']}, commit {found['commit']}"
    what = f"A network of {found['weights'] / 1e6:.0f} M weights, batch {found['batch']}, bfloat16"
    text = f"{what}, {where}:\n\n{to_markdown(head, rows)}\n"
    speed = found.get("kept", {}).get("pictures_per_second")
    if speed is None:
        return text
    per_core = decoding_per_core(streaming)
    head = ["GPUs", "images/s", "hours", "GPU hours", f"cost at ${price:.2f} per GPU hour", "cores to decode"]
    rows = []
    for count in (1, 8):
        rate = speed * count * (efficiency if count > 1 else 1)
        hours = EPOCHS * IMAGENET / rate / 3600
        cores = "–" if per_core is None else f"{math.ceil(rate / per_core)}"
        costs = [f"{hours:,.1f}", f"{hours * count:,.0f}", f"${hours * count * price:,.0f}", cores]
        rows.append([str(count), f"{rate:,.0f}", *costs])
    what = f"{EPOCHS} epochs of ImageNet's {IMAGENET:,} images **on paper**, from the first line"
    text += f"{what}:\n\n{to_markdown(head, rows)}\n"
    assumptions = [
        f"an hour of one GPU costs ${price:.2f}",
        f"eight GPUs run at {efficiency:.0%} of eight times the speed of one, which we have not measured: several processes "
        "do not yet compile their steps or capture them as CUDA graphs, as was done here",
        "images arrive as fast as they are trained on, and are not augmented",
        "no time for evaluation, certification and saving",
    ]
    if per_core is not None:
        speed_of_core = f"a core decodes {per_core:,.0f} JPEG images of 256×256 a second to 224×224"
        assumptions.append(f"{speed_of_core} (`results/streaming/cpu.json`)")
    return text + f"Assumptions: {'; '.join(assumptions)}.\n"


def decoding_per_core(path: Path) -> float | None:
    """Return the pictures per second that one core decodes, as measured by `benchmarks/streaming.py`."""
    if not path.exists():
        return None
    found = json.loads(path.read_text())
    return max(part["streamed_per_second"] / part["workers"] for part in found["decoding"])  # type: ignore[no-any-return]


def fill_page(text: str, results: Path = RESULTS) -> str:
    """Return the page with what is between its marks made again from the results."""
    makers = {"stl10": lambda: describe_stl10(results), "imagenet": lambda: describe_imagenet(results, STREAMING)}
    return fill_marks(text, makers, lambda name: makers[name]())


MEASURES: dict[str, Callable[[argparse.Namespace, Report], None]] = {
    "stl10": measure_stl10,
    "imagenet": measure_imagenet,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=[*MEASURES, "page"])
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder of STL-10")
    parser.add_argument("--pictures", type=Path, help="keep the PNG files in this folder, or find them there")
    parser.add_argument("--seconds", type=float, default=50.0, help="about as long a training from files should take")
    parser.add_argument("--epochs", type=int, help="of each training, instead of what --seconds allow")
    parser.add_argument("--workers", type=int, default=15, help="processes that decode")
    parser.add_argument("--batch", type=int, help="images per step at 224×224 (default: 512)")
    parser.add_argument("--limit", type=float, help="seconds of all (default: stl10 240, imagenet 90)")
    parser.add_argument("--out", type=Path, help="the results file")
    parser.add_argument("--commit", help="of the sources, where they are no clone")
    parser.add_argument("--small", action="store_true", help="tiny sizes on the CPU; writes nothing without --out")
    asked = parser.parse_args()
    if asked.what == "page":
        PAGE.write_text(fill_page(PAGE.read_text()))
        return
    asked.limit = asked.limit or {"stl10": 240.0, "imagenet": 90.0}[asked.what]
    asked.batch = asked.batch or (2 if asked.small else 512)
    asked.workers = min(asked.workers, 2) if asked.small else asked.workers
    out = asked.out or (None if asked.small else RESULTS / f"{asked.what}.json")
    script = f"python -m benchmarks.large_images {asked.what}"
    device = choose_device("cpu" if asked.small else "auto")
    report = Report(out, device, asked.commit, script=script, small=asked.small)
    MEASURES[asked.what](asked, report)
    report.write()


if __name__ == "__main__":
    main()
