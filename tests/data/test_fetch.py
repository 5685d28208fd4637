import http.server
import threading
from pathlib import Path
from typing import ClassVar

import pytest

from data.fakes import idx, md5, random_bytes, write, write_mnist
from isoconv.data import DATASETS, DataSet, download, load_splits
from isoconv.data.datasets import RemoteFile
from isoconv.errors import IsoconvError

pytest.importorskip("pooch")

CONTENT = idx(random_bytes(1000, 28, 28))


class Handler(http.server.BaseHTTPRequestHandler):
    requests: ClassVar[list[str]] = []

    def do_GET(self):
        self.requests.append(self.path)
        seen = self.requests.count(self.path)
        if self.path == "/busy" or (self.path == "/busy-twice" and seen <= 2):
            self.send_error(503)
        elif self.path == "/missing":
            self.send_error(404)
        else:
            body = b"something else" if self.path == "/wrong" else CONTENT
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            short = self.path == "/short" or (self.path == "/short-once" and seen == 1)
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


def fetch(folder: Path, *urls: str, **options):
    remote = RemoteFile("sub/folder/fake.bin", md5(CONTENT), urls)
    record = DataSet(name="fake", title="Fake", shape=(1, 28, 28), classes=("a",), downloads=(remote,))
    return download(record, folder, wait=0, **{"progress": lambda *_: None, **options})


def test_a_file_arrives_whole(server, tmp_path):
    calls = []
    (path,) = fetch(tmp_path / "new", f"{server}/good", progress=lambda *call: calls.append(call))
    assert path == tmp_path / "new/sub/folder/fake.bin"
    assert path.read_bytes() == CONTENT
    assert [p.name for p in path.parent.iterdir()] == ["fake.bin"]
    assert calls[-1] == ("fake.bin", len(CONTENT), len(CONTENT))
    assert all(0 < done <= total for _, done, total in calls)


def test_a_file_that_is_there_is_fetched_again_only_if_it_is_damaged(server, tmp_path):
    for _ in range(2):
        (path,) = fetch(tmp_path, f"{server}/good")
    assert Handler.requests == ["/good"]
    path.write_bytes(b"damaged")
    fetch(tmp_path, f"{server}/good")
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize(("address", "requests"), [("busy-twice", 3), ("short-once", 2)])
def test_what_may_pass_is_tried_again(server, tmp_path, address, requests):
    (path,) = fetch(tmp_path, f"{server}/{address}")
    assert path.read_bytes() == CONTENT
    assert [p.name for p in path.parent.iterdir()] == ["fake.bin"]
    assert Handler.requests == [f"/{address}"] * requests


@pytest.mark.parametrize("bad", ["missing", "wrong", "short", "busy"])
def test_the_next_mirror_is_tried(server, tmp_path, bad):
    (path,) = fetch(tmp_path, f"{server}/{bad}", f"{server}/good")
    assert path.read_bytes() == CONTENT
    assert Handler.requests == [f"/{bad}"] * (1 if bad in ("missing", "wrong") else 3) + ["/good"]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("short", r"/short broke off .*3 tries"),
        ("wrong", r"/wrong .*md5"),
        ("busy", r"/busy answered 503 .*3 tries"),
        ("missing", r"/missing answered 404 "),
    ],
)
def test_failures_are_one_line_and_leave_nothing(server, tmp_path, path, message):
    with pytest.raises(IsoconvError, match=f"{message}.*;.*/missing answered 404") as caught:  # every mirror is named
        fetch(tmp_path / "new", f"{server}/{path}", f"{server}/missing")
    assert "fake.bin" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_an_unreachable_host(server, tmp_path):
    closed = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    port = closed.server_address[1]
    closed.server_close()
    with pytest.raises(IsoconvError, match=rf"127\.0\.0\.1:{port}/x cannot be reached \(2 tries\)"):
        fetch(tmp_path / "new", f"http://127.0.0.1:{port}/x", tries=2)
    assert list(tmp_path.iterdir()) == []


def test_a_failure_or_an_interruption_keeps_what_was_there(server, tmp_path):
    def interrupt(*_):
        raise KeyboardInterrupt

    kept = write(tmp_path / "sub" / "folder" / "other.bin", b"mine")
    with pytest.raises(IsoconvError, match="404"):
        fetch(tmp_path, f"{server}/missing")
    with pytest.raises(KeyboardInterrupt):
        fetch(tmp_path, f"{server}/good", progress=interrupt)
    assert [p.name for p in kept.parent.iterdir()] == ["other.bin"]
    with pytest.raises(KeyboardInterrupt):
        fetch(tmp_path / "new", f"{server}/good", progress=interrupt)
    assert not (tmp_path / "new").exists()


def test_a_folder_that_cannot_be_written(server, tmp_path):
    (tmp_path / "sub").write_text("a file, where a folder should be")
    with pytest.raises(IsoconvError, match=r"fake\.bin cannot be written: ") as caught:
        fetch(tmp_path, f"{server}/good")
    assert "\n" not in str(caught.value)


def test_load_splits_downloads_what_is_missing(tmp_path, monkeypatch):
    asked = []

    def fake_download(record, folder, progress):
        asked.append(record.name)
        write_mnist(Path(folder) / "MNIST" / "raw")

    monkeypatch.setattr("isoconv.data.load.fetch", fake_download)
    for _ in range(2):
        assert len(load_splits("mnist", tmp_path / "new", download=True).train) == 12
    assert asked == ["mnist"]


def test_the_official_files():
    assert [name for name, record in DATASETS.items() if record.downloads] == ["mnist", "cifar10", "stl10"]
    for remote in (remote for record in DATASETS.values() for remote in record.downloads):
        assert len(remote.md5) == 32
        assert len(remote.urls) >= 2
        assert all(url.startswith("http") and url.endswith(Path(remote.path).name) for url in remote.urls)
