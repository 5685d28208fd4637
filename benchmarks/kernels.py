"""Claim: building BCOP kernels, forward and backward, is at least 5× faster than the paper's way, on two CPU cores.

The paper's way is Algorithm 1 with 20 first-order Björck steps on the matrices themselves, differentiated through, and
literal block convolutions. Ours is a training step's whole share: retraction after an update of the parameters, build,
gradient. Both in float32, same parameters, same run. (The authors' own code is slower than this reference: it
orthogonalises square c×c matrices where Algorithm 1 needs c×c/2.)

    python benchmarks/kernels.py [--quick]
"""

import argparse
import platform
import time
from collections.abc import Callable

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

    return median_seconds(paper, max(2, repeats // 4)), median_seconds(ours, repeats)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="fewer repeats, c up to 128")
    quick = parser.parse_args().quick
    torch.manual_seed(0)
    repeats = 4 if quick else 12
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads, {platform.machine()}, median of {repeats} runs"
    )
    print(f"{'what':>24} {'paper':>10} {'ours':>10} {'ratio':>7}")
    for c in (32, 64, 128) if quick else (32, 64, 128, 256, 512):
        for k in (2, 3, 5):
            paper, ours = compare([BCOPConv2d(c, c, k, bias=False)], repeats)
            print(
                f"{f'BCOP c={c} k={k}':>24} {paper * 1e3:8.1f}ms {ours * 1e3:8.1f}ms {paper / ours:6.1f}×", flush=True
            )
    for name, kinds in (("Large, convolutions", (BCOPConv2d,)), ("Large, all layers", (BCOPConv2d, OrthogonalLinear))):
        layers = [layer for layer in Large((3, 32, 32)) if isinstance(layer, kinds)]
        paper, ours = compare(layers, repeats)
        print(f"{name:>24} {paper * 1e3:8.1f}ms {ours * 1e3:8.1f}ms {paper / ours:6.1f}×", flush=True)


if __name__ == "__main__":
    main()
