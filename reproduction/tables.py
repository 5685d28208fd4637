"""The table of each target, from result files: ours beside the paper's figures, printed and corrected."""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import product
from statistics import fmean, pstdev

import numpy as np
import pandas as pd

from benchmarks import distances, speed
from isoconv.train.config import default_epsilons
from isoconv.train.runs import format_radius
from reproduction import paper
from reproduction.cells import (
    DATA,
    DECISION,
    GRADIENT,
    AttackCell,
    Attacks,
    Cell,
    ClassifierCell,
    Classifiers,
    CriticCell,
    Critics,
    Failure,
    Results,
    cells_of,
)
from reproduction.frames import NAMES, Table, Tabulate, format_seconds, tabulate_figures
from reproduction.paper import Figure, Printed

Row = dict[str, str]
Ours = dict[str, Figure | None]
RULE = (
    "Against the paper: d is our mean minus the paper's (the higher of printed and corrected), s² the sum of the two "
    "variances (for one seed, twice the paper's). Within: |d| ≤ 2s; better: d > 2s; worse: d < −2s."
)


def make_table(target: str, results: Results, cells: Sequence[Cell] | None = None) -> Table:
    """Return the table of a target; cells that are not measured are marked."""
    cells = cells_of(target) if cells is None else cells
    table = _TABLES[target](cells, results)
    table.notes += [f"{cell.name} failed: {r.reason}" for cell, r in results.items() if isinstance(r, Failure)]
    if missing := sum(cell not in results for cell in cells):
        table.notes.append(f"{missing} of {len(cells)} cells are not measured yet (--run measures them).")
    if any(record.quick for record in results.values()):
        table.title += " — a quick look: these figures mean nothing"
    return table


# Accuracies -------------------------------------------------------------------------------------------------------


def summarise(values: Sequence[float]) -> Figure:
    """Return mean and population standard deviation, which one value has not."""
    return Figure(fmean(values), pstdev(values) if len(values) > 1 else None)


def compare(ours: Figure | None, papers: Printed | None) -> tuple[float, str] | None:
    """Return the difference and what to make of it, by `RULE`; None where one of the two is missing."""
    if ours is None or papers is None:
        return None
    mean, std = papers.bar
    difference = ours.mean - mean
    allowed = 2 * math.hypot((std if ours.std is None else ours.std) or 0.0, std or 0.0) + 1e-9
    return difference, "within" if abs(difference) <= allowed else "better" if difference > 0 else "worse"


def _beside_paper(ours: Ours, cell: ClassifierCell, heading: str, close: bool = False) -> Row:
    """Return the columns about the paper, for the quantities that ours are of."""
    names = {"robust": "close"} if close else {"clean": "clean of 100"} if "boundary" in ours else {}
    papers = {q: paper.paper_figure(names.get(q, q), cell.dataset, cell.model, cell.conv) for q in ours}
    compared = [compare(ours[q], papers[q]) for q in ours]
    differences = [f"{pair[0]:+.2f}" for pair in compared if pair]
    verdicts = list(dict.fromkeys(pair[1] for pair in compared if pair))
    every = " / ".join(pair[1] for pair in compared if pair)
    corrected = [p and p.corrected for p in papers.values()]
    return {
        heading: " / ".join(str(p.printed) if p else "–" for p in papers.values()),
        "corrected": " / ".join(f"{value:.2f}" if value else "–" for value in corrected) if any(corrected) else "–",
        "difference": " / ".join(differences) if all(compared) else "–",
        "against the paper": "–" if not all(compared) else verdicts[0] if len(verdicts) == 1 else every,
    }


def _accuracy(record: object, cell: ClassifierCell, which: int = 0) -> tuple[Ours, Row]:
    """Return clean and certified accuracy at one of the data set's radii, as figures and as columns."""
    radius = str(default_epsilons(cell.dataset)[which])
    if not isinstance(record, Classifiers):
        word = "failed" if isinstance(record, Failure) else "missing"
        return {"clean": None, "robust": None}, {"clean %": word, "certified %": word}
    clean, robust = (summarise(v) for v in zip(*((r.clean, r.robust[radius]) for r in record.results), strict=True))
    return {"clean": clean, "robust": robust}, {"clean %": str(clean), "certified %": str(robust)}


def _place(cell: ClassifierCell, which: int = 0) -> str:
    return f"{NAMES[cell.dataset]}, {format_radius(default_epsilons(cell.dataset)[which])}"


