"""The table of each target."""

from isoconv.report.reproduction.accuracy_tables import accuracy_table, attack_table, sota_table
from isoconv.report.reproduction.measured_tables import (
    block_convolution_table,
    complexity_table,
    downsampling_table,
    parameter_table,
    singular_value_table,
    step_table,
    wasserstein_table,
)
from isoconv.report.reproduction.table import Row, Table, row_name

TITLES = {
    "table1": "Clean and certified accuracy with different Lipschitz convolutions",
    "ablation": "Clean and certified accuracy of the ablations",
    "sota": "Comparison with other provably robust networks",
    "attacks": "Accuracy under attack, CIFAR-10, ε = 36/255",
    "wasserstein": "Wasserstein distance between STL-10 and a generator, as different critics measure it",
    "time": "One training step of Large on CIFAR-10, batch 128",
    "complexity": "Time to build a layer of 3×3 from c to c channels for images of s×s: exponents of c and s",
    "parameters": "Number of parameters",
    "figure-bconv": "What [P  I−P] does to a signal",
    "figure-downsampling": "Invertible downsampling",
    "figure-sv": "Singular values of Large's second layer before and after training",
}


def table_of(target: str, rows: list[Row]) -> Table:
    """The table of a target's rows."""
    make = {
        "table1": accuracy_table,
        "ablation": accuracy_table,
        "sota": sota_table,
        "attacks": attack_table,
        "wasserstein": wasserstein_table,
        "time": step_table,
        "complexity": complexity_table,
        "parameters": parameter_table,
        "figure-sv": singular_value_table,
        "figure-bconv": block_convolution_table,
        "figure-downsampling": downsampling_table,
    }[target]
    table = make(rows)
    table.title = TITLES[target]
    if any(row.get("quick") for row in rows):
        table.title += " — a quick look: these figures mean nothing"
    for row in rows:
        if row["status"] == "failed":
            table.notes.append(f"{row_name(row)} failed: {row['reason']}")
    missing = sum(row["status"] == "missing" for row in rows)
    if missing:
        table.notes.append(f"{missing} of {len(rows)} lines are not measured yet (--run measures them).")
    return table
