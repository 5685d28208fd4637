"""What the command refuses: one line on stderr, exit code 2, nothing on stdout, no run begun."""

import pytest

from isoconv.cli.options import parse_number, parse_numbers, parse_seeds
from isoconv.errors import IsoconvError
from isoconv.train.distributed import Processes

TINY = ["--model", "small", "--epochs", "1", "--batch-size", "16", "--device", "cpu"]

CHOICES = {
    "model": "small, large, fc3",
    "conv": "bcop, bcop-fixed, rko, ossn, svcm, rkl2ne, standard",
    "activation": "maxmin, relu",
    "optimiser": "steepest, adam, rmsprop",
    "schedule": "exponential, linear, cosine, constant",
    "loss": "hinge, cross-entropy",
    "orthogonalisation": "manifold, bjorck",
    "precision": "float32, bf16",
    "recipe": "default, paper",
}
REFUSED = [
    (["--seeds", "a"], "Expected seeds such as 0 or 0,1,2. Got 'a'."),
    (["--seeds", ""], "Expected seeds such as 0 or 0,1,2. Got ''."),
    (["--seeds", "0,,1"], "Expected seeds such as 0 or 0,1,2. Got '0,,1'."),
    (["--seeds", "0,0"], "Expected different seeds of at least 0. Got '0,0'."),
    (["--seeds", "1,-1"], "Expected different seeds of at least 0. Got '1,-1'."),
    (["--epsilon", "x"], "Expected a number such as 0.1 or 36/255 for --epsilon. Got 'x'."),
    (["--epsilon", "1/0"], "Expected a number such as 0.1 or 36/255 for --epsilon. Got '1/0'."),
    (["--epsilon", "inf"], "Expected a number such as 0.1 or 36/255 for --epsilon. Got 'inf'."),
    (["--epsilon", "-0.1"], "Expected a number of at least 0 for --epsilon. Got '-0.1'."),
    (["--search", "0.1,y"], "Expected a number such as 0.1 or 36/255 for --search. Got 'y'."),
    (["--search", "0"], "Expected lr to be a positive number. Got 0.0."),
    (["--lr", "0"], "Expected lr to be a positive number. Got 0.0."),
    (["--lr", "nan"], "Expected lr to be a positive number. Got nan."),
    (["--margin", "-1"], "Expected margin to be a positive number. Got -1.0."),
    (["--temperature", "0"], "Expected temperature to be a positive number. Got 0.0."),
    (["--epochs", "0"], "Expected epochs of at least 1. Got 0."),
    (["--batch-size", "0"], "Expected batch_size of at least 1. Got 0."),
    (["--batch-size", "65"], "Expected at least one batch of 65 images. Got 64 images: make the batch smaller."),
    (["--device", "tpu"], "Expected device to be auto, cpu or cuda. Got 'tpu'."),
    (["--size", "0"], "Expected a size as one positive whole number or as (height, width). Got 0."),
    (["--size", "6"], "Expected an image whose height and width can be halved by each strided convolution: "
                      "multiples of 4 for small and large, of 16 for dcgan. "
                      "Got 3×3 before a convolution of stride 2."),
    (["--resume", "--overwrite"], "Expected --resume or --overwrite. Got both."),
    (["--resume"], "Expected a run to resume in run. There is none."),
    *(([f"--{name}", "other"], f"Expected {name} to be one of {allowed}. Got 'other'.")
      for name, allowed in CHOICES.items()),
]  # fmt: skip


@pytest.mark.parametrize(("options", "message"), REFUSED, ids=[" ".join(options) for options, _ in REFUSED])
def test_bad_values_are_one_line_and_begin_no_run(options, message, isoconv, pictures, tmp_path):
    outcome = isoconv("train", pictures, "--out", "run", *TINY, *options)
    assert outcome == (2, "", f"isoconv: {message}\n")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("options", [["--epsilon", "x"], ["--batch-size", "65"], ["--size", "6"]], ids=str)
def test_bad_values_do_not_cost_the_run_that_was_to_be_overwritten(options, isoconv, pictures, tmp_path):
    assert isoconv("train", pictures, "--out", "run", *TINY).code == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    assert isoconv("train", pictures, "--out", "run", "--overwrite", *TINY, *options).code == 2
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before


