"""Networks of rotations and shifts: their layers, their Jacobians, their fresh blocks, their records, what they refuse."""

import pytest
import torch
from torch import nn

import isoconv
from isoconv.models import MODELS, ShiftNet
from isoconv.nn import BCOPConv2d, ChannelShift, HalfAbs, L2NormPool2d, OrthogonalLinear, PositionBias
from isoconv.train import recipe_settings
from isoconv.train.config import TrainConfig, make_model
from train.toys import refused

NETWORKS = [
    ((1, 8, 8), {"channels": 16, "blocks": (1, 1)}),
    ((1, 8, 8), {"channels": 80, "blocks": (1, 1)}),  # each pixel with its neighbours
    ((3, 6, 9), {"channels": 32, "blocks": (1, 1, 1), "classes": 3}),  # padded to 8×12
    ((2, 7, 7), {"channels": 5, "blocks": (2,), "patch": 3, "share": 0.25}),  # more channels in a patch than after it
    ((1, 4, 4), {"channels": 16, "blocks": (2, 1), "orthogonalisation": "bjorck"}),
]


@pytest.mark.parametrize(("shape", "options"), NETWORKS)
def test_jacobians(shape, options):
    """At most 1, where the network rotates and where it folds; so is its slope along segments."""
    dtype = torch.float64 if "classes" in options else torch.float32
    model = ShiftNet(shape, **options).to(dtype).eval()
    for bias in (m for m in model.modules() if isinstance(m, PositionBias)):
        nn.init.normal_(bias.bias, std=0.1)
    x, y = torch.rand(2, 4, *shape, dtype=dtype)
    J = torch.autograd.functional.jacobian(lambda z: model(z[None])[0], x[0])
    assert model(x).shape == (4, options.get("classes", 10))
    tolerance = 1e-3 if options.get("orthogonalisation") == "bjorck" else 1e-5  # 20 steps leave that much
    values = torch.linalg.svdvals(J.reshape(len(J), -1))
    assert 0.3 < values[0] <= 1 + tolerance
    assert ((model(x) - model(y)).norm(dim=1) <= (x - y).flatten(1).norm(dim=1) * (1 + tolerance)).all()


def test_the_linear_part_is_orthogonal_where_channels_allow_it():
    """Without folding, biases and pooling, all singular values of the blocks together are 1."""
    model = ShiftNet((1, 8, 8), channels=16, blocks=(1, 1))
    linear = nn.Sequential(*[m for m in model if not isinstance(m, HalfAbs)][:-2])
    J = torch.autograd.functional.jacobian(lambda z: linear(z[None])[0], torch.rand(1, 8, 8))
    assert (torch.linalg.svdvals(J.reshape(-1, 64)) - 1).abs().max() <= 1e-5


@pytest.mark.parametrize("orthogonalisation", ["manifold", "bjorck"])
def test_a_fresh_block_rotates_shifts_and_rotates_back(orthogonalisation):
    """So without its shift it is the identity, after channels of zeros have been added."""
    options = {"channels": 16, "blocks": (2,), "patch": 1, "orthogonalisation": orthogonalisation}
    embedding, bias, first, shift, second, half, *_ = ShiftNet((4, 4, 4), **options).eval()
    assert [type(m) for m in (bias, shift, half)] == [PositionBias, ChannelShift, HalfAbs] and first.bias is None
    x = torch.rand(2, 4, 4, 4)
    wide = embedding(x)
    assert torch.equal(wide[:, :4], x) and wide.shape[1] == 16 and wide[:, 4:].abs().max() == 0
    assert (second(first(bias(wide))) - wide).abs().max() <= (1e-3 if orthogonalisation == "bjorck" else 1e-5)


def test_the_layers_of_a_network():
    with torch.device("meta"):
        model = ShiftNet((3, 30, 32), 7, channels=64, blocks=(1, 2))
    kinds = [type(m).__name__ for m in model]
    block = ["PositionBias", "BCOPConv2d", "ChannelShift", "BCOPConv2d", "HalfAbs"]
    down = "InvertibleDownsampling"
    assert kinds == ["ZeroPad2d", down, "BCOPConv2d", *block, down, *block, *block, "L2NormPool2d", "OrthogonalLinear"]
    rotations = [(m.in_channels, m.out_channels) for m in model if isinstance(m, BCOPConv2d)]
    assert rotations == [(12, 16), *[(16, 16)] * 2, *[(64, 64)] * 4]
    assert [(m.height, m.width) for m in model if isinstance(m, PositionBias)] == [(16, 16), (8, 8), (8, 8)]
    head = model[-1]
    assert isinstance(head, OrthogonalLinear) and (head.in_features, head.out_features) == (64, 7)


