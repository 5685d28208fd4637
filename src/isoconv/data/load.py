"""One way in: a data set by its name, or a user's own by its path."""

from os import PathLike
from pathlib import Path

from isoconv.data.datasets import DATASETS
from isoconv.data.datasets import FROM_FILES as FROM_FILES
from isoconv.data.datasets import NAMES as NAMES
from isoconv.data.fetch import Progress
from isoconv.data.fetch import download as fetch
from isoconv.data.image_set import Splits
from isoconv.data.pictures import PictureOptions, read_csv, read_folder
from isoconv.data.readers import locate
from isoconv.data.resizing import Size, resize
from isoconv.errors import IsoconvError


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
    lazy: bool = False,
) -> Splits:
    """Return the training and the test set of a data set in `DATASETS`, or of a folder of images or a CSV file.

    The files of a named set are looked for in `folder` (default: `data`); with `download` they are fetched if they are
    not there. `size` resizes. `channels`, `test_fraction` and `seed` are for a user's own pictures: the named sets have
    their own channels and test images. With `lazy` a part is read when it is first asked for, where that is possible. A
    name goes before a path of the same name: write ./mnist for that.
    """
    if record := DATASETS.get(str(name_or_path)):
        folder = Path("data" if folder is None else folder)
        if channels not in (None, record.shape[0]):
            raise IsoconvError(
                f"Expected channels={record.shape[0]}, as {record.name} has. Got {channels}: "
                "only pictures from a folder or a CSV file are converted."
            )
        if download and record.downloads and all(location.missing for location in locate(record, folder)):
            fetch(record, folder, progress=progress)
        splits = record.read(folder)
        splits = splits if size is None else splits.map(lambda part: resize(part, size))
        return splits if lazy else splits.load()
    path = Path(name_or_path)
    if not path.is_dir() and path.suffix.lower() != ".csv":
        raise IsoconvError(
            f"Expected one of {', '.join(DATASETS)}, or the path of a folder of images or of a CSV file. "
            f"Got {str(name_or_path)!r}, which {'is neither' if path.exists() else 'does not exist'}."
        )
    read = read_folder if path.is_dir() else read_csv
    options = PictureOptions(
        size=size, channels=channels, test_fraction=test_fraction, seed=seed, progress=progress, lazy=lazy
    )
    return read(path, **options)
