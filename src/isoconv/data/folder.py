"""A user's own pictures: a folder with one sub-folder per class, or a CSV file of paths and labels."""

import csv
from collections.abc import Sequence
from os import PathLike
from pathlib import Path

import torch

from isoconv.data.split import hold_out
from isoconv.data.image_set import ImageSet, Splits
from isoconv.data.pictures import ENDINGS, is_picture, pictures_in, read_pictures
from isoconv.data.progress import Progress
from isoconv.data.resizing import Size
from isoconv.errors import IsoconvError

Labelled = list[tuple[Path, str]]


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
    How a picture is prepared, and what size and channels do, is said in `pictures`.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise IsoconvError(
            f"Expected a folder of images. Got {folder}, which {'is a file' if folder.exists() else 'does not exist'}."
        )
    test = next((folder / name for name in ("test", "val") if (folder / name).is_dir()), None)
    train = folder / "train" if (folder / "train").is_dir() else None
    if train is None or test is None:
        only_train = train is not None and [path.name for path in _sub_folders(folder)] == ["train"]
        rows = _labelled_by_folder(train if train is not None and only_train else folder)
        return _held_out(rows, folder.resolve().name, size, channels, test_fraction, seed, progress)
    parts = [_labelled_by_folder(train), _labelled_by_folder(test)]
    names = [{label for _, label in part} for part in parts]
    for mine, place, other, elsewhere in ((names[0], train, names[1], test), (names[1], test, names[0], train)):
        if mine - other:
            raise IsoconvError(
                f"Expected the same classes in {train} and {test}. "
                f"Got {_listed(mine - other)} in {place} and not in {elsewhere}."
            )
    whole = _image_set(parts[0] + parts[1], sorted(names[0]), folder.resolve().name, size, channels, progress)
    first = len(parts[0])
    return Splits(whole.take(first), whole.subset(torch.arange(first, len(whole))))


def read_csv(
    path: str | PathLike[str],
    *,
    size: Size | None = None,
    channels: int | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
    progress: Progress | None = None,
) -> Splits:
    """The pictures that a CSV file lists as `path,label`, one a line, with or without a header.

    Paths are relative to the file's own folder. Classes are the labels, sorted, as numbers if all are whole numbers.
    """
    path = Path(path)
    return _held_out(_labelled_by_csv(path), path.stem, size, channels, test_fraction, seed, progress)


def _held_out(
    rows: Labelled,
    name: str,
    size: Size | None,
    channels: int | None,
    test_fraction: float,
    seed: int,
    progress: Progress | None,
) -> Splits:
    labels = {label for _, label in rows}
    whole_numbers = all(label.isascii() and label.isdigit() for label in labels)
    classes = sorted(labels, key=lambda label: (int(label), label) if whole_numbers else (0, label))
    return Splits(*hold_out(_image_set(rows, classes, name, size, channels, progress), test_fraction, seed))


def _image_set(
    rows: Labelled,
    classes: Sequence[str],
    name: str,
    size: Size | None,
    channels: int | None,
    progress: Progress | None,
) -> ImageSet:
    number = {label: index for index, label in enumerate(classes)}
    images = read_pictures([path for path, _ in rows], size, channels, progress)
    return ImageSet(images, torch.tensor([number[label] for _, label in rows]), tuple(classes), name)


def _labelled_by_folder(folder: Path) -> Labelled:
    rows: Labelled = []
    classes = _sub_folders(folder)
    if not classes:
        loose = sum(1 for path in folder.iterdir() if is_picture(path))
        raise IsoconvError(
            f"Expected one sub-folder of images per class in {folder}. "
            f"Got {f'{loose} pictures and ' if loose else ''}no sub-folder."
        )
    for place in classes:
        pictures = [(path, place.name) for path in pictures_in(place)]
        if not pictures:
            raise IsoconvError(f"Expected images ({', '.join(ENDINGS)}) in every class folder. Got none in {place}.")
        rows += pictures
    if len(classes) < 2:
        raise IsoconvError(f"Expected at least two classes, as sub-folders of {folder}. Got only {classes[0].name!r}.")
    return rows


def _sub_folders(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    except OSError as error:
        raise IsoconvError(f"{folder} cannot be read: {error.strerror}.") from error


def _labelled_by_csv(path: Path) -> Labelled:
    rows: Labelled = []
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
                rows.append((picture, row[1]))
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


def _listed(names: set[str]) -> str:
    return ", ".join(repr(name) for name in sorted(names))
