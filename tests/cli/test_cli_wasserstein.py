"""isoconv wasserstein and isoconv gan: what they print and leave behind, and one sentence for whatever is wrong."""

import json
import math
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

QUICK = ["--epochs", "1", "--batch-size", "16", "--width", "16", "--depth", "1"]
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
    names = {path.name for path in (tmp_path / "run").iterdir()} - {".lock"}
    assert names == {
        *("config.json", "metrics.jsonl", "model.safetensors"),
        *("state.safetensors", "result.json", "estimate.png"),
    }


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


def test_json_is_one_object_on_stdout(isoconv, pair):
    code, out, _ = isoconv("wasserstein", *pair, "--json", "--out", "run", *QUICK)
    result = json.loads(out)
    assert code == 0 and out.count("\n") == 1
    keys = {"estimate", "lower", "interval", "confidence", "lipschitz_bound", "samples", "units", "method", "seed"}
    assert keys <= set(result)


def test_a_translation_is_found_wherever_and_however_large_the_vectors_are(isoconv, tmp_path):
    for name, shift in (("a.npy", 0.0), ("b.npy", 1.0)):
        array = np.random.default_rng(len(name) + int(shift)).normal(size=(600, 3)) + shift
        np.save(tmp_path / name, 1000 * array + 1e6)
    _, out, _ = isoconv("wasserstein", "a.npy", "b.npy", "--json", "--out", "run", "--depth", "0", "--epochs", "2")
    result = json.loads(out)
    assert result["estimate"] == pytest.approx(1000 * math.sqrt(3), rel=0.15)
    assert result["lower"] < 1000 * math.sqrt(3)


def test_whole_sets_are_exact_and_a_range_makes_a_bound_for_every_sample_size(isoconv, tmp_path):
    for k, name in enumerate(("a.npy", "b.npy")):
        np.save(tmp_path / name, (np.random.default_rng(k).random((100, 3)) + k).astype(np.float32))
    both = json.loads(isoconv("wasserstein", "a.npy", "b.npy", "--json", "--out", "1", "--whole", "both", *QUICK).out)
    box = json.loads(isoconv("wasserstein", "a.npy", "b.npy", "--json", "--out", "2", "--range", "0,2", *QUICK).out)
    assert both["method"] == "exact" and both["samples"] == [100, 100]
    assert both["interval"][1] - both["interval"][0] < 1e-9
    assert box["method"] == "betting" and box["samples"] == [25, 25]
    assert box["units"] == "L2 distance between vectors of dimension 3, coordinates from 0 to 2"
    mixed = json.loads(
        isoconv("wasserstein", "a.npy", "b.npy", "--json", "--out", "3", "--range", "0,2", "--whole", "a", *QUICK).out
    )
    assert mixed["samples"] == [100, 25]


def test_anchors(isoconv, pair):
    options = ["--critic", "anchors", "--anchors", "8", "--epochs", "1", "--batch-size", "16"]
    result = json.loads(isoconv("wasserstein", *pair, "--json", "--out", "run", *options).out)
    assert result["model"] == "anchors" and result["lipschitz_bound"] == pytest.approx(1, rel=1e-9)


BOTH = ["--epochs", "1", "--batch-size", "16"]


def test_vectors_have_two_critics_and_the_better_one_at_half_the_risk_each(isoconv, pair, tmp_path):
    result = json.loads(isoconv("wasserstein", *pair, "--json", "--out", "run", *BOTH, "--confidence", "0.9").out)
    each = {name: json.loads((tmp_path / "run" / name / "result.json").read_text()) for name in ("fc", "anchors")}
    assert [one["confidence"] for one in each.values()] == [pytest.approx(0.95)] * 2 and result["confidence"] == 0.9
    assert result["lower"] == max(one["lower"] for one in each.values()) == each[result["model"]]["lower"]
    assert result["estimate"] == each[result["model"]]["estimate"]
    assert result["critics"] == {n: {"estimate": one["estimate"], "lower": one["lower"]} for n, one in each.items()}
    assert json.loads((tmp_path / "run" / "result.json").read_text()) == result and result["finished"] == ""
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["anchors", "fc", "result.json"]
    assert (tmp_path / "run" / "anchors" / "estimate.png").exists()
    code, out, err = isoconv("wasserstein", *pair, "--out", "again", *BOTH)
    assert code == 0 and "confidence 0.95" in out and "the better one of fc and anchors.\n" in out
    assert [line for line in err.splitlines() if line.startswith("critic")] == ["critic fc", "critic anchors"]


