"""WebDataset shards: the batches of a folder of the same pictures, whatever wrote the tar file; nothing lost in silence."""

import gzip
import io
import multiprocessing
import tarfile
from itertools import chain
from pathlib import Path

import pytest
import torch

from data.fakes import FORMATS, random_bytes, same, save_picture, write_tar
from isoconv.data import EpochBatches, StreamedSet, load_splits, read_folder, read_shards
from isoconv.data.shards import expand_braces, list_shard
from isoconv.errors import IsoconvError


def picture_bytes(seed: int = 0, size: int = 5) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(random_bytes(size, size, 3, seed=seed)).save(file, "PNG")
    return file.getvalue()


def samples(*keys: str) -> dict[str, bytes]:
    """Return a picture and a label for each key; the labels alternate between 0 and 1."""
    pairs = [(f"{key}.png", picture_bytes(k)) for k, key in enumerate(keys)]
    return dict(chain(*zip(pairs, ((f"{key}.cls", str(k % 2).encode()) for k, key in enumerate(keys)), strict=True)))


@pytest.fixture(scope="module")
def shards(album, tmp_path_factory):
    """The pictures of the album in three shards, in another order, beside other files."""
    folder, contents = tmp_path_factory.mktemp("shards") / "shards", [dict[str, bytes]() for _ in range(3)]
    for k, path in enumerate(sorted(album.rglob("*.*"), key=lambda path: path.name)):
        members = [(path.name, path.read_bytes()), (f"{path.stem}.cls", path.parent.name.encode())]
        contents[k * 7 % 3] |= dict([(f"{path.stem}.json", b"{}"), *members][:: (-1) ** k])
    for n, (form, members) in enumerate(zip(FORMATS, contents, strict=True)):
        write_tar(folder / f"s-{n:02}.tar", members, form)
    return folder


@pytest.mark.parametrize("workers", [None, 0, 2])
def test_batches_are_those_of_a_folder_of_the_same_pictures(album, shards, workers):
    reading = {"size": (12, 16), "stream": workers is not None, "workers": workers}
    expected, splits = read_folder(album, size=(12, 16)), load_splits(shards, **reading)
    assert isinstance(splits.train, StreamedSet) == (workers is not None)
    assert sum(splits.ignored.values()) == 60 and splits.train.classes == ("ant", "bee", "cat")
    for a, b in ((expected.train, splits.train), (expected.test, splits.test)):
        for epoch in (0, 2):
            options = {"seed": 3, "padding": 2, "flip": True, "drop_last": False}
            batches = [list(EpochBatches(x, 7, **options).epoch(epoch)) for x in (a, b)]
            assert same(*batches) and len(batches[0]) > 1
    assert not multiprocessing.active_children()


def test_ways_to_name_shards_and_an_order_that_does_not_depend_on_them(shards, tmp_path):
    whole = read_shards(shards, size=8)
    for name in ("s-{00..02}.tar", "s-{02,{01..00}}.tar"):
        splits = load_splits(shards / name, size=8)
        assert torch.equal(splits.train.images, whole.train.images) and splits.listing == whole.listing
    pictures = [picture for shard in sorted(shards.iterdir()) for picture in list_shard(shard)[0]]
    members = {picture.name: picture.path.read_bytes() for picture in pictures}
    members |= {f"{Path(picture.name).stem}.cls": picture.label.encode() for picture in pictures}
    joined = load_splits(write_tar(tmp_path / "all.tar", members), size=8)
    assert torch.equal(joined.test.images, whole.test.images) and joined.listing == whole.listing


