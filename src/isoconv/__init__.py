"""Convolutional networks that are provably 1-Lipschitz in the L2 norm and preserve gradient norms."""

from typing import TYPE_CHECKING

from isoconv.errors import IsoconvError
from isoconv.lazy import lazy_face

__version__ = "0.1.0"

if TYPE_CHECKING:
    from isoconv import attacks as attacks
    from isoconv import certify as certify
    from isoconv import data as data
    from isoconv import export as export
    from isoconv import linalg as linalg
    from isoconv import losses as losses
    from isoconv import models as models
    from isoconv import nn as nn
    from isoconv import optim as optim
    from isoconv import report as report
    from isoconv import theory as theory
    from isoconv import train as train
    from isoconv import wasserstein as wasserstein
    from isoconv.nn import convert as convert
    from isoconv.nn import plain as plain
    from isoconv.pretrained import load_pretrained as load_pretrained

__getattr__, __dir__, __all__ = lazy_face(__name__, __file__)
__all__ += ["IsoconvError", "__version__"]