def _epochs(cell: ClassifierCell, record: object) -> str:
    epochs = record.epochs if isinstance(record, Classifiers) else cell.epochs
    return f"{epochs}, the paper's" if cell.recipe == "paper" else str(epochs)


def _describe_seeds(results: Results) -> str:
    numbers: dict[str, set[int]] = {"default": set(), "paper": set()}
    for record in results.values():
        if isinstance(record, (Classifiers, Critics)):
            numbers[record.recipe].add(len(record.seeds))
    ours, papers = (" or ".join(map(str, sorted(numbers[recipe]))) for recipe in ("default", "paper"))
    but = f" ({papers} in the paper's recipe)" if papers and papers != ours else ""
    return f"Ours: mean ± population standard deviation of {ours or 'five'} seeds{but}, last epoch."


def _describe_places(results: Results) -> list[str]:
    seconds: Counter[str] = Counter()
    for record in [record for record in results.values() if isinstance(record, Classifiers)]:
        seconds[str(record.hardware)] += record.train_seconds  # type: ignore[assignment]
    shared = "the sum over all lines, seeds side by side; some lines were trained at the same time"
    return [f"Trained on {place}: {format_seconds(total)}, {shared}." for place, total in seconds.items()]


def _tabulate_accuracies(title: str) -> Tabulate:
    def tabulate(cells: Sequence[Cell], results: Results) -> Table:
        rows = []
        for cell in cells:
            assert isinstance(cell, ClassifierCell)
            ours, columns = _accuracy(results.get(cell), cell)
            row = {"data, ε": _place(cell), "network": NAMES[cell.model], "method": NAMES[str(cell.conv)]}
            row |= {"epochs": _epochs(cell, results.get(cell)), **columns}
            rows.append(row | _beside_paper(ours, cell, "paper: clean / certified"))
        frame = _mark_best(pd.DataFrame(rows), ["data, ε", "network", "epochs"], ["clean %", "certified %"])
        notes = [f"{_describe_seeds(results)} The paper's: best test epoch of 200.", RULE, *_describe_places(results)]
        return Table(title, frame, notes, texts=3)

    return tabulate


def _mark_best(frame: pd.DataFrame, same: list[str], columns: list[str]) -> pd.DataFrame:
    """Set in bold what no other row with the same data, network and recipe exceeds."""
    for column in columns:
        means = pd.to_numeric(frame[column].str.split(" ").str[0], errors="coerce")
        groups = means.groupby([frame[name] for name in same] if same else np.zeros(len(frame)))
        best = (means == groups.transform("max")) & (groups.transform("count") > 1)
        frame[column] = frame[column].where(~best, "**" + frame[column] + "**")
    return frame


def _tabulate_results(cells: Sequence[Cell], results: Results) -> Table:
    """Tabulate what the README shows: the paper's figures are the corrected ones where there are any."""
    frame = _tabulate_accuracies("")(cells, results).frame
    papers = frame["corrected"].where(frame["corrected"] != "–", frame["paper: clean / certified"])
    frame = frame[["data, ε", "network", "epochs", "clean %", "certified %"]]
    return Table("Clean and certified accuracy of BCOP", frame.assign(**{"the paper: clean / certified": papers}))


def _attack_columns(cell: ClassifierCell, attacks: Sequence[str], results: Results) -> tuple[Ours, Row]:
    records = {attack: results.get(AttackCell(cell, attack)) for attack in attacks}
    seeds = {attack: r.results if isinstance(r, Attacks) else () for attack, r in records.items()}
    figures = {attack: summarise([s.accuracy for s in each]) if each else None for attack, each in seeds.items()}
    return figures, {_ATTACKS[attack]: str(figure or "missing") for attack, figure in figures.items()}


_ATTACKS = {"pgd": "PGD %", "fgsm": "FGSM %", "boundary": "boundary %", "pointwise": "pointwise %"}


