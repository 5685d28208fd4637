"""What the checker must answer: every honest certificate, and whatever else is in a file within 20 s, 2 GB and one line."""

import json
import os
import resource
import subprocess
import sys
from collections import OrderedDict
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from check.certificate_maker import Certificate, put, weights_hash
from isoconv.nn import MaxMin

SECONDS, BYTES = 20, 2 << 30


class Run(NamedTuple):
    """A run of the checker as a program of its own: its exit code, and what it printed."""

    code: int
    lines: list[str]


def run(*arguments, seconds=SECONDS):
    """Run the checker, which must answer within these seconds of one processor."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "isoconv.check", *map(str, arguments)]
    settings = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

    def limit() -> None:  # what is asked for counts, even if it is never touched
        resource.setrlimit(resource.RLIMIT_AS, (2 * BYTES, 2 * BYTES))

    output = subprocess.run(
        command, stdout=-1, stderr=subprocess.STDOUT, text=True, env=settings, timeout=300, preexec_fn=limit
    )
    usage, lines = resource.getrusage(resource.RUSAGE_CHILDREN), output.stdout.splitlines()
    assert output.returncode in (0, 1, 2) and len(lines) == 1, lines[-3:]
    assert usage.ru_utime + usage.ru_stime - before.ru_utime - before.ru_stime < seconds
    assert usage.ru_maxrss * 1024 < BYTES  # the largest of all until now
    return Run(output.returncode, lines)


def node(name, kind, claim=1.0, **more: Any):
    given = {key: more.pop(key) for key in ("module", "inputs") if key in more}
    return {"name": str(name), "kind": kind, "settings": more, "lipschitz": claim.hex(), **given}


def run_network(folder, shape, state, nodes, images=0, seconds=SECONDS):
    """Run the checker on a certificate of two classes whose constants are those of the nodes; the rest is generous."""
    save_file(state, folder / "model.safetensors")
    zero, one, many = (number.hex() for number in (0.0, 1.0, 1e300))
    names = ["input", *(node["name"] for node in nodes)]
    nodes = [{"module": node["name"], "inputs": [before], **node} for before, node in zip(names, nodes, strict=False)]
    header = {
        "format": "isoconv certificate", "version": 2, "isoconv": "test", "arithmetic": "float64", "norm": "2",
        "input_shape": shape, "input_range": [zero, one], "classes": 2, "weights_sha256": weights_hash(state),
        "assumptions": [], "nodes": nodes, "output": names[-1], "lipschitz": many,
        "pair_constants": [[zero, many], [many, zero]], "error_offset": one, "error_slope": one, "images": images,
    }  # fmt: skip
    image = {"label": None, "prediction": 0, "input_norm": one, "logits": [(9.0).hex(), zero], "radius": (1e-300).hex()}
    lines = [header, *({"index": n, **image} for n in range(images))]
    (folder / "certificate.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run(folder / "certificate.json", folder, seconds=seconds)


def replay(folder, images, *shape):
    """Run the checker on the certificate in the folder once more, with that many black images."""
    np.save(folder / "images.npy", np.zeros((images, *shape), np.uint8))
    return run(folder / "certificate.json", folder, "--images", folder / "images.npy")


@pytest.fixture
def honest(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), MaxMin(), nn.Flatten(), nn.Linear(80, 3))
    return Certificate(tmp_path, model, (2, 5, 4), images=2, version=1)


# Honest, and accepted ---------------------------------------------------------------------------------------------


def crop(table):
    table["input_shape"] = [2, 6, 5]
    crop = {"name": "pad", "kind": "ZeroPad2d", "settings": {"padding": [0, -1, -1, 0]}, "lipschitz": (1.0).hex()}
    table["layers"].insert(0, crop)
    table["images"] = []


HONEST = {
    "flatten from the end": put("layers.2.settings.start_dim", -3),
    "cropping": crop,
    "an infinite error and no radius": put(
        "error_offset", "inf", "error_slope", "inf", "images.0.radius", (0.0).hex(), "images.1.radius", (0.0).hex()
    ),
}


@pytest.mark.parametrize("case", HONEST)
def test_what_a_certifier_may_write(case, honest):
    outcome = honest.check(HONEST[case])
    assert outcome.code == 0, outcome


def test_a_padding_mode_without_padding(tmp_path):
    model = nn.Sequential(nn.Conv2d(2, 4, 3, padding_mode="reflect"), nn.Flatten(), nn.Linear(24, 3))
    honest = Certificate(tmp_path, model, (2, 5, 4), images=2)
    assert honest.check(images=honest.pixels.numpy()).code == 0


def test_any_name_and_many_axes(tmp_path):
    """Names with line breaks and other spaces than " " are odd, but they are names."""
    model = nn.Sequential(OrderedDict({"\u3000": nn.Flatten(), "a\n\u00a0b": nn.Linear(512, 3)}))
    assert Certificate(tmp_path, model, (2,) * 9).check().code == 0


# Hostile layers, and answered -------------------------------------------------------------------------------------


def convolution(name, claim, **more):
    defaults = {"stride": [1, 1], "padding": [[1, 1]] * 2, "dilation": [1, 1], "groups": 1, "padding_mode": "zeros"}
    return node(name, "Conv2d", claim, **defaults | more)


def average(*sizes):
    """Average over windows, and flatten."""
    more = {"padding": [0, 0], "ceil_mode": False, "count_include_pad": True, "divisor_override": None}
    pool = node("p", "AvgPool2d", kernel_size=sizes, stride=sizes, **more)
    return [pool, node("f", "Flatten", start_dim=1, end_dim=-1)]


@pytest.mark.parametrize(
    ("sizes", "settings"),
    [
        ((997, 1009), {"padding_mode": "circular"}),  # coprime
        ((2049, 2049), {"padding": [[1024, 1024]] * 2, "dilation": [1024, 1024]}),
        ((3001, 3011), {}),
    ],
    ids=["coprime sizes", "dilation", "large"],
)
def test_convolutions_of_a_kilobyte(sizes, settings, tmp_path):
    weight = torch.randn(1, 1, 3, 3, generator=torch.Generator().manual_seed(0))
    nodes = [convolution("0", float(weight.abs().sum()) * 0.9, **settings), *average(sizes[0], sizes[1] // 2)]
    run_network(tmp_path, [1, *sizes], {"0.weight": weight}, nodes)


def test_the_windows_of_a_pool(tmp_path):
    sizes = {"kernel_size": [1, 30_001], "stride": [1, 1], "padding": [0, 15_000], "dilation": [1, 1]}
    nodes = [node("0", "MaxPool2d", 1e4, ceil_mode=False, **sizes), *average(1, 30_000)]
    run_network(tmp_path, [1, 1, 60_000], {}, nodes)


def test_a_module_of_many_groups_in_many_places(tmp_path):
    """A small file may ask for the same proof again and again."""
    weight = torch.randn(512, 1, 3, 3, generator=torch.Generator().manual_seed(0))
    claim = float(weight.abs().sum((1, 2, 3)).max()) * 0.95
    nodes = [convolution(n, claim, groups=512, module="m") for n in range(300)]
    last = node("l", "Linear", 1e9)
    state = {"m.weight": weight, "l.weight": torch.ones(2, 8192)}
    assert "--unlimited" in run_network(tmp_path, [512, 4, 4], state, [*nodes, average(1, 1)[1], last]).lines[0]


def test_activations_that_are_large_or_many(tmp_path):
    nodes = [node(n, "Abs") for n in range(20)]
    assert "--unlimited" in run_network(tmp_path, [1, 4096, 8192], {}, [*nodes, *average(4096, 4096)]).lines[0]
    for height, code in ((4096, 0), (4097, 2)):
        assert run_network(tmp_path, [1, height, 8192], {}, average(height, 4096)).code == code


def test_a_wide_convolution(tmp_path):
    """512 channels, a separable kernel: its norm is that of its factors, (¼, ½, ¼) twice and an orthogonal matrix."""
    matrix, factor = torch.linalg.qr(torch.randn(512, 512))[0], torch.tensor([0.25, 0.5, 0.25])
    kernel = matrix[:, :, None, None] * factor[:, None] * factor
    state = {"0.weight": kernel.contiguous(), "l.weight": torch.ones(2, 512)}
    for claim, code in ((1.00001, 0), (0.99999, 1)):
        nodes = [convolution("0", claim, padding_mode="circular"), *average(4, 4), node("l", "Linear", 32.1)]
        assert run_network(tmp_path, [512, 4, 4], state, nodes).code == code


@pytest.mark.parametrize(("depth", "images"), [(0, 60_000), (4_000, 30_000)])
def test_many_images(depth, images, tmp_path):
    nodes = [*(node(n, "Scale", factor=(1.0).hex()) for n in range(depth)), node("l", "Linear", 2.1)]
    result = run_network(tmp_path, [2], {"l.weight": torch.ones(2, 2)}, nodes, images=images)
    assert result.code == 0 and f"{images} of {images} images" in result.lines[0]


def test_images_through_many_nodes(tmp_path):
    nodes = [*(node(n, "GroupSort", group_size=2) for n in range(4_000)), node("l", "Linear", 1.0)]
    run_network(tmp_path, [4_000], {"l.weight": torch.full((2, 4_000), 2.0**-12)}, nodes, images=1_000)
    result = replay(tmp_path, 1_000, 4_000)
    assert result.code == 2 and "--unlimited" in result.lines[0]


@pytest.mark.parametrize("kind", ["AvgPool1d", "Upsample"])
def test_many_nodes_of_many_numbers(kind, tmp_path):
    """What a node looks up is as large as what it gives: it cannot be kept for all of them."""
    pooling = average(1)[0]["settings"] | {"padding": [0]}
    settings = {"factors": [1]} if kind == "Upsample" else pooling
    run_network(tmp_path, [1, 1 << 24], {}, [node(n, kind, **settings) for n in range(18)])


def test_a_large_square_matrix_takes_memory_in_proportion(tmp_path):
    """Of 36 MB. Nothing is promised of files above 10 MB, but what they cost is a small multiple of their size."""
    size = 3000
    matrix = torch.linalg.qr(torch.randn(size, size, generator=torch.Generator().manual_seed(0)))[0]
    state = {"0.weight": matrix.contiguous(), "l.weight": torch.full((2, size), 2.0**-6)}
    nodes = [node("0", "Linear", 1.00001), node("l", "Linear", 1.3)]
    assert run_network(tmp_path, [size], state, nodes, seconds=90).code == 0


# Hostile graphs, and answered -------------------------------------------------------------------------------------


def answer(folder, shape, nodes, images=0):
    """Of a network that ends in its first two numbers, with a linear layer behind."""
    end = [node("two", "Slice", axis=0, start=0, stop=2, step=1), node("l", "Linear", 2.1)]
    return run_network(folder, shape, {"l.weight": torch.ones(2, 2)}, [*nodes, *end], images)


def chain(count, kind, claim=1.0, **more):
    names = ["input", *map(str, range(count))]
    return [node(name, kind, claim, inputs=[before], **more) for before, name in pairwise(names)]


def add(*names, name="all"):
    return node(name, "Add", inputs=[str(n) for n in names])


def concat(names, name="all"):
    return node(name, "Concat", axis=0, inputs=list(map(str, names)))


def cut(name, start, stop, source="input"):
    return node(name, "Slice", axis=0, start=start, stop=stop, step=1, inputs=[str(source)])


@pytest.mark.parametrize(("factor", "code"), [(1.2345678912e-301, 0), (1.2345678912e301, 1)])
def test_numbers_that_vanish_or_grow(factor, code, tmp_path):
    assert answer(tmp_path, [2], chain(4_000, "Scale", factor, factor=factor.hex())).code == code


@pytest.mark.parametrize("back", [0, 1])
def test_thousands_of_sums(back, tmp_path):
    """2ⁿ times the input, or Fibonacci's numbers."""
    names = ["input", *range(4_000)]
    nodes = [add(names[n], names[max(0, n - back)], name=n) for n in range(4_000)]
    assert answer(tmp_path, [2], nodes).code == 1


