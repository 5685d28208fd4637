"""For all tests: one thread each, the same random numbers, and a Ctrl-C that arrives.

The tensors are tiny, and threads that wait for each other only cost time. What a shell runs in the background is deaf to
Ctrl-C, and so would be the tests of it.
"""

import signal

import pytest
import torch

torch.set_num_threads(1)
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Begin every test with the same state of torch's generator."""
    torch.manual_seed(0)
