"""Cells are measured once, can be stopped anywhere, and failures are results too."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks import speed
from isoconv.data import Splits
from isoconv.errors import IsoconvError
from isoconv.train.config import TrainConfig, make_model
from isoconv.train.run_folder import load_run
from isoconv.train.runs import TrainedRun
from reproduction import measure as module
from reproduction.__main__ import main
from reproduction.cells import AttackCell, ClassifierCell, CriticCell, FigureCell, cells_of, read_result, result_path
from reproduction.figures import DRAWINGS
from reproduction.measure import Session, measure
from reproduction.tables import make_table
from train.toys import stop_after, toy

SMALL = ClassifierCell("cifar10", "small", "bcop")
LARGE = ClassifierCell("mnist", "large", "bcop")
CONFIG = module.critic_config


@pytest.fixture(autouse=True)
def toys_for_data(monkeypatch):
    """Every data set is a few images of 8×8 in four classes."""
    monkeypatch.setattr(Session, "load", lambda self, name: Splits(toy(192), toy(48, seed=1)))


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session(tmp_path / "results", tmp_path / "runs", quick=True)


def test_the_cells_of_each_target():
    counts = {"results": 4, "table1": 16, "sota": 12, "ablation": 12, "attacks": 10, "wasserstein": 6, "figure-sv": 4}
    assert {target: len(cells_of(target, "default")) for target in counts} == counts
    everything = cells_of("all")
    assert len(everything) == len(set(everything)) == len({(cell.kind, cell.name) for cell in everything})
    shared = ClassifierCell("cifar10", "large", "bcop")
    assert all(shared in cells_of(target) for target in ("results", "table1", "sota", "ablation", "attacks"))
    assert [cell for cell in cells_of("table1") if cell.recipe == "paper"] == [replace(shared, recipe="paper")]
    for target, recipe, named in (("table2", None, "table2"), ("table1", "best", "best")):
        with pytest.raises(IsoconvError, match=named):
            cells_of(target, recipe)


def test_the_network_that_certifies_most_is_trained_tried_and_attacked(session, monkeypatch):
    """As the cells have it, but small: each seed alone, changes of several numbers, the run that was trained attacked."""
    for name, model in (("cifar10-shift-l", "shift-s"), ("mnist-large-trials", "small")):
        tried = {"runs": {"augment=0.5,0.25": (1,)}} if name.endswith("trials") else {}
        monkeypatch.setitem(module.RECORD, name, module.RECORD[name] | {"model": model} | tried)
    cells = [
        FigureCell("record", name) for name in ("cifar10-shift-l", "mnist-large-trials", "cifar10-shift-l-attacks")
    ]
    assert measure(cells, session) == (cells, [], [])
    trained, tried, attacked = (read_result(session.results, cell) for cell in cells)
    names = {f"certified at {number / 255}" for number in (36, 72, 108)}
    assert (
        names <= trained.rows["alone, seed 0"].keys()
        and tried.settings["train_images"] < trained.settings["train_images"]
    )
    configs = [TrainConfig.read(path) for path in sorted(session.runs.glob("*/*/seed-?/config.json"))]
    assert [config.augment for config in configs] == [(0.5, 0.5), (0.5, 0.25)]
    assert [(config.precision, config.augment_epochs) for config in configs] == [("bf16", 240), ("float32", 0)]
    assert [attacked.rows[name]["violations"] for name in ("pgd", "apgd", "rounding")] == [0, 0, 0]
    for target in ("record", "record-trials", "record-attacks"):
        assert len(make_table(target, dict(zip(cells, (trained, tried, attacked), strict=True))).frame)


def test_seeds_epochs_and_time_that_is_kept_in_reserve(tmp_path, monkeypatch):
    session = Session(tmp_path, tmp_path)
    assert session.choose_seeds() == (0, 1, 2, 3, 4) and session.choose_seeds("paper") == (0,)
    assert SMALL.epochs == 60 and LARGE.epochs == 30 and replace(LARGE, recipe="paper").epochs == 200
    monkeypatch.setattr(module.time, "monotonic", lambda: 156.0)
    limits = {60: False, 58: True, float("inf"): False}
    assert {
        limit: Session(tmp_path, tmp_path, time_limit=limit, began=100.0).should_stop() for limit in limits
    } == limits


def test_a_cell_leaves_one_file_that_says_all(session, monkeypatch):
    assert measure([SMALL, LARGE], session) == ([SMALL, LARGE], [], [])
    record = read_result(session.results, SMALL)
    assert record.quick and record.seeds == (0, 1) and record.epochs == 1 and record.images == 48
    for result in record.results:
        assert 0 <= result.robust[str(36 / 255)] <= result.robust["0.1"] <= result.clean <= 100
        assert 0.9 < result.lipschitz_bound < 1.001
    assert record.train_seconds > 0 and record.hardware.startswith("CPU") and record.torch and record.finished
    assert record.config["optimiser"] == "steepest" and "seed" not in record.config and record.second_layer is None
    layer = read_result(session.results, LARGE).second_layer
    assert layer.count == 4 * 4 * 32 == sum(layer.before.counts) == sum(layer.after.counts)
    assert layer.after.quantiles == pytest.approx([1.0] * 7, abs=1e-5)  # orthogonal all along
    monkeypatch.setattr(module, "train_classifiers", None)
    assert measure([SMALL], session) == ([], [], [])  # it is not measured again


def test_stopped_anywhere_and_continued_it_is_the_same(tmp_path):
    cells = [SMALL, replace(SMALL, conv="rko")]
    whole, parts = (Session(tmp_path / name, tmp_path / f"{name} runs", quick=True) for name in "ab")
    measure(cells, whole)
    left = []
    for steps in (3, 4):
        parts.interrupted = stop_after(steps)
        left.append(len(measure(cells, parts)[2]))
    parts.interrupted = lambda: False
    assert measure(cells, parts)[2] == [] and left == [2, 1]
    for cell in cells:
        assert read_result(whole.results, cell).results == read_result(parts.results, cell).results
        models = [load_run(session.runs / cell.name / "seed-1")[0] for session in (whole, parts)]
        assert all(torch.equal(x, y) for x, y in zip(*(m.parameters() for m in models), strict=True))


def test_a_failure_is_a_result_and_a_mistake_is_none(session, monkeypatch):
    train = module.train_classifiers

    def fail(*arguments, **options):
        raise errors.pop()

    errors = [TypeError("a mistake"), torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 2 GiB")]
    monkeypatch.setattr(module, "train_classifiers", fail)
    assert measure([SMALL], session)[1] == [SMALL] and measure([SMALL], session) == ([], [], [])
    record = read_result(session.results, SMALL)
    assert record.status == "failed" and record.reason == "CUDA out of memory. Tried to allocate 2 GiB"
    with pytest.raises(TypeError):
        measure([LARGE], session)
    assert read_result(session.results, LARGE) is None
    monkeypatch.setattr(module, "train_classifiers", train)
    session.retry = True
    assert measure([SMALL], session)[0] == [SMALL] and read_result(session.results, SMALL).status == "ok"


def test_other_settings_are_not_mixed_in(session):
    measure([SMALL], session)
    for change in ({"seeds": (0, 1, 2)}, {"epochs": 7}, {"quick": False}):
        with pytest.raises(IsoconvError, match=next(iter(change))):
            measure([SMALL], replace(session, **change))
    shutil.rmtree(session.results)
    with pytest.raises(IsoconvError, match="seed-0"):
        measure([SMALL], replace(session, epochs=2))
    assert read_result(session.results, SMALL) is None


def test_what_was_trained_with_other_settings_is_measured_again_if_asked(session):
    cells = [replace(SMALL, conv="svcm"), SMALL, AttackCell(SMALL, "fgsm")]
    measure(cells, session)
    path = result_path(session.results, cells[0])
    fields = json.loads(path.read_text())
    fields["config"] |= {"project_every": 100, "project_iterations": 50}
    path.write_text(json.dumps(fields))
    assert measure(cells, session) == ([], [], [])
    renewing = replace(session, renew=True)
    assert measure(cells, renewing) == ([cells[0]], [], []) and measure(cells, renewing) == ([], [], [])
    assert read_result(session.results, cells[0]).config["project_every"] == 1
    longer = replace(renewing, epochs=2, runs=session.runs / "longer")
    assert measure(cells, longer)[0] == cells and measure(cells, longer) == ([], [], [])
    assert [read_result(session.results, cell).epochs for cell in cells] == [2, 2, 2]


def test_attacks_train_what_they_need_and_are_kept(session, monkeypatch):
    """And an attack on a certified image would be noticed."""
    cells = [AttackCell(SMALL, attack) for attack in ("pgd", "fgsm")]
    session.interrupted = stop_after(8)
    assert measure(cells, session)[2]
    session.interrupted = lambda: False
    measure(cells, session)
    for cell in cells:
        record = read_result(session.results, cell)
        assert record.epsilon == 36 / 255 and record.images == 48 and record.seeds == (0, 1) and record.violations == 0
        assert all(row.certified <= row.accuracy <= row.clean for row in record.results)
    assert read_result(session.results, SMALL) is None  # nobody has asked for that
    shutil.rmtree(session.results)
    attack, apgd = TrainedRun.attack, AttackCell(SMALL, "apgd")
    monkeypatch.setattr(TrainedRun, "attack", None)  # what was attacked is not attacked again
    assert measure(cells, session)[0] == cells
    monkeypatch.setattr(TrainedRun, "attack", lambda *a, **o: replace(attack(*a, **o), violations=1))
    assert measure([apgd], session)[1] and "certified" in read_result(session.results, apgd).reason


def test_critics_are_all_shown_one_generator(session, monkeypatch):
    monkeypatch.setattr(Session, "load", lambda self, name: Splits(toy(64, channels=3).take(64), None))
    monkeypatch.setattr(module, "critic_config", lambda *a, **o: CONFIG(*a, "small", **o))
    cells = [CriticCell("stl10", conv, "maxmin") for conv in ("bcop", "ossn")]
    session.interrupted = stop_after(3)
    assert measure(cells, session)[2] == cells  # in the middle of the generator's training
    session.interrupted = lambda: False
    assert measure(cells, session)[0] == cells
    records = [read_result(session.results, cell) for cell in cells]
    assert len({record.generator for record in records}) == 1
    for record in records:
        assert record.samples == (64, 64) and record.updates == 1 and record.seeds == (0, 1)
        assert all(result.lower <= max(0, result.estimate) for result in record.results)


def test_changes_to_a_recipe_and_trials_of_epochs(session, monkeypatch):
    monkeypatch.setattr(Session, "load", lambda self, name: Splits(toy(96), toy(16, seed=1)))
    monkeypatch.setattr(module, "_EPOCHS", ["epochs=30"])
    cells = [FigureCell("variants", "cifar10-small-bcop-manifold-15-epochs"), FigureCell("recipes", "mnist-large-svcm")]
    epochs = cells_of("epochs")
    assert [cell.name for cell in epochs] == ["cifar10-fc3-epochs", "cifar10-large-rkl2ne-epochs"]
    assert measure([*cells, epochs[0]], session)[0] == [*cells, epochs[0]]
    variant, trials, tried = (read_result(session.results, cell) for cell in [*cells, epochs[0]])
    assert list(variant.rows) == [f"side by side, seed {k}" for k in range(5)] and variant.settings["lr"] == 0.003
    assert len(trials.rows) == 8 and all(0 <= row["clean"] <= 100 for row in trials.rows.values())
    assert list(tried.rows) == ["epochs=30"] and tried.settings["model"] == "fc3"
    assert tried.rows["epochs=30"]["images"] == 32  # of the training set
    (row,) = make_table("epochs", {epochs[0]: tried}).frame.to_dict("records")
    assert (row["network"], row["epochs"]) == ("CIFAR-10, FC-3", "30")


def test_times_are_positive(session, monkeypatch):
    monkeypatch.setattr(speed, "make_model", lambda config: make_model(replace(config, model="small")))
    monkeypatch.setattr(speed, "Large", lambda shape, conv: [speed.SVCMConv2d(3, 4, 3, input_size=8)])
    cells = [FigureCell("speed", name) for name in ("replicas", "svcm-projection")]
    assert measure(cells, session)[0] == cells
    rows = [row for cell in cells for row in read_result(session.results, cell).rows.values()]
    assert rows and all(value >= 0 for row in rows for value in row.values())


def test_a_quick_look_from_the_command_line(tmp_path, capsys):
    words = ["table1", "--quick", "--only", "mnist-small-bcop", "--device", "cpu"]
    assert main([*words, "--results", str(tmp_path), "--runs", str(tmp_path / "runs"), "--format", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["method"] == "BCOP" and row["epochs"] == "1"
    assert result_path(tmp_path, ClassifierCell("mnist", "small", "bcop")).exists()
    whole = ["table1", "--results", str(tmp_path), "--run", "--only", "mnist-small-bcop"]
    assert main(whole) == 2  # quick ones are there
    assert "quick" in capsys.readouterr().err
    assert main(["table1", "--quick", "--time-limit", "1e-9", "--only", "mnist-small-bcop"]) == 3
    assert main(["table9"]) == 2 and "table9" in capsys.readouterr().err


def test_figures_are_the_same_for_the_same_numbers(tmp_path):
    for target in DRAWINGS:
        for name in ("a.svg", "b.svg"):
            assert main([target, "--out", str(tmp_path / name)]) == 0
        first, second = ((tmp_path / name).read_bytes() for name in ("a.svg", "b.svg"))
        assert first == second and b"<svg" in first