def many_inputs():
    return [*(add(*["input"] * 2_500, name=f"s{n}") for n in range(400)), concat(f"s{n}" for n in range(400))]


def bases_in_bases():
    sums = [add(0, *range(950, 1_000), name=f"s{n}") for n in range(10)]
    return [*chain(1_000, "Abs"), *sums, add(*range(1_000), *(f"s{n}" for n in range(10)))]


def long_fractions():
    factors = [1 + (7919 * n + 1) * 2.0**-50 for n in range(300)]
    before = ["input", *(f"q{n}" for n in range(300))]
    nodes = [node(f"q{n}", "Scale", f, factor=f.hex(), inputs=[before[n]]) for n, f in enumerate(factors)]
    joins = [concat([f"q{299 - n}"] * 1_500, name=f"c{n}") for n in range(15)]
    return [*nodes, *joins, add(*(f"c{n}" for n in range(15)))]


def overlapping_slices():
    return [*(cut(n, n, n + 2_048) for n in range(600)), concat(range(600))]


def large_selections():
    orders = ([1, 0, 2], [2, 1, 0])
    nodes = [node(f"p{n}", "Permute", order=orders[n % 2], inputs=["input"]) for n in range(100)]
    nodes += [node(f"f{n}", "Reshape", shape=[1 << 25], inputs=[f"p{n}"]) for n in range(100)]
    return [*nodes, add(*(f"f{n}" for n in range(100)))]


