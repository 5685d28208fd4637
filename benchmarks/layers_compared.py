"""All methods in the network of "1-Lipschitz Layers Compared" (Prach et al. 2024), each with the same time to train.

python -m benchmarks.layers_compared --data DIR                                # all methods, 60 s, three seeds
python -m benchmarks.layers_compared --data DIR --only bcop --seeds 0          # one method, in this process
python -m benchmarks.layers_compared --table                                   # table and plot from the result files
python -m benchmarks.layers_compared --data DIR --small --out DIR              # a minute on a CPU; the figures mean nothing

The network is size S on CIFAR-10: batches of 256, crop and flip, cross-entropy with offset 2√2·36/255 and temperature ¼,
as in the paper. Every method gets four trials, of 15 s each, without the last 5,000 training images; the one that
certifies most of those at 36/255 is trained again on all training images for the budget. The test set is used once for each
such network, by the certifier, in float64.

The budget counts training with all that belongs to it (batches, augmentation, projections). It does not count the first
steps, in which CUDA graphs are captured: they are taken to have lasted as long as the later ones. The time of a step is
measured beforehand, and the schedule of the learning rate ends with the last step that fits.

One file per trial and per network. What is there is not done again; what fails is written down, and the rest goes on.
"""

import argparse
import gc
import itertools
import json
import math
import os
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.measuring import Report, fill_marks, to_markdown, wait
from isoconv.certify import Certifier, robust_accuracy
from isoconv.certify.rules import Node
from isoconv.data import EpochBatches, ImageSet, load_splits
from isoconv.errors import IsoconvError
from isoconv.losses import offset_cross_entropy
from isoconv.models import ConvNet
from isoconv.nn import METHODS, ConvexPotential2d, SVCMConv2d
from isoconv.nn.convolution import convolve_same
from isoconv.nn.svcm import project_together
from isoconv.train import fit
from isoconv.train.capture import lay_out
from isoconv.train.distributed import choose_device
from isoconv.train.engine import EpochReport, Silent

COMPARED = ("bcop", "cpl", "aol", "sll", "soc", "cayley", "bro", "rko", "ossn", "svcm")
RADII = (36 / 255, 72 / 255, 108 / 255)
#: Optimiser and rate of each trial. AOL diverges at the others' rates: its row sums grow with all entries of a kernel.
TRIALS = (("steepest", 0.01), ("steepest", 0.003), ("adam", 0.003), ("adam", 0.001))
OWN_TRIALS = {"aol": (("steepest", 0.001), ("steepest", 0.0003), ("adam", 0.0003), ("adam", 0.0001))}
LOSS: dict[str, Any] = {"temperature": 0.25, "offset": 2 * math.sqrt(2) * 36 / 255}
#: SVCM is projected once after so many updates, and by many iterations at the end, which count as training.
PROJECTION: dict[str, Any] = {"project_every": 5, "project_iterations": 1}
_LAST_PROJECTIONS = 50
_CAPTURE_FAILED = 3  # the exit status of a process whose device is of no use after a failed capture
_LONGEST_CAPTURE = 100.0  # seconds after which an attempt to capture a step is given up
_AROUND_TRIAL, _AROUND_RUN = 25.0, 75.0  # seconds that a trial, or a run, may take beside its training


@dataclass(frozen=True)
class Scale:
    """How large everything is."""

    width: int = 32
    depth: int = 5
    batch_size: int = 256
    held_out: int = 5000
    images: int | None = None
    steps_per_round: int = 50
    iterations: int = 50  # of the power iteration


SMALL = Scale(width=8, depth=1, batch_size=16, held_out=64, images=192, steps_per_round=2, iterations=10)


class Rounds:
    """Batches without end, epoch after epoch, cut into rounds of equally many, which `fit` takes for epochs."""

    def __init__(self, batches: EpochBatches, steps: int) -> None:
        self.steps, self.stream = steps, itertools.chain.from_iterable(map(batches.epoch, itertools.count()))

    def __len__(self) -> int:
        return self.steps

    def epoch(self, number: int) -> Iterator[Any]:
        return itertools.islice(self.stream, self.steps)


