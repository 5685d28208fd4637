"""Read a batch of CIFAR-10's python version, which is a pickle, without running anything that is in it.

Note [Pickle]
Loading a pickle runs what it names, so a file that someone was given is never unpickled. Two locks: the md5 of the very
bytes that are to be loaded must be the one published with the data set (the caller's duty, see `cifar10.py`), and the
unpickler resolves no name at all. Where the pickle asks for numpy's functions it gets stand-ins that only keep the
bytes they are handed.
"""

import io
import pickle
from typing import Any

import numpy as np

from isoconv.data.files import Bytes


class _KeptArray:
    """In place of an array: its state is (version, shape, dtype, is_fortran, bytes)."""

    def __init__(self, *_: Any) -> None:
        pass

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.shape, self.fortran, self.data = state[1], state[3], state[4]


class _Ignored:
    """In place of a dtype, which is known to be uint8, and of the class that `_reconstruct` is told to make."""

    def __init__(self, *_: Any) -> None:
        pass

    def __setstate__(self, _: Any) -> None:
        pass


class _Unpickler(pickle.Unpickler):
    stand_ins = {  # noqa: RUF012
        ("numpy.core.multiarray", "_reconstruct"): _KeptArray,
        ("numpy", "ndarray"): _Ignored,
        ("numpy", "dtype"): _Ignored,
    }

    def find_class(self, module: str, name: str) -> Any:
        try:
            return self.stand_ins[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"a batch of CIFAR-10 has no need of {module}.{name}") from None


def unpickle_batch(data: bytes) -> tuple[Bytes, Bytes]:
    """(pixels (n, 3072), labels (n,)) of one batch. See Note [Pickle]: check the md5 of `data` first."""
    # Python 2 wrote these files: its strings are bytes.
    batch = _Unpickler(io.BytesIO(data), encoding="bytes").load()
    kept = batch[b"data"]
    pixels = np.frombuffer(kept.data, dtype=np.uint8).reshape(kept.shape, order="F" if kept.fortran else "C")
    return pixels, np.array(batch[b"labels"], dtype=np.uint8)
