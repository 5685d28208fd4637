"""What several tests share: a headless Chromium, and the site."""

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("chromium", "chromium-browser", "chromium-headless-shell", "google-chrome", "google-chrome-stable")
# Where `make browser` puts one if playwright cannot fetch its own.
OURS = ROOT / ".browser" / "chromium"
# A container has no user namespaces for the sandbox; the page is our own file.
OPTIONS = ["--no-sandbox", "--disable-dev-shm-usage"]


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A headless Chromium, wherever there is one; the tests are skipped, and say what is missing, where there is none."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: make browser (or pip install playwright)"
    )
    with playwright.sync_playwright() as started:
        browser = launch(started.chromium, playwright.Error)
        yield browser
        browser.close()


def launch(kind: Any, error: type[Exception]) -> Any:
    if "ISOCONV_CHROMIUM" in os.environ:  # what was asked for must work
        return kind.launch(executable_path=os.environ["ISOCONV_CHROMIUM"], args=OPTIONS)
    others = [str(OURS)] if OURS.exists() else [path for name in NAMES if (path := shutil.which(name))]
    for path in [None, *others]:  # None: the one that playwright has fetched
        with suppress(error):
            return kind.launch(executable_path=path, args=OPTIONS)
    pytest.skip("no Chromium is installed: make browser, or set ISOCONV_CHROMIUM to the path of one")


@pytest.fixture(scope="session")
def site_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built strictly: a warning is an error."""
    for name in ("mkdocs", "material", "mkdocstrings_handlers"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed: pip install 'isoconv[docs]'")
    target = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(target)],
        cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0 and "WARNING" not in done.stderr, done.stdout + done.stderr
    return target
