"""Step times of old or new code: python step.py NAME; prints JSON."""

import json
import sys
import time
from statistics import median

import torch

from isoconv.train.config import TrainConfig, recipe_settings
from isoconv.train.distributed import choose_device

torch.manual_seed(0)
dev = torch.device("cuda")
CASES = {
    "ordinary": {"conv": "standard", "optimiser": "adam", "lr": 1e-3},
    "bcop adam": {"conv": "bcop", "optimiser": "adam", "lr": 1e-3},
    "bcop steepest": {"conv": "bcop", "optimiser": "steepest", "lr": 1e-2},
    "rko steepest": {"conv": "rko", "optimiser": "steepest", "lr": 1e-2},
    "ossn": {"conv": "ossn", "optimiser": "adam", "lr": 1e-3},
}
choose_device("cuda")

images = torch.randint(0, 256, (128, 3, 32, 32), dtype=torch.uint8, device=dev)
labels = torch.randint(0, 10, (128,), device=dev)


def config(s, seed=0):
    v = recipe_settings("default", "cifar10", "bcop") | {"batch_size": 128} | s
    return TrainConfig(
        data="cifar10", input_shape=(3, 32, 32), classes=tuple("0123456789"), model="large", seed=seed, **v
    )


if sys.argv[1] == "old":
    from isoconv.train.replica import Replica
    from isoconv.train.task import Classification, make_model
    from isoconv.train.together import Together

    def single(s):
        r = Replica(config(s), make_model(config(s)), Classification(config(s)), 10**6, dev)
        return lambda: r.step(images, labels)

    def five(s):
        rs = [
            Replica(config(s, k), make_model(config(s, k)), Classification(config(s, k)), 10**6, dev, None, 5)
            for k in range(5)
        ]
        t = Together(rs)
        return lambda: t.step([(images, labels)] * 5)
else:
    from isoconv.train.capture import Stepper
    from isoconv.train.classifier import Classification
    from isoconv.train.config import make_model
    from isoconv.train.engine import Learner

    def several(s, n):
        ls = [
            Learner.from_config(config(s, k), make_model(config(s, k)), Classification(config(s, k)), 10**6, device=dev)
            for k in range(n)
        ]
        st = Stepper(ls)

        def go():
            st.step([(images, labels)] * n)
            st.project_where_due()

        return go

    def single(s):
        return several(s, 1)

    def five(s):
        return several(s, 5)


out = {}
runs = {k: single(v) for k, v in CASES.items()} | {"five bcop steepest": five(CASES["bcop steepest"])}
for f in runs.values():
    for _ in range(30):
        f()
torch.cuda.synchronize()
times = {k: [] for k in runs}
for _ in range(7):
    for k, f in runs.items():
        torch.cuda.synchronize()
        t = time.perf_counter()
        for _ in range(100):
            f()
        torch.cuda.synchronize()
        times[k].append((time.perf_counter() - t) * 10)
print(sys.argv[1], json.dumps({k: round(median(v), 3) for k, v in times.items()}), flush=True)
