"""Singular values of our layers beside those of orthogonium and deel-torchlip, over the arguments of their own tests.

python -m benchmarks.peers      # writes results/peers/singular_values.json; the peers must be installed

Each row has the smallest and the largest singular value of the layers' dense Jacobians as the layers are made, in evaluation
mode; a layer that refuses its arguments has none.
"""

import json
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from itertools import product
from typing import Any

import torch
from deel import torchlip
from orthogonium.layers import AdaptiveOrthoConv2d
from orthogonium.layers.conv.AOC.ortho_conv import AdaptiveOrthoConvTranspose2d
from orthogonium.reparametrizers import DEFAULT_TEST_ORTHO_PARAMS
from torch import nn

from isoconv.files import write_text
from isoconv.nn import BCOPConv2d, BCOPConvTranspose2d
from reproduction.cells import RESULTS, describe_environment

Arguments = dict[str, Any]
_8_16, _GROUPS = (8, 16), (1, 2, 4)


def grids() -> Iterator[tuple[str, int, Arguments]]:
    """Yield the name of a test of a peer, the size of its images, and arguments of the layers."""
    for k, i, o, s, g in product((1, 3, 5), _8_16, _8_16, (1, 2), _GROUPS):
        yield "standard", 8, _arguments(i, o, k, s, k // 2, groups=g)
        if k > s == 2:
            yield "standard, odd images", 7, _arguments(i, o, k, s, k // 2, groups=g)
    for k, i, o, g in product((2, 3, 4, 5), _8_16, _8_16, _GROUPS):
        yield "dilation", 8, _arguments(i, o, k, 1, "same", dilation=2, groups=g)
    for k, i, o, d, g in product((2, 3, 4, 5), _8_16, _8_16, (2, 3), _GROUPS):
        yield "dilation and stride", 8, _arguments(i, o, k, 2, -(-(d * (k - 1) - 1) // 2), dilation=d, groups=g)
    for k, i, o, s in product((3, 4, 5), (2, 4, 32), (2, 4, 32), (2, 4)):
        yield "stride", 8, _arguments(i, o, k, s, (k - 1) // 2)
    for k, i, o, g in product((2, 4), _8_16, _8_16, _GROUPS):
        yield "even kernels", 8, _arguments(i, o, k, 1, "same", groups=g)
    for k, i, o, g in product((1, 2), (4, 8, 32), (4, 8, 32), (1, 2)):
        yield "no overlap", 8, _arguments(i, o, k, k, 0, groups=g, padding_mode="zeros")
    for k, i, o, s in product((1, 3, 5), (1, 2), (1, 2), (1, 2)):
        yield "few channels", 8, _arguments(i, o, k, s, k // 2)
    for k, i, o, s, g in product((1, 2, 3), (4, 8, 16), (4, 8, 32), (1, 2), (1, 2)):
        yield "transposed, zeros", 8, _arguments(i, o, k, s, 0, groups=g, padding_mode="zeros")
        yield "transposed, circular", 8, _arguments(i, o, k, s, "same", groups=g)
    for i, o, s, p, n in ((1, 2, 1, 0, 5), (1, 2, 1, 1, 5), (3, 2, 1, 0, 5), (1, 5, 2, 0, 10), (1, 3, 2, 0, 10)):
        yield "deel-torchlip", n, _arguments(i, o, 3, s, p, padding_mode="zeros")
    yield "deel-torchlip, transposed", 5, _arguments(1, 2, 3, 1, 0, padding_mode="zeros")


def _arguments(
    in_channels: int, out_channels: int, kernel_size: int, stride: int, padding: Any, **more: Any
) -> Arguments:
    sizes = {"in_channels": in_channels, "out_channels": out_channels, "kernel_size": kernel_size, "stride": stride}
    return sizes | {"padding": padding, "padding_mode": "circular"} | more


def _peer(grid: str, arguments: Arguments) -> nn.Module:
    if grid.startswith("deel"):
        kind = torchlip.SpectralConvTranspose2d if "transposed" in grid else torchlip.SpectralConv2d
        return kind(**arguments, bias=False)  # type: ignore[no-any-return]
    kind = AdaptiveOrthoConvTranspose2d if grid.startswith("transposed") else AdaptiveOrthoConv2d
    return kind(**arguments, bias=False, ortho_params=DEFAULT_TEST_ORTHO_PARAMS)  # type: ignore[no-any-return]


def _extremes(make: Callable[[], nn.Module], channels: int, size: int) -> list[float] | None:
    """Return the smallest and the largest singular value, or None where the layer is refused."""
    torch.manual_seed(0)
    try:
        layer = make().eval()
        identity = torch.eye(channels * size**2).reshape(-1, channels, size, size)
        matrix = layer(identity).flatten(1).double()
    except (ValueError, RuntimeError):
        return None
    gram = matrix @ matrix.mT if matrix.shape[0] <= matrix.shape[1] else matrix.mT @ matrix
    values = torch.linalg.eigvalsh(gram).clamp_min(0).sqrt()
    return [round(float(values[0]), 6), round(float(values[-1]), 6)]


@torch.no_grad()
def main() -> None:
    rows = []
    for grid, size, arguments in grids():
        ours = BCOPConvTranspose2d if "transposed" in grid else BCOPConv2d
        channels = arguments["in_channels"]
        row = {"grid": grid, "image": size, "arguments": arguments}
        row["isoconv"] = _extremes(partial(ours, **arguments, bias=False), channels, size)
        row["peer"] = _extremes(partial(_peer, grid, arguments), channels, size)
        rows.append(row)
    peers = {name: version(name) for name in ("orthogonium", "deel-torchlip")}
    head = json.dumps(describe_environment("CPU") | {"peers": peers, "rows": []}, indent=2)
    lines = ",\n".join(f"    {json.dumps(row)}" for row in rows)
    write_text(
        RESULTS / "peers" / "singular_values.json", head.replace('"rows": []', f'"rows": [\n{lines}\n  ]') + "\n"
    )


if __name__ == "__main__":
    main()
