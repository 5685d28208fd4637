"""WebDataset shards: tar files in which an image and its label share a key, such as 000123.jpg and 000123.cls.

The key of a member is its name up to the first dot after the last slash, as the package webdataset has it. `.cls` holds the
class as text, a number or a name. Members with other endings are passed over.

Shards are not read from their beginning: an index says where each image lies. It is made once, from the members' headers
and labels alone. So the images are shuffled, held out, resized and streamed like those of a folder. They are put in its
order, the classes and in each the images by name, so that their batches are those of a folder of the same images.

The headers are parsed here, not by the standard library's tarfile: that takes a damaged header for the end of the file, so
that images would be missing without a word, and needs three times as long.
"""

import os
import re
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import BinaryIO, Unpack

from isoconv.data.image_set import Splits
from isoconv.data.pictures import ENDINGS, Picture, PictureOptions, list_folder, make_splits, sort_classes
from isoconv.data.streamed import Member
from isoconv.errors import IsoconvError, require

_BLOCK = 512  # a tar file consists of these
_WINDOW = 4 * _BLOCK  # read at once: a header, one of its extended attributes before it, and a label
_LONGEST_LABEL, _LONGEST_NAME = 1 << 10, 1 << 20
_FILES, _WITHOUT_CONTENT = b"\x0007", b"123456"  # types of members: ordinary files; links, devices and folders
_PART = re.compile(r"(?<![a-z])(train|test|val)(?:ing|id|idation)?(?![a-z])")
_RANGE, _CHOICE = re.compile(r"\{(\d+)\.\.(\d+)\}"), re.compile(r"\{([^{}]*,[^{}]*)\}")


def read_shards(path: str | PathLike[str], **options: Unpack[PictureOptions]) -> Splits:
    """Return the images of a tar file, of several that braces stand for (shard-{000..007}.tar), or of a folder of them.

    Shards in the folders train and test (or val), or with these words in their names, are the two parts. Otherwise a
    fraction of each class is held out. Classes are what the labels say, sorted, as numbers if all are whole numbers. For
    everything else see `read_folder`.
    """
    path, ignored, parts = Path(path), Counter[str](), list[list[Picture]]()
    shards, unused = _find_parts(path)
    for part in shards:
        lists, others = zip(*map(list_shard, part), strict=True)
        parts.append([*chain(*lists)])
        ignored += sum(others, start=Counter())
    known = {picture.label for picture in parts[0]}
    for picture in parts[-1]:
        require(picture.label in known, f"a class of the training shards for {picture.path}", repr(picture.label))
    problem = f"only {min(known)!r}" if known else "no images"
    require(len(known) > 1, f"images of at least two classes in {path}", problem)
    classes = sort_classes(known)
    number = {label: index for index, label in enumerate(classes)}
    for pictures in parts:
        pictures.sort(key=lambda picture: (number[picture.label], picture.name))
    name = path.resolve().name if path.is_dir() else path.stem
    return make_splits(name, classes, parts, ignored + Counter({".tar": unused}), options)


def holds_shards(path: Path) -> bool:
    """Return True if a path is one of shards: it ends in .tar, or is a folder of such files, not of classes."""
    if path.suffix.lower() == ".tar" and not path.is_dir():
        return True
    places = [place for place in (path, path / "train") if place.is_dir()]
    return any(_shards_in(place) and not any(map(Path.is_dir, list_folder(place))) for place in places)


def is_there(path: Path) -> bool:
    """Return True if a path exists, or one that its braces stand for."""
    return path.exists() or any(Path(name).exists() for name in expand_braces(str(path)))


def expand_braces(pattern: str) -> list[str]:
    """Return what a shell makes of braces: {000..007} is a range, {a,b} a choice. They can be nested."""
    pattern = _RANGE.sub(lambda ends: _count(*ends.groups()), pattern)
    if (innermost := _CHOICE.search(pattern)) is None:
        return [pattern]
    before, after = pattern[: innermost.start()], pattern[innermost.end() :]
    names = (name for choice in innermost[1].split(",") for name in expand_braces(before + choice + after))
    return list(dict.fromkeys(names))