@pytest.mark.parametrize(
    ("options", "critic"),
    [
        (["--depth", "1"], "fc"),
        (["--activation", "relu"], "fc"),
        (["--lr", "0.1"], "fc"),
        (["--anchors", "4"], "anchors"),
    ],
)
def test_an_option_of_one_critic_asks_for_that_one(isoconv, pair, options, critic):
    result = json.loads(isoconv("wasserstein", *pair, "--json", "--out", "run", *BOTH, *options).out)
    assert result["model"] == critic and not result["critics"] and result["confidence"] == 0.95


def test_two_critics_are_resumed_where_they_were_stopped(isoconv, pair, tmp_path):
    first = json.loads(isoconv("wasserstein", *pair, "--json", "--out", "run", *BOTH).out)
    shutil.rmtree(tmp_path / "run" / "anchors")  # as if stopped in between
    (tmp_path / "run" / "result.json").unlink()
    kept = (tmp_path / "run" / "fc" / "state.safetensors").stat().st_mtime_ns
    again = json.loads(isoconv("wasserstein", *pair, "--json", "--out", "run", *BOTH, "--resume").out)
    assert again["critics"] == first["critics"] and again["lower"] == first["lower"]
    assert (tmp_path / "run" / "fc" / "state.safetensors").stat().st_mtime_ns == kept
    taken = isoconv("wasserstein", *pair, "--out", "run", *BOTH)
    refused(taken, "run/fc already holds a run")
    assert isoconv("wasserstein", *pair, "--out", "run", *BOTH, "--overwrite").code == 0


def test_one_critic_and_two_do_not_share_a_folder(isoconv, pair, tmp_path):
    assert isoconv("wasserstein", *pair, "--out", "one", *QUICK).code == 0
    refused(isoconv("wasserstein", *pair, "--out", "one", *BOTH, "--overwrite"), "one already holds a run of one")
    assert isoconv("wasserstein", *pair, "--out", "two", *BOTH).code == 0
    refused(isoconv("wasserstein", *pair, "--out", "two", *QUICK, "--overwrite"), "two holds other files")


def test_folders_of_images(isoconv, tmp_path):
    dark, light = write_pictures(tmp_path / "dark"), write_pictures(tmp_path / "light", bright=150, seed=1)
    code, out, _ = isoconv("wasserstein", dark, light, "--json", "--out", "run", *TINY)
    result = json.loads(out)
    assert code == 0 and result["units"] == "L2 distance between images of 1×16×16, pixels from -1 to 1"
    assert result["method"] == "betting" and result["samples"] == [6, 6]
    again = isoconv("wasserstein", dark, light, "--json", "--out", "unit", "--pixels", "0,1", "--size", "8", *TINY)
    assert json.loads(again.out)["units"] == "L2 distance between images of 1×8×8, pixels from 0 to 1"
    coloured = write_pictures(tmp_path / "coloured", colour=True)
    options = ["--channels", "3", "--conv", "rko", "--activation", "relu"]
    code, out, _ = isoconv("wasserstein", dark, coloured, "--json", "--out", "c", *options, *TINY)
    assert code == 0 and json.loads(out)["units"].startswith("L2 distance between images of 3×16×16")
    assert json.loads(out)["conv"] == "rko" and json.loads(out)["activation"] == "relu"


