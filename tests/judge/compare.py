"""Compare the certifier and the checker on the path with the answers that commit 28fb2f4 gave.

    PYTHONPATH=src python tests/judge/compare.py [--networks N] [--certificates N]

N is how many are taken, evenly spread (all by default). A bound that is smaller, a radius that is larger and a verdict
that has become "valid" may be unsound: they are listed first, and the exit code is then 1. Changes that have a written
reason stand in accepted*.json, reason → patterns of the lines printed here, and are only counted. The answers follow from
seeds; what drew the networks and stored them, `make_corpus.py`, is in the history up to commit bb5394e.
"""

import argparse
import hashlib
import json
import lzma
import math
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from fnmatch import fnmatch
from io import StringIO
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import isoconv
from isoconv import IsoconvError
from isoconv.certify import Certifier, lipschitz_bound
from isoconv.check.__main__ import main as check
from judge.certificates import mutate, weights_of
from judge.networks import Spec, build, inputs, weights_hash

HERE = Path(__file__).resolve().parent
NETWORKS, CERTIFICATES = (HERE / name for name in ("networks.json.xz", "certificates.json.xz"))
SECONDS = 5.0  # of processor time for one certificate


def verdict(certificate: Path, weights: Path) -> str:
    """Return the checker's exit code: "0" valid, "1" invalid, "2" unreadable; "T" for a traceback, "H" if it takes long."""
    begun = time.process_time()
    try:
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            code = str(check([str(certificate), str(weights)]))
    except Exception:
        return "T"
    return code if time.process_time() - begun < SECONDS else "H"


# Networks -----------------------------------------------------------------------------------------------------------


def options_of(spec: Spec) -> dict[str, dict[str, Any]]:
    """Return the options under which the network is certified, by name: float64 always, the others in turn."""
    turn = spec["seed"] % 15
    options: dict[str, dict[str, Any]] = {"float64": {}}
    if turn % 3 == 0 or "shipped" in spec:
        options["float32"] = {"arithmetic": "float32"}
    if turn % 5 == 1:
        options |= {"p = 1": {"p": 1}, "p = ∞": {"p": math.inf}}
    if turn % 5 == 2:
        options["per class"] = {"criterion": "per-class"}
    return options


def answer(spec: Spec) -> dict[str, Any]:
    """Return all that the code on the path says about a network, floats in hexadecimal."""
    model = isoconv.load_pretrained(spec["shipped"]) if "shipped" in spec else build(spec)
    shape = spec["shape"]
    result: dict[str, Any] = {"weights": weights_hash(isoconv.plain(model))}
    try:
        bound = lipschitz_bound(model, tuple(shape))
    except IsoconvError:
        return result | {"refused": "lipschitz"}
    result |= {"layers": [layer.bound.hex() for layer in bound.layers], "lipschitz": bound.value.hex()}
    with torch.no_grad():
        outputs = model(torch.zeros(2, *shape, dtype=next((p.dtype for p in model.parameters()), None))).shape[1:]
    if len(outputs) != 1 or outputs[0] < 2:
        return result | {"refused": "outputs"}
    for name, options in options_of(spec).items():
        try:
            certifier = Certifier(model, tuple(shape), **options)
            radii = certifier(inputs(spec, 3)).radius.tolist()
        except IsoconvError:
            result[name] = "rounding"
            continue
        error, pairs = certifier.error, certifier.pair_constants
        result[name] = {
            "bounds": [n.hex() for n in (certifier.lipschitz.value, error.offset, error.slope, float(pairs.max()))],
            "pairs": hashlib.sha256(pairs.numpy().tobytes()).hexdigest()[:8],
            "radii": [radius.hex() for radius in radii],
        }
    return result


def network_changes(old: dict[str, Any], new: dict[str, Any]) -> dict[str, str]:
    """Return how two answers compare: what → "equal", "rounding", "smaller", "larger", "newly accepted", …"""
    changes = {"network": _change(old.get("lipschitz"), new.get("lipschitz"))}
    if len(old.get("layers", ())) == len(new.get("layers", ())):
        bounds = zip(old.get("layers", ()), new.get("layers", ()), strict=True)
        changes |= {f"layer {i}": _change(a, b) for i, (a, b) in enumerate(bounds)}
    elif "layers" in old and "layers" in new:
        changes["layers"] = f"{len(old['layers'])} instead of {len(new['layers'])}"
    for name in sorted((old.keys() | new.keys()) & {"float64", "float32", "p = 1", "p = ∞", "per class"}):
        a, b = (x[name] if isinstance(x.get(name), dict) else None for x in (old, new))
        if a is None or b is None:
            changes[name] = _change(a and "", b and "")
            continue
        for title, c, d in zip(("lipschitz", "offset", "slope", "largest pair"), a["bounds"], b["bounds"], strict=True):
            changes[f"{title}, {name}"] = _change(c, d)
        if a["pairs"] != b["pairs"]:
            close = changes[f"largest pair, {name}"] in ("equal", "rounding")
            changes[f"pairs, {name}"] = "rounding" if close else "other"
        # how far radii may differ between two machines
        slack = max(map(float.fromhex, a["radii"])) * (1e-3 if name == "float32" else 1e-10)
        for i, (c, d) in enumerate(zip(a["radii"], b["radii"], strict=True)):
            changes[f"radius {i}, {name}"] = _change(c, d, slack)
    if old["weights"] != new["weights"]:  # a layer of ours, built otherwise: it can only be compared roughly
        rough = ("smaller", "larger", "rounding", "other")
        changes = {what: "other weights" if change in rough else change for what, change in changes.items()}
    return changes


