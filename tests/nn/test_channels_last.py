"""Kernels of size 1 on images whose channels lie side by side: the same function and gradients as on any others."""

import pytest
import torch

from isoconv.nn import BCOPConv1d, BCOPConv2d, BCOPConvTranspose2d


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(
    ("kind", "arguments", "shape"),
    [
        (BCOPConv2d, (6, 4, 1), (2, 6, 5, 3)),
        (BCOPConv2d, (3, 16, 2, 2), (2, 3, 4, 6)),  # a kernel of size 1 after downsampling
        (BCOPConv2d, (4, 6, 3), (2, 4, 1, 1)),  # whose taps all fall on one pixel
        (BCOPConvTranspose2d, (6, 4, 1), (2, 6, 5, 3)),
        (BCOPConv1d, (6, 4, 1), (2, 6, 5)),
    ],
)
def test_the_layout_in_memory_changes_nothing(kind, arguments, shape, dtype) -> None:
    torch.manual_seed(0)
    layer, x = kind(*arguments, dtype=dtype), torch.randn(shape, dtype=dtype)
    turned = x.movedim(1, -1).contiguous().movedim(-1, 1)
    results, cotangent = [], None
    for images in (x, turned):
        layer.zero_grad()
        leaf = images.detach().requires_grad_()
        y = layer(leaf)
        cotangent = torch.randn_like(y) if cotangent is None else cotangent
        (y * cotangent).sum().backward()
        results.append([y.detach(), leaf.grad, *(p.grad.clone() for p in layer.parameters())])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=200 * torch.finfo(dtype).eps)
