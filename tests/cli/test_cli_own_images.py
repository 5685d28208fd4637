"""A user's own pictures, from the folder to a certified prediction: of all sizes, grey and coloured, few and many."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from isoconv.cli.options import parse_size
from isoconv.cli.train import batch_size_for
from isoconv.errors import IsoconvError
from isoconv.train.run_folder import load_run

SIZES = [(20, 20), (31, 47), (60, 40)]
COUNTS = {"dark": 24, "bright": 9, "only one": 1}


def picture(brightness: int, size: tuple[int, int], grey: bool, random: np.random.RandomState) -> Image.Image:
    pixels = (random.randint(0, 60, (*size, 3)) + brightness).astype(np.uint8)
    return Image.fromarray(pixels).convert("L" if grey else "RGB")


@pytest.fixture(scope="module")
def album(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes of 24, 9 and 1 pictures: PNG and JPEG, grey and coloured, square and not, mixed."""
    folder = tmp_path_factory.mktemp("album") / "my album"
    random = np.random.RandomState(0)
    for (name, count), brightness in zip(COUNTS.items(), (20, 170, 95), strict=True):
        (folder / name).mkdir(parents=True)
        for k in range(count):
            ending = ("png", "jpg", "jpeg", "PNG")[k % 4]
            picture(brightness, SIZES[k % 3], k % 5 == 0, random).save(folder / name / f"{k}.{ending}")
    return folder


@pytest.mark.parametrize(("size", "shape"), [("16", (3, 16, 16)), ("12x16", (3, 12, 16))])
def test_from_a_folder_to_a_certified_prediction(isoconv, album, tmp_path, size, shape):
    words = ["--size", size, "--model", "small", "--epochs", "6", "--out", "mine", "--device", "cpu"]
    outcome = isoconv("train", album, *words)
    assert outcome.code == 0 and "clean %" in outcome.out
    read = (
        "my album: 27 images to train on (from 1 of only one to 19 of dark), 7 held out to test on, none of only one, "
    )
    assert f"{read}of 3 classes, {shape[1]}×{shape[2]} in colour\n" in outcome.err
    _, config = load_run(tmp_path / "mine")
    assert config.input_shape == shape and config.classes == ("bright", "dark", "only one")
    assert config.flip  # photographs, more likely than not
    assert config.batch_size == 9  # 27 pictures to train with are several batches, and none is left over
    result = json.loads((tmp_path / "mine" / "result.json").read_text())
    assert result["images"] == 7 and result["clean"] > 70  # 34 pictures, a fifth held out, none of the single one
    random = np.random.RandomState(9)
    picture(20, (50, 33), False, random).save(tmp_path / "photo.png")
    picture(170, (8, 8), True, random).save(tmp_path / "grey.jpg")
    outcome = isoconv("predict", "mine", "photo.png", "grey.jpg", "--json")
    assert [answer["class"] for answer in json.loads(outcome.out)] == ["dark", "bright"]
    assert all(answer["certified"] for answer in json.loads(outcome.out))
    outcome = isoconv("predict", "mine", "photo.png")
    assert f"as {shape[1]}×{shape[2]} pixels in colour" in outcome.out
    assert outcome.err == "The radius is for the picture as it was resized, not for the file.\n"


def test_what_is_known_of_a_run_is_added_to_and_not_lost(isoconv, album, tmp_path):
    words = ["--size", "12", "--model", "small", "--epochs", "1", "--out", "mine", "--device", "cpu"]
    assert isoconv("train", album, *words).code == 0
    attacks = tmp_path / "mine" / "attacks.json"
    assert isoconv("attack", "mine", "--attack", "fgsm", "--attack", "pgd", "--steps", "2").code == 0
    assert isoconv("attack", "mine", "--attack", "fgsm", "--epsilon", "0.5").code == 0
    first = json.loads(attacks.read_text())
    assert [(row["attack"], round(row["epsilon"], 3)) for row in first] == [
        ("fgsm", 0.141),
        ("pgd", 0.141),
        ("fgsm", 0.5),
    ]
    assert isoconv("attack", "mine", "--attack", "fgsm", "--images", "3").code == 0
    again = json.loads(attacks.read_text())
    assert [(row["attack"], row["images"]) for row in again] == [("pgd", 7), ("fgsm", 7), ("fgsm", 3)]
    attacks.write_text("not of this kind")
    assert isoconv("attack", "mine", "--attack", "fgsm").code == 0 and len(json.loads(attacks.read_text())) == 1
    certified = tmp_path / "mine" / "certified.json"
    assert (
        isoconv("certify", "mine", "--images", "3").code == 0 and len(json.loads(certified.read_text())["radii"]) == 3
    )
    assert isoconv("certify", "mine").code == 0
    whole = certified.read_text()
    for part in (["--images", "3"], ["--arithmetic", "float32"], ["--criterion", "per-class"]):
        outcome = isoconv("certify", "mine", *part)
        assert outcome.code == 0 and "holds what was certified before" in outcome.err and certified.read_text() == whole
    outcome = isoconv("report", "mine", "--data", "nowhere")
    assert outcome.err == "isoconv: Expected a folder for --data. Got nowhere, which does not exist.\n"


