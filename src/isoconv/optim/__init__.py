"""Optimisers for constrained layers."""

from isoconv.optim.steepest import SteepestDescent

__all__ = ["SteepestDescent"]
