"""For the tests of the data: the checkout's own folder is out of reach."""

import pytest


@pytest.fixture(autouse=True)
def elsewhere(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative paths, such as the default folder, must not find what happens to lie around."""
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
