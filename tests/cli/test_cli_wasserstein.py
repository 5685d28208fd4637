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


def test_vectors_end_in_a_sentence_with_bound_and_interval(isoconv, pair, tmp_path):
    code, out, err = isoconv("wasserstein", *pair, "--out", "run", *QUICK, "--epochs", "2")
    assert code == 0
    assert out.startswith("W1 ≥ ") and out.count("\n") == 1
    assert "asymptotic" in out and "interval" in out and "L2 distance between vectors of dimension 4." in out
    assert err.splitlines()[0].startswith("epoch 1/2  difference ") and err.endswith("The run is in run\n")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["interval"][0] < result["estimate"] < result["interval"][1]
    assert result["lower"] <= result["estimate"] < 3
    assert result["samples"] == [50, 50] and result["method"] == "asymptotic"
    with Image.open(tmp_path / "run" / "estimate.png") as plot:
        assert plot.size[0] > 300
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == {
        *("config.json", "metrics.jsonl", "model.safetensors"),
        *("state.safetensors", "result.json", "estimate.png"),
    }


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
    assert json.loads((tmp_path / "run" / "result.json").read_text()) == result
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["anchors", "fc", "result.json"]
    assert (tmp_path / "run" / "anchors" / "estimate.png").exists()
    code, out, err = isoconv("wasserstein", *pair, "--out", "again", *BOTH)
    assert code == 0 and "confidence 0.95" in out and "of fc and anchors the better one.\n" in out
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
    assert result["model"] == critic and "critics" not in result and result["confidence"] == 0.95


def test_two_critics_are_resumed_where_they_were_stopped(isoconv, pair, tmp_path):
    first = json.loads(isoconv("wasserstein", *pair, "--json", "--out", "run", *BOTH).out)
    shutil.rmtree(tmp_path / "run" / "anchors")  # as if stopped in between
    (tmp_path / "run" / "result.json").unlink()
    kept = (tmp_path / "run" / "fc" / "state.safetensors").stat().st_mtime_ns
    again = json.loads(isoconv("wasserstein", *pair, "--json", "--out", "run", *BOTH, "--resume").out)
    assert again["critics"] == first["critics"] and again["lower"] == first["lower"]
    assert (tmp_path / "run" / "fc" / "state.safetensors").stat().st_mtime_ns == kept
    taken = isoconv("wasserstein", *pair, "--out", "run", *BOTH)
    assert taken.code == 2 and taken.err.startswith("isoconv: run/fc already holds a run: ")
    assert isoconv("wasserstein", *pair, "--out", "run", *BOTH, "--overwrite").code == 0
    missing = "Expected a run to resume in nothing. There is none."
    assert isoconv("wasserstein", *pair, "--out", "nothing", "--resume") == (2, "", f"isoconv: {missing}\n")


def test_one_critic_and_two_do_not_share_a_folder(isoconv, pair, tmp_path):
    assert isoconv("wasserstein", *pair, "--out", "one", *QUICK).code == 0
    message = "one already holds a run of one critic: name it (--critic), or another folder (--out)."
    assert isoconv("wasserstein", *pair, "--out", "one", *BOTH, "--overwrite") == (2, "", f"isoconv: {message}\n")
    assert isoconv("wasserstein", *pair, "--out", "two", *BOTH).code == 0
    message = "Expected a new or empty folder for the run. two holds other files."
    assert isoconv("wasserstein", *pair, "--out", "two", *QUICK, "--overwrite") == (2, "", f"isoconv: {message}\n")


@pytest.mark.parametrize(
    ("options", "unused"),
    [
        (["--critic", "fc", "--conv", "rko"], "conv"),
        (["--critic", "fc", "--anchors", "8"], "anchors"),
        (["--critic", "anchors", "--width", "8"], "width"),
        (["--critic", "anchors", "--activation", "relu"], "activation"),
    ],
)
def test_an_option_that_the_critic_does_not_use_is_refused(isoconv, pair, options, unused):
    outcome = isoconv("wasserstein", *pair, "--out", "run", *options)
    expected = f"Expected options of the critic {options[1]}. Got --{unused}, which it has no use for."
    assert outcome == (2, "", f"isoconv: {expected}\n")


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
    for options in (
        ["--seed", "1"],
        ["--held-out", "0.5"],
        ["--whole", "a"],
    ):  # these change what is held out, not the samples
        other = isoconv("wasserstein", *pair, "--out", "run", *QUICK, "--resume", *options)
        assert other.code == 2 and "Expected the options of the run that is resumed." in other.err
    write_vectors(pair[side], n=201, seed=side, shift=side)
    again = isoconv("wasserstein", *pair, "--out", "run", *QUICK, "--resume")
    assert again.code == 2 and again.err.count("\n") == 1
    assert again.err.endswith(f"{name} has changed since.\n") and "Expected the samples that the run" in again.err


