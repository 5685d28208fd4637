"""Every figure in the README and the documentation comes from a result file, and every result file can be read."""

import json
import re
from pathlib import Path
from statistics import fmean

import pytest

from isoconv.errors import IsoconvError
from isoconv.linalg.rounding import show_up
from reproduction import cells as stored
from reproduction.__main__ import PAGES, fill_page
from reproduction.cells import RESULTS, ROOT, TARGETS, ClassifierCell, Figures, cells_of, read_result, result_path

# Files that no target shows: how the default recipe was chosen, what explains a line. Other folders are of other tools.
NOTES = [f"recipes/{n}.json" for n in ("cifar10-large-first", "cifar10-large-second", "cifar10-small-first")]
NOTES += [f"recipes/mnist-{m}-{n}.json" for m in ("small", "large") for n in ("first", "second")]
NOTES += ["variants/last-epochs.json", "speed/queues.json"]

# On no page: of the machine at hand, and not measured yet.
UNSEEN = {"imports", "epochs", "record-large", "record-attacks", "record-trials", "certificates-mnist"}


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def figures(name: str) -> dict[str, dict[str, float]]:
    return Figures.read(RESULTS / f"{name}.json").rows


def test_the_tables_of_the_pages_are_made_from_the_results_each_once():
    for name in PAGES:
        assert fill_page(page(name)) == page(name), name
    marked = [target for name in PAGES for target in re.findall(r"<!-- ([a-z0-9-]+) -->", page(name))]
    drawn = [target for target in TARGETS if target.startswith("figure-")]
    assert sorted(marked) == sorted(set(TARGETS) - {*drawn, *UNSEEN})
    for target in set(TARGETS) - UNSEEN:
        results = stored.read_results(RESULTS, cells_of(target))
        assert set(results) == set(cells_of(target)) and all(record.status == "ok" for record in results.values())


def test_a_changed_figure_is_noticed(tmp_path):
    """The test of the pages can fail: one seed of one file moves, and table 1 is another."""
    for cell in cells_of("table1"):
        path = result_path(tmp_path, cell)
        path.parent.mkdir(exist_ok=True)
        fields = json.loads(result_path(RESULTS, cell).read_text())
        fields["results"][0]["clean"] += 1.0 if cell.conv == "ossn" else 0.0
        path.write_text(json.dumps(fields))
    before = re.search(r"<!-- table1 -->.*?<!-- /table1 -->", page("docs/paper.md"), re.DOTALL)[0]
    assert fill_page(before) == before != fill_page(before, tmp_path)


def test_every_result_file_is_read_by_its_record():
    cells = {result_path(RESULTS, cell): cell for cell in cells_of("all")}
    paths = [path for kind in {cell.kind for cell in cells.values()} for path in (RESULTS / kind).glob("*")]
    for path in paths:
        name = path.relative_to(RESULTS).as_posix()
        record = read_result(RESULTS, cells[path]) if path in cells else Figures.read(path)
        assert record is not None and not record.quick
        assert path in cells or name in NOTES, f"{name} is measured by no cell"
    assert len(paths) > 90 and all(Figures.read(path) for path in (RESULTS / "generators").iterdir())

    text = (RESULTS / "README.md").read_text(encoding="utf-8")
    assert all(f"`{path.name}{'/' * path.is_dir()}`" in text for path in RESULTS.iterdir() if path.name != "README.md")


def test_a_file_that_is_of_another_cell_is_refused(tmp_path):
    cell = ClassifierCell("cifar10", "large", "bcop")
    path = result_path(tmp_path, cell)
    path.parent.mkdir()
    changes = {
        "'rko'": {"conv": "rko"},
        "images": {"images": None},
        "more": {"more": 1},
        "Failure": {"status": "failed"},
    }
    for named, change in changes.items():
        path.write_text(json.dumps(json.loads(result_path(RESULTS, cell).read_text()) | change))
        with pytest.raises(IsoconvError, match=named):
            read_result(tmp_path, cell)


def test_the_comparison_with_others():
    large, steps = read_result(RESULTS, ClassifierCell("cifar10", "large", "bcop")), figures("speed/steps")
    clean, robust = fmean(s.clean for s in large.results), fmean(s.robust[str(36 / 255)] for s in large.results)
    text = page("docs/comparison.md")
    assert f"mean of 5 seeds | 2.5 M | {clean:.1f} | {robust:.1f} |" in text
    longer = figures("variants/cifar10-large-bcop-200-epochs")["alone, seed 0"]
    assert f"| 2.5 M | {longer['clean']:.1f} | {longer[f'certified at {36 / 255}']:.1f} |" in text
    shift = [row for seed in range(3) for row in figures(f"record/cifar10-shift-m-{seed}").values()]
    clean, robust = (fmean(row[name] for row in shift) for name in ("clean", f"certified at {36 / 255}"))
    assert len(shift) == 3 and f"mean of 3 seeds** | 17 M | **{clean:.1f}** | **{robust:.1f}** |" in text
    steepest = 1e3 * figures("speed/time")["bcop, default"]["median"]
    adam, orthogonium = steps["BCOP, Adam"]["ms"], steps["orthogonium, eager"]["ms"]
    assert f"isoconv {adam:.2f} ms (Adam) or {steepest:.2f} ms (steepest descent)" in text
    assert f"0.0.4 {orthogonium:.0f} ms" in text


