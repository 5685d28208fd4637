"""The tables of the page for users of other libraries say what is so."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from isoconv import IsoconvError
from isoconv.certify import lipschitz_bound
from isoconv.certify.rules import RULES

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "coming-from.md"
CONTAINERS = (
    "Module Container Sequential ModuleList ModuleDict ParameterList ParameterDict DataParallel RNNBase RNNCellBase"
)
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("AvgPool1d", "AvgPool2d", "AdaptiveAvgPool1d", "AdaptiveAvgPool2d"), (2,)),
    **dict.fromkeys(
        ("PixelShuffle", "PixelUnshuffle", "UpsamplingBilinear2d", "UpsamplingNearest2d", "Upsample"), (2,)
    ),
    **{f"{mode}Pad{n}d": (1,) for mode in ("Zero", "Circular", "Reflection", "Replication") for n in (1, 2)},
    **dict.fromkeys(("ConstantPad1d", "ConstantPad2d"), (1, 0.5)),
    "Unflatten": (1, (2, 2)),
    "Softmax": (1,),
    "LPPool2d": (2, 2),
}


def table() -> list[list[str]]:
    lines = PAGE.read_text(encoding="utf-8").partition("## The modules of torch")[2].splitlines()
    return [line.strip("|").split("|") for line in lines if line.startswith("| `")]


def rows() -> dict[str, tuple[str, str]]:
    """Return what the table says of each module: whether it is 1-Lipschitz, and certified."""
    return {name: (row[1].strip(), row[2].strip()) for row in table() for name in re.findall(r"`(\w+)`", row[0])}


def test_table_has_every_module_once() -> None:
    kinds = {name for name in dir(nn) if isinstance(kind := getattr(nn, name), type) and issubclass(kind, nn.Module)}
    others = {name for name in kinds if re.search(r"Loss|^Lazy|NLLLoss2d", name)} | set(CONTAINERS.split())
    assert kinds - others == set(rows())
    names = [name for cells in table() for name in re.findall(r"`(\w+)`", cells[0])]
    assert len(names) == len(set(names))


def test_rows_are_so() -> None:
    for name, (lipschitz, certified) in rows().items():
        kind = getattr(nn, name)
        proved = kind in RULES and RULES[kind].settings is not None  # others are what some test registered
        assert (proved or name == "LPPool2d") == certified.startswith("yes"), name
        if certified.startswith("yes") and lipschitz.startswith(("yes", "no", "with", "if")):
            options = {"scale_factor": ARGUMENTS[name][0]} if name.startswith("Upsampl") else {}
            module = kind(**options) if options else kind(*ARGUMENTS.get(name, (2,) if "Pool" in name else ()))
            bound = lipschitz_bound(module.eval(), (4, 8) if name.endswith("1d") else (4, 8, 8)).value
            assert (bound > 1 + 1e-9) == lipschitz.startswith("no"), name
        if certified == "–" and name in ("LayerNorm", "PReLU", "Softshrink", "GLU", "LogSoftmax"):
            with pytest.raises(IsoconvError, match=name):
                lipschitz_bound(kind(8) if name == "LayerNorm" else kind(), (4, 8))


def test_bounds_on_the_page_were_measured() -> None:
    page, file = PAGE.read_text(encoding="utf-8"), PAGE.parents[2] / "results" / "peers" / "bounds.json"
    for network in json.loads(file.read_text())["networks"].values():
        row = next(line for line in page.splitlines() if line.endswith(f"at most {network['proved']:.6f} |"))
        assert all(f"{value:.6f}" in row for value in network["peer"].values())
