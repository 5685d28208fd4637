"""Run folders: what is in them, what they are never used for, and how the model comes out again."""

import json
from dataclasses import replace

import pytest
import torch
from torch import nn

from isoconv.data import as_float
from isoconv.errors import IsoconvError
from isoconv.files import read_tensors, write_tensors
from isoconv.optim import SteepestDescent
from isoconv.pretrained import pretrained_folder
from isoconv.train.classifier import TrainResult, evaluate
from isoconv.train.config import TrainConfig, make_model
from isoconv.train.engine import Stopped
from isoconv.train.run_folder import RunFolder, load_run, pack_state, seed_folders, unpack_state
from train.toys import Watcher, stop_after, toy, toy_config, train_toy


def refused(word: str, function, *args, **options):
    with pytest.raises(IsoconvError, match=word) as caught:
        function(*args, **options)
    assert "\n" not in str(caught.value)


def test_a_run_leaves_its_configuration_metrics_model_state_and_result(tmp_path):
    config = toy_config()
    (result,) = train_toy(tmp_path / "run", config)
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == {
        "config.json",
        "metrics.jsonl",
        "model.safetensors",
        "state.safetensors",
        "result.json",
    }
    assert TrainConfig.read(tmp_path / "run" / "config.json") == config
    saved = json.loads((tmp_path / "run" / "result.json").read_text())
    assert {name: saved[name] for name in result.to_fields()} == result.to_fields()
    assert replace(TrainResult.read(tmp_path / "run" / "result.json"), finished="") == result
    assert (result.seed, result.epochs, result.replicas, result.images) == (0, 3, 1, 64)
    assert 0 <= result.robust["0.5"] <= result.robust["0.1"] <= result.clean <= 100
    assert 1 - 1e-4 < result.lipschitz_bound < 1 + 1e-4


def test_training_learns(tmp_path):
    watcher = Watcher()
    (result,) = train_toy(tmp_path / "run", toy_config(optimiser="adam", epochs=5), observer=watcher)
    assert result.clean > 90
    assert watcher.reports[-1].loss < watcher.reports[0].loss / 2


def test_without_test_images_there_is_no_accuracy(tmp_path):
    (result,) = train_toy(tmp_path / "run", toy_config(epochs=1), test=None)
    assert result.clean is None and "clean" not in result.to_fields()
    assert (
        TrainResult.read(tmp_path / "run" / "result.json").clean is None
        and (tmp_path / "run" / "model.safetensors").exists()
    )


