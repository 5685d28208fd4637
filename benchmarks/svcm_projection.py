"""Claim: SVCM's 50 clip-and-mask projections without an SVD are many times faster than with 50 batched ones, and equal.

The four convolutions of Large on CIFAR-10, random kernels scaled so that their largest singular value is the norm given,
float32, median of the repeats. "Error" is the largest difference of an entry to the projection by SVD in float64.

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


def by_svd(kernel: Tensor, grid: tuple[int, int]) -> Tensor:
    """The paper's projections: transform, SVD at every frequency, clip, transform back, cut."""
    rows, columns = kernel.shape[2:]
    for _ in range(ITERATIONS):
        symbol = torch.fft.rfftn(kernel, s=grid, dim=(2, 3)).permute(2, 3, 0, 1)
        left, values, right = torch.linalg.svd(symbol, full_matrices=False)
        clipped = (left * values.clamp_max(1).unsqueeze(-2)) @ right
        kernel = torch.fft.irfftn(clipped.permute(2, 3, 0, 1), s=grid, dim=(2, 3))[:, :, :rows, :columns]
    return kernel


def seconds(work: Callable[[], Tensor], device: torch.device, repeats: int) -> float:
    times = []
    for _ in range(repeats):
        wait(device)
        start = time.perf_counter()
        work()
        wait(device)
        times.append(time.perf_counter() - start)
    return median(times)


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def scaled(layer: SVCMConv2d, norm: float) -> Tensor:
    """A kernel whose largest singular value is `norm`."""
    kernel = layer.kernel.detach()
    return kernel * (norm / circular_singular_values(kernel, layer.convolved_size)[0])


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
        grid, kernel = layer.convolved_size, scaled(layer, arguments.norm)
        exact = by_svd(kernel.double(), grid)
        placed = kernel.to(device)
        found, usual = clip_and_mask(placed, grid, ITERATIONS).cpu(), by_svd(placed, grid).cpu()  # warm
        row: dict[str, Any] = {"kernel": list(kernel.shape), "grid": list(grid)}
        row["svd_seconds"] = seconds(lambda k=placed, g=grid: by_svd(k, g), device, arguments.repeats)
        row["seconds"] = seconds(lambda k=placed, g=grid: clip_and_mask(k, g, ITERATIONS), device, arguments.repeats)
        row |= {"svd_error": float((usual - exact).abs().max()), "error": float((found - exact).abs().max())}
        rows.append(row)
        print(
            f"{tuple(kernel.shape)!s:>20} at {grid}: SVD {row['svd_seconds']:.3f} s (error {row['svd_error']:.0e}), "
            f"ours {row['seconds']:.4f} s (error {row['error']:.0e}): {row['svd_seconds'] / row['seconds']:.0f}×",
            flush=True,
        )
    total, ours = (sum(row[name] for row in rows) for name in ("svd_seconds", "seconds"))
    print(f"all of Large: SVD {total:.2f} s, ours {ours:.3f} s: {total / ours:.1f}×")
    if arguments.json:
        record = {"hardware": hardware, "torch": torch.__version__, "norm": arguments.norm, "layers": rows}
        arguments.json.write_text(json.dumps(record | {"svd_seconds": total, "seconds": ours}, indent=2) + "\n")


if __name__ == "__main__":
    main()