def _change(old: str | None, new: str | None, slack: float = 0.0) -> str:
    if old == new:
        return "equal"
    if old is None or new is None:
        return "newly accepted" if old is None else "newly refused"
    a, b = float.fromhex(old), float.fromhex(new)
    return "rounding" if abs(a - b) <= max(slack, 1e-12 * abs(a)) else "smaller" if b < a else "larger"


def compare_networks(networks: list[dict[str, Any]], numbers: Iterable[int]) -> "Findings":
    """Compare what is said of these networks of the corpus."""
    findings = Findings()
    for number in numbers:
        for what, change in network_changes(networks[number]["old"], answer(networks[number]["spec"])).items():
            unsound = change == ("larger" if what.startswith("radius") else "smaller")
            findings.add(f"network {number}, {what}", change, unsound)
    return findings


# Certificates -------------------------------------------------------------------------------------------------------


def each_certificate(corpus: dict[str, Any], numbers: Iterable[int]) -> Iterator[tuple[int, str, Path, Path]]:
    """Yield (number, names of the mutations, certificate file, weights file); the files are overwritten by the next."""
    with tempfile.TemporaryDirectory() as folder:
        certificate, weights = Path(folder) / "certificate.json", Path(folder) / "model.safetensors"
        place, honest = -1, b""
        for number in numbers:
            base = corpus["bases"][number // corpus["per_base"]]
            if place != number // corpus["per_base"]:
                place, honest = number // corpus["per_base"], weights_of(base["spec"])
            seed = number if number % corpus["per_base"] else None
            names, *contents = mutate(base["certificate"], honest, seed)
            certificate.write_bytes(contents[0])
            weights.write_bytes(contents[1])
            yield number, " + ".join(names) or "honest", certificate, weights


def compare_certificates(corpus: dict[str, Any], numbers: Iterable[int]) -> "Findings":
    """Compare the verdicts on these certificates of the corpus."""
    findings = Findings()
    for number, names, *files in each_certificate(corpus, numbers):
        old, new = corpus["verdicts"][number], verdict(*files)
        findings.add(f"certificate {number} ({names})", "equal" if old == new else f"{old} to {new}", new == "0" != old)
    return findings


# What was found -----------------------------------------------------------------------------------------------------


class Findings:
    """Counts of all changes; those without a written reason in `unsound`, which may be that, and `other`."""

    def __init__(self) -> None:
        files = [json.loads(path.read_text()) for path in sorted(HERE.glob("accepted*.json"))]
        self._accepted = [pattern for reasons in files for patterns in reasons.values() for pattern in patterns]
        self.counts: Counter[str] = Counter()
        self.unsound: list[str] = []
        self.other: list[str] = []

    def add(self, what: str, change: str, unsound: bool) -> None:
        self.counts[change] += 1
        line = f"{what}: {change}"
        if change not in ("equal", "rounding") and not any(fnmatch(line, pattern) for pattern in self._accepted):
            (self.unsound if unsound else self.other).append(line)

    def __str__(self) -> str:
        lines = [*(f"MAY BE UNSOUND: {line}" for line in self.unsound), *self.other]
        return "\n  ".join([", ".join(f"{n} {change}" for change, n in self.counts.most_common()), *lines])


def load(path: Path) -> Any:
    return json.loads(lzma.decompress(path.read_bytes()))


def spread(total: int, count: int | None) -> range:
    """Return about `count` numbers below `total`, evenly spread; all for None."""
    return range(0, total, max(1, total // count)) if count else range(total if count is None else 0)


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare this code's bounds, radii and verdicts with the old code's.")
    parser.add_argument("--networks", type=int, help="how many; all by default")
    parser.add_argument("--certificates", type=int, help="how many; all by default")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # torch's, on uneven "same" padding
    networks, certificates = load(NETWORKS)["networks"], load(CERTIFICATES)
    of_networks = compare_networks(networks, spread(len(networks), options.networks))
    print(f"networks: {of_networks}", flush=True)
    of_certificates = compare_certificates(certificates, spread(len(certificates["verdicts"]), options.certificates))
    print(f"certificates: {of_certificates}", flush=True)
    return int(bool(of_networks.unsound or of_certificates.unsound))


if __name__ == "__main__":
    sys.exit(main())
