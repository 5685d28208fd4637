"""The error that isoconv raises for bad input and impossible requests."""

import math


class IsoconvError(ValueError):
    """Bad input or an impossible request. The message is one line: what was expected, what was found."""


def require(holds: bool, expected: str, got: object) -> None:
    """Raise one line unless a condition holds."""
    if not holds:
        raise IsoconvError(f"Expected {expected}. Got {str(got)[:500]}.")


def is_whole(value: object, least: int) -> bool:
    """Return whether a value is a whole number of at least `least`; True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def is_number(value: object) -> bool:
    """Return whether a value is a finite number; True and False are none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