def large_halves():
    return [cut("a", 0, 1 << 24), cut("b", 1 << 24, 1 << 25), concat("ba")]


JOINS = [(many_inputs, [2]), (bases_in_bases, [2]), (long_fractions, [2]), (overlapping_slices, [4_096])]
JOINS += [(large_selections, [1 << 10, 1 << 10, 32]), (large_halves, [1 << 25])]


@pytest.mark.parametrize(("build", "shape"), JOINS, ids=[build.__name__ for build, _ in JOINS])
def test_joins(build, shape, tmp_path):
    answer(tmp_path, shape, build())


def test_values_that_are_kept(tmp_path):
    """All at once they would not fit; a slice keeps nothing of what it was cut from."""
    kept, chained = [node(n, "Abs", inputs=["input"]) for n in range(40)], chain(60, "Abs")
    sliced = [part for n, link in enumerate(chained) for part in (link, cut(f"s{n}", 0, 2, n))]
    results = []
    for nodes in ([*kept, add(*range(40))], [*sliced, add(*(f"s{n}" for n in range(60)))]):
        answer(tmp_path, [1 << 22], nodes, 1)
        results.append(replay(tmp_path, 1, 1 << 22))
    assert results[0].code == 2 and "at once" in results[0].lines[0]
    # Zeros do not give the logits of the file: it was replayed.
    assert results[1].code == 1 and "logit" in results[1].lines[0]


