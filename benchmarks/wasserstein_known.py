"""Checks critics against distances that are known: how close they come, and that they never exceed them.

Claims: over the 28 funnel pairs the mean ratio to the truth is at least 0.85, on translations at least 0.99; at confidence
0.9999 no lower bound exceeds the truth, at 0.95 no more of them than the binomial limit; on the same samples no critic's
value exceeds its constant times POT's exact `emd2`; two sets of 2,000 vectors of dimension 32 take less than 60 s on two
CPU cores, and a translation is found to 5 %. Two kinds of critic are reported apart, fc, an orthogonal network, and
anchors, minima of distances to learned points; and the better of both, the command's default. Settings were chosen on
funnels of seed 0; those measured have seed 1.

    python benchmarks/wasserstein_known.py [--critics anchors,fc] [--parts funnels,closed,trials,samples,budget]
        [--dimensions 2,4,…] [--epochs N] [--width N] [--depth N] [--batch-size N] [--device auto] [--json FILE] [--quick]
    python benchmarks/wasserstein_known.py --summary results/wasserstein/known_cpu.json results/wasserstein/funnels_*.json
"""

import argparse
import json
import math
import platform
import time
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from isoconv.data.seeds import epoch_generator
from isoconv.train.distributed import choose_device
from isoconv.wasserstein.bound import wasserstein_lower_bound
from isoconv.wasserstein.critic import TrainedCritic, critic_config, train_critics, typical_scale
from isoconv.wasserstein.samples import DrawnSamples, FiniteSamples, Samples
from isoconv.wasserstein.vector_critic import NearestAnchor
from known_distances import (
    FUNNEL_COUNTS,
    FUNNEL_DIMENSIONS,
    KnownPair,
    funnel_pair,
    line_pairs,
    make_funnels,
    radial_pairs,
    translation,
)

FUNNEL_SEED = 1
CONFIDENCES = (0.95, 0.9999)


def closed_forms(quick: bool) -> list[KnownPair]:
    """Translations, one-dimensional and radial pairs."""
    dimensions = (2, 8) if quick else (2, 32, 128)
    moved = [
        translation(d, length, base)
        for d in dimensions
        for length, base in ((math.sqrt(d), "normal"), (1.0, "uniform"))
    ]
    moved += [] if quick else [translation(32, 1.0, "mixture")]
    return [*moved, *line_pairs(), *radial_pairs(2), *radial_pairs(dimensions[-1])]


def funnels(arguments: argparse.Namespace) -> list[tuple[KnownPair, nn.Module]]:
    """Each pair with its own potential: a critic whose value is the distance, so that only confidence keeps it below."""
    found = []
    for d in arguments.dimensions:
        for n in FUNNEL_COUNTS[:2] if arguments.quick else FUNNEL_COUNTS:
            own = make_funnels(d, n, FUNNEL_SEED)
            potential = NearestAnchor(own.centres)
            with torch.no_grad():
                potential.raw_offsets.copy_(own.offsets * 8)
            found.append((funnel_pair(d, n, FUNNEL_SEED, 2**13 if arguments.quick else 2**18), potential))
    return found


def train(
    model: str, first: Samples, second: Samples, arguments: argparse.Namespace, **options: Any
) -> tuple[TrainedCritic, float]:
    """A critic by the default recipe (or what the arguments change in it), and the seconds that it took."""
    names = ("epochs", "width", "depth", "batch_size", "group_size", "lr", "anchors")
    changed = {name: getattr(arguments, name) for name in names if getattr(arguments, name) is not None}
    changed |= options.pop("changed", {})
    if arguments.quick:
        changed |= {"epochs": 1, "steps_per_epoch": 10, "batch_size": 32, "width": 16, "depth": 1, "anchors": 16}
    config = critic_config(first.name, second.name, first.shape, model, **changed)
    began = time.perf_counter()
    config = replace(config, scale=typical_scale(first, second, config))
    (found,) = train_critics([config], None, first, second, **options)
    return found, time.perf_counter() - began


def measure(pair: KnownPair, model: str, arguments: argparse.Namespace, device: str) -> dict[str, Any]:
    """Train on fresh draws, judge on many fresh draws; then, in trials of few draws each, count what exceeds the truth."""
    count = 2000 if arguments.quick else 2**17
    shape = (pair.dimension,)
    sides = DrawnSamples("first", shape, pair.first, count), DrawnSamples("second", shape, pair.second, count)
    found, seconds = train(model, *sides, arguments, value_range=pair.support, device=device)
    row: dict[str, Any] = {"pair": pair.name, "critic": model, "distance": pair.distance, "seconds": seconds}
    row |= {"distance_error": pair.distance_error, "estimate": found.bound.estimate, "lower": found.bound.lower}
    row |= {"ratio": found.bound.estimate / pair.distance, "lipschitz_bound": found.bound.lipschitz_bound}
    row["trials"] = trials(found.critic, pair, arguments, device) if "trials" in arguments.parts else {}
    print(
        f"{pair.name:>62} {model:>8}  truth {pair.distance:.4f}  ratio {row['ratio']:.4f}  "
        f"lower {row['lower'] / pair.distance:.4f} ({found.bound.method})  {seconds:.0f} s  "
        f"above the truth: {sum(above for above, _ in row['trials'].values())}",
        flush=True,
    )
    return row