class Clock(Silent):
    """Notes when each round has ended on the device."""

    def __init__(self) -> None:
        self.times = [time.perf_counter()]

    def epoch(self, report: EpochReport) -> None:
        self.times.append(time.perf_counter())

    @property
    def seconds_per_round(self) -> float:
        """The mean of all rounds but the first, in which graphs are captured."""
        return (self.times[-1] - self.times[1]) / (len(self.times) - 2)


def compute_loss(model: nn.Module, images: Tensor, labels: Tensor) -> tuple[Tensor, Mapping[str, Tensor]]:
    logits = model(lay_out(images) / 255)
    return offset_cross_entropy(logits, labels, **LOSS), {"accuracy": (logits.argmax(dim=1) == labels).sum()}


@dataclass
class Bench:
    """Data, device and sizes of one process, and what it has found out about methods."""

    train: ImageSet
    test: ImageSet
    device: torch.device
    scale: Scale
    eager: bool = False
    speeds: dict[tuple[str, str], tuple[float, float]] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.train.shape

    def make_network(self, method: str, seed: int) -> nn.Module:
        totals = self.train.images.sum(dim=(0, 2, 3), dtype=torch.float64)
        centre = (totals / (255 * self.train.images[:, 0].numel())).tolist()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            sizes = {"width": self.scale.width, "depth": self.scale.depth}
            return ConvNet(self.shape, len(self.train.classes), method, centre=centre, **sizes)

    def fit(
        self, network: nn.Module, images: ImageSet, optimiser: str, rate: float, rounds: int, seed: int
    ) -> dict[str, Any]:
        """Train a network in place for so many rounds. Return how long that took, and what it used."""
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)
        batches = EpochBatches(images, self.scale.batch_size, seed=seed, device=self.device, padding=4, flip=True)
        clock, steps = Clock(), rounds * self.scale.steps_per_round
        options: dict[str, Any] = {"seed": seed, "device": self.device, "captured": not self.eager, "observer": clock}
        source = Rounds(batches, self.scale.steps_per_round)
        (result,) = fit(
            network,
            source,
            compute_loss,
            optimiser,
            epochs=rounds,
            lr=rate,
            schedule="one-cycle",
            **options,
            **PROJECTION,
        )
        projected = time.perf_counter()
        layers = [module for module in network.modules() if isinstance(module, SVCMConv2d)]
        project_together(layers, _LAST_PROJECTIONS)
        wait(self.device)
        last = time.perf_counter() - projected
        figures: dict[str, Any] = {"seconds": rounds * clock.seconds_per_round + last, "last_projections_seconds": last}
        figures |= {"first_round_seconds": clock.times[1] - clock.times[0], "steps": steps}
        figures |= {"seconds_in_all": result.seconds + last}
        figures |= {"ms_per_step": 1000 * clock.seconds_per_round / self.scale.steps_per_round}
        figures |= {"epochs": steps / len(batches), "captured": not self.eager and self.device.type == "cuda"}
        figures |= {"last": result.metrics}
        if self.device.type == "cuda":
            figures["peak_memory_mib"] = torch.cuda.max_memory_allocated(self.device) / 2**20
        return figures

    def measure_speed(self, method: str, optimiser: str) -> tuple[float, float]:
        """Return the seconds of a step, and those after the last one; find out whether a step can be captured.

        Raise SystemExit if the device is lost in the attempt, or end the process if the attempt does not end.
        """
        key = method, optimiser
        if key not in self.speeds:
            run = partial(self.fit, images=self.train, optimiser=optimiser, rate=3e-3, rounds=3, seed=0)
            watch = threading.Timer(_LONGEST_CAPTURE, os._exit, [_CAPTURE_FAILED])
            try:
                if self.device.type == "cuda" and not self.eager:
                    watch.start()
                figures = run(self.make_network(method, 0))
            except (RuntimeError, IsoconvError) as error:
                if self.eager or self.device.type != "cuda":
                    raise
                say(f"{method}: not captured, {type(error).__name__}: {first_line(error)}")
                self.eager = True
                try:
                    wait(self.device)
                    figures = run(self.make_network(method, 0))
                except RuntimeError:
                    raise SystemExit(_CAPTURE_FAILED) from error
            finally:
                watch.cancel()
            self.speeds[key] = figures["ms_per_step"] / 1000, figures["last_projections_seconds"]
            say(f"{method}, {optimiser}: {figures['ms_per_step']:.2f} ms per step")
        return self.speeds[key]

    def count_rounds(self, method: str, optimiser: str, seconds: float) -> int:
        """Return how many rounds fit into a budget."""
        step, last = self.measure_speed(method, optimiser)
        return max(2, int((seconds - last) / (step * self.scale.steps_per_round)))

    @torch.no_grad()
    def score(self, network: nn.Module, images: ImageSet) -> dict[str, float]:
        """Return accuracies in percent, to choose by: proved constants, but logits in float32."""
        certifier, right, certified = Certifier(network.eval(), self.shape), 0, 0
        for start in range(0, len(images), 500):
            pixels = images.images[start : start + 500].to(self.device)
            labels = images.labels[start : start + 500].to(self.device)
            x = lay_out(pixels) / 255
            answer = certifier.from_logits(network(x).double(), x.double().flatten(1).norm(dim=1))
            correct = answer.prediction == labels
            right, certified = (
                right + int(correct.sum()),
                certified + int((correct & (answer.radius >= RADII[0])).sum()),
            )
        return {"clean": 100 * right / len(images), "certified": 100 * certified / len(images)}

    # What is written ------------------------------------------------------------------------------------------------

    def try_rate(self, method: str, optimiser: str, rate: float, seconds: float) -> dict[str, Any]:
        """Train without the last training images, and look how much of them is certified."""
        count = len(self.train) - self.scale.held_out
        kept, held_out = self.train.take(count), self.train.subset(torch.arange(count, len(self.train)))
        network, rounds = self.make_network(method, 0), self.count_rounds(method, optimiser, seconds)
        figures = self.fit(network, kept, optimiser, rate, rounds, seed=0)
        return figures | {"validation": self.score(network, held_out)}

    def run(
        self, method: str, trial: Mapping[str, Any], seconds: float, seed: int, keep: Path | None
    ) -> dict[str, Any]:
        """Train with the settings of a trial on all training images, and certify the test images."""
        optimiser, rate = trial["optimiser"], trial["rate"]
        network, rounds = self.make_network(method, seed), self.count_rounds(method, optimiser, seconds)
        figures = self.fit(network, self.train, optimiser, rate, rounds, seed)
        figures |= {"parameters": sum(p.numel() for p in network.parameters())}
        began = time.perf_counter()
        certifier = Certifier(network.eval(), self.shape)
        wait(self.device)
        figures["certifier_seconds"] = time.perf_counter() - began
        accuracy = robust_accuracy(certifier, self.test, RADII)
        figures["certification_seconds"] = time.perf_counter() - began
        figures |= {"images": len(self.test), "clean": accuracy.clean}
        figures["certified"] = {str(round(255 * radius)): accuracy.at(radius) for radius in RADII}
        bound, estimate = certifier.lipschitz.value, estimate_bound(certifier, self.scale.iterations)
        figures |= {"lipschitz_bound": bound, "estimate": estimate, "above_estimate": bound / estimate - 1}
        figures |= {"error_offset": certifier.error.offset, "error_slope": certifier.error.slope}
        if keep is not None:
            keep.mkdir(parents=True, exist_ok=True)
            state = certifier.deployed.state_dict().items()
            tensors = {name: tensor.cpu().contiguous() for name, tensor in state}
            save_file(tensors, keep / f"{method}-{seconds:g}s-seed{seed}.safetensors")
        return figures


