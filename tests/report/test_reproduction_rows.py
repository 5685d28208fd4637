"""From result files to rows: means, the paper's figures beside ours, what is made of the difference, what is missing."""

import pytest

from isoconv.report.reproduction import rows_of
from isoconv.report.reproduction.compare import compared, mean_and_std
from isoconv.report.reproduction.measured_rows import fitted_exponent
from isoconv.report.reproduction.paper import Printed, paper_accuracy
from isoconv.report.reproduction.table import seed_note
from isoconv.train.reproduction import AttackCell, ClassifierCell, CriticCell, MeasuredCell, cells_of
from report.reproduction_records import SEEDS, attack, builds, classifier, critic, everything, steps

LARGE = ClassifierCell("cifar10", "large", "bcop")


def rows(target, results):
    return rows_of(target, cells_of(target), results)


def row_of(target, results, **wanted):
    (found,) = (row for row in rows(target, results) if all(row[key] == value for key, value in wanted.items()))
    return found


# The rule -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ours", "paper", "difference", "verdict"),
    [
        ((10.5, 0.3), (10.0, 0.4), 0.5, "within"),  # s = 0.5
        ((11.0, 0.3), (10.0, 0.4), 1.0, "within"),  # exactly two of them
        ((11.01, 0.3), (10.0, 0.4), 1.01, "better"),
        ((8.99, 0.3), (10.0, 0.4), -1.01, "worse"),
        ((10.0, 0.0), (10.0, 0.0), 0.0, "within"),
        ((10.01, 0.0), (10.0, 0.0), 0.01, "better"),
        ((10.5, 0.3), (10.0, None), 0.5, "within"),
        ((10.7, 0.3), (10.0, None), 0.7, "better"),
        ((11.1, None), (10.0, 0.4), 1.1, "within"),  # one seed: s = 0.4·√2
        ((8.8, None), (10.0, 0.4), -1.2, "worse"),
    ],
)
def test_two_standard_deviations_of_both(ours, paper, difference, verdict):
    found = compared({"mean": ours[0], "std": ours[1]}, Printed(paper))
    assert found == (pytest.approx(difference), verdict)


def test_the_bar_is_the_higher_of_printed_and_corrected():
    assert Printed((72.16, 0.23), 72.41).bar == (72.41, 0.23)
    assert Printed((69.12, 5.61), 65.20).bar == (69.12, 5.61)
    assert compared({"mean": 72.3, "std": 0.0}, Printed((72.0, 0.1), 72.6))[0] == pytest.approx(-0.3)
    assert compared(None, Printed((1.0, 0.1))) == compared({"mean": 1.0, "std": 0.0}, None) == (None, None)


def test_deviations_are_of_the_population():
    assert mean_and_std([1.0, 2.0, 3.0]) == {"mean": 2.0, "std": round((2 / 3) ** 0.5, 4)}


@pytest.mark.parametrize(
    ("asked", "printed", "corrected"),
    [
        (("clean", "cifar10", "large", "bcop"), (72.16, 0.23), 72.41),
        (("robust", "cifar10", "large", "bcop"), (58.26, 0.17), 58.72),
        (("robust close", "cifar10", "large", "bcop"), (62.53, 0.21), 62.97),
        (("clean", "mnist", "large", "bcop"), (98.69, 0.01), 98.77),
        (("robust", "mnist", "large", "bcop"), (56.37, 0.33), 56.66),
        (("robust close", "mnist", "large", "bcop"), (97.04, 0.03), 97.11),
        (("attacked", "cifar10", "large", "bcop", "pgd"), (64.12, 0.13), 64.39),
        (("clean", "mnist", "large", "bcop-fixed"), (69.12, 5.61), 65.20),
        (("robust", "cifar10", "small", "svcm"), (47.59, 0.56), None),
        (("clean of 100", "cifar10", "small", "bcop"), (74.20, 2.23), None),
    ],
)
def test_the_papers_figures(asked, printed, corrected):
    assert paper_accuracy(*asked) == Printed(printed, corrected)


def test_every_line_of_the_papers_tables_has_its_figures():
    for target in ("table1", "ablation"):
        for row in rows(target, {}):
            assert row["paper"]["printed"].keys() == {"clean", "robust"}
    assert paper_accuracy("clean", "stl10", "large", "bcop") is None


# Accuracies -----------------------------------------------------------------------------------------------------------


