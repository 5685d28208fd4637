"""What it costs to compare the parameters at every pass: Large, batch 128, two threads of a CPU, evaluation.

    python benchmarks/comparison_cost.py
"""

import statistics
import time

import torch

from isoconv.models import Large
from isoconv.nn.built_weight import BuiltWeight

torch.set_num_threads(2)
model, images = Large((3, 32, 32)).eval(), torch.rand(128, 3, 32, 32)
layers = [module for module in model.modules() if isinstance(module, BuiltWeight)]


def seconds(run: object, times: int) -> float:
    """Return the median time of a call."""
    assert callable(run)
    spent = []
    for _ in range(times):
        start = time.perf_counter()
        run()
        spent.append(time.perf_counter() - start)
    return statistics.median(spent)


with torch.no_grad():
    model(images)
    forward = seconds(lambda: model(images), 15)
    compare = seconds(lambda: [one._kept is not None and one._kept.is_of(one, one._sources()) for one in layers], 100)
print(f"forward pass {forward * 1e3:.1f} ms, of which comparison {compare * 1e3:.2f} ms: {compare / forward:.2%}")
