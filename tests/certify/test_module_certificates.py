"""What is proved of pooling, centring and reflecting modules: rounding, constants, certificates, and lies that are found."""

import copy
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import jacrev

from certify.certificates import check, read, write, write_all
from certify.exact_network import error_bound, exact, exact_logits, exact_module, fractions, images, logit_error
from isoconv import IsoconvError
from isoconv.certify import Certifier, certify, lipschitz_bound
from isoconv.certify.composition import constant_in_norm
from isoconv.certify.graph import nodes_of, plain_network
from isoconv.nn import (
    BatchCentering,
    BCOPConv2d,
    GroupSort,
    Householder,
    L2NormPool2d,
    LayerCentering,
    MaxMin,
    NormalisedLinear,
    Residual,
    Scale,
    ScaledAvgPool2d,
)

DTYPES = {"float64": torch.float64, "float32": torch.float32}
arithmetics = pytest.mark.parametrize("arithmetic", DTYPES)
MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "layer centring": (lambda: LayerCentering(), (3, 4, 5)),
    "layer centring image": (lambda: LayerCentering((2, 3)), (2, 9, 7)),
    "layer centring channels": (lambda: LayerCentering(1), (50,)),
    "batch centring": (lambda: BatchCentering(3), (3, 4, 2)),
    "batch centring without bias": (lambda: BatchCentering(6, bias=False), (6,)),
    "householder": (lambda: Householder(4), (4, 3, 2)),
    "norms of windows": (lambda: L2NormPool2d((2, 3), (2, 4)), (3, 5, 8)),
    "averages": (lambda: ScaledAvgPool2d((2, 3)), (2, 4, 7)),
    "maxmin": (lambda: MaxMin(2), (3, 4, 2)),
}
SIZES = {
    "ordinary": lambda x: x,
    "alike": lambda x: torch.full_like(x, 0.9565422534942627),
    "large": lambda x: x * 2.0**20,
    "squares vanish": lambda x: x * 2.0**-70,
    "subnormal": lambda x: x * 2.0**-140,
    "mixed": lambda x: x * 2.0 ** -(torch.arange(x.numel()) % 40).reshape(x.shape),
    "zero": lambda x: x * 0,
}


def randomised(model: nn.Module, gain: float = 1.0) -> nn.Module:
    for module in model.modules():
        if isinstance(module, (BatchCentering, Householder)):
            for tensor in (*module.parameters(), *module.buffers()):
                nn.init.normal_(tensor, std=gain)
    return model.eval()


# Rounding ---------------------------------------------------------------------------------------------------------


@arithmetics
@pytest.mark.parametrize("name", MODULES)
def test_the_rounding_of_each_module(name: str, arithmetic: str) -> None:
    """Against exact arithmetic, for numbers of every size; vectors of Householder and means of every size too."""
    make, shape = MODULES[name]
    largest = 0.0
    for seed, (kind, change) in enumerate(SIZES.items()):
        torch.manual_seed(seed)
        model = randomised(nn.Sequential(make(), nn.Flatten()), gain=(1.0, 2.0**-12, 2.0**12)[seed % 3])
        certifier = Certifier(model, shape, arithmetic=arithmetic)
        x = change(torch.randn(shape, dtype=torch.float64)).to(DTYPES[arithmetic])
        computed = certifier.deployed.to(x.dtype)(x[None])[0]
        error, allowed = logit_error(computed, exact_logits(model, x)), error_bound(certifier, x)
        assert error <= allowed, kind
        largest = max(largest, float(error / allowed)) if allowed else largest
    assert largest > 1e-4 or name == "maxmin"  # the bound is not far from what happens


@arithmetics
def test_means_may_be_summed_in_any_order(arithmetic: str) -> None:
    torch.manual_seed(0)
    x = (torch.randn(400, dtype=torch.float64) * 2.0 ** -(torch.arange(400) % 30) + 1).to(DTYPES[arithmetic])
    certifier = Certifier(nn.Sequential(LayerCentering()), (400,), arithmetic=arithmetic)
    truth, numbers = fractions(exact_module(LayerCentering(), exact(x))), x.numpy()
    for order in (numbers, np.sort(numbers), -np.sort(-numbers)):
        for mean in (
            np.cumsum(order)[-1] / numbers.dtype.type(400),
            np.cumsum(order)[-1] * numbers.dtype.type(1 / 400),
        ):
            found = torch.from_numpy(numbers - mean)
            assert found.dtype == x.dtype and logit_error(found, truth) <= error_bound(certifier, x)


