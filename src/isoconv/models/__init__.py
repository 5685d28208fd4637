"""The networks of the paper, a few lines each, built from `isoconv.nn`; and critics of vectors."""

from isoconv.models.classifiers import FC3, Large, Small
from isoconv.models.critic import DCGANCritic
from isoconv.models.generator import Discriminator, Generator
from isoconv.models.layers import ACTIVATIONS, CONVOLUTIONS

__all__ = [
    "ACTIVATIONS",
    "CONVOLUTIONS",
    "FC3",
    "DCGANCritic",
    "Discriminator",
    "Generator",
    "Large",
    "Small",
]
