"""Times: training steps, critics' steps, building kernels, projections, imports. One file each in `results/speed/`.

python -m reproduction time --run      # or another name in `MEASURES`
"""

import copy
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from itertools import product
from statistics import fmean, median, pstdev
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from benchmarks.measuring import Step, race
from isoconv.linalg import (
    bjorck,
    circular_singular_values,
    compose_kernels,
    projector_column,
    projector_from_basis,
    projector_row,
)
from isoconv.linalg.clipping import clip_and_mask
from isoconv.models import Large, Small
from isoconv.nn import BCOPConv2d, MaxMin, OrthogonalLinear, OSSNConv2d, RKL2NEConv2d, RKOConv2d, SVCMConv2d
from isoconv.nn.built_weight import BuiltWeight
from isoconv.train.classifier import Classification
from isoconv.train.config import PAPERS_PROJECTIONS, TrainConfig, make_model, recipe_settings
from isoconv.train.engine import Learner
from isoconv.wasserstein.critic import CriticTask, critic_config, make_critic
from isoconv.wasserstein.samples import FiniteSamples
from reproduction import paper
from reproduction.cells import Outcome, Rows, Settings
from reproduction.frames import NAMES, Tabulate, format_seconds, tabulate_figures

if TYPE_CHECKING:
    from reproduction.measure import Session

_ADAM: dict[str, Any] = {"optimiser": "adam", "lr": 1e-3}
_STEEPEST: dict[str, Any] = {"optimiser": "steepest", "lr": 1e-2}


def _race(
    cases: Mapping[str, Callable[[], Any]], session: "Session", rounds: int, calls: int
) -> dict[str, list[float]]:
    """Return the seconds of one call of each case, round by round."""
    return race(cases, session.device, 1 if session.quick else rounds, calls, session.should_stop)


# Training steps ---------------------------------------------------------------------------------------------------


def _make_step(learners: Sequence[Learner], batch: Sequence[Tensor], captured: bool = True) -> Step:
    """Return the step of learners, warmed up."""
    step = Step(learners, batch, captured, 30 if learners[0].device.type == "cuda" else 1)
    step.project()  # the first one finds kernels that have not been projected yet
    return step


def _make_large_step(
    session: "Session", recipe: str = "default", conv: str = "bcop", seeds: int = 1, **changes: Any
) -> Step:
    """Return the step of Large on CIFAR-10. `captured` and `network` are this function's own, the rest the recipe's."""
    captured, network = changes.pop("captured", True), changes.pop("network", None)
    fields = recipe_settings(recipe, "cifar10", conv) | {"conv": conv, "batch_size": _choose_batch(session)} | changes
    config = TrainConfig(data="cifar10", input_shape=(3, 32, 32), classes=tuple("0123456789"), model="large", **fields)
    configs = [replace(config, seed=seed) for seed in range(seeds)]
    learners = [
        Learner.from_config(c, network or make_model(c), Classification(c), 10**6, device=session.device)
        for c in configs
    ]
    images = torch.randint(0, 256, (config.batch_size, 3, 32, 32), dtype=torch.uint8)
    return _make_step(learners, (images, torch.randint(0, 10, (config.batch_size,))), captured)


def _choose_batch(session: "Session") -> int:
    return 16 if session.quick else 128


def _choose_rounds(session: "Session") -> tuple[int, int]:
    """Return the number of rounds, and of steps in one."""
    return (9, 100) if session.device == "cuda" else (3, 1 if session.quick else 3)


