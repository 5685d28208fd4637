"""Runs and their folders: what is in them, where they may begin, how they go on bit for bit, how the model comes out again.

And `train`, from pictures to folders: the best epoch is kept, runs are given more epochs, broken pictures are left out.
"""

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from isoconv.certify import robust_accuracy
from isoconv.data import as_float, hold_out, read_folder
from isoconv.files import read_tensors, write_tensors
from isoconv.pretrained import pretrained_folder
from isoconv.train import certify_run, classifier, train, train_classifiers
from isoconv.train.classifier import TrainResult, search_learning_rate
from isoconv.train.config import TrainConfig, default_epsilons, make_model
from isoconv.train.distributed import Processes
from isoconv.train.run_folder import RunFolder, load_run, seed_folders
from train.toys import (
    Watcher,
    losses,
    refused,
    same_run,
    same_weights,
    stopped,
    toy,
    toy_config,
    train_toy,
    write_pictures,
)

NAMES = {"config.json", "metrics.jsonl", "model.safetensors", "state.safetensors", "result.json"}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_run_leaves_its_configuration_metrics_model_state_and_result(tmp_path, monkeypatch):
    config, run, made = toy_config(optimiser="adam", epochs=5), tmp_path / "run", []
    monkeypatch.setattr("isoconv.train.classifier.make_model", lambda c, *build: made.append(c) or make_model(c))
    (result,) = train_toy(run, config)
    assert made == [config]  # each network is built once
    (untested,) = train_toy(tmp_path / "untested", replace(config, epochs=1), test=None)
    assert untested.clean is None and "clean" not in untested.to_fields()
    assert TrainResult.read(tmp_path / "untested" / "result.json").clean is None
    files = contents(run)
    assert files.keys() == NAMES and TrainConfig.read(run / "config.json") == config
    assert replace(TrainResult.read(run / "result.json"), finished="") == result
    assert (result.seed, result.epochs, result.replicas, result.images) == (0, 5, 1, 64)
    assert 0 <= result.robust["0.5"] <= result.robust["0.1"] <= result.clean <= 100
    assert result.clean > 90 and losses(run)[-1][1] < losses(run)[0][1] / 2  # it learns
    assert 1 - 1e-4 < result.lipschitz_bound < 1 + 1e-4
    (after,) = train_toy(run, config, resume=True)  # a finished run that is resumed stays as it is
    assert contents(run) == files and replace(after, finished="") == result


def test_where_a_run_may_begin(tmp_path):
    """An existing run, and files that are none, stay as they are unless told; seeds live in folders of their own."""
    config, folder, work = toy_config(epochs=1), RunFolder(tmp_path / "run"), tmp_path / "work"
    train_toy(folder.path, config)
    before = contents(folder.path)
    refused("already holds a run", folder.start, config, overwrite=False)
    assert contents(folder.path) == before
    folder.start(replace(config, seed=9), overwrite=True)
    assert contents(folder.path).keys() == {".lock", "config.json"}  # locked until it is trained
    assert TrainConfig.read(folder.config).seed == 9
    work.mkdir()
    (work / "thesis.tex").write_text("years of work")
    for overwrite in (False, True):
        refused("holds other files", RunFolder(work).start, config, overwrite=overwrite)
        refused("is a file", RunFolder(work / "thesis.tex").start, config, overwrite=overwrite)
    refused("Cannot write", RunFolder(work / "thesis.tex" / "run").start, config, overwrite=False)
    assert contents(work) == {"thesis.tex": b"years of work"}
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "empty", tmp_path / "a" / "b" / "c"):
        RunFolder(path).start(config, overwrite=False)
        assert RunFolder(path).exists
    assert [folder.path for folder in seed_folders(tmp_path, [4])] == [tmp_path]
    assert [folder.path for folder in seed_folders(tmp_path, [4, 0])] == [tmp_path / "seed-4", tmp_path / "seed-0"]


# Going on -------------------------------------------------------------------------------------------------------------

SVCM: dict[str, Any] = {"conv": "svcm", "optimiser": "adam", "project_every": 5, "project_iterations": 3}
AUGMENTED: dict[str, Any] = {"flip": True, "crop_padding": 1, "loss": "cross-entropy", "schedule": "cosine"}
OPERATED: dict[str, Any] = {"flip": True, "resized_crop": (0.5, 1.0), "rand_augment": (2, 9.0)}
# Four steps an epoch: 4 and 12 are the ends of epochs. The steps of a part are counted from where it begins.
CASES: list[tuple[dict[str, Any], list[int]]] = [
    ({}, [3, 2, 4]),
    ({"optimiser": "adam", "orthogonalisation": "bjorck", "schedule": "exponential"}, [12]),
    ({"precision": "bf16"}, [1]),
    ({"conv": "ossn", "optimiser": "rmsprop"}, [4]),
    (SVCM, [6]),
    (AUGMENTED, [11]),
    (OPERATED | {"colour_jitter": (0.4, 0.4, 0.0), "batch_size": 32, "accumulate": 2}, [2, 5]),
]