@pytest.mark.parametrize(
    "options",
    [["--epsilon", "1e400"], ["--epsilon", "1e400/1"], ["--seeds", "99999999999999999999"], ["--search", "1e400"]],
    ids=str,
)
def test_numbers_beyond_all_bounds_are_one_line(options, isoconv, pictures):
    outcome = isoconv("train", pictures, "--out", "run", *TINY, *options)
    assert outcome.code == 2 and outcome.out == ""
    assert outcome.err.startswith("isoconv: Expected ") and outcome.err.count("\n") == 1


@pytest.mark.parametrize(
    "options", [["--lr", "fast"], ["--epochs", "1.5"], ["--batch-size", "x"], ["--nonsense"], ["--size", "x"]], ids=str
)
def test_what_cannot_be_parsed_names_the_option(options, isoconv, pictures, tmp_path):
    outcome = isoconv("train", pictures, "--out", "run", *TINY, *options)
    assert outcome.code == 2 and outcome.out == ""
    assert options[0] in outcome.err and "Traceback" not in outcome.err
    assert not (tmp_path / "run").exists()


def test_an_unknown_command(isoconv):
    outcome = isoconv("fly")
    assert outcome.code == 2 and "fly" in outcome.err and "Traceback" not in outcome.err


def test_what_to_train_on_must_be_said(isoconv):
    message = "Expected what to train on: digits, mnist, cifar10, stl10, a folder of images or a CSV file."
    assert isoconv("train") == (2, "", f"isoconv: {message}\n")


def test_unknown_data(isoconv):
    assert isoconv("train", "nowhere") == (
        2,
        "",
        "isoconv: Expected one of digits, mnist, cifar10, stl10, or the path of a folder of images or of a CSV file. "
        "Got 'nowhere', which does not exist.\n",
    )


def test_data_that_is_not_there(isoconv, tmp_path):
    outcome = isoconv("train", "mnist", "--data", tmp_path / "empty")
    assert outcome.code == 2 and outcome.err.startswith("isoconv: ") and outcome.err.count("\n") == 1


