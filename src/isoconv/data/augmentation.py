"""What happens to training images at random. Does not import torch before something is drawn."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from isoconv.errors import require

if TYPE_CHECKING:
    from torch import Tensor, device

#: The largest magnitude of `rand_augment`, as in torchvision.
MOST_MAGNITUDE = 30


@dataclass(frozen=True)
class Augmentation:
    """What happens to training images, in this order. By default nothing does.

    What happens to image i in epoch e of a run is a function of (seed, e, i), whatever batch it is in, and wherever the
    images are. Images are bytes, or floating-point numbers in [0, 1]; they keep their size and their type. Bytes are
    rounded after each line of this table. `draw` makes the random numbers of an epoch, and a call applies them:

        augmentation = Augmentation(flip=True, resized_crop=(0.25, 1.0))
        drawn = augmentation.draw(len(dataset), seed=0, epoch=3, device="cuda")
        images = augmentation(images, drawn, index)  # `index` says which images of the data set these are

    padding : put so many zeros around the image, then cut out one of its size
    flip : mirror it, or not
    resized_crop : cut out a share of the area, from the first number to the second, whose sides are changed in
        proportion by at most 4/3, and stretch it to the whole; see `crop_and_resize`
    rand_augment : how many operations, one after another, and their magnitude from 0 to 30; see `rand_augment`
    colour_jitter : by how much brightness, contrast and saturation change at most, each from 0 to 1: 0.4 multiplies by
        a number from 0.6 to 1.4. Saturation is for three channels only; see `jitter_colours`
    augment : the share of images that are distorted, and how strongly; see `distort`
    augment_epochs : in how many epochs, the first ones, the last three of these happen; 0 for all. The epochs after them
        show images as they will be when the network is used
    """

    padding: int = 0
    flip: bool = False
    resized_crop: tuple[float, float] = (1.0, 1.0)
    rand_augment: tuple[int, float] = (0, 9.0)
    colour_jitter: tuple[float, float, float] = (0.0, 0.0, 0.0)
    augment: tuple[float, float] = (0.0, 1.0)
    augment_epochs: int = 0

    def __post_init__(self) -> None:
        require(self.padding >= 0, "a crop_padding of 0 or more pixels", self.padding)
        require(self.augment_epochs >= 0, "augment_epochs of 0 or more", self.augment_epochs)
        limits: dict[str, tuple[str, tuple[float, ...]]] = {
            "resized_crop": ("two shares of the area, above 0 and up to 1, the smaller first", (1, 1)),
            "rand_augment": (f"up to 10 operations and a magnitude up to {MOST_MAGNITUDE}", (10, MOST_MAGNITUDE)),
            "colour_jitter": ("changes of brightness, contrast and saturation, from 0 to 1", (1, 1, 1)),
            "augment": ("a share of images from 0 to 1 and a strength from 0 to 2", (1, 2)),
        }
        for name, (meaning, most) in limits.items():
            values = getattr(self, name)
            fits = len(values) == len(most) and all(
                0 <= value <= high for value, high in zip(values, most, strict=True)
            )
            require(fits, f"{name}: {meaning}", values)
        is_ordered = 0 < self.resized_crop[0] <= self.resized_crop[1]
        require(is_ordered, f"resized_crop: {limits['resized_crop'][0]}", self.resized_crop)
        is_whole = isinstance(self.rand_augment[0], int)
        require(is_whole, "rand_augment: a whole number of operations", self.rand_augment)
        asked = f"crop_padding {self.padding} and resized_crop {self.resized_crop}"
        require(self.padding == 0 or not self.crops, "crop_padding or resized_crop, not both", asked)
        ends = self.augment_epochs == 0 or self.distorts
        require(ends, "augment, rand_augment or colour_jitter, for augment_epochs to end", "none of them")

    def __bool__(self) -> bool:
        """Return True if images may change."""
        return self.padding > 0 or self.flip or self.crops or self.distorts

    @property
    def distorts(self) -> bool:
        """Whether colours change, or more than a crop and a mirror moves pixels."""
        return self.rand_augment[0] > 0 or any(self.colour_jitter) or self.augment[0] > 0

    @property
    def crops(self) -> bool:
        """Whether a share of the area is cut out."""
        return self.resized_crop[0] < 1

    def check_channels(self, channels: int) -> None:
        """Raise if nothing that was asked for can happen to the colours of such images."""
        possible = channels == 3 or self.colour_jitter[2] == 0 or any(self.colour_jitter[:2])
        require(possible, "three channels, to change saturation", channels)

    def draw(self, count: int, seed: int = 0, epoch: int = 0, device: "device | str" = "cpu") -> "dict[str, Tensor]":
        """Draw what happens to each of `count` images in an epoch, on the CPU, and bring it to a device.

        One kind of change does not depend on which others there are.
        """
        import torch

        from isoconv.data import transforms
        from isoconv.data.batches import epoch_generator

        random, drawn = partial(epoch_generator, seed, epoch), {}
        if self.padding or self.flip:
            drawn["offsets"], drawn["flips"] = transforms.draw(count, self.padding, self.flip, random("augmentation"))
        if self.crops:
            drawn["boxes"] = transforms.draw_boxes(count, self.resized_crop, random("resized crop"))
        ended = 0 < self.augment_epochs <= epoch
        if self.rand_augment[0] and not ended:
            drawn["operations"] = torch.rand(count, self.rand_augment[0], 2, generator=random("operations"))
        if any(self.colour_jitter) and not ended:
            drawn["colours"] = torch.rand(count, 3, generator=random("colours"))
        if self.augment[0] and not ended:
            drawn["distortions"] = torch.rand(count, transforms.DISTORTIONS, generator=random("distortion"))
        return {name: numbers.to(device) for name, numbers in drawn.items()}

    def __call__(self, images: "Tensor", drawn: "Mapping[str, Tensor]", index: "Tensor | None" = None) -> "Tensor":
        """Change the images (N, C, H, W), the n-th by what was drawn for number index[n], or for number n.

        Images, numbers and index are on one device. The host does not wait for it.
        """
        from isoconv.data import transforms

        if index is not None:
            drawn = {name: numbers[index] for name, numbers in drawn.items()}
        if "offsets" in drawn:
            images = transforms.crop_and_flip(images, drawn["offsets"], drawn["flips"], self.padding)
        if "boxes" in drawn:
            images = transforms.crop_and_resize(images, drawn["boxes"])
        if "operations" in drawn:
            images = transforms.rand_augment(images, drawn["operations"], self.rand_augment[1])
        if "colours" in drawn:
            images = transforms.jitter_colours(images, drawn["colours"], self.colour_jitter)
        return transforms.distort(images, drawn["distortions"], *self.augment) if "distortions" in drawn else images
