"""What a user names as a distribution: a data set, a folder of images, an array of vectors, a trained generator."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from isoconv.data import NAMES, ImageSet, Progress, load_splits
from isoconv.data.pictures import ENDINGS, pictures_in, read_pictures
from isoconv.errors import IsoconvError
from isoconv.train.run_folder import RunFolder
from isoconv.wasserstein.gan import load_generator
from isoconv.wasserstein.samples import FiniteSamples, GeneratedSamples, Samples

_KINDS = f"{', '.join(NAMES)}, a folder of images, a .npy file of vectors, or the run folder of a generator"


@dataclass(frozen=True)
class SourceOptions:
    """How sources are read. `size` and `channels` are for images; `count` is how many a generator is judged by."""

    folder: Path | None = None
    download: bool = False
    size: int | None = None
    channels: int | None = None
    held_out: float = 0.25
    count: int = 6400
    pixel_range: tuple[float, float] = (-1.0, 1.0)
    seed: int = 0
    progress: Progress | None = None


def open_samples(name: str, options: SourceOptions, *, whole: bool = False, side: str = "first") -> Samples:
    """The distribution that `name` stands for; of a data set the training images, or with :test behind its name the others.

    Of a finite set that is a sample (not the `whole` distribution) a part is held out by the seed.
    """
    path = Path(name)
    if path.suffix.lower() == ".npy":
        values = read_vectors(path)
    elif name.partition(":")[0] not in NAMES and path.is_dir() and RunFolder(path).exists:
        return _generated(path, options, whole)
    else:
        values = read_images(name, options).images
    fewest = 1 if whole else 2
    if len(values) < fewest:
        raise IsoconvError(f"Expected at least {fewest} samples in {name}. Got {len(values)}.")
    return FiniteSamples(name, values, whole=whole, held_out=options.held_out, seed=options.seed, side=side)


def read_images(name: str, options: SourceOptions) -> ImageSet:
    """The images of a data set or of a folder, with whatever labels they have: nothing here looks at those."""
    base, _, part = name.partition(":")
    path = Path(name)
    if base in NAMES and part in ("", "train", "test"):
        splits = load_splits(
            base, options.folder, size=options.size, channels=options.channels, download=options.download
        )
        return splits.test if part == "test" else splits.train
    if not path.is_dir():
        raise IsoconvError(
            f"Expected {_KINDS}. Got {name!r}, which {'is a file' if path.exists() else 'does not exist'}."
        )
    paths = list(pictures_in(path))
    if not paths:
        raise IsoconvError(f"Expected images ({', '.join(ENDINGS)}) in {path} or its sub-folders. Got none.")
    images = read_pictures(paths, options.size, options.channels, options.progress)
    return ImageSet(images, torch.zeros(len(images), dtype=torch.int64), ("image",), name)


def read_vectors(path: Path) -> Tensor:
    """The rows of a two-dimensional array of numbers, as float64."""
    try:
        array = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise IsoconvError(f"Expected a .npy file of vectors. Got {path}, which does not exist.") from None
    except (OSError, ValueError, EOFError) as error:
        reason = " ".join(str(error).split())
        raise IsoconvError(f"Expected a .npy file of numbers. Got {path}, which cannot be read: {reason}") from None
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf":
        found = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
        raise IsoconvError(f"Expected an array of real numbers in {path}. Got {found}.")
    if array.ndim != 2 or 0 in array.shape:
        raise IsoconvError(
            f"Expected a two-dimensional array in {path}, a vector in each row. Got shape {array.shape}."
        )
    values = torch.from_numpy(np.ascontiguousarray(array, dtype=np.float64))
    wrong = torch.nonzero(~values.isfinite().all(dim=1)).flatten()
    if len(wrong):
        raise IsoconvError(
            f"Expected finite numbers in {path}. Got NaN or infinity in {len(wrong)} of {len(values)} rows, "
            f"the first of them row {int(wrong[0])}."
        )
    if float(values.abs().max()) > 1e8:
        raise IsoconvError(
            f"Expected numbers up to 1e8 in {path}. Got {float(values.abs().max()):g}: scale them first."
        )
    return values


def centre_vectors(first: FiniteSamples, second: FiniteSamples, middle: float | None = None) -> None:
    """Move both by one vector, to where they are centred: W1 does not notice. `middle` instead of their mean, if given."""
    both = torch.cat([first.train, second.train])
    centre = both.mean(dim=0) if middle is None else torch.full_like(both[0], middle)
    first.move(-centre)
    second.move(-centre)


def _generated(path: Path, options: SourceOptions, whole: bool) -> Samples:
    if whole:
        raise IsoconvError(f"Expected a finite set as a whole distribution. Got the generator in {path}.")
    generator, config = load_generator(path)
    if options.size not in (None, config.image_shape[1]):
        raise IsoconvError(
            f"Expected the size of the generator's images, {config.image_shape[1]}, or none. Got --size {options.size}."
        )
    return GeneratedSamples(
        str(path), generator, count=options.count, batch=config.batch_size, pixel_range=options.pixel_range
    )
