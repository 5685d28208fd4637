"""isoconv wasserstein and isoconv gan: what they print and leave behind, and one sentence for whatever is wrong."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

QUICK = ["--epochs", "1", "--batch-size", "16", "--width", "16", "--depth", "1"]
TINY = ["--critic", "small", "--epochs", "1", "--batch-size", "8"]


def write_vectors(path, n=200, dimension=4, shift=0.0, seed=0):
    np.save(path, np.random.default_rng(seed).normal(size=(n, dimension)) + shift)
    return path


def write_pictures(folder, n=24, size=(16, 16), colour=False, bright=0):
    folder.mkdir(parents=True)
    generator = torch.Generator().manual_seed(bright)
    for k in range(n):
        pixels = torch.randint(0, 100, (*size, 3) if colour else size, generator=generator) + bright
        Image.fromarray(pixels.to(torch.uint8).numpy()).save(folder / f"{k:03}.png")
    return folder


@pytest.fixture
def pair(tmp_path):
    return write_vectors(tmp_path / "a.npy"), write_vectors(tmp_path / "b.npy", shift=1.0, seed=1)


@pytest.fixture
def measure(isoconv):
    """`measure(a, b, …)`: the result."""
    return lambda *words: isoconv("wasserstein", *words, "--json", "--out", "run").json


@pytest.fixture
def refuse(isoconv, tmp_path):
    """`refuse(words, a, b, …)`: one line that has these words, and nothing written where no run was."""

    def command(words, *arguments, out="run", name="wasserstein"):
        before = (tmp_path / out).exists()
        outcome = isoconv(name, *arguments, "--out", out)
        *_, line = outcome.err.splitlines()
        assert outcome._replace(err=f"{line}\n").is_refused(*([words] if isinstance(words, str) else words)), line
        assert (tmp_path / out).exists() == before

    return command


# What it does -----------------------------------------------------------------------------------------------------


def test_images_in_arrays_lie_in_the_range(measure, refuse, tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (2, 80, 1, 4, 4)).astype(np.uint8) // np.uint8(
        [[[[[1]]]], [[[[4]]]]]
    )
    for name, values in (("bytes", pixels), ("floats", pixels / 255)):
        for side, part in zip("ab", values, strict=True):
            np.save(tmp_path / f"{name}-{side}.npy", part)
    words = ["--range", "0,1", "--critic", "fc", *QUICK]
    results = [measure(f"{name}-a.npy", f"{name}-b.npy", *words, "--overwrite") for name in ("bytes", "floats")]
    assert all(result["method"] == "betting" and "pixels from 0 to 1" in result["units"] for result in results)
    assert results[0]["samples"] == results[1]["samples"]
    refuse("floats-a.npy", "floats-a.npy", "floats-b.npy", "--range", "0,0.5", *words[2:])
    mixed = measure("bytes-a.npy", "floats-b.npy", *words, "--overwrite")
    assert mixed["estimate"] == pytest.approx(results[0]["estimate"], rel=1e-3)
    for pair in (("bytes-a.npy", "floats-b.npy"), ("floats-b.npy", "bytes-a.npy")):
        refuse("--range, the values of black and white in floats-b.npy, over which bytes-a.npy", *pair, *words[2:])


def test_vectors_end_in_a_sentence_with_estimate_and_interval(isoconv, measure, refuse, pair, tmp_path):
    code, out, err = isoconv("wasserstein", *pair, "--out", "run", *QUICK)
    assert code == 0 and out.startswith("Estimate: ") and out.count("\n") == 2 and "≥" not in out
    assert "asymptotic" in out and "interval" in out and "L2 distance between vectors of dimension 4." in out
    assert err.splitlines()[0] == "critic fc" and err.splitlines()[1].startswith("epoch 1/1  difference ")
    assert err.endswith("The run is in run\n")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["interval"][0] < result["estimate"] < result["interval"][1]
    assert result["lower"] <= result["estimate"] < 3
    assert result["samples"] == [50, 50] and result["method"] == "asymptotic"
    with Image.open(tmp_path / "run" / "estimate.png") as plot:
        assert plot.size[0] > 300
    files = {path.name for path in (tmp_path / "run").iterdir()} - {".lock", "estimate.png"}
    assert files == {"config.json", "metrics.jsonl", "model.safetensors", "state.safetensors", "result.json"}
    assert measure(*pair, *QUICK, "--resume")["lower"] == measure(*pair, "--resume")["lower"] == result["lower"]
    refuse("already holds a run", *pair, *QUICK)


RANGE = ["--range=-9,9", "--confidence", "0.9", "--held-out", "0.5", "--whole", "b", "--batch-size", "16"]
OTHERS = {
    "epochs 2, where it has 1": ["--epochs", "2"],
    "batch_size 8, where it has 16": ["--batch-size", "8"],
    "lr 3.0, where it has": ["--lr", "3"],
    "value_range (-8.0, 8.0), where it has (-9.0, 9.0)": ["--range=-8,8"],
    "confidence 0.95, where it has 0.9": ["--confidence", "0.95"],
    "held_out 0.25, where it has 0.5": ["--held-out", "0.25"],
    "method asymptotic, where it has auto": ["--method", "asymptotic"],
    "whole (False, False), where it has (False, True)": ["--whole", "none"],
    "seed 1, where it has 0": ["--seed", "1"],
}


@pytest.mark.parametrize("words", [QUICK, ["--epochs", "1"]], ids=["one critic", "two critics"])
def test_a_run_is_resumed_with_its_options_and_no_others(words, measure, refuse, pair):
    result = measure(*pair, *words, *RANGE)
    assert result["method"] == "betting" and len(result["critics"]) == (2 if len(words) == 2 else 0)
    for again in ([], words, RANGE):
        assert measure(*pair, *again, "--resume")["lower"] == result["lower"]
    for message, others in OTHERS.items():
        refuse(message, *pair, *others, "--resume")
    critics = "fc and anchors" if result["critics"] else "fc"
    refuse(f"critic anchors, where it has {critics}", *pair, "--critic", "anchors", "--resume")
    refuse("first b.npy, where it has", "b.npy", pair[1], "--resume")


def test_a_run_of_images_is_resumed_at_its_size_and_one_of_an_earlier_version_as_it_says(measure, refuse, tmp_path):
    a, b = (write_pictures(tmp_path / name, bright=bright) for name, bright in (("a", 0), ("b", 100)))
    result = measure(a, b, "--size", "8", "--channels", "3", "--range", "0,1", *TINY)
    assert measure(a, b, "--resume")["units"] == result["units"]
    assert measure(a, b, "--size", "8", "--channels", "3", "--range", "0,1", "--resume")["lower"] == result["lower"]
    refuse("size (16, 16), where it has (8, 8)", a, b, "--size", "16", "--resume")
    refuse("channels 1, where it has 3", a, b, "--channels", "1", "--resume")
    for name in ("config.json", "state.safetensors"):  # an earlier version did not store how critics are judged
        path = tmp_path / "run" / name
        if name == "state.safetensors":
            path.unlink()
        else:
            fields = json.loads(path.read_text())
            unknown = ("confidence", "value_range", "method", "count")
            path.write_text(json.dumps({name: value for name, value in fields.items() if name not in unknown}))
    refuse("(-1.0, 1.0), where it has (0.0, 1.0)", a, b, "--range=-1,1", "--resume")
    again = measure(a, b, "--confidence", "0.9", "--resume")
    assert again["confidence"] == 0.9 and again["units"] == result["units"]


def test_sides_may_be_whole_a_range_makes_a_bound_and_repeated_rows_are_named(isoconv, tmp_path):
    for k, name in enumerate(("a.npy", "b.npy")):
        rows = np.random.default_rng(k).random((60, 3)) + k
        np.save(tmp_path / name, np.repeat(rows, 20, axis=0) if k else rows)
    words = ["wasserstein", "a.npy", "b.npy", "--range", "0,2", "--whole", "a", *QUICK, "--json"]
    for repeats, observations in (("either", None), ("copies", [60, 15])):
        code, out, err = isoconv(*words, "--repeats", repeats, "--out", repeats)
        result = json.loads(out)
        assert code == 0 and result["method"] == "betting" and observations in (None, result["samples"])
        assert "Warning: 1,140 of 1,200 samples in b.npy repeat others" in err
        assert ("--repeats" in err) == (repeats == "either")
    assert result["units"] == "L2 distance between vectors of dimension 3, coordinates from 0 to 2"


def test_two_critics_in_a_sentence(isoconv, pair):
    code, out, err = isoconv("wasserstein", *pair, "--out", "run", "--epochs", "1", "--batch-size", "16")
    assert code == 0 and "confidence 0.95" in out and "the better one of fc and anchors.\n" in out
    assert [line for line in err.splitlines() if line.startswith("critic")] == ["critic fc", "critic anchors"]


def test_folders_of_images(measure, refuse, tmp_path, pair):
    dark, light = write_pictures(tmp_path / "dark"), write_pictures(tmp_path / "light", colour=True, bright=150)
    options = ["--channels", "3", "--size", "8", "--range", "0,1", "--conv", "rko", "--activation", "relu"]
    result = measure(dark, light, *options, *TINY)
    assert result["units"] == "L2 distance between images of 3×8×8, pixels from 0 to 1"
    assert result["method"] == "betting" and result["samples"] == [6, 6]
    assert result["conv"] == "rko" and result["activation"] == "relu"
    others = {
        "colour images of 16×16": light,
        "grey images of 16×32": write_pictures(tmp_path / "b", size=(16, 32)),
        "vectors of dimension 4": pair[0],
    }
    for words, second in others.items():
        refuse(f"grey images of 16×16 in {dark} and {words} in {second}", dark, second, out="other")
    write_pictures(tmp_path / "mixed" / "sub", n=1, size=(20, 16))
    write_pictures(tmp_path / "mixed" / "other", n=2)
    refuse(["--size", "16×16"], tmp_path / "mixed", dark, out="other")
    (tmp_path / "empty").mkdir()
    refuse([tmp_path / "empty", ".png"], dark, tmp_path / "empty", out="other")
    (dark / "017.png").write_bytes((dark / "017.png").read_bytes()[:60])
    refuse("017.png", dark, dark, out="other")


def test_a_generator_is_trained_and_measured(isoconv, measure, refuse, tmp_path):
    folder = write_pictures(tmp_path / "pictures", n=32, size=(8, 8))
    words = [folder, "--batch-size", "8", "--epochs"]
    code, out, err = isoconv("gan", *words, "2", "--out", "gan")
    assert code == 0 and out == "The generator is in gan, and a grid of its images in gan/samples.png\n"
    assert err.splitlines()[-1].startswith("epoch 2/2  difference ")
    result = measure(folder, "gan", "--whole", "a", "--samples", "48", *TINY)
    assert result["samples"] == [32, 48] and result["observations"] == [32, 6] and result["method"] == "betting"
    assert isoconv("gan", *words, "2", "--out", "gan", "--resume").code == 0
    assert isoconv("gan", folder, "--out", "gan", "--resume").code == 0
    others = {"batch_size 16, where it has 8": ["--batch-size", "16"], "size (16, 16)": ["--size", "16"]}
    for message, other in others.items():
        refuse(message, folder, *other, "--resume", out="gan", name="gan")
    refuse("data digits, where it has", "digits", "--resume", out="gan", name="gan")
    refuse("epochs 1, where it has 2", *words, "1", "--resume", out="gan", name="gan")
    refuse("There is none", *words, "1", "--resume", out="other", name="gan")
    refuse("10×12", write_pictures(tmp_path / "odd", size=(10, 12)), "--batch-size", "8", out="other", name="gan")
    refuse("batch of 64 images", folder, out="other", name="gan")
    refuse("--size 16", folder, "gan", "--size", "16", out="w")
    np.save(tmp_path / "numbers.npy", np.random.default_rng(0).random((64, 1, 8, 8)))
    refuse("--range, the values of black and white in numbers.npy, over which gan", "numbers.npy", "gan", out="w")
    refuse("for --data. Got a folder of images.", folder, "--data", ".", out="other", name="gan")
    refuse("whole distribution", folder, "gan", "--whole", "b", out="w")
    assert isoconv("certify", "gan").is_refused("the run of a classifier in gan. Got that of a generator")
    (tmp_path / "run" / "model.safetensors").unlink()  # what kind of run it is comes first
    for words in (("predict", "run", "photo.png"), ("report", "run"), ("train", "--resume", "--out", "run")):
        assert isoconv(*words).is_refused("the run of a classifier in run. Got that of a critic")
    refuse("the run of a generator in run. Got that of a critic", folder, "run", out="w")


# What is wrong ----------------------------------------------------------------------------------------------------


def test_vectors_that_cannot_be_told_apart_and_what_is_not_there(refuse, pair, tmp_path):
    refuse(["dimension 4", "dimension 5"], pair[0], write_vectors(tmp_path / "c.npy", dimension=5))
    few = write_vectors(tmp_path / "few.npy", n=20)
    refuse(["at least 30", "Got 5"], few, few, "--epochs", "1")
    np.save(tmp_path / "flat.npy", np.ones((200, 3)))
    refuse("apart", "flat.npy", "flat.npy", "--whole", "both")
    np.save(tmp_path / "bad.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    refuse(["bad.npy", "cannot be read"], "bad.npy", "bad.npy")
    (tmp_path / "notes.txt").write_text("")
    for name in ("nowhere", "notes.txt", "nowhere.npy"):
        refuse(name, name, "nowhere")


WRONG = {
    "--whole c": "--whole",
    "--confidence 1": "confidence",
    "--range 1,0": "--range",
    "--range 0,1": "a.npy (--range)",
    "--resume --overwrite": "both",
    "--resume": "There is none",
    "--critic dcgan": "images",
    "--method betting": "--range",
    "--batch-size 1000": "--batch-size",
    "--lr -1": "lr",
    "--critic fc --conv rko": "--conv",
    "--critic fc --anchors 8": "--anchors",
    "--critic anchors --activation relu": "--activation",
}


NO_EFFECT = {
    "--size 8": "a data set by its name or a folder of images for --size. Got a .npy file.",
    "--channels 3": "for --channels. Got a .npy file",
    "--samples 10": "a generator for --samples",
    "--download": "a data set by its name for --download",
    "--data .": "a data set by its name for --data",
}


@pytest.mark.parametrize("options", NO_EFFECT)
def test_options_of_sources_that_are_not_there(options, refuse, pair):
    refuse(NO_EFFECT[options], *pair, *options.split())
    refuse("for --data. Got a folder of images and a .npy file", ".", pair[1], "--data", ".")


@pytest.mark.parametrize("options", WRONG)
def test_options_that_cannot_be(options, refuse, pair):
    refuse(WRONG[options], *pair, *options.split())