def test_each_pixel_comes_with_its_neighbours():
    """Four of them and itself, which together have its image's norm; the first stage begins with patches of them all."""
    model, x = ShiftNet((2, 8, 8), channels=160, blocks=(1, 1)).eval(), torch.rand(3, 2, 8, 8)
    seen = model[1](model[0](x))
    copies = torch.cat([x.roll(1, 2), x.roll(-1, 2), x.roll(1, 3), x.roll(-1, 3), x], 1)
    assert torch.allclose(seen * 5**0.5, copies) and torch.allclose(seen.norm(), x.norm())
    assert model[3](model[2](seen)).shape == (3, 40, 4, 4)
    assert not isinstance(ShiftNet((2, 8, 8), channels=156, blocks=(1, 1))[1], ChannelShift)  # no room for them


def test_the_plain_form():
    model, x = ShiftNet((1, 8, 8), 4, channels=16, blocks=(1, 1)).eval(), torch.rand(3, 1, 8, 8)
    plain = isoconv.plain(model)
    assert type(plain) is nn.Sequential and torch.allclose(plain(x), model(x), atol=1e-6)
    ours = {type(m) for m in plain.modules() if type(m).__module__.startswith("isoconv")}
    assert ours == {ChannelShift, PositionBias, HalfAbs, L2NormPool2d}


def test_it_trains_in_every_layer():
    model = ShiftNet((1, 8, 8), 4, channels=32, blocks=(1, 1))
    images, labels = torch.rand(4, 1, 8, 8), torch.arange(4)
    descent = isoconv.optim.SteepestDescent(model.parameters(), lr=0.02)
    before, losses = {name: p.detach().clone() for name, p in model.named_parameters()}, []
    for _ in range(20):
        descent.zero_grad()
        loss = nn.functional.cross_entropy(model(images) / 0.1, labels)
        loss.backward()
        descent.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0]
    assert [name for name, p in model.named_parameters() if torch.equal(p, before[name])] == ["1.O"]  # adds zeros


# By name ----------------------------------------------------------------------------------------------------------


def test_presets():
    """By name, with their sizes; `conv` and `activation` do not concern them."""
    sizes = {"shift-s": 0.55e6, "shift-m": 17.2e6, "shift-l": 57.8e6}
    for name, size in sizes.items():
        with torch.device("meta"):
            model = MODELS[name].make((3, 32, 32), classes=10, conv="bcop", activation="maxmin")
        assert isinstance(model, ShiftNet)
        assert sum(p.numel() for p in model.parameters()) == pytest.approx(size, rel=0.02), name


def test_the_recipe_and_the_configuration():
    settings = recipe_settings("default", "cifar10", "bcop", "shift-m")
    expected = {"optimiser": "steepest", "lr": 0.003, "batch_size": 256, "temperature": 0.125, "crop_padding": 4}
    assert expected.items() <= settings.items()
    assert recipe_settings("default", "cifar10", "bcop", "large")["lr"] != 0.003
    config = TrainConfig("digits", (1, 8, 8), ("a", "b", "c"), model="shift-s", **settings)
    model = make_model(config)
    assert config.schedule == "linear" and model(torch.rand(2, 1, 8, 8)).shape == (2, 3)
    for name, value in (("conv", "rko"), ("activation", "relu")):
        own = {"model": "shift-s", name: value}
        refused(f"no conv and no activation for shift-s.*{value}", TrainConfig, "digits", (1, 8, 8), ("a", "b"), **own)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"blocks": ()}, "block in every stage"),
        ({"blocks": (2, 0)}, r"blocks=\(2, 0\)"),
        ({"blocks": (1, 1), "channels": 18}, "channels that 4 divides, for 2 stages. Got 18"),
        ({"blocks": (1, 1, 1), "patch": 6, "channels": 64}, "patch that 4 divides, for 3 stages. Got 6"),
        ({"patch": 0}, "patch"),
        ({"channels": -4}, "channels"),
        ({"classes": 0}, "class"),
        ({"share": 0.5}, "share"),
        ({"orthogonalisation": "qr"}, "manifold.*bjorck"),
        ({"input_shape": (1, 0, 8)}, "input_shape"),
        ({"input_shape": (1, 8, 12)}, r"4×6. Got 4×4"),
    ],
    ids=str,
)
def test_what_is_refused(options, match):
    settings = {"input_shape": (1, 8, 8), "channels": 16, "blocks": (1, 1)} | options
    refused(match, lambda: ShiftNet(**settings)(torch.zeros(1, 1, 8, 8)))