def estimate_bound(certifier: Certifier, iterations: int) -> float:
    """Return the product of the layers' norms as power iterations estimate them, from below; other modules as bounded."""
    product = 1.0
    for node, bound in zip(certifier.nodes, certifier.bounds, strict=True):
        product *= estimate_norm(node, iterations) if isinstance(node.module, _LINEAR) else bound
    return product


_LINEAR = (nn.Conv2d, nn.Linear, ConvexPotential2d)


def estimate_norm(node: Node, iterations: int) -> float:
    """Return the norm of a layer, estimated by a power iteration; of a convex potential, what follows for it."""
    module: Any = node.module

    def apply(x: Tensor) -> Tensor:
        if isinstance(module, nn.Linear):
            return F.linear(x, module.weight)
        if isinstance(module, ConvexPotential2d):
            return convolve_same(x, module.weight, None, module.padding_mode)
        if node.circular is not None:
            x = F.pad(x, [n for pair in reversed(node.circular) for n in pair], mode="circular")
        y = module(x)
        return y if module.bias is None else y - module.bias[:, None, None]

    x = torch.randn(1, *node.input_shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x, norm = x.to(module.weight.device), 0.0
    with torch.enable_grad():
        for _ in range(iterations):
            x = (x / x.norm()).requires_grad_()
            y = apply(x)
            norm = float(y.detach().norm())
            (x,) = torch.autograd.grad(y, x, y.detach())
    return max(1.0, norm**2 - 1) if isinstance(module, ConvexPotential2d) else norm


# Files ------------------------------------------------------------------------------------------------------------------


def say(line: str) -> None:
    print(time.strftime("%H:%M:%S"), line, flush=True)


def first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0][:300]


