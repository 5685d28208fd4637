"""What a run's configuration holds, what the recipes put in it, what it refuses; and the schedules."""

import dataclasses
import json
import math
import re
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from isoconv.cli import main
from isoconv.data import OWN_IMAGES
from isoconv.losses import LOSSES, OPTIONS, Loss, Option
from isoconv.nn.methods import METHODS
from isoconv.pretrained import pretrained_folder
from isoconv.train import train
from isoconv.train.config import SCHEDULES, TrainConfig, default_epsilons, recipe_settings
from train.toys import refused, toy_config, write_pictures


def test_the_json_holds_every_setting_as_plain_data():
    settings = {"resize": "crop", "accumulate": 2, "resized_crop": (0.5, 1.0), "rand_augment": (2, 9.0)}
    settings |= {"colour_jitter": (0.4, 0.4, 0.0), "patch": 2, "checkpoint_activations": True, "augment_epochs": 1}
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


CHOICES = ("model", "conv", "activation", "orthogonalisation", "loss", "optimiser", "schedule", "precision", "recipe")
POSITIVE, COUNTS = ("lr", "margin", "temperature"), ("epochs", "batch_size", "project_every", "project_iterations")
REFUSED = [({name: "other"}, f"{name} .*Got 'other'") for name in (*CHOICES, "resize")]
REFUSED += [({name: 0}, f"{name} .*Got 0") for name in COUNTS]
REFUSED += [({name: x}, f"{name} .*Got {x!r}") for name in POSITIVE for x in (0.0, -1.0, math.inf, math.nan)]
REFUSED += [({"offset": x}, f"offset .*Got {x!r}") for x in (math.nan, -math.inf)]
REFUSED += [({name: -1}, f"{name} .*Got -1") for name in ("crop_padding", "patch")]
REFUSED += [
    ({"loss_options": {"x": 1.0}}, "option.*'x'"),
    ({"loss_options": {"temperature": -1.0}}, "option.*temperature"),
    ({"loss_options": {"offset": math.inf}}, "option.*offset"),
    ({"resized_crop": (0.0, 1.0)}, "resized_crop"),
    ({"rand_augment": (2, 31.0)}, "rand_augment"),
    ({"augment": (2.0, 1.0)}, "augment"),
    ({"colour_jitter": (0.0, 0.0, 0.5)}, "saturation"),  # which grey images do not have
    ({"input_shape": (1, 0, 8)}, "input_shape"),
    *(({name: "3"}, f'{name} to be .*Got "3"') for name in ("epochs", "lr", "flip")),
    ({"epochs": True}, "epochs to be int. Got true"),
    ({"epochs": np.float64(3)}, "epochs to be int. Got 3.0"),
    ({"augment": 0.5}, r"augment to be tuple\[float, float\]. Got 0.5"),
    ({"model": "mine.py:build", "patch": 2}, "mine.py:build, which takes none. Got 2"),
]


def test_numbers_of_numpy_and_lists_become_pythons():
    given = {
        "epochs": np.int64(3),
        "lr": np.float64(0.5),
        "validation": np.float32(0.25),
        "augment": [0.5, np.float64(1)],
    }
    options = {"loss": "cross-entropy", "loss_options": {"temperature": np.float64(0.5)}}
    config = toy_config(**given, **options)
    given |= {"epochs": 3, "lr": 0.5, "validation": 0.25, "augment": (0.5, 1.0)}
    assert config == toy_config(**given, loss="cross-entropy", loss_options={"temperature": 0.5})
    numbers = (config.lr, config.validation, *config.augment, *config.loss_options.values())
    assert {type(number) for number in numbers} == {float} and json.loads(config.to_json())["epochs"] == 3


def test_what_is_no_setting_is_refused():
    usual = {"data": "toy", "input_shape": (1, 8, 8), "classes": tuple("abcd"), "loss": "cross-entropy"}
    for options, words in REFUSED:
        refused(words, TrainConfig, **usual | options)
    for recipe, conv in (("mine", "bcop"), ("default", "eco")):
        refused(r"mine|eco", recipe_settings, recipe, "mnist", conv)


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


def test_the_default_recipe_augments_colour_photographs_only():
    for data, augmented in (("cifar10", True), ("stl10", True), ("mnist", False), ("digits", False)):
        fields = recipe_settings("default", data, "bcop")
        assert (fields["crop_padding"], fields["flip"]) == (4 * augmented, augmented), data


def test_a_resized_crop_takes_the_place_of_the_recipes_padding(monkeypatch, tmp_path):
    """Unless both are asked for."""
    padded = replace(OWN_IMAGES, crop_padding=2)
    monkeypatch.setattr("isoconv.train.config.OWN_IMAGES", padded)
    data = str(write_pictures(tmp_path / "pictures", 40))
    options = {"model": "small", "epochs": 1, "device": "cpu"}
    _, config = train(data, tmp_path / "padded", **options)
    assert (config.crop_padding, config.resized_crop) == (2, (1.0, 1.0))
    _, config = train(data, tmp_path / "cropped", resized_crop=(0.5, 1.0), **options)
    assert (config.crop_padding, config.resized_crop) == (0, (0.5, 1.0))
    refused("not both", train, data, tmp_path / "both", resized_crop=(0.5, 1.0), crop_padding=1, **options)
    assert not (tmp_path / "both").exists()


def test_a_file_that_is_no_configuration_is_named_in_one_line(tmp_path):
    fields, path = json.loads(toy_config().to_json()), tmp_path / "config.json"
    wrong = {"colour": "red", "model": "huge", "epochs": 1.5, "classes": [1], "input_shape": [1, 2], "lr": math.nan}
    contents = [b"", b"[]", b'{"data": "toy"}', b'{"input_shape": 5, "classes": []}', b"\xff\xfe\x00"]
    cases = [(content, re.escape(str(path))) for content in contents]
    for content, word in [*cases, *((json.dumps(fields | {name: wrong[name]}).encode(), name) for name in wrong)]:
        path.write_bytes(content)
        refused(word, TrainConfig.read, path)


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

    monkeypatch.setitem(OPTIONS, "sharpness", Option(""))
    monkeypatch.setitem(LOSSES, "squared", Loss("squared", "least squares", squared))
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


# Schedules ------------------------------------------------------------------------------------------------------------


def test_schedules_are_their_formulas():
    """The exponential one is a tenth every sixty epochs, counted from one."""
    for step, exponent in ((0, 1), (9, 1), (10, 2), (599, 60), (600, 61), (1999, 200)):
        assert SCHEDULES["exponential"](step, 2000, 10) == pytest.approx(0.1 ** (exponent / 60), rel=1e-12)
    for step, linear, cosine in ((0, 1.0, 1.0), (25, 0.75, (1 + math.sqrt(0.5)) / 2), (50, 0.5, 0.5), (100, 0.0, 0.0)):
        factors = [SCHEDULES[name](step, 100, 10) for name in ("linear", "cosine", "constant")]
        assert factors == pytest.approx([linear, cosine, 1.0], abs=1e-15)


def test_one_cycle_rises_for_a_tenth_of_the_steps_and_falls_to_zero():
    factors = [SCHEDULES["one-cycle"](step, 1000, 10) for step in range(1000)]
    assert max(factors) == pytest.approx(1, abs=0.006) and factors.index(max(factors)) in (99, 100)
    assert factors[:100] == sorted(factors[:100]) and factors[100:] == sorted(factors[100:], reverse=True)
    assert factors[0] == pytest.approx(0.005) and factors[-1] == pytest.approx(0.0005 / 0.9)
