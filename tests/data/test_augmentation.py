"""Augmentation: each change by its definition, or by Pillow; each image by itself; chances that are as they should be."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from numpy.lib.stride_tricks import sliding_window_view
from PIL import Image, ImageEnhance, ImageOps
from scipy.ndimage import map_coordinates
from torch.nn.functional import grid_sample, pad

from data.fakes import DEVICES, image_set, random_bytes
from isoconv import IsoconvError, data

DATA = image_set(n=50)
EVERYTHING = data.Augmentation(
    flip=True, resized_crop=(0.3, 0.9), rand_augment=(3, 15.0), colour_jitter=(0.4, 0.4, 0.4), augment=(0.5, 0.5)
)


def photograph(channels=3, height=40, width=33, seed=0):
    """Return something smooth, with some noise, that does not use all levels: bytes (C, H, W)."""
    random = np.random.RandomState(seed)
    y, x = np.mgrid[:height, :width]
    waves = [np.sin(y / random.uniform(2, 6) + x / random.uniform(2, 6)) for _ in range(channels)]
    return (30 + 80 * (1 + np.stack(waves)) + random.uniform(0, 20, (channels, height, width))).astype(np.uint8)


def uniform(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def is_uniform(sample, low=0.0, high=1.0):
    """Return True if the empirical distribution is within what a fair sample exceeds once in ten million times."""
    values = (np.sort(np.asarray(sample, dtype=np.float64)) - low) / (high - low)
    distance = np.abs(values - (np.arange(len(values)) + 0.5) / len(values)).max()
    return distance < math.sqrt(math.log(2e7) / 2 / len(values))


# All together


KINDS = [((3, 8, 6), "uint8"), ((1, 9, 9), "uint8"), ((2, 1, 3), "float32"), ((4, 5, 7), "float16")]


def pixels_of(count, shape, dtype):
    """Return random images, of bytes or of numbers in [0, 1]."""
    images = torch.from_numpy(random_bytes(count, *shape))
    return images if dtype == "uint8" else (images / 255).to(getattr(torch, dtype))


@pytest.mark.parametrize(("shape", "dtype"), KINDS)
def test_an_image_depends_on_itself_and_its_numbers_alone(shape, dtype, monkeypatch):
    """In any order and company, in pieces of any size, bit for bit; its type and range are kept."""
    images = pixels_of(40, shape, dtype)
    drawn, order = EVERYTHING.draw(40, seed=2, epoch=1), torch.randperm(40, generator=torch.Generator().manual_seed(0))
    whole = EVERYTHING(images, drawn)
    assert whole.dtype == images.dtype and whole.shape == images.shape
    assert whole.min() >= 0 and whole.max() <= (255 if dtype == "uint8" else 1)
    assert torch.equal(EVERYTHING(images[order], drawn, order), whole[order])
    assert torch.equal(EVERYTHING(images.contiguous(memory_format=torch.channels_last), drawn), whole)
    for start, end in pairwise((0, 1, 4, 21, 40)):
        index = torch.arange(start, end)
        assert torch.equal(EVERYTHING(images[index], drawn, index), whole[index])
    monkeypatch.setitem(data.transforms._PIECE, "cpu", 1)
    assert torch.equal(EVERYTHING(images, drawn), whole)


def test_an_image_does_not_depend_on_how_threads_share_the_work():
    """Several threads share the sum over one large image, but not those over many."""
    images, threads = uniform(8, 1, 300, 300), torch.get_num_threads()
    augmentation = data.Augmentation(colour_jitter=(0.4, 0.9, 0.0), rand_augment=(1, 9.0), augment=(1.0, 1.0))
    drawn = augmentation.draw(8)
    drawn["operations"][..., 0] = (data.OPERATIONS.index("contrast") - 0.5) / 13
    whole = augmentation(images, drawn)
    try:
        torch.set_num_threads(3)
        for k in range(8):
            assert torch.equal(augmentation(images[k : k + 1], drawn, torch.tensor([k])), whole[k : k + 1])
    finally:
        torch.set_num_threads(threads)


def test_floats_are_changed_as_bytes_are():
    """Up to the rounding of bytes, by each change alone: a second one may make rounding larger."""
    images = torch.from_numpy(np.stack([photograph(seed=k) for k in range(30)]))
    for options in ({"resized_crop": (0.3, 0.9)}, {"colour_jitter": (0.4, 0.4, 0.4)}, {"augment": (0.5, 1.0)}):
        augmentation = data.Augmentation(**options)
        drawn = augmentation.draw(30)
        expected = augmentation(images, drawn).double()
        for dtype in (torch.float32, torch.float64):
            assert (255 * augmentation((images / 255).to(dtype), drawn) - expected).abs().max() < 0.501
    of_bytes, of_floats = (data.rand_augment(x, uniform(30, 1, 2), 12.0).double() for x in (images, images / 255))
    assert (of_bytes - 255 * of_floats).abs().max() < 0.501


def test_nothing_waits_for_numbers_on_the_device():
    """On the meta device there are no numbers: to read one, or a shape that depends on one, is an error."""
    for augmentation in (EVERYTHING, data.Augmentation(padding=2, flip=True)):
        images = torch.empty(20, 3, 12, 9, dtype=torch.uint8, device="meta")
        drawn, index = augmentation.draw(100, device="meta"), torch.empty(20, dtype=torch.int64, device="meta")
        assert augmentation(images, drawn, index).shape == images.shape


def test_numbers_belong_to_a_seed_an_epoch_and_an_image():
    """Not to how many images there are, and not to what else happens to them."""
    drawn = EVERYTHING.draw(100, seed=3, epoch=5)
    fewer = EVERYTHING.draw(37, seed=3, epoch=5)
    for name in ("boxes", "operations", "colours", "distortions"):
        assert torch.equal(fewer[name], drawn[name][:37])
        assert len(drawn[name].flatten(1).unique(dim=0)) == 100
        for seed, epoch in ((3, 6), (4, 5), (5, 3)):
            assert not torch.isin(EVERYTHING.draw(100, seed, epoch)[name], drawn[name]).flatten(1).all(dim=1).any()
    for options in ({"flip": True}, {"resized_crop": (0.3, 0.9)}, {"rand_augment": (3, 1.0)}, {"augment": (0.1, 1.0)}):
        for name, numbers in data.Augmentation(**options).draw(100, seed=3, epoch=5).items():
            assert torch.equal(numbers, drawn[name])


def test_numbers_do_not_change():
    """For ever: or no run could be repeated."""
    padded = data.Augmentation(padding=4, flip=True).draw(4, seed=3, epoch=5)
    drawn = EVERYTHING.draw(4, seed=3, epoch=5) | padded
    assert drawn["flips"].tolist() == [True, True, True, False]
    expected = {"offsets": [4, 0], "boxes": [0.0064873, 0.0541846], "operations": [0.0502609, 0.4895932]}
    expected |= {"colours": [0.7094603, 0.3159242], "distortions": [0.8398288, 0.9772885]}
    for name, values in expected.items():
        assert drawn[name][0].flatten()[:2].tolist() == pytest.approx(values, abs=2e-7), name


def test_the_last_epochs_only_move_images():
    """After `augment_epochs`, what happens to an image is what would happen without colours and distortions."""
    options = {"padding": 2, "flip": True}
    moves, all_of_it = data.Augmentation(**options), {"rand_augment": (2, 9.0), "colour_jitter": (0.4, 0.4, 0.4)}
    ending = data.Augmentation(**options, **all_of_it, augment=(0.5, 0.5), augment_epochs=3)
    for epoch in range(5):
        one, other = (change(DATA.images, change.draw(len(DATA), 1, epoch)) for change in (ending, moves))
        assert torch.equal(one, other) == (epoch >= 3)
    with pytest.raises(IsoconvError, match=r"augment_epochs.*-1"):
        data.Augmentation(augment_epochs=-1)
    with pytest.raises(IsoconvError, match="for augment_epochs to end"):
        data.Augmentation(**options, augment_epochs=3)


def test_by_default_nothing_happens():
    nothing = data.Augmentation()
    assert not nothing and nothing(DATA.images, nothing.draw(50)) is DATA.images
    options = [{"padding": 1}, {"flip": True}, {"resized_crop": (0.5, 1.0)}, {"rand_augment": (1, 0.0)}]
    options += [{"colour_jitter": (0.0, 0.1, 0.0)}, {"augment": (0.1, 1.0)}]
    assert all(data.Augmentation(**each) for each in options)


# Resized crops


def sampled(image, source, outside):
    """Interpolate (C, H, W) at source(rows, columns). Outside is zero ("grid-constant") or the border ("nearest")."""
    places = source(*np.mgrid[: image.shape[1], : image.shape[2]])
    return np.stack([map_coordinates(np.float64(channel), places, order=1, mode=outside) for channel in image])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("shape", "dtype", "tolerance"),
    [((3, 9, 6), "uint8", 0.51), ((1, 5, 12), "float32", 1e-5), ((2, 7, 7), "float64", 1e-13)],
)
def test_a_box_is_stretched_to_the_whole_image(shape, dtype, tolerance, device):
    images = pixels_of(6, shape, dtype)
    boxes = data.draw_boxes(6, (0.1, 0.9), torch.Generator().manual_seed(4))
    result = data.crop_and_resize(images.to(device), boxes.to(device)).cpu().double().numpy()
    (H, W), values = shape[1:], boxes.double().tolist()
    for image, box, changed in zip(images, values, result, strict=True):

        def source(i, j, box=box):
            return H * (box[0] + box[2] * (i + 0.5) / H) - 0.5, W * (box[1] + box[3] * (j + 0.5) / W) - 0.5

        assert np.abs(changed - sampled(image, source, "nearest")).max() <= tolerance


@pytest.mark.parametrize("scale", [(0.08, 1.0), (0.25, 0.5), (0.9, 1.0), (0.3, 0.3)])
def test_boxes_are_fair(scale):
    """Areas, proportions and places; within the image."""
    top, left, height, width = data.draw_boxes(20_000, scale, torch.Generator().manual_seed(0)).double().numpy().T
    assert min(top.min(), left.min()) >= 0 and max((top + height).max(), (left + width).max()) <= 1 + 1e-6
    area, proportion = height * width, np.log(width / height)
    assert scale[0] - 1e-6 <= area.min() and area.max() <= scale[1] + 1e-6
    assert scale[0] == scale[1] or is_uniform(area, *scale)
    limit = np.minimum(math.log(4 / 3), -np.log(np.minimum(area, 1 - 1e-9)))
    assert np.all(np.abs(proportion) <= limit + 1e-6) and is_uniform((proportion / limit)[area < 0.999], -1, 1)
    smaller = np.maximum(height, width) < 0.999
    places = [start[smaller] / (1 - side[smaller]) for start, side in ((top, height), (left, width))]
    assert all(map(is_uniform, places)) and abs(np.corrcoef(places)[0, 1]) < 0.05


# Colours


def test_colours_change_one_after_another():
    """By the definition in float64: brightness, contrast, saturation, each kept in range; two channels have no colour."""
    for channels, weights in ((3, (0.299, 0.587, 0.114)), (2, (0.5, 0.5))):
        images = torch.rand(5, channels, 7, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        numbers = uniform(5, 3, seed=2)
        changed = data.jitter_colours(images, numbers, (0.8, 0.5, 1.0)).numpy()
        factors = 1 + np.array([0.8, 0.5, 1.0]) * (2 * numbers.double().numpy() - 1)
        for image, (brightness, contrast, saturation), result in zip(images.numpy(), factors, changed, strict=True):
            expected = np.clip(image * brightness, 0, 1)
            mean = sum(w * channel.mean() for w, channel in zip(weights, expected, strict=True))
            expected = np.clip(mean + contrast * (expected - mean), 0, 1)
            grey = sum(w * channel for w, channel in zip(weights, expected, strict=True))
            if channels == 3:
                expected = np.clip(grey + saturation * (expected - grey), 0, 1)
            assert np.abs(result - expected).max() < 1e-6  # the mean is of pixels rounded to 24 bits


# RandAugment


def enhanced(image, kind, factor):
    """Return what Pillow makes of (C, H, W): brighter, of more contrast, …"""
    picture = Image.fromarray(image[0] if len(image) == 1 else image.transpose(1, 2, 0))
    array = np.asarray(kind(picture).enhance(factor))
    return (array[None] if len(image) == 1 else array.transpose(2, 0, 1)).astype(np.float64)


def operated(name, magnitude, sign):
    """Return a function that does one operation to (C, H, W), by Pillow or pixel by pixel, as torchvision documents it."""
    level, kinds = magnitude / 30, {"brightness": ImageEnhance.Brightness, "contrast": ImageEnhance.Contrast}
    kinds["saturation"] = ImageEnhance.Color
    sine, cosine = math.sin(math.radians(30 * level)) * sign, math.cos(math.radians(30 * level))
    if name in kinds:
        return lambda image: enhanced(image, kinds[name], 1 + sign * 0.9 * level)

    def by_pillow(function, *args):
        """Channel by channel."""
        return lambda image: np.stack([np.asarray(function(Image.fromarray(c), *args)) for c in image]).astype(float)

    def move(source):
        """Of rows and columns counted from the centre."""

        def at(i, j, H, W):
            y, x = source(i - (H - 1) / 2, j - (W - 1) / 2, H, W)
            return y + (H - 1) / 2, x + (W - 1) / 2

        return lambda image: sampled(image, lambda i, j: at(i, j, *image.shape[1:]), "grid-constant")

    shift, shear = sign * level * 150 / 331, sign * level * 0.3

    def sharpen(image):
        """Pillow rounds what is smoothed first."""
        smooth = image.astype(float)
        parts = sliding_window_view(smooth, (3, 3), axis=(1, 2))
        smooth[:, 1:-1, 1:-1] = (parts.sum((3, 4)) + 4 * parts[..., 1, 1]) / 13
        return np.clip(smooth + (1 + sign * 0.9 * level) * (image - smooth), 0, 255)

    return {
        "sharpness": sharpen,
        "identity": lambda image: image.astype(float),
        "shear_x": move(lambda y, x, H, W: (y, x + shear * y)),
        "shear_y": move(lambda y, x, H, W: (y + shear * x, x)),
        "translate_x": move(lambda y, x, H, W: (y, x + shift * W)),
        "translate_y": move(lambda y, x, H, W: (y + shift * H, x)),
        "rotate": move(lambda y, x, H, W: (sine * x + cosine * y, cosine * x - sine * y)),
        "posterise": by_pillow(ImageOps.posterize, 8 - round(magnitude / 7.5)),
        "solarise": by_pillow(ImageOps.solarize, 255 * (1 - level)),
        "autocontrast": by_pillow(ImageOps.autocontrast),
        "equalise": by_pillow(ImageOps.equalize),
    }[name]


@pytest.mark.parametrize(("channels", "magnitude", "sign"), [(1, 9, -1), (3, 9, 1), (3, 21, -1), (3, 0, -1)])
def test_operations_are_those_of_pillow(channels, magnitude, sign):
    """Each in its turn: the k-th of n equal parts of [0, 1) chooses the k-th of n."""
    image = photograph(channels)
    names = [name for name in data.OPERATIONS if channels == 3 or name != "saturation"]
    # Pillow rounds means first, and goes away from them by a factor up to 1.9.
    tolerances = {"sharpness": 0.51, "contrast": 2, "identity": 0, "posterise": 0, "solarise": 0, "equalise": 0}
    changes = 0
    for k, name in enumerate(names):
        expected = operated(name, magnitude, sign)(image)
        for within in (0.001, 0.999):
            numbers = torch.tensor([[[(k + within) / len(names), 0.25 if sign > 0 else 0.75]]])
            (changed,) = data.rand_augment(torch.from_numpy(image)[None], numbers, magnitude).double().numpy()
            assert np.abs(changed - expected).max() <= tolerances.get(name, 1.01), name
        changes += bool((changed != image).any())
    assert changes == (2 if magnitude == 0 else len(names) - 1)  # autocontrast and equalise have no magnitude


def test_operations_follow_each_other_and_are_chosen_alike():
    images, numbers = torch.from_numpy(random_bytes(100, 3, 9, 8)), uniform(100, 2, 2)
    first = data.rand_augment(images, numbers[:, :1], 20.0)
    assert torch.equal(data.rand_augment(first, numbers[:, 1:], 20.0), data.rand_augment(images, numbers, 20.0))
    numbers = data.Augmentation(rand_augment=(2, 9.0)).draw(20_000)["operations"]
    assert all(is_uniform(part) for part in numbers.flatten(1).T)
    assert np.abs(np.corrcoef(numbers.flatten(1).T) - np.eye(4)).max() < 0.05


def test_one_colour_only():
    """Nothing to stretch, nothing to equalise, no mean to go away from."""
    images = torch.full((14, 3, 6, 6), 70, dtype=torch.uint8)
    numbers = torch.stack([(torch.arange(14) + 0.5) / 14, torch.full((14,), 0.25)], dim=1)[:, None]
    changed = data.rand_augment(images, numbers, 6.0)
    for name in ("identity", "saturation", "contrast", "sharpness", "autocontrast", "equalise", "solarise"):
        assert torch.equal(changed[data.OPERATIONS.index(name)], images[0]), name


# Crops and mirror images


def one_by_one(images, offsets, flips, padding):
    """The definition, image by image."""
    H, W = images.shape[2:]
    result = []
    for image, (top, left), flip in zip(images, offsets.tolist(), flips.tolist(), strict=True):
        crop = pad(image, [padding] * 4)[:, top : top + H, left : left + W]
        result.append(crop.flip(-1) if flip else crop)
    return torch.stack(result)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("shape", "padding", "dtype"),
    [((1, 1, 1), 9, "float64"), ((3, 8, 8), 4, "uint8"), ((1, 5, 9), 0, "float32"), ((2, 12, 3), 1, "float64")],
)
@pytest.mark.parametrize("piece", [1, 700])
def test_each_image_is_what_the_definition_says(shape, padding, dtype, device, piece, monkeypatch):
    """In pieces of any size, and in any memory format."""
    monkeypatch.setitem(data.transforms._PIECE, device, piece)
    images = pixels_of(17, shape, dtype).to(device)
    offsets, flips = data.draw(17, padding, True, torch.Generator(device).manual_seed(1))
    expected = one_by_one(images, offsets, flips, padding)
    for form in (images, images.contiguous(memory_format=torch.channels_last)):
        assert torch.equal(data.crop_and_flip(form, offsets, flips, padding), expected)
    assert len(data.crop_and_flip(images[:0], offsets[:0], flips[:0], padding)) == 0


def test_chance_is_fair():
    offsets, flips = data.draw(90_000, 4, True, torch.Generator().manual_seed(0))
    counts = torch.bincount(offsets[:, 0] * 9 + offsets[:, 1], minlength=81)
    # 90,000 draws from 81 cells: six standard deviations of a cell's count.
    assert float((counts - 90_000 / 81).abs().max()) < 6 * (90_000 / 81) ** 0.5
    assert abs(int(flips.sum()) - 45_000) < 6 * 150
    assert not bool(data.draw(100, 4, False, torch.Generator().manual_seed(0))[1].any())


# Distortion


def test_images_are_distorted_as_ever():
    """The same bytes as the first version of this function, image by image, or no run of it could be repeated."""
    images, drawn = torch.from_numpy(random_bytes(40, 3, 10, 13)), uniform(40, 11, seed=5)
    expected = []
    for image, row in zip(images, drawn, strict=True):
        numbers = row[:, None, None]
        y, x = ((2 * torch.arange(n) + 1) / n - 1 for n in (10, 13))
        colour, turning = (numbers[0] < 0.5) * 0.5, (numbers[4] < 0.5) * 0.5
        contrast, brightness, saturation = (
            1 + colour * limit * (2 * numbers[k] - 1) for k, limit in ((1, 0.4), (2, 0.4), (3, 0.6))
        )
        mean = image.sum() / image.numel()
        pixels = (image - mean) * contrast + mean * brightness
        grey = (pixels[:1] + pixels[1:2] + pixels[2:]) / 3
        pixels = ((pixels - grey) * saturation + grey).clamp(0, 255)
        limits = enumerate((0.35, 0.2, 0.2, 0.2, 0.12, 0.12), start=5)
        angle, wide, high, shear, right, down = (turning * limit * (2 * numbers[k] - 1) for k, limit in limits)
        column = (1 + wide) * angle.cos() * x + (shear - angle.sin()) * (10 / 13) * y[:, None] + right
        row = angle.sin() * (13 / 10) * x + (1 + high) * angle.cos() * y[:, None] + down
        turned = grid_sample(pixels[None], torch.stack([column, row], dim=-1)[None], align_corners=False)[0]
        expected.append(turned.round().clamp(0, 255).to(torch.uint8))
    assert torch.equal(data.distort(images, drawn, 0.5, 0.5), torch.stack(expected))