def _tabulate_sota(cells: Sequence[Cell], results: Results) -> Table:
    networks, rows = [cell for cell in cells if isinstance(cell, ClassifierCell)], []
    for recipe, dataset, which in product(("default", "paper"), DATA, (0, 1)):
        for cell in [cell for cell in networks if (cell.dataset, cell.recipe) == (dataset, recipe)]:
            ours, columns = _accuracy(results.get(cell), cell, which)
            asked = which == 0 and AttackCell(cell, "pgd") in cells
            attacked, more = _attack_columns(cell, GRADIENT, results) if asked else ({}, {"PGD %": "–", "FGSM %": "–"})
            row = {"data, ε": _place(cell, which), "network": "BCOP-Large" if cell.conv else NAMES[cell.model]}
            row |= {"epochs": _epochs(cell, results.get(cell)), **columns, **more}
            heading = "paper: clean / certified / PGD / FGSM"
            rows.append(row | _beside_paper(ours | attacked, cell, heading, close=which == 1))
        radius = format_radius(default_epsilons(dataset)[which])
        for place, quoted in paper.QUOTED_SOTA:
            if (*place, "default") == (dataset, radius, recipe):
                row = {"data, ε": f"{NAMES[dataset]}, {radius}", "network": f"{quoted.name} (quoted)"}
                rows.append(row | _quote(quoted))
    sources = _name_sources([quoted for _, quoted in paper.QUOTED_SOTA])
    notes = [_describe_seeds(results), *_check_order(results), *sources, RULE]
    return Table("Comparison with other provably robust networks", pd.DataFrame(rows).fillna("–"), notes)


def _quote(quoted: paper.Quoted) -> Row:
    names = {"clean": "clean %", "robust": "certified %", **_ATTACKS}
    return {names[quantity]: f"{value:.2f}" for quantity, value in quoted.figures.items()}


def _name_sources(quoted: Sequence[paper.Quoted]) -> list[str]:
    frame = pd.DataFrame(quoted).drop_duplicates(["source", "name"])
    groups = frame.groupby("source", sort=False)["name"]
    return [f"Quoted, not measured here: {', '.join(names)}: {source}." for source, names in groups]


def _check_order(results: Results) -> list[str]:
    """Say whether certified ≤ attacked ≤ clean in every network that was attacked."""
    seeds = [seed for record in results.values() if isinstance(record, Attacks) for seed in record.results]
    held, violations = sum(s.certified <= s.accuracy <= s.clean for s in seeds), sum(s.violations for s in seeds)
    text = f"Certified ≤ attacked ≤ clean holds in {held} of {len(seeds)} attacks on a network"
    return [f"{text}; attacks that succeeded on a certified image: {violations}."]


def _tabulate_attacks(cells: Sequence[Cell], results: Results) -> Table:
    rows = []
    for cell in [cell for cell in cells if isinstance(cell, ClassifierCell)]:
        for attacks, images in ((GRADIENT, 10_000), (DECISION, 100)):
            ours, columns = _accuracy(results.get(cell), cell)
            if attacks == DECISION:  # of these few images only the attack knows anything
                record = results.get(AttackCell(cell, "boundary"))
                seeds = record.results if isinstance(record, Attacks) else ()
                pairs = [[s.clean for s in seeds], [s.certified for s in seeds]]
                clean, robust = (summarise(values) if values else None for values in pairs)
                ours, columns = {"clean": clean}, {"clean %": str(clean or "–"), "certified %": str(robust or "–")}
            attacked, more = _attack_columns(cell, attacks, results)
            row = {"network": f"BCOP-{NAMES[cell.model]}", "images": f"{images:,}", **columns, **more}
            compared = {"clean": ours["clean"], **attacked}
            rows.append(row | _beside_paper(compared, cell, "the paper's"))
            quoted = paper.QUOTED_ATTACKS[cell.model, str(images)]
            rows.append({"network": f"{quoted.name} (quoted)", "images": f"{images:,}"} | _quote(quoted))
    names = ["network", "images", "clean %", "certified %", *_ATTACKS.values()]
    frame = pd.DataFrame(rows).fillna("–")
    frame = frame[[*names, *(name for name in frame.columns if name not in names)]]
    sources = _name_sources(list(paper.QUOTED_ATTACKS.values()))
    notes = [_describe_seeds(results), "The paper's: clean, then the two attacks of the line.", *_check_order(results)]
    return Table("Accuracy under attack, CIFAR-10, ε = 36/255", frame, [*notes, *sources, RULE], texts=1)


# Distances --------------------------------------------------------------------------------------------------------