@pytest.mark.parametrize(("options", "stops"), CASES, ids=str)
def test_stopped_anywhere_and_more_than_once(options, stops, tmp_path):
    """The weights, bit for bit, and the losses are those of a run that was never stopped."""
    config, watchers = toy_config(**options), [Watcher() for _ in (*stops, 0)]
    train_toy(tmp_path / "whole", config)
    for k, steps in enumerate(stops):
        stopped(steps, train_toy, tmp_path / "parts", config, resume=k > 0, observer=watchers[k])
        assert not (tmp_path / "parts" / "model.safetensors").exists()
    train_toy(tmp_path / "parts", config, resume=True, observer=watchers[-1])
    assert same_run(tmp_path / "whole", tmp_path / "parts")
    assert [epoch for epoch, _, _ in losses(tmp_path / "parts")] == [1, 2, 3]
    assert [watcher.steps for watcher in watchers] == [*stops, 12 - sum(stops)]  # each step is counted once
    reports = [report for watcher in watchers for report in watcher.reports]
    assert [(report.epoch, report.epochs) for report in reports] == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize("options", [AUGMENTED, SVCM])
def test_seeds_side_by_side_are_each_alone_also_if_they_were_saved_at_different_steps(options, tmp_path):
    """As a kill between two files leaves them; one here is even an epoch ahead. torch's generator changes nothing."""
    config, seeds = toy_config(**options), (3, 0)
    results = train_toy(tmp_path / "together", config, seeds=seeds)
    assert [result.seed for result in results] == list(seeds)
    (tmp_path / "parts").mkdir()
    for seed, steps in zip(seeds, (2, 5), strict=True):
        torch.manual_seed(seed)
        train_toy(tmp_path / f"alone-{seed}", replace(config, seed=seed))
        stopped(steps, train_toy, tmp_path / "parts" / f"seed-{seed}", replace(config, seed=seed))
    train_toy(tmp_path / "parts", config, seeds=seeds, resume=True)
    for seed in seeds:
        for folder in ("together", "parts"):
            assert same_run(tmp_path / f"alone-{seed}", tmp_path / folder / f"seed-{seed}")
    assert not same_run(tmp_path / "alone-0", tmp_path / "alone-3")


def test_states_of_an_older_version_and_of_another_network(tmp_path):
    """An old one has other names for sums, no random numbers of torch, no checksum and no hash of settings."""
    train_toy(tmp_path / "whole", toy_config())
    stopped(6, train_toy, tmp_path / "run", toy_config())
    refused("saved state of this network", train_toy, tmp_path / "run", toy_config(conv="standard"), resume=True)
    folder = RunFolder(tmp_path / "run")
    old = {"progress/sums/loss": "progress/loss_sum", "progress/sums/accuracy": "progress/right"}
    tensors = {old.get(name, name): value for name, value in read_tensors(folder.state).items()}
    later = "random", "checksum", "settings"
    write_tensors(folder.state, {k: v for k, v in tensors.items() if not any(name in k for name in later)})
    train_toy(folder.path, toy_config(), resume=True)
    assert losses(tmp_path / "whole") == losses(folder.path)
    model, config = load_run(pretrained_folder("mnist-small"))  # and so is a finished run
    assert config.model == "small" and not model.training


@pytest.mark.parametrize(("loss", "epochs", "batch_size"), [("cross-entropy", 4, 64), ("hinge", 1, 256)])
def test_divergence_is_said_and_leaves_the_folder_as_it_was(loss, epochs, batch_size, tmp_path):
    """The loss of a step is that of the weights before it: with one step in all, the update shows in no loss."""
    options = {"conv": "standard", "optimiser": "adam", "schedule": "constant", "lr": 1e20 if epochs > 1 else 1e38}
    config = toy_config(loss=loss, epochs=epochs, batch_size=batch_size, **options)
    for resume in (False, True):
        refused(r"diverged .* than 1e\+", train_toy, tmp_path / "run", config, resume=resume)
        assert TrainConfig.read(tmp_path / "run" / "config.json") == config
        assert not contents(tmp_path / "run").keys() & {"model.safetensors", "result.json"}