def test_a_generator_is_trained_and_measured(isoconv, tmp_path):
    folder = write_pictures(tmp_path / "pictures", n=32)
    code, out, err = isoconv("gan", folder, "--out", "gan", "--epochs", "2", "--batch-size", "8")
    assert code == 0 and out == "The generator is in gan, and a grid of its images in gan/samples.png\n"
    assert err.splitlines()[-1].startswith("epoch 2/2  difference ")
    options = ["--whole", "a", "--samples", "48", *TINY]
    code, out, _ = isoconv("wasserstein", folder, "gan", "--json", "--out", "run", *options)
    result = json.loads(out)
    assert code == 0 and result["samples"] == [32, 48] and result["observations"] == [32, 6]
    assert result["method"] == "betting"


@pytest.mark.parametrize(("side", "name"), [(0, "a.npy"), (1, "b.npy")])
def test_a_run_is_resumed_with_its_samples_and_no_others(isoconv, pair, side, name):
    """Of other samples, others would be held out, and a critic could be judged by what it was trained on."""
    assert isoconv("wasserstein", *pair, "--out", "run", *QUICK).code == 0
    assert isoconv("wasserstein", *pair, "--out", "run", *QUICK, "--resume").code == 0
    for options in (["--seed", "1"], ["--held-out", "0.5"], ["--whole", "a"]):  # these change what is held out
        refused(isoconv("wasserstein", *pair, "--out", "run", *QUICK, "--resume", *options), "the run that is resumed")
    write_vectors(pair[side], n=201, seed=side, shift=side)
    refused(isoconv("wasserstein", *pair, "--out", "run", *QUICK, "--resume"), name, "has changed")


def test_a_run_is_resumed_with_its_options_and_no_others(isoconv, pair, tmp_path):
    first = isoconv("wasserstein", *pair, "--json", "--out", "run", *QUICK)
    again = isoconv("wasserstein", *pair, "--json", "--out", "run", *QUICK, "--resume")
    assert again.code == 0 and json.loads(again.out)["lower"] == json.loads(first.out)["lower"]
    other = isoconv("wasserstein", *pair, "--out", "run", *QUICK, "--batch-size", "8", "--resume")
    refused(other, "batch_size 8, where it has 16")
    refused(isoconv("wasserstein", *pair, "--out", "run", *QUICK), "already holds a run")
    assert isoconv("wasserstein", *pair, "--out", "run", *QUICK, "--overwrite").code == 0


# What is wrong ----------------------------------------------------------------------------------------------------


def refused(outcome, *words, new=None):
    """One line that names the thing, and nothing written."""
    assert outcome.code == 2 and outcome.out == ""
    line = outcome.err.splitlines()[-1]
    assert line.startswith("isoconv: ") and all(str(word) in line for word in words), line
    assert new is None or not new.exists()


def test_folders_of_different_kinds(isoconv, pair, tmp_path):
    first, run = write_pictures(tmp_path / "a"), tmp_path / "run"
    others = {
        "grey images of 16×32": write_pictures(tmp_path / "b", size=(16, 32)),
        "colour images of 16×16": write_pictures(tmp_path / "c", colour=True),
        "vectors of dimension 4": pair[0],
    }
    for words, second in others.items():
        outcome = isoconv("wasserstein", first, second, "--out", "run")
        refused(outcome, f"grey images of 16×16 in {first} and {words} in {second}", new=run)
    write_pictures(tmp_path / "mixed", n=2)
    write_pictures(tmp_path / "mixed" / "sub", n=1, size=(20, 16))
    refused(isoconv("wasserstein", tmp_path / "mixed", first, "--out", "run"), "--size", "16×16", new=run)
    (tmp_path / "empty").mkdir()
    refused(isoconv("wasserstein", first, tmp_path / "empty", "--out", "run"), tmp_path / "empty", ".png", new=run)


