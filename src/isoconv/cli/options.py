"""Options that commands share, and their values: 36/255, 0,1,2, 1e-3,1e-2, 32x48."""

from collections.abc import Callable, Iterable
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import typer

from isoconv.errors import IsoconvError, require
from isoconv.pretrained import pretrained_names

SHIPPED = f"a network that comes with isoconv: {', '.join(pretrained_names())}"


def list_choices(names: Iterable[str], default: str = "") -> str:
    """Return the help text of an option that takes one of some names."""
    return ", ".join(f"{name} (default)" if name == default else name for name in names)


def given(values: dict[str, Any], *others: str) -> dict[str, Any]:
    """Return the options that the user gave, except `others`: the arguments of the function that the command calls."""
    return {name: value for name, value in values.items() if value is not None and name not in others}


def split_numbers(text: str, convert: Callable[[str], Any] = float, separator: str = ",") -> list[Any]:
    """Return the numbers between separators; none if one is not a number."""
    try:
        return [convert(part) for part in text.split(separator)]
    except (ValueError, ZeroDivisionError, OverflowError):
        return []


def parse_numbers(text: str) -> list[float]:
    """Return non-negative numbers separated by commas, which may be fractions: 0.1, 36/255."""
    numbers = split_numbers(text, lambda part: float(Fraction(part.strip())))
    require(len(numbers) > 0 and min(numbers) >= 0, "numbers of at least 0, such as 0.1 or 36/255", repr(text))
    return numbers


def parse_number(text: str) -> float:
    """Return one non-negative number."""
    numbers = parse_numbers(text)
    require(len(numbers) == 1, "one number, such as 0.1 or 36/255", repr(text))
    return numbers[0]


def parse_seeds(text: str) -> list[int]:
    """Return different whole numbers separated by commas."""
    seeds = split_numbers(text, int)
    different = seeds and len(set(seeds)) == len(seeds) and 0 <= min(seeds) <= max(seeds) < 2**32
    require(bool(different), "different seeds from 0 to 2³² − 1, such as 0 or 0,1,2", repr(text))
    return seeds


def parse_size(text: str) -> int | tuple[int, int]:
    """Return the side of a square, or height and width: 32, 32x48."""
    sides = split_numbers(text.lower().replace("×", "x"), int, "x")
    require(len(sides) in (1, 2), "a size such as 32 or 32x48 (height x width)", repr(text))
    return sides[0] if len(sides) == 1 else (sides[0], sides[1])


def parse_interval(text: str) -> tuple[float, float]:
    """Return two numbers, the smaller first: -1,1."""
    ends = split_numbers(text)
    is_interval = len(ends) == 2 and -1e8 <= ends[0] < ends[1] <= 1e8
    require(is_interval, "two numbers such as -1,1, up to 1e8, the smaller first", repr(text))
    return ends[0], ends[1]


def parse_share(text: str) -> tuple[float, float]:
    """Return a share, and the number that goes with it, which is 1 if not given: 0.5, 0.5,0.8."""
    share, *other = parse_numbers(text)
    require(len(other) <= 1, "a share, or a share and another number, such as 0.5,0.8", repr(text))
    return share, (other or [1.0])[0]


def parse_operations(text: str) -> tuple[int, float]:
    """Return a number of operations, and their magnitude, which is 9 if not given: 2, 2,12."""
    count, *magnitude = parse_numbers(text)
    is_pair = len(magnitude) <= 1 and count == int(count)
    require(is_pair, "a whole number of operations and a magnitude, such as 2,9", repr(text))
    return int(count), (magnitude or [9.0])[0]


def parse_colours(text: str) -> tuple[float, float, float]:
    """Return changes of brightness, contrast and saturation, or one for all three: 0.4, 0.4,0.4,0.2."""
    changes = parse_numbers(text)
    require(len(changes) in (1, 3), "one number or three, such as 0.4 or 0.4,0.4,0.2", repr(text))
    brightness, contrast, saturation = changes * (3 // len(changes))
    return brightness, contrast, saturation


def parse_setting(text: str) -> tuple[str, float]:
    """Return a name and its number: temperature=0.5."""
    name, _, number = text.partition("=")
    numbers = split_numbers(number)
    require(len(numbers) == 1, "NAME=NUMBER, such as temperature=0.5", repr(text))
    return name, numbers[0]


def parsed(parse: Callable[[str], object], flag: str, metavar: str, help: str) -> Any:
    """Return an option whose text is parsed; an error names the option."""

    def parse_text(text: str) -> object:
        try:
            return parse(text)
        except IsoconvError as error:
            raise typer.BadParameter(str(error)) from None

    return typer.Option(flag, parser=parse_text, metavar=metavar, help=help)


Run = Annotated[Path, typer.Argument(help=f"folder of a run, or {SHIPPED}")]
Data = Annotated[Path | None, typer.Option("--data", help="path of the data set, or of image files that have moved")]
Download = Annotated[bool, typer.Option("--download", help="download the data set if it is missing")]
Images = Annotated[int | None, typer.Option(help="use only this many test images, the first ones")]
Seed = Annotated[int | None, typer.Option(help="seed of every random choice (default: 0)")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda")]
Resume = Annotated[bool, typer.Option("--resume", help="resume the run in --out; other options stay as they were")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="replace existing output")]
Json = Annotated[bool, typer.Option("--json", help="print the results as JSON on stdout")]
Epsilons = Annotated[
    list[float] | None, parsed(parse_number, "--epsilon", "<number>", "radius, such as 36/255; repeatable")
]
Sides = Annotated[Any, parsed(parse_size, "--size", "<size>", "resize images: 32, or 32x48 (height x width)")]
Stream = Annotated[
    bool | None,
    typer.Option("--stream/--no-stream", help="decode images batch by batch (default: if they do not fit in memory)"),
]
Workers = Annotated[
    int | None, typer.Option(help="processes that decode streamed images (default: one per core, up to 8)")
]
CheckpointActivations = Annotated[
    bool | None,
    typer.Option(
        "--checkpoint-activations/--no-checkpoint-activations",
        help="compute activations twice: less memory, longer steps (default: no)",
    ),
]
Seeds = Annotated[Any, parsed(parse_seeds, "--seeds", "<numbers>", "seeds, trained side by side: 0,1,2,3,4")]
Search = Annotated[Any, parsed(parse_numbers, "--search", "<numbers>", "learning rates to try on a validation split")]
_AUGMENT = "colours, rotation, scale and shear, at random, of a share of the images: 0.5,0.5"
Augment = Annotated[Any, parsed(parse_share, "--augment", "<share[,strength]>", _AUGMENT)]
_RESIZED_CROP = "cut out at least this share of the area at random, and stretch it: 0.25; replaces --crop-padding"
ResizedCrop = Annotated[Any, parsed(parse_share, "--resized-crop", "<share[,share]>", _RESIZED_CROP)]
_RAND_AUGMENT = "RandAugment: number of random operations per image, and their magnitude, up to 30: 2,9"
RandAugment = Annotated[Any, parsed(parse_operations, "--rand-augment", "<operations[,magnitude]>", _RAND_AUGMENT)]
_COLOURS = "change brightness, contrast and saturation at random, by up to this: 0.4, or 0.4,0.4,0.2"
ColourJitter = Annotated[Any, parsed(parse_colours, "--colour-jitter", "<number[,number,number]>", _COLOURS)]
