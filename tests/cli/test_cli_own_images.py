"""A user's own pictures, from the folder to a certified prediction: of all sizes, grey and coloured, few and many."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from data.fakes import save_picture
from isoconv.train.classifier import choose_batch_size
from isoconv.train.run_folder import load_run

SIZES = [(20, 20), (31, 47), (60, 40)]
WORDS = ["--model", "small", "--epochs", "1", "--out", "mine", "--device", "cpu"]
COUNTS = {"dark": 24, "bright": 9, "only one": 1}


def pixels(brightness: int, size: tuple[int, int], grey: bool, random: np.random.RandomState) -> np.ndarray:
    return (random.randint(0, 60, size if grey else (*size, 3)) + brightness).astype(np.uint8)


@pytest.fixture(scope="module")
def album(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes of 24, 9 and 1 pictures: PNG and JPEG, grey and coloured, square and not, mixed."""
    folder = tmp_path_factory.mktemp("album") / "my album"
    random = np.random.RandomState(0)
    for (name, count), brightness in zip(COUNTS.items(), (20, 170, 95), strict=True):
        for k in range(count):
            ending = ("png", "jpg", "jpeg", "PNG")[k % 4]
            save_picture(folder / name / f"{k}.{ending}", pixels(brightness, SIZES[k % 3], k % 5 == 0, random))
    return folder


def test_from_a_folder_to_a_certified_prediction(isoconv, album, tmp_path):
    outcome = isoconv("train", album, *WORDS, "--size", "12x16", "--epochs", "6")
    assert outcome.code == 0 and "clean %" in outcome.out
    for part in ("27 images", "from 1 of only one to 19 of dark", "7 held out", "none of only one", "12×16 in colour"):
        assert part in outcome.err
    _, config = load_run(tmp_path / "mine")
    assert config.input_shape == (3, 12, 16) and config.classes == ("bright", "dark", "only one")
    assert config.flip  # photographs, more likely than not
    assert config.batch_size == 9  # 27 pictures to train with are several batches, and none is left over
    result = json.loads((tmp_path / "mine" / "result.json").read_text())
    assert result["images"] == 7 and result["clean"] > 70  # 34 pictures, a fifth held out, none of the single one
    random = np.random.RandomState(9)
    save_picture(tmp_path / "photo.png", pixels(20, (50, 33), False, random))
    save_picture(tmp_path / "grey.jpg", pixels(170, (8, 8), True, random))
    answers = isoconv("predict", "mine", "photo.png", "grey.jpg", "--json").json
    assert [answer["class"] for answer in answers] == ["dark", "bright"]
    assert all(answer["certified"] for answer in answers)
    assert "12×16 pixels, colour" in isoconv("predict", "mine", "photo.png").out
    turned = Image.Exif()
    turned[0x0112] = 6  # a quarter turn, after which it is 12×16
    Image.new("RGB", (12, 16)).save("turned.png", exif=turned)
    assert "resized" not in isoconv("predict", "mine", "turned.png").err
    outcome = isoconv("certify", "mine")
    assert outcome.code == 0 and "71.4 %" in outcome.err and "dark" in outcome.err  # what guessing would reach
    assert isoconv("report", "mine").code == 0
    text = (tmp_path / "report.html").read_text()
    assert "only one" in text and "--size 12x16" in text


def test_what_is_known_of_a_run_is_added_to_and_not_lost(isoconv, album, tmp_path):
    assert isoconv("train", album, *WORDS, "--size", "12").code == 0
    attacks, certified = tmp_path / "mine" / "attacks.json", tmp_path / "mine" / "certified.json"
    assert isoconv("attack", "mine", "--attack", "fgsm", "--attack", "pgd", "--steps", "2").code == 0
    assert isoconv("attack", "mine", "--attack", "fgsm", "--epsilon", "0.5").code == 0
    rows = [(row["attack"], round(row["epsilon"], 3)) for row in json.loads(attacks.read_text())]
    assert rows == [("fgsm", 0.141), ("pgd", 0.141), ("fgsm", 0.5)]
    assert isoconv("attack", "mine", "--attack", "fgsm", "--images", "3").code == 0
    again = json.loads(attacks.read_text())
    assert [(row["attack"], row["images"]) for row in again] == [("pgd", 7), ("fgsm", 7), ("fgsm", 3)]
    attacks.write_text("not of this kind")
    assert isoconv("attack", "mine", "--attack", "fgsm").code == 0 and len(json.loads(attacks.read_text())) == 1
    assert isoconv("certify", "mine", "--images", "3").code == 0
    assert len(json.loads(certified.read_text())["radii"]) == 3
    assert isoconv("certify", "mine").code == 0
    whole = certified.read_text()
    for part in (["--images", "3"], ["--arithmetic", "float32"], ["--criterion", "per-class"]):
        outcome = isoconv("certify", "mine", *part)
        assert outcome.code == 0 and "mine/certified.json" in outcome.err and certified.read_text() == whole
    assert "7 test images, float64, per-class" in outcome.out


