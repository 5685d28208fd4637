"""The two distributions that a critic tells apart: batches to train it on, and held-out samples to judge it by.

Note [Repeated rows]
A bound needs held-out rows that are independent of those the critic was trained on. Rows that occur more than once in a
sample can mean two things. They may be copies of one draw: then a row on both sides of the split is judged by what it was
trained on, and fifty copies are one observation. Or they may be independent draws of a law with atoms: then each counts,
and dropping some changes the law. The rows cannot say which, so unless the user does (`repeats`), the bound is the smallest
of those for each reading, from one critic:

* A keyed hash of its value puts each distinct row into the set B with probability `held_out`, whatever the values are.
  Rows that differ by less than float32 tells (of one coordinate: by less than 1e-9 of the spread, as any two of many
  might) are not distinct: copies that were rounded differently are copies.
* The critic trains on the rows of the usual random split that are not in B.
* If repeats are draws, the held-out rows of the split are independent of the training rows, as the split and B are.
* If repeats are copies, the distinct rows in B, each once and in the order of their hashes, are independent draws of the law
  of distinct rows, and no copy of them was trained on, however often each was copied.

A sample without repeats is split as if there were no B. (For draws of a law whose samples sometimes repeat and sometimes do
not, the choice of the split depends on the rows, and the risk may double at worst.)
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy as copy_of
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isoconv.data import NAMES, ImageSet, Progress, epoch_generator, load_splits
from isoconv.data.batches import fits
from isoconv.data.pictures import ENDINGS, Size, height_and_width, pictures_in, read_pictures
from isoconv.errors import IsoconvError, require
from isoconv.files import require_ordinary
from isoconv.models.networks import Generator
from isoconv.train.config import refuse_other_options
from isoconv.train.run_folder import RunFolder
from isoconv.wasserstein.bound import BYTES_RANGE, Interval, check_range

#: A data set's name, a folder of images, a .npy file; or what is in memory.
Finite = str | Path | Tensor | NDArray[Any] | ImageSet
Batches = Iterator[Tensor]
Draw = Callable[[int, torch.Generator], Tensor]

#: The options that only some kinds of sources take.
_TAKES = {
    "a data set by its name": ("--data", "--download", "--size", "--channels"),
    "a folder of images": ("--size", "--channels"),
    "a generator": ("--samples",),
}
#: What rows that occur more than once may be, and what follows.
REPEATS = {
    "either": "the result is valid for copies and for independent draws; say which they are (--repeats) for a better one",
    "copies": "each distinct one counts once",
    "draws": "each counts as an independent draw",
}


class Samples:
    """One distribution: what critics are trained on, and what they are judged by.

    whole : whether the samples are the whole distribution
    group : how many consecutive samples depend on each other
    observations : the number of independent observations that it is judged by, or None if it is judged by all there is
    repeated : one line for the user on samples that repeat others, if there are any
    is_spread : whether images are spread over the pixel range, as bytes are, or are numbers in it; None if unknown
    """

    name: str
    shape: tuple[int, ...]
    observations: int | None
    whole, group, repeated = False, 1, ""
    is_spread: bool | None = None

    def fingerprint(self) -> str:
        """Return a hash of all samples and of which of them are held out, or "" if there is no end of them."""
        return ""

    def batches(self, seed: int, epoch: int, steps: int, size: int, purpose: str, device: torch.device) -> Batches:
        """Yield the training batches of an epoch, which depend on (seed, epoch, purpose) alone."""
        raise NotImplementedError

    def judged(self, seed: int, purpose: str, device: torch.device) -> tuple[Tensor, ...]:
        """Return what a critic is judged by; a second set if repeated rows may be copies, see Note [Repeated rows].

        No training batch holds any of it, unless it is the whole distribution.
        """
        raise NotImplementedError


class FiniteSamples(Samples):
    """A finite set of samples, in memory.

    Either the set is the distribution (`whole`): critics train on all of it and are judged by all of it. Or it is a sample
    of the distribution: then a part, chosen by `seed` before any training, is held out. `repeats` says what equal rows are:
    "copies" of one draw, independent "draws", or "either"; see Note [Repeated rows].
    """

    def __init__(
        self,
        name: str,
        values: Tensor,
        *,
        whole: bool = False,
        held_out: float = 0.25,
        seed: int = 0,
        side: str = "",
        repeats: str = "either",
    ) -> None:
        least = 1 if whole else 2
        require(len(values) >= least, f"at least {least} samples in {name}", len(values))
        require(0 < held_out < 1, "a fraction between 0 and 1 to hold out", held_out)
        require(repeats in REPEATS, f"repeats to be one of {', '.join(REPEATS)}", repr(repeats))
        self.name, self.shape, self.whole = name, tuple(values.shape[1:]), whole
        self.is_spread = values.dtype == torch.uint8
        split = (values, (values,)) if whole else self._split(values, held_out, seed, side, repeats)
        self.train, self.readings = split
        self.observations = None if whole else min(map(len, self.readings))

    def _split(
        self, values: Tensor, held_out: float, seed: int, side: str, repeats: str
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the rows to train on, and those held out: once for each reading of rows that repeat others."""
        hashes = _hash_rows(values, f"{seed} {side}")
        first = {key: row for row, key in reversed(list(enumerate(hashes)))}
        if len(first) < len(values):
            row = next(row for row, key in enumerate(hashes) if first[key] != row)
            count = f"{len(values) - len(first):,} of {len(values):,} samples in {self.name}"
            example = f"row {row} repeats row {first[hashes[row]]}"
            self.repeated = f"{count} repeat others ({example}): {REPEATS[repeats]}."
            if repeats == "copies":
                values = values[sorted(first.values())]
                require(len(values) > 1, f"at least 2 distinct samples in {self.name}", len(values))
        order = torch.randperm(len(values), generator=epoch_generator(seed, 0, f"held out {side}"))
        held = min(max(round(held_out * len(values)), 1), len(values) - 1)
        train, held_rows = order[held:], values[order[:held]]
        if not self.repeated or repeats != "either":
            return values[train], (held_rows,)
        limit = int(held_out * 2**64).to_bytes(8, "big")
        train = train[torch.tensor([hashes[row] >= limit for row in train.tolist()])]
        distinct = values[[first[key] for key in sorted(first) if key < limit]]
        if not (len(distinct) and len(train)):
            raise IsoconvError(f"Expected more distinct samples, so that some can be held out. {self.repeated}")
        return values[train], (held_rows, distinct)

    def fingerprint(self) -> str:
        digest = hashlib.sha256()
        for part in (self.train,) if self.whole else (self.train, self.readings[0]):
            digest.update(part.contiguous().cpu().numpy().data)
        return digest.hexdigest()

    def batches(self, seed: int, epoch: int, steps: int, size: int, purpose: str, device: torch.device) -> Batches:
        per_pass = len(self.train) // size
        require(per_pass > 0, f"at least {size} samples to train on (--batch-size) in {self.name}", len(self.train))
        if fits(self.train.nbytes, device):
            self.train = self.train.to(device)
        current, order = -1, torch.empty(0)
        for step in range(epoch * steps, (epoch + 1) * steps):
            if step // per_pass != current:
                current = step // per_pass
                order = torch.randperm(len(self.train), generator=epoch_generator(seed, current, f"{purpose} order"))
                order = order.to(self.train.device)
            start = step % per_pass * size
            yield self.train.index_select(0, order[start : start + size]).to(device)

    def judged(self, seed: int, purpose: str, device: torch.device) -> tuple[Tensor, ...]:
        return self.readings

    def moved(self, shift: Tensor) -> "FiniteSamples":
        """Return the samples with a vector added to each."""
        copy = copy_of(self)
        copy.train = self.train + shift
        copy.readings = (copy.train,) if self.whole else tuple(part + shift for part in self.readings)
        return copy