def test_a_run_is_resumed_with_its_options_and_no_others(isoconv, pair, tmp_path):
    first = isoconv("wasserstein", *pair, "--json", "--out", "run", *QUICK)
    again = isoconv("wasserstein", *pair, "--json", "--out", "run", *QUICK, "--resume")
    assert again.code == 0 and json.loads(again.out)["lower"] == json.loads(first.out)["lower"]
    message = "Expected the options of the run that is resumed. Got batch_size 8, where it has 16."
    other = isoconv("wasserstein", *pair, "--out", "run", *QUICK, "--batch-size", "8", "--resume")
    assert other == (2, "", f"isoconv: {message}\n")
    taken = isoconv("wasserstein", *pair, "--out", "run", *QUICK)
    assert taken.code == 2 and taken.err.startswith("isoconv: run already holds a run: ")
    assert isoconv("wasserstein", *pair, "--out", "run", *QUICK, "--overwrite").code == 0


# What is wrong ----------------------------------------------------------------------------------------------------


def refused(outcome, sentence, tmp_path):
    assert outcome == (2, "", f"isoconv: {sentence}\n")
    assert not (tmp_path / "run").exists()


def test_two_folders_of_different_sizes(isoconv, tmp_path):
    first, second = write_pictures(tmp_path / "a"), write_pictures(tmp_path / "b", size=(16, 32))
    sentence = (
        f"Expected two distributions of one shape (--size, --channels). "
        f"Got grey images of 16×16 in {first} and grey images of 16×32 in {second}."
    )
    refused(isoconv("wasserstein", first, second, "--out", "run"), sentence, tmp_path)


def test_two_folders_of_which_one_is_coloured(isoconv, tmp_path):
    first, second = write_pictures(tmp_path / "a"), write_pictures(tmp_path / "b", colour=True)
    sentence = (
        f"Expected two distributions of one shape (--size, --channels). "
        f"Got grey images of 16×16 in {first} and colour images of 16×16 in {second}."
    )
    refused(isoconv("wasserstein", first, second, "--out", "run"), sentence, tmp_path)


def test_different_sizes_in_one_folder(isoconv, tmp_path):
    folder = write_pictures(tmp_path / "a")
    write_pictures(folder / "sub", n=1, size=(20, 16))
    outcome = isoconv("wasserstein", folder, folder, "--out", "run")
    assert outcome.code == 2 and outcome.err.startswith(
        "isoconv: Expected pictures of one size, or a size to bring them to (--size). Got 16×16 in "
    )


def test_an_empty_folder(isoconv, tmp_path):
    (tmp_path / "empty").mkdir()
    folder = write_pictures(tmp_path / "a")
    outcome = isoconv("wasserstein", folder, tmp_path / "empty", "--out", "run")
    sentence = (
        f"Expected images (.png, .jpg, .jpeg, .bmp, .webp, .gif) in {tmp_path / 'empty'} or its sub-folders. Got none."
    )
    assert outcome.err.splitlines()[-1] == f"isoconv: {sentence}"
    assert outcome.code == 2 and outcome.out == "" and not (tmp_path / "run").exists()


def test_one_corrupt_image_among_many(isoconv, tmp_path):
    folder = write_pictures(tmp_path / "a", n=200, size=(8, 8))
    broken = folder / "117.png"
    broken.write_bytes(broken.read_bytes()[:60])
    outcome = isoconv("wasserstein", folder, folder, "--out", "run")
    assert outcome.code == 2 and outcome.out == "" and not (tmp_path / "run").exists()
    last = outcome.err.splitlines()[-1]
    assert last.startswith(f"isoconv: {broken} cannot be read as a picture (") and last.endswith("Repair or remove it.")


