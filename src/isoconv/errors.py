"""The one error that isoconv raises when it is asked for something it cannot give."""


class IsoconvError(ValueError):
    """Bad input or an impossible request. The message is one line: what was expected, what came."""