def test_one_corrupt_image_among_many(isoconv, tmp_path):
    folder = write_pictures(tmp_path / "a", n=200, size=(8, 8))
    broken = folder / "117.png"
    broken.write_bytes(broken.read_bytes()[:60])
    refused(isoconv("wasserstein", folder, folder, "--out", "run"), broken, new=tmp_path / "run")


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.zeros(5), "shape (5,)"),
        (np.zeros((2, 3, 4)), "shape (2, 3, 4)"),
        (np.zeros((0, 3)), "shape (0, 3)"),
        (np.zeros((4, 2), complex), "complex128"),
        (np.full((4, 2), "x"), "real numbers"),
        (np.full((40, 2), 1e30), "1e+30"),
        (np.zeros((1, 2)), "Got 1"),
        (np.where(np.arange(50)[:, None] % 8 == 7, np.nan, np.arange(50.0)[:, None]), "in 6 of 50 rows"),
        (np.array([{"a": 1}], dtype=object), "cannot be read"),
    ],
    ids=str,
)
def test_arrays_that_are_no_vectors(array, words, isoconv, tmp_path):
    np.save(tmp_path / "bad.npy", array, allow_pickle=True)
    refused(isoconv("wasserstein", "bad.npy", "bad.npy", "--out", "run"), "bad.npy", words, new=tmp_path / "run")


def test_vectors_that_cannot_be_told_apart(isoconv, pair, tmp_path):
    run, other = tmp_path / "run", write_vectors(tmp_path / "c.npy", dimension=5)
    refused(isoconv("wasserstein", pair[0], other, "--out", "run"), "dimension 4", "dimension 5", new=run)
    few = write_vectors(tmp_path / "few.npy", n=20)
    refused(isoconv("wasserstein", few, few, "--out", "run", "--epochs", "1"), "at least 30", "Got 5", new=run)
    np.save(tmp_path / "flat.npy", np.ones((200, 3)))
    refused(isoconv("wasserstein", "flat.npy", "flat.npy", "--out", "run", "--whole", "both"), "differ", new=run)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--whole", "c"], "--whole"),
        (["--confidence", "1"], "confidence"),
        (["--pixels", "1"], "--pixels"),
        (["--range", "1,0"], "--range"),
        (["--range", "0,1"], "a.npy (--range)"),
        (["--resume", "--overwrite"], "both"),
        (["--resume"], "There is none"),
        (["--seed", "-1"], "seed"),
        (["--conv", "haar"], "haar"),
        (["--critic", "dcgan"], "images"),
        (["--held-out", "0"], "hold out"),
        (["--repeats", "never"], "never"),
        (["--method", "magic"], "magic"),
        (["--method", "betting"], "--range"),
        (["--batch-size", "1000"], "--batch-size"),
        (["--lr", "-1"], "lr"),
        (["--critic", "fc", "--conv", "rko"], "--conv"),
        (["--critic", "fc", "--anchors", "8"], "--anchors"),
        (["--critic", "anchors", "--width", "8"], "--width"),
        (["--critic", "anchors", "--activation", "relu"], "--activation"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_options_that_cannot_be(options, words, isoconv, pair, tmp_path):
    refused(isoconv("wasserstein", *pair, "--out", "run", *options), words, new=tmp_path / "run")


def test_what_is_not_there(isoconv, tmp_path):
    (tmp_path / "notes.txt").write_text("")
    for name in ("nowhere", "notes.txt", "nowhere.npy"):
        refused(isoconv("wasserstein", name, "nowhere", "--out", "run"), name, new=tmp_path / "run")


def test_generators_that_cannot_be(isoconv, tmp_path):
    folder, run = write_pictures(tmp_path / "a", n=16, size=(10, 12)), tmp_path / "run"
    words = ["gan", folder, "--out", "run", "--batch-size", "8"]
    refused(isoconv(*words), "10×12", new=run)
    refused(isoconv("gan", folder, "--out", "run", "--size", "8"), "batch of 64 images", new=run)
    refused(isoconv(*words, "--size", "8", "--resume"), "There is none")
    assert isoconv(*words, "--size", "8", "--epochs", "1").code == 0
    assert isoconv(*words, "--size", "8", "--epochs", "1", "--resume").code == 0
    refused(isoconv(*words, "--size", "8", "--epochs", "2", "--resume"), "epochs 2, where it has 1")
    refused(isoconv("wasserstein", folder, "run", "--size", "16", "--out", "w"), "--size 16")
    refused(isoconv("wasserstein", folder, "run", "--size", "8", "--whole", "b", "--out", "w"), "whole distribution")
