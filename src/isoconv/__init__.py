"""Convolutional networks that are provably 1-Lipschitz in the L2 norm and preserve gradient norms."""

from isoconv import attacks, certify, linalg, models, nn, optim, theory
from isoconv.errors import IsoconvError
from isoconv.nn.plain import plain
from isoconv.version import __version__

__all__ = ["IsoconvError", "__version__", "attacks", "certify", "linalg", "models", "nn", "optim", "plain", "theory"]
