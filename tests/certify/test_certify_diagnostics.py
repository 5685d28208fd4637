"""Singular values of layers and gradient norms by depth, against the dense Jacobian."""

import pytest
import torch
from torch import Tensor, nn

from helpers import jacobian_at
from isoconv import IsoconvError, plain
from isoconv.certify.diagnostics import gradient_norms, singular_values
from isoconv.models import FC3, Small


def seeded(kind: type[nn.Module], *arguments: object, **options: object) -> nn.Module:
    torch.manual_seed(0)
    return kind(*arguments, **options)


@pytest.mark.parametrize("conv", ["bcop", "rko", "cayley", "standard"])
def test_they_are_those_of_the_dense_jacobian(conv):
    shape = (2, 8, 12)
    model = seeded(Small, shape, 3, conv=conv)
    found = singular_values(model, shape)
    assert [layer.title for layer in found] == ["convolution 1", "convolution 2", "linear 1", "linear 2"]
    inputs = [(2, 8, 12), (16, 4, 6), (32 * 2 * 3,), (100,)]
    # the layers with weights, each with the padding in front of it
    stages = [m for m in plain(model).double() if isinstance(m, (nn.Conv2d, nn.Linear, nn.Sequential))]
    for layer, stage, size in zip(found, stages, inputs, strict=True):
        expected = torch.linalg.svdvals(jacobian_at(stage, torch.zeros(size).double()))
        assert layer.values.shape == expected.shape
        torch.testing.assert_close(layer.values, expected, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize(
    "options", [{"padding_mode": "zeros"}, {"padding": 0}, {"groups": 2}, {"dilation": 2}, {"stride": 3}], ids=str
)
def test_other_convolutions_are_refused_by_name(options):
    conv = nn.Conv2d(2, 4, 3, **({"padding": options.get("dilation", 1), "padding_mode": "circular"} | options))
    with pytest.raises(IsoconvError, match=r"circular.* Conv2d at 0"):
        singular_values(nn.Sequential(conv), (2, 8, 8))
    left_out: list[str] = []
    network = nn.Sequential(conv, nn.Flatten(), nn.LazyLinear(3))
    network(torch.zeros(1, 2, 8, 8))
    found = singular_values(network, (2, 8, 8), left_out)
    assert left_out == ["convolution 1"] and [layer.title for layer in found] == ["linear 1"]


def jacobian_norms(model: nn.Module, image: Tensor, label: int) -> Tensor:
    """‖∂(y_t − max y_j)/∂x‖ at the image, by torch.func."""

    def margin(x: Tensor) -> Tensor:
        logits = model(x[None])[0]
        return logits[label] - torch.cat([logits[:label], logits[label + 1 :]]).max()

    return torch.func.grad(margin)(image).norm()


@pytest.mark.parametrize("conv", ["bcop", "standard"])
def test_the_gradient_at_the_image_is_that_of_the_whole_network(conv):
    model = seeded(Small, (1, 8, 8), 4, conv=conv, activation="relu" if conv == "standard" else "maxmin")
    images = torch.rand(5, 1, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    labels = torch.tensor([0, 1, 2, 3, 0])
    found = gradient_norms(model, images, labels)
    assert found.places == ("image", "convolution 1", "convolution 2", "linear 1", "logits")
    assert found.norms.shape == (5, 5) and torch.equal(found.norms[-1], torch.ones(5, dtype=torch.float64))
    network = plain(model).double()
    expected = torch.stack([jacobian_norms(network, x, int(t)) / 2**0.5 for x, t in zip(images, labels, strict=True)])
    torch.testing.assert_close(found.norms[0], expected, atol=1e-12, rtol=1e-9)


def test_a_network_without_layers_has_the_gradient_at_the_image():
    found = gradient_norms(nn.Flatten(), torch.rand(3, 1, 2, 2), torch.zeros(3, dtype=torch.int64))
    assert found.places == ("image", "logits") and torch.equal(found.norms, torch.ones(2, 3).double())


def test_bad_images_are_refused():
    model, labels = seeded(FC3, (1, 4, 4), 2), torch.zeros(3, dtype=torch.int64)
    for network, images, count, message in (
        (model, torch.zeros(2, 1, 4, 4, dtype=torch.uint8), 2, "floating-point"),
        (model, torch.zeros(0, 1, 4, 4), 0, "floating-point images"),
        (model, torch.zeros(2, 1, 4, 4), 3, "one label for each of 2 images"),
        (nn.Linear(1, 1), torch.zeros(2, 1), 2, "at least 2 classes"),
    ):
        with pytest.raises(IsoconvError, match=message):
            gradient_norms(network, images, labels[:count])
    found = gradient_norms(model, torch.rand(3, 1, 4, 4), labels)
    assert found.places == ("image", "linear 1", "linear 2", "linear 3", "logits")