def test_a_row_of_table_1():
    row = row_of(
        "table1",
        {LARGE: classifier(LARGE, 73.0, 59.0)},
        dataset="cifar10",
        model="large",
        conv="bcop",
        recipe="default",
    )
    assert row["epsilon"] == 36 / 255 and row["seeds"] == SEEDS and row["epochs"] == 30 and row["status"] == "ok"
    assert row["clean"] == {"mean": 73.0, "std": 0.1414} and row["robust"] == {"mean": 59.0, "std": 0.1414}
    assert row["paper"] == {
        "printed": {"clean": {"mean": 72.16, "std": 0.23}, "robust": {"mean": 58.26, "std": 0.17}},
        "corrected": {"clean": {"mean": 72.41, "std": None}, "robust": {"mean": 58.72, "std": None}},
    }
    assert row["difference"] == {"clean": pytest.approx(0.59), "robust": pytest.approx(0.28)}
    assert row["verdict"] == {"clean": "better", "robust": "within"}
    assert row["lipschitz_bound"] == 1 + 4e-6 and row["hardware"] == "NVIDIA H200" and row["quoted"] is False


def test_how_many_seeds_is_said():
    paper = ClassifierCell("cifar10", "large", "bcop", "paper")
    alone = classifier(paper) | {"seeds": [0], "results": classifier(paper)["results"][:1]}
    five = rows("table1", {LARGE: classifier(LARGE)})
    assert seed_note(five) == "Ours: mean ± population standard deviation of 5 seeds, last epoch."
    both = rows("table1", {LARGE: classifier(LARGE), paper: alone})
    assert "of 5 seeds (1 in the paper's recipe), last epoch." in seed_note(both)
    assert row_of("table1", {paper: alone}, recipe="paper")["clean"] == {"mean": 79.8, "std": None}


def test_missing_and_failed_cells_are_marked():
    failed = ClassifierCell("mnist", "small", "ossn")
    found = rows("table1", {failed: {**failed.identity(), "status": "failed", "reason": "It diverged."}})
    assert len(found) == 17 and [row["status"] for row in found].count("missing") == 16
    first = found[0]
    assert (first["conv"], first["status"], first["reason"]) == ("ossn", "failed", "It diverged.")
    assert first["clean"] is None and first["robust"] is None and first["seeds"] == []
    assert first["verdict"] == {"clean": None, "robust": None}


def test_the_default_recipe_comes_first():
    cells = [*cells_of("table1", "paper"), *cells_of("table1", "default")]
    recipes = [row["recipe"] for row in rows_of("table1", cells, {})]
    assert recipes == ["default"] * 16 + ["paper"] * 16


def test_names_are_in_lower_case():
    for target in ("table1", "sota", "attacks", "ablation"):
        for row in rows(target, everything()):
            for key in ("dataset", "model", "conv", "recipe"):
                assert row[key] is None or row[key] == row[key].lower()


def test_sota_has_both_radii_and_others_are_quoted():
    found = rows("sota", everything())
    ours = [(row["dataset"], row["epsilon"], row["model"], row["robust"]["mean"]) for row in found if not row["quoted"]]
    assert ours == [
        ("mnist", 1.58, "large", 60.0), ("mnist", 1.58, "fc3", 60.0),
        ("mnist", 0.3, "large", 65.0), ("mnist", 0.3, "fc3", 65.0),
        ("cifar10", 36 / 255, "large", 60.0), ("cifar10", 36 / 255, "fc3", 60.0),
        ("cifar10", 0.1, "large", 65.0), ("cifar10", 0.1, "fc3", 65.0),
    ]  # fmt: skip
    quoted = {(row["dataset"], row["epsilon"], row["model"]): row for row in found if row["quoted"]}
    assert len(quoted) == 9 and all(row["source"] and row["status"] == "quoted" for row in quoted.values())
    assert quoted["mnist", 0.3, "mmr-universal"]["robust"] == {"mean": 89.60, "std": None}
    assert quoted["cifar10", 36 / 255, "qw-3"]["pgd"] == {"mean": 72.07, "std": None}
    attacked = row_of("sota", everything(), dataset="cifar10", model="large", epsilon=36 / 255)
    assert attacked["pgd"]["mean"] == 64.0 and attacked["difference"]["pgd"] == pytest.approx(64.0 - 64.39)


def test_the_order_is_checked_in_every_network():
    results = everything()
    assert all(row["ordered"] and row["violations"] == 0 for row in rows("attacks", results) if not row["quoted"])
    cell = AttackCell(LARGE, "pgd")
    wrong = attack(cell, 64.0)
    wrong["results"][3]["accuracy"] = 59.9  # below what is certified
    row = row_of("attacks", results | {cell: wrong}, model="large", images=10_000, recipe="default")
    assert row["ordered"] is False
    row = row_of("attacks", results | {cell: attack(cell, 80.1)}, model="large", images=10_000, recipe="default")
    assert row["ordered"] is False  # above clean


