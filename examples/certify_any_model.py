"""Certify a network that was not built with isoconv, and see what is refused, and why.

    python examples/certify_any_model.py [--epochs 3] [--images 4000]

An ordinary network has a Lipschitz bound too, only a large one: the proofs are sound, and say little. What has no proof
is refused by name. The digits come inside a package: pip install 'isoconv[demo]'.
"""

import argparse

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

import isoconv
from isoconv.certify import certified_radius, lipschitz_bound, robust_accuracy
from isoconv.data import as_float, load_splits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--images", type=int, default=4000, help="how many of the 4,000 training digits")
    options = parser.parse_args()

    torch.manual_seed(0)
    train, test = load_splits("digits")
    images, labels = as_float(train.images)[: options.images], train.labels[: options.images]

    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 7 * 7, 10),
    )
    optimiser = torch.optim.Adam(model.parameters(), weight_decay=1e-3)
    for _ in range(options.epochs):
        for batch in torch.randperm(len(images)).split(100):
            loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    # In evaluation batch normalisation is a fixed map, which the convolution before it can take over.
    model = nn.Sequential(fuse_conv_bn_eval(model[0].eval(), model[1].eval()), *model[2:]).eval()

    bound = lipschitz_bound(model, (1, 28, 28))
    print(f"Lipschitz bound: {bound.value:.2f}, the product of these:")
    for layer in bound.layers:
        print(f"    {layer.name} {layer.kind:12} {layer.bound:.4f}")
    radii = certified_radius(model, as_float(test.images[:5], torch.float64))
    print("Five digits keep their class under any change of L2 norm up to", ", ".join(f"{r:.4f}" for r in radii))
    found = robust_accuracy(model, test, [0.01, 0.1, 0.5])
    print(f"clean accuracy: {found.clean:.1f} %")
    for epsilon, percent in found.certified.items():
        print(f"certified at {epsilon}: {percent:.1f} %")

    print("What is refused:")
    for stranger, shape in strangers():
        try:
            lipschitz_bound(stranger, shape)
        except isoconv.IsoconvError as error:
            print(f"    {error}")


class Gated(nn.Module):
    """f(x)·x: a product of values has no Lipschitz constant that holds everywhere."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * x


def strangers() -> list[tuple[nn.Module, tuple[int, ...]]]:
    """Networks of which something is not known."""
    hooked = nn.Linear(4, 4)
    hooked.register_forward_hook(lambda module, inputs, output: 100 * output)
    return [
        (nn.Sequential(nn.Linear(4, 4), Gated(nn.Linear(4, 4))), (4,)),  # its forward is traced; sums would be fine
        (nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)), (4,)),  # not Lipschitz at all near constant inputs
        (nn.Sequential(hooked), (4,)),  # a hook may change everything
        (nn.Sequential(nn.BatchNorm2d(1, track_running_stats=False)), (1, 8, 8)),  # depends on the rest of the batch
        (nn.Sequential(nn.Flatten(), nn.Linear(10, 2)), (1, 8, 8)),  # does not fit
    ]


if __name__ == "__main__":
    main()
