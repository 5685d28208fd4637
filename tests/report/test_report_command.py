"""The command on the page, as text; that it makes the run again is tested with the command itself."""

from pathlib import Path

import pytest

from isoconv.report import read_run_files
from isoconv.report.command import command_of, train_command
from report.report_runs import config, fake_run

OUT = Path("runs/x")
CASES = [
    ({"model": "large", "epochs": 60}, "isoconv train digits"),
    ({}, "isoconv train digits --model small --epochs 3"),
    ({"conv": "rko", "seed": 4}, "isoconv train digits --model small --conv rko --epochs 3 --seeds 4"),
    ({"recipe": "paper"}, "isoconv train digits --recipe paper --model small --epochs 3"),
    ({"lr": 0.1, "batch_size": 8}, "isoconv train digits --model small --lr 0.1 --epochs 3 --batch-size 8"),
    ({"data": "cifar10", "input_shape": (3, 32, 32)}, "isoconv train cifar10 --data DIR --model small --epochs 3"),
    ({"data": "my pics", "input_shape": (3, 32, 48)}, "isoconv train 'my pics' --size 32x48 --model small --epochs 3"),
    ({"data": "pics", "input_shape": (3, 32, 32)}, "isoconv train pics --size 32 --model small --epochs 3"),
    ({"flip": True, "crop_padding": 2}, "isoconv train digits --model small --epochs 3 --crop-padding 2 --flip"),
    ({"data": "p", "input_shape": (3, 9, 9), "flip": False}, "isoconv train p --size 9 --model small --epochs 3 --no-flip"),
    ({"data": "stl10", "input_shape": (3, 64, 64)}, "isoconv train stl10 --data DIR --size 64 --model small --epochs 3"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "command"), CASES, ids=[command for _, command in CASES])
def test_only_what_is_not_usual_is_said(changes, command):
    assert train_command(config(**changes), OUT) == f"{command} --out runs/x"


def test_several_seeds_and_radii():
    found = train_command(config(), OUT, seeds=[0, 1], epsilons=[36 / 255, 0.5])
    assert found is not None and "--seeds 0,1 --epsilon 0.1411764705882353 --epsilon 0.5 --out" in found
    assert train_command(config(), OUT, epsilons=[1.58, 0.3]) == train_command(config(), OUT)  # the data set's own


@pytest.mark.parametrize("changes", [{"momentum": 0.5}, {"project_every": 7}], ids=str)
def test_what_no_option_sets_has_no_command(changes):
    assert train_command(config(**changes), OUT) is None


def test_the_seeds_of_a_run_share_a_command(tmp_path):
    for seed in (0, 1):
        run = fake_run(tmp_path / f"seed-{seed}", config(seed=seed))
        text = (run / "result.json").read_text()
        (run / "result.json").write_text(text.replace('"replicas": 1', '"replicas": 2'))
    assert (
        command_of(read_run_files(tmp_path / "seed-1"))
        == f"isoconv train digits --model small --epochs 3 --seeds 0,1 --out {tmp_path}"
    )
