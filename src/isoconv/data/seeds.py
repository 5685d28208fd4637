"""Every random choice of an epoch depends on (seed, epoch) alone, and on nothing that happened before."""

import numpy as np
import torch

from isoconv.errors import IsoconvError


def epoch_generator(seed: int, epoch: int, purpose: str, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a generator for one purpose in one epoch, so that a resumed run draws what it would have drawn.

    Generators of different purposes, epochs or seeds are independent. On the CPU they draw the same on every machine; a
    CUDA generator draws other numbers than one on the CPU.
    """
    if seed < 0 or epoch < 0:
        raise IsoconvError(f"Expected a seed and an epoch that are not negative. Got {seed} and {epoch}.")
    # SeedSequence mixes its numbers well; sums or products of seed and epoch would let (0, 1) and (1, 0) meet.
    mixed = np.random.SeedSequence([seed, epoch, *purpose.encode()]).generate_state(1, np.uint64)[0]
    return torch.Generator(device).manual_seed(int(mixed))
