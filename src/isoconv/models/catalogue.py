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
    patch : the usual side, in pixels, of the patches that the network sees as one position, its argument `patch`; 0 for
        networks without
    positions : how many positions a side of an image should have at most
    multiple : a side of an image must have a multiple of so many positions
    """

    name: str
    title: str
    network: str
    summary: str
    is_critic: bool = False
    has_methods: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)
    recipe: Mapping[str, Any] = field(default_factory=dict)
    patch: int = 0
    positions: int = 0
    multiple: int = 1

    def make(self, *arguments: Any, **options: Any) -> Any:
        """Return the network; arguments as for its class, of which it gets those that concern it."""
        foreign = {*(() if self.has_methods else ("conv", "activation")), *(() if self.patch else ("patch",))}
        options = {name: value for name, value in options.items() if name not in foreign}
        return load(self.network)(*arguments, **self.options, **options)

    def choose_patch(self, height: int, width: int) -> int:
        """Return the side of patches for images of a size, so that the network costs about as much for large ones.

        The usual one is doubled until there are no more than `positions`, or the image's sides forbid it.
        """
        patch = self.patch
        while max(height, width) > self.positions * patch > 0 and self._fits(2 * patch, height, width):
            patch *= 2
        return patch

    def _fits(self, patch: int, *sides: int) -> bool:
        return self.multiple == 1 or all(side % (patch * self.multiple) == 0 for side in sides)


def _shift(name: str, title: str, channels: int, blocks: tuple[int, ...]) -> Model:
    summary = f"rotations and shifts, {channels:,} channels, {' + '.join(map(str, blocks))} blocks"
    options = {"channels": channels, "blocks": blocks}
    # Tried on held-out training images for shift-m (results/shift), and taken over for the others.
    recipe = {"lr": 0.003, "batch_size": 256, "temperature": 0.125, "offset": math.sqrt(0.5)}
    kind: Any = {"has_methods": False, "patch": 4, "positions": 14}  # any side will do: images are padded
    return Model(name, title, "isoconv.models.networks:ShiftNet", summary, options=options, recipe=recipe, **kind)


_PATCHES: Any = {"patch": 1, "positions": 56, "multiple": 4}


MODELS: dict[str, Model] = {
    model.name: model
    for model in (
        Model("small", "Small", "isoconv.models.networks:Small", "two convolutions, two linear layers", **_PATCHES),
        Model("large", "Large", "isoconv.models.networks:Large", "four convolutions, three linear layers", **_PATCHES),
        Model("fc3", "FC-3", "isoconv.models.networks:FC3", "four linear layers"),
        Model("dcgan", "DCGAN critic", "isoconv.models.networks:DCGANCritic", "four convolutions to one number", True),
        _shift("shift-s", "Shift-S", 256, (2, 4)),
        _shift("shift-m", "Shift-M", 1024, (3, 8)),
        _shift("shift-l", "Shift-L", 1536, (3, 12)),
    )
}
