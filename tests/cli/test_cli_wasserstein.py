"""isoconv wasserstein and isoconv gan: what they print and leave behind, and one sentence for whatever is wrong."""

import json
import math
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

BOTH = ["--epochs", "1", "--batch-size", "16"]  # both critics for vectors
QUICK = [*BOTH, "--width", "16", "--depth", "1"]
TINY = ["--critic", "small", "--epochs", "1", "--batch-size", "8"]


def write_vectors(path, n=200, dimension=4, shift=0.0, seed=0):
    array = np.random.default_rng(seed).normal(size=(n, dimension)) + shift
    np.save(path, array)
    return path


def write_pictures(folder, n=24, size=(16, 16), colour=False, bright=0, seed=0):
    folder.mkdir(parents=True)
    generator = torch.Generator().manual_seed(seed)
    shape = (*size, 3) if colour else size
    for k in range(n):
        pixels = (torch.randint(0, 100, shape, generator=generator) + bright).to(torch.uint8).numpy()
        Image.fromarray(pixels).save(folder / f"{k:03}.png")
    return folder


@pytest.fixture
def pair(tmp_path):
    return write_vectors(tmp_path / "a.npy"), write_vectors(tmp_path / "b.npy", shift=1.0, seed=1)


@pytest.fixture
def measure(isoconv):
    """`measure(a, b, …)`: the result, which is one object on one line of stdout."""

    def command(*words, out="run"):
        outcome = isoconv("wasserstein", *words, "--json", "--out", out)
        assert outcome.code == 0 and outcome.out.count("\n") == 1, outcome.err
        return json.loads(outcome.out)

    return command


@pytest.fixture
def refuse(isoconv, tmp_path):
    """`refuse(words, a, b, …)`: one line that has these words, and nothing written where no run was."""

    def command(words, *arguments, out="run", name="wasserstein"):
        before = (tmp_path / out).exists()
        outcome = isoconv(name, *arguments, "--out", out)
        line = outcome.err.splitlines()[-1]
        assert outcome.code == 2 and outcome.out == "" and line.startswith("isoconv: ")
        for word in [words] if isinstance(words, str) else words:
            assert str(word) in line, line
        assert (tmp_path / out).exists() == before

    return command


# What it does -----------------------------------------------------------------------------------------------------


def test_vectors_end_in_a_sentence_with_estimate_and_interval(isoconv, pair, tmp_path):
    code, out, err = isoconv("wasserstein", *pair, "--out", "run", *QUICK, "--epochs", "2")
    assert code == 0 and out.startswith("Estimate: ") and out.count("\n") == 1 and "≥" not in out
    assert "asymptotic" in out and "interval" in out and "L2 distance between vectors of dimension 4." in out
    assert err.splitlines()[0] == "critic fc" and err.splitlines()[1].startswith("epoch 1/2  difference ")
    assert err.endswith("The run is in run\n")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["interval"][0] < result["estimate"] < result["interval"][1]
    assert result["lower"] <= result["estimate"] < 3
    assert result["samples"] == [50, 50] and result["method"] == "asymptotic"
    with Image.open(tmp_path / "run" / "estimate.png") as plot:
        assert plot.size[0] > 300
    files = {path.name for path in (tmp_path / "run").iterdir()} - {".lock", "estimate.png"}
    assert files == {"config.json", "metrics.jsonl", "model.safetensors", "state.safetensors", "result.json"}


def test_repeated_rows_are_named_and_say_what_can_be_done(isoconv, tmp_path):
    for k, name in enumerate(("a.npy", "b.npy")):
        np.save(tmp_path / name, np.repeat(np.random.default_rng(k).random((60, 3)), 20, axis=0))
    words = ["wasserstein", "a.npy", "b.npy", "--range", "0,1", *QUICK, "--json"]
    code, out, err = isoconv(*words, "--out", "either")
    assert code == 0 and json.loads(out)["lower"] == 0
    assert "Warning: 1,140 of 1,200 samples in a.npy repeat others" in err and "--repeats" in err
    code, out, err = isoconv(*words, "--out", "copies", "--repeats", "copies")
    assert code == 0 and json.loads(out)["samples"] == [15, 15] and "Warning" in err
    assert isoconv(*words, "--out", "either", "--resume", "--repeats", "draws").code == 2


