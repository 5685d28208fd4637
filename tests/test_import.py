"""`import isoconv` loads nothing that it does not need, and everything is there when it is asked for."""

import subprocess
import sys

import pytest

import isoconv

LIGHT = "import sys, isoconv; assert isoconv.data.DATASETS and not {'torch', 'numpy'} & set(sys.modules); "
ONLY_CORE = (
    "from isoconv import *; assert isoconv.nn.BCOPConv2d and isoconv.plain and isoconv.data.load_splits; "
    "heavy = {'rich', 'typer', 'PIL', 'matplotlib', 'scipy', 'pandas', 'onnx', 'foolbox', 'mlxtend', 'sklearn', 'ot', "
    "'pooch', 'requests'}; print(sorted(heavy & set(sys.modules)))"
)


@pytest.mark.parametrize("name", isoconv.__all__)
def test_every_public_name_is_there(name):
    assert getattr(isoconv, name) is not None
    assert name.startswith("__") or name == "IsoconvError" or name in dir(isoconv)


def test_other_names_are_not():
    with pytest.raises(AttributeError, match=r"^module 'isoconv' has no attribute 'convolve'$"):
        _ = isoconv.convolve


def test_plain_is_the_function():
    from isoconv.nn import plain

    assert isoconv.plain is plain


def test_the_rooms_need_torch_and_numpy_alone():
    done = subprocess.run([sys.executable, "-c", LIGHT + ONLY_CORE], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")
