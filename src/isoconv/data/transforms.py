"""Changes of images at random, as batched tensor work on the device that holds them.

Note [Changes of images]
An image that comes out depends on the image that goes in and on its own random numbers, bit for bit on the CPU, and not on
the images beside it: which ones are in a batch, and how many. So the only sum over an image is one of integers in float64,
which is exact in any order (`_mean`); everything else is done pixel by pixel, or adds a few terms in a fixed order.
Nothing has a shape that depends on numbers on the device, and nothing reads one: each operation is done to all images, and
those that it is not meant for keep what they had. So host and GPU are never synchronised.
Work goes through the images in pieces, so that it needs little memory beyond its result.
"""

import math
from collections.abc import Callable, Sequence
from functools import reduce

import torch
from torch import Tensor
from torch.nn.functional import grid_sample, pad

from isoconv.data.augmentation import MOST_MAGNITUDE
from isoconv.errors import require

# Bytes of padded images to work on at a time. A core is fastest in its cache; a GPU wants few launches, but the index of
# a piece takes eight bytes for each pixel.
_PIECE = {"cpu": 1 << 21, "other": 1 << 27}
DISTORTIONS = 11  # numbers that decide how an image is distorted
#: What `rand_augment` chooses from, all with the same chance, as torchvision does.
OPERATIONS = (
    *("identity", "shear_x", "shear_y", "translate_x", "translate_y", "rotate", "brightness", "saturation", "contrast"),
    *("sharpness", "posterise", "solarise", "autocontrast", "equalise"),
)
_LUMA = (0.299, 0.587, 0.114)  # how much of red, green and blue the eye takes for brightness, by ITU-R BT.601


