"""Cut one set of images in two, class by class, or mix it."""

import numpy as np
import torch

from isoconv.data.image_set import ImageSet
from isoconv.errors import IsoconvError


def hold_out(images: ImageSet, amount: float | int, seed: int = 0) -> tuple[ImageSet, ImageSet]:
    """(train, validation), with `amount` images in the second: a count if an int, a fraction if a float.

    Stratified: each class gives its share, and every class of at least two images is on both sides. A class of one
    image stays in the training set. A fraction is moved to the nearest count for which that is possible; a count is
    met exactly or refused. Both parts keep the order of the whole. The same seed gives the same cut.
    """
    counts = torch.bincount(images.labels.cpu(), minlength=len(images.classes)).numpy()
    low, high = np.minimum(1, np.maximum(counts - 1, 0)), np.maximum(counts - 1, 0)
    least, most = int(low.sum()), int(high.sum())
    if most == 0:
        raise IsoconvError(
            f"Expected a class with at least two images, one to train and one to hold out. "
            f"Got {len(images)} images in {int((counts > 0).sum())} classes."
        )
    if isinstance(amount, bool) or not (isinstance(amount, int) or 0 < amount < 1):
        raise IsoconvError(f"Expected a number of images, or a fraction between 0 and 1, to hold out. Got {amount}.")
    total = amount if isinstance(amount, int) else min(max(round(amount * len(images)), least), most)
    if not least <= total <= most:
        raise IsoconvError(
            f"Expected from {least} to {most} images to hold out, so that each class with two is on both sides. "
            f"Got {amount}."
        )
    random = _random(seed)
    held = torch.zeros(len(images), dtype=torch.bool)
    for label, share in enumerate(_shares(counts, total, low, high)):
        members = torch.nonzero(images.labels.cpu() == label).flatten()
        held[members[torch.from_numpy(random.permutation(len(members))[:share])]] = True
    return images.subset(torch.nonzero(~held).flatten()), images.subset(torch.nonzero(held).flatten())


def shuffled(images: ImageSet, seed: int = 0) -> ImageSet:
    """The same images in another order, for sets that lie class by class: the first n are then a fair sample."""
    return images.subset(torch.from_numpy(_random(seed).permutation(len(images))))


def _random(seed: int) -> np.random.RandomState:
    if not 0 <= seed < 2**32:
        raise IsoconvError(f"Expected a seed from 0 to 2³² − 1. Got {seed}.")
    return np.random.RandomState(seed)  # numpy promises that its stream never changes: one seed, one split, for ever


def _shares(
    counts: "np.ndarray[tuple[int], np.dtype[np.int64]]",
    total: int,
    low: "np.ndarray[tuple[int], np.dtype[np.int64]]",
    high: "np.ndarray[tuple[int], np.dtype[np.int64]]",
) -> list[int]:
    """Integers between low and high that add up to total, as close to proportional to the counts as that allows."""
    ideal = counts * (total / counts.sum())
    shares = np.clip(np.floor(ideal).astype(np.int64), low, high)
    while (gap := total - int(shares.sum())) != 0:
        # One image at a time, to (or from) the class that is furthest from its due and can still give way.
        need = (ideal - shares) * np.sign(gap)
        free = shares < high if gap > 0 else shares > low
        shares[int(np.argmax(np.where(free, need, -np.inf)))] += np.sign(gap)
    return [int(share) for share in shares]
