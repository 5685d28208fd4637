"""Certified accuracy of data sets against its definition: the images that are right and whose radius reaches epsilon."""

import math
from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from certify.exact_network import labelled_images, linear_classifier, trained_small
from isoconv.certify import Certifier, certified_radius, certify, lipschitz_bound, robust_accuracy
from isoconv.data import ImageSet

SHAPE = (1, 8, 8)
EPSILONS = (0.0, 1e-9, 0.05, 0.3, 1.0, 50.0)


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return trained_small("rko", SHAPE, steps=6)


@pytest.fixture(scope="module")
def data() -> tuple[Tensor, Tensor]:
    x, labels = labelled_images(40, SHAPE, seed=3)
    x, labels = x / x.max(), labels.clone()
    labels[::7] = 0  # some of them wrong
    return x, labels


def test_definition(model: nn.Module, data: tuple[Tensor, Tensor]) -> None:
    x, labels = data
    found, alone = robust_accuracy(model, data, EPSILONS), certify(model, x)
    right = alone.prediction == labels  # the prediction is certified, then compared
    assert torch.equal(found.right, right) and torch.equal(found.certificates.radius, alone.radius)
    assert torch.equal(found.radii, torch.where(right, alone.radius, 0.0))
    assert 0 < found.clean < 100 and found.clean == 100 * int(right.sum()) / 40
    assert list(found.certified) == list(EPSILONS)
    for epsilon in EPSILONS:
        expected = 100 * int((right & (alone.radius >= epsilon) & (alone.radius > 0)).sum()) / 40
        assert found.certified[epsilon] == found.at(epsilon) == expected <= found.clean
    values = [found.certified[epsilon] for epsilon in EPSILONS]
    assert values == sorted(values, reverse=True) and len(set(values)) > 2 and values[-1] == 0
    assert found.lipschitz_bound >= lipschitz_bound(model, SHAPE).value


def test_curve(model: nn.Module, data: tuple[Tensor, Tensor]) -> None:
    """At every step of the curve and just beyond it the share is exactly what counting gives."""
    found = robust_accuracy(model, data)
    epsilons, shares = (part.tolist() for part in found.curve())
    assert shares == sorted(shares, reverse=True) and epsilons == sorted(found.radii[found.radii > 0].tolist())
    for epsilon, share in zip(epsilons, shares, strict=True):
        assert share == found.at(epsilon) == pytest.approx(100 * int((found.radii >= epsilon).sum()) / 40, abs=1e-12)
        assert found.at(math.nextafter(epsilon, math.inf)) < share  # the ball is closed: the image is lost beyond it


def test_ties_and_nan_are_not_certified_at_epsilon_zero_either(model: nn.Module, data: tuple[Tensor, Tensor]) -> None:
    """A tie is right by the luck of the order; an image with NaN counts as one that is wrong."""
    x = torch.tensor([[0.5, 0.5], [1.0, 0.0]], dtype=torch.float64)
    found = robust_accuracy(linear_classifier(torch.eye(2).double(), None), (x, torch.tensor([0, 0])), [0.0])
    assert found.radii[0] == 0 and found.certified[0.0] == 50
    clean, x = robust_accuracy(model, data, [0.0]), data[0].clone()
    hit = int(clean.right.int().argmax())
    x[hit, 0, 0, 0] = math.nan
    found = robust_accuracy(model, (x, data[1]), [0.0])
    assert found.radii[hit] == 0 and found.certified[0.0] == pytest.approx(clean.certified[0.0] - 100 / 40)
    assert not math.isnan(found.clean)


@pytest.mark.parametrize("arithmetic", ["float64", "float32"])
def test_bytes_equal_their_quotients(model: nn.Module, arithmetic: str) -> None:
    """uint8 images are value/255 in the arithmetic of the certificate."""
    generator = torch.Generator().manual_seed(0)
    bytes_ = torch.randint(0, 256, (10, *SHAPE), generator=generator, dtype=torch.uint8)
    labels = torch.zeros(10, dtype=torch.int64)
    pairs = (bytes_.to(getattr(torch, arithmetic)) / 255, labels), ImageSet(bytes_, labels, ("a", "b", "c", "d"), "set")
    found = robust_accuracy(model, (bytes_, labels), [0.1], arithmetic=arithmetic)
    for other in (robust_accuracy(model, pair, [0.1], arithmetic=arithmetic) for pair in pairs):
        assert torch.equal(found.radii, other.radii) and found.certified == other.certified


def test_other_forms_of_data_and_model(model: nn.Module, data: tuple[Tensor, Tensor]) -> None:
    """Data sets and loaders of torch, lists, iterators, labels of shape (1,); a certifier in place of the model."""

    class Iterating(IterableDataset):
        def __iter__(self):
            yield from zip(data[0], data[1][:, None], strict=True)

        def __len__(self):
            return len(data[0])

    pairs = TensorDataset(*data)
    loaders = [DataLoader(pairs, batch_size=size) for size in (1, 7, 100)]
    found = robust_accuracy(Certifier(model, SHAPE), data, [0.1], batch_size=16)
    for form in (data, pairs, *loaders, [(x, int(y)) for x, y in pairs], zip(*data, strict=True), Iterating()):
        same = robust_accuracy(model, form, [0.1], batch_size=16)
        assert torch.equal(same.radii, found.radii) and torch.equal(same.labels, found.labels)
        assert same.certified == found.certified

    with pytest.raises(ZeroDivisionError):  # not ours to explain
        robust_accuracy(model, (1 / 0 for _ in range(2)))


def test_radii_of_all_kinds_of_numbers(model: nn.Module, data: tuple[Tensor, Tensor]) -> None:
    """As many as there are, also out of a generator; fractions rounded up; and none too large to be compared."""
    found = robust_accuracy(model, data, (epsilon for epsilon in [Fraction(1, 3), 2**70, 10**400, 0]))
    assert len(found.certified) == 4 and found.at(10**400) == 0.0
    third = next(iter(found.certified))
    assert Fraction(1, 3) <= Fraction(third) < Fraction(1, 3) + Fraction(1, 2**50)


def test_batches_and_progress(model: nn.Module, data: tuple[Tensor, Tensor]) -> None:
    """Neither the size of the batches nor the neighbours in them matter."""
    seen: list[tuple[int, int]] = []
    found = robust_accuracy(model, data, [0.1], batch_size=7, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (40, 40) and len(seen) == 6
    whole = certified_radius(model, data[0])
    assert torch.allclose(found.certificates.radius, whole, rtol=1e-9, atol=0)
    assert torch.allclose(certified_radius(model, data[0], batch_size=1), whole, rtol=1e-9, atol=0)
    assert f"{found.clean:.2f}" in repr(found) and f"{found.certified[0.1]:.2f}" in repr(found)
    assert certified_radius(model, data[0][:0]).shape == (0,)


def test_options_reach_the_certificate(model: nn.Module, data: tuple[Tensor, Tensor]) -> None:
    x = data[0].float().double()
    plain = certified_radius(model, x)
    for options in ({"criterion": "per-class"}, {"arithmetic": "float32"}, {"p": math.inf}):
        radii = robust_accuracy(model, (x, data[1]), **options).certificates.radius
        assert torch.equal(radii, certified_radius(model, x, **options)) and (radii < plain).any()
