"""All commands. Only the one that is run is imported, so that help is fast."""

import re
from collections.abc import Sequence
from importlib import import_module
from itertools import pairwise
from typing import Annotated, Any

import typer
from typer.main import get_command

from isoconv import __version__
from isoconv.errors import require

#: Each command in one line of at most 61 letters, so that the list fits a screen of 80×24.
COMMANDS = {
    "demo": "Train, certify and attack three small networks on digits.",
    "train": "Train a classifier on a data set or on your own images.",
    "certify": "Prove the radius within which no change alters a prediction.",
    "attack": "Attack a trained network within a radius.",
    "predict": "Classify images, each with a certified radius.",
    "report": "Write an HTML report of one or several runs.",
    "export": "Write a network as ONNX or plain torch code.",
    "wasserstein": "Prove a lower bound on the distance between distributions.",
    "gan": "Train a generator, to measure its distance from the data.",
}
_FILES = {"train": "train", "wasserstein": "wasserstein", "gan": "wasserstein"}  # all others: runs
_STYLE: dict[str, Any] = {
    "add_completion": False,
    "rich_markup_mode": None,  # plain help: rich would take longer to load than all else
    "pretty_exceptions_enable": False,
    "context_settings": {"help_option_names": ["-h", "--help"]},
}


def load_command(name: str) -> Any:
    """Return a command with its options, as click has them. It is a function of its name."""
    app = typer.Typer(**_STYLE)
    app.command()(getattr(import_module(f"isoconv.cli.{_FILES.get(name, 'runs')}"), name))
    return get_command(app)


def run(arguments: Sequence[str]) -> object:
    """Run the command that the first argument names, with the others, and return its exit code. Without one, show help."""
    for before, word in pairwise(["isoconv", *arguments]):  # an empty path would be the current folder
        require(not re.fullmatch("(--[a-z-]+=)?", word), "no empty argument", f"{word!r} after {before}")
    if arguments and arguments[0] in COMMANDS:
        name, *options = arguments
        return _invoke(load_command(name), f"isoconv {name}", options)
    app = typer.Typer(no_args_is_help=True, **_STYLE)
    app.callback()(_options)
    for name, summary in COMMANDS.items():  # for the list, and for what comes close to a word that is none of them
        app.command(name, short_help=summary)(lambda: None)
    return _invoke(get_command(app), "isoconv", arguments)


def _invoke(command: Any, name: str, arguments: Sequence[str]) -> object:
    """Run a command as its `main` does, but for the errors: those are dealt with by `isoconv.cli.main`."""
    try:
        with command.make_context(name, list(arguments)) as context:
            command.invoke(context)
    except typer.Exit as end:
        return end.exit_code
    return 0


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Convolutional networks that are provably 1-Lipschitz."""
