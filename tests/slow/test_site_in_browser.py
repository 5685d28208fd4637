"""The site in headless Chromium, opened from a folder: formulas are set, search answers, nothing is cut off or asked for."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

MATHEMATICS = ("mathematics/certificates", "mathematics/checker", "mathematics/bcop", "mathematics/theory")
PAGES = ("index", "how-to/choose", *MATHEMATICS, "comparison", "reference/nn")


@pytest.fixture(params=[(1280, "light"), (390, "dark")], ids=str)
def window(browser: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A window in which any message of a page, and any request beyond the folder, is a failure."""
    width, scheme = request.param
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page, said = context.new_page(), list[str]()
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: request.url.startswith(("file:", "data:", "blob:")) or said.append(request.url))
    yield page
    context.close()
    assert said == []


@pytest.mark.parametrize("name", PAGES)
def test_formulas_are_set_and_nothing_is_wider_than_the_window(window: Any, site_folder: Path, name: str) -> None:
    window.goto((site_folder / f"{name}.html").as_uri())
    formulas = window.locator(".arithmatex").count()
    assert window.locator(".arithmatex .katex").count() == formulas and window.locator(".katex-error").count() == 0
    assert formulas > 20 or name not in MATHEMATICS
    assert window.evaluate("document.documentElement.scrollWidth <= innerWidth")
    code = window.locator(".md-typeset .highlight code:visible")
    assert not any(code.evaluate_all("all => all.map(code => code.scrollWidth > code.clientWidth + 1)"))


def test_search_answers_in_pages_that_were_opened_as_files(window: Any, site_folder: Path) -> None:
    window.goto((site_folder / "index.html").as_uri())
    if window.viewport_size["width"] < 1000:
        window.locator("label.md-header__button[for=__search]").click()
    window.locator("input.md-search__input").click()
    window.keyboard.type("Gershgorin")
    window.locator(".md-search-result__link", has_text="checker").first.wait_for(timeout=20_000)
