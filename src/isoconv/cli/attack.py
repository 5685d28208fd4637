"""isoconv attack"""

import json
from typing import Annotated

import typer

from isoconv.cli.options import (
    DataOption,
    DeviceOption,
    DownloadOption,
    ImagesOption,
    JsonOption,
    RunArgument,
    parse_epsilons,
)

_HELP = "pgd, fgsm, apgd, boundary, pointwise, rounding; pgd and fgsm unless said otherwise"


def attack(
    run: RunArgument,
    kinds: Annotated[list[str] | None, typer.Option("--attack", help=_HELP)] = None,
    epsilon: Annotated[list[str] | None, typer.Option(help="budgets, such as 36/255")] = None,
    folder: DataOption = None,
    download: DownloadOption = False,
    images: ImagesOption = None,
    steps: Annotated[int, typer.Option(help="steps of PGD and APGD")] = 200,
    step_size: Annotated[float, typer.Option(help="step size of PGD")] = 0.01,
    restarts: Annotated[int, typer.Option(help="restarts of PGD and APGD")] = 1,
    seed: Annotated[int, typer.Option(help="seed of the attacks' random choices")] = 0,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Attack a trained network, and check that no attack succeeds where it is certified.

    boundary and pointwise take the first 100 test images unless --images is given; rounding searches within each image's
    own certified radius for a point at which rounding changes the prediction.

    Example: isoconv attack runs/large --data DIR --attack pgd --attack fgsm --epsilon 36/255
    """
    from isoconv.certify import robust_accuracy
    from isoconv.cli.output import CountingProgress, format_radius, print_attacks
    from isoconv.errors import IsoconvError
    from isoconv.train.config import default_epsilons
    from isoconv.train.distributed import choose_device
    from isoconv.train.runs import (
        ATTACKS,
        attack_run,
        images_for,
        keep_attacks,
        open_runs,
        read_test_images,
        refuse_violations,
    )

    names = list(dict.fromkeys(kinds or ["pgd", "fgsm"]))
    if unknown := [name for name in names if name not in ATTACKS]:
        raise IsoconvError(f"Expected --attack to be one of {', '.join(ATTACKS)}. Got {unknown[0]!r}.")
    budgets, chosen_device, runs = parse_epsilons(epsilon), choose_device(device), open_runs(run)
    data = read_test_images(runs[0].config, folder, download, images)
    iterative: dict[str, float] = {"steps": steps, "restarts": restarts, "seed": seed}
    settings: dict[str, dict[str, float]] = {"pgd": iterative | {"step_size": step_size}, "apgd": iterative, "fgsm": {}}
    records = []
    for one in runs:
        epsilons = budgets or [default_epsilons(one.config.data)[0]]
        one.model.to(chosen_device)
        with CountingProgress("certifying", "images") as shown:
            certified = robust_accuracy(one.model, data, epsilons, progress=shown.show)
        mine = []
        for name in names:
            part = images_for(name, data, images)
            for budget in epsilons if name != "rounding" else [None]:
                title = name if budget is None else f"{name} at {format_radius(budget)}"
                with CountingProgress(title, "images") as shown:
                    shown.show(0, len(part))  # the first image may take long
                    options = settings.get(name, {"seed": seed})
                    mine.append(attack_run(one, part, name, budget, certified, progress=shown.show, **options))
        keep_attacks(one, mine)
        records += mine
    if as_json:
        print(json.dumps([record.to_fields() for record in records]))
    else:
        print_attacks(records, f"{data.name}: accuracy in percent")
    refuse_violations(records)
