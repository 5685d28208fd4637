"""Cells: which there are, that they are measured once, can be stopped anywhere, and that failures are results too."""

import itertools
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from isoconv.data import Splits
from isoconv.errors import IsoconvError
from isoconv.train.reproduction import (
    TARGETS,
    AttackCell,
    ClassifierCell,
    CriticCell,
    MeasuredCell,
    Settings,
    cells_of,
    default_epochs,
    default_seeds,
    measure,
    plan_cells,
    read_result,
    read_results,
)
from isoconv.train.reproduction import attacks as attacks_module
from isoconv.train.reproduction import classifiers as classifiers_module
from isoconv.train.reproduction import critics as critics_module
from isoconv.train.reproduction import settings as settings_module
from isoconv.train.reproduction.classifiers import cell_folders
from isoconv.train.reproduction.data import DataSets
from isoconv.train.run_folder import load_run
from train.toys import stop_after, toy

SMALL = ClassifierCell("cifar10", "small", "bcop")
LARGE = ClassifierCell("mnist", "large", "bcop")


@pytest.fixture(autouse=True)
def toys_for_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every data set is a few images of 8×8 in four classes."""
    monkeypatch.setattr(DataSets, "_quick", lambda self, name: Splits(toy(192), toy(48, seed=1)))


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(tmp_path / "results", tmp_path / "runs", quick=True)


# Which cells there are --------------------------------------------------------------------------------------------


def test_the_cells_of_each_target():
    counts = {target: len(cells_of(target, "default")) for target in TARGETS}
    assert counts == {
        "table1": 16, "sota": 12, "ablation": 12, "attacks": 10, "wasserstein": 6, "time": 1, "complexity": 1,
        "parameters": 1, "figure-bconv": 1, "figure-downsampling": 1, "figure-sv": 4,
    }  # fmt: skip
    everything = cells_of("all")
    assert len(everything) == len(set(everything)) == len({(cell.kind, cell.name) for cell in everything})
    shared = ClassifierCell("cifar10", "large", "bcop")
    assert all(shared in cells_of(target) for target in ("table1", "sota", "ablation", "attacks", "figure-sv"))
    assert sum(counts.values()) > len(everything) - 1  # tables share cells


def test_the_papers_recipe_is_for_one_cell_unless_asked_for():
    cells = cells_of("table1")
    assert [cell for cell in cells if cell.recipe == "paper"] == [ClassifierCell("cifar10", "large", "bcop", "paper")]
    assert cells[-1].recipe == "paper"
    assert {cell.recipe for cell in cells_of("table1", "paper")} == {"paper"} and len(cells_of("table1", "paper")) == 16


def test_five_seeds_but_one_in_the_papers_recipe(tmp_path):
    paper = replace(SMALL, recipe="paper")
    for cell in (SMALL, AttackCell(SMALL, "pgd"), CriticCell("bcop", "relu"), MeasuredCell("time")):
        assert default_seeds(cell) == (0, 1, 2, 3, 4)
    for cell in (paper, AttackCell(paper, "pgd"), CriticCell("bcop", "relu", "paper")):
        assert default_seeds(cell) == (0,)
    settings = Settings(tmp_path / "results", tmp_path / "runs")
    assert len(cell_folders(SMALL, settings)) == 5 and len(cell_folders(paper, settings)) == 1
    assert len(cell_folders(paper, replace(settings, seeds=(3, 4)))) == 2
    assert [plan.seconds for plan in plan_cells([paper], replace(settings, seeds=(0,)))] == [
        plan.seconds for plan in plan_cells([paper], settings)
    ]


def test_epochs():
    assert default_epochs(SMALL) == 60 and default_epochs(replace(SMALL, model="large")) == 30
    assert default_epochs(LARGE) == 30 and default_epochs(replace(LARGE, recipe="paper")) == 200
    assert 100 * default_epochs(CriticCell("bcop", "maxmin", "paper")) == 25_600


def test_unknown_targets_and_recipes():
    with pytest.raises(IsoconvError, match=r"^Expected one of table1, sota, .*, figure-sv, all. Got 'table2'.$"):
        cells_of("table2")
    with pytest.raises(IsoconvError, match=r"^Expected recipe to be one of default, paper. Got 'best'.$"):
        cells_of("table1", "best")


# Training -------------------------------------------------------------------------------------------------------------


def test_a_cell_leaves_one_file_that_says_all(settings):
    outcome = measure([SMALL], settings)
    assert outcome.done == [SMALL] and outcome.complete and not outcome.failed
    record = json.loads((settings.results / "classifiers" / "cifar10-small-bcop-default.json").read_text())
    assert (record["dataset"], record["model"], record["conv"], record["recipe"]) == (
        "cifar10",
        "small",
        "bcop",
        "default",
    )
    assert record["status"] == "ok" and record["seeds"] == [0, 1] and record["epochs"] == 1 and record["quick"] is True
    assert [result["seed"] for result in record["results"]] == [0, 1] and record["images"] == 48
    for result in record["results"]:
        assert 0 <= result["robust"][str(36 / 255)] <= result["robust"]["0.1"] <= result["clean"] <= 100
        assert 0.9 < result["lipschitz_bound"] < 1.001
    assert record["train_seconds"] > 0 and record["hardware"].startswith("CPU") and record["peak_memory_mib"] > 0
    assert {"torch", "isoconv", "python", "commit", "finished"} <= record.keys()
    assert record["config"]["optimiser"] == "steepest" and "seed" not in record["config"]
    assert record == read_result(settings.results, SMALL)


def test_a_finished_cell_is_not_measured_again(settings, monkeypatch):
    measure([SMALL], settings)
    before = read_result(settings.results, SMALL)
    monkeypatch.setattr(classifiers_module, "train_classifiers", None)
    assert measure([SMALL], settings).done == []
    assert read_result(settings.results, SMALL) == before


def test_stopped_anywhere_and_gone_on_with_it_is_the_same(tmp_path):
    """Three steps a seed; stopped in the middle of the first cell, and in the middle of the second."""
    cells = [SMALL, replace(SMALL, conv="rko")]
    whole, parts = (Settings(tmp_path / name / "results", tmp_path / name / "runs", quick=True) for name in ("a", "b"))
    measure(cells, whole)
    lefts = []
    for steps in (3, 4):
        parts.interrupted = stop_after(steps)
        lefts.append(len(measure(cells, parts).left))
    parts.interrupted = lambda: False
    assert measure(cells, parts).complete and lefts == [2, 1]
    for cell in cells:
        a, b = (read_result(s.results, cell) for s in (whole, parts))
        assert a["results"] == b["results"]
        for first, second in zip(cell_folders(cell, whole), cell_folders(cell, parts), strict=True):
            for x, y in zip(load_run(first.path)[0].parameters(), load_run(second.path)[0].parameters(), strict=True):
                assert torch.equal(x, y)


def test_seeds_that_were_killed_while_they_were_saved_catch_up(tmp_path):
    """One seed's state is of an earlier step than the other's."""
    whole, parts = (Settings(tmp_path / name / "results", tmp_path / name / "runs", quick=True) for name in ("a", "b"))
    measure([SMALL], whole)
    states = []
    for steps in (2, 2):
        parts.interrupted = stop_after(steps)  # the first question is asked before the cell begins
        assert measure([SMALL], parts).left == [SMALL]
        states.append([folder.updates_done() for folder in cell_folders(SMALL, parts)])
        if len(states) == 1:
            shutil.copy(cell_folders(SMALL, parts)[1].state, tmp_path / "earlier")
    assert states == [[1, 1], [2, 2]]
    shutil.copy(tmp_path / "earlier", cell_folders(SMALL, parts)[1].state)
    parts.interrupted = lambda: False
    measure([SMALL], parts)
    assert read_result(parts.results, SMALL)["results"] == read_result(whole.results, SMALL)["results"]


def test_a_failure_is_a_result(settings, monkeypatch):
    def diverge(*arguments, **options):
        raise IsoconvError("Training diverged in epoch 1: the loss is nan.")

    with monkeypatch.context() as patch:
        patch.setattr(classifiers_module, "train_classifiers", diverge)
        outcome = measure([SMALL, MeasuredCell("figure-bconv", instant=True)], settings)
        assert outcome.failed == [SMALL] and len(outcome.done) == 1 and outcome.complete
        record = read_result(settings.results, SMALL)
        assert record["status"] == "failed" and record["reason"] == "Training diverged in epoch 1: the loss is nan."
        assert record["seeds"] == [0, 1] and record["epochs"] == 1
    assert measure([SMALL], settings).done == []  # it is settled
    settings.retry = True
    assert measure([SMALL], settings).done == [SMALL]
    assert read_result(settings.results, SMALL)["status"] == "ok"


def test_running_out_of_memory_is_a_failure_and_a_mistake_is_none(settings, monkeypatch):
    def no_memory(*arguments, **options):
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 2 GiB")

    monkeypatch.setattr(classifiers_module, "train_classifiers", no_memory)
    measure([SMALL], settings)
    assert read_result(settings.results, SMALL)["reason"] == "CUDA out of memory. Tried to allocate 2 GiB"
    monkeypatch.setattr(classifiers_module, "train_classifiers", None)
    with pytest.raises(TypeError):
        measure([LARGE], settings)
    assert read_result(settings.results, LARGE) is None


def test_other_settings_are_not_mixed_in(settings):
    measure([SMALL], settings)
    settings.seeds = (0, 1, 2)
    with pytest.raises(
        IsoconvError, match=r"^Expected results with seeds \[0, 1, 2\] in .*bcop-default.json. Got \[0, 1\]"
    ):
        measure([SMALL], settings)
    settings.seeds, settings.epochs = None, 7
    with pytest.raises(IsoconvError, match=r"^Expected results with epochs 7 in .* Got 1: remove it, or name another"):
        measure([SMALL], settings)
    settings.epochs, settings.quick = None, False
    with pytest.raises(IsoconvError, match=r"^Expected results with quick False in .* Got True"):
        measure([SMALL], settings)


def test_a_run_folder_with_other_settings_is_left_alone(settings):
    measure([SMALL], settings)
    shutil.rmtree(settings.results)
    settings.epochs = 2
    with pytest.raises(
        IsoconvError, match=r"^Expected a run with the same settings to go on with in .*seed-0. Got another"
    ):
        measure([SMALL], settings)
    assert read_result(settings.results, SMALL) is None


def test_time_is_kept_in_reserve(monkeypatch, tmp_path):
    now = itertools.count()
    monkeypatch.setattr(settings_module.time, "monotonic", lambda: 100.0)
    limited = Settings(tmp_path, tmp_path, time_limit=60, began=100.0)
    assert limited.seconds_left() == 60 and not limited.should_stop()
    monkeypatch.setattr(settings_module.time, "monotonic", lambda: 157.5)
    assert limited.should_stop() and limited.seconds_left() == 2.5
    assert not Settings(tmp_path, tmp_path, began=0.0).should_stop()
    assert Settings(tmp_path, tmp_path, interrupted=lambda: next(now) == 0).should_stop()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, "Expected epochs of at least 1. Got 0."),
        ({"time_limit": 0.0}, "Expected a time limit of more than 0 seconds. Got 0."),
        ({"seeds": ()}, "Expected at least one seed. Got none."),
    ],
)
def test_impossible_settings(tmp_path, options, message):
    with pytest.raises(IsoconvError, match=f"^{message}$"):
        Settings(tmp_path, tmp_path, **options)


def test_large_records_its_second_layer(settings):
    measure([LARGE], settings)
    layer = read_result(settings.results, LARGE)["second_layer"]
    assert layer["count"] == 4 * 4 * 32 and len(layer["edges"]) == 51
    for when in ("before", "after"):
        assert sum(layer[when]["counts"]) == layer["count"]
        assert layer[when]["quantiles"] == pytest.approx([1.0] * 7, abs=1e-5)  # orthogonal all along


# Attacks --------------------------------------------------------------------------------------------------------------


def test_attacks_on_the_networks_of_a_cell(settings, monkeypatch):
    cells = [AttackCell(SMALL, attack) for attack in ("pgd", "fgsm")]
    measure(cells, settings)  # trains what it needs
    for cell in cells:
        record = read_result(settings.results, cell)
        assert record["attack"] == cell.attack and record["epsilon"] == 36 / 255 and record["images"] == 48
        assert record["violations"] == 0 and record["seeds"] == [0, 1] and record["epochs"] == 1
        for row in record["results"]:
            assert row["certified"] <= row["accuracy"] <= row["clean"]
    assert read_result(settings.results, SMALL) is None  # nobody has asked for that
    shutil.rmtree(settings.results)
    monkeypatch.setattr(attacks_module, "_attack", None)  # what was attacked is not attacked again
    assert measure(cells, settings).done == cells


def test_a_stopped_attack_keeps_the_networks_that_are_done(settings, monkeypatch):
    measure([SMALL], settings)
    attack, attacked = attacks_module._attack, []

    def counted(*arguments):
        attacked.append(1)
        return attack(*arguments)

    monkeypatch.setattr(attacks_module, "_attack", counted)
    settings.interrupted = stop_after(3)
    assert measure([AttackCell(SMALL, "fgsm")], settings).left and len(attacked) == 1
    settings.interrupted = lambda: False
    assert measure([AttackCell(SMALL, "fgsm")], settings).complete and len(attacked) == 2


def test_an_attack_on_a_certified_image_would_be_noticed(settings, monkeypatch):
    """A result that claims success at distance zero from every image that is right."""
    attack = attacks_module._attack

    def lying(*arguments):
        result = attack(*arguments)
        return replace(result, success=result.clean.clone(), norms=torch.zeros_like(result.norms))

    monkeypatch.setattr(attacks_module, "_attack", lying)
    settings.epochs = 8  # until it knows something
    measure([AttackCell(SMALL, "fgsm")], settings)
    record = read_result(settings.results, AttackCell(SMALL, "fgsm"))
    assert record["status"] == "failed"
    assert record["reason"].startswith("Expected no attack to succeed where the network is certified. Got ")


# Critics --------------------------------------------------------------------------------------------------------------


def test_critics_are_all_shown_one_generator(settings, monkeypatch):
    cells = [CriticCell(conv, "maxmin", model="small") for conv in ("bcop", "ossn")]
    settings.interrupted = stop_after(4)
    assert measure(cells, settings).left == cells  # in the middle of the generator's training
    settings.interrupted = lambda: False
    assert measure(cells, settings).done == cells
    records = list(read_results(settings.results, cells).values())
    assert len({record["generator"] for record in records}) == 1
    for record in records:
        assert record["samples"] == [192, 64] and record["updates"] == 1 and record["seeds"] == [0, 1]
        for result in record["results"]:
            assert result["lower"] <= max(0, result["estimate"]) and 0 < result["lipschitz_bound"] < 2
    shutil.rmtree(settings.results)
    monkeypatch.setattr(critics_module, "_QUICK_GAN", {"epochs": 2, "batch_size": 16})
    with pytest.raises(IsoconvError, match=r"^Expected the paper's generator in .*stl10-generator. Got another"):
        measure(cells, settings)


# Files ----------------------------------------------------------------------------------------------------------------


def test_result_files_that_cannot_be_right(settings):
    path = settings.results / "classifiers" / "cifar10-small-bcop-default.json"
    path.parent.mkdir(parents=True)
    right = {**SMALL.identity(), "status": "ok"}
    for text, message in (
        ("{", "Expected JSON in .*bcop-default.json. Got: "),
        (
            json.dumps(right | {"conv": "rko"}),
            "Expected the result of cifar10-small-bcop-default in .*. Got conv 'rko'.",
        ),
        (json.dumps(right | {"status": "perhaps"}), "Expected status ok or failed in .*. Got 'perhaps'."),
    ):
        path.write_text(text)
        with pytest.raises(IsoconvError, match=f"^{message}"):
            read_result(settings.results, SMALL)


def test_the_plan(settings):
    measure([SMALL], settings)
    settings.quick = False
    cells = [SMALL, LARGE, replace(LARGE, recipe="paper"), AttackCell(LARGE, "pgd"), CriticCell("bcop", "relu")]
    planned = plan_cells(cells, settings)
    assert [plan.state for plan in planned] == ["done", *["to do"] * 4]
    done, default, paper, *others = (plan.seconds for plan in planned)
    assert done == 0 < default < paper and min(others) > 0
    settings.device = "cuda"
    assert sum(plan.seconds for plan in plan_cells(cells_of("all"), settings)) < 4 * 3600
