"""isoconv attack"""

import json
from typing import Annotated

import typer

from isoconv.cli.options import Data, Device, Download, Epsilons, Images, Json, Run, Seed, given
from isoconv.data import ProgressLine

_ATTACKS = "pgd, fgsm (both by default), apgd, boundary, pointwise, rounding; repeatable"


def attack(
    run: Run,
    names: Annotated[list[str] | None, typer.Option("--attack", metavar="<name>", help=_ATTACKS)] = None,
    epsilons: Epsilons = None,
    folder: Data = None,
    download: Download = False,
    images: Images = None,
    steps: Annotated[int, typer.Option(help="steps of PGD and APGD")] = 200,
    step_size: Annotated[float, typer.Option(help="step size of PGD")] = 0.01,
    restarts: Annotated[int, typer.Option(help="restarts of PGD and APGD")] = 1,
    seed: Seed = 0,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Attack a trained network, and check that no attack succeeds on a certified image.

    boundary and pointwise attack the first 100 test images unless --images is given. rounding searches each certified
    ball for a point at which rounding changes the prediction.

    Example: isoconv attack runs/large --data DIR --attack pgd --attack fgsm --epsilon 36/255
    """
    options = given(locals(), "as_json")
    from isoconv.cli.output import print_attacks
    from isoconv.train import attack_run, refuse_violations

    records = attack_run(**options, progress=ProgressLine("images", 1))
    if as_json:
        print(json.dumps([record.to_fields() for record in records]))
    else:
        print_attacks(records, f"{run}: accuracy in percent")
    refuse_violations(records)
