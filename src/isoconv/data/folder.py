"""A user's own pictures: a folder with one sub-folder per class, or a CSV file of paths and labels."""

import csv
import hashlib
from collections.abc import Callable, Sequence
from functools import partial
from os import PathLike
from pathlib import Path

import torch
from torch import Tensor

from isoconv.data.image_set import ImageSet, Splits
from isoconv.data.pictures import ENDINGS, files_in, is_picture, pictures_in, read_pictures
from isoconv.data.progress import Progress
from isoconv.data.resizing import Size
from isoconv.data.split import hold_out, shuffled
from isoconv.errors import IsoconvError

Labelled = list[tuple[Path, str]]
Reader = Callable[[Sequence[Path]], Tensor]


def read_folder(
    folder: str | PathLike[str],
    *,
    size: Size | None = None,
    channels: int | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
    progress: Progress | None = None,
) -> Splits:
    """The pictures of `folder`/<class>/…, or of its train/<class>/… and test/<class>/… (or val/<class>/…).

    Classes are the names of the sub-folders, sorted. If there is no test folder, a fraction of each class is held out.
    The images are shuffled, so that the first n are of all classes. How a picture is prepared, and what `size` and
    `channels` do, is said in `pictures`.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise IsoconvError(
            f"Expected a folder of images. Got {folder}, which {'is a file' if folder.exists() else 'does not exist'}."
        )
    name, read = folder.resolve().name, partial(read_pictures, size=size, channels=channels, progress=progress)
    inside = {path.name: path for path in _sub_folders(folder)}
    train, test = inside.get("train"), inside.get("test", inside.get("val"))
    if train is None or test is None:
        place = train if train is not None and len(inside) == 1 else folder
        rows = _labelled_by_folder(place)
        whole = _image_set(rows, sorted({label for _, label in rows}), name, read)
        cut = hold_out(shuffled(whole, seed), test_fraction, seed)
        return Splits(*cut, listing=_listing(_names(folder, rows), rows), ignored=_ignored(folder, rows))
    train_rows, test_rows = _labelled_by_folder(train), _labelled_by_folder(test)
    train_classes, test_classes = ({label for _, label in rows} for rows in (train_rows, test_rows))
    if train_classes != test_classes:
        different = ", ".join(repr(label) for label in sorted(train_classes ^ test_classes))
        raise IsoconvError(f"Expected the same classes in {train} and {test}. Got {different} in only one of them.")
    # Together, so that both get the same size and the same channels.
    rows = train_rows + test_rows
    whole = _image_set(rows, sorted(train_classes), name, read)
    test_images = whole.subset(torch.arange(len(train_rows), len(whole)))
    return Splits(
        shuffled(whole.take(len(train_rows)), seed),
        shuffled(test_images, seed),
        listing=_listing(_names(folder, rows), rows),
        ignored=_ignored(folder, rows),
    )


def read_csv(
    path: str | PathLike[str],
    *,
    size: Size | None = None,
    channels: int | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
    progress: Progress | None = None,
) -> Splits:
    """The pictures that a CSV file lists as `path,label`, one a line, with or without a header; see `read_folder`.

    Paths are relative to the file's own folder. Classes are the labels, sorted, as numbers if all are whole numbers.
    """
    path = Path(path)
    listed = _labelled_by_csv(path)
    rows = [(path.parent / name, label) for name, label in listed]
    labels = {label for _, label in rows}
    whole_numbers = all(label.isascii() and label.isdigit() for label in labels)
    classes = sorted(labels, key=lambda label: (int(label) if whole_numbers else 0, label))
    read = partial(read_pictures, size=size, channels=channels, progress=progress)
    whole = shuffled(_image_set(rows, classes, path.stem, read), seed)
    return Splits(*hold_out(whole, test_fraction, seed), listing=_listing([name for name, _ in listed], rows))


def _image_set(rows: Labelled, classes: Sequence[str], name: str, read: Reader) -> ImageSet:
    number = {label: index for index, label in enumerate(classes)}
    labels = torch.tensor([number[label] for _, label in rows])
    return ImageSet(read([path for path, _ in rows]), labels, tuple(classes), name)


def _labelled_by_folder(folder: Path) -> Labelled:
    rows: Labelled = []
    classes = _sub_folders(folder)
    if not classes:
        loose = sum(1 for path in folder.iterdir() if is_picture(path))
        found = f"{loose} picture{'s' * (loose != 1)} and " if loose else ""
        raise IsoconvError(f"Expected one sub-folder of images per class in {folder}. Got {found}no sub-folder.")
    for place in classes:
        pictures = [(path, place.name) for path in pictures_in(place)]
        if not pictures:
            raise IsoconvError(f"Expected images ({', '.join(ENDINGS)}) in every class folder. Got none in {place}.")
        rows += pictures
    if len(classes) < 2:
        raise IsoconvError(f"Expected at least two classes, as sub-folders of {folder}. Got only {classes[0].name!r}.")
    return rows


def _listing(names: Sequence[str], rows: Labelled) -> str:
    """A hash of the pictures' names, sizes in bytes and classes, in order."""
    named = zip(names, rows, strict=True)
    lines = (f"{name}\n{path.stat().st_size}\n{label}\n" for name, (path, label) in named)
    return hashlib.sha256("".join(lines).encode(errors="surrogateescape")).hexdigest()


def _names(folder: Path, rows: Labelled) -> list[str]:
    """As seen from the folder, which may move."""
    return [path.relative_to(folder).as_posix() for path, _ in rows]


def _ignored(folder: Path, rows: Labelled) -> int:
    """How many files of a folder are not among those taken."""
    return sum(1 for _ in files_in(folder)) - len(rows)


def _sub_folders(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    except OSError as error:
        raise IsoconvError(f"{folder} cannot be read: {error.strerror}.") from error


def _labelled_by_csv(path: Path) -> list[tuple[str, str]]:
    """Paths, as they stand in the file, and labels."""
    rows: list[tuple[str, str]] = []
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, skipinitialspace=True)
            for fields in reader:
                here, row = f"line {reader.line_num} of {path}", [field.strip() for field in fields]
                header = reader.line_num == 1 and len(row) == 2 and not Path(row[0]).suffix
                if header or not any(row):
                    continue
                if len(row) != 2 or not all(row):
                    raise IsoconvError(f"Expected path,label in {here}. Got {','.join(fields)!r}.")
                picture = path.parent / row[0]
                if not picture.is_file():
                    raise IsoconvError(f"Expected a picture for {here}. Got {picture}, which does not exist.")
                rows.append((row[0], row[1]))
    except FileNotFoundError as error:
        raise IsoconvError(f"Expected a CSV file of path,label. Got {path}, which does not exist.") from error
    except OSError as error:
        raise IsoconvError(f"{path} cannot be read: {error.strerror}.") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise IsoconvError(f"Expected a CSV file of path,label, in UTF-8. Got {path} ({error}).") from error
    if not rows:
        raise IsoconvError(f"Expected lines of path,label in {path}. Got none.")
    if len({label for _, label in rows}) < 2:
        raise IsoconvError(f"Expected at least two classes in {path}. Got only {rows[0][1]!r}.")
    return rows