def _hash_rows(values: Tensor, key: str) -> list[bytes]:
    """Return a keyed hash of each row. Rows of numbers that are equal up to rounding have the same one."""
    rows = values.flatten(1).cpu()
    if rows.dtype != torch.uint8:
        # A few random projections on a coarse grid: of all the coordinates, some would always round the other way.
        centre = rows.mean(dim=0, dtype=torch.float64)
        directions = torch.randn(len(centre), 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        shadows = torch.cat([(part.double() - centre) @ directions for part in rows.split(4096)])
        step = float(shadows.abs().mean()) * 2.0 ** (-30 if len(centre) == 1 else -15) or 1.0
        rows = torch.round(shadows / step) + 0.0  # −0 equals 0
    rows = rows.contiguous()
    return [hashlib.blake2b(row.data, digest_size=16, key=key.encode()[:64]).digest() for row in rows.numpy()]


class DrawnSamples(Samples):
    """A distribution that can be drawn from without end; critics are judged by `count` fresh draws.

    batch : that many are drawn at a time and depend on each other; 1: all draws are independent
    """

    observations: int

    def __init__(self, name: str, shape: tuple[int, ...], draw: Draw, count: int = 6400, batch: int = 1) -> None:
        require(count >= batch, f"at least one batch of {batch} samples from {name}", count)
        self.name, self.shape, self.draw, self.group, self.observations = name, shape, draw, batch, count // batch

    def batches(self, seed: int, epoch: int, steps: int, size: int, purpose: str, device: torch.device) -> Batches:
        random = epoch_generator(seed, epoch, f"{purpose} draws", device)
        at_once = self.group if self.group > 1 else size
        drawn = self.draw(at_once, random)
        for _ in range(steps):
            while len(drawn) < size:
                drawn = torch.cat([drawn, self.draw(at_once, random)])
            yield drawn[:size]
            drawn = drawn[size:]

    def judged(self, seed: int, purpose: str, device: torch.device) -> tuple[Tensor, ...]:
        random = epoch_generator(seed, 0, f"{purpose} judged", device)
        at_once = self.group if self.group > 1 else self.observations
        draws = range(self.observations * self.group // at_once)
        return (torch.cat([self.draw(at_once, random).cpu() for _ in draws]),)


class GeneratedSamples(DrawnSamples):
    """Images of a generator that normalises over batches of `batch`: each batch is one draw.

    pixel_range : the interval that its values in [−1, 1] are mapped to
    """

    is_spread = True

    def __init__(
        self, name: str, generator: Generator, count: int = 6400, batch: int = 64, pixel_range: Interval = BYTES_RANGE
    ) -> None:
        require(batch > 1, "a batch of at least 2 images, which the generator normalises over", batch)
        low, high = pixel_range

        @torch.no_grad()
        def draw(size: int, random: torch.Generator) -> Tensor:
            images = generator.to(random.device)(generator.noise(size, random))
            return images if (low, high) == (-1, 1) else ((images + 1) * ((high - low) / 2) + low).clamp(low, high)

        super().__init__(name, generator.image_shape, draw, count, batch)


def require_one_shape(first: Samples, second: Samples) -> None:
    """Raise if the two distributions do not live in one space."""
    hint = " (--size, --channels)" if len(first.shape) == len(second.shape) == 3 else ""
    kinds = " and ".join(f"{_describe(side.shape)} in {side.name}" for side in (first, second))
    require(first.shape == second.shape, f"two distributions of one shape{hint}", kinds)


def require_one_unit(first: Samples, second: Samples) -> None:
    """Raise if the images of one side are spread over the default range, and those of the other are numbers."""
    if {first.is_spread, second.is_spread} == {True, False}:
        numbers, spread = (second, first) if first.is_spread else (first, second)
        wanted = f"--range, the values of black and white in {numbers.name}, over which {spread.name} is spread"
        raise IsoconvError(f"Expected {wanted}. Got none.")


def _describe(shape: tuple[int, ...]) -> str:
    if len(shape) == 3:
        return f"{'grey' if shape[0] == 1 else 'colour'} images of {shape[1]}×{shape[2]}"
    return f"vectors of dimension {shape[0]}" if len(shape) == 1 else f"samples of shape {shape}"


# Files ------------------------------------------------------------------------------------------------------------


def read_images(
    name: str,
    folder: Path | None = None,
    *,
    download: bool = False,
    size: Size | None = None,
    channels: int | None = None,
    progress: Progress | None = None,
) -> ImageSet:
    """Read the images of a data set (the training images, or with :test behind its name the others) or of a folder."""
    base, _, part = name.partition(":")
    path = Path(name)
    if base in NAMES and part in ("", "train", "test"):
        splits = load_splits(base, folder, size=size, channels=channels, download=download)
        return splits.test if part == "test" else splits.train
    if not path.is_dir():
        kinds = f"{', '.join(NAMES)}, a folder of images, a .npy file of vectors or images, or the run folder of a generator"
        reason = "is a file" if path.exists() else "does not exist"
        raise IsoconvError(f"Expected {kinds}. Got {name!r}, which {reason}.")
    paths = list(pictures_in(path))
    require(bool(paths), f"images ({', '.join(ENDINGS)}) in {path} or its sub-folders", "none")
    images = read_pictures(paths, size, channels, progress)
    return ImageSet(images, torch.zeros(len(images), dtype=torch.int64), ("image",), name)


def require_effect(sources: Sequence[object], options: Mapping[str, object]) -> None:
    """Raise if an option that was set has no effect on any of the sources."""
    kinds = [_kind_of(source) for source in sources]
    for name, value in options.items():
        takers = [kind for kind, names in _TAKES.items() if name in names]
        is_set, got = value is not None and value is not False, " and ".join(dict.fromkeys(kinds))
        require(not is_set or not set(takers).isdisjoint(kinds), f"{' or '.join(takers)} for {name}", got)


def _kind_of(source: object) -> str:
    if isinstance(source, Generator):
        return "a generator"
    if not isinstance(source, (str, Path)):
        return "samples in memory"
    if str(source).partition(":")[0] in NAMES:
        return "a data set by its name"
    if RunFolder(Path(source)).exists:
        return "a generator"
    return "a .npy file" if Path(source).suffix.lower() == ".npy" else "a folder of images"


def keep_shape(reading: dict[str, Any], shape: tuple[int, ...]) -> dict[str, Any]:
    """Return how to read images as a run has read them. Raise if another size or other channels are asked for."""
    asked = {name: reading[name] for name in ("size", "channels") if reading[name] is not None}
    if "size" in asked:
        asked["size"] = height_and_width(asked["size"])
    kept = {"size": shape[1:], "channels": shape[0]}
    refuse_other_options(kept, asked)
    return reading | kept


def read_samples(
    source: Finite, name: str, pixels: Interval = BYTES_RANGE, reading: dict[str, Any] | None = None, **split: Any
) -> FiniteSamples:
    """Return a finite set: a data set or its name, a folder of images, a .npy file, or what is in memory.

    Images (N, C, H, W) are bytes, or numbers in `pixels`. `reading` is for `read_images`, `split` for `FiniteSamples`.
    """
    if isinstance(source, (str, Path)):
        path = Path(source)
        source = _read_array(path) if path.suffix.lower() == ".npy" else read_images(str(source), **reading or {})
    values = source.images if isinstance(source, ImageSet) else source
    known = isinstance(values, (Tensor, np.ndarray))
    require(known, "samples, or the name of a data set or a file", type(source).__name__)
    samples = torch.from_numpy(_as_array(values, name))
    if samples.dim() == 4:
        check_range(samples, pixels, name)
    else:
        samples = _check_vectors(samples, name)
    return FiniteSamples(name, samples, **split)


def _as_array(values: Tensor | NDArray[Any], name: str) -> NDArray[Any]:
    """Return real numbers as an array that torch can take over, whatever their layout was."""
    if isinstance(values, Tensor):
        kind = f"{values.dtype}, {values.layout}, on {values.device}"
        try:
            values = values.detach().cpu().numpy()
        except (RuntimeError, TypeError):
            raise IsoconvError(f"Expected a tensor in {name} that numpy can read. Got {kind}.") from None
    real = values.dtype.kind in "biuf" and not np.ma.is_masked(values)
    require(real, f"an array of real numbers in {name}", "masked ones" if np.ma.is_masked(values) else values.dtype)
    native = values.dtype.newbyteorder("=") if values.dtype.itemsize <= 8 else np.dtype(np.float64)
    return np.require(np.asarray(values), native, ["C", "W"])


def _read_array(path: Path) -> NDArray[Any]:
    """Read a .npy file, which may hold no pickles."""
    require_ordinary(path)
    try:
        array = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise IsoconvError(f"Expected a .npy file. Got {path}, which does not exist.") from None
    except (OSError, ValueError, EOFError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "it holds something else"
        raise IsoconvError(f"Expected a .npy file of numbers. Got {path}, which cannot be read: {reason}.") from None
    require(isinstance(array, np.ndarray), f"an array in {path}", type(array).__name__)
    return array


def _check_vectors(values: Tensor, name: str) -> Tensor:
    """Return the rows of a matrix of finite numbers as float64."""
    shaped = values.dim() == 2 and 0 not in values.shape
    require(shaped, f"a two-dimensional array in {name}, one vector per row", f"shape {tuple(values.shape)}")
    values = values.double()
    wrong = torch.nonzero(~values.isfinite().all(dim=1)).flatten().tolist()
    rows = f"in {len(wrong)} of {len(values)} rows (first: row {min(wrong, default=0)})"
    require(not wrong, f"finite numbers in {name}", f"NaN or infinity {rows}")
    largest = float(values.abs().max())
    require(largest <= 1e8, f"numbers up to 1e8 in {name}: scale them first", f"{largest:g}")
    return values
