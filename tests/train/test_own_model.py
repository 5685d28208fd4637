"""A user's own network: built by a function, trained as any other, kept as data that runs no code."""

import copy
import itertools
import json
import random

import pytest
import torch
from torch import nn

import isoconv.nn
from certify.random_graphs import RandomGraph
from isoconv.certify import Rounding, Rule, lipschitz_bound
from isoconv.certify.rules import RULES
from isoconv.errors import IsoconvError
from isoconv.models import Small
from isoconv.nn import Add, BCOPConv2d, Concat, Graph, MaxMin, OrthogonalLinear, Residual, plain
from isoconv.nn.graph import GraphRecord
from isoconv.train import RunFolder, TrainConfig, certify_run, load_run, train
from isoconv.train.own_model import from_graph, to_graph
from train.toys import refused, same_run, stopped, write_pictures


class Mine(nn.Module):
    """A residual block with a learned weight, a layer used twice, halves that change places, a norm with buffers."""

    def __init__(self, input_shape=(1, 8, 8), classes=4):
        super().__init__()
        self.first, again = BCOPConv2d(input_shape[0], 8, 4, stride=2), BCOPConv2d(8, 8, 3)
        self.norm, self.block = nn.BatchNorm2d(8), Residual(nn.Sequential(again, again, MaxMin()))
        self.offset = nn.Parameter(torch.zeros(8, 1, 1))
        self.head = OrthogonalLinear(128, classes)

    def forward(self, x):
        a, b = self.block(self.norm(self.first(x) + self.offset)).chunk(2, dim=1)
        return self.head(torch.cat([b, a.relu()], 1).flatten(1))


