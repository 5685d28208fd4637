"""A proof checker for certificate files, in Python's standard library and numpy alone.

It shares no code with the certifier that writes the files and imports nothing of isoconv, so that a mistake in one is not
a mistake in the other. What is trusted: Python's integers and fractions, and that a floating-point product of whole
numbers is exact as long as every partial sum stays below 2⁵³ (see `exact`). Floating-point factorisations are used
only to guess witnesses, which are then verified exactly (see `norms`).

To read it: `proof` says what is checked, in order, and follows the constants along the graph; `kinds` says what a node is,
and with `pointwise` and `windows` what each kind of module does; `norms` proves the norm of a matrix or a convolution;
`exact` is the arithmetic; `files` reads what others wrote.
"""


class _Verdict(Exception):  # noqa: N818 - a verdict on the certificate, not an error of the program
    @classmethod
    def unless(cls, condition: bool, reason: str) -> None:
        if not condition:
            raise cls(reason)


class Invalid(_Verdict):
    """The certificate claims something that is false or that could not be proved."""


class Malformed(_Verdict):
    """The input cannot be read as a certificate, a model or a file of images, or exceeds a limit."""


class Budget:
    """How much may still be computed, in multiplications of a matrix product; other work is converted to those.

    Everything that takes time proportional to a number in a file is paid for before it is done, so that no file takes
    longer than its size allows: about 20 s on two slow cores up to 10 MB. Above that it grows as size^1.5, as work does if
    a network is made wider: a product of n×n matrices takes n³ multiplications, and they hold n² weights.
    """

    SMALL = 10_000_000  # bytes
    MULTIPLICATIONS = 120_000_000_000
    NUMBERS = 1 << 26  # kept at once

    def __init__(self, size: int, unlimited: bool = False) -> None:
        self.unlimited = unlimited
        limit = self.MULTIPLICATIONS * max(1.0, size / self.SMALL) ** 1.5
        self.left = self.limit = float("inf") if unlimited else limit

    def affords(self, work: int) -> bool:
        return work <= self.left

    def spend(self, work: int, what: object) -> None:
        limit = f"the limit for files of this size ({self.limit:.1e} multiplications)"
        Malformed.unless(self.affords(work), f"{what} needs more computation than {limit}; --unlimited lifts it.")
        self.left -= work

    def require_memory(self, numbers: int, what: object) -> None:
        fits = self.unlimited or numbers <= self.NUMBERS
        why = f"{what} keeps {numbers} numbers at once, and the limit is {self.NUMBERS}; --unlimited lifts it."
        Malformed.unless(fits, why)
