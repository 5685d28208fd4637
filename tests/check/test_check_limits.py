"""What the checker must answer: every honest certificate, and whatever else is in a file within 20 s, 2 GB and one line."""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from check.certificate_maker import CLAIM, Certificate, check, weights_hash
from isoconv.nn import MaxMin

SECONDS, BYTES = 20, 2 << 30


class Run(NamedTuple):
    """A run of the checker as a program of its own; seconds of one processor."""

    code: int
    lines: list[str]
    seconds: float
    memory: int


def run(*arguments: Any) -> Run:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "isoconv.check", *map(str, arguments)]
    settings = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    output = subprocess.run(command, stdout=-1, stderr=subprocess.STDOUT, text=True, env=settings, timeout=300)
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)  # memory: the largest of all until now
    seconds = usage.ru_utime + usage.ru_stime - before.ru_utime - before.ru_stime
    return Run(output.returncode, output.stdout.splitlines(), seconds, usage.ru_maxrss * 1024)


def require_an_answer(result: Run) -> None:
    assert result.code in (0, 1, 2) and len(result.lines) == 1, result.lines[-3:]
    assert result.seconds < SECONDS and result.memory < BYTES


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), MaxMin(), nn.Flatten(), nn.Linear(80, 3))


@pytest.fixture
def honest(tmp_path: Path) -> Certificate:
    result = Certificate(tmp_path, small(), (2, 5, 4), images=2)
    return result


# ------------------------------------------------------------------------------------------------ honest, and accepted


def test_zero_padding_with_unequal_axes(tmp_path):
    """The norm on the torus of n + k − 1 positions per axis, (50, 36), is a bound, whatever the other tori give."""
    for seed in range(12):
        torch.manual_seed(seed)
        conv = nn.Conv2d(3, 4, (3, 5), padding=(1, 2), bias=False)
        model = nn.Sequential(conv, nn.AvgPool2d((48, 32)), nn.Flatten(), nn.Linear(4, 3))
        honest = Certificate(tmp_path, model, (3, 48, 32), images=0, torus=(50, 36))
        outcome = honest.check()
        assert outcome.code == 0, (seed, outcome)


def crop(table: dict[str, Any]) -> None:
    table["input_shape"] = [2, 6, 5]
    crop = {"name": "pad", "kind": "ZeroPad2d", "settings": {"padding": [0, -1, -1, 0]}, "lipschitz": (1.0).hex()}
    table["layers"].insert(0, crop)
    table["images"] = []


def infinite(table: dict[str, Any]) -> None:
    table.update(error_offset="inf", error_slope="inf")
    for image in table["images"]:
        image["radius"] = (0.0).hex()


HONEST: dict[str, Callable[[dict[str, Any]], None]] = {
    "flatten from the end": lambda t: t["layers"][2]["settings"].update(start_dim=-3),
    "cropping": crop,
    "an infinite error and no radius": infinite,
}


@pytest.mark.parametrize("case", HONEST)
def test_what_a_certifier_may_write(case, honest):
    outcome = honest.check(HONEST[case])
    assert outcome.code == 0, outcome


def test_a_padding_mode_without_padding(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 3, padding_mode="reflect"), nn.Flatten(), nn.Linear(24, 3))
    honest = Certificate(tmp_path, model, (2, 5, 4), images=2)
    assert honest.check(images=honest.pixels.numpy()).code == 0


# ---------------------------------------------------------------------------------------------- hostile, and answered


def hostile_network(tmp_path: Path, model: nn.Module, table: dict[str, Any]) -> Run:
    """A certificate of a network whose constants nobody computed."""
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    one = (1.0).hex()
    base = {
        "format": "isoconv certificate", "version": 1, "claim": CLAIM, "arithmetic": "float64", "norm": "2",
        "input_range": [0.0.hex(), one], "weights_sha256": weights_hash(model.state_dict()), "lipschitz": one,
        "error_offset": one, "error_slope": one, "images": [],
    }  # fmt: skip
    (tmp_path / "certificate.json").write_text(json.dumps(base | table))
    return run(tmp_path / "certificate.json", tmp_path)