def _tabulate_critics(cells: Sequence[Cell], results: Results) -> Table:
    rows = []
    means = {cell: summarise([s.estimate for s in r.results]) for cell, r in results.items() if isinstance(r, Critics)}
    for cell in [cell for cell in cells if isinstance(cell, CriticCell)]:
        record, best = results.get(cell), CriticCell(cell.dataset, "bcop", "maxmin", cell.recipe)
        papers = paper.WASSERSTEIN[cell.dataset, cell.activation, cell.conv]
        share = means[cell].mean / means[best].mean if {cell, best} <= means.keys() else None
        row = {"activation": NAMES[cell.activation], "method": NAMES[cell.conv]}
        row["method"] += f", rate {cell.lr:g}, {NAMES[cell.dataset]}" if cell.lr else ""
        row |= {"updates": f"{record.updates:,}" if isinstance(record, Critics) else "–"}
        row |= {"distance": str(means.get(cell, "missing")), "share of the best": f"{share:.3f}" if share else "–"}
        lower = summarise([s.lower for s in record.results]) if isinstance(record, Critics) else "–"
        largest = max(s.lipschitz_bound for s in record.results) if isinstance(record, Critics) else 1.0
        row |= {"proved (95 %)": str(lower), "largest Lipschitz bound": f"{largest:,.3f}", "the paper's": str(papers)}
        top = paper.WASSERSTEIN[cell.dataset, "maxmin", "bcop"].mean
        rows.append(row | {"its share": f"{papers.mean / top:.3f}"})
    frame = _mark_best(pd.DataFrame(rows), [], ["distance"])
    units = sorted({f"In units of the {r.units}." for r in results.values() if isinstance(r, Critics)})
    text = "Divided by the critic's proved Lipschitz bound, so each is a lower bound. The paper's generator is lost:"
    notes = [f"{_describe_seeds(results)} {text} only the shares of the best can be compared with the paper.", *units]
    generators = {(r.dataset, r.generator) for r in results.values() if isinstance(r, Critics)}
    if len(generators) > len({dataset for dataset, _ in generators}):
        notes.append("From several generators: do not compare across them.")
    return Table("Wasserstein distance between a data set and a generator, measured by critics", frame, notes)


# Everything else --------------------------------------------------------------------------------------------------


def _parameter_frame(frame: pd.DataFrame) -> pd.DataFrame:
    words = frame["name"].str.split("-", n=2)
    papers = (words.str[0] + "-" + words.str[1]).map(paper.PARAMETERS)
    names = {"data": words.str[0], "network": words.str[1], "method": words.str[2].fillna("None")}
    columns = {column: values.map(NAMES) for column, values in names.items()}
    counts = {"effective": frame["effective"], "the paper's": papers, "raw": frame["raw"]}
    columns |= {column: values.map("{:,.0f}".format) for column, values in counts.items()}
    return pd.DataFrame(columns | {"equal": (frame["effective"] == papers).map({True: "yes", False: "no"})})


