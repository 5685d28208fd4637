"""Data sets as bytes, in memory or streamed from files: readers of what users have on disk, augmentation, and batches.

Everything here returns or takes `ImageSet`s. `as_float` turns their bytes into numbers in [0, 1], which are never
normalised. `DATASETS` holds what is known of each data set, and can be read without importing torch.
"""

from typing import TYPE_CHECKING

from isoconv.lazy import lazy_face

if TYPE_CHECKING:
    from isoconv.data.augmentation import Augmentation as Augmentation
    from isoconv.data.batches import EpochBatches as EpochBatches
    from isoconv.data.batches import epoch_generator as epoch_generator
    from isoconv.data.datasets import DATASETS as DATASETS
    from isoconv.data.datasets import NAMES as NAMES
    from isoconv.data.datasets import OWN_IMAGES as OWN_IMAGES
    from isoconv.data.datasets import DataSet as DataSet
    from isoconv.data.fetch import Progress as Progress
    from isoconv.data.fetch import ProgressLine as ProgressLine
    from isoconv.data.fetch import download as download
    from isoconv.data.image_set import ImageSet as ImageSet
    from isoconv.data.image_set import Splits as Splits
    from isoconv.data.image_set import as_float as as_float
    from isoconv.data.image_set import hold_out as hold_out
    from isoconv.data.pictures import load_image as load_image
    from isoconv.data.pictures import read_csv as read_csv
    from isoconv.data.pictures import read_folder as read_folder
    from isoconv.data.pictures import resize as resize
    from isoconv.data.readers import load_splits as load_splits
    from isoconv.data.shards import read_shards as read_shards
    from isoconv.data.streamed import StreamedSet as StreamedSet
    from isoconv.data.transforms import OPERATIONS as OPERATIONS
    from isoconv.data.transforms import crop_and_flip as crop_and_flip
    from isoconv.data.transforms import crop_and_resize as crop_and_resize
    from isoconv.data.transforms import distort as distort
    from isoconv.data.transforms import draw as draw
    from isoconv.data.transforms import draw_boxes as draw_boxes
    from isoconv.data.transforms import jitter_colours as jitter_colours
    from isoconv.data.transforms import rand_augment as rand_augment

__getattr__, __dir__, __all__ = lazy_face(__name__, __file__)
