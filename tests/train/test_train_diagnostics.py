"""diagnostics.json and gallery.json: what is in them is true of the run's network, and of no other."""

import base64
import io
import json
import shutil
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from PIL import Image

from isoconv.certify import Certified, Certifier
from isoconv.certify.diagnostics import gradient_norms, singular_values
from isoconv.data import as_float
from isoconv.train.config import make_model
from isoconv.train.diagnostics import complete_run, gallery_entries, lacks_images, picture_uri
from isoconv.train.runs import TrainedRun, open_run
from train.toys import refused, toy, toy_config, train_toy

TEST = toy(64, seed=1)


@pytest.fixture(scope="module", params=["bcop", "standard"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    folder = tmp_path_factory.mktemp("runs") / request.param
    train_toy(folder, toy_config(conv=request.param, optimiser="adam", lr=3e-3))
    run = open_run(folder)
    assert lacks_images(run)
    assert complete_run(run, TEST, images=6) == ["certified.json", "diagnostics.json", "gallery.json"]
    assert complete_run(run, TEST) == [] and not lacks_images(run)  # what is there is not made again
    return run


@pytest.fixture(scope="module")
def proved(run: TrainedRun) -> Certified:
    return Certifier(run.model, run.config.input_shape)(as_float(TEST.images, torch.float64))


def read(path: Path, name: str) -> dict:
    return json.loads((path / name).read_text())


def pixels_of(uri: str) -> np.ndarray:
    assert uri.startswith("data:image/png;base64,")
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.split(",")[1]))))


def test_the_diagnostics_are_of_all_singular_values_and_gradients_before_and_after(run):
    shown = read(run.folder, "diagnostics.json")
    layers, norms = shown["layers"], shown["gradient_norms"]
    for moment, network in (("before", make_model(run.config)), ("after", run.model)):
        spectra = singular_values(network, (1, 8, 8))
        assert [layer["title"] for layer in layers] == [spectrum.title for spectrum in spectra]
        for layer, values in zip(layers, (spectrum.values for spectrum in spectra), strict=True):
            histogram, width = layer[moment], layer["width"]
            counts = torch.tensor(histogram["counts"])
            assert (histogram["min"], histogram["max"]) == (float(values.min()), float(values.max()))
            mean = float((counts * torch.arange(len(counts)) * width).sum()) / len(values)
            assert counts.sum() == len(values) and mean == pytest.approx(histogram["mean"], abs=width / 2 + 1e-9)
            if run.config.conv == "bcop":
                assert counts[round(1 / width)] == len(values)  # all of them are 1
        truth = gradient_norms(network, as_float(TEST.images, torch.float64), TEST.labels).norms
        assert norms["images"] == 64 and norms[moment]["mean"] == pytest.approx(truth.mean(dim=1).tolist())
        assert norms[moment]["low"] == pytest.approx(truth.quantile(0.1, dim=1).tolist())
        assert norms[moment]["high"] == pytest.approx(truth.quantile(0.9, dim=1).tolist())
    if run.config.conv == "standard":
        assert any(layer["before"]["counts"] != layer["after"]["counts"] for layer in layers)


def test_the_gallery_tells_the_truth(run, proved):
    entries, fooled = read(run.folder, "gallery.json")["images"], 0
    assert len(entries) == 6 and {entry["label"] for entry in entries} == {0, 1, 2, 3}
    for entry in entries:
        index, other = entry["index"], entry["adversarial"]
        assert entry["label"] == int(TEST.labels[index]) and entry["prediction"] == int(proved.prediction[index])
        assert entry["radius"] == pytest.approx(float(proved.radius[index]), rel=1e-12)
        assert np.array_equal(pixels_of(entry["image"]), TEST.images[index, 0].numpy())
        assert other is None or entry["prediction"] == entry["label"] != other["prediction"]
        if other is not None:
            fooled += 1
            moved = (pixels_of(other["image"]).astype(float) - TEST.images[index, 0].numpy()) / 255
            assert other["norm"] > entry["radius"]
            assert np.linalg.norm(moved) == pytest.approx(other["norm"], abs=8 * 0.5 / 255 + 1e-9)  # 64 pixels, rounded
            # Grey, and black or white where it is largest.
            change = pixels_of(other["change"]).astype(float) / 255 - 0.5
            assert np.abs(change).max() == pytest.approx(0.5, abs=0.01)
            assert np.abs(change / np.linalg.norm(change) - moved / np.linalg.norm(moved)).max() < 0.1
    assert fooled >= 3


