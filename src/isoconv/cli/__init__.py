"""The command line: parse, call, print."""

import sys


def main() -> None:
    """The `isoconv` command. An expected failure is one line on stderr and exit code 2, never a traceback."""
    from isoconv.cli.app import app
    from isoconv.errors import IsoconvError

    try:
        app()
    except IsoconvError as error:
        print(f"isoconv: {error}", file=sys.stderr)
        sys.exit(2)