def test_a_module_that_is_used_everywhere(tmp_path):
    """The same sum of many values, for many images."""
    answer(tmp_path, [1 << 14], [add(*["input"] * 3_000)], 60)
    result = replay(tmp_path, 60, 1 << 14)
    assert result.code == 2 and "--unlimited" in result.lines[0]


# Hostile files, and answered --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "piece", "end", "word"),
    [*(('{"a": [', piece, "0]}", "limit") for piece in ("{},", "[],", '"ab",')), ("{", None, '"199999": 0}', "199999")],
    ids=["objects", "lists", "texts", "a repeated name"],
)
def test_json_of_more_objects_than_fit_into_memory(start, piece, end, word, honest, tmp_path):
    pieces = "".join(f'"{n}": 0, ' for n in range(200_000)) if piece is None else piece * 25_000_000
    (tmp_path / "bad.json").write_text(start + pieces + end)
    result = run(tmp_path / "bad.json", honest.model_file)
    assert result.code == 2 and word in result.lines[0]


def test_what_is_no_ordinary_file(honest, tmp_path):
    honest.check()
    os.mkfifo(tmp_path / "fifo")
    good = [honest.folder / "certificate.json", honest.model_file]
    for bad in (tmp_path / "fifo", "/dev/zero"):
        for arguments in ([bad, good[1]], [good[0], bad], [*good, "--images", bad]):
            result = run(*arguments)
            assert result.code == 2 and "ordinary file" in result.lines[0]


def test_enormous_whole_numbers(honest):
    places = ("layers.0.settings.groups", "layers.2.settings.start_dim", "classes", "images.0.index", "input_shape.1")
    for number in (2**63, 10**400, 9 * 10**4299):
        for path in places:
            outcome = honest.check(put(path, number), images=honest.pixels.numpy())
            assert outcome.code in (0, 1, 2) and (outcome.out + outcome.err).count("\n") == 1


def test_the_claim_is_the_sentence_that_is_proved(honest):
    assert honest.check().code == 0
    assert honest.check(lambda t: t.update(claim="Every image is certified.")).code == 1
