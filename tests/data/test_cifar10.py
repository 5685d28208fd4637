import pickle
import warnings

import numpy as np
import pytest

from data.fakes import cifar10_batches, cifar10_pickle, write_cifar10
from isoconv.data import read_cifar10
from isoconv.data.cifar10 import OFFICIAL
from isoconv.data.cifar10_python import unpickle_batch

FORMS = ["bin", "py", "bin.tar.gz", "py.tar.gz"]


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_images(tmp_path, form):
    _, release = write_cifar10(tmp_path, form)
    train, test = read_cifar10(tmp_path, release)
    batches = list(cifar10_batches().values())
    assert train.shape == test.shape == (3, 32, 32)
    assert np.array_equal(train.images.numpy().reshape(20, 3072), np.concatenate([b[0] for b in batches[:5]]))
    assert np.array_equal(train.labels.numpy(), np.concatenate([b[1] for b in batches[:5]]))
    assert np.array_equal(test.images.numpy().reshape(4, 3072), batches[5][0])
    assert (train.classes[0], train.classes[9], train.name) == ("airplane", "truck", "cifar10")


@pytest.mark.parametrize("form", ["bin", "py"])
def test_the_folder_of_the_batches_itself(tmp_path, form):
    place, release = write_cifar10(tmp_path, form)
    assert len(read_cifar10(place, release).train) == 20


def test_what_is_complete_goes_before_what_is_not(tmp_path):
    place, _ = write_cifar10(tmp_path, "bin")
    (place / "data_batch_3.bin").unlink()
    _, release = write_cifar10(tmp_path, "py.tar.gz")
    assert len(read_cifar10(tmp_path, release).train) == 20


@pytest.mark.parametrize("fortran", [False, True])
def test_the_careful_unpickler_reads_what_pickle_reads(fortran):
    pixels, labels = cifar10_batches()["test_batch"]
    data = cifar10_pickle(pixels, labels, fortran)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some versions of numpy warn of pickles as old as CIFAR-10's
        reference = pickle.loads(data, encoding="bytes")
    mine, my_labels = unpickle_batch(data)
    assert np.array_equal(mine, reference[b"data"])
    assert np.array_equal(my_labels, reference[b"labels"])
    assert np.array_equal(mine, pixels)


@pytest.mark.parametrize("thing", [print, np.save, np.ndarray.tobytes], ids=["print", "numpy.save", "getattr"])
def test_the_careful_unpickler_resolves_nothing_else(thing):
    with pytest.raises(pickle.UnpicklingError, match="has no need of"):
        unpickle_batch(pickle.dumps({b"data": thing}))


def test_the_official_release():
    assert OFFICIAL.images_per_batch * 3073 == 30_730_000
    assert list(OFFICIAL.python_md5) == list(cifar10_batches())
    assert all(len(md5) == 32 for md5 in [*OFFICIAL.python_md5.values(), *OFFICIAL.archive_md5.values()])