def test_pictures_that_have_moved(isoconv, album, tmp_path):
    """The cut into pictures to train on and held out ones depends on their names, not on where they are."""
    shutil.copytree(album, tmp_path / "here")
    for name in ("loose.png", "dark/notes.txt", ".hidden"):
        shutil.copy(album / "dark" / "0.png", tmp_path / "here" / name)
    outcome = isoconv("train", "here", *WORDS, "--size", "12")
    assert outcome.code == 0 and "1 epoch" in outcome.out.splitlines()[0]
    assert "2 other files ignored (.png, .txt)" in outcome.err
    before = isoconv("certify", "mine", "--json").json
    (tmp_path / "here").rename(tmp_path / "there")
    assert isoconv("certify", "mine").is_refused("here", "--data")
    after = isoconv("certify", "mine", "--data", "there", "--json").json
    assert [record["radii"] for record in after] == [record["radii"] for record in before]
    assert isoconv("attack", "mine", "--data", "there", "--attack", "fgsm").code == 0
    outcome = isoconv("train", "--resume", "--out", "mine", "--data", "there")
    assert outcome.code == 0 and "3 of 3 steps" in outcome.err


def test_a_page_of_two_runs_before_and_after_a_picture_was_added(isoconv, album, tmp_path):
    """Each is judged by what it held out, or not at all."""
    shutil.copytree(album, tmp_path / "here")
    assert isoconv("train", "here", *WORDS, "--size", "12", "--out", "before").code == 0
    shutil.copy(album / "dark" / "0.png", tmp_path / "here" / "bright" / "new.png")
    assert isoconv("train", "here", *WORDS, "--size", "12", "--out", "after").code == 0
    outcome = isoconv("report", "after", "before")
    assert outcome.code == 0 and "before: Some parts are left out" in outcome.err
    assert (tmp_path / "after" / "certified.json").exists() and not (tmp_path / "before" / "certified.json").exists()
    shutil.copytree(album, tmp_path / "mnist")  # a name that is also a data set's
    assert isoconv("certify", "before", "--data", "mnist").code == 0
    outcome = isoconv("report", "before", "--data", "mnist")
    assert outcome.code == 0 and "left out" not in outcome.err


def test_a_list_of_pictures_may_move_and_must_not_change(isoconv, album, tmp_path):
    names = sorted(path for path in album.rglob("*.*") if path.parent.name != "only one")
    lines = [f"{path},{path.parent.name}\n" for path in names]  # where they are does not depend on the list
    (tmp_path / "list.csv").write_text("".join(lines))
    assert isoconv("train", "list.csv", *WORDS, "--size", "12").code == 0
    assert isoconv("certify", "mine").code == 0
    (tmp_path / "elsewhere").mkdir()
    moved = (tmp_path / "list.csv").rename(tmp_path / "elsewhere" / "list.csv")
    assert isoconv("certify", "mine", "--data", "elsewhere/list.csv").code == 0
    moved.write_text("".join(lines[1:]))
    assert isoconv("certify", "mine", "--data", "elsewhere/list.csv").is_refused("elsewhere/list.csv", "held out")


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_batches_of_few_pictures_leave_few_over(processes):
    for images in (*range(processes, 300), 2999, 50_000):
        size = choose_batch_size(images, processes)
        assert 1 <= size <= min(images, 128) and size % processes == 0
        if size < 126:
            assert images % size < (images // size) * processes + processes
        if images >= 16:
            assert images // size >= 2
    assert choose_batch_size(50_000) == 128 and choose_batch_size(27) == 9
