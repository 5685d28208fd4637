"""For the tests of the data: one thread, and the checkout's own folder out of reach."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative paths, such as the default folder, must not find what happens to lie around."""
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
