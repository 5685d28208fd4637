"""An ordinary ResNet-18 for 32×32 images, converted by one call, beside Large trained for as long. One file in `results/`.

python -m benchmarks.convert --data DIR --out results/convert/resnet18.json      # --small: a minute on a CPU, means nothing

Trains the converted network by isoconv's engine, then Large for as many seconds; certifies both on the test set, attacks
both, and has the certificate file of the first examined by the checker, which takes a minute on a CPU; with --keep it can
be done elsewhere. What fails is written down, and the rest goes on.
"""

import argparse
import copy
import math
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.measuring import Report
from isoconv import attacks
from isoconv.attacks import against_certificates
from isoconv.certify import lipschitz_bound, robust_accuracy, write_certificate
from isoconv.data import EpochBatches, ImageSet, as_float, hold_out, load_splits
from isoconv.export import export_onnx
from isoconv.nn import ConvexSum, L2NormPool2d, convert, fixed_weights
from isoconv.train import fit
from isoconv.train.classifier import Classification
from isoconv.train.config import TrainConfig, make_model, recipe_settings
from isoconv.train.distributed import choose_device

RADII = (36 / 255, 72 / 255, 108 / 255)


class Block(nn.Module):
    """Two convolutions and a shortcut, as torchvision writes them."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)
        shortcut = [nn.Conv2d(in_channels, out_channels, 1, stride, bias=False), nn.BatchNorm2d(out_channels)]
        self.downsample = nn.Sequential(*shortcut) if stride > 1 or in_channels != out_channels else None

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += x if self.downsample is None else self.downsample(x)
        return self.relu(out)


class ResNet18(nn.Module):
    """The usual variant for small images: a 3×3 convolution first, and no pooling behind it."""

    def __init__(self, width: int = 64, classes: int = 10, blocks: int = 2) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)

        def stage(before: int, after: int, stride: int) -> nn.Sequential:
            return nn.Sequential(Block(before, after, stride), *(Block(after, after, 1) for _ in range(blocks - 1)))

        self.layer1, self.layer2 = stage(width, width, 1), stage(width, 2 * width, 2)
        self.layer3, self.layer4 = stage(2 * width, 4 * width, 2), stage(4 * width, 8 * width, 2)
        self.fc = nn.Linear(8 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))  # type: ignore[no-any-return]


def gradient_norms(network: nn.Module, images: Tensor) -> dict[str, float]:
    """Return ‖∂(y_i − y_j)/∂h‖/√2 for the two largest logits at each sum h of a network, and at its input: at most 1."""
    values: dict[str, Tensor] = {}
    sums = [(name, module) for name, module in network.named_modules() if isinstance(module, ConvexSum)]
    hooks = [module.register_forward_hook(lambda _, __, y, n=name: values.update({n: y})) for name, module in sums]
    images = images.clone().requires_grad_()
    top = network(images).topk(2).values
    for hook in hooks:
        hook.remove()
    places = {"input": images, **values}
    gradients = torch.autograd.grad((top[:, 0] - top[:, 1]).sum() / 2**0.5, list(places.values()))
    return {name: float(g.flatten(1).norm(dim=1).mean()) for name, g in zip(places, gradients, strict=True)}


def train(network: nn.Module, config: TrainConfig, data: ImageSet, device: torch.device) -> dict[str, Any]:
    """Train a network in place with the settings of a configuration."""
    options: dict[str, Any] = {"seed": config.seed, "padding": config.crop_padding, "flip": config.flip}
    batches = EpochBatches(data, config.batch_size, device=device, **options)
    result = fit(network, batches, Classification(config), device=device, seed=config.seed, **config.training)[0]
    return {"epochs": config.epochs, "steps": len(batches) * config.epochs, "train_seconds": result.seconds}


def evaluate(network: nn.Module, test: ImageSet, attacked: int, figures: dict[str, Any]) -> Any:
    """Certify a network on all test images, and attack it on some."""
    accuracy = robust_accuracy(network.eval(), test, RADII)
    figures |= {"images": len(accuracy.labels), "clean": accuracy.clean, "certified": accuracy.certified}
    figures["lipschitz_bound"] = accuracy.lipschitz_bound
    some = test.take(attacked)
    pixels = as_float(some.images, torch.float64)
    result = attacks.pgd(network, pixels, some.labels, RADII[0])
    figures["pgd"] = {"images": attacked, "epsilon": RADII[0], **against_certificates(result, accuracy, RADII[0])}
    return accuracy


@torch.no_grad()
def try_out(network: nn.Module, held: ImageSet, device: torch.device) -> dict[str, Any]:
    """Return clean accuracy and the shares with margins above √2 times the radii: for choosing, without a proof."""
    batches = zip(held.images.split(500), held.labels.split(500), strict=True)
    with fixed_weights(network.eval()):
        pairs = [(network(as_float(images, torch.float32).to(device)), labels.to(device)) for images, labels in batches]
    logits, labels = (torch.cat(part) for part in zip(*pairs, strict=True))
    right = logits.gather(1, labels[:, None])[:, 0]
    margins = right - logits.scatter(1, labels[:, None], -math.inf).amax(1)
    shares = [float((margins > 2**0.5 * radius).double().mean()) for radius in (0, *RADII)]
    return {"held_out": len(held), "clean": shares[0], "margins": shares[1:]}


def check(accuracy: Any, test: ImageSet, count: int, folder: Path, seconds: float) -> dict[str, Any]:
    """Write a certificate file for some images, the network and the images, and have the checker examine them."""
    certifier, some = accuracy.certifier, test.take(count)
    images = as_float(some.images, torch.float64)
    folder.mkdir(parents=True, exist_ok=True)
    write_certificate(folder / "certificate.jsonl", certifier, certifier(images).cpu(), some.labels)
    state = certifier.deployed.state_dict().items()
    save_file({name: tensor.cpu().contiguous() for name, tensor in state}, folder / "model.safetensors")
    np.save(folder / "images.npy", images.cpu().numpy())
    files = [str(folder / name) for name in ("certificate.jsonl", "model.safetensors")]
    command = [sys.executable, "-m", "isoconv.check", *files, "--images", str(folder / "images.npy")]
    run = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    return {"images": count, "exit": run.returncode, "says": (run.stdout or run.stderr).strip().splitlines()[-1:]}


def compare_onnx(accuracy: Any, test: ImageSet, count: int, folder: Path) -> dict[str, float]:
    """Return the largest difference between the logits of the network and those of its ONNX file, in either arithmetic."""
    import onnxruntime  # type: ignore[import-not-found,import-untyped,unused-ignore]

    differences = {}
    for dtype in (torch.float64, torch.float32):
        network, name = copy.deepcopy(accuracy.certifier.deployed).cpu().to(dtype), str(dtype).removeprefix("torch.")
        export_onnx(network, (3, 32, 32), folder / f"{name}.onnx", dtype=name, overwrite=True)
        images = as_float(test.take(count).images, dtype)
        session = onnxruntime.InferenceSession(folder / f"{name}.onnx")
        (logits,) = session.run(None, {"images": images.numpy()})
        with torch.no_grad():
            differences[name] = float((network(images) - torch.from_numpy(logits)).abs().max())
    return differences


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="data", help="folder of CIFAR-10")
    parser.add_argument("--out", type=Path, default=Path("results/convert/resnet18.json"))
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--lr", type=float, default=None, help="of the converted network; the recipe's by default")
    parser.add_argument("--precision", default="float32", help="float32 or bf16, of both")
    parser.add_argument("--carry", action="store_true", help="carry the random weights over")
    parser.add_argument(
        "--branch", type=float, help="the weight that branches begin with in sums, instead of the usual"
    )
    parser.add_argument("--keep", type=Path, help="keep the certificate, the network and the images in this folder")
    parser.add_argument("--check-seconds", type=float, default=1800, help="of the checker, which works on the CPU")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--width", type=int, default=64, help="of the ResNet's first stage")
    parser.add_argument("--images", type=int, default=50_000, help="of the training set")
    parser.add_argument("--norms", action="store_true", help="norms over all positions in front of the head, not sums")
    parser.add_argument("--trial", action="store_true", help="hold out 5,000 training images, judge on them, and stop")
    parser.add_argument("--small", action="store_true", help="a narrow network and 512 images, to see that it runs")
    asked = parser.parse_args()
    device = torch.device(choose_device(asked.device))
    torch.manual_seed(0)
    names = ("small", "trial", "width", "images", "norms", "branch")
    report = Report(asked.out, device, **{name: getattr(asked, name) for name in names})
    splits = load_splits("cifar10", asked.data)
    data, test = splits.train.take(512 if asked.small else asked.images), splits.test
    test = test.take(512) if asked.small else test
    if asked.trial:
        data, test = hold_out(data, min(5000, len(data) // 5))
    settings = recipe_settings("default", "cifar10", "bcop") | {"batch_size": 128, "epochs": asked.epochs}
    settings |= {"precision": asked.precision} | ({"epochs": 1} if asked.small else {})

    def configure(**own: Any) -> TrainConfig:
        return TrainConfig("cifar10", (3, 32, 32), splits.train.classes, model="large", **(settings | own))

    run: dict[str, Any] = {}
    with report.part("conversion") as figures:
        ordinary = ResNet18(4 if asked.small else asked.width)
        network, table = convert(ordinary, input_shape=(3, 32, 32), carry_weights=asked.carry)
        run["resnet"] = network
        if asked.norms:
            network.adaptive_avg_pool2d = L2NormPool2d()
        for module in network.modules() if asked.branch else ():
            if isinstance(module, ConvexSum) and module.logit is not None:
                module.logit.data.fill_(math.log(asked.branch / (1 - asked.branch)))
        figures |= {"table": str(table).splitlines(), "parameters": sum(p.numel() for p in network.parameters())}
        if not asked.trial:
            figures["lipschitz_bound"] = lipschitz_bound(network, (3, 32, 32)).value
        figures["gradient_norms"] = gradient_norms(network.train(), as_float(data.take(64).images, torch.float32))
    with report.part("resnet") as figures:
        config = configure(**({"lr": asked.lr} if asked.lr else {}))
        figures |= train(run["resnet"], config, data, device) | {"lr": config.lr}
        if asked.trial:
            figures |= try_out(run["resnet"], test, device)
            return
        run["accuracy"] = evaluate(run["resnet"], test, 64 if asked.small else 1000, figures)
        figures["weights of sums"] = {
            name: float(torch.as_tensor(module.weight).detach())
            for name, module in run["resnet"].named_modules()
            if isinstance(module, ConvexSum)
        }
        pixels = as_float(test.take(64).images, torch.float32).to(device)
        figures["gradient_norms"] = gradient_norms(run["resnet"].eval(), pixels)
    with report.part("large") as figures:
        large, seconds = make_model(configure()), report.figures["resnet"]["train_seconds"]
        timed = train(make_model(configure(epochs=2)), configure(epochs=2), data, device)["train_seconds"] / 2
        epochs = 1 if asked.small else max(1, round(seconds / timed))
        figures["gradient_norms"] = gradient_norms(large, as_float(data.take(64).images, torch.float32))
        figures |= train(large, configure(epochs=epochs), data, device)
        evaluate(large, test, 64 if asked.small else 1000, figures)
    with report.part("checker") as figures, tempfile.TemporaryDirectory() as place:
        figures |= check(run["accuracy"], test, 4, asked.keep or Path(place), asked.check_seconds)
    with report.part("onnx") as figures, tempfile.TemporaryDirectory() as place:
        figures |= compare_onnx(run["accuracy"], test, 4, Path(place))


if __name__ == "__main__":
    main()