def make_record(
    path: Path, settings: dict[str, Any], bench: Bench, commit: str | None, work: Callable[[], dict[str, Any]]
) -> None:
    """Do a piece of work and write what came of it, be it a failure."""
    settings |= {"loss": LOSS, "projection": PROJECTION, "scale": vars(bench.scale)}
    report, began = Report(path, bench.device, commit, **settings), time.perf_counter()
    try:
        report.figures |= work()
    except Exception as error:
        traceback.print_exc()
        report.figures["failed"] = f"{type(error).__name__}: {first_line(error)}"
    report.figures["wall_seconds"] = time.perf_counter() - began
    report.write()
    shown = ("seconds", "epochs", "ms_per_step", "validation", "clean", "certified", "lipschitz_bound", "failed")
    say(f"{path.name}: " + json.dumps({name: report.figures[name] for name in shown if name in report.figures}))


def read_trials(folder: Path, method: str) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted((folder / "trials").glob(f"{method}-*.json"))]


def choose_trial(trials: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the trial that certified most of the held-out images, or the most accurate of those."""
    whole = [trial for trial in trials if "failed" not in trial]
    if not whole:
        raise IsoconvError("Expected a trial that trains. All of them failed.")
    return max(whole, key=lambda trial: (trial["validation"]["certified"], trial["validation"]["clean"]))


# Commands ---------------------------------------------------------------------------------------------------------------


def work_on(method: str, asked: argparse.Namespace) -> None:
    """Do what is missing of one method, in this process."""
    deadline = time.monotonic() + asked.limit
    scale = SMALL if asked.small else Scale()
    splits = load_splits("cifar10", asked.data)
    train, test = (part if scale.images is None else part.take(scale.images) for part in (splits.train, splits.test))
    bench = Bench(train, test, torch.device(choose_device(asked.device)), scale, asked.eager)
    for optimiser, rate in OWN_TRIALS.get(method, TRIALS):
        path = asked.out / "trials" / f"{method}-{optimiser}-{rate:g}.json"
        if path.exists():
            continue
        if time.monotonic() + asked.trial_seconds + _AROUND_TRIAL > deadline:
            say(f"{path.name}: no time left for it")
            return
        settings = {"method": method, "optimiser": optimiser, "rate": rate, "trial_seconds": asked.trial_seconds}
        make_record(
            path, settings, bench, asked.commit, partial(bench.try_rate, method, optimiser, rate, asked.trial_seconds)
        )
    for seed in asked.seeds:
        path = asked.out / f"{method}-{asked.budget:g}s-seed{seed}.json"
        if path.exists():
            continue
        if time.monotonic() + asked.budget + _AROUND_RUN > deadline:
            say(f"{path.name}: no time left for it")
            return
        settings = {"method": method, "budget": asked.budget, "seed": seed}

        def run(seed: int = seed) -> dict[str, Any]:
            trial = choose_trial(read_trials(asked.out, method))
            chosen = {"optimiser": trial["optimiser"], "rate": trial["rate"]}
            return chosen | bench.run(method, trial, asked.budget, seed, asked.keep)

        make_record(path, settings, bench, asked.commit, run)


def work_on_all(asked: argparse.Namespace) -> None:
    """Do what is missing, each method in a process of its own: first the trials of all methods, then their seeds."""
    deadline = time.monotonic() + asked.limit

    def launch(method: str, *seeds: int) -> None:
        paths = [asked.out / f"{method}-{asked.budget:g}s-seed{seed}.json" for seed in seeds]
        if paths and all(path.exists() for path in paths):
            return
        command = [sys.executable, "-m", "benchmarks.layers_compared", "--only", method, "--seeds", *map(str, seeds)]
        for name in ("data", "out", "device", "budget", "trial_seconds", "keep", "commit"):
            if getattr(asked, name) is not None:
                command += [f"--{name.replace('_', '-')}", str(getattr(asked, name))]
        command += ["--small"] * asked.small
        for more in [["--eager"]] if asked.eager else [[], ["--eager"]]:
            left = deadline - time.monotonic()
            if left < min(asked.budget, asked.trial_seconds):
                return
            if subprocess.run([*command, *more, "--limit", str(left)]).returncode != _CAPTURE_FAILED:
                return

    with ThreadPoolExecutor(asked.jobs) as pool:
        list(pool.map(launch, asked.methods))
    for method in asked.methods if asked.seeds else ():
        launch(method, *asked.seeds)


# The page ---------------------------------------------------------------------------------------------------------------


def write_page(asked: argparse.Namespace) -> None:
    """Write the table into the page and draw the plot, from the result files."""
    import pandas as pd

    records = [json.loads(path.read_text()) for path in sorted(asked.out.glob("*-seed*.json"))]
    rows = []
    for record in records:
        row = {name: record.get(name) for name in ("method", "budget", "seed", "optimiser", "rate", "clean", "failed")}
        row |= {f"at {radius}": record.get("certified", {}).get(radius) for radius in ("36", "72", "108")}
        row |= {"epochs": record.get("epochs"), "ms": record.get("ms_per_step"), "seconds": record.get("seconds")}
        row |= {"GiB": record.get("peak_memory_mib", math.nan) / 1024, "bound": record.get("lipschitz_bound")}
        rows.append(row | {"above": record.get("above_estimate"), "captured": record.get("captured")})
    frame = pd.DataFrame(rows)
    tables = []
    for budget, part in frame.groupby("budget"):
        tables.append(f"\n{budget:g} seconds of training:\n\n" + describe(part))
    hardware = sorted({f"{record['hardware']}, torch {record['torch']}" for record in records})
    text = "\n".join(tables) + f"\nMeasured on {'; '.join(hardware)}.\n"
    picture = os.path.relpath(asked.picture, asked.page.parent)
    text += f"\n![Certified accuracy of every method, against the radius and the epochs]({picture})\n"
    if asked.page.exists():
        asked.page.write_text(fill_marks(asked.page.read_text(), ["layers"], lambda name: text))
    else:
        print(text)
    draw(frame, asked.picture)


def describe(frame: Any) -> str:
    """Return one line per method, best first: means over the seeds, ± standard deviations where there are several."""
    head = ["method", "seeds", "clean %", "36/255", "72/255", "108/255", "epochs", "ms per step", "memory", "bound"]
    head, lines = [*head, "above estimate", "trained by"], list[list[str]]()
    good = frame[frame["failed"].isna()]
    order = good.groupby("method")["at 36"].mean().sort_values(ascending=False).index
    for method in order:
        part = good[good["method"] == method]
        first, count = part.iloc[0], len(part)

        def figure(name: str, part: Any = part, count: int = count) -> str:
            spread = f" ± {part[name].std():.1f}" if count > 1 else ""
            return f"{part[name].mean():.1f}{spread}"

        memory = "" if math.isnan(part["GiB"].max()) else f"{part['GiB'].max():.1f} GiB"
        eager = "" if part["captured"].all() else " (eager)"
        cells = [METHODS[method].title, str(count), *map(figure, ("clean", "at 36", "at 72", "at 108"))]
        cells += [f"{part['epochs'].mean():.1f}", f"{part['ms'].mean():.2f}{eager}", memory]
        cells += [
            f"{part['bound'].max():.6g}",
            f"{part['above'].max():.1e}",
            f"{first['optimiser']}, {first['rate']:g}",
        ]
        lines.append(cells)
    for method, part in frame[frame["failed"].notna()].groupby("method"):
        lines.append([METHODS[str(method)].title, str(len(part)), "failed: " + str(part.iloc[0]["failed"])])
    return to_markdown(head, (line + [""] * (len(head) - len(line)) for line in lines))


def draw(frame: Any, path: Path) -> None:
    """Draw certified accuracy against the radius, and at 36/255 against the epochs that the budget bought."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot as plt

    good = frame[frame["failed"].isna()]
    good = good[good["budget"] == good["budget"].min()]
    means = good.groupby("method").mean(numeric_only=True).sort_values("at 36", ascending=False)
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.2))
    styles = itertools.cycle(["o-", "s-", "^-", "D-", "v-"])
    for style, (method, row) in zip(styles, means.iterrows(), strict=False):
        title = METHODS[str(method)].title
        (line,) = left.plot([0, 36, 72, 108], [row[name] for name in ("clean", "at 36", "at 72", "at 108")], style)
        line.set_label(title)
        right.plot([row["epochs"]], [row["at 36"]], style[0], color=line.get_color())
        right.annotate(title, (row["epochs"], row["at 36"]), xytext=(5, 4), textcoords="offset points", fontsize=8)
    left.set(xlabel="radius × 255", ylabel="certified accuracy, %", xticks=[0, 36, 72, 108])
    left.legend(fontsize=8, ncols=2)
    budget = means["budget"].min() if len(means) else 0
    right.set(xlabel=f"epochs in {budget:g} s", ylabel="certified at 36/255, %", xscale="log")
    for axes in (left, right):
        axes.grid(alpha=0.3)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    names: dict[str, Any] = {"choices": list(METHODS), "metavar": "METHOD"}
    parser.add_argument("--methods", nargs="+", default=list(COMPARED), **names)
    parser.add_argument("--only", help="one method, in this process", **names)
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of training")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2], help="none for trials alone")
    parser.add_argument("--trial-seconds", type=float, default=15.0)
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder of CIFAR-10")
    parser.add_argument("--out", type=Path, default=Path("results/layers"))
    parser.add_argument("--keep", type=Path, help="keep the plain weights of the networks in this folder")
    parser.add_argument("--limit", type=float, default=math.inf, help="seconds after which nothing more is begun")
    parser.add_argument("--jobs", type=int, default=1, help="methods whose trials run at the same time")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--eager", action="store_true", help="without CUDA graphs")
    parser.add_argument("--small", action="store_true", help="a narrow network and 256 images, to see that it runs")
    parser.add_argument("--commit", help="of the source, where it is no git repository")
    parser.add_argument("--table", action="store_true", help="write table and plot, measure nothing")
    parser.add_argument("--page", type=Path, default=Path("docs/layers-compared.md"))
    parser.add_argument("--picture", type=Path, default=Path("docs/pictures/layers_compared.svg"))
    asked = parser.parse_args()
    if asked.table:
        write_page(asked)
    elif asked.only:
        work_on(asked.only, asked)
    else:
        work_on_all(asked)


if __name__ == "__main__":
    main()
