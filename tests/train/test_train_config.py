"""What a run's configuration holds, what the recipes put in it, and what it refuses."""

import json
import math
import re

import pytest

from isoconv.errors import IsoconvError
from isoconv.train.config import TrainConfig, default_epsilons, recipe_settings
from train.toys import toy_config


def test_json_round_trip(tmp_path):
    config = toy_config(conv="ossn", optimiser="adam", lr=1 / 3, flip=True, seed=7, precision="bf16", margin=1.5)
    (tmp_path / "config.json").write_text(config.to_json())
    assert TrainConfig.read(tmp_path / "config.json") == config


def test_the_json_holds_every_setting_as_plain_data():
    fields = json.loads(toy_config(seed=3).to_json())
    assert fields.keys() == TrainConfig.__dataclass_fields__.keys()
    assert fields["input_shape"] == [1, 8, 8] and fields["classes"] == list("abcd") and fields["seed"] == 3


CHOICES = {
    "model": "small, large, fc3",
    "conv": "bcop, bcop-fixed, rko, ossn, svcm, rkl2ne, standard",
    "activation": "maxmin, relu",
    "orthogonalisation": "manifold, bjorck",
    "loss": "hinge, cross-entropy",
    "optimiser": "steepest, adam, rmsprop",
    "schedule": "exponential, linear, cosine, constant",
    "precision": "float32, bf16",
    "recipe": "default, paper",
}


def refused(message: str, **options: object) -> None:
    with pytest.raises(IsoconvError, match=f"^{re.escape(message)}$"):
        toy_config(**options)


@pytest.mark.parametrize("name", CHOICES)
def test_a_value_that_is_no_choice_is_refused(name):
    refused(f"Expected {name} to be one of {CHOICES[name]}. Got 'other'.", **{name: "other"})


@pytest.mark.parametrize("name", CHOICES)
def test_every_choice_is_taken(name):
    for value in CHOICES[name].split(", "):
        assert getattr(toy_config(**{name: value}), name) == value


@pytest.mark.parametrize("name", ["epochs", "batch_size", "project_every", "project_iterations"])
@pytest.mark.parametrize("value", [0, -3])
def test_counts_start_at_one(name, value):
    refused(f"Expected {name} of at least 1. Got {value}.", **{name: value})


@pytest.mark.parametrize("name", ["lr", "margin", "temperature"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_rates_are_positive_numbers(name, value):
    refused(f"Expected {name} to be a positive number. Got {value}.", **{name: value})


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_the_offset_is_a_number(value):
    with pytest.raises(IsoconvError, match="offset"):
        toy_config(loss="cross-entropy", offset=value)


@pytest.mark.parametrize("conv", ["bcop", "rko", "ossn", "svcm"])
@pytest.mark.parametrize(("data", "margin"), [("mnist", 1.5), ("cifar10", 0.5)])
def test_the_papers_recipe(data, margin, conv):
    config = TrainConfig(data, (1, 8, 8), ("a", "b"), conv=conv, **recipe_settings("paper", data, conv))
    assert (config.optimiser, config.lr, config.schedule) == ("adam", 1e-3, "exponential")
    assert (config.epochs, config.batch_size, config.orthogonalisation) == (200, 128, "bjorck")
    assert (config.loss, config.recipe) == ("hinge", "paper")
    assert config.margin == pytest.approx(math.sqrt(2) * margin)


def test_augmentation_is_for_colour_photographs_only():
    for data, padding, flip in [("cifar10", 4, True), ("stl10", 4, True), ("mnist", 0, False), ("digits", 0, False)]:
        config = TrainConfig(data, (1, 8, 8), ("a",), **recipe_settings("default", data, "bcop"))
        assert (config.crop_padding, config.flip) == (padding, flip), data


@pytest.mark.parametrize(
    ("conv", "optimiser"), [("bcop", "steepest"), ("rko", "steepest"), ("ossn", "adam"), ("standard", "adam")]
)
def test_the_default_recipe_chooses_the_optimiser_by_method(conv, optimiser):
    config = TrainConfig("digits", (1, 8, 8), ("a",), conv=conv, **recipe_settings("default", "digits", conv))
    assert config.optimiser == optimiser


def test_an_unknown_recipe_is_refused():
    with pytest.raises(IsoconvError, match=r"^Expected recipe to be one of default, paper\. Got 'mine'\.$"):
        recipe_settings("mine", "mnist", "bcop")


def test_radii_of_the_paper():
    assert default_epsilons("mnist") == (1.58, 0.3)
    assert default_epsilons("cifar10") == default_epsilons("some/folder") == (36 / 255, 0.1)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "3", "null", "{}", '{"data": "toy"}', '{"input_shape": 5, "classes": []}', "\x00\x01"],
)
def test_a_file_that_is_no_configuration_is_named_in_one_line(text, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(
        IsoconvError, match=f"^Expected a run's configuration in {re.escape(str(path))}. Got: "
    ) as caught:
        TrainConfig.read(path)
    assert "\n" not in str(caught.value)


def test_a_configuration_that_is_not_there_or_not_text(tmp_path):
    with pytest.raises(IsoconvError, match=r"^Expected a run's configuration in .*config\.json\. Got: "):
        TrainConfig.read(tmp_path / "config.json")
    (tmp_path / "config.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(IsoconvError, match=r"^Expected a run's configuration in .*config\.json\. Got: "):
        TrainConfig.read(tmp_path / "config.json")


def test_unknown_and_invalid_settings_in_a_file_are_refused(tmp_path):
    fields = json.loads(toy_config().to_json())
    (tmp_path / "a.json").write_text(json.dumps(fields | {"colour": "red"}))
    with pytest.raises(IsoconvError, match=r"^Expected a run's configuration in .*a\.json\. Got: .*colour"):
        TrainConfig.read(tmp_path / "a.json")
    (tmp_path / "b.json").write_text(json.dumps(fields | {"model": "huge"}))
    with pytest.raises(IsoconvError, match=r"^Expected model to be one of small, large, fc3\. Got 'huge'\.$"):
        TrainConfig.read(tmp_path / "b.json")