def test_nan_in_a_file(isoconv, tmp_path):
    array = np.zeros((50, 3))
    array[[7, 9], 1] = np.nan
    np.save(tmp_path / "bad.npy", array)
    sentence = "Expected finite numbers in bad.npy. Got NaN or infinity in 2 of 50 rows, the first of them row 7."
    refused(isoconv("wasserstein", "bad.npy", "bad.npy", "--out", "run"), sentence, tmp_path)


@pytest.mark.parametrize(
    ("array", "sentence"),
    [
        (np.zeros(5), "Expected a two-dimensional array in bad.npy, a vector in each row. Got shape (5,)."),
        (
            np.zeros((2, 3, 4)),
            "Expected a two-dimensional array in bad.npy, a vector in each row. Got shape (2, 3, 4).",
        ),
        (np.zeros((0, 3)), "Expected a two-dimensional array in bad.npy, a vector in each row. Got shape (0, 3)."),
        (np.zeros((4, 2), complex), "Expected an array of real numbers in bad.npy. Got complex128."),
        (np.full((4, 2), "x"), "Expected an array of real numbers in bad.npy. Got <U1."),
        (np.full((40, 2), 1e30), "Expected numbers up to 1e8 in bad.npy. Got 1e+30: scale them first."),
        (np.zeros((1, 2)), "Expected at least 2 samples in bad.npy. Got 1."),
    ],
    ids=str,
)
def test_arrays_that_are_no_vectors(array, sentence, isoconv, tmp_path):
    np.save(tmp_path / "bad.npy", array)
    refused(isoconv("wasserstein", "bad.npy", "bad.npy", "--out", "run"), sentence, tmp_path)


