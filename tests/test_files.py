"""Files that are either the old one or the new one, and broken ones that are named."""

import contextlib
import os
import re
import stat
from pathlib import Path

import pytest
import torch
from safetensors.torch import save
from torch import nn

from isoconv.errors import IsoconvError
from isoconv.files import check_writable, read_json, read_tensors, write_files, write_tensors, write_text


def test_tensors_come_back_as_they_were(tmp_path):
    tensors = {"a": torch.randn(3, 4), "b/c": torch.randn(4, 3).T, "count": torch.tensor(7)}
    tensors |= {"half": torch.randn(2).bfloat16(), "empty": torch.zeros(0, 3), "graph": nn.Parameter(torch.ones(2))}
    write_tensors(tmp_path / "x.safetensors", tensors, {"format": "pt"})
    read = read_tensors(tmp_path / "x.safetensors")
    assert read.keys() == tensors.keys()
    for name, value in tensors.items():
        assert torch.equal(read[name], value) and read[name].dtype == value.dtype, name


@pytest.mark.parametrize("failing", ["replace", "fsync", "fdopen"])
@pytest.mark.parametrize("error", [OSError(28, "disk full"), KeyboardInterrupt()], ids=["OSError", "KeyboardInterrupt"])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(error, failing, tmp_path, monkeypatch):
    def fail(*args: object, **options: object) -> None:
        raise error

    path = tmp_path / "file"
    write_text(path, "old")
    monkeypatch.setattr(os, failing, fail)
    for write in (lambda: write_text(path, "new"), lambda: write_tensors(path, {"number": torch.tensor(2)})):
        with pytest.raises(IsoconvError if isinstance(error, OSError) else type(error)) as raised:
            write()
        assert not isinstance(error, OSError) or str(raised.value) == f"Cannot write {path}: disk full."
        assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_no_file_takes_its_place_before_all_are_on_disk(tmp_path, monkeypatch):
    seen, synced, replace = [], [], os.replace

    def watch(source: str, target: Path) -> None:
        seen.append((Path(source).read_text(), Path(target).exists(), len(synced)))
        replace(source, target)

    monkeypatch.setattr(os, "replace", watch)
    monkeypatch.setattr(os, "fsync", synced.append)
    write_files({tmp_path / "x": b"all of it", tmp_path / "y": b"and this"})
    assert seen == [("all of it", False, 2), ("and this", False, 2)]
    write_text(tmp_path / "x", "new")
    assert (tmp_path / "x").read_text() == "new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x", "y"]


def test_of_a_link_the_file_that_it_leads_to_is_written(tmp_path):
    for target in (tmp_path / "old", tmp_path / "not yet there"):
        link = tmp_path / f"to {target.name}"
        link.symlink_to(target.name)
        for text in ("first", "second"):
            write_text(link, text)
            assert link.is_symlink() and target.read_text() == text and not target.is_symlink()


def test_a_pipe_a_device_a_folder_and_a_loop_are_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    names = ["pipe", "link", "folder", "loop"]
    with contextlib.suppress(PermissionError):  # only root may make one
        os.mknod(tmp_path / "null", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        names.append("null")
    for name in names:
        kind = (tmp_path / name).lstat().st_mode
        for write in (lambda path: write_text(path, "new"), lambda path: check_writable([path], overwrite=True)):
            with pytest.raises(IsoconvError, match=rf"Expected .* file.* Got .*{name}"):
                write(tmp_path / name)
        assert (tmp_path / name).lstat().st_mode == kind
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)


WHOLE = save({"a": torch.zeros(1000)})
BROKEN = [
    (read_tensors, (b"", b"\xff" * 100, WHOLE[:-1], None), "weights in the safetensors file"),
    (read_json, (b"", b"{", b"{'a': 1}", b"\xff", None), "JSON in"),
    (read_json, (b"[1]", b"3", b"null"), "a JSON object in"),
]


@pytest.mark.parametrize(("read", "contents", "expected"), BROKEN)
def test_a_broken_or_missing_file_is_named_in_one_line(read, contents, expected, tmp_path):
    path = tmp_path / "broken"
    for content in contents:
        path.unlink() if content is None else path.write_bytes(content)
        with pytest.raises(IsoconvError, match=f"^Expected {expected} {re.escape(str(path))}. Got") as caught:
            read(path)
        assert "\n" not in str(caught.value)
