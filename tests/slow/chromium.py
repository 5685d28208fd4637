"""A headless Chromium for the tests of the page, wherever there is one."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

_NAMES = ("chromium", "chromium-browser", "chromium-headless-shell", "google-chrome", "google-chrome-stable")
# Where `make browser` puts one if playwright cannot fetch its own.
_OURS = Path(__file__).resolve().parents[2] / ".browser" / "chromium"
# A container has no user namespaces for the sandbox; the page is our own file.
_OPTIONS = ["--no-sandbox", "--disable-dev-shm-usage"]


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser of playwright's; the test is skipped, and says what is missing, where there is none."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: make browser (or pip install playwright)"
    )
    with playwright.sync_playwright() as started:
        browser = _launched(started.chromium, playwright.Error)
        try:
            yield browser
        finally:
            browser.close()


def _launched(kind: Any, error: type[Exception]) -> Any:
    chosen = os.environ.get("ISOCONV_CHROMIUM")
    if chosen:  # what was asked for must work
        return kind.launch(executable_path=chosen, args=_OPTIONS)
    found = [str(_OURS)] if _OURS.exists() else [path for name in _NAMES if (path := shutil.which(name))]
    for path in [None, *found]:  # None: the one that playwright has fetched
        try:
            return kind.launch(executable_path=path, args=_OPTIONS)
        except error:
            continue
    pytest.skip("no Chromium is installed: make browser, or set ISOCONV_CHROMIUM to the path of one")
