"""All commands."""

from typing import Annotated

import typer

from isoconv.cli.attack import attack
from isoconv.cli.certify import certify
from isoconv.cli.demo import demo
from isoconv.cli.predict import predict
from isoconv.cli.train import train
from isoconv.version import __version__

app = typer.Typer(
    name="isoconv",
    help="Convolutional networks that are provably 1-Lipschitz: train, certify, attack.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(train)
app.command()(certify)
app.command()(attack)
app.command()(predict)
app.command()(demo)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Convolutional networks that are provably 1-Lipschitz: train, certify, attack."""