def test_a_translation_is_found_wherever_and_however_large_the_vectors_are(measure, tmp_path):
    for name, shift in (("a.npy", 0.0), ("b.npy", 1.0)):
        array = np.random.default_rng(len(name) + int(shift)).normal(size=(600, 3)) + shift
        np.save(tmp_path / name, 1000 * array + 1e6)
    result = measure("a.npy", "b.npy", "--depth", "0", "--epochs", "2")
    assert result["estimate"] == pytest.approx(1000 * math.sqrt(3), rel=0.15)
    assert result["lower"] < 1000 * math.sqrt(3)


def test_whole_sets_are_exact_and_a_range_makes_a_bound_for_every_sample_size(measure, tmp_path):
    for k, name in enumerate(("a.npy", "b.npy")):
        np.save(tmp_path / name, (np.random.default_rng(k).random((100, 3)) + k).astype(np.float32))
    both = measure("a.npy", "b.npy", "--whole", "both", *QUICK, out="1")
    assert both["method"] == "exact" and both["samples"] == [100, 100]
    box = measure("a.npy", "b.npy", "--range", "0,2", "--whole", "a", *QUICK, out="2")
    assert box["method"] == "betting" and box["samples"] == [100, 25]
    assert box["units"] == "L2 distance between vectors of dimension 3, coordinates from 0 to 2"


def test_vectors_have_two_critics_and_the_better_one_at_half_the_risk_each(measure, isoconv, pair, tmp_path):
    result = measure(*pair, *BOTH, "--confidence", "0.9")
    each = {name: json.loads((tmp_path / "run" / name / "result.json").read_text()) for name in ("fc", "anchors")}
    assert [one["confidence"] for one in each.values()] == [pytest.approx(0.95)] * 2 and result["confidence"] == 0.9
    assert result["lower"] == max(one["lower"] for one in each.values()) == each[result["model"]]["lower"]
    assert result["estimate"] == each[result["model"]]["estimate"]
    assert result["critics"] == {n: {"estimate": one["estimate"], "lower": one["lower"]} for n, one in each.items()}
    assert json.loads((tmp_path / "run" / "result.json").read_text()) == result and result["finished"] == ""
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["anchors", "fc", "result.json"]
    assert (tmp_path / "run" / "anchors" / "estimate.png").exists()
    _, out, err = isoconv("wasserstein", *pair, "--out", "run", *BOTH, "--confidence", "0.9", "--resume")
    assert "confidence 0.9," in out and "the better one of fc and anchors.\n" in out
    assert [line for line in err.splitlines() if line.startswith("critic")] == ["critic fc", "critic anchors"]


OPTIONS = {"--depth 1": "fc", "--activation relu": "fc", "--anchors 4": "anchors"}


@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_of_one_critic_asks_for_that_one(measure, pair, option):
    result = measure(*pair, *BOTH, *option.split())
    assert result["model"] == OPTIONS[option] and not result["critics"] and result["confidence"] == 0.95


def test_two_critics_are_resumed_where_they_were_stopped(measure, refuse, pair, tmp_path):
    first = measure(*pair, *BOTH)
    shutil.rmtree(tmp_path / "run" / "anchors")  # as if stopped in between
    (tmp_path / "run" / "result.json").unlink()
    kept = (tmp_path / "run" / "fc" / "state.safetensors").stat().st_mtime_ns
    again = measure(*pair, *BOTH, "--resume")
    assert again["critics"] == first["critics"] and again["lower"] == first["lower"]
    assert (tmp_path / "run" / "fc" / "state.safetensors").stat().st_mtime_ns == kept
    refuse("run/fc already holds a run", *pair, *BOTH)
    measure(*pair, *BOTH, "--overwrite")
    refuse("run holds other files", *pair, *QUICK, "--overwrite")  # one critic and two do not share a folder
    measure(*pair, *QUICK, out="one")
    refuse("one already holds a run of one", *pair, *BOTH, "--overwrite", out="one")


def test_folders_of_images(measure, tmp_path):
    dark, light = write_pictures(tmp_path / "dark"), write_pictures(tmp_path / "light", bright=150, seed=1)
    result = measure(dark, light, *TINY)
    assert result["units"] == "L2 distance between images of 1×16×16, pixels from -1 to 1"
    assert result["method"] == "betting" and result["samples"] == [6, 6]
    small = measure(dark, light, "--pixels", "0,1", "--size", "8", *TINY, out="unit")
    assert small["units"] == "L2 distance between images of 1×8×8, pixels from 0 to 1"
    coloured = write_pictures(tmp_path / "coloured", colour=True)
    result = measure(dark, coloured, "--channels", "3", "--conv", "rko", "--activation", "relu", *TINY, out="c")
    assert result["units"].startswith("L2 distance between images of 3×16×16")
    assert result["conv"] == "rko" and result["activation"] == "relu"


