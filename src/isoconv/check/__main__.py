"""Check a certificate: python -m isoconv.check FILE MODEL [--images FILE.npy]

Proves again, from the weights and in exact arithmetic, everything that a certificate file claims (see the package). It needs
only Python and numpy, imports nothing of isoconv, and also runs as a plain folder: python path/to/check FILE MODEL.

Prints one line. Exit code 0, "valid: …": proved, and the line says what was not checked. 1, "INVALID: …": something is
false or could not be proved. 2: the input could not be read.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn, TextIO

if __package__:
    from .examination import Invalid, Malformed, examine
else:  # run as a plain folder
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from check.examination import Invalid, Malformed, examine  # type: ignore[import-not-found,no-redef]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line, like every other error."""
        self.exit(2, f"{message}. Usage: check FILE MODEL [--images FILE.npy]\n")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _Parser(prog="check", description="Check a certificate file of isoconv against the model's weights.")
    parser.add_argument("file", metavar="FILE", type=Path, help="the certificate")
    parser.add_argument("model", metavar="MODEL", type=Path, help="a .safetensors file, or a run's folder")
    parser.add_argument("--images", metavar="FILE.npy", type=Path, help="the images, to recompute their logits too")
    options = parser.parse_args(arguments)
    try:
        _say(f"valid: {examine(options.file, options.model, options.images)}", sys.stdout)
        return 0
    except Invalid as reason:
        _say(f"INVALID: {reason}", sys.stdout)
        return 1
    except Malformed as reason:
        _say(str(reason), sys.stderr)
    except (MemoryError, ArithmeticError):
        _say("The network of this certificate is too large to check.", sys.stderr)
    return 2


def _say(line: str, stream: TextIO) -> None:
    """One line, whatever names from a file are in it and whatever characters the terminal knows."""
    encoding = stream.encoding or "utf-8"
    line = "".join(character if character.isprintable() else "?" for character in line)
    print(line.encode(encoding, "backslashreplace").decode(encoding), file=stream)


if __name__ == "__main__":
    sys.exit(main())