def test_a_network_of_the_papers_recipe_is_not_said_to_lack_attacks_that_nobody_asks_for():
    paper = ClassifierCell("cifar10", "large", "bcop", "paper")
    shown = rows_of("attacks", [*cells_of("attacks"), paper], everything() | {paper: classifier(paper)})
    assert all(row["recipe"] != "paper" for row in shown)
    (row,) = (
        row
        for row in rows_of("sota", [*cells_of("sota"), paper], everything() | {paper: classifier(paper)})
        if row["recipe"] == "paper" and row["epsilon"] == 36 / 255
    )
    assert row["status"] == "ok" and "pgd" not in row
    fgsm = AttackCell(paper, "fgsm")
    with_one = everything() | {paper: classifier(paper), fgsm: attack(fgsm, 65.0)}
    (row,) = (
        row for row in rows_of("attacks", [*cells_of("attacks"), paper, fgsm], with_one) if row["recipe"] == "paper"
    )
    assert row["fgsm"]["mean"] == 65.0 and row["pgd"] is None


def test_decision_attacks_are_on_the_first_100_images():
    cell = AttackCell(LARGE, "boundary")
    results = {LARGE: classifier(LARGE), cell: attack(cell, 71.0, clean=78.0, certified=66.0)}
    row = row_of("attacks", results, model="large", images=100, recipe="default")
    assert row["clean"]["mean"] == 78.0 and row["robust"]["mean"] == 66.0 and row["boundary"]["mean"] == 71.0
    assert row["pointwise"] is None and row["verdict"]["boundary"] == "within" and row["verdict"]["pointwise"] is None
    assert row["paper"]["printed"]["clean"] == {"mean": 78.40, "std": 1.96} and row["ordered"]
    failed = {**cell.identity(), "status": "failed", "reason": "No foolbox."}
    assert row_of("attacks", results | {cell: failed}, model="large", images=100)["boundary_failed"] == "No foolbox."


# Everything else ------------------------------------------------------------------------------------------------------


def test_shares_of_the_best_critic():
    best, other = CriticCell("bcop", "maxmin"), CriticCell("ossn", "relu")
    found = {
        (row["conv"], row["activation"]): row
        for row in rows("wasserstein", {best: critic(best, 10), other: critic(other, 7)})
    }
    assert found["bcop", "maxmin"]["share"] == 1 and found["ossn", "relu"]["share"] == 0.7
    assert found["ossn", "relu"]["paper_share"] == round(7.06 / 9.91, 4)
    assert found["ossn", "relu"]["distance"] == {"mean": 7, "std": 0} and found["rko", "relu"]["share"] is None
    assert found["ossn", "relu"]["lower"]["mean"] == 3.5


def test_steps_beside_those_of_a_p100():
    found = {(row["conv"], row["recipe"]): row for row in rows("time", {MeasuredCell("time"): steps()})}
    assert found["bcop", "default"]["ratio"] == found["bcop", "paper"]["ratio"] == 2.0
    assert found["bcop", "default"]["paper"] == {
        "seconds": 0.138,
        "ratio": round(0.138 / 0.041, 4),
        "hardware": "NVIDIA P100",
    }
    assert found["svcm", "default"]["paper"] is None
    assert [row["status"] for row in rows("time", {})] == ["missing"] * 5


def test_exponents_of_power_laws():
    assert fitted_exponent([[1, 5.0], [2, 40.0], [4, 320.0]]) == 3.0
    assert fitted_exponent([[1, 1.0], [2, 2.0], [4, 16.0]]) == pytest.approx(2.0)  # the middle of 1 and 3
    row = rows("complexity", {MeasuredCell("complexity"): builds()})[0]
    assert row["exponents"] == {"channels": {"fitted": 3.0, "last": 3.0}, "size": {"fitted": 2.0, "last": 2.0}}
    assert row["paper"] == {"channels": 3, "size": 0}
    assert {row["status"] for row in rows("complexity", {})} == {"missing"}


def test_counts_are_compared_exactly():
    cell = MeasuredCell("parameters", instant=True)
    each = [
        {"dataset": "mnist", "model": "small", "conv": "bcop", "raw": 5, "effective": effective}
        for effective in (166_406, 166_407)
    ]
    found = rows("parameters", {cell: {"name": "parameters", "status": "ok", "results": each}})
    assert [row["equal"] for row in found] == [True, False]


def test_singular_values_are_those_of_the_classifiers():
    found = rows("figure-sv", everything())
    assert [row["conv"] for row in found] == ["ossn", "rko", "svcm", "bcop"]
    assert all(row["after"]["quantiles"][3] == 0.5 and row["seeds"] == [0] for row in found)