def test_where_something_may_overflow_nothing_is_certified() -> None:
    for module in (L2NormPool2d(1), LayerCentering(), Householder(2)):
        network = nn.Sequential(Scale(2.0**80), module, nn.Flatten())
        errors = [Certifier(network, (2, 1, 1), arithmetic=arithmetic).error.offset for arithmetic in DTYPES]
        assert errors[0] < 1e-100
        assert errors[1] == float("inf") or not isinstance(module, L2NormPool2d)


# Constants --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODULES)
def test_constants_in_all_norms(name: str) -> None:
    """Against dense Jacobians: the largest column sums, singular values and row sums."""
    make, shape = MODULES[name]
    torch.manual_seed(0)
    model = randomised(nn.Sequential(make(), nn.Flatten()).double())
    nodes = nodes_of(plain_network(model, shape), shape)
    bounds = {1: constant_in_norm(nodes, 1), 2: lipschitz_bound(model, shape).value}
    bounds[np.inf] = constant_in_norm(nodes, np.inf)
    points = torch.randn(20, *shape, dtype=torch.float64)
    jacobians = torch.stack([jacrev(lambda z: model(z[None])[0])(x).flatten(1) for x in points]).detach()
    for p, bound in bounds.items():
        norm = torch.linalg.matrix_norm(jacobians, p).max()
        assert bound is None or 0.5 * bound <= norm <= bound * (1 + 1e-14), p
    assert bounds[2] <= 1 + 1e-12 and (bounds[1] is None) == (name == "averages")


# Certificates -----------------------------------------------------------------------------------------------------


def draw_network(seed: int) -> tuple[nn.Module, tuple[int, int, int]]:
    draw = random.Random(seed)
    torch.manual_seed(seed)
    channels, height, width = 2 * draw.randint(1, 3), draw.choice((4, 6)), draw.choice((4, 5, 8))
    model, x = nn.Sequential(BCOPConv2d(3, channels, draw.randint(1, 3))), torch.zeros(2, 3, height, width)
    choices: list[Callable[[], nn.Module]] = [
        lambda: BatchCentering(x.shape[1], bias=draw.random() < 0.5),
        lambda: LayerCentering(draw.choice((None, 1, (2, 3), -1))),
        lambda: Householder(x.shape[1]),
        lambda: MaxMin(draw.choice((1, 2, -1))),
        lambda: GroupSort(draw.choice((1, 2, None)), draw.choice((1, 2, 3))),
        lambda: ScaledAvgPool2d(draw.choice((1, 2, (1, 2))), draw.choice((None, 1, 2))),
        lambda: L2NormPool2d(draw.choice((1, 2, (2, 1))), draw.choice((None, 2, 3))),
    ]
    x = model(x).detach()
    for _ in range(draw.randint(2, 6)):
        try:
            module = draw.choice(choices)()
            x = module(x).detach()
            model.append(module)
        except (IsoconvError, RuntimeError):  # it does not fit
            continue
    return randomised(nn.Sequential(*model, nn.Flatten(), NormalisedLinear(x[0].numel(), 4))), (3, height, width)


@arithmetics
@pytest.mark.parametrize("seed", range(12))
def test_certificates_of_random_networks_are_accepted(seed: int, arithmetic: str, tmp_path: Path, capsys: Any) -> None:
    model, shape = draw_network(seed)
    arguments = write_all(model, images(3, *shape, seed=seed), tmp_path, arithmetic=arithmetic)
    assert check(arguments) == 0, capsys.readouterr()


@pytest.fixture(scope="module")
def network() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(3, 4, 3), Householder(4), LayerCentering((2, 3)), L2NormPool2d(2), MaxMin(2), GroupSort(2, dim=3)),
        *(BatchCentering(4), nn.Flatten(), nn.Linear(16, 4)),
    )
    return randomised(model)


LIES: dict[str, Callable[[dict[str, Any]], None]] = {
    "Householder": lambda node: node.update(lipschitz=(1 - 2**-40).hex()),
    "LayerCentering": lambda node: node.update(lipschitz=(1 - 2**-40).hex()),
    "BatchCentering": lambda node: node.update(lipschitz=(1 - 2**-40).hex()),
    "MaxMin axis": lambda node: node["settings"].update(axis=9),
    "MaxMin": lambda node: node.update(settings={}),  # other channels: another function
    "GroupSort": lambda node: node["settings"].update(axis=1),
    "LayerCentering axes": lambda node: node["settings"].update(axes=[0, 1]),
    "LayerCentering twice": lambda node: node["settings"].update(axes=[1, 1]),
    "L2NormPool2d overlap": lambda node: node["settings"].update(stride=[1, 1]),
    "L2NormPool2d stride": lambda node: node["settings"].update(stride=None),
    "L2NormPool2d size": lambda node: node["settings"].update(kernel_size=[9, 9], stride=[9, 9]),
}


