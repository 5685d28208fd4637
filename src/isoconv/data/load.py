"""One way in: a data set by its name, or a user's own by its path."""

from os import PathLike
from pathlib import Path
from typing import Unpack

from isoconv.data.datasets import DATASETS
from isoconv.data.datasets import FROM_FILES as FROM_FILES
from isoconv.data.datasets import NAMES as NAMES
from isoconv.data.fetch import download as fetch
from isoconv.data.image_set import Splits
from isoconv.data.pictures import PictureOptions, read_csv, read_folder
from isoconv.data.readers import locate
from isoconv.data.resizing import resize
from isoconv.errors import require


def load_splits(
    name_or_path: str | PathLike[str],
    folder: str | PathLike[str] | None = None,
    *,
    download: bool = False,
    **options: Unpack[PictureOptions],
) -> Splits:
    """Return the training and the test set of a data set in `DATASETS`, or of a folder of images or a CSV file.

    The files of a named set are looked for in `folder` (default: `data`); with `download` they are fetched if they are
    missing. A name wins over a path of the same name: write ./mnist for the path. Of the options (`size`, `channels`,
    `test_fraction`, `seed`, `progress`, `lazy`; see `PictureOptions`) a named set uses `size`, `progress` and `lazy`:
    it has its own channels and test images.
    """
    record = DATASETS.get(str(name_or_path))
    if record is None:
        path = Path(name_or_path)
        own = path.is_dir() or path.suffix.lower() == ".csv"
        problem = f"{str(name_or_path)!r}, which {'is neither' if path.exists() else 'does not exist'}"
        require(own, f"one of {', '.join(DATASETS)}, or the path of a folder of images or of a CSV file", problem)
        return (read_folder if path.is_dir() else read_csv)(path, **options)
    size, channels = options.get("size"), options.get("channels")
    problem = f"{channels}: only pictures from a folder or a CSV file are converted"
    require(channels in (None, record.shape[0]), f"channels={record.shape[0]}, as {record.name} has", problem)
    folder = Path("data" if folder is None else folder)
    if download and record.downloads and all(location.missing for location in locate(record, folder)):
        fetch(record, folder, progress=options.get("progress"))
    splits = record.read(folder)
    if size is not None:
        splits = splits.map(lambda part: resize(part, size))
    return splits if options.get("lazy") else splits.load()