def test_single_sentences():
    steps, readme = figures("speed/steps"), " ".join(page("README.md").split())
    assert f"takes {steps['BCOP, Adam']['ratio']:.1f} times as long as without constraints" in readme
    assert 90 < steps["the paper's way, eager"]["ratio"] < 110 and "a hundred times as long" in readme
    row = figures("certificates/cifar10-large")["certify"]
    assert row["usual test"] == pytest.approx(row[f"certified at {36 / 255}"])
    shown = (row["clean"], row[f"certified at {36 / 255}"], show_up(row["lipschitz_bound"]))
    assert "│ {:.2f} │ {:.2f} │ {} │".format(*shown) in readme
    assert f"{row['usual test']:.2f} %" in page("docs/mathematics/certificates.md")
    shift = [row for seed in range(3) for row in figures(f"record/cifar10-shift-m-{seed}").values()]
    large, robust = figures("record/mnist-large"), fmean(row[f"certified at {36 / 255}"] for row in shift)
    assert f"certifies **{robust:.1f} %** of CIFAR-10 at 36/255 (three seeds)" in readme and len(shift) == 3
    assert f"`shift-m` {robust:.1f} % after nine minutes" in " ".join(page("docs/how-to/choose.md").split())
    assert all(8.5 < row["train_seconds"] / 60 < 9.5 for row in shift) and "nine minutes" in readme
    assert (
        f"**{fmean(row['certified at 1.58'] for row in large.values()):.1f} %** of MNIST" in readme and len(large) == 5
    )
    wide, usual = large.values(), read_result(RESULTS, ClassifierCell("mnist", "large", "bcop")).results
    wide_text = (
        f"{fmean(row['certified at 1.58'] for row in wide):.1f} % (clean {fmean(r['clean'] for r in wide):.1f} %)"
    )
    usual_text = f"{fmean(s.robust['1.58'] for s in usual):.1f} % (clean {fmean(s.clean for s in usual):.1f} %)"
    training = " ".join(page("docs/how-to/training.md").split())
    assert f"certifies {wide_text}" in training and f"offset of 1.7, {usual_text}" in training
    losses = figures("variants/last-epochs")
    last, before = (losses[f"mnist-large-svcm-default, epoch {n}"]["loss"] for n in (30, 29))
    svcm = read_result(RESULTS, ClassifierCell("mnist", "large", "svcm")).results[0]
    text = " ".join(page("docs/paper.md").split())
    assert f"is {last:.2f} on MNIST; in the epoch before it is {before:.2f}" in text
    assert f"Projected as in the paper, the same seed has {svcm.clean:.2f} / {svcm.robust['1.58']:.2f}" in text


def test_the_time_that_all_of_it_took():
    wanted = [cell for cell in cells_of("all") if cell.kind in ("classifiers", "attacks", "critics")]
    wanted = [cell for cell in wanted if not (cell.kind == "critics" and (cell.dataset == "cifar10" or cell.lr))]
    seconds: dict[str, float] = {}
    for cell, record in stored.read_results(RESULTS, wanted).items():
        spent = sum(s.seconds for s in record.results) if cell.kind == "attacks" else record.train_seconds
        seconds[record.hardware] = seconds.get(record.hardware, 0.0) + spent
    assert seconds.keys() == {"NVIDIA H200", "CPU, 1 thread"}
    text = page("docs/paper.md")
    assert f"{seconds['NVIDIA H200'] / 60:.0f} minutes on one H200" in text
    assert f"{seconds['CPU, 1 thread'] / 3600:.1f} hours on one CPU core" in text


def test_no_page_names_a_command_or_file_that_is_gone():
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.py")]
    for path in pages:
        text = path.read_text(encoding="utf-8")
        assert "isoconv reproduce" not in text, path
        for name in re.findall(r"\bresults/[\w./-]*\w", text):
            assert Path(ROOT / name).exists(), (path, name)
        for target in re.findall(r"python -m reproduction ([\w-]+)", text):
            assert target in (*TARGETS, "TARGET", "all", "pages", "readme"), (path, target)
