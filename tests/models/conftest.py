"""Every test of the networks starts from the same seed and runs on one thread."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """On images this small, threads only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