def trials(critic: nn.Module, pair: KnownPair, arguments: argparse.Namespace, device: str) -> dict[str, list[int]]:
    """{method at confidence: [how often the bound exceeded the truth, out of how many]}."""
    counts: dict[str, list[int]] = {}
    truth = pair.distance + 3 * pair.distance_error
    for trial in range(arguments.trials):
        first, second = (epoch_generator(trial, 0, f"{side} trial {pair.name}", device) for side in ("first", "second"))
        xs, ys = pair.first(arguments.trial_samples, first), pair.second(arguments.trial_samples, second)
        for confidence in CONFIDENCES:
            for method in ("asymptotic", "betting") if pair.support else ("asymptotic",):
                bound = wasserstein_lower_bound(
                    critic, xs, ys, confidence, value_range=pair.support, method=method, batch_size=10_000
                )
                count = counts.setdefault(f"{method} at {confidence}", [0, 0])
                count[0] += bound.lower > truth
                count[1] += 1
    return counts


def same_samples(arguments: argparse.Namespace, device: str) -> list[dict[str, Any]]:
    """Critics trained and judged on the same finite samples, against POT."""
    n = 50 if arguments.quick else 1000
    rows = []
    pairs = (
        closed_forms(arguments.quick)[::3] + [pair for pair, _ in funnels(arguments)][:: 1 if arguments.quick else 3]
    )
    for pair in pairs:
        generator = epoch_generator(0, 0, "same samples")
        xs, ys = pair.first(n, generator).double(), pair.second(n, generator).double()
        exact = exact_distance(xs, ys)
        for model in arguments.critics:
            sides = FiniteSamples("first", xs, whole=True), FiniteSamples("second", ys, whole=True)
            changed = {"batch_size": min(256, n)}
            found, _ = train(model, *sides, arguments, device=device, changed=changed)
            rows.append({"pair": pair.name, "critic": model, "emd2": exact, "estimate": found.bound.estimate})
            print(f"{pair.name:>62} {model:>8}  same samples: {found.bound.estimate / exact:.4f} of emd2", flush=True)
            assert found.bound.estimate <= exact, f"{pair.name}: {found.bound.estimate} above emd2 {exact}"
    return rows


def exact_distance(xs: Tensor, ys: Tensor) -> float:
    import ot

    cost = torch.cdist(xs, ys, compute_mode="donot_use_mm_for_euclid_dist").numpy()
    return float(ot.emd2([], [], cost, numItermax=10**7))