@pytest.mark.parametrize("form", FORMATS)
def test_the_index_is_what_the_standard_library_reads(tmp_path, form):
    """Long names, names of other scripts, folders and links among the members; labels before or after the pictures."""
    names = ["a", "deep/er/b", "./c", "x" * 60 + "/" + "y" * 80, "v" * 90 + "/" + "w" * 90 + "/d", "日本/e"]
    path = write_tar(tmp_path / "a.tar", samples(*names), form)
    with tarfile.open(path, "a", format=FORMATS[form]) as file:
        for name, kind in (("folder.png", tarfile.DIRTYPE), ("link.png", tarfile.SYMTYPE), ("h.png", tarfile.LNKTYPE)):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "a.png"
            file.addfile(info)
    pictures, ignored = list_shard(path)
    with tarfile.open(path) as file:
        known = {m.name: file.extractfile(m).read() for m in file.getmembers() if m.isreg() and m.name.endswith(".png")}
    assert len(known) == len(names) and not ignored
    assert {picture.name: picture.path.read_bytes() for picture in pictures} == {
        name.removeprefix("./"): content for name, content in known.items()
    }
    assert [picture.label for picture in pictures] == [str(k % 2) for k in range(len(names))]


def test_parts_by_folder_and_by_name(tmp_path):
    few, more = samples("t0", "t1"), samples(*(f"k{k}" for k in range(12)))
    write_tar(tmp_path / "folders" / "train" / "0.tar", more)
    write_tar(tmp_path / "folders" / "val" / "0.tar", few)
    write_tar(tmp_path / "names" / "set-train-0.tar", more)
    write_tar(tmp_path / "names" / "set-validation-0.tar", few)
    for path in ("folders", "names", "names/set-{train,validation}-0.tar"):
        splits = load_splits(tmp_path / path)
        assert (len(splits.train), len(splits.test), splits.ignored) == (12, 2, {})
    write_tar(tmp_path / "names" / "set-test-0.tar", samples("u0", "u1", "u2"))
    splits = load_splits(tmp_path / "names")
    assert (len(splits.train), len(splits.test), splits.ignored) == (12, 3, {".tar": 1})
    splits = load_splits(tmp_path / "names" / "set-train-{0..0}.tar")  # one part: a fifth is held out
    assert (len(splits.train), len(splits.test)) == (10, 2)
    write_tar(tmp_path / "names" / "rest.tar", few)
    with pytest.raises(IsoconvError, match=r"names of all shards.*rest\.tar"):
        load_splits(tmp_path / "names")
    write_tar(tmp_path / "folders" / "val" / "1.tar", {"z.png": picture_bytes(), "z.cls": b"7"})
    with pytest.raises(IsoconvError, match=r"class.*1\.tar:z\.png.*'7'"):
        load_splits(tmp_path / "folders")


def test_a_folder_of_classes_may_hold_a_tar_file_too_and_be_named_like_one(tmp_path):
    tmp_path = tmp_path / "photos.tar"
    for k in range(8):
        save_picture(tmp_path / "ab"[k % 2] / f"{k}.png", random_bytes(4, 4, 3, seed=k))
    (tmp_path / "photos.tar").write_bytes(b"whatever")
    assert len(load_splits(tmp_path).train) == 6


def test_labels_are_sorted_as_numbers_if_they_are(tmp_path):
    members = dict(chain(*(((f"{k}.png", picture_bytes(k)), (f"{k}.cls", b"%d\n" % (k % 12))) for k in range(24))))
    splits = read_shards(write_tar(tmp_path / "a.tar", members))
    assert splits.train.classes == tuple(map(str, range(12)))


BRACES = {
    "a.tar": "a.tar", "a-{8..11}": "a-8 a-9 a-10 a-11", "a-{008..10}": "a-008 a-009 a-010", "{2..0}": "2 1 0",
    "{a,b{1..2},}/{x,y}": "/x /y a/x a/y b1/x b1/y b2/x b2/y", "a{b}{1..2}": "a{b}1 a{b}2", "a}{1..": "a}{1..",
    "{{1..2}}": "{1} {2}",
}  # fmt: skip


def test_braces_mean_what_they_mean_to_a_shell():
    for pattern, names in BRACES.items():
        assert sorted(expand_braces(pattern)) == sorted(names.split())


