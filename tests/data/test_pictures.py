from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from data.fakes import random_bytes, save_picture, write
from isoconv.data import load_image, read_csv, read_folder
from isoconv.data.pictures import read_pictures
from isoconv.errors import IsoconvError


def labelled(root: Path, **counts: int) -> Path:
    """A folder where the value of a picture's pixels says its class: 10, 11, … for the first class, 20, … and so on."""
    for k, (name, count) in enumerate(counts.items()):
        for i in range(count):
            save_picture(root / name / f"{i}.png", np.full((4, 5), 10 * (k + 1) + i, dtype=np.uint8))
    return root


def test_one_sub_folder_per_class(tmp_path):
    calls = []
    folder = labelled(tmp_path / "pets", cats=5, dogs=10)
    train, test = read_folder(folder, size=6, progress=lambda *call: calls.append(call))
    assert calls == [("reading images", k, 15) for k in range(1, 16)]
    assert (train.name, train.classes, train.shape) == ("pets", ("cats", "dogs"), (1, 6, 6))
    for part, counts in ((train, [4, 8]), (test, [1, 2])):
        assert torch.bincount(part.labels).tolist() == counts
        assert torch.equal(part.images[:, 0, 0, 0].long() // 20 >= 1, part.labels == 1)
    values = torch.cat([train.images[:, 0, 0, 0], test.images[:, 0, 0, 0]])
    assert sorted(values.tolist()) == [*range(10, 15), *range(20, 30)]
    assert len(read_folder(folder, test_fraction=0.4).test) == 6
    first, again, other = (read_folder(folder, seed=seed).test.images for seed in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, other)


@pytest.mark.parametrize("test_name", ["test", "val"])
def test_train_and_test_folders(tmp_path, test_name):
    """Without a test folder some of the training set is held out; a colour picture anywhere makes all of them so."""
    labelled(tmp_path / "train", cats=5, dogs=5)
    train, test = read_folder(tmp_path)
    assert (train.classes, len(train), len(test)) == (("cats", "dogs"), 8, 2)
    labelled(tmp_path / test_name, cats=1, dogs=2)
    train, test = read_folder(tmp_path)
    assert (len(train), len(test)) == (10, 3)
    assert sorted(test.images[:, 0, 0, 0].tolist()) == [10, 20, 21]
    save_picture(tmp_path / test_name / "dogs/colour.png", random_bytes(4, 5, 3))
    train, test = read_folder(tmp_path)
    assert train.shape == test.shape == (3, 4, 5)


def test_what_is_not_a_picture_is_left_alone(tmp_path):
    labelled(tmp_path, a=2, b=2)
    for name in ("notes.txt", "a/notes.txt", "a/.hidden.png", ".git/1.png"):
        write(tmp_path / name, b"not a picture")
    save_picture(tmp_path / "a" / "deeper" / "still" / "1.PNG")
    save_picture(tmp_path / "a" / ".thumbnails" / "1.png")
    splits = read_folder(tmp_path)
    assert (len(splits.train) + len(splits.test), splits.ignored) == (5, {".txt": 2})


def test_links_are_followed_but_not_in_a_circle(tmp_path):
    """Otherwise pictures would be counted some forty times, and be both trained on and held out."""
    for k in range(8):
        save_picture(tmp_path / ("album/a", "else/where")[k % 2] / f"{k}.png", random_bytes(4, 4, seed=k))
    (tmp_path / "album" / "b").symlink_to(tmp_path / "else" / "where")
    (tmp_path / "album" / "a" / "above").symlink_to(tmp_path / "album")
    splits = read_folder(tmp_path / "album", test_fraction=0.25)
    assert len(splits.train) + len(splits.test) == 8 and splits.train.classes == ("a", "b")


@pytest.mark.parametrize("ending", ["png", "jpeg", "bmp", "webp", "gif", "JPG"])
def test_every_format(tmp_path, ending):
    """A picture of one colour, which survives every compression up to rounding."""
    path = save_picture(tmp_path / f"picture.{ending}", np.full((16, 12, 3), (200, 100, 50), dtype=np.uint8))
    image = load_image(path, (3, 16, 12))
    assert (image.shape, image.dtype) == ((3, 16, 12), torch.uint8)
    assert (image.int() - torch.tensor([200, 100, 50])[:, None, None]).abs().max() <= 4
    frames = [Image.fromarray(np.full((4, 4), value, dtype=np.uint8)) for value in (40, 90, 200)]
    frames[0].save(tmp_path / "moving.gif", save_all=True, append_images=frames[1:])
    assert load_image(tmp_path / "moving.gif", (1, 4, 4)).unique().tolist() == [40]


def test_grey_or_colour_is_decided_by_the_pixels(tmp_path):
    grey = random_bytes(4, 5)
    stored = {"l": grey, "rgb": np.repeat(grey[..., None], 3, axis=2)}
    paths = [save_picture(tmp_path / f"{name}.png", pixels) for name, pixels in stored.items()]
    images = read_pictures(paths)
    assert images.shape == (2, 1, 4, 5) and all(np.array_equal(image[0].numpy(), grey) for image in images)
    assert read_pictures(paths, channels=3).shape == (2, 3, 4, 5)
    colour = random_bytes(4, 5, 3)
    paths.append(save_picture(tmp_path / "colour.png", colour))
    mixed = read_pictures(paths)
    assert mixed.shape == (3, 3, 4, 5)
    assert np.array_equal(mixed[0].numpy(), np.stack([grey] * 3))
    assert np.array_equal(mixed[2].permute(1, 2, 0).numpy(), colour)
    expected = np.asarray(Image.fromarray(colour).convert("L"))
    assert np.array_equal(read_pictures(paths, channels=1)[2, 0].numpy(), expected)


def test_one_bit_and_sixteen_bits(tmp_path):
    Image.fromarray(np.eye(3, dtype=np.uint8) * 255).convert("1").save(tmp_path / "bits.png")
    assert torch.equal(load_image(tmp_path / "bits.png", (1, 3, 3))[0], 255 * torch.eye(3, dtype=torch.uint8))
    wide = np.array([[0, 128, 129], [257, 30_000, 65_535]], dtype=np.uint16)
    save_picture(tmp_path / "wide.png", wide)
    assert load_image(tmp_path / "wide.png", (1, 2, 3))[0].tolist() == [[0, 0, 1], [1, 117, 255]]
    assert read_pictures([tmp_path / "wide.png"]).shape == (1, 1, 2, 3)


def test_what_is_transparent_lies_on_black(tmp_path):
    pixels = np.array([[[200, 100, 50, 255], [200, 100, 50, 0], [200, 100, 50, 128]]], dtype=np.uint8)
    save_picture(tmp_path / "alpha.png", pixels)
    image = load_image(tmp_path / "alpha.png", (3, 1, 3))
    assert image[:, 0].T.tolist() == [[200, 100, 50], [0, 0, 0], [100, 50, 25]]
    grey = Image.fromarray(np.array([[100, 100]], dtype=np.uint8))
    grey.putalpha(Image.fromarray(np.array([[255, 0]], dtype=np.uint8)))
    grey.save(tmp_path / "la.png")
    assert read_pictures([tmp_path / "la.png"]).tolist() == [[[[100, 0]]]]
    palette = Image.fromarray(np.array([[0, 1]], dtype=np.uint8)).convert("P")
    palette.putpalette([10, 20, 30, 40, 50, 60])
    for options, second in (({}, [40, 50, 60]), ({"transparency": 1}, [0, 0, 0])):
        palette.save(tmp_path / "p.png", **options)
        assert load_image(tmp_path / "p.png", (3, 1, 2))[:, 0].T.tolist() == [[10, 20, 30], second]


def test_the_orientation_that_a_camera_wrote_down(tmp_path):
    upright = np.zeros((8, 16), dtype=np.uint8)
    upright[:, :8] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # stored turned by a quarter
    path = save_picture(tmp_path / "turned.png", np.ascontiguousarray(np.rot90(upright)), exif=exif)
    assert np.array_equal(load_image(path, (1, 8, 16))[0].numpy(), upright)
    assert read_pictures([path]).shape == (1, 1, 8, 16)


@pytest.mark.parametrize("size", [7, (7, 9), (40, 30)])
def test_scaling_is_pillows_bicubic_with_antialiasing(tmp_path, size):
    pixels = random_bytes(20, 16, 3)
    images = read_pictures([save_picture(tmp_path / "a.png", pixels)], size=size)
    height, width = (size, size) if isinstance(size, int) else size
    expected = np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC))
    assert np.array_equal(images[0].permute(1, 2, 0).numpy(), expected)


