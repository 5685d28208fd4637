"""The site builds without a warning and needs nothing from elsewhere, and what its pages tell readers to type works."""

import ast
import importlib
import os
import re
import shlex
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
README = ROOT / "README.md"
ENVIRONMENT = {
    **os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "NO_MKDOCS_2_WARNING": "1", "MPLBACKEND": "Agg",
}  # fmt: skip
ROOMS = ("linalg", "nn", "optim", "models", "certify", "attacks", "theory", "data", "train", "wasserstein", "export")
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(language: str) -> list:
    """Every block of a language on every page, as a test's parameter."""
    return [
        pytest.param(code, id=f"{name_of(page)}-{number}")
        for page in PAGES
        for number, (kind, code) in enumerate(FENCE.findall(page.read_text(encoding="utf-8")))
        if kind == language
    ]


# The site ---------------------------------------------------------------------------------------------------------


class Found(HTMLParser):
    """What a page has: its anchors, its links, and whatever a browser would fetch to show it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.tags.append(tag)
        self.anchors.update(given[name] for name in ("id", "name") if name in given)
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and given.get("rel") not in ("canonical", "next", "prev"):
            self.fetched.append(given["href"])
        elif "src" in given:
            self.fetched.append(given["src"])


@pytest.fixture(scope="module")
def site(site_folder):
    """Every page of the site."""
    return {path.resolve(): Found(path.read_text(encoding="utf-8")) for path in site_folder.rglob("*.html")}


def test_every_page_is_built_and_every_internal_link_leads_somewhere(site):
    assert len(PAGES) >= 25 and {page.stem for page in PAGES} <= {path.stem for path in site}
    checked, broken = 0, []
    for page, found in site.items():
        if page.name == "404.html":  # its links are absolute, for a server
            continue
        for link in found.links + found.fetched:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            target = target / "index.html" if target.is_dir() else target
            anchor = unquote(parts.fragment)
            checked += 1
            if not target.exists() or (anchor and target in site and anchor not in site[target].anchors):
                broken.append(f"{page.name}: {link}")
    assert checked > 500 and not broken, broken[:20]


def test_nothing_is_fetched_from_elsewhere(site):
    fetched = {(page.name, address) for page, found in site.items() for address in found.fetched}
    assert fetched and not [where for where in fetched if urlsplit(where[1]).netloc]
    (style,) = {p for page in site for p in page.parent.glob("site.css")}
    sheets = [style, *style.parent.glob("assets/stylesheets/*.css")]
    assert len(sheets) > 1 and not any(re.search(r"url\(\s*['\"]?https?:|@import", s.read_text()) for s in sheets)


def test_the_reference_has_every_public_name_and_docstrings_become_tables_and_sessions(site):
    by_name = {path.stem: found for path, found in site.items() if path.parent.name == "reference"}
    for room in ROOMS:
        names, start = importlib.import_module(f"isoconv.{room}").__all__, f"isoconv.{room}."
        documented = {anchor.rsplit(".", 1)[-1] for anchor in by_name[room].anchors if anchor.startswith(start)}
        assert all(name.isupper() for name in set(names) - documented), room  # tables, which have no docstring
    assert not [name for name, found in by_name.items() if "blockquote" in found.tags]  # what >>> is in Markdown
    layout = "".join(f"<{tag}>" for tag in by_name["optim"].tags)
    assert layout.count("<tr><td><code>") == 4  # lr, momentum, half, vector_lr


def test_every_row_of_a_table_has_as_many_cells_as_its_head():
    """What is beyond the head is dropped: a bar in a cell must be escaped."""
    for page in [README, *PAGES]:
        for table in re.findall(r"(?:^\|.*\n)+", page.read_text(encoding="utf-8"), re.MULTILINE):
            assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1, (page, table[:200])


# What readers type ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", blocks("python"))
def test_python_blocks_run(code, tmp_path):
    compile(code, "block", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=180,
    )  # fmt: skip
    assert done.returncode == 0 and done.stderr == "", done.stderr


def test_python_blocks_of_the_readme_run_one_after_the_other(tmp_path):
    code = "".join(code for kind, code in FENCE.findall(README.read_text(encoding="utf-8")) if kind == "python")
    assert code.count("import isoconv") and "robust_accuracy" in code
    test_python_blocks_run(code, tmp_path)


def commands() -> list:
    found = {}
    for page in [README, *PAGES]:
        for kind, code in FENCE.findall(page.read_text(encoding="utf-8")):
            for line in code.splitlines() if kind == "sh" else ():
                words = shlex.split(line, comments=True)
                if words[:1] == ["torchrun"]:
                    words = words[words.index("-m") + 1 :]
                if words[:1] == ["isoconv"] and len(words) > 1:
                    found[" ".join(words)] = (name_of(page), words[1:])
    return [pytest.param(words, id=f"{page}: {line}") for line, (page, words) in found.items()]


@pytest.mark.parametrize("words", commands())
def test_commands_exist_with_these_options(words):
    from isoconv.cli.app import COMMANDS, load_command

    assert words[0] in COMMANDS
    load_command(words[0]).make_context(words[0], words[1:])  # parses, and raises for what it does not know


def test_scripts_that_are_named_exist():
    pattern = re.compile(r"\b((?:benchmarks|examples|results|reproduction|tools)/[\w./-]*)")
    named = {name for page in [README, *PAGES] for name in pattern.findall(page.read_text(encoding="utf-8"))}
    assert len(named) > 10 and not [name for name in named if not (ROOT / name.rstrip(".")).exists()]
