"""What a run's configuration holds, what the recipes put in it, and what it refuses."""

import dataclasses
import json
import math
import re
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from isoconv.cli import main
from isoconv.data import OWN_IMAGES
from isoconv.errors import IsoconvError
from isoconv.losses import LOSSES, Loss, Option
from isoconv.nn.methods import METHODS
from isoconv.pretrained import pretrained_folder
from isoconv.train import train
from isoconv.train.config import TrainConfig, default_epsilons, recipe_settings
from train.toys import toy_config, write_pictures


def test_the_json_holds_every_setting_as_plain_data():
    settings = {"resize": "crop", "accumulate": 2, "resized_crop": (0.5, 1.0), "rand_augment": (2, 9.0)}
    settings |= {"colour_jitter": (0.4, 0.4, 0.0), "patch": 2, "checkpoint_activations": True}
    settings |= {"skip_broken": True, "validation": 0.1, "patience": 3, "prolonged": ((2, 8),)}
    config = toy_config(conv="ossn", optimiser="adam", lr=1 / 3, flip=True, seed=3, augment=(0.5, 1.0), **settings)
    fields = json.loads(config.to_json())
    assert TrainConfig.from_fields(fields) == config
    assert fields.keys() == {field.name for field in dataclasses.fields(TrainConfig)} - {"loss_options", "graph"}
    assert json.loads(toy_config(loss_options={"margin": 0.5}).to_json())["loss_options"] == {"margin": 0.5}
    usual = toy_config(patch=1)
    assert usual == toy_config() and not {"patch", "checkpoint_activations"} & usual.to_fields().keys()
    assert fields["input_shape"] == [1, 8, 8] and fields["classes"] == list("abcd") and fields["seed"] == 3


def test_a_run_that_names_no_patch_is_what_it_was():
    """Also on large images, for which a new run would get larger patches."""
    for model, patch in (("large", 1), ("shift-s", 4), ("fc3", 0), ("mine.py:build", 0)):
        fields = TrainConfig("photos", (3, 96, 96), ("a", "b"), model=model).to_fields()
        assert "patch" not in fields and TrainConfig.from_fields(fields).patch == patch
    with pytest.raises(IsoconvError, match=r"mine.py:build, which takes none. Got 2"):
        TrainConfig("photos", (3, 96, 96), ("a", "b"), model="mine.py:build", patch=2)


CHOICES = ("model", "conv", "activation", "orthogonalisation", "loss", "optimiser", "schedule", "precision", "recipe")
CHOICES += ("resize",)
WRONG = [(name, "other") for name in CHOICES]
WRONG += [(name, 0) for name in ("epochs", "batch_size", "project_every", "project_iterations")]
WRONG += [(name, value) for name in ("lr", "margin", "temperature") for value in (0.0, -1.0, math.inf, math.nan)]
WRONG += [("offset", math.nan), ("offset", -math.inf), ("crop_padding", -1), ("patch", -1)]
WRONG_PAIRS = {
    "resized_crop": (0.0, 1.0),
    "rand_augment": (2, 31.0),
    "colour_jitter": (0.0, 0.0, 0.5),
    "augment": (2.0, 1.0),
}


def test_what_is_no_setting_is_refused():
    cases = [({"loss": "cross-entropy", name: value}, rf"{name} .*Got {value!r}") for name, value in WRONG]
    for name, value, word in (("x", 1.0, "'x'"), ("temperature", -1.0, "temperature"), ("offset", math.inf, "offset")):
        cases.append(({"loss": "cross-entropy", "loss_options": {name: value}}, rf"option.*{word}"))
    for options, words in cases:
        with pytest.raises(IsoconvError, match=words):
            toy_config(**options)
    for name, values in WRONG_PAIRS.items():  # of a grey data set, which has no saturation
        with pytest.raises(IsoconvError, match="saturation" if name == "colour_jitter" else name):
            toy_config(**{name: values})
    with pytest.raises(IsoconvError, match="input_shape"):
        replace(toy_config(), input_shape=(1, 0, 8))
    for recipe, conv in (("mine", "bcop"), ("default", "eco")):
        with pytest.raises(IsoconvError, match=r"mine|eco"):
            recipe_settings(recipe, "mnist", conv)


@pytest.mark.parametrize(("data", "margin", "conv"), [("mnist", 1.5, "bcop"), ("cifar10", 0.5, "svcm")])
def test_the_papers_recipe_and_radii(data, margin, conv):
    config = TrainConfig(data, (1, 8, 8), ("a", "b"), conv=conv, **recipe_settings("paper", data, conv))
    assert (config.optimiser, config.lr, config.schedule) == ("adam", 1e-3, "exponential")
    assert (config.epochs, config.batch_size, config.orthogonalisation) == (200, 128, "bjorck")
    assert (config.loss, config.recipe) == ("hinge", "paper")
    assert (config.project_every, config.project_iterations) == (100, 50)
    assert config.margin == pytest.approx(math.sqrt(2) * margin)
    assert default_epsilons(data) == ((1.58, 0.3) if data == "mnist" else default_epsilons("some/folder"))
    assert default_epsilons("cifar10") == (36 / 255, 0.1)