def budget(arguments: argparse.Namespace) -> dict[str, Any]:
    """Two sets of 2,000 vectors of dimension 32, one moved by 1 in each coordinate, on the CPU, by the command's recipe."""
    n = 200 if arguments.quick else 2000
    random = epoch_generator(0, 0, "budget")
    xs = torch.randn(n, 32, generator=random, dtype=torch.float64)
    ys = torch.randn(n, 32, generator=random, dtype=torch.float64) + 1
    exact = exact_distance(xs, ys)
    plain = argparse.Namespace(**(vars(arguments) | dict.fromkeys(("epochs", "width", "depth", "lr", "group_size"))))
    held = FiniteSamples("first", xs, side="first"), FiniteSamples("second", ys, side="second")
    # As the command has it: 3 epochs (40 passes), both critics, half the risk each.
    tried = [train(model, *held, plain, changed={"epochs": 3}, confidence=0.975) for model in ("fc", "anchors")]
    seconds = sum(spent for _, spent in tried)
    judged = max((found for found, _ in tried), key=lambda found: found.bound.lower)
    whole = FiniteSamples("first", xs, whole=True), FiniteSamples("second", ys, whole=True)
    same, same_seconds = train("fc", *whole, plain)
    truth = math.sqrt(32)
    row = {"truth": truth, "held_out": judged.bound.estimate, "seconds": seconds, "threads": torch.get_num_threads()}
    row["critics"] = {found.bound.model: found.bound.estimate / truth for found, _ in tried}
    row |= {
        "lower": judged.bound.lower,
        "emd2": exact,
        "same_samples": same.bound.estimate,
        "same_seconds": same_seconds,
    }
    print(
        f"budget: 2 × {n} vectors of dimension 32, {torch.get_num_threads()} threads: {seconds:.1f} s, "
        f"{judged.bound.estimate / truth:.4f} of the truth on held-out samples; "
        f"same samples: {same.bound.estimate / exact:.4f} of emd2, {same_seconds:.1f} s",
        flush=True,
    )
    return row


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--critics", default="anchors,fc")
    parser.add_argument("--parts", default="funnels,closed,trials,samples,budget")
    parser.add_argument("--dimensions", default=",".join(map(str, FUNNEL_DIMENSIONS)), help="of the funnels")
    parser.add_argument("--trials", type=int, default=10, help="per pair and critic")
    parser.add_argument("--trial-samples", type=int, default=2000)
    for name, kind in (("epochs", int), ("width", int), ("depth", int), ("batch-size", int), ("group-size", int)):
        parser.add_argument(f"--{name}", type=kind, default=None)
    parser.add_argument("--anchors", type=int, default=None)
    parser.add_argument("--lr", type=float, default=None)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", default=None, help="write the figures to this file too")
    parser.add_argument("--quick", action="store_true", help="few pairs, a few steps: only to see that it runs")
    parser.add_argument("--summary", nargs="+", type=Path, help="sum up what these files hold; nothing is measured")
    arguments = parser.parse_args()
    if arguments.summary:
        print("\n".join(summary([row for file in arguments.summary for row in json.loads(file.read_text())["pairs"]])))
        return
    arguments.critics, arguments.parts = arguments.critics.split(","), arguments.parts.split(",")
    arguments.dimensions = [2, 8] if arguments.quick else [int(d) for d in arguments.dimensions.split(",")]
    if arguments.quick:
        arguments.trials, arguments.trial_samples = 2, 100
    device = choose_device(arguments.device)
    hardware = torch.cuda.get_device_name() if device == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    print(f"{hardware}, torch {torch.__version__}, Python {platform.python_version()}", flush=True)
    asked = {name: value for name, value in vars(arguments).items() if name != "json"}
    results: dict[str, Any] = {"hardware": hardware, "torch": torch.__version__, "arguments": asked}
    rows: list[dict[str, Any]] = []
    results["pairs"] = rows
    with_potentials = funnels(arguments) if "funnels" in arguments.parts else []
    pairs = closed_forms(arguments.quick) if "closed" in arguments.parts else []
    for pair in [*pairs, *(pair for pair, _ in with_potentials)]:
        for model in arguments.critics:
            rows.append(measure(pair, model, arguments, device))
            save(arguments.json, results)
    for pair, potential in with_potentials if "trials" in arguments.parts else []:
        counted = trials(potential.to(device), pair, arguments, device)
        rows.append({"pair": pair.name, "critic": "the true potential", "trials": counted})
    if "samples" in arguments.parts:
        results["same_samples"] = same_samples(arguments, device)
    if "budget" in arguments.parts:
        results["budget"] = budget(arguments)
    results["summary"] = summary(rows)
    for line in results["summary"]:
        print(line)
    save(arguments.json, results)


def better_of_both(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each pair the row of the critic whose lower bound is the higher one; the command's default, at half the risk."""
    best: dict[str, dict[str, Any]] = {}
    for row in rows:
        if "ratio" in row and row["lower"] > best.get(row["pair"], row | {"lower": -math.inf})["lower"]:
            best[row["pair"]] = row
    return [row | {"critic": "the better of both", "trials": {}} for row in best.values()]


def summary(measured: list[dict[str, Any]]) -> list[str]:
    rows = [*measured, *better_of_both(measured)]
    lines = []
    for model in dict.fromkeys(row["critic"] for row in rows):
        for kind in ("funnels", "translation", "line", "radial"):
            ratios = [
                row["ratio"]
                for row in rows
                if row["critic"] == model and row["pair"].startswith(kind) and "ratio" in row
            ]
            if ratios:
                lines.append(
                    f"{model}, {kind}: mean ratio {fmean(ratios):.4f} over {len(ratios)} pairs "
                    f"({min(ratios):.4f} to {max(ratios):.4f})"
                )
    totals: dict[str, list[int]] = {}
    for row in rows:
        for name, (above, out_of) in row["trials"].items():
            total = totals.setdefault(name, [0, 0])
            total[0], total[1] = total[0] + above, total[1] + out_of
    for name, (above, out_of) in totals.items():
        risk = 1 - float(name.rsplit(" ", 1)[1])
        limit = binomial_limit(out_of, risk)
        lines.append(f"{name}: {above} of {out_of} lower bounds above the truth (binomial limit {limit})")
    return lines


def binomial_limit(n: int, risk: float) -> int:
    """How many failures of probability `risk` in n trials are exceeded only once in ten thousand times."""
    total, k, term = 0.0, 0, (1 - risk) ** n
    while (total := total + term) < 0.9999:
        term *= (n - k) / (k + 1) * risk / (1 - risk)
        k += 1
    return k


def save(path: str | None, results: dict[str, Any]) -> None:
    if path:
        Path(path).write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