def list_shard(shard: Path) -> tuple[list[Picture], Counter[str]]:
    """Return the images of a shard, in its order, and how many files of which ending are neither images nor labels."""
    pictures, labels, ignored = dict[str, Member](), dict[str, tuple[Member, str]](), Counter[str]()
    for member, file in _members(shard):
        folder, slash, base = member.name.rpartition("/")
        stem, dot, ending = base.partition(".")
        key, ending = f"{folder}{slash}{stem}", dot + ending.lower()
        if stem and ending == ".cls":
            require(key not in labels, f"one label for each key in {shard}", f"two for {key}")
            labels[key] = member, _read_label(member, file)
        elif stem and ending in ENDINGS:
            other = pictures.setdefault(key, member)
            require(other is member, f"one image for each key in {shard}", f"{other.name} and {member.name}")
        else:
            ignored[ending] += 1
    for key in sorted(pictures.keys() ^ labels.keys())[:1]:
        require(key in labels, f"a label for {pictures.get(key)}, in {key}.cls", "none")
        require(key in pictures, f"an image ({', '.join(ENDINGS)}) for {labels[key][0]}", "none")
    return [Picture(member.name, member, labels[key][1]) for key, member in pictures.items()], ignored


def _count(first: str, last: str) -> str:
    """Return the numbers from first to last as a choice in braces, with leading zeros if one of them has some."""
    padded = any(len(end) > 1 and end.startswith("0") for end in (first, last))
    digits = max(len(first), len(last)) if padded else 0
    least, most = sorted((int(first), int(last)))
    require(most - least < 10**6, "at most a million shards", f"{{{first}..{last}}}")
    numbers = [f"{number:0{digits}}" for number in range(least, most + 1)]
    return f"{{{','.join(numbers)}}}" if len(numbers) > 1 else numbers[0]


def _find_parts(path: Path) -> tuple[list[list[Path]], int]:
    """Return the shards to train on and to test on, or only the first if there are no others, and how many are not used."""
    found = {name: _shards_in(path / name) for name in ("train", "test", "val")}
    if not found["train"]:
        shards = _shards_in(path) if path.is_dir() else [Path(name) for name in expand_braces(str(path))]
        shards = [path] if path.is_file() else shards
        for shard in shards:
            problem = f"{shard}, which {'is none' if shard.exists() else 'does not exist'}"
            require(shard.is_file(), "a tar file", problem)
        marks = {shard: "".join(_PART.findall(shard.stem.lower())[-1:]) for shard in shards}
        found = {part: [shard for shard in shards if marks[shard] == part] for part in found}
        if not found["train"] or len(found["train"]) == len(shards):
            found = {"train": shards}
        elif unmarked := [shard for shard in shards if not marks[shard]]:
            expected = "train, test or val in the names of all shards, or of none"
            raise IsoconvError(f"Expected {expected}. Got {unmarked[0]}.")
    parts = [found["train"], *[found[part] for part in ("test", "val") if found.get(part)][:1]]
    return parts, sum(map(len, found.values())) - sum(map(len, parts))


def _shards_in(folder: Path) -> list[Path]:
    paths = list_folder(folder) if folder.is_dir() else []
    return [path for path in paths if path.suffix.lower() == ".tar" and path.is_file()]


def _read_label(member: Member, file: BinaryIO) -> str:
    content = file.read(min(member.size, _LONGEST_LABEL))
    label = content.decode(errors="replace").strip()
    if not label or "\ufffd" in label or not label.isprintable() or member.size > _LONGEST_LABEL:
        require(False, f"a class in {member}, as one line of text", f"{content[:40]!r}")
    return label


# The form of a tar file ------------------------------------------------------------------------------------------------


def _members(shard: Path) -> Iterator[tuple[Member, BinaryIO]]:
    """Yield the ordinary files of a tar file, each with the tar file at the beginning of its content.

    Raise if the file is damaged anywhere, or ends before the zeros that mark its end.
    """
    try:
        with shard.open("rb", buffering=_WINDOW) as file:
            yield from _walk(shard, file, os.fstat(file.fileno()).st_size)
    except OSError as error:
        raise IsoconvError(f"{shard} cannot be read: {error.strerror}.") from error