def _variant_frame(frame: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """Return mean ± standard deviation over the seeds of each run, or their time and memory."""
    frame["certified"], frame["run"] = _read_certified(frame), frame["name"].str.split(", ").str[0]
    rows = []
    for (cell, run), seeds in frame.groupby(["cell", "run"], sort=False):
        row = {"network": cell.removesuffix("-training-time"), "seeds": f"{len(seeds)}, {run}"}
        row |= {f"{column} %": str(summarise(list(seeds[column]))) for column in ("clean", "certified")}
        row |= {"time": format_seconds(seeds["train_seconds"].iloc[0])}
        rows.append(row | {"memory": f"{seeds['peak_memory_mib'].iloc[0] / 1024:.1f} GiB"})
    return pd.DataFrame(rows)[["network", "seeds", *columns]]


def _read_certified(frame: pd.DataFrame) -> pd.Series:
    """Return certified accuracy at the main radius of each row's data set."""
    radii = frame["cell"].str.split("-").str[0].map(lambda dataset: f"certified at {default_epsilons(dataset)[0]}")
    return pd.Series([row[radius] for radius, (_, row) in zip(radii, frame.iterrows(), strict=True)], frame.index)


def _svcm_frame(frame: pd.DataFrame) -> pd.DataFrame:
    frame["both"] = frame["clean"].map("{:.2f}".format) + " / " + _read_certified(frame).map("{:.2f}".format)
    frame["data"] = frame["cell"].str.split("-").str[0].map(NAMES) + ": clean / certified"
    frame["SVCM, Large"] = frame["name"].replace("", "as the paper: 50 projections after every 100 updates")
    order = frame["SVCM, Large"].drop_duplicates()
    return frame.pivot(index="SVCM, Large", columns="data", values="both").loc[order].fillna("").reset_index()


def _epochs_frame(frame: pd.DataFrame) -> pd.DataFrame:
    words = frame["cell"].str.removesuffix("-epochs").str.split("-")
    names = words.map(lambda parts: ", ".join(NAMES[part] for part in parts))
    accuracies = {"clean %": frame["clean"], "certified %": _read_certified(frame)}
    columns = {name: values.map("{:.2f}".format) for name, values in accuracies.items()}
    return pd.DataFrame({"network": names, "epochs": frame["name"].str.removeprefix("epochs="), **columns})


def _record_frame(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a line per network, or per trial, with certified accuracy at each radius."""
    rows = []
    for _, row in frame.iterrows():
        radii = {name: value for name, value in row.dropna().items() if str(name).startswith("certified at ")}
        network = (
            row["cell"].removesuffix("-trials").rstrip("-0123456789")
        )  # a cell for each seed that is trained alone
        line = {"network": network, "run": row["name"] or "the default recipe"}
        line |= {"clean %": f"{row['clean']:.2f}"}
        line |= {f"at {format_radius(float(str(k).split()[-1]))} %": f"{value:.2f}" for k, value in radii.items()}
        rows.append(line | {"time": format_seconds(row["train_seconds"]), "bound": f"{row['lipschitz_bound']:.6f}"})
    return pd.DataFrame(rows).fillna("–")


def _certificate_frame(frame: pd.DataFrame) -> pd.DataFrame:
    first = frame[frame["name"] == "certify"].iloc[0]
    place = {"time": format_seconds(first["seconds"]), "on": first["hardware"]}
    rows = [{"": "clean", "accuracy": f"{first['clean']:.2f} %"}]
    rows += [{"": "certified", "accuracy": f"{_read_certified(frame).iloc[0]:.2f} %", **place}]
    rows += [{"": "the usual test, margin > √2·ε, which proves nothing", "accuracy": f"{first['usual test']:.2f} %"}]
    for _, row in frame[frame["name"] != "certify"].iterrows():
        accuracy = "" if math.isnan(row["accuracy"]) else f"{row['accuracy']:.2f} %"
        of = f" (clean {row['clean']:.0f}, certified {row['certified']:.0f})" if row["images"] == 100 else ""
        name = f"{row['name']}, {row['images']:,.0f} images"
        broken = {"certificates broken": f"{row['violations']:.0f}", "time": format_seconds(row["seconds"])}
        rows.append({"": name, "accuracy": accuracy + of, **broken, "on": row["hardware"]})
    return pd.DataFrame(rows).fillna("")[["", "accuracy", "certificates broken", "time", "on"]]


_EFFECTIVE = "Effective: entries of the applied kernels, and biases. Raw: trained parameters."
_BOTH = ("clean %", "certified %")
_SIDE = "Each time is for all seeds of a line, trained side by side on one GPU."
_TABLES: dict[str, Tabulate] = {
    "results": _tabulate_results,
    "table1": _tabulate_accuracies("Clean and certified accuracy with different Lipschitz convolutions"),
    "ablation": _tabulate_accuracies("Clean and certified accuracy of the ablations"),
    "sota": _tabulate_sota,
    "attacks": _tabulate_attacks,
    "wasserstein": _tabulate_critics,
    "wasserstein-cifar10": _tabulate_critics,
    "parameters": tabulate_figures("Number of parameters", _parameter_frame, _EFFECTIVE, texts=3),
    "training-time": tabulate_figures("Time of training BCOP", lambda f: _variant_frame(f, "time", "memory"), _SIDE),
    "longer": tabulate_figures("BCOP Large on CIFAR-10, 200 epochs", lambda f: _variant_frame(f, *_BOTH)),
    "paths": tabulate_figures("The fast path and the paper's", lambda f: _variant_frame(f, *_BOTH, "time"), _SIDE),
    "record": tabulate_figures("The network that certifies most of CIFAR-10, last epoch", _record_frame, texts=2),
    "record-large": tabulate_figures("A larger network on CIFAR-10, last epoch", _record_frame, texts=2),
    "record-mnist": tabulate_figures("The networks that certify most of MNIST, last epoch", _record_frame, texts=2),
    "record-trials": tabulate_figures("Trials, on held-out training images", _record_frame, texts=2),
    "record-attacks": tabulate_figures("Attacks on the network that certifies most of CIFAR-10", _certificate_frame),
    "svcm-full": tabulate_figures("SVCM, projected once after every update", lambda f: _variant_frame(f, *_BOTH)),
    "svcm": tabulate_figures("SVCM by how often it is projected, on held-out training images", _svcm_frame),
    "epochs": tabulate_figures("By the number of epochs, on held-out training images", _epochs_frame, texts=2),
    "certificates": tabulate_figures("Certificates of BCOP Large on CIFAR-10 at 36/255", _certificate_frame),
    "certificates-mnist": tabulate_figures("Certificates of mnist-large at 1.58", _certificate_frame),
    "distances": distances.tabulate,
    **speed.TABLES,
}