def measure_time(session: "Session") -> Outcome:
    """Time a step of each method in the default recipe and in the paper's. SVCM's has its share of the projections."""
    methods, rounds = ("standard", "bcop", "rko", "ossn", "svcm"), _choose_rounds(session)
    cases = {
        f"{conv}, {recipe}": _make_large_step(session, recipe, conv)
        for recipe in ("default", "paper")
        for conv in methods
    }
    seconds, rows = _race(cases, session, *rounds), {}
    projections = _race({name: cases[name].project for name in cases if "svcm" in name}, session, rounds[0], 1)
    for name, each in seconds.items():
        every = PAPERS_PROJECTIONS["project_every"] if name.endswith("paper") else TrainConfig.project_every
        each = [step + part / every for step, part in zip(each, projections.get(name, [0.0] * len(each)), strict=True)]
        rows[name] = {"median": median(each), "mean": fmean(each), "std": pstdev(each)}
        rows[name] |= {"projection": median(projections[name])} if name in projections else {}
    counts: Settings = {"batch_size": _choose_batch(session), "rounds": rounds[0], "steps_per_round": rounds[1]}
    return {"dataset": "cifar10", "model": "large", **counts}, rows


def measure_steps(session: "Session") -> Outcome:
    """Time BCOP with both optimisers, the paper's way captured and eager, and orthogonium where it is installed."""
    papers = {"orthogonalisation": "bjorck", **_ADAM}
    cases = {
        "ordinary, Adam": _make_large_step(session, conv="standard", **_ADAM),
        "BCOP, Adam": _make_large_step(session, **_ADAM),
        "BCOP, steepest descent": _make_large_step(session, **_STEEPEST),
        "the paper's way, captured": _make_large_step(session, **papers),
        "the paper's way, eager": _make_large_step(session, captured=False, **papers),
    }
    settings: Settings = {"model": "large", "data": "cifar10", "batch": _choose_batch(session)}
    if network := _orthogonium_network():
        cases["orthogonium, eager"] = _make_large_step(session, captured=False, network=network, **_ADAM)
        settings["orthogonium"] = version("orthogonium")
    return settings, _ratios(_race(cases, session, *_choose_rounds(session)))


def _ratios(seconds: dict[str, list[float]]) -> Rows:
    """Return the median of each case, and of its ratio to the first one in the same round."""
    first = next(iter(seconds.values()))
    ratios = {name: median(a / b for a, b in zip(each, first, strict=True)) for name, each in seconds.items()}
    return {name: {"ms": 1e3 * median(each), "ratio": ratios[name]} for name, each in seconds.items()}


