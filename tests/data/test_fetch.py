import http.server
import sys
import threading
import time
from pathlib import Path
from typing import ClassVar

import pytest

from data.fakes import idx, md5, random_bytes, write, write_mnist
from isoconv.data import DataSet, ProgressLine, download, load_splits
from isoconv.errors import IsoconvError

pytest.importorskip("pooch")

CONTENT = idx(random_bytes(1000, 28, 28))


class Handler(http.server.BaseHTTPRequestHandler):
    """Under /NAME/fake.bin: what NAME says, short-once and busy-twice the file after that."""

    requests: ClassVar[list[str]] = []

    def do_GET(self):
        _, name, file = self.path.split("/")
        assert file == "fake.bin"
        self.requests.append(name)
        seen = self.requests.count(name)
        if name in ("busy", "missing") or (name == "busy-twice" and seen <= 2):
            self.send_error(404 if name == "missing" else 503)
            return
        body = b"something else" if name == "wrong" else CONTENT
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        short = name == "short" or (name == "short-once" and seen == 1)
        self.wfile.write(body[: len(body) // 2] if short else body)

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "127.0.0.1")
    Handler.requests.clear()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{running.server_address[1]}"
        running.shutdown()
        thread.join()


def fetch(folder: Path, *addresses: str, **options):
    downloads = {"sub/folder/fake.bin": md5(CONTENT)}
    known = {"name": "fake", "title": "Fake", "shape": (1, 28, 28), "classes": ("a",)}
    record = DataSet(**known, downloads=downloads, mirrors=addresses)
    return download(record, folder, wait=0, **{"progress": lambda *_: None, **options})


def test_a_file_arrives_whole_and_once(server, tmp_path):
    calls = []
    (path,) = fetch(tmp_path / "new", f"{server}/good", progress=lambda *call: calls.append(call))
    assert path == tmp_path / "new/sub/folder/fake.bin"
    assert path.read_bytes() == CONTENT
    assert calls[-1] == ("fake.bin", len(CONTENT), len(CONTENT))
    assert all(0 < done <= total for _, done, total in calls)
    fetch(tmp_path / "new", f"{server}/good")
    assert Handler.requests == ["good"]
    path.write_bytes(b"damaged")
    fetch(tmp_path / "new", f"{server}/good")
    assert path.read_bytes() == CONTENT


def test_what_may_pass_is_tried_again_and_then_the_next_mirror(server, tmp_path):
    for addresses, requests in {
        "busy-twice": "busy-twice busy-twice busy-twice",
        "short-once": "short-once short-once",
        "missing wrong good": "missing wrong good",
        "short good busy": "short short short good",
    }.items():
        Handler.requests.clear()
        (path,) = fetch(tmp_path / addresses, *(f"{server}/{address}" for address in addresses.split()))
        assert path.read_bytes() == CONTENT and [p.name for p in path.parent.iterdir()] == ["fake.bin"]
        assert Handler.requests == requests.split()


def test_failures_are_one_line_and_leave_nothing(server, tmp_path):
    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as other:
        closed = f"http://127.0.0.1:{other.server_address[1]}/none"
    for address, message in {
        f"{server}/short": r"/short/fake.bin broke off .*3 tries",
        f"{server}/wrong": r"/wrong/fake.bin .*md5",
        f"{server}/busy": r"/busy/fake.bin answered 503 .*3 tries",
        closed: r"/none/fake.bin cannot be reached .*3 tries",
    }.items():
        with pytest.raises(IsoconvError, match=f"^.*{message}.*;.*/missing/fake.bin answered 404.*$"):  # all are named
            fetch(tmp_path / "new", address, f"{server}/missing")
        assert list(tmp_path.iterdir()) == []


def test_a_failure_or_an_interruption_keeps_what_was_there(server, tmp_path):
    def interrupt(*_):
        raise KeyboardInterrupt

    kept = write(tmp_path / "sub" / "folder" / "other.bin", b"mine")
    with pytest.raises(IsoconvError, match="404"):
        fetch(tmp_path, f"{server}/missing")
    for folder in (tmp_path, tmp_path / "new"):
        with pytest.raises(KeyboardInterrupt):
            fetch(folder, f"{server}/good", progress=interrupt)
    assert [p.name for p in kept.parent.iterdir()] == ["other.bin"]
    assert not (tmp_path / "new").exists()
    (tmp_path / "file").mkdir()
    (tmp_path / "file" / "sub").write_text("a file, where a folder should be")
    with pytest.raises(IsoconvError, match=r"fake\.bin cannot be written: "):
        fetch(tmp_path / "file", f"{server}/good")


def test_load_splits_downloads_what_is_missing(tmp_path, monkeypatch):
    asked = []

    def fake_download(record, folder, progress):
        asked.append(record.name)
        write_mnist(Path(folder) / "MNIST" / "raw")

    monkeypatch.setattr("isoconv.data.readers.fetch", fake_download)
    for _ in range(2):
        assert len(load_splits("mnist", tmp_path / "new", download=True).train) == 12
    assert asked == ["mnist"]


# Progress


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_progress_in_a_pipe_is_a_line_every_five_seconds(clock, capsys):
    line = ProgressLine()
    for done in range(0, 100_000_001, 1_000_000):
        clock[0] += 0.5
        line("a.gz", done, 100_000_000)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 10
    assert lines[4] == "a.gz: 50.0 of 100.0 MB, 2.0 MB/s, 25 s left"
    assert lines[-1] == "a.gz: 100.0 of 100.0 MB, 2.0 MB/s"
    for done in range(10):  # over in a moment
        line("b.gz", done, 9)
    assert capsys.readouterr().err == ""


def test_progress_on_a_terminal_is_one_line_with_a_bar(clock, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    line = ProgressLine("pictures", 1)
    for done in range(1, 101):
        clock[0] += 0.0625
        line("reading", done, 100)
    text = capsys.readouterr().err
    assert text.count("\n") == 1 and text.endswith("\n")
    assert 40 < text.count("\r") < 60 and max(map(len, text.split("\r"))) <= 80
    assert "[########        ] reading: 51 of 100 pictures, 16.0 pictures/s, 3 s left" in text
    for done in (0, 5):
        clock[0] += 1
        line("unknown", done, 0)
    assert capsys.readouterr().err.strip() == "unknown: 5 pictures, 5.0 pictures/s"
