"""From two samples to a lower bound of their Wasserstein-1 distance."""

from isoconv.wasserstein.bound import WassersteinBound, wasserstein_lower_bound
from isoconv.wasserstein.vector_critic import AnchorCritics, FCCritic, NearestAnchor

__all__ = ["AnchorCritics", "FCCritic", "NearestAnchor", "WassersteinBound", "wasserstein_lower_bound"]
