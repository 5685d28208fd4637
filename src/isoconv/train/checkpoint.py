"""Pack the state of a model and its optimiser into named tensors, and unpack it again; no pickle."""

import torch
from torch import Tensor, nn

from isoconv.errors import IsoconvError


def pack_state(model: nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Raw parameters, buffers and the optimiser's state, by name."""
    tensors = {f"model/{name}": value for name, value in model.state_dict().items()}
    for index, state in optimiser.state_dict()["state"].items():
        for key, value in state.items():
            tensors[f"optimiser/{index}/{key}"] = value if isinstance(value, Tensor) else torch.tensor(value)
    return tensors


def unpack_state(tensors: dict[str, Tensor], model: nn.Module, optimiser: torch.optim.Optimizer) -> None:
    """The inverse of `pack_state`, into a model and an optimiser of the same kind."""
    weights = {name.removeprefix("model/"): value for name, value in tensors.items() if name.startswith("model/")}
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        if name.startswith("optimiser/"):
            _, index, key = name.split("/", 2)
            state.setdefault(int(index), {})[key] = value
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise IsoconvError(
            f"Expected a saved state of this network. Got another: {str(error).splitlines()[-1]}"
        ) from None
    groups = optimiser.state_dict()["param_groups"]
    rates = [group["lr"] for group in optimiser.param_groups]
    optimiser.load_state_dict({"state": state, "param_groups": groups})
    for group, rate in zip(optimiser.param_groups, rates, strict=True):
        group["lr"] = rate  # the very tensor that the schedule writes to: loading has put a copy in its place
