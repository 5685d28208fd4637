"""Convolutional networks that are provably 1-Lipschitz in the L2 norm and preserve gradient norms."""

from isoconv import linalg, models, nn
from isoconv.errors import IsoconvError
from isoconv.nn.plain import plain
from isoconv.version import __version__

__all__ = ["IsoconvError", "__version__", "linalg", "models", "nn", "plain"]
