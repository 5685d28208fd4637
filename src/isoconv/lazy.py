"""Package faces whose names are loaded when they are first used: importing `isoconv` does not import torch."""

import ast
from collections.abc import Callable
from importlib import import_module
from pathlib import Path


def lazy_face(package: str, file: str) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package from the imports under its `if TYPE_CHECKING:`.

    Those imports are what type checkers, editors and the reference read; this makes them happen on first use.
    """
    sources: dict[str, tuple[str, str]] = {}
    for block in ast.parse(Path(file).read_text(encoding="utf-8")).body:
        if isinstance(block, ast.If) and isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING":
            for statement in block.body:
                if isinstance(statement, ast.ImportFrom):
                    sources |= {a.asname or a.name: (statement.module or "", a.name) for a in statement.names}

    def load(name: str) -> object:
        if name not in sources:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, attribute = sources[name]
        return import_module(f"{package}.{name}") if module == package else getattr(import_module(module), attribute)

    return load, lambda: sorted(sources), sorted(sources)
