"""Run folders: what is in them, what they are never used for, and how the model comes out again."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from isoconv.certify import robust_accuracy
from isoconv.data import as_float
from isoconv.errors import IsoconvError
from isoconv.files import read_tensors, write_tensors
from isoconv.pretrained import pretrained_folder
from isoconv.train.classifier import TrainResult
from isoconv.train.config import TrainConfig, make_model
from isoconv.train.engine import Stopped
from isoconv.train.run_folder import RunFolder, load_run, seed_folders
from train.toys import losses, stop_after, toy, toy_config, train_toy


def refused(word: str, function, *args, **options):
    with pytest.raises(IsoconvError, match=word) as caught:
        function(*args, **options)
    assert "\n" not in str(caught.value)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_run_leaves_its_configuration_metrics_model_state_and_result(tmp_path):
    config, run = toy_config(optimiser="adam", epochs=5), tmp_path / "run"
    (result,) = train_toy(run, config)
    (untested,) = train_toy(tmp_path / "untested", config, test=None)
    assert untested.clean is None and "clean" not in untested.to_fields()
    assert TrainResult.read(tmp_path / "untested" / "result.json").clean is None
    names = {"config.json", "metrics.jsonl", "model.safetensors", "state.safetensors", "result.json"}
    assert contents(run).keys() == names and TrainConfig.read(run / "config.json") == config
    assert replace(TrainResult.read(run / "result.json"), finished="") == result
    assert (result.seed, result.epochs, result.replicas, result.images) == (0, 5, 1, 64)
    assert 0 <= result.robust["0.5"] <= result.robust["0.1"] <= result.clean <= 100
    assert result.clean > 90 and losses(run)[-1][1] < losses(run)[0][1] / 2  # it learns
    assert 1 - 1e-4 < result.lipschitz_bound < 1 + 1e-4


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


@pytest.mark.parametrize("conv", ["bcop", "ossn", "svcm", "rkl2ne", "aol", "cayley", "soc", "bro", "sll", "cpl"])
def test_load_run_gives_the_plain_model_that_was_trained(conv, tmp_path):
    config = toy_config(conv=conv, optimiser="adam", lr=1e-3, epochs=1)
    trained, test = make_model(config), toy(64, seed=1)
    (result,) = train_toy(tmp_path / "run", config, models=[trained])
    model, read = load_run(str(tmp_path / "run"))
    assert read == config and not model.training
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
    folder.config.write_text(toy_config(model="fc3").to_json())
    refused("fc3", load_run, folder.path)
    folder.config.write_text("{")
    refused("config.json", load_run, folder.path)


def test_a_state_of_an_older_version_is_resumed(tmp_path):
    """It has other names for the sums, and holds neither the state of torch's random numbers nor a checksum."""
    train_toy(tmp_path / "whole", toy_config())
    with pytest.raises(Stopped):
        train_toy(tmp_path / "run", toy_config(), should_stop=stop_after(6))
    folder = RunFolder(tmp_path / "run")
    old = {"progress/sums/loss": "progress/loss_sum", "progress/sums/accuracy": "progress/right"}
    tensors = {old.get(name, name): value for name, value in read_tensors(folder.state).items()}
    write_tensors(folder.state, {k: v for k, v in tensors.items() if "random" not in k and "checksum" not in k})
    train_toy(folder.path, toy_config(), resume=True)
    assert losses(tmp_path / "whole") == losses(folder.path)
    model, config = load_run(pretrained_folder("mnist-small"))  # and so is a finished run
    assert config.model == "small" and not model.training


@pytest.mark.parametrize(
    ("loss", "epochs", "batch_size"), [("hinge", 4, 64), ("cross-entropy", 4, 64), ("hinge", 1, 256)]
)
def test_divergence_is_said_and_leaves_the_folder_as_it_was(loss, epochs, batch_size, tmp_path):
    """The loss of a step is that of the weights before it: with one step in all, the update shows in no loss."""
    options = {"conv": "standard", "optimiser": "adam", "schedule": "constant", "lr": 1e20 if epochs > 1 else 1e38}
    config = toy_config(loss=loss, epochs=epochs, batch_size=batch_size, **options)
    for resume in (False, True):
        with pytest.raises(IsoconvError, match=r"diverged .* than 1e\+"):
            train_toy(tmp_path / "run", config, resume=resume)
        assert TrainConfig.read(tmp_path / "run" / "config.json") == config
        assert not (tmp_path / "run" / "model.safetensors").exists()
        assert not (tmp_path / "run" / "result.json").exists()


def test_bf16_is_not_float32_and_keeps_the_constraint(tmp_path):
    for precision in ("float32", "bf16"):
        (result,) = train_toy(tmp_path / precision, toy_config(precision=precision, optimiser="adam"))
        assert result.lipschitz_bound < 1 + 1e-4
    models = [load_run(tmp_path / name)[0] for name in ("float32", "bf16")]
    a, b = (model.state_dict() for model in models)
    assert any(not torch.equal(a[name], b[name]) for name in a)
    assert all(value.dtype == torch.float32 for value in b.values())
    for module in models[1].modules():
        if isinstance(module, nn.Linear):
            W = module.weight.detach().double()
            short = W @ W.T if W.shape[0] <= W.shape[1] else W.T @ W
            torch.testing.assert_close(short, torch.eye(len(short), dtype=torch.float64), rtol=0, atol=1e-5)


def test_each_network_is_built_once(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr("isoconv.train.classifier.make_model", lambda c, *build: made.append(c) or make_model(c))
    train_toy(tmp_path / "run", toy_config(epochs=1), seeds=(0, 1))
    assert [config.seed for config in made] == [0, 1]