def tied():
    """Two layers with one weight."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(inplace=True), nn.Linear(64, 64), nn.Linear(64, 4))
    model[3].weight = model[1].weight
    return model


def shared():
    layer = nn.Linear(64, 64)
    return nn.Sequential(nn.Flatten(), layer, nn.Tanh(), layer, nn.Linear(64, 4, bias=False))


IMAGE, LINE = (4, 6, 6), (4, 6)
# A module of each kind whose constructor wants arguments, or has some that matter; the others are made without.
KINDS = {
    IMAGE: [
        nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 2), dilation=(1, 2), groups=2, bias=False),
        nn.Conv2d(4, 4, 3, padding="same", padding_mode="reflect"), nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, groups=2),
        nn.ZeroPad2d((1, 0, 2, -1)), nn.ConstantPad2d((1, 0, 2, 1), 0.25), nn.CircularPad2d((1, 2, 0, 1)),
        nn.ReflectionPad2d(1), nn.ReplicationPad2d((1, 0, 0, 2)), nn.MaxPool2d(3, 2, 1, ceil_mode=True),
        nn.AvgPool2d((2, 3), 2, 1, divisor_override=5), nn.AdaptiveAvgPool2d((None, 2)),
        nn.BatchNorm2d(4, 0.1, affine=False),
        nn.Upsample(scale_factor=(2, 1)), nn.UpsamplingNearest2d(scale_factor=2), nn.UpsamplingBilinear2d((7, 9)),
        nn.PixelShuffle(2), nn.PixelUnshuffle(3), nn.Hardtanh(-0.5, 0.75), nn.LeakyReLU(0.3), nn.ELU(0.5), nn.CELU(2.0),
        nn.GELU("tanh"), nn.Softplus(2, 9), nn.Softmax(2), nn.Dropout(0.3), nn.Flatten(2), nn.Unflatten(1, (2, -1)),
        isoconv.nn.Normalize([0.1, 0.2, 0.3, 0.4], [0.5, 1, 2, 3]), isoconv.nn.PositionBias(6, 6), isoconv.nn.Scale(0.1),
        isoconv.nn.ChannelShift(0.25), isoconv.nn.GroupSort(None), isoconv.nn.MaxMin(-1), isoconv.nn.L2NormPool2d((2, 3)),
        isoconv.nn.BatchCentering(4, bias=False), isoconv.nn.LayerCentering((2, 3)), isoconv.nn.Householder(4),
        isoconv.nn.Concat(2), isoconv.nn.Slice(3, 1, 6, 2), isoconv.nn.Flip(2), isoconv.nn.Reshape((6, 24)),
        isoconv.nn.Permute((2, 0, 1)), isoconv.nn.Translate(torch.rand(4, 1, 6)), nn.Linear(6, 3),
        isoconv.nn.ConvexPotential2d(4, 3, (3, 2), padding_mode="zeros"), isoconv.nn.ConvexPotential2d(4, 2, 3, False),
    ],
    LINE: [
        nn.Conv1d(4, 6, 3, 2, 1, bias=False), nn.ConvTranspose1d(4, 2, 3), nn.ZeroPad1d(1), nn.ConstantPad1d(1, 0.5),
        nn.CircularPad1d(2), nn.ReflectionPad1d(1), nn.ReplicationPad1d(2), nn.MaxPool1d(2), nn.AvgPool1d(3, 2, 1),
        nn.AdaptiveAvgPool1d(4), nn.BatchNorm1d(4), nn.Dropout1d(0.1),
    ],
}  # fmt: skip
BUILDERS = [Mine, tied, shared, lambda: Small((1, 8, 8), 4), lambda: nn.Linear(64, 4)]


def config_of(shape=(1, 8, 8), classes=4):
    return TrainConfig("toy", shape, tuple(map(str, range(classes))), model="mine.py:build")


def through_json(record):
    return GraphRecord.from_fields(json.loads(json.dumps(record.to_fields())))


def assert_kept(model, shape, config):
    graph, record = to_graph(model, config)
    read = from_graph(through_json(record), copy.deepcopy(graph.state_dict()), config)
    x = torch.rand(3, *shape, dtype=next(model.parameters()).dtype)
    with torch.no_grad():
        assert torch.equal(read(x), plain(model.eval(), shape)(x))
    assert read.to_record() == record and not read.training
    assert lipschitz_bound(read, shape).value == lipschitz_bound(model, shape).value


def test_every_kind_is_kept():
    kinds = {kind.__name__: kind for kind, rule in RULES.items() if rule.settings is not None}
    others = kinds.keys() - {type(module).__name__ for modules in KINDS.values() for module in modules}
    for shape, modules in (*KINDS.items(), (IMAGE, [kinds[name]() for name in sorted(others)])):
        for module in modules:
            joined = ["input"] * (1 + isinstance(module, (Add, Concat)))
            graph = Graph({"a.b": module}, [("c", "a.b", joined)]).eval()
            read = Graph.from_record(through_json(graph.to_record()), kinds).eval()
            read.load_state_dict(graph.state_dict(), assign=True)
            x = torch.randn(3, *shape)
            assert type(read.a.b) is type(module) and torch.equal(read(x), graph(x)), module


def test_what_is_kept_computes_the_same():
    for build, dtype in itertools.product(BUILDERS, (torch.float32, torch.float64)):
        model, config = build(), config_of()
        shape = (64,) if isinstance(model, nn.Linear) else (1, 8, 8)
        model(torch.rand(2, *shape))
        object.__setattr__(config, "input_shape", shape)
        assert_kept(model.to(dtype), shape, config)
    for seed in range(8):
        assert_kept(RandomGraph(seed, steps=3 + seed), (4, 3, 3), config_of((4, 3, 3), 3))


def test_a_graph_with_modules_in_place_is_refused():
    """Otherwise the last node would see values five times as steep as those that its bound is about."""
    modules = {"steep": nn.LeakyReLU(5.0, inplace=True), "flat": nn.Flatten(), "head": nn.Linear(64, 4)}
    nodes = [("steep", "steep", ["input"]), ("flat", "flat", ["input"]), ("head", "head", ["flat"])]
    refused("LeakyReLU at steep", lipschitz_bound, Graph(modules, nodes), (1, 8, 8))


def test_registered_kinds_changed_modules_and_rounded_weights_are_refused(monkeypatch, tmp_path):
    class Halved(nn.Module):
        def forward(self, x):
            return 0.5 * x

    monkeypatch.setitem(RULES, Halved, Rule(lambda node: 0.5, lambda node, bound, _: Rounding(0, bound)))
    refused("Halved at 0", to_graph, nn.Sequential(Halved(), nn.Flatten(), nn.Linear(64, 4)), config_of())
    lines, network = list[str](), nn.Sequential(Halved(), nn.Flatten(), nn.Linear(64, 4))
    folder = write_pictures(tmp_path / "pictures")
    (record,) = certify_run(lambda: network, folder=folder, device="cpu", say=lines.append)
    assert [layer.claimed for layer in record.layers] == [True, False, False] and "claimed" in lines[-1].lower()
    layer = nn.Conv2d(1, 1, 3, padding=1, padding_mode="circular")
    layer._reversed_padding_repeated_twice = [2, 0, 2, 0]  # what torch pads by
    refused(r"constructors.*Conv2d at 0", to_graph, nn.Sequential(layer, nn.Flatten(), nn.Linear(64, 4)), config_of())
    graph, record = to_graph(Mine(), config_of())
    half = {name: value.half() for name, value in graph.state_dict().items()}
    refused("float32 or float64.*float16", from_graph, record, half, config_of())


# Training -----------------------------------------------------------------------------------------------------------

FAST = {"epochs": 2, "batch_size": 16, "device": "cpu"}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """A folder of 80 pictures of 8×8 in four classes of brightness."""
    return write_pictures(tmp_path_factory.mktemp("pictures") / "all")


def small(input_shape, classes):
    return Small(input_shape, classes)


def test_it_trains_as_a_network_of_isoconv_does(pictures, tmp_path):
    train(str(pictures), tmp_path / "named", model="small", **FAST, seeds=[0, 3])
    train(str(pictures), tmp_path / "own", model=small, **FAST, seeds=[0, 3])
    for seed in ("seed-0", "seed-3"):
        assert same_run(tmp_path / "named" / seed, tmp_path / "own" / seed)
        assert (tmp_path / "own" / seed / "graph.json").exists()
        assert not (tmp_path / "named" / seed / "graph.json").exists()


def test_a_stopped_run_goes_on_with_the_same_function_alone(pictures, tmp_path):
    train(str(pictures), tmp_path / "whole", model=Mine, **FAST)
    stopped(5, train, str(pictures), tmp_path / "parts", model=Mine, **FAST)
    before = {path: path.read_bytes() for path in (tmp_path / "parts").iterdir()}

    def other():
        model = Mine()
        model.block.branch[2] = nn.ReLU()
        return model

    other.__qualname__ = "Mine"
    for again, named in (({}, "--model"), ({"model": "small"}, "model small"), ({"model": other}, "another")):
        refused(named, train, out=tmp_path / "parts", resume=True, device="cpu", **again)
    assert {path: path.read_bytes() for path in (tmp_path / "parts").iterdir()} == before
    refused("a function", train, out=tmp_path / "parts", resume=True, model=Mine(), device="cpu")
    train(out=tmp_path / "parts", resume=True, model=Mine, device="cpu")
    assert same_run(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_seeds_side_by_side_learn_and_keep_what_they_learned(device, pictures, tmp_path):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    options, lines = FAST | {"epochs": 10, "device": device, "search": [0.01, 0.02]}, []
    results, _ = train(str(pictures), tmp_path / "run", model=Mine, **options, seeds=[0, 1], say=lines.append)
    assert sum("validation at lr" in line for line in lines) == 2
    for seed, result in enumerate(results):
        (record,) = certify_run(tmp_path / "run" / f"seed-{seed}", device=device)
        assert record.clean == result.clean > 50
        assert record.lipschitz_bound == pytest.approx(result.lipschitz_bound, rel=1e-5)


# Reading ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A run that was not trained but looks as if, and what its graph.json holds."""
    torch.manual_seed(0)
    folder, config = RunFolder(tmp_path_factory.mktemp("own") / "run"), config_of()
    folder.start(config, overwrite=False)
    folder.finish(Mine().eval(), {"seed": 0}, config)
    folder.unlock()
    return folder, folder.graph.read_text()