# Coming out -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("conv", ["bcop", "ossn", "svcm", "rkl2ne", "aol", "cayley", "soc", "bro", "sll", "cpl"])
def test_load_run_gives_the_plain_model_that_was_trained(conv, tmp_path):
    config = toy_config(conv=conv, optimiser="adam", lr=1e-3, epochs=1)
    trained, test = make_model(config), toy(64, seed=1)
    (result,) = train_toy(tmp_path / "run", config, models=[trained])
    model, read = load_run(str(tmp_path / "run"))
    assert read == config and not model.training and 0.1 < result.lipschitz_bound < 1.002
    kinds = {type(module).__module__.split(".")[0] for module in model.modules() if list(module.parameters(False))}
    assert kinds == ({"torch", "isoconv"} if conv in ("sll", "cpl") else {"torch"})
    images = as_float(test.images)
    with torch.no_grad():
        torch.testing.assert_close(model(images), trained.eval()(images), rtol=0, atol=1e-5)
    assert robust_accuracy(model, test).clean == result.clean


def test_load_run_of_what_is_no_finished_run(tmp_path):
    refused("config.json", load_run, tmp_path)
    refused("does not exist", load_run, tmp_path / "missing")
    folder = RunFolder(tmp_path)
    folder.start(toy_config(epochs=1), overwrite=False)
    refused("not finished", load_run, tmp_path)
    folder.unlock()
    refused("512 images", train_toy, tmp_path, toy_config(batch_size=512), resume=True)
    train_toy(tmp_path, toy_config(epochs=1), resume=True)
    good = folder.model.read_bytes()
    folder.model.write_bytes(good[: len(good) // 2])
    refused("model.safetensors", load_run, folder.path)
    folder.model.write_bytes(good)
    write_tensors(folder.model, {name: value.double() for name, value in read_tensors(folder.model).items()})
    refused("weights of a small", load_run, folder.path)
    folder.model.write_bytes(good)
    for text, word in ((toy_config(model="fc3").to_json(), "fc3"), ("{", "config.json")):
        folder.config.write_text(text)
        refused(word, load_run, folder.path)


def test_bf16_is_not_float32_and_keeps_the_constraint(tmp_path):
    states = []
    for precision in ("float32", "bf16"):
        (result,) = train_toy(tmp_path / precision, toy_config(precision=precision, optimiser="adam"))
        assert result.lipschitz_bound < 1 + 1e-4
        states.append(load_run(tmp_path / precision)[0].state_dict())
    assert any(not torch.equal(value, states[1][name]) for name, value in states[0].items())
    assert all(value.dtype == torch.float32 for value in states[1].values())
    for W in (value.double() for name, value in states[1].items() if value.ndim == 2):
        short = W @ W.T if W.shape[0] <= W.shape[1] else W.T @ W
        torch.testing.assert_close(short, torch.eye(len(short), dtype=torch.float64), rtol=0, atol=1e-5)


# Choosing a learning rate ---------------------------------------------------------------------------------------------


def find(rates, **options):
    config = toy_config(optimiser="adam", epochs=2, **options)
    return search_learning_rate(config, toy(), rates, "cpu", Processes())


def test_the_better_rate_is_chosen_on_a_part_of_the_training_set_that_is_not_trained_on(tmp_path, monkeypatch):
    calls = []

    def watch(configs, folders, kept, held_out, *args, **options):
        calls.append((configs[0].lr, kept, held_out))
        return train_classifiers(configs, folders, kept, held_out, *args, **options)

    monkeypatch.setattr(classifier, "train_classifiers", watch)
    monkeypatch.chdir(tmp_path)
    best, scores = find([1e-7, 1e-2, 1e-6])
    assert best == 1e-2 and list(tmp_path.iterdir()) == []  # nothing is written
    assert scores.keys() == {1e-7, 1e-2, 1e-6} and scores[1e-2] > scores[1e-7]
    assert all(0 <= robust <= clean <= 100 for clean, robust in scores.values())
    assert [lr for lr, _, _ in calls] == [1e-7, 1e-2, 1e-6]
    for _, *parts in calls:
        kept, held_out, both = ({image.numpy().tobytes() for image in part.images} for part in (*parts, toy()))
        assert kept | held_out == both and not kept & held_out and len(parts[1]) == 26


def test_rates_that_diverge_are_skipped_and_those_that_are_none_refused():
    best, scores = find([1e20, 1e-3], conv="standard")
    assert best == 1e-3 and scores.keys() == {1e-3}
    refused(r"1e\+20, 1e\+25 diverged", find, [1e20, 1e25], conv="standard", loss="cross-entropy")
    refused("lr to be a number above 0", find, [1e-3, 0.0])


# From pictures -------------------------------------------------------------------------------------------------------

OPTIONS = {"model": "small", "batch_size": 16, "device": "cpu", "flip": False}


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    return write_pictures(tmp_path / "pictures")


def test_the_epoch_that_is_best_in_validation_is_kept(pictures, tmp_path):
    options = OPTIONS | {"epochs": 9, "validation": 0.25, "patience": 2, "lr": 0.03}
    lines = []
    (result,), _ = train(str(pictures), tmp_path / "run", say=lines.append, **options)
    assert "16 of them for validation" in lines[0] and f"epoch {result.best_epoch} is kept" in lines[-1]
    scores = [line["validation"] for line in RunFolder(tmp_path / "run").read_metrics()]
    gained = scores.index(max(scores)) + 1
    assert result.epochs == len(scores) == min(9, gained + 2) < 9  # it would not gain any more
    # Of equally good epochs it is the last.
    assert result.validation == max(scores) == scores[result.best_epoch - 1] > max([0.0, *scores[result.best_epoch :]])
    _, held_out = hold_out(read_folder(pictures).train, 0.25)
    (radius, *_) = default_epsilons(str(pictures))
    assert robust_accuracy(load_run(tmp_path / "run")[0], held_out, [radius]).at(radius) == max(scores)
    train(str(pictures), tmp_path / "both", seeds=[0, 1], **options)
    assert same_weights(tmp_path / "both" / "seed-0", tmp_path / "run")  # whatever the other one gains
    # Resumed anywhere, it keeps the same network.
    for steps in (2, 4, 3 * gained, 3 * gained + 2):
        out = tmp_path / f"stopped-{steps}"
        stopped(steps, train, str(pictures), out, **options)
        (again,), _ = train(out=out, resume=True, device="cpu")
        assert again.best_epoch == result.best_epoch and same_weights(out, tmp_path / "run")
    assert train(out=tmp_path / "run", resume=True, device="cpu")[0][0].best_epoch == result.best_epoch


def test_validation_does_not_disturb_training(pictures, tmp_path):
    """Its images apart: with them held out, each epoch is that of a run on the others."""
    train(str(pictures), tmp_path / "run", seeds=[0, 1], epochs=3, validation=0.25, **OPTIONS)
    kept, _ = hold_out(read_folder(pictures).train, 0.25)
    for seed in (0, 1):
        config = TrainConfig.read(tmp_path / "run" / f"seed-{seed}" / "config.json")
        folder = RunFolder(tmp_path / f"alone-{seed}")
        folder.start(config, overwrite=False)
        train_classifiers([config], [folder], kept, None, [])
        alone = [line["loss"] for line in folder.read_metrics()]
        assert [line["loss"] for line in RunFolder(tmp_path / "run" / f"seed-{seed}").read_metrics()] == alone


def test_a_run_that_is_resumed_with_more_epochs_is_prolonged(pictures, tmp_path):
    for name in ("run", "killed"):
        train(str(pictures), tmp_path / name, epochs=2, **OPTIONS)
    certify_run(tmp_path / "run")
    refused("2 epochs", train, out=tmp_path / "run", resume=True, epochs=1, device="cpu")
    (result,), config = train(out=tmp_path / "run", resume=True, epochs=4, device="cpu")
    assert (config.epochs, config.prolonged, result.epochs) == (4, ((2, 8),), 4)
    assert TrainConfig.read(tmp_path / "run" / "config.json") == config
    assert [line["epoch"] for line in RunFolder(tmp_path / "run").read_metrics()] == [1, 2, 3, 4]
    assert not same_weights(tmp_path / "run", tmp_path / "killed")
    assert not (tmp_path / "run" / "certified.json").exists()  # it was about the shorter run
    RunFolder(tmp_path / "killed").revise(config)  # and then it was killed
    train(out=tmp_path / "killed", resume=True, device="cpu")
    assert same_weights(tmp_path / "killed", tmp_path / "run")
    settings = json.loads((tmp_path / "killed" / "config.json").read_text())
    (tmp_path / "killed" / "config.json").write_text(json.dumps(settings | {"epochs": 6}))
    refused("changed", train, out=tmp_path / "killed", resume=True, device="cpu")


def test_a_prolonged_run_keeps_its_network_until_there_is_another(pictures, tmp_path):
    """Stopped, it can be resumed, or made to end with the epoch that it is in."""
    out, again = tmp_path / "run", {"resume": True, "device": "cpu"}
    train(str(pictures), out, epochs=2, **OPTIONS)
    certify_run(out)
    kept = {name: (out / name).read_bytes() for name in ("model.safetensors", "result.json", "certified.json")}
    for done in (12, 14):  # updates, of which an epoch has 4
        stopped(done - RunFolder(out).updates_done(), train, out=out, epochs=6, **again)
        assert RunFolder(out).updates_done() == done
        assert {name: (out / name).read_bytes() for name in kept} == kept
        shutil.copytree(out, tmp_path / str(done))
    for done, least in ((12, 3), (14, 4)):
        copy = tmp_path / str(done)
        refused(f"at least {least} epochs", train, out=copy, epochs=least - 1, **again)
        (result,), config = train(out=copy, epochs=least, **again)
        assert result.epochs == config.epochs == least and RunFolder(copy).updates_done() == 4 * least
        assert not (copy / "certified.json").exists()
    train(out=out, **again)
    train(out=tmp_path / "14", epochs=6, **again)
    assert not same_weights(out, tmp_path / "14")  # its rates were another schedule's for two updates


def test_seeds_that_a_kill_left_with_different_epochs_are_made_equal(pictures, tmp_path):
    out, again = tmp_path / "run", {"resume": True, "device": "cpu"}
    train(str(pictures), out, epochs=2, seeds=[0, 4], **OPTIONS)
    shutil.copytree(out, tmp_path / "whole")
    config = TrainConfig.read(out / "seed-0" / "config.json")
    RunFolder(out / "seed-0").revise(replace(config, epochs=3, prolonged=((2, 8),)))  # and then it was killed
    train(out=out, **again)
    train(out=tmp_path / "whole", epochs=3, **again)
    for seed in ("seed-0", "seed-4"):
        assert (out / seed / "config.json").read_bytes() == (tmp_path / "whole" / seed / "config.json").read_bytes()
        assert same_weights(out / seed, tmp_path / "whole" / seed)


@pytest.mark.parametrize("seeds", [3, []])
def test_seeds_are_named_one_by_one(tmp_path, seeds):
    refused("seeds, one or several", train, "digits", tmp_path / "run", seeds=seeds)


def test_a_state_that_knows_all_of_its_settings_is_resumed_as_before(pictures, tmp_path):
    """Earlier versions saved a hash of all that config.json says."""
    out, again = tmp_path / "run", {"resume": True, "device": "cpu"}
    stopped(6, train, str(pictures), out, epochs=2, validation=0.25, patience=5, **OPTIONS)
    shutil.copytree(out, tmp_path / "new")
    state, settings = read_tensors(out / "state.safetensors"), json.loads((out / "config.json").read_text())
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).digest()
    state["progress/settings"] = torch.tensor(list(digest), dtype=torch.uint8)
    del state["progress/checksum"]  # which they did not all have
    write_tensors(out / "state.safetensors", state)
    for path in (out, tmp_path / "new"):
        train(out=path, epochs=3, patience=4, **again)
    assert same_weights(out, tmp_path / "new")


def test_a_resumed_run_may_have_another_patience_and_says_so(pictures, tmp_path):
    out = tmp_path / "run"
    train(str(pictures), out, epochs=2, validation=0.25, patience=1, **OPTIONS)
    for patience, epochs in ((2, None), (3, 5), (4, None), (5, 7)):
        options = {"patience": patience} | ({} if epochs is None else {"epochs": epochs})
        _, config = train(out=out, resume=True, device="cpu", **options)
        assert TrainConfig.read(out / "config.json") == config
        assert config.patience == patience and config.epochs == (epochs or config.epochs)


@pytest.mark.parametrize("stream", [False, True])
def test_broken_pictures_are_left_out_by_every_command(pictures, tmp_path, stream):
    paths = [pictures / "b" / "001.png", pictures / "c" / "002.png"]
    for path in paths:
        path.write_bytes(b"")
    options, lines = OPTIONS | {"epochs": 1, "stream": stream, "workers": 0}, []
    refused(r"b/001\.png" if not stream else "cannot be read", train, str(pictures), tmp_path / "run", **options)
    (result,), _ = train(str(pictures), tmp_path / "skip", skip_broken=True, say=lines.append, **options)
    assert all(str(path) in lines[0] for path in paths)
    (record,) = certify_run(tmp_path / "skip", device="cpu")
    assert record.images == result.images and (record.clean, record.robust) == (result.clean, result.robust)
    for path in (pictures / "d").iterdir():
        path.write_bytes(b"")
    refused("none of d", train, str(pictures), tmp_path / "none", skip_broken=True, **options)
