"""Tables in every format, the page, the drawings, and that the README's tables are those of the committed results."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from isoconv.errors import IsoconvError
from isoconv.report.reproduction import (
    FIGURES,
    Part,
    Table,
    Text,
    draw_target,
    rows_of,
    table_of,
    to_bytes,
    to_html,
    to_latex,
    to_markdown,
)
from isoconv.report.reproduction.names import shown, shown_radius, shown_seconds
from isoconv.train.reproduction import (
    RESULTS,
    TARGETS,
    ClassifierCell,
    CriticCell,
    cells_of,
    read_results,
    with_instant,
)
from report.reproduction_records import classifier, critic, everything

ROOT = Path(__file__).resolve().parents[2]
BEST = ClassifierCell("mnist", "small", "bcop")
COUNTS = {"dataset": "mnist", "model": "small", "conv": "bcop", "raw": 164_422, "effective": 166_406}


def part(target, results):
    cells = cells_of(target)
    if target == "parameters":
        results = results | {cells[0]: {"name": target, "status": "ok", "results": [COUNTS]}}
    rows = rows_of(target, cells, with_instant(cells, results))
    return Part(target, rows, table_of(target, rows))


@pytest.fixture(scope="module", params=["nothing measured", "all measured"])
def parts(request):
    results = everything() if request.param == "all measured" else {}
    return {target: part(target, results) for target in TARGETS}


def line_of(table, *words):
    (line,) = (line for line in table.lines if [place.text for place in line[: len(words)]] == list(words))
    return line


# Tables ---------------------------------------------------------------------------------------------------------------


def test_every_line_has_a_place_under_every_heading(parts):
    for target, one in parts.items():
        assert one.table.title and all(len(line) == len(one.table.headings) for line in one.table.lines), target
        assert all(place.text for line in one.table.lines for place in line), target


def test_the_best_is_bold_and_nothing_else():
    cells = [ClassifierCell("mnist", "small", conv) for conv in ("ossn", "rko", "svcm", "bcop")]
    results = {cell: classifier(cell, 90.0 + k, 50.0 - k) for k, cell in enumerate(cells)}
    table = part("table1", results).table
    bold = {(line[2].text, k) for line in table.lines for k, place in enumerate(line) if place.bold}
    assert bold == {("BCOP", 4), ("OSSN", 5)}


def test_one_result_alone_is_not_best():
    assert not any(p.bold for line in part("table1", {BEST: classifier(BEST)}).table.lines for p in line)


def test_a_line_of_table_1():
    cell = ClassifierCell("cifar10", "large", "bcop")
    table = part("table1", {cell: classifier(cell, 73.0, 59.0)}).table
    line = next(line for line in table.lines if line[4].text == "73.00 ± 0.14")
    assert [place.text for place in line] == [
        "CIFAR-10, 36/255", "Large", "BCOP", "30", "73.00 ± 0.14", "59.00 ± 0.14", "72.16 ± 0.23 / 58.26 ± 0.17",
        "72.41 / 58.72", "+0.59 / +0.28", "better / within",
    ]  # fmt: skip
    assert "16 of 17 lines are not measured yet (--run measures them)." in table.notes
    assert any(note.startswith("Trained on NVIDIA H200, all seeds side by side: 60 s added up") for note in table.notes)


def test_failures_say_why():
    failed = {**BEST.identity(), "status": "failed", "reason": "Training diverged."}
    table = part("table1", {BEST: failed}).table
    assert line_of(table, "MNIST, 1.58", "Small", "BCOP")[4].text == "failed"
    assert "MNIST Small BCOP failed: Training diverged." in table.notes


def test_a_measured_network_without_its_attack_says_so():
    cell = ClassifierCell("cifar10", "large", "bcop")
    line = next(li for li in part("attacks", {cell: classifier(cell)}).table.lines if li[3].text == "80.00 ± 0.14")
    assert [place.text for place in line[5:9]] == ["missing", "missing", "–", "–"]


def test_quick_figures_are_said_to_mean_nothing():
    table = part("table1", {BEST: classifier(BEST) | {"quick": True}}).table
    assert table.title.endswith("a quick look: these figures mean nothing")


def test_quotations_are_marked_with_their_source():
    table = part("sota", {}).table
    assert line_of(table, "CIFAR-10, 36/255", "KW-Resnet (quoted)")[3].text == "61.20"
    assert "Quoted, not measured here: MMR-Universal: Croce et al. 2019, table 1." in table.notes


def test_critics_of_different_generators_are_not_compared_silently():
    cells = [CriticCell(conv, "maxmin") for conv in ("bcop", "rko")]
    one, other = (
        {cell: critic(cell, 9.0, name) for cell, name in zip(cells, names, strict=True)} for names in ("aa", "ab")
    )
    assert not any("Not all of one generator" in note for note in part("wasserstein", one).table.notes)
    assert "Not all of one generator: a, b. Do not compare across them." in part("wasserstein", other).table.notes


@pytest.mark.parametrize(("value", "text"), [(36 / 255, "36/255"), (1.58, "1.58"), (0.1, "0.1"), (0.3, "0.3")])
def test_radii(value, text):
    assert shown_radius(value) == text


def test_figures():
    assert shown({"mean": 72.164, "std": 0.226}) == "72.16 ± 0.23" and shown({"mean": 1.0, "std": None}) == "1.00"
    assert shown(None) == "–"
    assert [shown_seconds(s) for s in (2e-6, 0.0015, 2.0, 300.0, 7200.0, None)] == [
        "2 µs", "1.5 ms", "2 s", "5 min", "2 h", "–"
    ]  # fmt: skip


# Formats --------------------------------------------------------------------------------------------------------------

AWKWARD = Table("A & B", ["a|b", "50 %"], [[Text("<i>*x*</i> | y\\z"), Text("1_000 ± 5", bold=True)]], notes=["~{#}^$"])


def test_markdown(parts):
    for one in parts.values():
        lines = [line for line in to_markdown(one.table).splitlines() if line.startswith("|")]
        assert len(lines) == 2 + len(one.table.lines)
        assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {len(one.table.headings) + 1}
    text = to_markdown(AWKWARD, heading=True)
    assert text.startswith("### A & B\n\n| a\\|b | 50 % |\n|---|---|\n")
    assert "| &lt;i>\\*x\\*&lt;/i> \\| y\\\\z | **1_000 ± 5** |" in text


def test_latex(parts):
    for one in parts.values():
        text = to_latex(one.table)
        assert text.isascii(), re.findall(r"[^\x00-\x7f]", text)  # so that any LaTeX can typeset it
        assert text.count("\\\\\n") == 1 + len(one.table.lines) and text.count(r"\toprule") == 1
        body = re.sub(r"\\[{}$&%#_]", "", text)
        assert body.count("{") == body.count("}") and body.count("$") % 2 == 0
        rows = [line for line in body.splitlines() if line.endswith(r"\\")]
        assert {row.count("&") for row in rows} == {len(one.table.headings) - 1}
    assert r"\textbf{1\_000 $\pm$ 5}" in to_latex(AWKWARD) and r"\caption{A \& B. \textasciitilde{}\{\#\}" in to_latex(
        AWKWARD
    )


class Balanced(HTMLParser):
    """Raises where a tag is closed that is not the last one opened."""

    VOID = ("meta", "link", "br", "hr", "img")

    def __init__(self) -> None:
        super().__init__()
        self.open, self.identifiers, self.seen = [], [], []

    def handle_starttag(self, tag, attributes):
        self.seen.append(tag)
        self.identifiers += [value for name, value in attributes if name == "id"]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.seen.append(tag)
        self.identifiers += [value for name, value in attributes if name == "id"]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_one_page(parts):
    page = to_html(list(parts.values()))
    parser = Balanced()
    parser.feed(page)
    assert not parser.open and parser.seen.count("table") == parser.seen.count("section") == len(TARGETS)
    assert len(set(parser.identifiers)) == len(parser.identifiers)  # drawings do not share identifiers
    measured = any(row["status"] == "ok" for row in parts["table1"].rows)
    assert parser.seen.count("svg") == (len(TARGETS) - 1 if measured else 2)  # a table of counts has no picture
    assert "http" not in re.sub(r'xmlns(:\w+)?="[^"]*"|<!DOCTYPE[^>]*>', "", page)  # it stands by itself


def test_what_is_in_a_table_is_not_html():
    text = to_html([Part("parameters", [], AWKWARD)])
    assert "<td>&lt;i&gt;*x*&lt;/i&gt; | y\\z</td>" in text and "<h2>A &amp; B</h2>" in text


# Drawings -------------------------------------------------------------------------------------------------------------


def test_drawings(parts):
    for target, one in parts.items():
        figure = draw_target(target, one.rows)
        measured = target != "parameters" and any(row["status"] == "ok" for row in one.rows)
        assert (figure is not None) == measured, target
        if figure is None:
            continue
        drawn = to_bytes(figure, ".svg")
        assert ElementTree.fromstring(drawn).tag.endswith("svg")
        if target in FIGURES:
            assert drawn == to_bytes(draw_target(target, one.rows), ".svg")  # the same numbers, the same file


def test_the_histograms_show_all_values():
    rows = part("figure-sv", everything()).rows
    axes = draw_target("figure-sv", rows).axes
    assert [axis.get_title() for axis in axes] == ["OSSN", "RKO", "SVCM", "BCOP"]
    for axis in axes:
        assert [patch.get_data().values.sum() for patch in axis.patches] == [50, 50]


def test_kinds_of_files():
    figure = draw_target("figure-downsampling", part("figure-downsampling", {}).rows)
    assert to_bytes(figure, ".png").startswith(b"\x89PNG") and to_bytes(figure, ".pdf").startswith(b"%PDF")
    with pytest.raises(
        IsoconvError, match=r"^Expected a file for the figure that ends in .svg, .png, .pdf. Got '.gif'.$"
    ):
        to_bytes(figure, ".gif")


# The README and the site ---------------------------------------------------------------------------------------------

README = (ROOT / "README.md").read_text()
PAGES = {"README.md": README, "docs/paper.md": (ROOT / "docs" / "paper.md").read_text()}
MARKED = [(page, name) for page, text in PAGES.items() for name in re.findall(r"<!-- ([a-z0-9-]+) -->", text)]


@pytest.mark.parametrize(("page", "target"), MARKED)
def test_the_pages_show_the_committed_results(page, target):
    """Between <!-- target --> and <!-- /target --> stands what `isoconv reproduce target --format markdown` prints."""
    between = re.search(rf"<!-- {target} -->\n(.*?)<!-- /{target} -->", PAGES[page], re.DOTALL)
    assert between is not None
    cells = cells_of(target)
    others = [cell for cell in cells_of(target, "paper") if cell not in cells]
    cells += list(read_results(ROOT / RESULTS, others))
    results = with_instant(cells, read_results(ROOT / RESULTS, cells))
    rows = rows_of(target, cells, results)
    assert between[1].strip() == to_markdown(table_of(target, rows)).strip()


def test_every_table_is_on_a_page_and_complete():
    tables = [target for target in TARGETS if not target.startswith("figure-")]
    assert {("README.md", "table1"), ("README.md", "wasserstein")} <= set(MARKED)
    assert [target for page, target in MARKED if page == "docs/paper.md"] == tables
    for target in TARGETS:
        cells = cells_of(target)
        assert set(with_instant(cells, read_results(ROOT / RESULTS, cells))) == set(cells)


@pytest.mark.parametrize("conv", ["ossn", "rko", "bcop"])
def test_the_readme_shows_the_critics_of_cifar10(conv):
    """The table that `benchmarks/wasserstein_images.py` was run for, line by line."""
    found = json.loads((ROOT / "results/wasserstein/cifar10_images_h200.json").read_text())["summary"]
    cells = [conv.upper()]
    for activation in ("maxmin", "relu"):
        (line,) = [one for one in found if (one["conv"], one["activation"]) == (conv, activation)]
        cells += [f"{line['mean']:.2f} ± {line['deviation']:.2f}", f"{line['lower']:.2f}", f"{line['paper']:.2f}"]
    assert f"| {' | '.join(cells)} |" in README.replace("**", "")
