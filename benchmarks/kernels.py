"""Claim: building BCOP kernels, forward and backward, is at least 5× faster than the paper's way, on two CPU cores.

The paper's way is Algorithm 1 with 20 first-order Björck steps on the matrices themselves, differentiated through, and
literal block convolutions. Ours is a training step's whole share: retraction after an update of the parameters, build,
gradient. Both in float32, same parameters, same run. (The authors' own code is slower than this reference: it
orthogonalises square c×c matrices where Algorithm 1 needs c×c/2.)

    python benchmarks/kernels.py [--quick] [--json FILE]
"""

import argparse
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from isoconv.linalg import bjorck, compose_kernels, projector_column, projector_from_basis, projector_row
from isoconv.models import Large
from isoconv.nn import BCOPConv2d, OrthogonalLinear


def paper_kernel(layer: BCOPConv2d) -> Tensor:
    """Algorithm 1, literally."""
    kernel = bjorck(layer.O, 20, 1, gram_space=False)[..., None, None]
    if layer.MN is not None:
        for M, N in zip(layer.MN[0::2], layer.MN[1::2], strict=True):
            P, Q = (projector_from_basis(bjorck(matrix, 20, 1, gram_space=False)) for matrix in (M, N))
            kernel = compose_kernels(kernel, projector_column(P), projector_row(Q))
    return kernel


def median_seconds(step: Callable[[], None], repeats: int) -> float:
    step()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 2]


def compare(layers: list[nn.Module], repeats: int) -> tuple[float, float]:
    """Seconds for one build with gradient of all `layers`: the paper's way, ours."""
    parameters = [p for layer in layers for p in layer.parameters()]
    noise = [1e-3 * torch.randn_like(p) / p.shape[-1] ** 0.5 for p in parameters]

    def paper() -> None:
        for layer in layers:
            weight = bjorck(layer.matrix, 20, 1, gram_space=False) if isinstance(layer, OrthogonalLinear) else None
            weight = paper_kernel(layer) if isinstance(layer, BCOPConv2d) else weight
            assert weight is not None
            weight.sum().backward()

    def ours() -> None:
        with torch.no_grad():
            torch._foreach_add_(parameters, noise)
        for layer in layers:
            layer.weight.sum().backward()  # type: ignore[operator,union-attr]

    return median_seconds(paper, _fewer(repeats)), median_seconds(ours, repeats)


def _fewer(repeats: int) -> int:
    """How often the paper's way is timed, which takes so much longer."""
    return max(2, repeats // 4)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="fewer repeats, c up to 128")
    parser.add_argument("--json", type=Path, default=None, help="write the figures to this file too")
    arguments = parser.parse_args()
    quick: bool = arguments.quick
    torch.manual_seed(0)
    repeats = 4 if quick else 12
    hardware = f"CPU, {torch.get_num_threads()} threads, {platform.machine()}"
    print(f"torch {torch.__version__}, {hardware}, median of {repeats} runs, of the paper's way {_fewer(repeats)}")
    print(f"{'what':>24} {'paper':>10} {'ours':>10} {'ratio':>7}")
    figures = {}

    def measure(name: str, layers: list[nn.Module]) -> None:
        paper, ours = compare(layers, repeats)
        print(f"{name:>24} {paper * 1e3:8.1f}ms {ours * 1e3:8.1f}ms {paper / ours:6.1f}×", flush=True)
        figures[name] = {"paper_ms": paper * 1e3, "ours_ms": ours * 1e3, "ratio": paper / ours}

    for c in (32, 64, 128) if quick else (32, 64, 128, 256, 512):
        for k in (2, 3, 5):
            measure(f"BCOP c={c} k={k}", [BCOPConv2d(c, c, k, bias=False)])
    for name, kinds in (("Large, convolutions", (BCOPConv2d,)), ("Large, all layers", (BCOPConv2d, OrthogonalLinear))):
        measure(name, [layer for layer in Large((3, 32, 32)) if isinstance(layer, kinds)])
    if arguments.json:
        record = {
            "hardware": hardware,
            "torch": torch.__version__,
            "repeats": repeats,
            "paper_repeats": _fewer(repeats),
        }
        arguments.json.write_text(json.dumps(record | {"figures": figures}, indent=2) + "\n")


if __name__ == "__main__":
    main()
