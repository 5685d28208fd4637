"""Claim: SVCM's 50 clip-and-mask projections without an SVD are many times faster than with 50 batched ones, and equal.

The four convolutions of Large on CIFAR-10, random kernels scaled so that their largest singular value is the norm given,
float32, ours the median of the repeats, the SVDs once: on a GPU they take seconds. "Error" is the largest difference of an
entry to the projection by SVD in float64 on the CPU. Five kernels of the same shape, as of five networks in training, are
timed one after the other and at once.

    python benchmarks/svcm_projection.py [--device auto] [--repeats 3] [--norm 1.1] [--json FILE]
"""

import argparse
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from isoconv.linalg import circular_singular_values
from isoconv.linalg.clipping import clip_and_mask
from isoconv.models import Large
from isoconv.nn import SVCMConv2d
from isoconv.train.distributed import choose_device

ITERATIONS = 50
NETWORKS = 5


def by_svd(kernel: Tensor, grid: tuple[int, int], iterations: int = ITERATIONS) -> Tensor:
    """The paper's projections: transform, SVD at every frequency, clip, transform back, cut."""
    rows, columns = kernel.shape[2:]
    for _ in range(iterations):
        symbol = torch.fft.rfftn(kernel, s=grid, dim=(2, 3)).permute(2, 3, 0, 1)
        left, values, right = torch.linalg.svd(symbol, full_matrices=False)
        clipped = (left * values.clamp_max(1).unsqueeze(-2)) @ right
        kernel = torch.fft.irfftn(clipped.permute(2, 3, 0, 1), s=grid, dim=(2, 3))[:, :, :rows, :columns]
    return kernel


def timed(work: Callable[[], Tensor], device: torch.device, repeats: int) -> tuple[Tensor, float]:
    """What the work gives, and the median of its seconds."""
    times = []
    for _ in range(repeats):
        wait(device)
        start = time.perf_counter()
        found = work()
        wait(device)
        times.append(time.perf_counter() - start)
    return found, median(times)


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def scaled(kernel: Tensor, grid: tuple[int, int], norm: float) -> Tensor:
    """The kernel, so that its largest singular value is `norm`."""
    return kernel * (norm / circular_singular_values(kernel, grid)[0])


def measured(kernels: Tensor, grid: tuple[int, int], device: torch.device, repeats: int) -> dict[str, Any]:
    """Seconds of each way, and the errors; both for the first kernel, and for all of them the seconds of ours."""
    exact = by_svd(kernels[0].double(), grid)
    placed = kernels.to(device)
    by_svd(placed[0], grid, 1)  # these two warm up
    clip_and_mask(placed, grid, ITERATIONS)
    usual, svd_seconds = timed(lambda: by_svd(placed[0], grid), device, 1)
    found, ours = timed(lambda: clip_and_mask(placed[0], grid, ITERATIONS), device, repeats)
    one_by_one, apart = timed(
        lambda: torch.stack([clip_and_mask(k, grid, ITERATIONS) for k in placed]), device, repeats
    )
    at_once, together = timed(lambda: clip_and_mask(placed, grid, ITERATIONS), device, repeats)
    errors = {"svd_error": usual.cpu() - exact, "error": found.cpu() - exact, "together_error": at_once - one_by_one}
    return {
        "svd_seconds": svd_seconds,
        "seconds": ours,
        "five_apart_seconds": apart,
        "five_together_seconds": together,
    } | {name: float(difference.abs().max()) for name, difference in errors.items()}


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="auto")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--norm", type=float, default=1.1)
    parser.add_argument("--json", type=Path, default=None, help="write the figures to this file too")
    arguments = parser.parse_args()
    device = torch.device(choose_device(arguments.device))
    hardware = torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    print(f"{hardware}, torch {torch.__version__}, Python {platform.python_version()}; {ITERATIONS} projections")
    torch.manual_seed(0)
    rows: list[dict[str, Any]] = []
    for layer in Large((3, 32, 32), conv="svcm"):
        if not isinstance(layer, SVCMConv2d):
            continue
        grid, kernel = layer.convolved_size, layer.kernel.detach()
        others = [kernel, *(torch.empty_like(kernel).normal_() for _ in range(NETWORKS - 1))]
        kernels = torch.stack([scaled(one, grid, arguments.norm) for one in others])
        row = measured(kernels, grid, device, arguments.repeats)
        rows.append({"kernel": list(kernel.shape), "grid": list(grid)} | row)
        print(
            f"{tuple(kernel.shape)!s:>20} at {grid}: SVD {row['svd_seconds']:.3f} s (error {row['svd_error']:.0e}), "
            f"ours {row['seconds']:.4f} s (error {row['error']:.0e}): {row['svd_seconds'] / row['seconds']:.0f}×; "
            f"{in_words(row)}, differing by {row['together_error']:.0e}",
            flush=True,
        )
    names = ("svd_seconds", "seconds", "five_apart_seconds", "five_together_seconds")
    total = {name: sum(row[name] for row in rows) for name in names}
    print(
        f"all of Large: SVD {total['svd_seconds']:.2f} s, ours {total['seconds']:.3f} s: "
        f"{total['svd_seconds'] / total['seconds']:.1f}×; {in_words(total)}"
    )
    if arguments.json:
        record = {"hardware": hardware, "torch": torch.__version__, "norm": arguments.norm, "layers": rows}
        arguments.json.write_text(json.dumps(record | total, indent=2) + "\n")


def in_words(row: dict[str, Any]) -> str:
    apart, together = row["five_apart_seconds"], row["five_together_seconds"]
    return f"five {apart:.4f} s one after the other, {together:.4f} s at once: {apart / together:.1f}×"


if __name__ == "__main__":
    main()
