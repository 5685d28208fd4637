"""One way in: a data set by its name, or a user's own by its path."""

from collections.abc import Callable
from os import PathLike
from pathlib import Path

from isoconv.data.cifar10 import find_cifar10, read_cifar10
from isoconv.data.digits import read_digits
from isoconv.data.download import download as fetch
from isoconv.data.folder import read_csv, read_folder
from isoconv.data.image_set import Splits
from isoconv.data.mnist import find_mnist, read_mnist
from isoconv.data.progress import Progress
from isoconv.data.resizing import Size, resize
from isoconv.data.stl10 import find_stl10, read_stl10
from isoconv.errors import IsoconvError

FROM_FILES = ("mnist", "cifar10", "stl10")  # sets that lie in a folder somewhere
NAMES = ("digits", *FROM_FILES)
DEFAULT_FOLDER = Path("data")


def load_splits(
    name_or_path: str | PathLike[str],
    folder: str | PathLike[str] | None = None,
    *,
    size: Size | None = None,
    channels: int | None = None,
    download: bool = False,
    test_fraction: float = 0.2,
    seed: int = 0,
    progress: Progress | None = None,
) -> Splits:
    """The training and the test set of `digits`, `mnist`, `cifar10` or `stl10`, or of a folder of images or a CSV file.

    The files of a named set are looked for in `folder` (default: `data`); with `download` they are fetched if they are
    not there. `size` resizes. `channels`, `test_fraction` and `seed` are for one's own pictures: the named sets have
    their own channels and test images. A name goes before a path of the same name: write ./mnist for that.
    """
    if str(name_or_path) in NAMES:
        splits = _named(str(name_or_path), DEFAULT_FOLDER if folder is None else Path(folder), download, progress)
        if channels not in (None, splits.train.shape[0]):
            raise IsoconvError(
                f"Expected channels={splits.train.shape[0]}, as {name_or_path} has. Got {channels}: "
                f"only pictures from a folder or a CSV file are converted."
            )
        return splits if size is None else splits.map(lambda part: resize(part, size))
    path = Path(name_or_path)
    if path.is_dir():
        read: Callable[..., Splits] = read_folder
    elif path.suffix.lower() == ".csv":
        read = read_csv
    else:
        raise IsoconvError(
            f"Expected one of {', '.join(NAMES)}, or the path of a folder of images or of a CSV file. "
            f"Got {str(name_or_path)!r}, which {'is neither' if path.exists() else 'does not exist'}."
        )
    return read(path, size=size, channels=channels, test_fraction=test_fraction, seed=seed, progress=progress)


def _named(name: str, folder: Path, download: bool, progress: Progress | None) -> Splits:
    if name == "digits":
        return read_digits()
    find, read = {
        "mnist": (find_mnist, read_mnist),
        "cifar10": (find_cifar10, read_cifar10),
        "stl10": (find_stl10, read_stl10),
    }[name]
    if download and all(finding.missing for finding in find(folder)):
        fetch(name, folder, progress=progress)
    return read(folder)
