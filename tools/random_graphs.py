"""Measure random networks that are no chains, of all kinds: their bounds, their radii, their certificate files.

    PYTHONPATH=src:tests python tools/random_graphs.py WHAT COUNT SEED [FILE.json]

WHAT is one of
bounds : slopes and rounding; certificates of the graphs are written to files, which the checker must accept
radii : certified radii are attacked
files : certificate files are changed, and the checker must have an answer
"""

import copy
import json
import platform
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import nn

import isoconv.nn as inn
from certify.certificates import write_all
from certify.random_graphs import SHAPE, RandomGraph, attack_graph, check_graph
from check.certificate_maker import check, largest_radius
from isoconv.certify import Certifier

ODD = (None, True, 0, -1, 2, 1.5, "", "0x1.0p+0", "0x1.8p-3", "nan", "inf", "-0x1.0p+0", [], {}, 2**31, 10**400, "é\n")


def places(value: Any) -> list[tuple[Any, Any]]:
    """Return (container, key) of everything inside of a JSON value."""
    keys = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, inner in keys for place in ((value, key), *places(inner))]


def mutate(table: dict[str, Any], draw: random.Random) -> None:
    """Change, remove or replace something in a JSON value."""
    container, key = draw.choice(places(table))
    value, what = container[key], draw.randrange(6)
    if isinstance(value, str) and value.lstrip("-").startswith("0x") and what < 4:
        factor = draw.choice((0.5, 2.0, -1.0, *(1 + s * 10.0**-n for s in (1, -1) for n in range(1, 14))))
        container[key] = (float.fromhex(value) * factor).hex()
    elif isinstance(value, int) and what < 3:
        container[key] = value + draw.choice((1, -1, 3, 1000, 10**6))
    elif what == 3:
        del container[key]
    elif what == 4:
        other, name = draw.choice(places(table))
        container[key] = json.loads(json.dumps(other[name]))
    else:
        container[key] = draw.choice(ODD)


def find_lie(
    header: dict[str, Any], images: list[dict[str, Any]], honest: dict[str, Any], network: nn.Module
) -> str | None:
    """Return what a certificate that was found valid claims wrongly; `honest` is its header as it was.

    The checker may prove less than the certifier claims. So the claims are compared with the slopes of the nodes as the file
    connects them, if its modules are still the same, and each radius with what the file's own numbers allow.
    """
    same = "name", "kind", "module", "settings"
    pairs = [list(map(float.fromhex, row)) for row in header["pair_constants"]]
    here, there = ([{key: node[key] for key in same} for node in table["nodes"]] for table in (header, honest))
    if here == there and header["input_shape"] == honest["input_shape"]:
        modules = {node["module"]: copy.deepcopy(network.get_submodule(node["module"])) for node in header["nodes"]}
        graph = inn.Graph(
            modules, [(node["name"], node["module"], node["inputs"]) for node in header["nodes"]]
        ).double()
        for point in torch.randn(3, *header["input_shape"], generator=torch.Generator().manual_seed(0)).double():
            jacobian = torch.func.jacrev(lambda x: graph(x[None].clone())[0])(point).flatten(1) * (1 - 1e-7)
            if torch.linalg.matrix_norm(jacobian, 2) > float.fromhex(header["lipschitz"]) + 1e-9:
                return "lipschitz"
            if (torch.cdist(jacobian, jacobian) > torch.tensor(pairs, dtype=torch.float64) + 1e-9).any():
                return "pair_constants"
    terms = [float.fromhex(header[name]) for name in ("error_offset", "error_slope")]
    for image in images:
        logits, radius = list(map(float.fromhex, image["logits"])), float.fromhex(image["radius"])
        most = largest_radius(logits, float.fromhex(image["input_norm"]), pairs, *terms) if max(terms) < np.inf else 0.0
        if logits[image["prediction"]] != max(logits) or radius > most:
            return f"image {image['index']}"
    return None


def mutate_files(seed: int, folder: Path, count: int = 10) -> Counter[str]:
    """Assert that the checker answers files that were changed, and proves nothing false of them. Return its verdicts."""
    draw, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    certifier = Certifier(RandomGraph(seed, steps=2 + seed % 6).eval().requires_grad_(False), SHAPE)
    arguments = write_all(certifier, torch.rand(2, *SHAPE, generator=generator).double(), folder)
    file, verdicts = Path(arguments[0]), Counter[str]()
    honest = file.read_text()
    for _ in range(count):
        lines = [json.loads(line) for line in honest.splitlines()]
        nodes, rewired = lines[0]["nodes"], draw.random() < 0.5
        if rewired:  # a node takes other values, and the graph is another, or none
            node, names = draw.choice(nodes), ["input", *(other["name"] for other in nodes)]
            node["inputs"][draw.randrange(len(node["inputs"]))] = draw.choice(names)
        for _ in range(0 if rewired else draw.choice((1, 1, 1, 2, 3))):
            mutate(lines, draw)
        text = "\n".join(map(json.dumps, lines)) + "\n"
        if draw.random() < 0.05:
            place = draw.randrange(len(text))
            text, rewired = text[:place] + chr(draw.randrange(1, 300)) + text[place + draw.randrange(3) :], False
        file.write_text(text)
        begun = time.process_time()
        code, *outputs = check(*(arguments if draw.random() < 0.5 else arguments[:2]))  # with the images, or without
        output = "".join(outputs)
        answered = code in (0, 1, 2) and output.count("\n") == 1 and "cannot be checked" not in output
        assert answered and time.process_time() - begun < 10, (seed, output)
        verdicts[f"rewired, verdict {code}" if rewired else f"changed, verdict {code}"] += 1
        if code == 0:
            header, *images = map(json.loads, text.splitlines())
            lie = find_lie(header, images, json.loads(honest.splitlines()[0]), certifier.network)
            assert lie is None, (seed, lie)
    return verdicts


def measure(what: str, count: int, start: int, path: Path | None) -> None:
    kinds, ratios, totals = Counter[str](), list[float](), Counter[str]()
    broken, begun = list[str](), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        for number, seed in enumerate(range(start, start + count), start=1):
            try:
                if what == "bounds":
                    ratios.append(check_graph(seed, kinds, Path(folder)))
                else:
                    totals += attack_graph(seed) if what == "radii" else mutate_files(seed, Path(folder))
            except Exception as error:  # written down, and the others follow
                broken.append(f"{seed}: {type(error).__name__}: {error}"[:500])
            if number % 100 == 0 or number == count:
                versions = {"python": platform.python_version(), "numpy": np.__version__, "torch": torch.__version__}
                result = {"what": what, "count": number, "first seed": start, "violations": broken, **totals}
                if ratios:
                    result["bound over the largest slope seen"] = {"least": min(ratios), "median": median(ratios)}
                    result["networks with"] = dict(sorted(kinds.items()))
                result |= {"processor seconds": round(time.process_time() - begun), "versions": versions}
                text = json.dumps(result, indent=1) + "\n"
                print(text) if path is None else path.write_text(text)


if __name__ == "__main__":
    measure(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]) if len(sys.argv) > 4 else None)
