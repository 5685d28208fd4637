"""Check a certificate: python -m isoconv.check FILE MODEL [--images FILE.npy]

Proves again, from the weights and in exact arithmetic, everything that a certificate file claims (see the package). It needs
only Python and numpy, imports nothing of isoconv, and also runs as a plain folder: python path/to/check FILE MODEL.

Prints one line. Exit code 0, "valid: …": proved, and the line says what was not checked. 1, "INVALID: …": something is
false or could not be proved. 2: the input could not be read, or exceeds a limit that the line names.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn, TextIO

if __package__:
    from . import Invalid, Malformed
    from .proof import examine
else:  # run as a plain folder
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from check.proof import examine  # type: ignore[import-not-found,no-redef]

    from check import Invalid, Malformed  # type: ignore[import-not-found,no-redef]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Exit with one line, like every other error."""
        self.exit(2, f"{message}. Usage: check FILE MODEL [--images FILE.npy]\n")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _Parser(prog="check", description="Check a certificate file of isoconv against the model's weights.")
    parser.add_argument("file", metavar="FILE", type=Path, help="the certificate")
    parser.add_argument("model", metavar="MODEL", type=Path, help="a .safetensors file, or a run's folder")
    parser.add_argument("--images", metavar="FILE.npy", type=Path, help="the images, to recompute their logits too")
    parser.add_argument("--unlimited", action="store_true", help="check it however long that takes")
    options = parser.parse_args(arguments)
    try:
        _say(f"valid: {examine(options.file, options.model, options.images, options.unlimited)}", sys.stdout)
        return 0
    except Invalid as reason:
        _say(f"INVALID: {reason}", sys.stdout)
        return 1
    except Malformed as reason:
        _say(str(reason), sys.stderr)
    except Exception as error:  # what is not understood is not valid
        _say(f"The certificate cannot be checked: {type(error).__name__}, {error}.", sys.stderr)
    return 2


def _say(line: str, stream: TextIO) -> None:
    """Print one line, whatever names from a file are in it and whatever characters the terminal knows."""
    encoding = stream.encoding or "utf-8"
    line = "".join(character if character.isprintable() else "?" for character in line)
    print(line.encode(encoding, "backslashreplace").decode(encoding), file=stream)


if __name__ == "__main__":
    sys.exit(main())