@pytest.mark.parametrize("lie", LIES)
def test_lies_are_found(lie: str, network: nn.Module, tmp_path: Path, capsys: Any) -> None:
    arguments = write_all(network, images(3, 3, 7, 6), tmp_path)
    assert check(arguments) == 0, capsys.readouterr()
    header, lines = read(tmp_path / "certificate.jsonl")
    LIES[lie](next(node for node in header["nodes"] if node["kind"] == lie.split()[0]))
    write(tmp_path / "certificate.jsonl", header, lines)
    assert check(arguments) != 0
    assert len("".join(capsys.readouterr()).splitlines()) <= 2


def change(module: nn.Module, **values: Any) -> nn.Module:
    for name, value in values.items():
        setattr(module, name, value)
    return module


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (change(GroupSort(None), dim=0), (2, 3)),  # sorts the batch
        (change(LayerCentering(1), dim=[]), (2, 3)),  # the mean of the batch
        (change(L2NormPool2d(2), stride=(1, 1)), (1, 4, 4)),
        (change(Householder(2), vectors=nn.Parameter(torch.tensor([1.0, 0.0]) * 2**-30)), (2, 3)),
        (change(Householder(2), vectors=nn.Parameter(torch.tensor([float("nan"), 0.0]))), (2, 3)),
        (change(Householder(2), vectors=nn.Parameter(torch.ones(2, 3))), (2, 3)),
        (change(BatchCentering(1), running_mean=torch.zeros(1, 4)), (1, 3)),  # which enlarges
        (change(BatchCentering(2), running_mean=torch.tensor([float("inf"), 0.0])), (2,)),
    ],
    ids=["batch sorted", "batch mean", "overlap", "short", "nan", "matrix", "enlarged", "infinite"],
)
def test_modules_that_were_changed_are_refused(module: nn.Module, shape: tuple[int, ...]) -> None:
    with pytest.raises(IsoconvError, match=r"Expected .* Got|Expected .*"):
        Certifier(nn.Sequential(module, nn.Flatten()), shape)


def test_the_constant_of_residuals(tmp_path: Path, capsys: Any) -> None:
    torch.manual_seed(0)
    blocks = [Residual(nn.Sequential(BCOPConv2d(4, 4, 3), MaxMin()), weight) for weight in (None, 0.1, 1 / 3, 0.9)]
    model = nn.Sequential(BCOPConv2d(3, 4, 1), *blocks, L2NormPool2d(), NormalisedLinear(4, 3)).eval()
    nn.init.constant_(model[1].logit, -1.3)
    bound = lipschitz_bound(model[:-1], (3, 5, 5)).value
    assert 1 <= bound <= 1 + 1e-4
    exact_branch = nn.Sequential(*(Residual(MaxMin(), a) for a in (0.0, 0.1, 1 / 3, 0.7, 1.0)))
    assert lipschitz_bound(exact_branch, (4, 3)).value <= 1 + 2**-48
    x = images(4, 3, 5, 5)
    double = copy.deepcopy(model).double()
    certified = certify(double, x)
    step = torch.randn_like(x)
    step *= (0.999 * certified.radius / step.flatten(1).norm(dim=1)).reshape(-1, 1, 1, 1)
    assert (certified.radius > 0).all() and torch.equal(double(x + step).argmax(1), certified.prediction)
    assert check(write_all(model, x, tmp_path)) == 0, capsys.readouterr()


def test_normalised_heads_use_the_distance_of_rows() -> None:
    """A hundred classes: each pair's constant is below 2, that of all logits together is not."""
    torch.manual_seed(0)
    head = NormalisedLinear(16, 100).double().eval()
    x = torch.rand(5, 16, dtype=torch.float64)
    logits, rows = head(x), head.weight
    best = logits.argmax(1)
    distances = (rows[best][:, None] - rows[None]).norm(dim=2)
    margins = logits.gather(1, best[:, None]) - logits
    true = torch.where(distances > 0, margins / distances, torch.inf).min(1).values
    assert torch.allclose(certify(nn.Sequential(head), x).radius, true.detach(), rtol=1e-9)
    assert lipschitz_bound(nn.Sequential(head), (16,)).value > 2
