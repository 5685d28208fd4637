"""The tables of accuracies."""

from isoconv.report.reproduction.compare import RULE
from isoconv.report.reproduction.names import DATA, METHODS, NETWORKS, NOTHING, shown, shown_radius
from isoconv.report.reproduction.table import (
    Row,
    Table,
    Text,
    differences,
    epochs_and_recipe,
    is_best,
    our_figure,
    paper_figures,
    place_notes,
    seed_note,
    verdicts,
)

_BOTH = ("clean", "robust")


def accuracy_table(rows: list[Row]) -> Table:
    headings = ["data, ε", "network", "method", "epochs", "clean %", "certified %", "paper: clean / certified"]
    table = Table("", [*headings, "corrected", "difference", "against the paper"], texts=3)
    for k, row in enumerate(rows):
        if k and any(rows[k - 1][key] != row[key] for key in ("dataset", "model", "recipe")):
            table.rule()
        table.add(
            f"{DATA[row['dataset']]}, {shown_radius(row['epsilon'])}",
            NETWORKS[row["model"]],
            METHODS[row["conv"]],
            epochs_and_recipe(row),
            Text(our_figure(row, "clean"), is_best(rows, row, "clean")),
            Text(our_figure(row, "robust"), is_best(rows, row, "robust")),
            paper_figures(row, "printed", _BOTH),
            paper_figures(row, "corrected", _BOTH),
            differences(row, _BOTH),
            verdicts(row, _BOTH),
        )
    table.notes += [f"{seed_note(rows)} The paper's: best test epoch of 200.", f"Against the paper: {RULE}"]
    table.notes += place_notes(rows)
    return table


def sota_table(rows: list[Row]) -> Table:
    headings = ["data, ε", "network", "epochs", "clean %", "certified %", "PGD %", "FGSM %"]
    headings += ["paper: clean / certified / PGD / FGSM", "corrected", "difference", "against the paper"]
    table = Table("", headings)
    for k, row in enumerate(rows):
        if k and any(rows[k - 1][key] != row[key] for key in ("dataset", "epsilon")):
            table.rule()
        quantities = ("clean", "robust", *(("pgd", "fgsm") if "pgd" in row.get("difference", {}) else ()))
        place = f"{DATA[row['dataset']]}, {shown_radius(row['epsilon'])}"
        if row["quoted"]:
            figures = [shown(row.get(q)) for q in ("clean", "robust", "pgd", "fgsm")]
            table.add(place, f"{NETWORKS[row['model']]} (quoted)", NOTHING, *figures, *([NOTHING] * 4))
            continue
        attacked = [our_figure(row, q) if q in quantities else NOTHING for q in ("pgd", "fgsm")]
        name = "BCOP-Large" if row["model"] == "large" else NETWORKS[row["model"]]
        table.add(
            place,
            name,
            epochs_and_recipe(row),
            our_figure(row, "clean"),
            our_figure(row, "robust"),
            *attacked,
            paper_figures(row, "printed", quantities),
            paper_figures(row, "corrected", quantities),
            differences(row, quantities),
            verdicts(row, quantities),
        )
    table.notes += [seed_note(rows), *_order_notes(rows), *_quoted_notes(rows), f"Against the paper: {RULE}"]
    return table


def attack_table(rows: list[Row]) -> Table:
    headings = ["network", "images", "epochs", "clean %", "certified %", "PGD %", "FGSM %", "boundary %", "pointwise %"]
    table = Table("", [*headings, "the paper's", "corrected", "difference", "against the paper"], texts=1)
    for k, row in enumerate(rows):
        few = "boundary" in row
        if k and not few and "boundary" in rows[k - 1]:
            table.rule()
        attacks = ("boundary", "pointwise") if few else ("pgd", "fgsm")
        images = NOTHING if row["images"] is None else f"{row['images']:,}"
        figures = {q: shown(row.get(q)) for q in ("clean", "robust", "pgd", "fgsm", "boundary", "pointwise")}
        if row["quoted"]:
            table.add(f"{NETWORKS[row['model']]} (quoted)", images, NOTHING, *figures.values(), *([NOTHING] * 4))
            continue
        figures |= {q: our_figure(row, q) for q in ("clean", "robust", *attacks)}
        quantities = ("clean", *attacks)
        table.add(
            f"BCOP-{NETWORKS[row['model']]}",
            images,
            epochs_and_recipe(row),
            *figures.values(),
            paper_figures(row, "printed", quantities),
            paper_figures(row, "corrected", quantities),
            differences(row, quantities),
            verdicts(row, quantities),
        )
    table.notes += [seed_note(rows), "The paper's: clean and the two attacks of the line."]
    table.notes += [*_order_notes(rows), *_quoted_notes(rows), f"Against the paper: {RULE}"]
    return table


def _order_notes(rows: list[Row]) -> list[str]:
    known = [row for row in rows if row.get("ordered") is not None]
    if not known:
        return []
    order = "certified ≤ min(attacks) ≤ max(attacks) ≤ clean"
    held = sum(row["ordered"] for row in known)
    broken = sum(row["violations"] for row in known)
    return [f"{order} holds in {held} of {len(known)} lines; attacks that succeeded on a certified image: {broken}."]


def _quoted_notes(rows: list[Row]) -> list[str]:
    sources: dict[str, list[str]] = {}
    for row in rows:
        if row["quoted"]:
            names = sources.setdefault(row["source"], [])
            names += [] if NETWORKS[row["model"]] in names else [NETWORKS[row["model"]]]
    return [f"Quoted, not measured here: {', '.join(names)}: {source}." for source, names in sources.items()]
