"""Measures certificates and attacks on a trained run: accuracy, certificates broken (none), and the time it takes.

Also what soundness costs: the usual test, margin > √2·ε with nothing proved about L or rounding, on the same logits.

    python benchmarks/certificates.py RUN --data DIR [--attacks pgd,fgsm,apgd,rounding,boundary,pointwise] [--json FILE]
"""

import argparse
import json
import math
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch

from isoconv import attacks
from isoconv.certify import Certifier, robust_accuracy
from isoconv.data import as_float
from isoconv.train.classifier import device_name
from isoconv.train.config import default_epsilons
from isoconv.train.distributed import choose_device
from isoconv.train.runs import open_run

FEW = {"boundary": 100, "pointwise": 100}
PAPERS = {"pgd": {"steps": 200, "step_size": 0.01}, "apgd": {"steps": 100}}


def wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--attacks", default="pgd,fgsm,apgd,rounding")
    parser.add_argument("--images", type=int, default=None)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    place = torch.device(choose_device(arguments.device))
    run = open_run(arguments.run)
    data = run.test_images(arguments.data, count=arguments.images)
    epsilon = default_epsilons(run.config.data)[0]
    record: dict[str, Any] = {"hardware": device_name(place), "torch": torch.__version__, "images": len(data)}
    record |= {"data": run.config.data, "model": run.config.model, "conv": run.config.conv, "epsilon": epsilon}
    model = run.model.to(place)
    bounds, whole = [], []
    for _ in range(arguments.repeats):
        start = time.perf_counter()
        certifier = Certifier(model, data.shape)
        wait()
        bounds.append(time.perf_counter() - start)
        found = robust_accuracy(certifier, data, default_epsilons(run.config.data))
        whole.append(time.perf_counter() - start)
    record |= {"seconds_bounds": median(bounds), "seconds_certify": median(whole)}
    logits, labels = found.certificates.logits, found.labels
    margin = logits.gather(1, labels[:, None])[:, 0] - logits.scatter(1, labels[:, None], -math.inf).amax(dim=1)
    record |= {"clean": found.clean, "certified": {str(e): v for e, v in found.certified.items()}}
    record["usual_unsound_test"] = 100 * float((margin > math.sqrt(2) * epsilon).double().mean())
    record |= {"lipschitz_bound": found.lipschitz_bound}
    print(json.dumps(record, indent=1), flush=True)
    record["attacks"] = []
    if arguments.json:
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")
    pixels = as_float(data.images, torch.float64)
    for name in filter(None, arguments.attacks.split(",")):
        count = min(FEW.get(name, len(data)), len(data))
        radii = found.certificates.radius[:count]
        start = time.perf_counter()
        if name == "rounding":
            predictions = found.certificates.prediction[:count]
            result = attacks.rounding_search(model, pixels[:count], predictions, radii)
            figures: dict[str, Any] = {"violations": int((result.success.cpu() & (radii > 0)).sum())}
        else:
            attack = getattr(attacks, name)
            result = attack(model, pixels[:count], labels[:count], epsilon, **PAPERS.get(name, {}))
            figures = attacks.against_certificates(result, found, epsilon)
        row = {"attack": name, "images": count, "seconds": time.perf_counter() - start, **figures}
        row["largest_norm"] = float(result.norms.max())
        print(row, flush=True)
        record["attacks"].append(row)
        if arguments.json:
            arguments.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