def test_the_rest_of_the_way(isoconv, album, tmp_path):
    """certify, attack and report find the pictures again, from another folder than the one trained in."""
    words = ["--size", "12x16", "--model", "small", "--epochs", "1", "--out", tmp_path / "mine", "--device", "cpu"]
    assert isoconv("train", album, *words).code == 0
    outcome = isoconv("certify", "mine")
    assert outcome.code == 0 and "71.4 % of these images are of the most frequent class, dark.\n" in outcome.out
    assert isoconv("attack", "mine", "--attack", "fgsm").code == 0
    outcome = isoconv("report", "mine")
    assert (outcome.code, outcome.out) == (0, "")
    assert outcome.err.splitlines()[-1] == "The page is in report.html: open it in a browser."
    text = (tmp_path / "report.html").read_text()
    assert "only one" in text and "--size 12x16" in text


def test_pictures_that_have_moved(isoconv, album, tmp_path):
    """The cut into pictures to train on and held out ones depends on their names, not on where they are."""
    shutil.copytree(album, tmp_path / "here")
    words = ["--size", "12", "--model", "small", "--epochs", "1", "--out", "mine", "--device", "cpu"]
    assert isoconv("train", "here", *words).code == 0
    before = json.loads(isoconv("certify", "mine", "--json").out)
    (tmp_path / "here").rename(tmp_path / "there")
    assert isoconv("certify", "mine").code == 2
    after = json.loads(isoconv("certify", "mine", "--data", "there", "--json").out)
    assert [one["radii"] for one in after] == [one["radii"] for one in before]
    assert isoconv("attack", "mine", "--data", "there", "--attack", "fgsm").code == 0
    assert isoconv("report", "mine", "--data", "there").err == "The page is in report.html: open it in a browser.\n"
    outcome = isoconv("train", "--resume", "--out", "mine", "--data", "there")
    assert outcome.code == 0 and outcome.err.startswith("All 3 steps were done already.\n")


def test_a_page_of_two_runs_before_and_after_a_picture_was_added(isoconv, album, tmp_path):
    """Each is judged by what it held out, or not at all."""
    shutil.copytree(album, tmp_path / "here")
    words = ["--size", "12", "--model", "small", "--epochs", "1", "--device", "cpu"]
    assert isoconv("train", "here", *words, "--out", "before").code == 0
    shutil.copy(album / "dark" / "0.png", tmp_path / "here" / "bright" / "new.png")
    assert isoconv("train", "here", *words, "--out", "after").code == 0
    outcome = isoconv("report", "after", "before")
    assert outcome.code == 0 and outcome.err.startswith("before: Some parts are left out")
    assert (tmp_path / "after" / "certified.json").exists() and not (tmp_path / "before" / "certified.json").exists()
    shutil.copytree(album, tmp_path / "mnist")  # a name that is also a data set's
    assert isoconv("certify", "before", "--data", "mnist").code == 0
    assert isoconv("report", "before", "--data", "mnist").err == "The page is in report.html: open it in a browser.\n"


def test_a_list_of_pictures_may_move_and_must_not_change(isoconv, album, tmp_path):
    names = sorted(path for path in album.rglob("*.*") if path.parent.name != "only one")
    lines = [f"{path},{path.parent.name}\n" for path in names]  # where they are does not depend on the list
    (tmp_path / "list.csv").write_text("".join(lines))
    words = ["--size", "12", "--model", "small", "--epochs", "1", "--out", "mine", "--device", "cpu"]
    assert isoconv("train", "list.csv", *words).code == 0
    assert isoconv("certify", "mine").code == 0
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "list.csv").rename(tmp_path / "elsewhere" / "list.csv")
    assert isoconv("certify", "mine", "--data", "elsewhere/list.csv").code == 0
    (tmp_path / "elsewhere" / "list.csv").write_text("".join(lines[1:]))
    outcome = isoconv("certify", "mine", "--data", "elsewhere/list.csv")
    assert outcome.code == 2 and "which of them were held out is not known" in outcome.err