def _walk(shard: Path, file: BinaryIO, total: int) -> Iterator[tuple[Member, BinaryIO]]:
    # `named` is what extended headers say of the next member. Messages are made where something is wrong: they take time.
    position, named = 0, dict[str, str]()
    while True:
        file.seek(position)
        header = file.read(_BLOCK)
        if header == bytes(_BLOCK):
            break
        _require_whole(len(header) == _BLOCK, shard, position, total)
        name, size, kind = _parse_header(shard, header, position)
        start = position + _BLOCK
        if kind in b"xXL":
            _require_whole(start + size <= total, shard, position, total)
            content = file.read(min(size, _LONGEST_NAME))
            named |= {"path": _text(content)} if kind == b"L" else _parse_attributes(shard, content, position)
        elif kind not in b"gK":
            name, size = named.get("path", name), int(named.get("size", size))
            if kind == b"S" or any(attribute.startswith("GNU.sparse") for attribute in named):
                require(False, f"files without holes in {shard}", f"{name}, a sparse one")
            named = {}
        position = start if kind in _WITHOUT_CONTENT else start - -size // _BLOCK * _BLOCK
        _require_whole(position <= total, shard, start - _BLOCK, total)
        if kind in _FILES:
            yield Member(shard, start, size, name.removeprefix("./")), file
    file.seek(position)
    while chunk := file.read(1 << 20):
        require(not any(chunk), f"nothing after the end of the tar file {shard}", "more: join shards with tar -A")


def _require_whole(condition: bool, shard: Path, position: int, total: int) -> None:
    if not condition:
        problem = f"it has {total:,} bytes, and the member at {position:,} or the mark of its end is missing"
        raise IsoconvError(f"{shard} is truncated ({problem}). Copy or make it again.")


def _parse_header(shard: Path, header: bytes, position: int) -> tuple[str, int, bytes]:
    """Return name, size and type of a member; raise if the header's sum is not the one that it states."""
    try:
        stated, size = _parse_number(header[148:156]), _parse_number(header[124:136])
    except ValueError:
        stated, size = -1, 0
    if size < 0 or stated != sum(header) - sum(header[148:156]) + 8 * ord(" "):
        problem = f"the bytes at {position:,} are no header of a member"
        advice = "Shards are tar files without compression; copy or make it again"
        raise IsoconvError(f"{shard} cannot be read as a tar file ({problem}). {advice}.")
    name = _text(header[:100])
    if header[257:263] == b"ustar\0" and header[345]:  # POSIX: the beginning of a longer name
        name = f"{_text(header[345:500])}/{name}"
    return name, size, header[156:157]


def _parse_number(field: bytes) -> int:
    """Return a number in octal digits, or in binary if the first bit is set."""
    if field[0] & 0x80:
        if field[0] != 0x80:
            raise ValueError("a negative number")
        return int.from_bytes(field[1:], "big")
    return int(field.strip(b"\0 ") or b"0", 8)


def _parse_attributes(shard: Path, content: bytes, position: int) -> dict[str, str]:
    """Return the extended attributes of a member, in lines `LENGTH NAME=VALUE`, the length being that of the line."""
    attributes = {}
    try:
        while content:
            length = int(content.partition(b" ")[0])
            line, content = content[:length], content[length:]
            name, _, value = line.partition(b" ")[2].partition(b"=")
            if length <= 0 or line[-1:] != b"\n" or not name:
                raise ValueError("no line")
            attributes[_text(name)] = _text(value[:-1])
        if int(attributes.get("size", 0)) < 0:
            raise ValueError("a negative size")
    except ValueError:
        problem = f"the attributes of the member at {position:,} are damaged"
        raise IsoconvError(f"{shard} cannot be read as a tar file ({problem}). Copy or make it again.") from None
    return attributes


def _text(field: bytes) -> str:
    return os.fsdecode(field.split(b"\0", 1)[0])
