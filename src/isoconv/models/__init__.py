"""The networks of the paper, a few lines each, built from `isoconv.nn`."""

from isoconv.models.classifiers import FC3, Large, Small
from isoconv.models.critic import DCGANCritic
from isoconv.models.layers import ACTIVATIONS, CONVOLUTIONS

__all__ = ["ACTIVATIONS", "CONVOLUTIONS", "FC3", "DCGANCritic", "Large", "Small"]
