"""The networks by name: one record each. Does not import torch."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from isoconv.nn.methods import load


@dataclass(frozen=True)
class Model:
    """One network: what users write, what tables print, "module:class", a line for help texts.

    has_methods : whether its convolutions and activations can be chosen; then the class takes `conv` and `activation`
    options : arguments that the class always gets
    recipe : settings of the default recipe that are this network's own
    """

    name: str
    title: str
    network: str
    summary: str
    is_critic: bool = False
    has_methods: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)
    recipe: Mapping[str, Any] = field(default_factory=dict)

    def make(self, *arguments: Any, **options: Any) -> Any:
        """Return the network; arguments as for its class, of which it gets `conv` and `activation` if they concern it."""
        if not self.has_methods:
            options = {name: value for name, value in options.items() if name not in ("conv", "activation")}
        return load(self.network)(*arguments, **self.options, **options)


def _shift(name: str, title: str, channels: int, blocks: tuple[int, ...]) -> Model:
    summary = f"rotations and shifts, {channels:,} channels, {' + '.join(map(str, blocks))} blocks"
    options = {"channels": channels, "blocks": blocks}
    # Tried on held-out training images for shift-m (results/shift), and taken over for the others.
    recipe = {"lr": 0.003, "batch_size": 256, "temperature": 0.125, "offset": math.sqrt(0.5)}
    return Model(
        name, title, "isoconv.models.shift:ShiftNet", summary, has_methods=False, options=options, recipe=recipe
    )


MODELS: dict[str, Model] = {
    model.name: model
    for model in (
        Model("small", "Small", "isoconv.models.networks:Small", "two convolutions, two linear layers"),
        Model("large", "Large", "isoconv.models.networks:Large", "four convolutions, three linear layers"),
        Model("fc3", "FC-3", "isoconv.models.networks:FC3", "four linear layers"),
        Model("dcgan", "DCGAN critic", "isoconv.models.networks:DCGANCritic", "four convolutions to one number", True),
        _shift("shift-s", "Shift-S", 256, (2, 4)),
        _shift("shift-m", "Shift-M", 1024, (3, 8)),
        _shift("shift-l", "Shift-L", 1536, (3, 12)),
    )
}
