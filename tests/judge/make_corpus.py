"""Store what commit 28fb2f4 says about random networks and certificates, honest and mutated, in this folder.

    python tests/judge/make_corpus.py CHECKOUT

Everything follows from seeds. Only commit 28fb2f4 is taken for CHECKOUT: it is the judge of all that comes after it.
"""

import json
import lzma
import math
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(sys.argv[-1]) / "src"))

import torch

from isoconv import IsoconvError
from isoconv.certify import Certifier, write_certificate
from isoconv.pretrained import pretrained_names
from judge import compare
from judge.certificates import weights_of
from judge.networks import Spec, build, inputs, random_spec

COMMIT = "28fb2f4"
NETWORKS, BASES, PER_BASE = 2000, 400, 50
_REFUSED = 20  # bases that are honest, and yet unreadable to the old checker
_LARGE = 400
_LABELS = [0, 1, 0]
_METHODS = ("BCOP", "RKO", "OSSN", "SVCM", "RKL2NE", "Standard")


def main() -> None:
    old = sys.argv[-1]
    head = subprocess.run(["git", "-C", old, "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
    if not head.startswith(COMMIT):
        raise SystemExit(f"Expected a checkout of {COMMIT}. Got {head or old}.")
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # torch's, on uneven "same" padding
    about, networks = {"commit": head, "torch": torch.__version__}, make_networks()
    store(compare.NETWORKS, {**about, "networks": networks})
    bases = make_bases([case["spec"] for case in networks if isinstance(case["old"].get("float64"), dict)])
    certificates: dict[str, Any] = {**about, "per_base": PER_BASE, "bases": bases}
    numbers = range(len(bases) * PER_BASE)
    verdicts = [compare.verdict(*files) for _, _, *files in compare.each_certificate(certificates, numbers)]
    print(Counter(verdicts), "honest:", Counter(verdicts[::PER_BASE]))
    store(compare.CERTIFICATES, certificates | {"verdicts": "".join(verdicts)})


def make_networks() -> list[dict[str, Any]]:
    specs = [random_spec(seed) for seed in range(NETWORKS)]
    for seed, name in enumerate(pretrained_names(), start=NETWORKS):
        specs.append({"shipped": name, "seed": seed, "shape": [1, 28, 28] if "mnist" in name else [3, 32, 32]})
    return [{"spec": spec, "old": compare.answer(spec)} for spec in specs]


def make_bases(specs: list[Spec]) -> list[dict[str, Any]]:
    """Return certificates that the old code writes, of networks that hold no layer of ours."""
    bases: list[dict[str, Any]] = []
    refused = 0
    with tempfile.TemporaryDirectory() as folder:
        file, weights = Path(folder) / "certificate.json", Path(folder) / "model.safetensors"
        for spec in specs:
            text = json.dumps(spec)
            if "shipped" in spec or "OrthogonalLinear" in text or any(f"{m}Conv" in text for m in _METHODS):
                continue
            arithmetic = "float32" if len(bases) % 10 == 3 else "float64"
            try:
                certifier = Certifier(build(spec), spec["shape"], arithmetic=arithmetic)
                write_certificate(file, certifier, certifier(inputs(spec, len(_LABELS))), torch.tensor(_LABELS))
            except IsoconvError:  # no file for this kind of module
                continue
            weights.write_bytes(weights_of(spec))
            found = compare.verdict(file, weights)
            refused += found == "2"
            large = math.prod(spec["shape"]) > _LARGE and found == "0"  # slow to check
            if not large and not (found == "2" and refused > _REFUSED):
                bases.append({"spec": spec, "certificate": json.loads(file.read_text())})
    return bases[:BASES]


def store(path: Path, content: dict[str, Any]) -> None:
    path.write_bytes(lzma.compress(json.dumps(content, separators=(",", ":")).encode(), preset=9 | lzma.PRESET_EXTREME))
    print(f"{path.name}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
