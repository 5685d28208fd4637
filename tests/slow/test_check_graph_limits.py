"""Hostile graphs in small files: each is answered within 20 s, 2 GB and one line."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from slow.test_check_limits import Run, node, require_an_answer, run, run_network

Nodes = list[dict[str, Any]]


def answer(folder: Any, shape: list[int], nodes: Nodes, images: int = 0) -> Run:
    """Of a network that ends in its first two numbers, with a linear layer behind."""
    end = [node("two", "Slice", axis=0, start=0, stop=2, step=1), node("l", "Linear", 2.1)]
    return run_network(folder, shape, {"l.weight": torch.ones(2, 2)}, [*nodes, *end], images)


def chain(count: int, kind: str, claim: float = 1.0, **more: Any) -> Nodes:
    names = ["input", *map(str, range(count))]
    return [node(name, kind, claim, inputs=[before], **more) for before, name in pairwise(names)]


def scales(factor: float) -> Nodes:
    return chain(4_000, "Scale", factor, factor=factor.hex())


@pytest.mark.parametrize(("nodes", "code"), [(scales(1.2345678912e-301), 0), (scales(1.2345678912e301), 1)])
def test_numbers_that_vanish_or_grow(nodes, code, tmp_path):
    assert answer(tmp_path, [2], nodes).code == code


@pytest.mark.parametrize("back", [0, 1])
def test_thousands_of_sums(back, tmp_path):
    """2ⁿ times the input, or Fibonacci's numbers."""
    names = ["input", *(str(n) for n in range(4_000))]
    nodes = [node(str(n), "Add", inputs=[names[n], names[max(0, n - back)]]) for n in range(4_000)]
    assert answer(tmp_path, [2], nodes).code == 1


def many_inputs() -> Nodes:
    sums = [node(f"s{n}", "Add", inputs=["input"] * 2_500) for n in range(400)]
    return [*sums, node("all", "Concat", axis=0, inputs=[f"s{n}" for n in range(400)])]


def bases_in_bases() -> Nodes:
    sums = [node(f"s{n}", "Add", inputs=["0", *map(str, range(950, 1_000))]) for n in range(10)]
    return [
        *chain(1_000, "Abs"),
        *sums,
        node("all", "Add", inputs=[*map(str, range(1_000)), *(f"s{n}" for n in range(10))]),
    ]


def long_fractions() -> Nodes:
    factors = [1 + (7919 * n + 1) * 2.0**-50 for n in range(300)]
    nodes = [
        node(f"q{n}", "Scale", f, factor=f.hex(), inputs=[f"q{n - 1}" if n else "input"]) for n, f in enumerate(factors)
    ]
    joins = [node(f"c{n}", "Concat", axis=0, inputs=[f"q{299 - n}"] * 1_500) for n in range(15)]
    return [*nodes, *joins, node("all", "Add", inputs=[f"c{n}" for n in range(15)])]


def overlapping_slices() -> Nodes:
    slices = [node(str(n), "Slice", axis=0, start=n, stop=n + 2_048, step=1, inputs=["input"]) for n in range(600)]
    return [*slices, node("all", "Concat", axis=0, inputs=[str(n) for n in range(600)])]


def large_selections() -> Nodes:
    orders = ([1, 0, 2], [2, 1, 0])
    nodes = [node(f"p{n}", "Permute", order=orders[n % 2], inputs=["input"]) for n in range(100)]
    nodes += [node(f"f{n}", "Reshape", shape=[1 << 25], inputs=[f"p{n}"]) for n in range(100)]
    return [*nodes, node("all", "Add", inputs=[f"f{n}" for n in range(100)])]


def large_halves() -> Nodes:
    half = 1 << 24
    nodes = [
        node(n, "Slice", axis=0, start=k * half, stop=(k + 1) * half, step=1, inputs=["input"])
        for k, n in enumerate("ab")
    ]
    return [*nodes, node("all", "Concat", axis=0, inputs=["b", "a"])]


@pytest.mark.parametrize(
    ("build", "shape"),
    [
        (many_inputs, [2]),
        (bases_in_bases, [2]),
        (long_fractions, [2]),
        (overlapping_slices, [4_096]),
        (large_selections, [1 << 10, 1 << 10, 32]),
        (large_halves, [1 << 25]),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_joins(build: Callable[[], Nodes], shape, tmp_path):
    answer(tmp_path, shape, build())


def replay(folder: Any, shape: list[int], nodes: Nodes, images: int) -> Run:
    answer(folder, shape, nodes, images)
    np.save(folder / "images.npy", np.zeros((images, *shape), np.uint8))
    result = run(folder / "certificate.json", folder, "--images", folder / "images.npy")
    require_an_answer(result)
    return result


def test_values_that_are_kept(tmp_path):
    """All at once they would not fit; a slice keeps nothing of what it was cut from."""
    kept = [node(str(n), "Abs", inputs=["input"]) for n in range(40)]
    result = replay(tmp_path, [1 << 22], [*kept, node("all", "Add", inputs=[str(n) for n in range(40)])], 1)
    assert result.code == 2 and "at once" in result.lines[0]
    nodes = chain(60, "Abs")
    ends = [node(f"s{n}", "Slice", axis=0, start=0, stop=2, step=1, inputs=[str(n)]) for n in range(60)]
    nodes = [part for pair in zip(nodes, ends, strict=True) for part in pair]
    result = replay(tmp_path, [1 << 22], [*nodes, node("all", "Add", inputs=[f"s{n}" for n in range(60)])], 1)
    assert result.code == 1 and "logit" in result.lines[0]  # zeros do not give the logits of the file: it was replayed


def test_a_module_that_is_used_everywhere(tmp_path):
    """The same sum of many values, for many images."""
    result = replay(tmp_path, [1 << 14], [node("all", "Add", inputs=["input"] * 3_000)], 60)
    assert result.code == 2 and "--unlimited" in result.lines[0]