def draw(count: int, padding: int, flip: bool, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw for each image, on the generator's device, where its crop starts and whether it is mirrored.

    Return offsets (row, column) from 0 to 2·padding, int64 (count, 2), and fair coins, bool (count,): no flip, no heads.
    """
    require(padding >= 0, "a padding of 0 or more pixels", padding)
    offsets = torch.randint(0, 2 * padding + 1, (count, 2), generator=generator, device=generator.device)
    flips = torch.randint(0, 1 + flip, (count,), generator=generator, device=generator.device).bool()
    return offsets, flips


def draw_boxes(count: int, scale: Sequence[float], generator: torch.Generator) -> Tensor:
    """Draw for each image a part of it: top, left, height and width as shares of its sides, float32 (count, 4).

    The share of the area is uniform between the two numbers of `scale`. Width against height, compared with the image, is
    between 3/4 and 4/3 as far as such a part fits into the image, uniform in its logarithm, and so is the place.
    """
    # In float64: a last bit that depends on how a vector is computed is rounded away.
    drawn = torch.rand(count, 4, generator=generator, device=generator.device).double()
    area = scale[0] + (scale[1] - scale[0]) * drawn[:, 0]
    widest = torch.minimum(-area.log(), torch.full_like(area, math.log(4 / 3)))  # or a side would be above 1
    proportion = ((2 * drawn[:, 1] - 1) * widest).exp()
    height, width = ((area * value).sqrt().clamp(max=1) for value in (1 / proportion, proportion))
    return torch.stack([drawn[:, 2] * (1 - height), drawn[:, 3] * (1 - width), height, width], dim=1).float()


@torch.no_grad()
def crop_and_flip(images: Tensor, offsets: Tensor, flips: Tensor, padding: int) -> Tensor:
    """Crop image n, padded with zeros, from row offsets[n, 0] and column offsets[n, 1], and mirror it if flips[n].

    A crop has the size of the image. Offsets are trusted to lie in 0..2·padding: to check them is to wait for the GPU.
    """
    require(padding >= 0, "a padding of 0 or more pixels", padding)
    is_triple = images.ndim == 4 and offsets.shape == (len(images), 2) and flips.shape == (len(images),)
    shapes = f"{tuple(images.shape)}, {tuple(offsets.shape)} and {tuple(flips.shape)}"
    require(is_triple, "images (N, C, H, W), offsets (N, 2) and flips (N,)", shapes)
    N, C, H, W = images.shape
    padded_height, padded_width = H + 2 * padding, W + 2 * padding
    row, column = torch.arange(H, device=images.device), torch.arange(W, device=images.device)
    result = torch.empty(N, C, H, W, dtype=images.dtype, device=images.device)
    for at in _pieces(images, C * padded_height * padded_width * images.element_size()):
        source = pad(images[at], [padding] * 4).reshape(-1, C, padded_height * padded_width)
        rows = offsets[at, :1] + row
        columns = offsets[at, 1:] + torch.where(flips[at, None], W - 1 - column, column)
        # One index for all channels of an image: expanded, not copied.
        index = (padded_width * rows[:, :, None] + columns[:, None, :]).reshape(-1, 1, H * W).expand(-1, C, -1)
        torch.gather(source, 2, index, out=result[at].view(-1, C, H * W))
    return result


def crop_and_resize(images: Tensor, boxes: Tensor) -> Tensor:
    """Cut a box out of each image, and stretch it to the size of the image by bilinear interpolation.

    boxes : top, left, height and width as shares of the image's sides (N, 4), such as those of `draw_boxes`
    """

    def cut(pixels: Tensor, boxes: Tensor, most: float) -> Tensor:
        y, x = _centres(pixels)
        top, left, height, width = boxes.T[..., None, None]
        return _sample(pixels, width * x + (2 * left + width - 1), height * y + (2 * top + height - 1), "border")

    return _change(images, boxes, (4,), cut)


def jitter_colours(images: Tensor, numbers: Tensor, changes: Sequence[float]) -> Tensor:
    """Multiply brightness, then contrast, then saturation by a number between 1 − changes[k] and 1 + changes[k].

    Contrast is the distance from the mean, saturation that from grey; grey is by what the eye sees of each colour. Images
    that have not three channels keep their saturation, and their mean is that of all channels.

    numbers : uniform ones in [0, 1), float32 (N, 3), on the images' device
    """

    def change(pixels: Tensor, numbers: Tensor, most: float) -> Tensor:
        brightness, contrast, saturation = (
            1 + limit * (2 * drawn - 1) for limit, drawn in zip(changes, numbers.T[..., None, None, None], strict=True)
        )
        pixels = (brightness * pixels).clamp(0, most)
        pixels = _blend(_grey(_mean(pixels, (2, 3), most)), pixels, contrast, most)
        return _blend(_grey(pixels), pixels, saturation, most) if pixels.shape[1] == 3 else pixels

    return _change(images, numbers, (3,), change)


def rand_augment(images: Tensor, numbers: Tensor, magnitude: float) -> Tensor:
    """Do to each image some of the `OPERATIONS`, chosen at random, of one magnitude from 0 to 30.

    The operations, and how far each goes at a magnitude, are those of `torchvision.transforms.RandAugment`. Images are moved
    by bilinear interpolation, and what comes in from outside is black. Saturation is for three channels only.

    numbers : uniform ones in [0, 1), float32 (N, K, 2), on the images' device: for each of K operations, which, and its sign
    """
    require(numbers.ndim == 3, "numbers (N, K, 2)", tuple(numbers.shape))

    def operate(pixels: Tensor, numbers: Tensor, most: float) -> Tensor:
        for drawn in numbers.unbind(1):
            pixels = _operate(pixels, drawn, magnitude / MOST_MAGNITUDE, most)
            pixels = pixels.round() if most == 255 else pixels
        return pixels

    return _change(images, numbers, (numbers.shape[1], 2), operate)


def _operate(pixels: Tensor, numbers: Tensor, level: float, most: float) -> Tensor:
    """Do one operation to each image: which, and with which sign, is in numbers (n, 2); `level` is from 0 to 1."""
    names = [name for name in OPERATIONS if name != "saturation" or pixels.shape[1] == 3]
    which = (numbers[:, 0] * len(names)).long().clamp(max=len(names) - 1)[:, None, None, None]
    sign = (2.0 * (numbers[:, 1] < 0.5) - 1).to(pixels)[:, None, None, None]
    is_for = {name: which == k for k, name in enumerate(names)}

    def amount(name: str, value: float) -> Tensor:
        """Return the value, with its sign, for images that this operation is for, and zero for others; (n, 1, 1)."""
        return (is_for[name] * sign * value)[..., 0]

    # What moves. Coordinates run from −1 to 1 in both directions, whatever the sides.
    (y, x), (height, width), angle = _centres(pixels), pixels.shape[2:], math.radians(30 * level)
    cosine = 1 + (math.cos(angle) - 1) * amount("rotate", 1).abs()
    sine, across = amount("rotate", math.sin(angle)), 2 * (150 / 331) * level
    column = cosine * x + (amount("shear_x", 0.3 * level) - sine) * (height / width) * y
    row = (amount("shear_y", 0.3 * level) + sine) * (width / height) * x + cosine * y
    column, row = column + amount("translate_x", across), row + amount("translate_y", across)
    moves = reduce(torch.logical_or, [is_for[name] for name in OPERATIONS[1:6]])
    result = torch.where(moves, _sample(pixels, column, row, "zeros"), pixels)

    # What goes away from, or towards, another image.
    others = {"contrast": _grey(_mean(pixels, (2, 3), most)), "sharpness": _smooth(pixels)}
    others |= {"saturation": _grey(pixels)} if "saturation" in is_for else {}
    other, blends = torch.zeros_like(pixels), is_for["brightness"]
    for name, value in others.items():
        other, blends = torch.where(is_for[name], value, other), blends | is_for[name]
    result = torch.where(blends, _blend(other, pixels, 1 + sign * (0.9 * level), most), result)

    # What changes each level by itself.
    levels, step = (pixels * (255 / most)).round().clamp(0, 255), 2.0 ** round(4 * level)
    result = torch.where(is_for["posterise"], (levels / step).floor() * step * (most / 255), result)
    solarised = torch.where(pixels >= most * (1 - level), most - pixels, pixels)
    result = torch.where(is_for["solarise"], solarised, result)
    low, high = pixels.amin((2, 3), keepdim=True), pixels.amax((2, 3), keepdim=True)
    stretched = (pixels - low) * (most / (high - low))
    result = torch.where(is_for["autocontrast"] & (high > low), stretched, result)
    return torch.where(is_for["equalise"], _equalise(levels) * (most / 255), result)


def _equalise(levels: Tensor) -> Tensor:
    """Return levels that are, channel by channel, as equally frequent as can be, by the same rule as Pillow."""
    index, count = levels.long().flatten(2), levels.shape[2] * levels.shape[3]
    counts = torch.zeros(*index.shape[:2], 256, dtype=torch.int64, device=levels.device)
    counts.scatter_add_(2, index, torch.ones_like(index[:1, :1]).expand_as(index))
    step = (count - counts.gather(2, index.amax(2, keepdim=True))) // 255
    table = ((counts.cumsum(2) - counts + step // 2) // step.clamp(min=1)).clamp(max=255)
    equal = torch.where(step > 0, table.gather(2, index), index)
    return equal.view(levels.shape).to(levels)


def _smooth(pixels: Tensor) -> Tensor:
    """Return each image smoothed by (1 1 1; 1 5 1; 1 1 1)/13, except at its border."""
    height, width = pixels.shape[2:]
    if min(height, width) < 3:
        return pixels
    result = pixels.clone()
    neighbours = [pixels[:, :, i : height - 2 + i, j : width - 2 + j] for i in range(3) for j in range(3)]
    result[:, :, 1:-1, 1:-1] = (reduce(torch.add, neighbours) + 4 * neighbours[4]) / 13
    return result


def distort(images: Tensor, numbers: Tensor, share: float, strength: float) -> Tensor:
    """Change contrast, brightness and saturation of a share of the images, and turn, stretch, shear and move a share.

    numbers : uniform ones in [0, 1), float32 (N, 11), on the images' device; an image depends on its own alone
    strength : 1 changes colours by up to 40 % (saturation 60 %), turns by 20°, stretches and shears by a fifth and
        moves by 6 % of the side; other values in proportion. What comes in from outside is black.
    """

    def change(pixels: Tensor, numbers: Tensor, most: float) -> Tensor:
        (y, x), (C, H, W), drawn = _centres(pixels), pixels.shape[1:], numbers.T[..., None, None, None]
        # How much of each change: nothing for the images that are not of the share.
        colour, turning = ((drawn[k] < share) * strength for k in (0, 4))
        contrast, brightness, saturation = (
            1 + colour * r * (2 * drawn[k] - 1) for k, r in ((1, 0.4), (2, 0.4), (3, 0.6))
        )
        mean = _mean(pixels, (1, 2, 3), most)
        pixels = (pixels - mean) * contrast + mean * brightness
        grey = reduce(torch.add, pixels.split(1, 1)) / C
        pixels = ((pixels - grey) * saturation + grey).clamp(0, most)
        ranges = (0.35, 0.2, 0.2, 0.2, 0.12, 0.12)
        angle, wide, high, shear, right, down = (
            (turning * r * (2 * drawn[k] - 1))[..., 0] for k, r in enumerate(ranges, start=5)
        )
        column = (1 + wide) * angle.cos() * x + (shear - angle.sin()) * (H / W) * y + right
        row = angle.sin() * (W / H) * x + (1 + high) * angle.cos() * y + down
        return _sample(pixels, column, row, "zeros")

    return _change(images, numbers, (DISTORTIONS,), change)


# What they share ----------------------------------------------------------------------------------------------------


def _pieces(images: Tensor, size: int) -> list[slice]:
    """Return slices of the images, each of which takes `size` bytes."""
    piece = max(1, _PIECE.get(images.device.type, _PIECE["other"]) // max(1, size))
    return [slice(start, start + piece) for start in range(0, len(images), piece)]


@torch.no_grad()
def _change(
    images: Tensor, numbers: Tensor, shape: tuple[int, ...], change: Callable[[Tensor, Tensor, float], Tensor]
) -> Tensor:
    """Return what `change` makes of pixels from 0 to `most`, and of their numbers, in the images' own type.

    `most` is 255 for bytes, which are rounded again, and 1 for floating-point numbers, which are worked on in float32 or
    better.
    """
    is_known = images.dtype == torch.uint8 or images.is_floating_point()
    fits = images.ndim == 4 and is_known and numbers.shape == (len(images), *shape)
    shapes = f"{images.dtype} {tuple(images.shape)} and {tuple(numbers.shape)}"
    expected = f"numbers ({', '.join(map(str, ('N', *shape)))})"
    require(fits, f"images (N, C, H, W), bytes or floating-point, and {expected}", shapes)
    most = 1.0 if images.is_floating_point() else 255.0
    dtype = torch.promote_types(images.dtype, torch.float32)
    result = torch.empty_like(images)
    for at in _pieces(images, 8 * math.prod(images.shape[1:])):
        pixels = change(images[at].to(dtype), numbers[at].to(dtype), most)
        result[at] = (pixels.round() if most == 255 else pixels).clamp(0, most).to(images.dtype)
    return result


def _centres(pixels: Tensor) -> tuple[Tensor, Tensor]:
    """Return where the centres of pixels are, from −1 to 1: those of rows (H, 1), and of columns (W,)."""
    rows, columns = (
        (2 * torch.arange(n, device=pixels.device, dtype=pixels.dtype) + 1) / n - 1 for n in pixels.shape[2:]
    )
    return rows[:, None], columns


def _sample(pixels: Tensor, columns: Tensor, rows: Tensor, outside: str) -> Tensor:
    """Return pixels between pixels, at these places of each image: (n, H, W), or what is broadcast to it."""
    grid = torch.stack(torch.broadcast_tensors(columns, rows), dim=-1).to(pixels.dtype)
    return grid_sample(pixels, grid, padding_mode=outside, align_corners=False)


def _mean(pixels: Tensor, axes: tuple[int, ...], most: float) -> Tensor:
    """Return means over axes. Pixels are rounded to 24 bits, so that their sum is exact: see Note [Changes of images]."""
    scale = 2.0 ** (16 if most == 255 else 24)
    total = (pixels.double() * scale).round().sum(axes, keepdim=True) / scale
    return total.to(pixels.dtype) / math.prod(pixels.shape[axis] for axis in axes)


def _grey(pixels: Tensor) -> Tensor:
    """Return one channel: what the eye sees of three, or the mean."""
    channels = pixels.shape[1]
    weights = _LUMA if channels == 3 else [1 / channels] * channels
    return reduce(torch.add, [w * channel for w, channel in zip(weights, pixels.split(1, 1), strict=True)])


def _blend(other: Tensor, pixels: Tensor, factor: Tensor, most: float) -> Tensor:
    """Return pixels that are `factor` times as far from another image."""
    return (other + factor * (pixels - other)).clamp(0, most)
