"""`import isoconv` loads nothing that it does not need, and everything is there when it is asked for."""

import subprocess
import sys

import pytest

import isoconv

LIGHT = (
    "import sys, isoconv; assert isoconv.data.DATASETS and isoconv.nn.METHODS and isoconv.models.MODELS; "
    "from isoconv.train import LOSSES, OPTIMISERS, RECIPES, SCHEDULES, recipe_settings; assert 'hinge' in LOSSES; "
    "recipe_settings('default', 'mnist', 'bcop'); assert not {'torch', 'numpy'} & set(sys.modules); "
)
ONLY_CORE = (
    "from isoconv import *; assert isoconv.nn.BCOPConv2d and isoconv.plain and isoconv.data.load_splits; "
    "heavy = {'rich', 'typer', 'PIL', 'matplotlib', 'scipy', 'pandas', 'onnx', 'foolbox', 'mlxtend', 'sklearn', 'ot', "
    "'pooch', 'requests'}; print(sorted(heavy & set(sys.modules)))"
)


def test_every_public_name_is_there_and_no_other():
    for name in isoconv.__all__:
        assert getattr(isoconv, name) is not None
        assert name.startswith("__") or name == "IsoconvError" or name in dir(isoconv)
    assert isoconv.plain is isoconv.nn.plain  # the function
    with pytest.raises(AttributeError, match=r"^module 'isoconv' has no attribute 'convolve'$"):
        _ = isoconv.convolve


def test_the_rooms_need_torch_and_numpy_alone():
    done = subprocess.run([sys.executable, "-c", LIGHT + ONLY_CORE], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")
