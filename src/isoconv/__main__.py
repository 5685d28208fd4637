"""`python -m isoconv` is the `isoconv` command."""

from isoconv.cli import main

main()