def test_cuda_where_there_is_none(isoconv, pictures, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    message = "Expected a CUDA device. This machine has none, or this PyTorch cannot use it."
    assert isoconv("train", pictures, "--device", "cuda") == (2, "", f"isoconv: {message}\n")


def test_a_folder_of_other_files_and_a_file_are_no_place_for_a_run(isoconv, pictures, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("years of work")
    message = "Expected a new or empty folder for the run. full holds other files."
    assert isoconv("train", pictures, "--out", "full", *TINY) == (2, "", f"isoconv: {message}\n")
    message = "Expected a folder for the run. full/thesis.tex is a file."
    assert isoconv("train", pictures, "--out", "full/thesis.tex", *TINY) == (2, "", f"isoconv: {message}\n")
    assert (tmp_path / "full" / "thesis.tex").read_text() == "years of work"


def test_several_seeds_do_not_go_into_the_run_of_one(isoconv, pictures):
    assert isoconv("train", pictures, "--out", "run", *TINY).code == 0
    message = "run already holds a run of one seed: name another folder for several (--out)."
    assert isoconv("train", pictures, "--out", "run", "--seeds", "0,1", *TINY) == (2, "", f"isoconv: {message}\n")


@pytest.mark.parametrize("content", ["config.json", "thesis.tex"])
def test_if_one_seed_cannot_be_started_none_is(content, isoconv, pictures, tmp_path):
    (tmp_path / "run" / "seed-1").mkdir(parents=True)
    (tmp_path / "run" / "seed-1" / content).write_text("{}")
    assert isoconv("train", pictures, "--out", "run", "--seeds", "0,1", *TINY).code == 2
    assert not (tmp_path / "run" / "seed-0").exists()


CONFLICTS = [
    (["--lr", "0.5"], "Got --lr 0.5, where it has 0.01."),
    (["--batch-size", "8"], "Got --batch-size 8, where it has 16."),
    (["--conv", "rko"], "Got --conv rko, where it has bcop."),
    (["--recipe", "paper"], "Got --recipe paper, where it has default."),
    (["--seeds", "1"], ""),
    (["--size", "4"], ""),
    (["--search", "0.1,0.2"], ""),
]


@pytest.mark.parametrize(("options", "message"), CONFLICTS, ids=[" ".join(options) for options, _ in CONFLICTS])
def test_a_resumed_run_keeps_its_options(options, message, isoconv, pictures, tmp_path):
    assert isoconv("train", pictures, "--out", "run", *TINY).code == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    outcome = isoconv("train", "--resume", "--out", "run", *options)
    assert outcome.code == 2 and outcome.out == ""
    if message:
        assert outcome.err == f"isoconv: Expected the options of the run that is resumed. {message}\n"
    assert outcome.err.startswith("isoconv: Expected ") and outcome.err.count("\n") == 1
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before


def test_a_resumed_run_keeps_its_data(isoconv, pictures):
    assert isoconv("train", pictures, "--out", "run", *TINY).code == 0
    message = f"Expected the data that the run was started with, {pictures}. Got digits."
    assert isoconv("train", "digits", "--resume", "--out", "run") == (2, "", f"isoconv: {message}\n")


def test_the_same_options_again_are_no_conflict(isoconv, pictures):
    assert isoconv("train", pictures, "--out", "run", *TINY).code == 0
    assert isoconv("train", pictures, "--resume", "--out", "run", *TINY).code == 0


def test_a_corrupt_run_cannot_be_resumed(isoconv, pictures, tmp_path):
    assert isoconv("train", pictures, "--out", "run", *TINY).code == 0
    (tmp_path / "run" / "state.safetensors").write_bytes(b"garbage")
    outcome = isoconv("train", "--resume", "--out", "run")
    assert outcome.code == 2 and outcome.err.count("\n") == 1
    assert outcome.err.startswith(
        "isoconv: Expected weights in run/state.safetensors. Got a file that cannot be read: "
    )
    (tmp_path / "run" / "config.json").write_text("{")
    outcome = isoconv("train", "--resume", "--out", "run")
    assert outcome.code == 2 and outcome.err.count("\n") == 1
    assert outcome.err.startswith("isoconv: Expected ") and "run/config.json" in outcome.err


def test_divergence_is_one_line(isoconv, pictures):
    outcome = isoconv("train", pictures, "--out", "run", *TINY, "--epochs", "3", "--conv", "standard", "--lr", "1e20")
    assert outcome.code == 2 and outcome.out == ""
    assert outcome.err.splitlines()[-1].startswith("isoconv: Training diverged in epoch ")
    assert "Traceback" not in outcome.err


def test_several_seeds_under_torchrun(isoconv, pictures, tmp_path, monkeypatch):
    monkeypatch.setattr(Processes, "join", classmethod(lambda cls, device: cls(0, 2, 0)))
    monkeypatch.setattr(Processes, "wait", lambda self: None)
    message = "Expected one seed at a time under torchrun. Got 2."
    outcome = isoconv("train", pictures, "--out", "run", "--seeds", "0,1", *TINY)
    assert outcome == (2, "", f"isoconv: {message}\n")
    assert not (tmp_path / "run").exists()


def test_a_demo_of_no_epochs(isoconv):
    assert isoconv("demo", "--epochs", "0") == (2, "", "isoconv: Expected epochs of at least 1. Got 0.\n")


@pytest.mark.parametrize(
    ("text", "value"), [("36/255", 36 / 255), (" 0.1 ", 0.1), ("1e-3", 1e-3), ("0", 0.0), ("2", 2.0)]
)
def test_numbers(text, value):
    assert parse_number(text, "--epsilon") == value


def test_lists():
    assert parse_numbers("1e-3,1/4", "--search") == [1e-3, 0.25]
    assert parse_seeds("0") == [0] and parse_seeds("3, 1,2") == [3, 1, 2]
    with pytest.raises(IsoconvError, match=r"^Expected a number such as 0\.1 or 36/255 for --search\. Got ''\.$"):
        parse_numbers("", "--search")
