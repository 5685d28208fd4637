"""Convolutional networks that are provably 1-Lipschitz in the L2 norm and preserve gradient norms."""
