"""From result files to tables: the rule of comparison, the paper's figures, what is best, missing or failed."""

import pytest

from benchmarks.speed import fit_exponent
from reproduction.cells import RESULTS, TARGETS, AttackCell, ClassifierCell, Failure, cells_of, read_results
from reproduction.figures import DRAWINGS, convolve_blocks
from reproduction.frames import Table, format_seconds
from reproduction.paper import Figure, Printed, paper_figure
from reproduction.tables import compare, make_table, pd, summarise

LARGE = ClassifierCell("cifar10", "large", "bcop")


def test_two_standard_deviations_of_both():
    cases = [
        ((11.0, 0.3), (10.0, 0.4), 1.0, "within"),  # s = 0.5, and exactly two of them
        ((11.01, 0.3), (10.0, 0.4), 1.01, "better"),
        ((8.99, 0.3), (10.0, 0.4), -1.01, "worse"),
        ((10.7, 0.3), (10.0, None), 0.7, "better"),
        ((11.1, None), (10.0, 0.4), 1.1, "within"),  # one seed: s = 0.4·√2
        ((8.8, None), (10.0, 0.4), -1.2, "worse"),
    ]
    for ours, paper, difference, verdict in cases:
        assert compare(Figure(*ours), Printed(Figure(*paper))) == (pytest.approx(difference), verdict)


def test_the_bar_is_the_higher_of_printed_and_corrected():
    assert Printed(Figure(72.16, 0.23), 72.41).bar == (72.41, 0.23)
    assert Printed(Figure(69.12, 5.61), 65.20).bar == (69.12, 5.61)
    assert compare(None, Printed(Figure(1.0, 0.1))) is None is compare(Figure(1.0), None)
    assert summarise([1.0, 2.0, 3.0]) == (2.0, pytest.approx((2 / 3) ** 0.5)) and summarise([1.0]).std is None


def test_the_papers_figures():
    printed = {
        ("clean", "cifar10", "large", "bcop"): Printed(Figure(72.16, 0.23), 72.41),
        ("robust", "cifar10", "small", "svcm"): Printed(Figure(47.59, 0.56), None),
        ("fgsm", "mnist", "fc3", None): Printed(Figure(83.64, 0.10), None),
        ("clean", "stl10", "large", "bcop"): None,
        ("close", "mnist", "small", "bcop"): None,
    }
    assert {asked: paper_figure(*asked) for asked in printed} == printed
    for cell in [*cells_of("table1"), *cells_of("ablation")]:
        assert all(paper_figure(quantity, cell.dataset, cell.model, cell.conv) for quantity in ("clean", "robust"))


def test_a_table_of_nothing_and_of_failures():
    for target in set(TARGETS) - {*DRAWINGS, "distances"}:
        table = make_table(target, {})
        assert "not measured yet" in table.notes[-1] and len(table.frame)
    cells = cells_of("table1")
    table = make_table("table1", {cells[0]: Failure(name=cells[0].name, reason="It diverged.", status="failed")})
    assert table.frame["clean %"].tolist() == ["failed"] + ["missing"] * 16
    assert any("It diverged." in note for note in table.notes)


def test_the_best_is_bold_and_nothing_else():
    table = make_table("table1", read_results(RESULTS, cells_of("table1")))
    bold = table.frame[table.frame["clean %"].str.startswith("**")]
    assert set(bold["method"]) == {"BCOP"} and len(bold) == 4
    alone = {LARGE: read_results(RESULTS, [LARGE])[LARGE]}
    assert not make_table("table1", alone).frame["clean %"].str.contains("*", regex=False).any()


def test_attacks_beside_the_paper_and_their_order():
    results = read_results(RESULTS, cells_of("attacks"))
    table = make_table("attacks", results)
    assert any("40 of 40" in note for note in table.notes)
    frame = table.frame.set_index(["network", "images"])
    assert frame.loc["BCOP-Large", "10,000"][["corrected", "boundary %"]].tolist() == ["72.41 / 64.39 / –", "–"]
    assert frame.loc["KW-Large (quoted)", "100"]["boundary %"] == "64.00"
    wrong = AttackCell(LARGE, "pgd")
    seeds = results[wrong].results
    object.__setattr__(seeds[3], "accuracy", seeds[3].certified - 0.1)
    assert any("39 of 40" in note for note in make_table("attacks", results).notes)


def test_exponents_of_power_laws_and_norms_of_block_convolutions():
    assert fit_exponent(pd.Series({"1": 5.0, "2": 40.0, "4": 320.0})) == pytest.approx(3.0)
    assert fit_exponent(pd.Series({"1": 1.0, "2": 2.0, "4": 16.0})) == pytest.approx(2.0)  # the middle of 1 and 3
    parts = convolve_blocks()
    moved, kept = parts["P v, moved on by one"], parts["(I−P) v, in place"]
    assert parts["[P  I−P] ∗ v"].norm() == pytest.approx(float(parts["v"].norm()))
    assert moved[0].tolist() == [0.4, 1.0, -0.6] and kept[1].tolist() == [0.7, 0.9, -0.8]


def test_formats():
    table = Table("A title", pd.DataFrame({"a": ["x"], "b": ["**1.5**"]}), ["|d| of it."], texts=1)
    assert table.to_format("markdown") == "| a | b |\n|---|---:|\n| x | **1.5** |\n\n\\|d\\| of it.\n"
    assert '"1.5"' in table.to_format("json") and "A title" in table.to_format("text")
    assert "<td>1.5</td>" in table.to_format("html") and "tabular" in table.to_format("latex")
    seconds = [format_seconds(s) for s in (2e-6, 0.0015, 2.0, 300.0, 7200.0)]
    assert seconds == ["2 µs", "1.5 ms", "2 s", "5 min", "2 h"]
