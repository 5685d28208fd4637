"""A proof checker for certificate files, in Python's standard library and numpy alone.

It shares no code with the certifier that writes the files and imports nothing of isoconv, so that a mistake in one is not
a mistake in the other. What is trusted: Python's integers and fractions, and that a floating-point product of whole
numbers is exact as long as every partial sum stays below 2⁵³ (see `products`). Floating-point factorisations are used
only to guess witnesses, which are then verified exactly (see `norms`).
"""
