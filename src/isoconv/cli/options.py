"""Options that commands share, and values as people write them: 36/255, 0,1,2, 1e-3,1e-2, 32x48."""

import math
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import Annotated

import typer

from isoconv.errors import IsoconvError

Run = Annotated[Path, typer.Argument(help="folder of a run, or the name of a network that comes with isoconv")]
Data = Annotated[Path | None, typer.Option("--data", help="where the data set is, or pictures that have moved")]
Download = Annotated[bool, typer.Option("--download", help="download the data set if it is not there")]
Images = Annotated[int | None, typer.Option(help="use only the first images of the test set")]
Seed = Annotated[int, typer.Option(help="seed of every random choice")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda")]
Resume = Annotated[bool, typer.Option("--resume", help="continue the run in --out, with the same options")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="replace what is there")]
Json = Annotated[bool, typer.Option("--json", help="print the results as JSON on stdout")]


def list_choices(names: Iterable[str], default: str = "") -> str:
    """Return the help text of an option that takes one of some names."""
    return ", ".join(f"{name} (default)" if name == default else name for name in names)


def parse_number(text: str, name: str) -> float:
    """Return a non-negative number, which may be a fraction: 0.1, 36/255."""
    try:
        value = float(Fraction(text.strip()))
    except (ValueError, ZeroDivisionError, OverflowError):
        raise IsoconvError(f"Expected a number such as 0.1 or 36/255 for {name}. Got {text!r}.") from None
    if not 0 <= value < math.inf:
        raise IsoconvError(f"Expected a number of at least 0 for {name}. Got {text!r}.")
    return value


def parse_epsilons(texts: list[str] | None) -> list[float]:
    """Return the radii of --epsilon."""
    return [parse_number(text, "--epsilon") for text in texts or []]


def parse_numbers(text: str, name: str) -> list[float]:
    """Return numbers separated by commas."""
    return [parse_number(part, name) for part in text.split(",")]


def parse_seeds(text: str) -> list[int]:
    """Return different whole numbers separated by commas."""
    try:
        seeds = [int(part) for part in text.split(",")]
    except ValueError:
        raise IsoconvError(f"Expected seeds such as 0 or 0,1,2. Got {text!r}.") from None
    if len(set(seeds)) != len(seeds) or min(seeds) < 0:
        raise IsoconvError(f"Expected different seeds of at least 0. Got {text!r}.")
    if max(seeds) >= 2**32:
        raise IsoconvError(f"Expected seeds below 2³². Got {text!r}.")
    return seeds


def parse_size(text: str) -> int | tuple[int, int]:
    """Return the side of a square, or height and width: 32, 32x48."""
    try:
        sides = tuple(int(part) for part in text.lower().replace("×", "x").split("x"))
    except ValueError:
        sides = ()
    if len(sides) == 1:
        return sides[0]
    if len(sides) != 2:
        raise IsoconvError(f"Expected a size such as 32 or 32x48 (height x width) for --size. Got {text!r}.")
    return sides[0], sides[1]


def parse_interval(text: str, name: str) -> tuple[float, float]:
    """Return two numbers, the smaller first: -1,1."""
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        raise IsoconvError(f"Expected two numbers such as -1,1 for {name}. Got {text!r}.") from None
    if not -1e8 <= low < high <= 1e8:
        raise IsoconvError(f"Expected two numbers up to 1e8, the smaller first, for {name}. Got {text!r}.")
    return low, high