def test_a_run_is_not_overwritten_unless_told(tmp_path):
    config, folder = toy_config(epochs=1), RunFolder(tmp_path / "run")
    train_toy(folder.path, config)
    before = {path.name: path.read_bytes() for path in folder.path.iterdir()}
    refused("already holds a run", folder.start, config, overwrite=False)
    assert {path.name: path.read_bytes() for path in folder.path.iterdir()} == before
    other = replace(config, seed=9)
    folder.start(other, overwrite=True)
    assert {path.name for path in folder.path.iterdir()} == {".lock", "config.json"}  # locked until it is trained
    assert TrainConfig.read(folder.config) == other


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_with_other_files_is_refused(overwrite, tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    refused("holds other files", RunFolder(tmp_path).start, toy_config(), overwrite=overwrite)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_file_in_place_of_the_folder_is_refused(overwrite, tmp_path):
    path = tmp_path / "run"
    path.write_text("I was here first")
    refused("is a file", RunFolder(path).start, toy_config(), overwrite=overwrite)
    assert path.read_text() == "I was here first"


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    refused("Cannot write", RunFolder(tmp_path / "file" / "run").start, toy_config(), overwrite=False)


def test_an_empty_folder_and_missing_parents_are_fine(tmp_path):
    (tmp_path / "empty").mkdir()
    RunFolder(tmp_path / "empty").start(toy_config(), overwrite=False)
    RunFolder(tmp_path / "a" / "b" / "c").start(toy_config(), overwrite=False)
    assert RunFolder(tmp_path / "empty").exists and RunFolder(tmp_path / "a" / "b" / "c").exists


def test_where_seeds_live(tmp_path):
    assert [folder.path for folder in seed_folders(tmp_path, [4])] == [tmp_path]
    assert [folder.path for folder in seed_folders(tmp_path, [4, 0])] == [tmp_path / "seed-4", tmp_path / "seed-0"]


@pytest.mark.parametrize("conv", ["bcop", "ossn", "svcm", "rkl2ne", "standard"])
def test_load_run_gives_the_plain_model_that_was_trained(conv, tmp_path):
    config = toy_config(conv=conv, optimiser="adam", lr=1e-3, epochs=1)
    trained, test = make_model(config), toy(64, seed=1)
    (result,) = train_toy(tmp_path / "run", config, models=[trained])
    model, read = load_run(str(tmp_path / "run"))
    assert read == config and not model.training
    kinds = {type(module).__module__.split(".")[0] for module in model.modules() if list(module.parameters(False))}
    assert kinds == {"torch"}
    images = as_float(test.images)
    with torch.no_grad():
        torch.testing.assert_close(model(images), trained.eval()(images), rtol=0, atol=1e-5)
    assert evaluate(model, test, [], torch.device("cpu"))["clean"] == result.clean


def test_load_run_of_what_is_no_finished_run(tmp_path):
    refused("config.json", load_run, tmp_path)
    refused("does not exist", load_run, tmp_path / "missing")
    RunFolder(tmp_path).start(toy_config(), overwrite=False)
    refused("not finished", load_run, tmp_path)


def test_load_run_of_a_corrupt_run(tmp_path):
    train_toy(tmp_path / "run", toy_config(epochs=1))
    folder = RunFolder(tmp_path / "run")
    good = folder.model.read_bytes()
    folder.model.write_bytes(good[: len(good) // 2])
    refused("model.safetensors", load_run, folder.path)
    folder.model.write_bytes(good)
    folder.config.write_text(toy_config(model="fc3").to_json())
    refused("fc3", load_run, folder.path)
    folder.config.write_text("{")
    refused("config.json", load_run, folder.path)


def test_a_state_of_an_older_version_is_resumed(tmp_path):
    """It has other names for the sums, and does not hold the state of torch's random numbers."""
    train_toy(tmp_path / "whole", toy_config())
    with pytest.raises(Stopped):
        train_toy(tmp_path / "run", toy_config(), should_stop=stop_after(6))
    folder = RunFolder(tmp_path / "run")
    old = {"progress/sums/loss": "progress/loss_sum", "progress/sums/accuracy": "progress/right"}
    tensors = {old.get(name, name): value for name, value in read_tensors(folder.state).items() if "random" not in name}
    write_tensors(folder.state, tensors)
    train_toy(folder.path, toy_config(), resume=True)
    lines = [[line | {"seconds": 0} for line in RunFolder(tmp_path / name).read_metrics()] for name in ("whole", "run")]
    assert lines[0] == lines[1]


def test_a_run_of_an_older_version_is_loaded():
    model, config = load_run(pretrained_folder("mnist-small"))
    assert config.model == "small" and not model.training


@pytest.mark.parametrize("loss", ["hinge", "cross-entropy"])
def test_divergence_is_said_and_leaves_the_folder_as_it_was(loss, tmp_path):
    config = toy_config(conv="standard", loss=loss, lr=1e20, optimiser="adam", epochs=4, schedule="constant")
    for resume in (False, True):
        with pytest.raises(IsoconvError, match=r"diverged .* than 1e\+20"):
            train_toy(tmp_path / "run", config, resume=resume)
        assert TrainConfig.read(tmp_path / "run" / "config.json") == config
        assert not (tmp_path / "run" / "model.safetensors").exists()
        assert not (tmp_path / "run" / "result.json").exists()


@pytest.mark.parametrize(("batch_size", "lr"), [(64, 1e20), (256, 1e38)])
def test_divergence_in_the_last_step_is_divergence_too(batch_size, lr, tmp_path):
    """The loss of a step is that of the weights before it, so the last update shows in no loss."""
    config = toy_config(conv="standard", lr=lr, optimiser="adam", epochs=1, batch_size=batch_size, schedule="constant")
    with pytest.raises(IsoconvError, match=r"^Training diverged in epoch 1"):
        train_toy(tmp_path / "run", config)
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


def test_a_batch_larger_than_the_data_is_refused(tmp_path):
    refused("512 images", train_toy, tmp_path / "run", toy_config(batch_size=512))


OPTIMISERS = {
    "steepest": lambda p: SteepestDescent(p, lr=torch.tensor(0.1)),
    "adam": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.1)),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=torch.tensor(0.1)),
}


def made(kind: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    return model, OPTIMISERS[kind](model.parameters())


def advance(model: nn.Module, optimiser: torch.optim.Optimizer, steps: range) -> None:
    for k in steps:
        optimiser.zero_grad()
        model(torch.randn(5, 3, generator=torch.Generator().manual_seed(k))).square().sum().backward()
        optimiser.step()


@pytest.mark.parametrize("kind", OPTIMISERS)
def test_packed_state_goes_through_a_file_and_continues_identically(kind, tmp_path):
    model, optimiser = made(kind)
    advance(model, optimiser, range(3))
    write_tensors(tmp_path / "state", pack_state(model, optimiser))
    advance(model, optimiser, range(3, 6))
    again, resumed = made(kind)
    unpack_state(read_tensors(tmp_path / "state"), again, resumed)
    advance(again, resumed, range(3, 6))
    for name, value in model.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name


def test_the_state_of_another_network_is_refused():
    model, optimiser = made("steepest")
    other = nn.Linear(3, 4)
    with pytest.raises(IsoconvError, match="state of this network") as caught:
        unpack_state(pack_state(model, optimiser), other, SteepestDescent(other.parameters()))
    assert "\n" not in str(caught.value)
