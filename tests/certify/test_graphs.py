"""Networks that are no chains: their bounds, their rounding, their radii, their files."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import isoconv
from certify.random_graphs import attack_graph, check_graph
from certify.test_falsification import pgd_on_the_margin, refuted
from check.certificate_maker import Certificate, claim_only, put
from isoconv import IsoconvError
from isoconv.certify import Certifier, Rounding, Rule, certified_radius, lipschitz_bound, register, write_certificate
from isoconv.certify.composition import constant_in_norm
from isoconv.certify.diagnostics import gradient_norms, singular_values
from isoconv.certify.graph import nodes_of, plain_network
from isoconv.nn import BCOPConv2d, MaxMin, OrthogonalLinear


def test_random_graphs_against_secants_and_jacobians(tmp_path: Path) -> None:
    """Of some of them certificates are written, which the checker accepts."""
    ratios = sorted(check_graph(seed, folder=tmp_path if seed % 4 < 2 else None) for seed in range(40))
    assert ratios[0] >= 1 - 1e-9 and ratios[len(ratios) // 2] < 10


class Function(nn.Module):
    def __init__(self, function: Callable[[nn.ModuleList, Tensor], Tensor], *layers: nn.Module) -> None:
        super().__init__()
        self.function, self.layers = function, nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.layers, x)


def chunk_block(layers: nn.ModuleList, x: Tensor) -> Tensor:
    for layer in layers:
        first, second = layer(x).chunk(2, dim=1)
        x = torch.cat([second.abs(), -first], dim=1)
    return x


def swapped() -> nn.Module:
    """Halves of the last axis exchanged, by a matrix."""
    layer = nn.Linear(6, 6, bias=False)
    layer.weight.data = torch.eye(6).roll(3, 1)
    return layer


def even_and_odd(_: nn.ModuleList, x: Tensor) -> Tensor:
    flat = x.transpose(1, 2).reshape(-1, 3, 8).flatten(1)
    return torch.cat([2 * flat[:, 1::2].unflatten(1, (3, 4)).flatten(1), flat[:, ::2]], 1)


def halves_of_halves(_: nn.ModuleList, x: Tensor) -> Tensor:
    first, second = (x + torch.ones(1, 6)).chunk(2, 1)
    left, right = first.chunk(2, 2)
    return torch.cat([torch.cat([2 * left, right], 2), second], 1)


def base_behind_a_base(_: nn.ModuleList, x: Tensor) -> Tensor:
    """‖(x, 2x, 3x[:2])‖ where 2x is taken twice, and so a base itself."""
    return torch.cat([x, torch.cat((2 * x).chunk(2, 1), 1), 3 * x[:, :2]], 1)


def selection_taken_twice(_: nn.ModuleList, x: Tensor) -> Tensor:
    """Columns of the input beside its first two rows."""
    left, right = x.transpose(1, 2).chunk(2, 1)
    return torch.cat([part.flatten(1) for part in (3 * left, right, 5 * x[:, :2][:, :, 3:])], 1)


def what_a_layer_moves(layers: nn.ModuleList, x: Tensor) -> Tensor:
    return torch.cat([layers[0](x)[..., :3], x[..., 3:], x[..., 3:]], 2)


def what_a_layer_moves_of_a_selection(layers: nn.ModuleList, x: Tensor) -> Tensor:
    turned, again = (x.transpose(1, 2).reshape(-1, 4, 6) for _ in range(2))
    moved = layers[0](turned)
    return torch.cat([moved[..., :3], again[..., 3:], moved[..., :3]], 2)


def turned_halves(layers: nn.ModuleList, x: Tensor) -> Tensor:
    for layer in layers:
        first, second = x.chunk(2, 1)
        x = torch.cat([layer(first), second], 1)
    return x


# On an input of (4, 6); layers are orthogonal.
EXACT: dict[str, tuple[Callable[[nn.ModuleList, Tensor], Tensor], float]] = {
    "halves": (lambda _, x: torch.cat([x[:, :2].abs(), x[:, 2:]], 1), 1),
    "shuffled halves": (lambda _, x: torch.cat(x.transpose(1, 2).flatten(1).chunk(4, 1)[::-1], 1), 1),
    "every second": (lambda _, x: torch.cat([x[:, ::2], x[:, 1::2].relu()], 1), 1),
    "overlap": (lambda _, x: torch.cat([x[:, :3], x[:, 1:]], 1), math.sqrt(2)),
    "overlap, one larger": (lambda _, x: torch.cat([x[..., :4], 2 * x[..., 3:]], 2), math.sqrt(5)),
    "twice the same": (lambda _, x: torch.cat([x, x, x], 1), math.sqrt(3)),
    "sum of slices": (lambda _, x: x[:, :2] + x[:, 2:], math.sqrt(2)),
    "weighted slices": (lambda _, x: 3 * x[:, :2] - 4 * x[:, 2:], 5),
    "factors of channels": (lambda _, x: x * torch.tensor([[0.5], [-3.0], [2.0], [0.0]]), 3),
    "sum of the same": (lambda _, x: x + x, 2),
    "thrice, and less": (lambda _, x: x + 0.5 * x + x + x, 3.5),
    "residual": (lambda _, x: 2 * (x + 0.25 * x), 2.5),
    "larger part": (lambda _, x: torch.cat([2 * x[:, :1], x[:, 1:] / 2], 1), 2),
    "part taken twice": (lambda _, x: torch.cat([x[:, :1], 2 * x[:, :1], x[:, 1:]], 1), math.sqrt(5)),
    "slices of slices": (lambda _, x: torch.cat([x[:, 2:][:, :1], x[:, :2][:, 1:], x[:, 3:]], 1), 1),
    "pieces of a later value": (lambda _, x: torch.cat([part.relu() for part in (-2 * x).split(1, 1)], 1), 2),
    "joined pieces and a shortcut": (lambda _, x: x + torch.cat([-part for part in (-x).split(1, 1)], 1), 2),
    "dropped": (lambda _, x: (x + 1e9 * x, torch.cat([x[:, 1:], x[:, :1]], 1))[1], 1),
    "even and odd, after moving": (even_and_odd, 2),
    "halves of halves": (halves_of_halves, 2),
    "halves, one of them flipped": (lambda _, x: torch.cat([2 * x[:, :2].flip(1, 2), x[:, 2:]], 1), 2),
    "the mean over mirror images": (lambda _, x: 0.5 * (x + x.flip(-1)), 1),
    "every second, and the mirror image": (lambda _, x: torch.cat([x[..., ::2], 3 * x.flip(2)[..., ::2]], 2), 3),
    "a base behind a base": (base_behind_a_base, math.sqrt(1 + 4 + 9)),
    "a selection that is taken twice": (selection_taken_twice, math.sqrt(26)),
    "what a layer moves is no selection": (what_a_layer_moves, math.sqrt(3)),
    "what a layer moves of a selection": (what_a_layer_moves_of_a_selection, math.sqrt(3)),
    "chunk and cat, again and again": (turned_halves, 1),
}


@pytest.mark.parametrize("name", EXACT)
def test_bounds_that_are_attained(name: str, tmp_path: Path) -> None:
    """Up to rounding: the dense Jacobian has this norm somewhere, so nothing smaller is true and nothing is lost.

    The checker accepts that much, and nothing smaller.
    """
    function, expected = EXACT[name]
    layers = [swapped()] if name.startswith("what a layer moves") else []
    if function is turned_halves:
        layers = [OrthogonalLinear(6, 6) for _ in range(6)]
    model = isoconv.plain(Function(lambda layers, x: function(layers, x).flatten(1), *layers), (4, 6)).double()
    room = 1e-5 if layers else 1e-14  # for bounds of matrices
    bound = lipschitz_bound(model, (4, 6)).value
    assert expected * (1 - 1e-6 * bool(layers)) <= bound <= expected * (1 + room)
    jacobian = torch.func.jacrev(lambda x: model(x[None])[0])(torch.rand(4, 6).double()).reshape(-1, 24).detach()
    if name != "pieces of a later value":  # which is flat at positive points
        assert torch.linalg.matrix_norm(jacobian, 2) == pytest.approx(expected, rel=1e-6 if layers else 1e-12)
    nodes = nodes_of(plain_network(model, (4, 6)), (4, 6))
    for p in (1, math.inf):
        assert torch.linalg.matrix_norm(jacobian, p) <= constant_in_norm(nodes, p) * (1 + 1e-12)
    honest = Certificate(tmp_path, model, (4, 6))
    assert honest.check(images=honest.pixels.numpy()).code == 0
    weights = any(hasattr(layer.module, "weight") for layer in honest.layers)  # bounded generously
    for factor, code in ((1 + 1e-5 * weights + 1e-12, 0), (1 - (1e-5 if layers else 1e-9), 1)):
        outcome = honest.check(lambda table, factor=factor: claim_only(table, expected * factor))
        assert outcome.code == code, outcome


def test_a_circular_pad_that_two_take_is_no_part_of_a_convolution(tmp_path: Path) -> None:
    """Alone, it copies each of 3×3 pixels up to four times; in front of one convolution, it is bounded with it."""
    conv = nn.Conv2d(2, 2, 3, bias=False)
    nn.init.zeros_(conv.weight)

    def run(layers: nn.ModuleList, x: Tensor) -> Tensor:
        padded = layers[0](x)
        return torch.cat([layers[1](padded).flatten(1), padded.flatten(1)], dim=1)

    model = Function(run, nn.CircularPad2d(1), conv)
    assert 2 <= lipschitz_bound(model, (2, 3, 3)).value < 2.1
    honest = Certificate(tmp_path, isoconv.plain(model, (2, 3, 3)), (2, 3, 3))
    assert honest.layers[0].norm == 2.0 and honest.check(images=honest.pixels.numpy()).code == 0
    assert honest.check(put("nodes.0.lipschitz", (1.5).hex())).code == 1


def test_blocks_of_chunk_and_cat_with_orthogonal_layers_lose_nothing() -> None:
    model = Function(chunk_block, *(BCOPConv2d(4, 4, 3, dtype=torch.float64) for _ in range(6)))
    assert 1 <= lipschitz_bound(model, (4, 6, 6)).value < 1 + 1e-6
    chain = nn.Sequential(*(BCOPConv2d(4, 4, 3, dtype=torch.float64) for _ in range(4)))
    jacobian = torch.func.jacrev(lambda x: isoconv.plain(chain)(x[None])[0])(torch.rand(4, 5, 5).double())
    truth = float(torch.linalg.matrix_norm(jacobian.reshape(100, 100), 2))
    for model in (chain, Function(lambda layers, x: layers[0](x), chain)):
        assert truth <= lipschitz_bound(model, (4, 5, 5)).value < truth * (1 + 1e-6)


class Dense(nn.Module):
    """A residual block, a block of concatenations, a shared layer, pooling, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.conv, self.norm = BCOPConv2d(3, 4, 3), nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.relu, self.grow, self.sort = nn.ReLU(inplace=True), nn.Conv2d(8, 4, 1), MaxMin()
        self.head = OrthogonalLinear(12, 3)
        self.norm.running_mean.normal_()
        self.norm.running_var.uniform_(0.5, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.sort(self.stem(x))
        out = self.norm(self.conv(x))
        out += x
        out = self.relu(out)
        x = torch.cat([out, self.conv(out)], 1)
        x = torch.cat([x, self.grow(x).tanh()], 1)
        return self.head(F.avg_pool2d(x, x.shape[2:]).view(x.size(0), -1))


def test_radii_are_attacked_just_inside(tmp_path) -> None:
    model, x = Dense().eval(), torch.rand(16, 3, 6, 6).double()
    certifier = Certifier(model, (3, 6, 6))
    found = certifier(x)
    points = pgd_on_the_margin(certifier.network, x, found.prediction, found.radius * (1 - 1e-6), 25, 1)
    assert (found.radius > 0).any()
    assert refuted(certifier.network, x, points, found.prediction, found.radius) == []
    assert sum(attack_graph(seed)["radii"] for seed in range(3)) > 0
    for p in (1, math.inf):
        assert (certified_radius(model, x, p=p) <= certified_radius(model, x, p=1) * (1 + 1e-9)).all()
    write_certificate(tmp_path / "c", certifier, found)
    header = json.loads((tmp_path / "c").read_text().splitlines()[0])
    assert [node["name"] for node in header["nodes"]] == [node.name for node in certifier.nodes]
    assert {"conv", "conv#2"} <= {node["name"] for node in header["nodes"] if node["module"] == "conv"}


def test_norms_of_gradients_and_singular_values_along_a_graph() -> None:
    model = Function(
        lambda layers, x: layers[1](chunk_block(layers[:1], x).flatten(1)),
        BCOPConv2d(4, 4, 3),
        OrthogonalLinear(100, 3),
    )
    spectra = singular_values(model, (4, 5, 5))
    assert [spectrum.title for spectrum in spectra] == ["convolution 1", "linear 1"]
    assert all(torch.allclose(spectrum.values, torch.ones(1).double(), atol=1e-5) for spectrum in spectra)
    norms = gradient_norms(model, torch.rand(3, 4, 5, 5).double(), torch.tensor([0, 1, 2])).norms
    assert torch.allclose(norms, torch.ones(1).double(), atol=1e-5)


def test_a_loss_that_is_not_used_is_left_alone() -> None:
    layers = nn.Linear(4, 3), nn.CrossEntropyLoss()
    model = Function(lambda layers, x: layers[0](x), *layers)
    assert lipschitz_bound(model, (4,)).value == lipschitz_bound(layers[0], (4,)).value
    used = Function(lambda layers, x: layers[1](layers[0](x), layers[0](x)), *layers), nn.Sequential(nn.MSELoss())
    for model in used:
        with pytest.raises(IsoconvError, match="Loss"):
            lipschitz_bound(model, (4,))


def test_a_registered_kind_is_a_leaf_of_a_graph() -> None:
    class Fold(nn.Module):
        """Could not be traced."""

        def forward(self, x: Tensor) -> Tensor:
            return torch.where(x > 0, x, -x)

    register(Fold, Rule(lambda node: 1.0, lambda node, bound, arithmetic: Rounding()))
    model = Function(lambda layers, x: layers[0](x) + x, Fold())
    bound = lipschitz_bound(model, (4,))
    assert bound.claimed == ("layers.0",) and bound.value == pytest.approx(2, rel=1e-12)
    assert torch.equal(isoconv.plain(model, (4,))(-torch.ones(1, 4)), torch.zeros(1, 4))
