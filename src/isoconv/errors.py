"""The error that isoconv raises for bad input and impossible requests."""


class IsoconvError(ValueError):
    """Bad input or an impossible request. The message is one line: what was expected, what was found."""


def require(holds: bool, expected: str, got: object) -> None:
    """Raise one line unless a condition holds."""
    if not holds:
        raise IsoconvError(f"Expected {expected}. Got {str(got)[:500]}.")
