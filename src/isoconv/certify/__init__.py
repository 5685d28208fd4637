"""From a model to a sound Lipschitz bound."""

from isoconv.certify.lipschitz import LayerBound, LipschitzBound, lipschitz_bound

__all__ = ["LayerBound", "LipschitzBound", "lipschitz_bound"]