def test_a_file_that_is_no_array_and_one_with_pickles(isoconv, tmp_path):
    (tmp_path / "text.npy").write_text("1,2,3")
    np.save(tmp_path / "objects.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    for name in ("text.npy", "objects.npy"):
        outcome = isoconv("wasserstein", name, name, "--out", "run")
        assert outcome.code == 2 and outcome.err.count("\n") == 1
        assert outcome.err.startswith(f"isoconv: Expected a .npy file of numbers. Got {name}, which cannot be read: ")


def test_vectors_of_different_dimensions(isoconv, tmp_path):
    first, second = write_vectors(tmp_path / "a.npy"), write_vectors(tmp_path / "b.npy", dimension=5)
    sentence = (
        f"Expected two distributions of one shape. Got vectors of dimension 4 in {first} "
        f"and vectors of dimension 5 in {second}."
    )
    refused(isoconv("wasserstein", first, second, "--out", "run"), sentence, tmp_path)


def test_images_and_vectors(isoconv, pair, tmp_path):
    folder = write_pictures(tmp_path / "a")
    outcome = isoconv("wasserstein", folder, pair[0], "--out", "run")
    assert outcome.code == 2 and outcome.err.splitlines()[-1] == (
        f"isoconv: Expected two distributions of one shape. "
        f"Got grey images of 16×16 in {folder} and vectors of dimension 4 in {pair[0]}."
    )


def test_too_few_samples(isoconv, tmp_path):
    few = write_vectors(tmp_path / "few.npy", n=20)
    sentence = "Expected at least 30 independent samples of each distribution for an asymptotic interval. Got 5."
    refused(isoconv("wasserstein", few, few, "--out", "run", "--epochs", "1"), sentence, tmp_path)


def test_samples_that_are_all_the_same(isoconv, tmp_path):
    np.save(tmp_path / "flat.npy", np.ones((200, 3)))
    sentence = "Expected samples that differ. Got a standard deviation of 0."
    refused(isoconv("wasserstein", "flat.npy", "flat.npy", "--out", "run"), sentence, tmp_path)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--whole", "c"], "Expected --whole to be one of none, a, b, both. Got 'c'."),
        (["--confidence", "1"], "Expected a confidence between 0 and 1, such as 0.95. Got 1."),
        (["--pixels", "1"], "Expected two numbers such as -1,1 for --pixels. Got '1'."),
        (["--range", "1,0"], "Expected two numbers up to 1e8, the smaller first, for --range. Got '1,0'."),
        (["--resume", "--overwrite"], "Expected --resume or --overwrite. Got both."),
        (["--resume"], "Expected a run to resume in run. There is none."),
        (["--seed", "-1"], "Expected a seed from 0 to 2³² − 1. Got -1."),
        (
            ["--conv", "haar"],
            "Expected conv to be one of bcop, bcop-fixed, rko, ossn, svcm, rkl2ne, standard. Got 'haar'.",
        ),
        (["--critic", "dcgan"], "Expected images for the critic dcgan. Got samples of shape (4,)."),
        (["--held-out", "0"], "Expected a fraction between 0 and 1 to hold out. Got 0.0."),
        (["--method", "magic"], "Expected method to be one of auto, betting, asymptotic. Got 'magic'."),
        (
            ["--method", "betting"],
            "Expected to know where the values lie (--range) for a bound by betting. Got no range.",
        ),
        (["--batch-size", "1000"], None),
        (["--lr", "-1"], "Expected lr to be a positive number. Got -1.0."),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_options_that_cannot_be(options, sentence, isoconv, pair, tmp_path):
    outcome = isoconv("wasserstein", *pair, "--out", "run", *options)
    if sentence is None:
        sentence = (
            f"Expected at least one batch of 1000 samples to train on in {pair[0]}. "
            f"Got 150: make the batch smaller (--batch-size)."
        )
    refused(outcome, sentence, tmp_path)


def test_numbers_outside_of_their_range(isoconv, pair, tmp_path):
    outcome = isoconv("wasserstein", *pair, "--out", "run", "--range", "0,1")
    assert outcome.code == 2 and outcome.err.startswith(
        f"isoconv: Expected numbers from 0 to 1 in {pair[0]} (--range). Got "
    )
    assert not (tmp_path / "run").exists()


def test_what_is_not_there(isoconv, tmp_path):
    kinds = (
        "digits, mnist, cifar10, stl10, a folder of images, a .npy file of vectors, or the run folder of a generator"
    )
    refused(
        isoconv("wasserstein", "nowhere", "nowhere", "--out", "run"),
        f"Expected {kinds}. Got 'nowhere', which does not exist.",
        tmp_path,
    )
    (tmp_path / "notes.txt").write_text("")
    refused(
        isoconv("wasserstein", "notes.txt", "nowhere", "--out", "run"),
        f"Expected {kinds}. Got 'notes.txt', which is a file.",
        tmp_path,
    )
    refused(
        isoconv("wasserstein", "nowhere.npy", "nowhere", "--out", "run"),
        "Expected a .npy file of vectors. Got nowhere.npy, which does not exist.",
        tmp_path,
    )


def test_a_generator_is_resumed_with_its_options_and_no_others(isoconv, tmp_path):
    folder = write_pictures(tmp_path / "a", n=16, size=(8, 8))
    words = ["gan", folder, "--out", "run", "--batch-size", "8"]
    assert isoconv(*words, "--epochs", "1").code == 0
    assert isoconv(*words, "--epochs", "1", "--resume").code == 0
    outcome = isoconv(*words, "--epochs", "2", "--resume")
    message = "Expected the options of the run that is resumed. Got epochs 2, where it has 1."
    assert (outcome.code, outcome.err.splitlines()[-1]) == (2, f"isoconv: {message}")


def test_generators_that_cannot_be(isoconv, tmp_path):
    folder = write_pictures(tmp_path / "a", n=10, size=(10, 12))
    quick = ["--batch-size", "8"]
    outcome = isoconv("gan", folder, "--out", "run", *quick)
    assert outcome.err.splitlines()[-1] == "isoconv: Expected images whose height and width 4 divides. Got 10×12."
    outcome = isoconv("gan", folder, "--out", "run", "--size", "8")
    assert outcome.err.splitlines()[-1] == (
        "isoconv: Expected at least one batch of 64 images. Got 10 images: make the batch smaller."
    )
    assert not (tmp_path / "run").exists()
    assert isoconv("gan", folder, "--out", "run", "--size", "8", "--resume", *quick).code == 2
    assert isoconv("gan", folder, "--out", "run", "--size", "8", "--epochs", "1", *quick).code == 0
    sized = isoconv("wasserstein", folder, "run", "--size", "16", "--out", "w")
    assert sized.err.splitlines()[-1] == (
        "isoconv: Expected the size of the generator's images, 8, or none. Got --size 16."
    )
    whole = isoconv("wasserstein", folder, "run", "--size", "8", "--whole", "b", "--out", "w")
    assert (
        whole.err.splitlines()[-1]
        == "isoconv: Expected a finite set as a whole distribution. Got the generator in run."
    )