def test_prediction_sees_what_training_saw(tmp_path):
    for k, name in enumerate(("a", "b")):
        for i in range(3):
            save_picture(tmp_path / name / f"{i}.png", random_bytes(20 + i, 16 + k, 3, seed=10 * k + i))
    for channels in (1, 3):
        train, test = read_folder(tmp_path, size=8, channels=channels)
        seen = {image.numpy().tobytes() for part in (train, test) for image in part.images}
        assert {load_image(path, train.shape).numpy().tobytes() for path in tmp_path.rglob("*.png")} == seen


@pytest.mark.parametrize("start", ["", "path,label\n", "\ufefffile name, class\n", "\ufeff"])
def test_a_csv_file(tmp_path, start):
    labelled(tmp_path / "pictures", x=3, y=3)
    rows = [f"pictures/{name}/{i}.png,{label}" for name, label in (("x", "9"), ("y", "10")) for i in range(3)]
    rows[0] = '"pictures/x/0.png" , 9 '
    rows[1] = f"{tmp_path}/pictures/x/1.png,9"
    (tmp_path / "list.csv").write_text(start + "\r\n".join(rows[:3]) + "\n\n" + "\n".join(rows[3:]), newline="")
    train, test = read_csv(tmp_path / "list.csv", test_fraction=0.34)
    assert (train.classes, train.name, len(train), len(test)) == (("9", "10"), "list", 4, 2)
    for part in (train, test):
        assert torch.equal(part.images[:, 0, 0, 0] >= 20, part.labels == 1)
    (tmp_path / "words.csv").write_text("\n".join(rows).replace(",9", ",b"))  # sorted as words, where some are
    assert read_csv(tmp_path / "words.csv").train.classes == ("10", "9", "b")


