"""Critics against distances that are known: how close they come, and that no proved bound exceeds the truth.

Two kinds of critic are trained, fc, an orthogonal network, and anchors, minima of distances to learned points. The settings
were chosen on funnels of seed 0; those measured have seed 1. The pairs with their proofs are the tests' oracle too.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
from torch import Tensor, nn

from benchmarks.known_distances import KnownPair, funnel_pair, line_pairs, make_funnels, radial_pairs, translation
from isoconv.data import epoch_generator
from isoconv.wasserstein.bound import wasserstein_lower_bound
from isoconv.wasserstein.critic import TrainedCritic, critic_config, train_critics, typical_scale
from isoconv.wasserstein.samples import DrawnSamples, FiniteSamples, Samples
from isoconv.wasserstein.vector_critic import NearestAnchor
from reproduction.cells import Cell, Figures, Outcome, Results
from reproduction.frames import Table

if TYPE_CHECKING:
    from reproduction.measure import Session

_CRITICS = ("anchors", "fc")
_QUICK = {"epochs": 1, "steps_per_epoch": 10, "batch_size": 32, "width": 16, "depth": 1, "anchors": 16}


def measure(name: str, session: "Session") -> Outcome:
    """Measure one of the cells: known (closed forms, funnels of dimension 2 and 4), funnels-D, same-samples, budget."""
    if name == "budget":
        return {}, {"budget": _measure_budget(session)}
    counts = (4,) if session.quick else (4, 16, 64, 256)
    dimensions = {"known": (2, 4), "same-samples": (2, 4, 8, 16, 32, 64, 128)}.get(name) or (int(name.split("-")[1]),)
    funnels = [(d, n) for d in dimensions for n in counts]
    pairs = [] if name.startswith("funnels") else _closed_forms()[:: 8 if session.quick else 1]
    pairs += [funnel_pair(d, n, 1, 2**13 if session.quick else 2**18) for d, n in funnels]
    if name == "same-samples":
        cases = [(pair, critic) for pair in pairs[::3] for critic in _CRITICS]
        return {}, {f"{pair.name}; {critic}": _compare(pair, critic, session) for pair, critic in cases}
    rows = {f"{pair.name}; {critic}": _judge(pair, critic, session) for pair in pairs for critic in _CRITICS}
    for pair, (d, n) in zip(pairs[len(pairs) - len(funnels) :], funnels, strict=True):
        truth = make_funnels(d, n, 1)  # the pair's own potential: only the confidence keeps its bounds below the truth
        potential = NearestAnchor(truth.centres)
        with torch.no_grad():
            potential.raw_offsets.copy_(truth.offsets * 8)
        rows[f"{pair.name}; the true potential"] = _try(potential.to(session.device), pair, session)
    return {"trials": 2 if session.quick else 10, "trial_samples": 100 if session.quick else 2000}, rows


def _closed_forms() -> list[KnownPair]:
    kinds = [(d, *kind) for d in (2, 32, 128) for kind in ((math.sqrt(d), "normal"), (1.0, "uniform"))]
    moved = [translation(*kind) for kind in (*kinds, (32, 1.0, "mixture"))]
    return [*moved, *line_pairs(), *radial_pairs(2), *radial_pairs(128)]


def _train(
    critic: str, first: Samples, second: Samples, session: "Session", changes: dict[str, Any], **options: Any
) -> TrainedCritic:
    config = critic_config(first.name, second.name, first.shape, critic, **changes | (_QUICK if session.quick else {}))
    config = replace(config, scale=typical_scale(first, second, config))
    options |= {"device": session.device, "should_stop": session.should_stop}
    return train_critics([config], None, first, second, **options)[0]


def _judge(pair: KnownPair, critic: str, session: "Session") -> dict[str, float]:
    """Train on fresh draws, judge by many fresh draws; then, in trials of few draws each, count what exceeds the truth."""
    count, began = 2000 if session.quick else 2**17, time.perf_counter()
    first, second = (DrawnSamples(side, (pair.dimension,), getattr(pair, side), count) for side in ("first", "second"))
    trained = _train(critic, first, second, session, {}, value_range=pair.support)
    bound, seconds = trained.bound, time.perf_counter() - began
    row = {"distance": pair.distance, "distance_error": pair.distance_error, "seconds": seconds}
    row |= {name: getattr(bound, name) for name in ("estimate", "lower", "lipschitz_bound")}
    return row | {"ratio": bound.estimate / pair.distance} | _try(trained.critic, pair, session)


def _try(critic: nn.Module, pair: KnownPair, session: "Session") -> dict[str, float]:
    """Count how often a bound from few samples exceeds the truth, by method and confidence."""
    counts: dict[str, float] = {}
    for trial in range(2 if session.quick else 10):
        names = (f"{side} trial {pair.name}" for side in ("first", "second"))
        random = (epoch_generator(trial, 0, name, session.device) for name in names)
        xs, ys = (
            draw(100 if session.quick else 2000, one)
            for draw, one in zip((pair.first, pair.second), random, strict=True)
        )
        for confidence in (0.95, 0.9999):
            for method in ("asymptotic", "betting") if pair.support else ("asymptotic",):
                options: dict[str, Any] = {"value_range": pair.support, "method": method, "batch_size": 10_000}
                lower = wasserstein_lower_bound(critic, xs, ys, confidence, **options).lower
                above, trials = f"{method} at {confidence}, above the truth", f"{method} at {confidence}, trials"
                counts[above] = counts.get(above, 0) + (lower > pair.distance + 3 * pair.distance_error)
                counts[trials] = counts.get(trials, 0) + 1
    return counts


def _compare(pair: KnownPair, critic: str, session: "Session") -> dict[str, float]:
    """Train and judge on the same finite samples, whose exact distance POT computes."""
    n, generator = 50 if session.quick else 1000, epoch_generator(0, 0, "same samples")
    xs, ys = pair.first(n, generator).double(), pair.second(n, generator).double()
    whole = FiniteSamples("first", xs, whole=True), FiniteSamples("second", ys, whole=True)
    trained = _train(critic, *whole, session, {"batch_size": min(256, n)})
    return {"emd2": _exact_distance(xs, ys), "estimate": trained.bound.estimate}


def _exact_distance(xs: Tensor, ys: Tensor) -> float:
    import ot

    cost = torch.cdist(xs, ys, compute_mode="donot_use_mm_for_euclid_dist").numpy()
    return float(ot.emd2([], [], cost, numItermax=10**7))


def _measure_budget(session: "Session") -> dict[str, float]:
    """Measure 2,000 vectors of dimension 32 against others moved by 1 in each coordinate, as `isoconv wasserstein` does."""
    n, random, truth, began = (
        200 if session.quick else 2000,
        epoch_generator(0, 0, "budget"),
        math.sqrt(32),
        time.perf_counter(),
    )
    xs, ys = (torch.randn(n, 32, generator=random, dtype=torch.float64) + shift for shift in (0, 1))
    held = FiniteSamples("first", xs, side="first"), FiniteSamples("second", ys, side="second")
    bounds = [_train(critic, *held, session, {"epochs": 3}, confidence=0.975).bound for critic in _CRITICS]
    best, seconds = max(bounds, key=lambda bound: bound.lower), time.perf_counter() - began
    whole = FiniteSamples("first", xs, whole=True), FiniteSamples("second", ys, whole=True)
    same = _train("fc", *whole, session, {}).bound
    row = {"truth": truth, "held_out": best.estimate, "lower": best.lower, "seconds": seconds}
    row |= {"emd2": _exact_distance(xs, ys), "same_samples": same.estimate}
    return row | {f"ratio of {bound.model}": bound.estimate / truth for bound in bounds}


def tabulate(cells: Sequence[Cell], results: Results) -> Table:
    """Ratios to the truth by kind of pair, for each critic and the better one of both."""
    records = {cell.name: r for cell, r in results.items() if isinstance(r, Figures)}
    rows = {key: row for name, r in records.items() if name[:5] in ("known", "funne") for key, row in r.rows.items()}
    frame = pd.DataFrame.from_dict(rows, orient="index")
    keys = frame.index.str.split("; ")
    frame["pair"], frame["critic"] = keys.str[0], keys.str[1]
    frame["kind"] = frame["pair"].str.extract(r"^(\w+)")[0]
    trained = frame[frame["ratio"].notna()]
    better = trained.sort_values("lower").groupby("pair").tail(1).assign(critic="the better one")
    groups = pd.concat([trained, better]).groupby(["kind", "critic"], sort=False)["ratio"]
    summary = groups.agg(["count", "mean", "min", "max"]).sort_index(level="kind", sort_remaining=False).reset_index()
    summary[["mean", "min", "max"]] = summary[["mean", "min", "max"]].map(lambda x: f"{100 * x:.1f} %")
    names = ["pairs", "critic", "how many", "mean of the truth", "least", "most"]
    summary = summary.astype(str).set_axis(names, axis=1)
    notes = []
    for confidence in ("0.9999", "0.95"):
        columns = frame.filter(like=f"at {confidence},")
        above, trials = (int(columns.filter(like=word).sum().sum()) for word in ("above the truth", "trials"))
        notes.append(f"At confidence {confidence}, {above} of {trials:,} lower bounds exceed the truth.")
    if "same-samples" in records:
        same = pd.DataFrame.from_dict(records["same-samples"].rows, orient="index")
        below = int((same["estimate"] <= same["emd2"]).sum())
        notes.append(f"On the same samples, {below} of {len(same)} critics stay below the exact distance (POT's emd2).")
    if "budget" in records:
        row = records["budget"].rows["budget"]
        off = 100 * abs(row["held_out"] / row["truth"] - 1)
        notes.append(
            f"Two sets of 2,000 vectors of dimension 32, one moved: {row['seconds']:.0f} s on {records['budget'].hardware}, "
            f"{off:.1f} % off the truth on held-out samples; on its own samples "
            f"{100 * row['same_samples'] / row['emd2']:.0f} % of emd2."
        )
    return Table("Critics against distances that are known", summary, notes)