def test_own_pictures_say_themselves_where_they_are(isoconv, album):
    outcome = isoconv("train", album, "--size", "12", "--out", "mine", "--data", "elsewhere")
    assert outcome.code == 2 and outcome.err.count("\n") == 1
    assert "Expected --data for mnist, cifar10, stl10. Got it with" in outcome.err


def test_files_that_are_passed_over_are_counted(isoconv, album, tmp_path):
    shutil.copytree(album, tmp_path / "here")
    for name in ("loose.png", "dark/notes.txt", ".hidden"):
        shutil.copy(album / "dark" / "0.png", tmp_path / "here" / name)
    words = ["--size", "12", "--model", "small", "--epochs", "1", "--out", "mine", "--device", "cpu"]
    outcome = isoconv("train", "here", *words)
    assert "12×12 in colour; 2 other files passed over\n" in outcome.err
    assert outcome.out.splitlines()[0].strip() == "small, bcop, here, 1 epoch"


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_batches_of_few_pictures_leave_few_over(processes):
    for images in (*range(processes, 3000), 50_000):
        size = batch_size_for(images, processes)
        assert 1 <= size <= min(images, 128) and size % processes == 0
        if size < 126:
            assert images % size < (images // size) * processes + processes
        if images >= 16:
            assert images // size >= 2
    assert batch_size_for(50_000) == 128 and batch_size_for(27) == 9


def test_pictures_that_must_not_be_mirrored(isoconv, album, tmp_path):
    words = ["--size", "12", "--model", "small", "--epochs", "1", "--out", "mine", "--device", "cpu"]
    assert isoconv("train", album, *words, "--no-flip", "--crop-padding", "2").code == 0
    _, config = load_run(tmp_path / "mine")
    assert not config.flip and config.crop_padding == 2
    outcome = isoconv("train", "--resume", "--out", "mine", "--flip")
    assert outcome.code == 2 and "Got --flip, where it has --no-flip." in outcome.err
    outcome = isoconv("train", album, *words, "--crop-padding", "-1", "--overwrite")
    assert (outcome.code, outcome.err) == (2, "isoconv: Expected crop_padding of at least 0. Got -1.\n")
    assert load_run(tmp_path / "mine")[1].crop_padding == 2  # nothing was lost


def test_resuming_compares_both_sides(isoconv, album):
    words = ["--model", "small", "--epochs", "1", "--out", "mine", "--device", "cpu"]
    assert isoconv("train", album, "--size", "12x16", *words).code == 0
    assert isoconv("train", "--resume", "--out", "mine", "--size", "12x16").code == 0
    outcome = isoconv("train", "--resume", "--out", "mine", "--size", "12")
    assert outcome.code == 2 and "Got --size 12, where it has 12×16." in outcome.err


def test_pictures_of_many_sizes_need_one(isoconv, album):
    outcome = isoconv("train", album, "--out", "mine")
    assert outcome.code == 2 and outcome.err.count("\n") == 1
    assert "Expected pictures of one size, or a size to bring them to (--size)." in outcome.err


@pytest.mark.parametrize(
    ("text", "size"), [("32", 32), ("32x48", (32, 48)), ("32X48", (32, 48)), ("32×48", (32, 48)), (" 8 x 9 ", (8, 9))]
)
def test_sizes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "x", "32x", "x32", "3.5", "1x2x3", "32,48", "large"])
def test_other_sizes_are_refused(text):
    with pytest.raises(IsoconvError, match=r"^Expected a size such as 32 or 32x48 \(height x width\) for --size. Got "):
        parse_size(text)


@pytest.mark.parametrize("size", ["0", "-4", "8x0"])
def test_sizes_that_are_none(isoconv, album, size):
    outcome = isoconv("train", album, f"--size={size}", "--out", "mine")
    assert outcome.code == 2 and "Expected a size as one positive whole number or as (height, width)." in outcome.err