def _orthogonium_network() -> nn.Module | None:
    """Return Large made of orthogonium's layers, or None where it is not installed."""
    try:
        from orthogonium.layers import AdaptiveOrthoConv2d, MaxMin, OrthoLinear
    except ImportError:
        return None
    layers: list[nn.Module] = []
    for c_in, c_out, size, stride in ((3, 32, 3, 1), (32, 32, 4, 2), (32, 64, 3, 1), (64, 64, 4, 2)):
        layers += [AdaptiveOrthoConv2d(c_in, c_out, size, stride=stride, padding=(size - 1) // 2), MaxMin()]
    dense = [OrthoLinear(4096, 512), MaxMin(), OrthoLinear(512, 512), MaxMin(), OrthoLinear(512, 10)]
    return nn.Sequential(*layers, nn.Flatten(), *dense)


def measure_critic_steps(session: "Session") -> Outcome:
    """Time a step of the critic for 64×64 images: 64 of each of two distributions."""
    size, batch = (16, 4) if session.quick else (64, 64)
    methods = {"unconstrained, Adam": ("standard", "adam"), "unconstrained, RMSprop": ("standard", "rmsprop")}
    methods |= {"BCOP, steepest descent": ("bcop", "steepest"), "BCOP, RMSprop": ("bcop", "rmsprop")}
    methods |= {"RKO, steepest descent": ("rko", "steepest"), "OSSN, Adam": ("ossn", "adam")}
    images = torch.randint(0, 256, (2, batch, 3, size, size), dtype=torch.uint8)
    samples, cases = FiniteSamples("a", images[0], whole=True), {}
    for name, (conv, optimiser) in methods.items():
        lr = 1e-2 if optimiser == "steepest" else 1e-4
        changes: dict[str, Any] = {"optimiser": optimiser, "lr": lr, "batch_size": batch, "pixel_range": (-1.0, 1.0)}
        config = critic_config("a", "b", samples.shape, conv=conv, **changes)
        critic = make_critic(config, samples, samples)
        learner = Learner.from_config(config, critic, CriticTask(config), 10**6, device=session.device)
        cases[name] = _make_step([learner], (images[0], images[1]))
    return {"size": size, "batch": batch}, _ratios(_race(cases, session, *_choose_rounds(session)))


def measure_replicas(session: "Session") -> Outcome:
    """Time a step of each of several networks that train side by side."""
    cases = {str(seeds): _make_large_step(session, seeds=seeds) for seeds in (1, 2, 5)}
    rows = _ratios(_race(cases, session, *_choose_rounds(session)))
    return {"model": "large", "data": "cifar10", "conv": "bcop"}, {
        name: {"ms": row["ms"]} for name, row in rows.items()
    }


# Kernels ----------------------------------------------------------------------------------------------------------


def measure_complexity(session: "Session") -> Outcome:
    """Time building a 3×3 kernel from c to c channels after its parameters have changed, without a gradient.

    For OSSN that is ten power iterations at the image's size, for SVCM fifty projections, which are made once in a
    hundred steps, for the others their orthogonalisation or normalisation.
    """
    plain = {"bcop": BCOPConv2d, "rko": RKOConv2d, "rkl2ne": RKL2NEConv2d}
    sized = {"ossn": OSSNConv2d, "svcm": SVCMConv2d}
    makes: dict[str, Any] = {f"{n}, default": lambda c, s, k=kind: k(c, c, 3) for n, kind in plain.items()}
    makes |= {f"{n}, default": lambda c, s, k=kind: k(c, c, 3, input_size=s) for n, kind in sized.items()}
    way = {"orthogonalisation": "bjorck"}
    makes |= {f"{n}, paper": lambda c, s, k=plain[n]: k(c, c, 3, **way) for n in ("bcop", "rko")}
    channels, sizes = ((4, 8), (4, 8)) if session.quick else ((16, 32, 64, 128, 256), (8, 16, 32, 64))
    rows: Rows = {}
    for name, make in makes.items():
        rows[f"{name}, channels"] = {str(c): _build_time(make(c, 16), session) for c in channels}
        rows[f"{name}, sizes"] = {str(s): _build_time(make(32, s), session) for s in sizes}
    return {"kernel_size": 3, "image_size_for_channels": 16, "channels_for_image_size": 32}, rows


def _build_time(layer: nn.Module, session: "Session") -> float:
    """Return the median of five builds; fewer if they take longer than ten seconds."""
    change, build = _make_update([layer.to(session.device).train()]), lambda: layer.weight
    build = layer.project if isinstance(layer, SVCMConv2d) else build  # type: ignore[assignment]
    times: list[float] = []
    while len(times) < 6 and sum(times) < 10:
        change()
        with torch.no_grad():
            times += _race({"": build}, session, 1, 1)[""]
    return median(times[1:] or times)


def _make_update(layers: Sequence[nn.Module]) -> Callable[[], None]:
    """Return a function that changes the parameters a little, as an update would."""
    parameters: list[Tensor] = [p for layer in layers for p in layer.parameters()]
    noise = [1e-3 * torch.randn_like(p) / p.shape[-1] ** 0.5 for p in parameters]

    def change() -> None:
        with torch.no_grad():
            torch._foreach_add_(parameters, noise)

    return change


def measure_kernels(session: "Session") -> Outcome:
    """Time building weights with their gradient: ours, with the retraction after an update, and the paper's way.

    The paper's way is Algorithm 1 with 20 first-order Björck steps, differentiated through, and literal block
    convolutions, with c×c/2 matrices; the authors' own code orthogonalises c×c ones.
    """
    rows, repeats = {}, 12
    sizes = [(c, k) for c in ((32,) if session.quick else (32, 64, 128, 256, 512)) for k in (2, 3, 5)]
    cases: dict[str, list[nn.Module]] = {f"BCOP c={c} k={k}": [BCOPConv2d(c, c, k, bias=False)] for c, k in sizes}
    layers = list(Large((3, 32, 32)))
    cases["Large, convolutions"] = [layer for layer in layers if isinstance(layer, BCOPConv2d)]
    cases["Large, all layers"] = [layer for layer in layers if isinstance(layer, (BCOPConv2d, OrthogonalLinear))]
    for name, modules in cases.items():
        change = _make_update(modules)

        def ours(modules: list[Any] = modules, change: Callable[[], None] = change) -> None:
            change()
            torch.stack([layer.weight.sum() for layer in modules]).sum().backward()

        def papers(modules: list[Any] = modules) -> None:
            torch.stack([_build_papers_weight(layer).sum() for layer in modules]).sum().backward()

        _race({"warm up": ours}, session, 1, 1)
        a, b = (_race({"": way}, session, n, 1)[""] for way, n in ((papers, repeats // 4), (ours, repeats)))
        rows[name] = {"paper_ms": 1e3 * median(a), "ours_ms": 1e3 * median(b), "ratio": median(a) / median(b)}
    return {"repeats": repeats, "paper_repeats": repeats // 4, "machine": platform.machine()}, rows


def _build_papers_weight(layer: Any) -> Tensor:
    """Return the weight by Algorithm 1, literally."""
    if isinstance(layer, OrthogonalLinear):
        return bjorck(layer.matrix, 20, 1, gram_space=False)
    kernel, pairs = bjorck(layer.O, 20, 1, gram_space=False)[..., None, None], layer.MN
    for M, N in () if pairs is None else zip(pairs[0::2], pairs[1::2], strict=True):
        P, Q = (projector_from_basis(bjorck(matrix, 20, 1, gram_space=False)) for matrix in (M, N))
        kernel = compose_kernels(kernel, projector_column(P), projector_row(Q))
    return kernel


@torch.no_grad()
def measure_projection(session: "Session") -> Outcome:
    """Time SVCM's 50 projections of Large's kernels, of norm 1.1, with and without an SVD, of one network and of five.

    Errors are the largest difference of an entry from the projection by SVD in float64 on the CPU.
    """
    count, rows = (1 if session.quick else 50), {}
    for layer in Large((3, 32, 32), conv="svcm"):
        if isinstance(layer, SVCMConv2d):
            grid, kernels = layer.convolved_size, torch.randn(5, *layer.kernel.shape)
            kernels = torch.stack([kernel * (1.1 / circular_singular_values(kernel, grid)[0]) for kernel in kernels])
            exact, placed = _project_by_svd(kernels[0].double(), grid, count), kernels.to(session.device)
            ways: dict[str, Any] = {
                "svd_seconds": lambda k=placed[0], g=grid: _project_by_svd(k, g, count),
                "seconds": lambda k=placed[0], g=grid: clip_and_mask(k, g, count),
                "five_apart_seconds": lambda p=placed, g=grid: torch.stack([clip_and_mask(k, g, count) for k in p]),
                "five_together_seconds": lambda k=placed, g=grid: clip_and_mask(k, g, count),
            }
            found = {name: way() for name, way in ways.items()}
            row = {name: median(each) for name, each in _race(ways, session, 3, 1).items()}
            errors = {"svd_error": found["svd_seconds"].cpu() - exact, "error": found["seconds"].cpu() - exact}
            errors["together_error"] = found["five_together_seconds"] - found["five_apart_seconds"]
            shape = "×".join(map(str, layer.kernel.shape)) + " at " + "×".join(map(str, grid))
            rows[shape] = row | {name: float(value.abs().max()) for name, value in errors.items()}
    rows["all of Large"] = {name: math.fsum(one[name] for one in rows.values()) for name in ways}
    return {"norm": 1.1, "iterations": count, "networks": 5}, rows


def _project_by_svd(kernel: Tensor, grid: tuple[int, int], count: int) -> Tensor:
    """Project as the paper does: transform, clip by an SVD at every frequency, transform back, cut."""
    rows, columns = kernel.shape[2:]
    for _ in range(count):
        symbol = torch.fft.rfftn(kernel, s=grid, dim=(2, 3)).permute(2, 3, 0, 1)
        left, values, right = torch.linalg.svd(symbol, full_matrices=False)
        clipped = (left * values.clamp_max(1).unsqueeze(-2)) @ right
        kernel = torch.fft.irfftn(clipped.permute(2, 3, 0, 1), s=grid, dim=(2, 3))[:, :, :rows, :columns]
    return kernel


def measure_comparison(session: "Session") -> Outcome:
    """Time two parts against their wholes, in turn: what comparing the parameters takes of a forward pass of Large in
    evaluation, and a training step of three convolutions compiled against the eager one."""
    model, images = Large((3, 32, 32)).eval().to(session.device), torch.rand(_choose_batch(session), 3, 32, 32)
    layers, images = [one for one in model.modules() if isinstance(one, BuiltWeight)], images.to(session.device)

    network = nn.Sequential(
        BCOPConv2d(3, 32, 3), MaxMin(), BCOPConv2d(32, 32, 4, 2), MaxMin(), BCOPConv2d(32, 64, 3), nn.Flatten()
    ).to(session.device)
    backend = "aot_eager" if session.quick else "inductor"
    pairs = {
        "comparison in a forward pass of Large": (
            torch.no_grad()(lambda: [one.weight for one in layers]),
            torch.no_grad()(lambda: model(images)),
        ),
        "compiled step against the eager one": (
            _make_plain_step(torch.compile(copy.deepcopy(network), backend=backend), images[:32]),
            _make_plain_step(network, images[:32]),
        ),
    }
    rows = {}
    for name, (part, whole) in pairs.items():
        for _ in range(3):  # warm-up
            part(), whole()
        seconds = _race({"part": part, "whole": whole}, session, 31, 1)
        ratios = [a / b for a, b in zip(seconds["part"], seconds["whole"], strict=True)]
        rows[name] = {kind: median(each) for kind, each in seconds.items()} | {"ratio": median(ratios)}
    return {"batch": len(images), "step_batch": 32, "threads": torch.get_num_threads()}, rows


def _make_plain_step(model: Any, images: Tensor) -> Callable[[], None]:
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)

    def step() -> None:
        optimiser.zero_grad()
        model(images).square().mean().backward()
        optimiser.step()

    return step


def measure_eager(session: "Session") -> Outcome:
    """Compare a step of BCOP with one of the ordinary network in a user's own loop on a CPU: eager, with torch's Adam.

    Only ratios, in time on the clock and in the process's own processor time, which other work on the machine disturbs less.
    """
    networks: dict[str, tuple[Any, tuple[int, ...], int]] = {
        "Small on MNIST": (Small, (1, 28, 28), 5),
        "Large on CIFAR-10": (Large, (3, 32, 32), 1),
    }
    rounds, warm_up = (1, 1) if session.quick else (21, 20)
    rows: Rows = {}
    for threads, name in product((1, 2), networks):
        kind, shape, calls = networks[name]
        images = torch.rand(_choose_batch(session), *shape)
        cases = {conv: _make_plain_step(kind(shape, conv=conv), images) for conv in ("standard", "bcop")}
        with _threads(threads):
            race(cases, "cpu", warm_up, 1, session.should_stop)  # the first steps of Adam are its longest
            for clock in (time.perf_counter, time.process_time):
                ordinary, ours = race(cases, "cpu", rounds, calls, session.should_stop, clock).values()
                ratio = median(b / a for a, b in zip(ordinary, ours, strict=True))
                rows.setdefault(f"{name}, threads: {threads}", {})[clock.__name__] = ratio
    waiting = os.environ.get("OMP_WAIT_POLICY", "default")
    return {"batch": _choose_batch(session), "rounds": rounds, "OMP_WAIT_POLICY": waiting}, rows


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# Imports ----------------------------------------------------------------------------------------------------------


def measure_imports(session: "Session", rounds: int = 9) -> Outcome:
    """Time imports in processes of their own: the least processor time, and the median on the clock.

    `import isoconv` loads no room: torch comes with the first one that is used, so the fair figure is that of all rooms.
    """
    statements = {"torch": "import torch", "isoconv": "import isoconv", "all rooms": "from isoconv import *"}
    timed = "import time; now = lambda: (time.perf_counter(), time.process_time())\na, b = now()\n{}\nc, d = now()"
    timed += "\nprint(c - a, d - b)"
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in statements}
    for _ in range(1 + rounds):  # the first warms the disk
        for name, statement in statements.items():
            command = [sys.executable, "-c", timed.replace("{}", statement)]
            clock, processor = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
            times[name].append((float(clock), float(processor)))
    rows = {
        name: {"clock": median(c for c, _ in t[1:]), "processor": min(p for _, p in t[1:])} for name, t in times.items()
    }
    return {"rounds": rounds}, {
        name: row | {"ratio": row["processor"] / rows["torch"]["processor"]} for name, row in rows.items()
    }


MEASURES: dict[str, Callable[["Session"], Outcome]] = {
    "time": measure_time,
    "complexity": measure_complexity,
    "steps": measure_steps,
    "critic-steps": measure_critic_steps,
    "replicas": measure_replicas,
    "kernels": measure_kernels,
    "svcm-projection": measure_projection,
    "weight-comparison": measure_comparison,
    "eager-cpu": measure_eager,
    "imports": measure_imports,
}


# Tables -----------------------------------------------------------------------------------------------------------


def _time_frame(frame: pd.DataFrame) -> pd.DataFrame:
    frame[["method", "recipe"]] = frame["name"].str.split(", ", expand=True)
    ordinary = frame[frame["method"] == "standard"].set_index("recipe")["median"]
    papers = frame["method"].map(paper.STEP_SECONDS)
    return pd.DataFrame(
        {
            "method": frame["method"].map(NAMES),
            "recipe": frame["recipe"],
            "ours": frame["median"].map(format_seconds),
            "× ordinary": (frame["median"] / frame["recipe"].map(ordinary)).map("{:.2f}".format),
            "the paper's, P100": papers.map(format_seconds, na_action="ignore"),
            "× ordinary there": (papers / paper.STEP_SECONDS["standard"]).map("{:.2f}".format, na_action="ignore"),
        }
    ).fillna("–")


def fit_exponent(points: pd.Series) -> float:
    """Return the slope of the line closest to (log x, log seconds)."""
    points = points.dropna()
    return float(np.polyfit(np.log(points.index.astype(float)), np.log(points.astype(float)), 1)[0])


def _complexity_frame(frame: pd.DataFrame) -> pd.DataFrame:
    times, rows = frame.set_index("name").drop(columns=["cell", "hardware"]), []
    for name in dict.fromkeys(name.rsplit(", ", 1)[0] for name in times.index):
        conv, recipe = name.split(", ")
        row, ends = {"method": NAMES[conv], "recipe": recipe}, {}
        for letter, axis, which in (("c", "channels", 0), ("s", "sizes", 1)):
            points = times.loc[f"{name}, {axis}"].dropna().sort_index(key=lambda index: index.astype(int))
            row |= {f"{letter}: fitted": f"{fit_exponent(points):.2f}"}
            row |= {f"{letter}: last two": f"{fit_exponent(points.iloc[-2:]):.2f}"}
            row |= {f"{letter}: the paper's": str(paper.COMPLEXITY.get(conv, ("–", "–"))[which])}
            ends[f"largest {letter}"] = f"{points.index[-1]}: {format_seconds(points.iloc[-1])}"
        rows.append(row | ends)
    return pd.DataFrame(rows)


def _step_frame(frame: pd.DataFrame) -> pd.DataFrame:
    """Leave out what the paper's table of times has already."""
    frame = frame[~frame["name"].isin(["BCOP, steepest descent", "RKO, steepest descent", "OSSN, Adam", _CAPTURED])]
    return _ratio_frame(frame)


def _ratio_frame(frame: pd.DataFrame) -> pd.DataFrame:
    times, ratios = frame["ms"].map(lambda ms: format_seconds(ms / 1e3)), frame["ratio"].map("{:.3g}×".format)
    return pd.DataFrame({"": frame["name"], "a step": times, "against the first": ratios})


def _replica_frame(frame: pd.DataFrame) -> pd.DataFrame:
    times = frame["ms"].map(lambda ms: format_seconds(ms / 1e3))
    return pd.DataFrame({"networks": frame["name"], "one step of each": times})


def _kernel_frame(frame: pd.DataFrame) -> pd.DataFrame:
    single = frame[frame["name"].str.startswith("BCOP")]["ratio"]
    rows = frame[frame["name"].str.startswith("Large")].iloc[::-1]
    columns = {name: rows[key].map(lambda ms: format_seconds(ms / 1e3)) for name, key in _KERNEL_COLUMNS.items()}
    table = pd.DataFrame({"": rows["name"], **columns, "faster": rows["ratio"].map("{:.1f}×".format)})
    span = f"{single.min():.1f} to {single.max():.1f}×"
    return pd.concat([table, pd.DataFrame([{"": "single layers, 32 to 512 channels", "faster": span}])]).fillna("")


def _projection_frame(frame: pd.DataFrame) -> pd.DataFrame:
    columns = {"by SVD": "svd_seconds", "ours": "seconds", "five at once": "five_together_seconds"}
    table = pd.DataFrame({name: frame[key].map(format_seconds) for name, key in columns.items()})
    table.insert(0, "kernel", frame["name"])
    errors = {"error by SVD": "svd_error", "our error": "error"}
    return table.assign(
        **{name: frame[key].map("{:.0e}".format, na_action="ignore") for name, key in errors.items()}
    ).fillna("")


def _comparison_frame(frame: pd.DataFrame) -> pd.DataFrame:
    columns = {name: frame[name].map(format_seconds) for name in ("part", "whole")}
    return pd.DataFrame({"": frame["name"], **columns, "ratio": frame["ratio"].map("{:.3f}".format)})


def _eager_frame(frame: pd.DataFrame) -> pd.DataFrame:
    network = frame["name"].str.split(", threads: ", expand=True)
    ratios = {"clock": "perf_counter", "processor": "process_time"}
    columns = {name: frame[key].map("{:.2f}×".format) for name, key in ratios.items()}
    return pd.DataFrame({"": network[0], "threads": network[1], **columns})


def _import_frame(frame: pd.DataFrame) -> pd.DataFrame:
    ratios = frame["ratio"].map("{:.2f}×".format)
    return pd.DataFrame({"import": frame["name"], "processor": frame["processor"].map(format_seconds), "torch": ratios})


_CAPTURED = "the paper's way, captured"
_KERNEL_COLUMNS = {"the paper's way": "paper_ms", "ours": "ours_ms"}
_EXPONENTS = (
    "Fitted: the slope of the line closest to all points in logarithms; last two: between the two largest, where overheads "
    "weigh least. SVCM: fifty projections. The paper's: its bound per iteration, O(c³) or O(c³s²)."
)
TABLES: dict[str, Tabulate] = {
    "time": tabulate_figures(
        "One training step of Large on CIFAR-10, batch 128",
        _time_frame,
        "SVCM's step includes a hundredth of its 50 projections, which are made every 100 steps.",
        texts=2,
    ),
    "complexity": tabulate_figures(
        "Time to build a layer of 3×3 from c to c channels for images of s×s", _complexity_frame, _EXPONENTS, texts=2
    ),
    "steps": tabulate_figures("Other ways to take a step of Large on CIFAR-10, batch 128, in one run", _step_frame),
    "critic-steps": tabulate_figures("A step of the critic for 64×64 images, 64 of each distribution", _ratio_frame),
    "replicas": tabulate_figures("Several networks of Large, which share one CUDA graph", _replica_frame),
    "kernels": tabulate_figures("Building orthogonal weights, forward and backward", _kernel_frame),
    "svcm-projection": tabulate_figures("SVCM's fifty projections of Large's kernels, float32", _projection_frame),
    "weight-comparison": tabulate_figures("Weights that are never stale, and compiled", _comparison_frame),
    "eager-cpu": tabulate_figures("A step of BCOP against the ordinary network's, eager, on a CPU", _eager_frame),
    "imports": tabulate_figures("Imports, in processor time", _import_frame),
}
