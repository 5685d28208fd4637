"""The data of a cell; for a quick look a small part of it, or digits in its place."""

from dataclasses import replace

from isoconv.data import ImageSet, Splits, load_splits, resize
from isoconv.errors import IsoconvError
from isoconv.train.reproduction.settings import Settings

QUICK_TRAIN, QUICK_TEST, QUICK_BATCH = 128, 64, 64
_SIZES = {"mnist": (1, 28), "cifar10": (3, 32), "stl10": (3, 16)}


class DataSets:
    """Each data set, read once."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.read: dict[tuple[str, int | None], Splits] = {}

    def splits(self, name: str, size: int | None = None) -> Splits:
        key = (name, size)
        if key not in self.read:
            self.read[key] = self._quick(name) if self.settings.quick else self._load(name, size)
        return self.read[key]

    def _load(self, name: str, size: int | None) -> Splits:
        return load_splits(name, self.settings.data, size=size, download=self.settings.download)

    def _quick(self, name: str) -> Splits:
        """The first few images; of digits, in the shape of the data set, if that is not there."""
        channels, size = _SIZES[name]
        try:
            splits = self._load(name, size)
        except IsoconvError as missing:
            if self.settings.data is not None:
                raise
            self.settings.watcher.say(f"{name} is not here ({missing}): a quick look at digits in its place")
            splits = _as_if(load_splits("digits"), channels, size)
        test = splits.test.take(min(QUICK_TEST, len(splits.test))) if splits.has_test else None
        return Splits(splits.train.take(min(QUICK_TRAIN, len(splits.train))), test)


def _as_if(digits: Splits, channels: int, size: int) -> Splits:
    def changed(part: ImageSet) -> ImageSet:
        resized = resize(part, size)
        return replace(resized, images=resized.images.expand(-1, channels, -1, -1).contiguous(), name="digits")

    return digits.map(changed)
