"""For all tests: one thread each. The tensors are tiny, and threads that wait for each other only cost time."""

import torch

torch.set_num_threads(1)