def test_the_default_recipe_projects_once_after_every_update():
    for data, conv, model in (("mnist", "svcm", "large"), ("cifar10", "bcop", "network.py:build")):
        fields = recipe_settings("default", data, conv, model) | {"conv": conv}
        fields = json.loads(TrainConfig(data, (1, 8, 8), ("a", "b"), **fields).to_json())
        assert (fields["project_every"], fields["project_iterations"]) == (1, 1)


def test_augmentation_is_for_colour_photographs_only():
    for data, padding, flip in [("cifar10", 4, True), ("stl10", 4, True), ("mnist", 0, False), ("digits", 0, False)]:
        settings = recipe_settings("default", data, "bcop")
        assert (settings["crop_padding"], settings["flip"]) == (padding, flip), data


def test_a_resized_crop_takes_the_place_of_the_recipes_padding(monkeypatch, tmp_path):
    """Unless both are asked for."""
    padded = dataclasses.replace(OWN_IMAGES, crop_padding=2)
    monkeypatch.setattr("isoconv.train.config.OWN_IMAGES", padded)
    data = str(write_pictures(tmp_path / "pictures", 40))
    options = {"model": "small", "epochs": 1, "device": "cpu"}
    _, config = train(data, tmp_path / "padded", **options)
    assert (config.crop_padding, config.resized_crop) == (2, (1.0, 1.0))
    _, config = train(data, tmp_path / "cropped", resized_crop=(0.5, 1.0), **options)
    assert (config.crop_padding, config.resized_crop) == (0, (0.5, 1.0))
    with pytest.raises(IsoconvError, match="not both"):
        train(data, tmp_path / "both", resized_crop=(0.5, 1.0), crop_padding=1, **options)
    assert not (tmp_path / "both").exists()


def test_a_file_that_is_no_configuration_is_named_in_one_line(tmp_path):
    fields, path = json.loads(toy_config().to_json()), tmp_path / "config.json"
    wrong = {"colour": "red", "model": "huge", "epochs": 1.5, "classes": [1], "input_shape": [1, 2], "lr": math.nan}
    contents = [b"", b"[]", b'{"data": "toy"}', b'{"input_shape": 5, "classes": []}', b"\xff\xfe\x00"]
    cases = [(content, re.escape(str(path))) for content in contents]
    for content, word in [*cases, *((json.dumps(fields | {name: wrong[name]}).encode(), name) for name in wrong)]:
        path.write_bytes(content)
        with pytest.raises(IsoconvError, match=word) as caught:
            TrainConfig.read(path)
        assert "\n" not in str(caught.value)


def test_a_configuration_of_an_older_version_is_read():
    path = pretrained_folder("mnist-small") / "config.json"
    assert json.loads(TrainConfig.read(path).to_json()) == json.loads(path.read_text())  # and keeps all that it holds


def test_a_new_method_is_one_record(monkeypatch):
    """It is a choice, and the recipes know what it wants."""
    for on_manifold, optimiser in ((True, "steepest"), (False, "adam")):
        method = replace(METHODS["rko"], name="toy", on_manifold=on_manifold)
        monkeypatch.setitem(METHODS, "toy", method)
        assert toy_config(**(recipe_settings("default", "mnist", "toy") | {"conv": "toy"})).optimiser == optimiser


def test_a_new_loss_is_one_line(monkeypatch, tmp_path):
    """A choice, with options of its own, that a run is trained with, also by the command, and that its folder keeps."""

    def squared(logits: Tensor, labels: Tensor, sharpness: float = 1.0) -> Tensor:
        return sharpness * (logits - 2 * torch.eye(logits.shape[1])[labels]).square().mean()

    monkeypatch.setitem(LOSSES, "squared", Loss("squared", "least squares", squared, {"sharpness": Option("")}))
    data = str(write_pictures(tmp_path / "pictures", 40))
    command = ["isoconv", "train", data, "--loss", "squared", "--model", "small", "--epochs", "1", "--lr", "1e-6"]
    losses = []
    for k, sharpness in enumerate((1.0, 3.0)):
        options = [] if k == 0 else ["--loss-option", "sharpness=3"]
        monkeypatch.setattr(sys, "argv", [*command, "--device", "cpu", "--out", str(tmp_path / str(k)), *options])
        with pytest.raises(SystemExit, match=r"^0$"):
            main()
        assert TrainConfig.read(tmp_path / str(k) / "config.json").options_of_loss() == {"sharpness": sharpness}
        losses.append(json.loads((tmp_path / str(k) / "metrics.jsonl").read_text())["loss"])
    assert losses[1] == pytest.approx(3 * losses[0], rel=1e-3)


def test_losses_recipes_and_the_rest_are_read_without_torch():
    code = "import sys; from isoconv.train import LOSSES, OPTIMISERS, RECIPES, SCHEDULES, recipe_settings; "
    code += "recipe_settings('default', 'mnist', 'bcop'); assert 'hinge' in LOSSES and 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
