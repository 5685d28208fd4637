"""The networks of the paper and those of rotations and shifts, a few lines each, built from `isoconv.nn`."""

from typing import TYPE_CHECKING

from isoconv.lazy import lazy_face
from isoconv.nn.methods import ACTIVATIONS, METHODS

if TYPE_CHECKING:
    from isoconv.models.catalogue import MODELS as MODELS
    from isoconv.models.networks import FC3 as FC3
    from isoconv.models.networks import ConvNet as ConvNet
    from isoconv.models.networks import DCGANCritic as DCGANCritic
    from isoconv.models.networks import Discriminator as Discriminator
    from isoconv.models.networks import Generator as Generator
    from isoconv.models.networks import Large as Large
    from isoconv.models.networks import ShiftNet as ShiftNet
    from isoconv.models.networks import Small as Small

CONVOLUTIONS = tuple(METHODS)

__getattr__, __dir__, __all__ = lazy_face(__name__, __file__)
__all__ += ["ACTIVATIONS", "CONVOLUTIONS"]
