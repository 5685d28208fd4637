"""Put orthogonal convolutions into a model and a training loop of one's own.

    python examples/own_model.py [--epochs 6] [--images 4000]

The data are 5,000 digits that come inside a package (pip install 'isoconv[demo]'). Nothing in the loop knows of isoconv:
`BCOPConv2d` takes the place of `nn.Conv2d`, `OrthogonalLinear` that of `nn.Linear`, `MaxMin` that of `nn.ReLU`.
"""

import argparse

import torch
from torch import nn

import isoconv
from isoconv.certify import lipschitz_bound, robust_accuracy
from isoconv.data import as_float, load_splits
from isoconv.nn import BCOPConv2d, MaxMin, OrthogonalLinear


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--images", type=int, default=4000, help="how many of the 4,000 training digits")
    options = parser.parse_args()

    torch.manual_seed(0)
    train, test = load_splits("digits")
    images, labels = as_float(train.images)[: options.images], train.labels[: options.images]  # pixels from 0 to 1

    model = nn.Sequential(
        BCOPConv2d(1, 16, 4, stride=2),
        MaxMin(),
        BCOPConv2d(16, 32, 4, stride=2),
        MaxMin(),
        nn.Flatten(),
        OrthogonalLinear(32 * 7 * 7, 100),
        MaxMin(),
        OrthogonalLinear(100, 10),
    )
    optimiser = torch.optim.Adam(model.parameters(), lr=5e-3)  # or any other
    for epoch in range(options.epochs):
        for batch in torch.randperm(len(images)).split(100):
            # A margin: what separates the right class from the others is what can be certified.
            loss = nn.functional.multi_margin_loss(model(images[batch]), labels[batch], margin=2.0)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        print(f"epoch {epoch + 1}: loss {loss.item():.4f}")

    model.eval()
    deployed = isoconv.plain(model)  # the same function, of nn.Conv2d and nn.Linear alone
    bound = lipschitz_bound(deployed, (1, 28, 28)).value
    found = robust_accuracy(deployed, test, [0.5, 1.0, 1.58])
    print(f"Lipschitz bound: {bound:.7f}")
    print(f"clean accuracy: {found.clean:.1f} %")
    for epsilon, percent in found.certified.items():
        print(f"certified against every change of L2 norm up to {epsilon}: {percent:.1f} %")


if __name__ == "__main__":
    main()
