"""`train`, from data to run folders: the best epoch is kept, runs are given more epochs, broken pictures are left out."""

import json
from pathlib import Path

import pytest
import torch

from isoconv.data import hold_out, read_folder
from isoconv.errors import IsoconvError
from isoconv.train import RunFolder, Stopped, TrainConfig, certify_run, load_run, train, train_classifiers
from isoconv.train.classifier import measure_accuracy
from train.toys import same_weights, stop_after, write_pictures

OPTIONS = {"model": "small", "batch_size": 16, "device": "cpu", "flip": False}
CPU = torch.device("cpu")


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    return write_pictures(tmp_path / "pictures")


def test_the_epoch_that_is_best_in_validation_is_kept(pictures, tmp_path):
    options = OPTIONS | {"epochs": 9, "validation": 0.25, "patience": 2, "lr": 0.03}
    lines = []
    (result,), _ = train(str(pictures), tmp_path / "run", say=lines.append, **options)
    assert "16 of them for validation" in lines[0] and f"epoch {result.best_epoch} is kept" in lines[-1]
    scores = [line["validation"] for line in RunFolder(tmp_path / "run").read_metrics()]
    assert result.best_epoch == scores.index(max(scores)) + 1 and result.validation == max(scores)
    assert result.epochs == len(scores) == min(9, result.best_epoch + 2) < 9  # it would not gain any more
    _, held_out = hold_out(read_folder(pictures).train, 0.25)
    assert measure_accuracy(load_run(tmp_path / "run")[0], held_out, CPU) == max(scores)
    train(str(pictures), tmp_path / "both", seeds=[0, 1], **options)
    assert same_weights(tmp_path / "both" / "seed-0", tmp_path / "run")  # whatever the other one gains
    # Resumed anywhere, it keeps the same network.
    for steps in (2, 4, 3 * result.best_epoch, 3 * result.best_epoch + 2):
        out = tmp_path / f"stopped-{steps}"
        with pytest.raises(Stopped):
            train(str(pictures), out, should_stop=stop_after(steps), **options)
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
    with pytest.raises(IsoconvError, match="2 epochs"):
        train(out=tmp_path / "run", resume=True, epochs=1, device="cpu")
    (result,), config = train(out=tmp_path / "run", resume=True, epochs=4, device="cpu")
    assert (config.epochs, config.prolonged, result.epochs) == (4, ((2, 8),), 4)
    assert TrainConfig.read(tmp_path / "run" / "config.json") == config
    assert [line["epoch"] for line in RunFolder(tmp_path / "run").read_metrics()] == [1, 2, 3, 4]
    assert not same_weights(tmp_path / "run", tmp_path / "killed")
    assert not (tmp_path / "run" / "certified.json").exists()  # it was about the shorter run
    RunFolder(tmp_path / "killed").prolong(config)  # and then it was killed
    train(out=tmp_path / "killed", resume=True, device="cpu")
    assert same_weights(tmp_path / "killed", tmp_path / "run")
    settings = json.loads((tmp_path / "killed" / "config.json").read_text())
    (tmp_path / "killed" / "config.json").write_text(json.dumps(settings | {"epochs": 6}))
    with pytest.raises(IsoconvError, match="changed"):
        train(out=tmp_path / "killed", resume=True, device="cpu")


@pytest.mark.parametrize("stream", [False, True])
def test_broken_pictures_are_left_out_by_every_command(pictures, tmp_path, stream):
    paths = [pictures / "b" / "001.png", pictures / "c" / "002.png"]
    for path in paths:
        path.write_bytes(b"")
    options, lines = OPTIONS | {"epochs": 1, "stream": stream, "workers": 0}, []
    with pytest.raises(IsoconvError, match=r"b/001\.png" if not stream else "cannot be read"):
        train(str(pictures), tmp_path / "run", **options)
    (result,), _ = train(str(pictures), tmp_path / "skip", skip_broken=True, say=lines.append, **options)
    assert all(str(path) in lines[0] for path in paths)
    (record,) = certify_run(tmp_path / "skip", device="cpu")
    assert record.images == result.images and (record.clean, record.robust) == (result.clean, result.robust)
    for path in (pictures / "d").iterdir():
        path.write_bytes(b"")
    with pytest.raises(IsoconvError, match="none of d"):
        train(str(pictures), tmp_path / "none", skip_broken=True, **options)
