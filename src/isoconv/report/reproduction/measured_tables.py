"""The tables of everything that is not an accuracy."""

from isoconv.report.reproduction.names import ACTIVATIONS, DATA, METHODS, NETWORKS, NOTHING, RECIPES, shown_seconds
from isoconv.report.reproduction.table import Row, Table, Text, our_figure, paper_figures, seed_note


def wasserstein_table(rows: list[Row]) -> Table:
    headings = ["activation", "method", "updates", "distance", "share of the best", "proved (95 %)", "the paper's"]
    table = Table("", [*headings, "its share"])
    for k, row in enumerate(rows):
        if k and rows[k - 1]["activation"] != row["activation"]:
            table.rule()
        rivals = [r["distance"]["mean"] for r in rows if r["distance"] and r["recipe"] == row["recipe"]]
        best = len(rivals) > 1 and row["distance"] is not None and row["distance"]["mean"] == max(rivals)
        recipe = RECIPES[row["recipe"]]
        updates = f"{row['updates']:,}" if "updates" in row else NOTHING
        table.add(
            ACTIVATIONS[row["activation"]],
            METHODS[row["conv"]],
            updates + (f", {recipe}" if recipe else ""),
            Text(our_figure(row, "distance"), best),
            NOTHING if row["share"] is None else f"{row['share']:.3f}",
            our_figure(row, "lower"),
            paper_figures(row, "printed", ("distance",)),
            f"{row['paper_share']:.3f}",
        )
    table.notes.append(
        f"{seed_note(rows)} Divided by the critic's proved Lipschitz bound, so each is a lower bound. The paper's "
        "generator is lost: of its figures only the shares of the best can be compared."
    )
    table.notes += [f"In units of the {row['units']}." for row in rows if "units" in row][:1]
    generators = {row["generator"] for row in rows if "generator" in row}
    if len(generators) > 1:
        table.notes.append(f"Not all of one generator: {', '.join(sorted(generators))}. Do not compare across them.")
    return table


def step_table(rows: list[Row]) -> Table:
    headings = ["method", "recipe", "ours", "× ordinary", "the paper's, P100", "× ordinary there"]
    table = Table("", headings)
    for k, row in enumerate(rows):
        if k and rows[k - 1]["recipe"] != row["recipe"]:
            table.rule()
        seconds = row["seconds"]["median"] if row["seconds"] else None
        paper = row["paper"]
        table.add(
            METHODS[row["conv"]],
            row["recipe"],
            shown_seconds(seconds) if seconds else row["status"],
            NOTHING if row["ratio"] is None else f"{row['ratio']:.2f}",
            shown_seconds(paper["seconds"]) if paper else NOTHING,
            f"{paper['ratio']:.2f}" if paper else NOTHING,
        )
    table.notes += [f"Ours: {place}, medians." for place in {row["hardware"] for row in rows if "hardware" in row}]
    table.notes.append("SVCM's step includes a hundredth of its 50 projections, which are made every 100 steps.")
    return table


def complexity_table(rows: list[Row]) -> Table:
    headings = ["method", "recipe", "c: fitted", "c: last two", "c: the paper's", "s: fitted", "s: last two"]
    table = Table("", [*headings, "s: the paper's", "largest c", "largest s"])
    for row in rows:
        found, paper = row["exponents"], row["paper"]
        places = []
        for name in ("channels", "size"):
            values = [f"{found[name][key]:.2f}" for key in ("fitted", "last")] if found else [row["status"], NOTHING]
            places += [*values, str(paper[name]) if paper else NOTHING]
        largest = [NOTHING, NOTHING]
        if found:
            ends = [(name, row["seconds"][name][-1]) for name in ("channels", "size")]
            largest = [f"{int(x)}: {shown_seconds(seconds)}" for _, (x, seconds) in ends]
        table.add(METHODS[row["conv"]], row["recipe"], *places, *largest)
    table.notes += [f"Ours: {place}." for place in {row["hardware"] for row in rows if "hardware" in row}]
    table.notes.append(
        "Fitted: the slope of the line closest to all points in logarithms; last two: between the two largest, where "
        "overheads weigh least. SVCM: fifty projections. The paper's: its bound per iteration, O(c³) or O(c³s²)."
    )
    return table


def parameter_table(rows: list[Row]) -> Table:
    table = Table("", ["data", "network", "method", "effective", "the paper's", "equal", "raw"], texts=3)
    for k, row in enumerate(rows):
        if k and any(rows[k - 1][key] != row[key] for key in ("dataset", "model")):
            table.rule()
        method = METHODS[row["conv"]] if row["conv"] else NOTHING
        counts = (f"{row['effective']:,}", f"{row['paper']:,}", "yes" if row["equal"] else "no", f"{row['raw']:,}")
        table.add(DATA[row["dataset"]], NETWORKS[row["model"]], method, *counts)
    table.notes.append("Effective: entries of the kernels that are applied, and biases. Raw: the parameters trained.")
    return table


_QUANTILES = ("least", "5 %", "25 %", "median", "75 %", "95 %", "largest")


def singular_value_table(rows: list[Row]) -> Table:
    table = Table("", ["method", "training", *_QUANTILES])
    for row in rows:
        for when in ("before", "after"):
            values = row[when]["quantiles"] if row[when] else None
            places = [f"{v:.4f}" for v in values] if values else [row["status"], *[NOTHING] * (len(_QUANTILES) - 1)]
            table.add(METHODS[row["conv"]], f"{when}{_epochs_after(row) if when == 'after' else ''}", *places)
        table.rule()
    table.notes.append("All singular values of the circular convolution at its image size, seed 0.")
    return table


def _epochs_after(row: Row) -> str:
    return f", {row['epochs']} epochs"


BLOCK_CONVOLUTION = (
    ("input", "v"),
    ("moved", "P v, moved on by one"),
    ("kept", "(I−P) v, in place"),
    ("output", "[P  I−P] ∗ v"),
)


def block_convolution_table(rows: list[Row]) -> Table:
    (row,) = rows
    table = Table("", ["", "channel", "place 1", "place 2", "place 3"])
    if row["status"] != "ok":
        return table
    for name, title in BLOCK_CONVOLUTION:
        for channel, values in enumerate(row[name], start=1):
            table.add(title, str(channel), *(f"{value:g}" for value in values))
        table.rule()
    table.notes.append(f"‖v‖ = {row['norms']['input']:.6f}, ‖[P  I−P] ∗ v‖ = {row['norms']['output']:.6f}")
    return table


def downsampling_table(rows: list[Row]) -> Table:
    (row,) = rows
    table = Table("", ["", "pixels"], texts=2)
    if row["status"] != "ok":
        return table
    table.add("image, 1 channel of 4×4", _grid(row["input"]))
    table.rule()
    for number, channel in enumerate(row["channels"], start=1):
        table.add(f"channel {number}, 2×2", _grid(channel))
    table.rule()
    table.add("upsampled again", _grid(row["back"]))
    return table


def _grid(values: list[list[int]]) -> str:
    return "; ".join(" ".join(str(value) for value in line) for line in values)
