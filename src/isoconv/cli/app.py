"""All commands."""

from typing import Annotated

import typer

from isoconv.cli.attack import attack
from isoconv.cli.certify import certify
from isoconv.cli.demo import demo
from isoconv.cli.export import export
from isoconv.cli.gan import gan
from isoconv.cli.predict import predict
from isoconv.cli.report import report
from isoconv.cli.train import train
from isoconv.cli.wasserstein import wasserstein
from isoconv.version import __version__

app = typer.Typer(
    name="isoconv",
    help="Convolutional networks that are provably 1-Lipschitz.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
# What the list of commands says of each: at most 61 letters, so that all of it fits a screen of 80×24.
for _command, _summary in (
    (demo, "See it all on small real data: train, certify, attack, a page."),
    (train, "Train a classifier, on a data set or on your own pictures."),
    (certify, "Prove how far images can be changed before a class changes."),
    (attack, "Try to break a trained network within a budget."),
    (predict, "Say what is on pictures, with a proved radius."),
    (report, "Draw the page of one run or several."),
    (export, "Write a network as ONNX or plain torch code."),
    (wasserstein, "Prove a lower bound of the distance of two distributions."),
    (gan, "Train a generator to compare data with."),
):
    app.command(short_help=_summary)(_command)


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
    """Convolutional networks that are provably 1-Lipschitz."""