def test_a_generator_is_trained_and_measured(isoconv, measure, tmp_path):
    folder = write_pictures(tmp_path / "pictures", n=32)
    code, out, err = isoconv("gan", folder, "--out", "gan", "--epochs", "2", "--batch-size", "8")
    assert code == 0 and out == "The generator is in gan, and a grid of its images in gan/samples.png\n"
    assert err.splitlines()[-1].startswith("epoch 2/2  difference ")
    result = measure(folder, "gan", "--whole", "a", "--samples", "48", *TINY)
    assert result["samples"] == [32, 48] and result["observations"] == [32, 6] and result["method"] == "betting"


def test_a_run_is_resumed_with_its_options_and_its_samples_and_no_others(measure, refuse, pair):
    """Of other samples, others would be held out, and a critic could be judged by what it was trained on."""
    first = measure(*pair, *QUICK)
    assert measure(*pair, *QUICK, "--resume")["lower"] == first["lower"]
    refuse("batch_size 8, where it has 16", *pair, *QUICK, "--batch-size", "8", "--resume")
    for options in (["--seed", "1"], ["--held-out", "0.5"], ["--whole", "a"]):  # these change what is held out
        refuse("the run that is resumed", *pair, *QUICK, "--resume", *options)
    refuse("already holds a run", *pair, *QUICK)
    for side, name in ((1, "b.npy"), (0, "a.npy")):
        write_vectors(pair[side], n=201, seed=side, shift=side)
        refuse([name, "has changed"], *pair, *QUICK, "--resume")
    measure(*pair, *QUICK, "--overwrite")


# What is wrong ----------------------------------------------------------------------------------------------------


def test_folders_of_different_kinds(refuse, pair, tmp_path):
    first = write_pictures(tmp_path / "a")
    others = {
        "grey images of 16×32": write_pictures(tmp_path / "b", size=(16, 32)),
        "colour images of 16×16": write_pictures(tmp_path / "c", colour=True),
        "vectors of dimension 4": pair[0],
    }
    for words, second in others.items():
        refuse(f"grey images of 16×16 in {first} and {words} in {second}", first, second)
    write_pictures(tmp_path / "mixed", n=2)
    write_pictures(tmp_path / "mixed" / "sub", n=1, size=(20, 16))
    refuse(["--size", "16×16"], tmp_path / "mixed", first)
    (tmp_path / "empty").mkdir()
    refuse([tmp_path / "empty", ".png"], first, tmp_path / "empty")
    (first / "017.png").write_bytes((first / "017.png").read_bytes()[:60])
    refuse("017.png", first, first)


def test_vectors_that_cannot_be_told_apart(refuse, pair, tmp_path):
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
    "--pixels 1": "--pixels",
    "--range 1,0": "--range",
    "--range 0,1": "a.npy (--range)",
    "--resume --overwrite": "both",
    "--resume": "There is none",
    "--critic dcgan": "images",
    "--held-out 0": "hold out",
    "--method betting": "--range",
    "--batch-size 1000": "--batch-size",
    "--lr -1": "lr",
    "--critic fc --conv rko": "--conv",
    "--critic fc --anchors 8": "--anchors",
    "--critic anchors --activation relu": "--activation",
}


@pytest.mark.parametrize("options", WRONG)
def test_options_that_cannot_be(options, refuse, pair):
    refuse(WRONG[options], *pair, *options.split())


def test_generators_that_cannot_be(isoconv, refuse, tmp_path):
    folder = write_pictures(tmp_path / "a", n=16, size=(10, 12))
    words = [folder, "--batch-size", "8"]
    refuse("10×12", *words, name="gan")
    refuse("batch of 64 images", folder, "--size", "8", name="gan")
    refuse("There is none", *words, "--size", "8", "--resume", name="gan")
    for options in ([], ["--resume"]):
        assert isoconv("gan", *words, "--size", "8", "--epochs", "1", "--out", "run", *options).code == 0
    refuse("epochs 2, where it has 1", *words, "--size", "8", "--epochs", "2", "--resume", name="gan")
    refuse("--size 16", folder, "run", "--size", "16", out="w")
    refuse("whole distribution", folder, "run", "--size", "8", "--whole", "b", out="w")
