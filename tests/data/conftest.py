"""For the tests of the data: an album of pictures. The checkout's own folder is out of reach."""

from pathlib import Path

import pytest

from data.fakes import random_bytes, save_picture


@pytest.fixture(autouse=True)
def elsewhere(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative paths, such as the default folder, must not find what happens to lie around."""
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))


@pytest.fixture(scope="session")
def album(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 pictures in three classes: PNG and JPEG, grey and coloured, of three sizes."""
    folder = tmp_path_factory.mktemp("album")
    for k in range(60):
        height, width = ((20, 20), (31, 47), (60, 40))[k % 3]
        shape = (height, width) if k % 5 == 0 else (height, width, 3)
        label, ending = ("ant", "bee", "cat")[(k + k // 3) % 3], ("png", "jpg")[k % 2]
        save_picture(folder / label / f"{k:03}.{ending}", random_bytes(*shape, seed=k))
    return folder