@pytest.mark.parametrize("stream", [False, True])
def test_broken_pictures_are_named_together_or_left_out(tmp_path, stream):
    """What is held out does not depend on which pictures can be read, nor on which part is asked for first."""
    folder = labelled(tmp_path / "pets", cats=6, dogs=9)
    whole = read_folder(folder, size=4)
    broken, gone = [folder / name for name in ("cats/1.png", "dogs/2.png", "dogs/5.png")], torch.tensor([11, 22, 25])
    for path, content in zip(broken, (b"II*\0 and so on", b"", b"?"), strict=True):
        path.write_bytes(content)
    options = {"size": 4, "stream": stream, "workers": 0}
    with pytest.raises(IsoconvError) as error:
        torch.cat([part.images for part in read_folder(folder, **options)])
    message = str(error.value)
    assert "\n" not in message and all(str(path) in message for path in broken) != stream
    splits = read_folder(folder, skip_broken=True, **options)
    lazy = read_folder(folder, skip_broken=True, channels=1, lazy=True, **options)
    for part in ("test", "train"):
        values = getattr(whole, part).images[:, 0, 0, 0]
        kept = values[~torch.isin(values, gone)]
        for some in (splits, lazy):
            images = getattr(some, part)
            assert torch.equal(images.images[:, 0, 0, 0], kept)
            assert torch.equal(images.labels, (kept >= 20).long())
    assert sorted(splits.left_out) == sorted(lazy.left_out) == sorted(map(str, broken))
    assert splits.listing == lazy.listing != whole.listing  # the files have other sizes in bytes
    with pytest.raises(IsoconvError, match="TIFF"):
        load_image(folder / "cats" / "1.png", (1, 4, 4))
