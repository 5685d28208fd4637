"""What is measured without training a network to its end: counts, the two drawings, steps, builds."""

import json
from pathlib import Path

import pytest
import torch

from isoconv.errors import IsoconvError
from isoconv.pretrained import is_pretrained, load_pretrained, pretrained_folder, pretrained_names
from isoconv.train.config import TrainConfig
from isoconv.train.reproduction import (
    RESULTS,
    ClassifierCell,
    MeasuredCell,
    Settings,
    measure,
    read_result,
    with_instant,
)
from isoconv.train.reproduction import complexity as complexity_module
from isoconv.train.reproduction import timing as timing_module
from train.toys import stop_after

ROOT = Path(__file__).resolve().parents[2]
PAPER_COUNTS = {
    ("mnist", "small"): 166_406, ("mnist", "large"): 1_974_762, ("mnist", "fc3"): 2_913_290,
    ("cifar10", "small"): 214_918, ("cifar10", "large"): 2_466_858, ("cifar10", "fc3"): 5_256_202,
    ("stl10", "dcgan"): 2_764_737,
}  # fmt: skip


@pytest.fixture
def settings(tmp_path) -> Settings:
    return Settings(tmp_path / "results", tmp_path / "runs", quick=True)


def measured(name: str, settings: Settings) -> dict:
    cell = MeasuredCell(name)
    assert measure([cell], settings).complete
    record = read_result(settings.results, cell)
    assert record is not None and record["status"] == "ok", record
    return record


def test_counts_are_the_papers_whatever_the_method(settings):
    rows = measured("parameters", settings)["results"]
    assert {(row["dataset"], row["model"]) for row in rows} == set(PAPER_COUNTS)
    for row in rows:
        assert row["effective"] == PAPER_COUNTS[row["dataset"], row["model"]]
        if row["conv"] not in ("bcop", None):
            assert row["raw"] == row["effective"]  # a kernel is its own parameter
    (raw,) = (row["raw"] for row in rows if (row["dataset"], row["model"], row["conv"]) == ("mnist", "small", "bcop"))
    # After downsampling the kernels are 2×2: 4→16 and 64→32 channels. Algorithm 1 has H, c_in×c_out, and two matrices
    # c×⌊c/2⌋, c the larger: 4·16 + 2·16·8 + 64·32 + 2·64·32, then biases, then two linear layers.
    assert raw == (64 + 256 + 16) + (2048 + 4096 + 32) + 156_900 + 1_010


def test_the_drawing_of_a_block_convolution(settings):
    record = measured("figure-bconv", settings)
    v, out = (torch.tensor(record[name], dtype=torch.float64) for name in ("input", "output"))
    assert torch.equal(out[0], v[0].roll(1)) and torch.equal(out[1], v[1])  # P moves x on, I−P leaves y in place
    parts = torch.tensor(record["moved"]) + torch.tensor(record["kept"])
    assert torch.allclose(parts.double(), out) and record["norms"]["input"] == pytest.approx(record["norms"]["output"])


def test_the_drawing_of_downsampling(settings):
    record = measured("figure-downsampling", settings)
    image = torch.tensor(record["input"])
    expected = [image[i::2, j::2].tolist() for i in (0, 1) for j in (0, 1)]
    assert record["channels"] == expected and record["back"] == record["input"] and record["inverted"]


def test_what_takes_no_time_need_not_be_asked_for():
    cells = [MeasuredCell("figure-bconv", instant=True), MeasuredCell("time")]
    assert list(with_instant(cells, {})) == cells[:1]
    kept = {cells[0]: {"status": "ok"}}
    assert with_instant(cells, kept) == kept


def test_seconds_per_step(settings, monkeypatch):
    monkeypatch.setattr(timing_module, "_METHODS", ("standard", "svcm"))
    monkeypatch.setattr(timing_module, "_RECIPES", ("default",))
    record = measured("time", settings)
    ordinary, svcm = record["results"]
    assert (ordinary["conv"], svcm["conv"]) == ("standard", "svcm") and ordinary["seconds"]["median"] > 0
    assert "projection_seconds" not in ordinary
    assert svcm["seconds"]["median"] > svcm["projection_seconds"] / 100 > 0  # its share of the projections is in it


def test_seconds_to_build(settings, monkeypatch):
    methods = {key: make for key, make in complexity_module._METHODS.items() if key[1] == "default"}
    monkeypatch.setattr(complexity_module, "_METHODS", methods)
    monkeypatch.setattr(complexity_module, "_AT_CHANNELS", 4)
    record = measured("complexity", settings)
    assert [found["conv"] for found in record["results"]] == ["bcop", "rko", "rkl2ne", "ossn", "svcm"]
    for found in record["results"]:
        assert [point[0] for point in found["channels"]] == [4, 8] and [point[0] for point in found["sizes"]] == [4, 8]
        assert all(seconds > 0 for _, seconds in found["channels"] + found["sizes"])


@pytest.mark.parametrize("name", ["time", "complexity"])
def test_measurements_stop_too(name, settings):
    settings.interrupted = stop_after(2)
    assert measure([MeasuredCell(name)], settings).left == [MeasuredCell(name)]
    assert read_result(settings.results, MeasuredCell(name)) is None


# Networks that come with isoconv --------------------------------------------------------------------------------------


def test_pretrained_networks_are_plain_and_small_enough():
    names = pretrained_names()
    assert names == ["cifar10-large", "cifar10-small", "mnist-small"]
    assert sum(f.stat().st_size for name in names for f in pretrained_folder(name).iterdir()) <= 25_000_000
    for name in names:
        model = load_pretrained(name)
        assert not model.training and {p.dtype for p in model.parameters()} == {torch.float32}
        assert {f.name for f in pretrained_folder(name).iterdir()} == {"config.json", "model.safetensors"}


@pytest.mark.parametrize("name", pretrained_names())
def test_a_pretrained_network_is_one_of_the_table(name):
    """Seed 0 of a cell of table 1, by its settings and by the bound of its weights; which is close to 1."""
    from isoconv.certify import lipschitz_bound

    dataset, network = name.split("-")
    cell = ClassifierCell(dataset, network, "bcop")
    record = read_result(ROOT / RESULTS, cell)
    config = TrainConfig.read(pretrained_folder(name) / "config.json").to_fields()
    assert record is not None and config.pop("seed") == record["results"][0]["seed"] == 0
    config["classes"] = len(config["classes"])
    assert json.loads(json.dumps(config)) == record["config"]
    model = load_pretrained(name)
    assert model(torch.rand(2, *config["input_shape"])).shape == (2, 10)
    assert sum(p.numel() for p in model.parameters()) == PAPER_COUNTS[dataset, network]
    bound = lipschitz_bound(model, config["input_shape"]).value
    of_the_table = record["results"][0]["lipschitz_bound"]  # which was found on a GPU
    assert 1 <= bound < 1.0001 and bound == pytest.approx(of_the_table, abs=2e-8)


def test_pretrained_networks_that_are_not_there(tmp_path):
    with pytest.raises(
        IsoconvError, match=r"^Expected a network that comes with isoconv: .*cifar10-large.*. Got 'vgg'.$"
    ):
        load_pretrained("vgg")
    with pytest.raises(IsoconvError, match=r"Got '../pretrained/cifar10-large'.$"):
        pretrained_folder("../pretrained/cifar10-large")
    assert is_pretrained(pretrained_folder("cifar10-large")) and not is_pretrained(tmp_path / "cifar10-large")
