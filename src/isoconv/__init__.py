"""Convolutional networks that are provably 1-Lipschitz in the L2 norm and preserve gradient norms."""

from typing import TYPE_CHECKING

from isoconv.errors import IsoconvError
from isoconv.version import __version__

__all__ = [
    "IsoconvError",
    "__version__",
    "attacks",
    "certify",
    "export",
    "linalg",
    "load_pretrained",
    "models",
    "nn",
    "optim",
    "plain",
    "theory",
]

if TYPE_CHECKING:
    from isoconv import attacks, certify, export, linalg, models, nn, optim, theory
    from isoconv.nn.plain import plain
    from isoconv.pretrained import load_pretrained
else:

    def __getattr__(name: str) -> object:
        """The rooms, and torch with them, are loaded when they are first used: the command answers before that."""
        from importlib import import_module

        if name == "plain":
            return import_module("isoconv.nn").plain
        if name == "load_pretrained":
            return import_module("isoconv.pretrained").load_pretrained
        if name in __all__:
            return import_module(f"isoconv.{name}")
        raise AttributeError(f"module 'isoconv' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
