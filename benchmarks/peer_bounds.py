"""What deel-torchlip and orthogonium say of the Lipschitz constants of networks of theirs, beside what is proved.

python -m benchmarks.peer_bounds      # writes results/peers/bounds.json; the peers must be installed

Three networks are trained for two epochs on ten noisy patterns. deel-torchlip estimates from below, at 32 images.
orthogonium's tool bounds the convolutions one by one, in float32. The proved bound is that of all layers' deployed weights.
"""

import math
from collections.abc import Callable
from contextlib import redirect_stdout
from importlib.metadata import version
from io import StringIO
from typing import Any

import torch
from deel import torchlip
from deel.torchlip.utils.evaluate_lip_const import evaluate_lip_const
from orthogonium.layers import AdaptiveOrthoConv2d, MaxMin, OrthoLinear
from orthogonium.layers.conv.singular_values.get_sv import get_conv_sv
from orthogonium.model_factory.models_factory import BCOPLargeCNN
from torch import Tensor, nn

from benchmarks.measuring import Report
from isoconv.certify import lipschitz_bound
from reproduction.cells import RESULTS


def _dense() -> nn.Module:
    layers = [torchlip.SpectralLinear(256, 64), torchlip.FullSort(), torchlip.SpectralLinear(64, 64)]
    return torchlip.Sequential(nn.Flatten(), *layers, torchlip.GroupSort2(), torchlip.SpectralLinear(64, 10))  # type: ignore[no-any-return]


def _convolutional() -> nn.Module:
    first = [torchlip.SpectralConv2d(1, 16, 3, padding=1), torchlip.GroupSort2(), torchlip.ScaledL2NormPool2d(2)]
    second = [torchlip.SpectralConv2d(16, 32, 3, padding=1), torchlip.GroupSort2(), torchlip.ScaledL2NormPool2d(2)]
    return torchlip.Sequential(*first, *second, nn.Flatten(), torchlip.SpectralLinear(512, 10))  # type: ignore[no-any-return]


def _orthogonal() -> nn.Module:
    first = [AdaptiveOrthoConv2d(1, 32, 3), MaxMin(), AdaptiveOrthoConv2d(32, 64, 4, stride=2, padding=1), MaxMin()]
    second = [AdaptiveOrthoConv2d(64, 64, 3), MaxMin(), AdaptiveOrthoConv2d(64, 64, 4, stride=2, padding=1), MaxMin()]
    return nn.Sequential(*first, *second, nn.Flatten(), OrthoLinear(1024, 10))


def _estimate(model: nn.Module, images: Tensor) -> dict[str, float]:
    kinds = ("jacobian_norm", "noise_norm", "attack")
    with redirect_stdout(StringIO()):
        return {kind: round(evaluate_lip_const(model, images[:32], evaluation_type=kind), 6) for kind in kinds}


def _bound_convolutions(model: nn.Module, images: Tensor) -> dict[str, float]:
    sizes: dict[nn.Module, int] = {}
    layers = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    hooks = [layer.register_forward_pre_hook(lambda m, x: sizes.update({m: x[0].shape[-1]})) for layer in layers]
    model(images[:1])
    for hook in hooks:
        hook.remove()
    norms = {n: [float(get_conv_sv(m, n, return_stab_rank=False, imsize=s)) for m, s in sizes.items()] for n in (4, 8)}
    return {f"get_conv_sv, n_iter={n}": round(math.prod(values), 6) for n, values in norms.items()}


def measure(
    make: Callable[[], nn.Module],
    ask: Callable[[nn.Module, Tensor], dict[str, float]],
    shape: tuple[int, int, int] = (1, 16, 16),
    epochs: int = 2,
) -> dict[str, Any]:
    """Train a network, and return what its library says of it, and what is proved."""
    torch.manual_seed(0)
    patterns, labels = torch.rand(10, *shape), torch.arange(1280) % 10
    images = (patterns[labels] + torch.rand(1280, *shape)) / 2
    model = make().train()
    optimiser = torch.optim.Adam(model.parameters(), 1e-3)
    for batch in [part for _ in range(epochs) for part in torch.randperm(1280).split(64)]:
        optimiser.zero_grad()
        nn.functional.cross_entropy(5 * model(images[batch]), labels[batch]).backward()
        optimiser.step()
    model(images[:64])  # the weights that deel-torchlip keeps for evaluation are those of the last forward pass
    model.eval()
    return {"peer": ask(model, images), "proved": round(lipschitz_bound(model, shape).value + 5e-7, 6)}


def main() -> None:
    rows = {
        "deel-torchlip, dense": measure(_dense, _estimate),
        "deel-torchlip, convolutional": measure(_convolutional, _estimate),
        "orthogonium, convolutional": measure(_orthogonal, _bound_convolutions),
        "orthogonium's BCOPLargeCNN, as it is made": measure(BCOPLargeCNN, _bound_convolutions, (3, 32, 32), epochs=0),
    }
    peers = {name: version(name) for name in ("orthogonium", "deel-torchlip")}
    Report(RESULTS / "peers" / "bounds.json", "cpu", peers=peers, networks=rows).write()


if __name__ == "__main__":
    main()
