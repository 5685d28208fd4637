"""From two samples to a lower bound of their Wasserstein-1 distance."""

from typing import TYPE_CHECKING

from isoconv.lazy import lazy_face

if TYPE_CHECKING:
    from isoconv.wasserstein.bound import WassersteinBound as WassersteinBound
    from isoconv.wasserstein.bound import wasserstein_lower_bound as wasserstein_lower_bound
    from isoconv.wasserstein.critic import CriticConfig as CriticConfig
    from isoconv.wasserstein.critic import DistanceBound as DistanceBound
    from isoconv.wasserstein.critic import critic_config as critic_config
    from isoconv.wasserstein.critic import train_critics as train_critics
    from isoconv.wasserstein.distance import distance_bound as distance_bound
    from isoconv.wasserstein.gan import load_generator as load_generator
    from isoconv.wasserstein.gan import train_generator as train_generator
    from isoconv.wasserstein.samples import DrawnSamples as DrawnSamples
    from isoconv.wasserstein.samples import FiniteSamples as FiniteSamples
    from isoconv.wasserstein.samples import GeneratedSamples as GeneratedSamples
    from isoconv.wasserstein.vector_critic import AnchorCritics as AnchorCritics
    from isoconv.wasserstein.vector_critic import FCCritic as FCCritic
    from isoconv.wasserstein.vector_critic import NearestAnchor as NearestAnchor

__getattr__, __dir__, __all__ = lazy_face(__name__, __file__)