def test_a_shard_that_was_cut_off_anywhere_is_refused(tmp_path):
    path = write_tar(tmp_path / "a.tar", samples("a", "b", "c"))
    content = path.read_bytes()
    end = -(-len(content.rstrip(b"\0")) // 512) * 512  # of the members
    assert len(list_shard(path)[0]) == 3
    for length in {*range(0, end + 1, 256), *range(1, end, 331), end + 511}:
        path.write_bytes(content[:length])
        with pytest.raises(IsoconvError, match=r"a\.tar is truncated") as error:
            list_shard(path)
        assert "\n" not in str(error.value)
    path.write_bytes(content[: end + 512])
    assert len(list_shard(path)[0]) == 3


@pytest.mark.parametrize("form", FORMATS)
def test_no_damaged_header_is_taken_for_the_end(tmp_path, form):
    """Each byte of each header counts; those of pictures and labels are for whoever decodes them."""
    path = write_tar(tmp_path / "a.tar", samples("a", "b"), form)
    content, headers = path.read_bytes(), []
    position = 0
    while any(content[position : position + 512]):
        headers.append(position)
        position += 512 + -(-int(content[position + 124 : position + 135], 8) // 512) * 512
    assert len(headers) == (8 if form == "pax" else 4)
    for header in headers:
        for offset in (0, 3, 101, 125, 134, 148, 156, 258, 345, 511):
            damaged = bytearray(content)
            damaged[header + offset] ^= 0x55
            path.write_bytes(damaged)
            with pytest.raises(IsoconvError, match=r"a\.tar"):
                list_shard(path)


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"a.png": b"", "a.cls": b"0", "b.jpg": b""}, r"label for .*b\.jpg.*b\.cls"),
        ({"a.png": b"", "a.cls": b"0", "b.cls": b"1", "b.npy": b""}, r"image.*b\.cls"),
        ({"a.png": b"", "a.jpg": b"", "a.cls": b"0"}, r"one image.*a\.png and a\.jpg"),
        ({"a.png": b"", "a.cls": b""}, r"class in .*a\.cls.*b''"),
        ({"a.png": b"", "a.cls": b"\xff\xfe"}, r"class in .*a\.cls"),
        ({"a.png": b"", "a.cls": b"cat\ndog"}, r"class in .*a\.cls"),
        ({"a.png": b"", "a.cls": b"1" * 5000}, r"class in .*a\.cls"),
        ({"a.png": b"", "a.cls": b"0"}, r"at least two classes.*'0'"),
        ({"a.txt": b"", "b.json": b"0"}, r"at least two classes.*no images"),
        (samples("c", "d", "e") | {"a.png": b"no picture", "a.cls": b"0"}, r"a\.png cannot be read as an image"),
    ],
)
def test_what_is_wrong_in_a_shard_is_said_in_one_line(tmp_path, members, words):
    path = write_tar(tmp_path / "s.tar", members)
    with pytest.raises(IsoconvError, match=words) as error:
        read_shards(path, size=4)
    assert "\n" not in str(error.value) and "s.tar" in str(error.value)


def test_other_files_are_refused(tmp_path):
    path = write_tar(tmp_path / "a.tar", samples("a", "b"))
    (tmp_path / "twice.tar").write_bytes(2 * path.read_bytes())
    (tmp_path / "packed.tar").write_bytes(gzip.compress(path.read_bytes() + random_bytes(1000).tobytes()))
    refused = {"twice": "nothing after the end", "packed": "without compression", "a-{0..9999999}": "million"}
    for name, words in (refused | dict.fromkeys(("a-{0..3}", "none"), "which does not exist")).items():
        with pytest.raises(IsoconvError, match=words):
            load_splits(tmp_path / f"{name}.tar")


@pytest.mark.parametrize("workers", [0, 2])
def test_a_picture_that_is_damaged_or_gone_is_named(tmp_path, workers):
    path = write_tar(tmp_path / "a.tar", samples(*map(str, range(40))))
    splits = read_shards(path, size=4, channels=3, stream=True, workers=workers)
    content = path.read_bytes()
    first = list_shard(path)[0][0].path
    for damaged, words in ((content[: first.offset + 9], "shorter"), (content.replace(b"IDAT", b"IDAx"), "an image")):
        path.write_bytes(damaged)
        with pytest.raises(IsoconvError, match=words) as error:
            list(EpochBatches(splits.train, 4).epoch(0))
        assert f"{path}:" in str(error.value) and ".png" in str(error.value) and "\n" not in str(error.value)
    assert not multiprocessing.active_children()