def convolution(claim: float = 1.0, **settings: Any) -> dict[str, Any]:
    defaults = {"stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "groups": 1, "padding_mode": "zeros"}
    return {"name": "0", "kind": "Conv2d", "settings": defaults | settings, "lipschitz": claim.hex()}


@pytest.mark.parametrize(
    ("sizes", "settings"),
    [
        ((997, 1009), {"padding": [1, 1], "padding_mode": "circular"}),  # coprime
        ((2049, 2049), {"padding": [1024, 1024], "dilation": [1024, 1024]}),
        ((3001, 3011), {"padding": [1, 1]}),
    ],
    ids=["coprime sizes", "dilation", "large"],
)
def test_convolutions_of_a_kilobyte(sizes, settings, tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 1, 3, bias=False))
    flatten = {"name": "1", "kind": "Flatten", "settings": {"start_dim": 1, "end_dim": -1}, "lipschitz": (1.0).hex()}
    table = {"input_shape": [1, *sizes], "classes": 2, "pair_constants": [[(1.0).hex()] * 2] * 2}
    pool = {"kernel_size": [sizes[0], sizes[1] // 2], "stride": [sizes[0], sizes[1] // 2], "padding": [0, 0]}
    pool = {"name": "p", "kind": "AvgPool2d", "settings": pool, "lipschitz": (1.0).hex()}
    claim = float(model[0].weight.detach().abs().sum()) * 0.9
    require_an_answer(
        hostile_network(tmp_path, model, table | {"layers": [convolution(claim, **settings), pool, flatten]})
    )


def test_the_windows_of_a_pool(tmp_path):
    pool = {"kernel_size": [1, 30_001], "stride": [1, 1], "padding": [0, 15_000], "dilation": [1, 1]}
    halves = {"kernel_size": [1, 30_000], "stride": [1, 30_000], "padding": [0, 0]}
    layers = [
        {"name": "0", "kind": "MaxPool2d", "settings": pool, "lipschitz": (1e4).hex()},
        {"name": "1", "kind": "AvgPool2d", "settings": halves, "lipschitz": (1.0).hex()},
        {"name": "2", "kind": "Flatten", "settings": {"start_dim": 1, "end_dim": -1}, "lipschitz": (1.0).hex()},
    ]
    table = {"input_shape": [1, 1, 60_000], "classes": 2, "pair_constants": [[(0.0).hex()] * 2] * 2, "layers": layers}
    require_an_answer(hostile_network(tmp_path, nn.Sequential(nn.Identity()), table))


def test_a_repeated_name_among_many(honest, tmp_path):
    names = ", ".join(f'"{n}": 0' for n in range(200_000))
    (tmp_path / "bad.json").write_text(f'{{{names}, "199999": 0}}')
    result = run(tmp_path / "bad.json", honest.model_file)
    require_an_answer(result)
    assert result.code == 2 and "199999" in result.lines[0]


def test_what_is_no_ordinary_file(honest, tmp_path):
    honest.check()
    os.mkfifo(tmp_path / "fifo")
    good = [honest.folder / "certificate.json", honest.model_file]
    for arguments in (
        [tmp_path / "fifo", good[1]],
        ["/dev/zero", good[1]],
        [good[0], "/dev/zero"],
        [good[0], tmp_path / "fifo"],
        [*good, "--images", tmp_path / "fifo"],
        [*good, "--images", "/dev/zero"],
    ):
        result = run(*arguments)
        require_an_answer(result)
        assert result.code == 2 and "ordinary file" in result.lines[0]


def test_enormous_whole_numbers(honest):
    for number in (2**63, 10**400, 9 * 10**4299):
        for path in (("layers", 0, "settings", "groups"), ("layers", 2, "settings", "start_dim"), ("classes",),
                     ("images", 0, "index"), ("input_shape", 1)):  # fmt: skip

            def enlarge(table: dict[str, Any], path=path, number=number) -> None:
                target: Any = table
                for step in path[:-1]:
                    target = target[step]
                target[path[-1]] = number

            outcome = honest.check(enlarge, images=honest.pixels.numpy())
            assert outcome.code in (0, 1, 2) and (outcome.out + outcome.err).count("\n") == 1


NPY: dict[str, Callable[[bytes], bytes]] = {
    "no bracket": lambda header: header.replace(b"(", b" "),
    "a name": lambda header: header.replace(b"'<f8'", b"a_b_c"),
    "unhashable": lambda header: header.replace(b"'descr'", b"[[0]]  "),
    "a field less": lambda header: header.replace(b"'descr': '<f8', ", b" " * 16),
    "negative": lambda header: header.replace(b"(2, ", b"(-2,"),
    "enormous": lambda header: header.replace(b"(2, 2, 5, 4), }         ", b"(999999999, 2, 5, 4), } "),
    "not ASCII": lambda header: header.replace(b"descr", b"desc\xff"),
    "cut": lambda header: header[:-30],
    "version": lambda header: header[:6] + b"\x09" + header[7:],
}


def test_malformed_headers_of_images(honest, tmp_path):
    honest.check()
    np.save(tmp_path / "images.npy", honest.pixels.numpy())
    data = (tmp_path / "images.npy").read_bytes()
    for case, change in NPY.items():
        assert change(data[:128]) != data[:128], case
        (tmp_path / "images.npy").write_bytes(change(data[:128]) + data[128:])
        outcome = check(tmp_path / "certificate.json", honest.model_file, "--images", tmp_path / "images.npy")
        assert outcome.code == 2 and outcome.err.count("\n") == 1, case


def test_the_claim_is_the_sentence_that_is_proved(honest):
    assert honest.check().code == 0
    assert honest.check(lambda t: t.update(claim="Every image is certified.")).code == 1
