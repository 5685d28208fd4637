"""Files that are either the old one or the new one, and broken ones that are named."""

import os
import re
from pathlib import Path

import pytest
import torch
from torch import nn

from isoconv.errors import IsoconvError
from isoconv.files import read_json, read_tensors, write_tensors, write_text


def test_tensors_come_back_as_they_were(tmp_path):
    tensors = {
        "a": torch.randn(3, 4),
        "b/c": torch.randn(4, 3).T,
        "count": torch.tensor(7),
        "half": torch.randn(2).bfloat16(),
        "empty": torch.zeros(0, 3),
        "graph": nn.Parameter(torch.ones(2)),
    }
    write_tensors(tmp_path / "x.safetensors", tensors, {"format": "pt"})
    read = read_tensors(tmp_path / "x.safetensors")
    assert read.keys() == tensors.keys()
    for name, value in tensors.items():
        assert torch.equal(read[name], value) and read[name].dtype == value.dtype, name


def test_writing_replaces(tmp_path):
    write_text(tmp_path / "x", "old")
    write_text(tmp_path / "x", "new")
    assert (tmp_path / "x").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


@pytest.mark.parametrize("failing", ["replace", "fsync", "write"])
@pytest.mark.parametrize("error", [OSError(28, "disk full"), KeyboardInterrupt()], ids=["OSError", "KeyboardInterrupt"])
@pytest.mark.parametrize("kind", ["text", "tensors"])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(kind, error, failing, tmp_path, monkeypatch):
    path = tmp_path / "file"

    def write(number: int) -> None:
        if kind == "text":
            write_text(path, str(number))
        else:
            write_tensors(path, {"number": torch.tensor(number)})

    def fail(*args: object, **options: object) -> None:
        raise error

    write(1)
    old = path.read_bytes()
    with monkeypatch.context() as patch:
        if failing == "write":
            patch.setattr(os, "fdopen", fail)
        else:
            patch.setattr(os, failing, fail)
        with pytest.raises(IsoconvError if isinstance(error, OSError) else type(error)) as raised:
            write(2)
    if isinstance(error, OSError):
        assert str(raised.value) == f"Cannot write {path}: disk full."
    assert path.read_bytes() == old
    assert list(tmp_path.iterdir()) == [path]


def test_the_file_takes_its_place_only_when_it_is_complete(tmp_path, monkeypatch):
    seen = []
    replace = os.replace

    def watched(source: str, target: Path) -> None:
        seen.append((Path(source).read_text(), Path(target).exists()))
        replace(source, target)

    monkeypatch.setattr(os, "replace", watched)
    write_text(tmp_path / "x", "all of it")
    assert seen == [("all of it", False)]


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff" * 100, b"\x08\0\0\0\0\0\0\0notjson!"], ids=str)
def test_broken_tensors_are_named_in_one_line(content, tmp_path):
    path = tmp_path / "weights.safetensors"
    path.write_bytes(content)
    expected = f"^Expected weights in {re.escape(str(path))}. Got a file that cannot be read: "
    with pytest.raises(IsoconvError, match=expected) as caught:
        read_tensors(path)
    assert "\n" not in str(caught.value)


def test_a_cut_off_or_missing_file_of_tensors(tmp_path):
    path = tmp_path / "weights.safetensors"
    write_tensors(path, {"a": torch.zeros(1000)})
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(
        IsoconvError, match=r"^Expected weights in .*weights\.safetensors\. Got a file that cannot be read: "
    ):
        read_tensors(path)
    with pytest.raises(IsoconvError, match=r"^Expected weights in .*missing\. Got a file that cannot be read: "):
        read_tensors(tmp_path / "missing")


@pytest.mark.parametrize("text", ["", "{", "{'a': 1}", "nonsense"])
def test_broken_json_is_named_in_one_line(text, tmp_path):
    path = tmp_path / "result.json"
    path.write_text(text)
    with pytest.raises(IsoconvError, match=f"^Expected JSON in {re.escape(str(path))}. Got: ") as caught:
        read_json(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("text", "kind"), [("[1]", "list"), ("3", "int"), ("null", "NoneType")])
def test_json_of_another_kind(text, kind, tmp_path):
    path = tmp_path / "result.json"
    path.write_text(text)
    with pytest.raises(IsoconvError, match=f"^Expected a JSON object in {re.escape(str(path))}. Got {kind}.$"):
        read_json(path)
