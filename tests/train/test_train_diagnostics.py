"""diagnostics.json and gallery.json: what is in them is true of the run's network, and of no other."""

import base64
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from isoconv.certify import Certifier
from isoconv.certify.diagnostics import gradient_norms, singular_values
from isoconv.data import as_float
from isoconv.errors import IsoconvError
from isoconv.train.config import make_model
from isoconv.train.diagnostics import complete_run, gallery_entries, lacks_images, picture_uri
from isoconv.train.run_folder import load_run
from isoconv.train.runs import open_run
from train.toys import toy, toy_config, train_toy

TEST = toy(64, seed=1)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    for conv in ("bcop", "standard"):
        train_toy(folder / conv, toy_config(conv=conv, optimiser="adam", lr=3e-3))
        run = open_run(folder / conv)
        assert lacks_images(run)
        assert complete_run(run, TEST, images=6) == ["certified.json", "diagnostics.json", "gallery.json"]
        assert complete_run(run, TEST) == [] and not lacks_images(run)  # what is there is not made again
    return {conv: folder / conv for conv in ("bcop", "standard")}


def read(path: Path, name: str) -> dict:
    return json.loads((path / name).read_text())


@pytest.mark.parametrize("conv", ["bcop", "standard"])
def test_the_histograms_are_of_all_singular_values_before_and_after(runs, conv):
    model, config = load_run(runs[conv])
    spectra = {"before": singular_values(make_model(config), (1, 8, 8)), "after": singular_values(model, (1, 8, 8))}
    layers = read(runs[conv], "diagnostics.json")["layers"]
    assert [layer["title"] for layer in layers] == [spectrum.title for spectrum in spectra["after"]]
    for k, layer in enumerate(layers):
        for moment in ("before", "after"):
            values, shown = spectra[moment][k].values, layer[moment]
            centres = torch.arange(len(shown["counts"])) * layer["width"]
            assert sum(shown["counts"]) == len(values)
            assert (shown["min"], shown["max"]) == (float(values.min()), float(values.max()))
            mean = float((torch.tensor(shown["counts"]) * centres).sum()) / len(values)
            assert mean == pytest.approx(shown["mean"], abs=layer["width"] / 2 + 1e-9)
            if conv == "bcop":
                assert shown["counts"][round(1 / layer["width"])] == len(values)  # all of them are 1
    if conv == "standard":
        assert any(layer["before"]["counts"] != layer["after"]["counts"] for layer in layers)


def test_the_gradients_are_those_of_both_networks(runs):
    model, config = load_run(runs["standard"])
    shown = read(runs["standard"], "diagnostics.json")["gradient_norms"]
    pixels = as_float(TEST.images, torch.float64)
    assert shown["images"] == 64
    for moment, network in (("before", make_model(config)), ("after", model)):
        norms = gradient_norms(network, pixels, TEST.labels).norms
        assert shown[moment]["mean"] == pytest.approx(norms.mean(dim=1).tolist())
        assert all(a <= b for a, b in zip(shown[moment]["low"], shown[moment]["high"], strict=True))
    assert shown["before"]["mean"] != pytest.approx(shown["after"]["mean"])


@pytest.mark.parametrize("conv", ["bcop", "standard"])
def test_the_gallery_tells_the_truth(runs, conv):
    model, config = load_run(runs[conv])
    proved = Certifier(model, config.input_shape)(as_float(TEST.images, torch.float64))
    entries = read(runs[conv], "gallery.json")["images"]
    assert len(entries) == 6 and {entry["label"] for entry in entries} == {0, 1, 2, 3}
    fooled = 0
    for entry in entries:
        index = entry["index"]
        assert entry["label"] == int(TEST.labels[index]) and entry["prediction"] == int(proved.prediction[index])
        assert entry["radius"] == pytest.approx(float(proved.radius[index]), rel=1e-12)
        assert np.array_equal(pixels_of(entry["image"]), TEST.images[index, 0].numpy())
        other = entry["adversarial"]
        if entry["prediction"] != entry["label"]:
            assert other is None
        elif other is not None:
            fooled += 1
            assert other["norm"] > entry["radius"] and other["prediction"] != entry["label"]
            moved = (pixels_of(other["image"]).astype(float) - TEST.images[index, 0].numpy()) / 255
            assert np.linalg.norm(moved) == pytest.approx(other["norm"], abs=8 * 0.5 / 255 + 1e-9)  # 64 pixels, rounded
    assert fooled >= 3


def pixels_of(uri: str) -> np.ndarray:
    assert uri.startswith("data:image/png;base64,")
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.split(",")[1]))))


def fail(handle: int) -> None:
    raise OSError(28, "No space left on device")


def test_what_is_left_of_another_network_is_replaced_or_taken_away(runs, tmp_path, monkeypatch):
    train_toy(tmp_path / "run", toy_config(seed=1))
    for name in ("diagnostics.json", "gallery.json"):
        (tmp_path / "run" / name).write_bytes((runs["bcop"] / name).read_bytes())
    run = open_run(tmp_path / "run")
    assert lacks_images(run)
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", fail)
        with pytest.raises(IsoconvError, match=r"^Cannot write .*diagnostics.json: No space"):
            complete_run(run, None)
    assert complete_run(run, None) == ["diagnostics.json"]
    assert not (run.folder / "gallery.json").exists()
    assert read(run.folder, "diagnostics.json")["gradient_norms"] is None and lacks_images(run)
    assert complete_run(run, TEST, images=1) == ["certified.json", "diagnostics.json", "gallery.json"]
    assert read(run.folder, "diagnostics.json")["gradient_norms"] is not None


def test_all_classes_take_their_turn(runs):
    model, config = load_run(runs["bcop"])
    labels = torch.tensor([0, 0, 1, 0, 2, 1])
    entries = gallery_entries(Certifier(model, config.input_shape), replace(TEST.take(6), labels=labels), 5)
    assert [entry.index for entry in entries] == [0, 2, 4, 1, 5]


def test_pictures_keep_their_shape_and_are_small():
    for shape, size, mode in (((1, 5, 7), (7, 5), "L"), ((3, 4, 4), (4, 4), "RGB"), ((3, 200, 100), (32, 64), "RGB")):
        picture = Image.open(io.BytesIO(base64.b64decode(picture_uri(torch.rand(shape)).split(",")[1])))
        assert picture.size == size and picture.mode == mode