@pytest.fixture
def run(kept):
    kept[0].graph.write_text(kept[1])
    return kept[0]


def test_a_run_runs_no_code(run, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("raise SystemExit('ran')")
    monkeypatch.chdir(tmp_path)
    model, config = load_run(run.path)
    assert config.model == "mine.py:build" and model(torch.rand(2, 1, 8, 8)).shape == (2, 4)


BROKEN = {
    "an unknown kind": (("modules", "head", "kind"), "Sequential"),
    "a path to code": (("modules", "head", "kind"), "os:system"),
    "a kind without its settings": (("modules", "head", "kind"), "Conv2d"),
    "in place": (("modules", "block.branch.2"), {"kind": "ReLU", "settings": {"inplace": True}}),
    "a device": (("modules", "block.branch.2"), {"kind": "Linear", "settings": {"device": "cuda"}}),
    "settings that are objects": (("modules", "head", "settings", "in_features"), {"a": 1}),
    "deep settings": (("modules", "head", "settings", "in_features"), json.loads("[" * 900 + "]" * 900)),
    "another size": (("modules", "head", "settings", "out_features"), 5),
    "a huge size": (("modules", "head", "settings", "in_features"), 10**30),
    "an unknown field": (("modules", "head", "code"), "1"),
    "an input that comes later": (("nodes", 0, 2), ["head"]),
    "a node without a module": (("nodes", 0, 1), "nowhere"),
    "the network's own methods": (("modules", "forward"), {"kind": "ReLU", "settings": {}}),
    "an empty path": (("modules", ""), {"kind": "ReLU", "settings": {}}),
    "no nodes": (("nodes",), []),
    "another output": (("nodes",), [["first.0", "first.0", ["input"]]]),
    "no list": (("nodes",), "all"),
}


def test_bad_files_are_refused(run):
    whole = run.graph.read_text()
    contents = ["", "{}", "[" * 10**5, whole[: len(whole) // 2], "[]", None]
    for (*path, last), value in BROKEN.values():
        graph = inner = json.loads(whole)
        for key in path:
            inner = inner[key]
        inner[last] = value
        contents.append(json.dumps(graph))
    for content in contents:
        run.graph.unlink() if content is None else run.graph.write_text(content)
        refused(r"graph\.json", load_run, run.path)


def test_whatever_a_graph_says_it_is_read_or_refused_in_one_line(run):
    """Settings are replaced at random; what is still a network for these weights and classes must run."""
    draw, read, refused, whole = random.Random(0), 0, [], run.graph.read_text()
    values = [0, -1, 1, 2, 3, 10**12, 0.5, -0.5, 1e308, True, None, "zeros", "same"]
    values += [[1, 2], [], [2, 2, 2, 2], [0], [[1]]]
    names = ["factor", "dim", "start", "stop", "order", "size", "kernel_size", "stride", "padding", "bias"]
    for _ in range(100):
        graph = json.loads(whole)
        module = draw.choice(list(graph["modules"].values()))
        if draw.random() < 0.3:
            module["kind"] = draw.choice(["Slice", "Permute", "Upsample", "MaxPool2d", "GroupSort", "Scale", "Add"])
        module["settings"][draw.choice([*module["settings"], *names])] = draw.choice(values)
        run.graph.write_text(json.dumps(graph))
        try:
            model, _ = load_run(run.path)
            assert model(torch.rand(2, 1, 8, 8)).shape == (2, 4)
            read += 1
        except IsoconvError as error:
            refused.append(str(error))
    assert read > 0 and len(refused) > 40 and not any("\n" in line for line in refused)
