"""Data sets as bytes in memory: readers of what users have on their disks, augmentation, and batches for training.

Everything here gives or takes `ImageSet`s. Pixels become numbers in [0, 1] with `as_float`, and are never normalised.
"""

from isoconv.data.augment import Draws, augment_epoch, crop_and_flip, draw
from isoconv.data.cifar10 import read_cifar10
from isoconv.data.digits import read_digits
from isoconv.data.download import download
from isoconv.data.folder import read_csv, read_folder
from isoconv.data.image_set import ImageSet, Splits, as_float
from isoconv.data.load import NAMES, load_splits
from isoconv.data.mnist import read_mnist
from isoconv.data.pictures import load_image
from isoconv.data.progress import Progress, ProgressLine
from isoconv.data.resizing import resize
from isoconv.data.seeds import epoch_generator
from isoconv.data.split import hold_out
from isoconv.data.stl10 import read_stl10
from isoconv.data.stream import EpochBatches

__all__ = [
    "NAMES",
    "Draws",
    "EpochBatches",
    "ImageSet",
    "Progress",
    "ProgressLine",
    "Splits",
    "as_float",
    "augment_epoch",
    "crop_and_flip",
    "download",
    "draw",
    "epoch_generator",
    "hold_out",
    "load_image",
    "load_splits",
    "read_cifar10",
    "read_csv",
    "read_digits",
    "read_folder",
    "read_mnist",
    "read_stl10",
    "resize",
]
