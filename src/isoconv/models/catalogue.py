"""The networks by name: one record each. Does not import torch."""

from dataclasses import dataclass
from typing import Any

from isoconv.nn.methods import load


@dataclass(frozen=True)
class Model:
    """One network: what users write, what tables print, "module:class", a line for help texts."""

    name: str
    title: str
    network: str
    summary: str
    is_critic: bool = False

    def make(self, *arguments: Any, **options: Any) -> Any:
        """Return the network; arguments as for its class."""
        return load(self.network)(*arguments, **options)


MODELS: dict[str, Model] = {
    model.name: model
    for model in (
        Model("small", "Small", "isoconv.models.networks:Small", "two convolutions, two linear layers"),
        Model("large", "Large", "isoconv.models.networks:Large", "four convolutions, three linear layers"),
        Model("fc3", "FC-3", "isoconv.models.networks:FC3", "four linear layers"),
        Model("dcgan", "DCGAN critic", "isoconv.models.networks:DCGANCritic", "four convolutions to one number", True),
    )
}