def test_the_mistakes_are_all_mistakes_and_the_most_certain_come_first(run, proved):
    shown, wrong = read(run.folder, "gallery.json"), proved.prediction != TEST.labels
    assert 0 < int(wrong.sum()) == shown["mistake_count"] == len(shown["mistakes"])
    assert {entry["index"] for entry in shown["mistakes"]} == set(wrong.nonzero()[:, 0].tolist())
    radii = [entry["radius"] for entry in shown["mistakes"]]
    assert radii == sorted(radii, reverse=True)
    for entry in shown["mistakes"]:
        index = entry["index"]
        assert (entry["label"], entry["prediction"]) == (int(TEST.labels[index]), int(proved.prediction[index]))
        assert np.array_equal(pixels_of(entry["image"]), TEST.images[index, 0].numpy())
    for label, row in enumerate(shown["confusion"]):
        assert row == [int(((TEST.labels == label) & (proved.prediction == k)).sum()) for k in range(4)]


def test_a_gallery_of_an_earlier_version_is_made_again_when_the_images_are_there(run, tmp_path):
    folder = Path(shutil.copytree(run.folder, tmp_path / "run"))
    whole = read(folder, "gallery.json")
    old = {name: whole[name] for name in ("weights_sha256", "images")}
    (folder / "gallery.json").write_text(json.dumps(old))
    run = open_run(folder)
    assert lacks_images(run) and complete_run(run, None) == [] and read(folder, "gallery.json") == old
    assert complete_run(run, TEST, images=6) == ["gallery.json"] and read(folder, "gallery.json") == whole


def test_what_is_left_of_another_network_is_replaced_or_taken_away(run, tmp_path, monkeypatch):
    train_toy(tmp_path / "run", toy_config(seed=1))
    for name in ("diagnostics.json", "gallery.json"):
        (tmp_path / "run" / name).write_bytes((run.folder / name).read_bytes())
    run = open_run(tmp_path / "run")
    assert lacks_images(run)
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", Mock(side_effect=OSError(28, "No space left on device")))
        refused(r"^Cannot write .*diagnostics.json: No space", complete_run, run, None)
    assert complete_run(run, None) == ["diagnostics.json"]
    assert not (run.folder / "gallery.json").exists()
    assert read(run.folder, "diagnostics.json")["gradient_norms"] is None and lacks_images(run)
    assert complete_run(run, TEST, images=1) == ["certified.json", "diagnostics.json", "gallery.json"]
    assert read(run.folder, "diagnostics.json")["gradient_norms"] is not None


def test_all_classes_take_their_turn(run):
    labels = torch.tensor([0, 0, 1, 0, 2, 1])
    entries = gallery_entries(Certifier(run.model, (1, 8, 8)), replace(TEST.take(6), labels=labels), 5)
    assert [entry.index for entry in entries] == [0, 2, 4, 1, 5]


def test_pictures_keep_their_shape_and_are_small():
    for shape, size, mode in (((1, 5, 7), (7, 5), "L"), ((3, 4, 4), (4, 4), "RGB"), ((3, 200, 100), (32, 64), "RGB")):
        picture = Image.open(io.BytesIO(base64.b64decode(picture_uri(torch.rand(shape)).split(",")[1])))
        assert picture.size == size and picture.mode == mode
