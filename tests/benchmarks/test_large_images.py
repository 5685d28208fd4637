"""The page of large images is made from its result files; what stands there follows from them."""

import json
from pathlib import Path

import pytest
import torch

from benchmarks.large_images import EPOCHS, IMAGENET, PAGE, SHAPE, SIDE, compare, describe_imagenet, fill_page
from benchmarks.shift_step import count_work
from isoconv.models import MODELS, ShiftNet

WHERE = {"hardware": "a GPU", "torch": "2", "commit": "abc"}


def test_the_page_is_made_from_the_results():
    text = PAGE.read_text(encoding="utf-8")
    assert fill_page(text) == text


def test_without_results_it_says_so(tmp_path: Path):
    assert fill_page(PAGE.read_text(encoding="utf-8"), tmp_path).count("Not measured yet.") == 2


def test_hours_and_cost_follow_from_the_speed(tmp_path: Path):
    step = {"pictures_per_second": 1000.0, "tflops": 300.0, "of_bare_product": 0.5}
    found = WHERE | {"weights": 100e6, "batch": 512, "kept": step, "checkpointed": {"failed": "too late"}}
    (tmp_path / "imagenet.json").write_text(json.dumps(found))
    (tmp_path / "cpu.json").write_text(json.dumps({"decoding": [{"workers": 2, "streamed_per_second": 800}]}))
    text = describe_imagenet(tmp_path, tmp_path / "cpu.json", price=2.0, efficiency=0.5)
    hours = EPOCHS * IMAGENET / 1000 / 3600
    assert f"| 1 | 1,000 | {hours:.1f} | {hours:.0f} | ${2 * hours:.0f} | 3 |" in text
    assert f"| 8 | 4,000 | {hours / 4:.1f} | {2 * hours:.0f} | ${4 * hours:.0f} | 10 |" in text
    assert "failed: too late" in text and "50%" in text and "$2.00" in text


def test_differences_beside_their_error():
    ways = {
        f"large, {way}": {"clean": clean, "certified": 50.0, "images": 200}
        for way, clean in (("streamed", 60.0), ("memory", 58.0))
    }
    compare(ways)
    assert ways["large, difference"]["clean"]["points"] == pytest.approx(2)
    assert ways["large, difference"]["certified"] == {"points": 0.0, "standard_error": pytest.approx(5.0)}


def test_the_network_and_its_work():
    """100 M weights; the work is six times weights times positions, of every rotation that is trained."""
    with torch.device("meta"):
        network = ShiftNet((3, SIDE, SIDE), 1000, **SHAPE)
        small = MODELS["shift-s"].make((3, 32, 32))
    assert sum(p.numel() for p in network.parameters()) == pytest.approx(100e6, rel=0.06)
    assert count_work(network, 2, SIDE) == {
        (28**2, 512): 6 * 8 * 512**2 * 28**2 * 2,
        (14**2, 2048): 6 * 24 * 2048**2 * 14**2 * 2,
    }
    assert sum(count_work(small, 1).values()) == 6 * (4 * 64**2 * 16**2 + 8 * 256**2 * 8**2)
