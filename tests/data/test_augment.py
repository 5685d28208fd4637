import pytest
import torch

from isoconv.data import augment, augment_epoch, crop_and_flip, draw

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]


def one_by_one(images, offsets, flips, padding):
    """The definition, image by image."""
    _, C, H, W = images.shape
    result = []
    for image, (top, left), flip in zip(images, offsets.tolist(), flips.tolist(), strict=True):
        framed = torch.zeros(C, H + 2 * padding, W + 2 * padding, dtype=images.dtype, device=images.device)
        framed[:, padding : padding + H, padding : padding + W] = image
        crop = framed[:, top : top + H, left : left + W]
        result.append(crop.flip(-1) if flip else crop)
    return torch.stack(result)


def random_images(*shape, dtype, device="cpu"):
    generator = torch.Generator().manual_seed(0)
    if dtype == torch.uint8:
        return torch.randint(0, 256, shape, generator=generator, dtype=dtype).to(device)
    return torch.randn(*shape, generator=generator).to(device, dtype)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float64])
@pytest.mark.parametrize("padding", [0, 1, 4, 9])
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (30, 3, 8, 8), (17, 1, 5, 9), (9, 2, 12, 3)])
def test_each_image_is_what_the_definition_says(shape, padding, dtype, device):
    images = random_images(*shape, dtype=dtype, device=device)
    offsets, flips = draw(shape[0], padding, True, torch.Generator(device).manual_seed(1))
    assert torch.equal(crop_and_flip(images, offsets, flips, padding), one_by_one(images, offsets, flips, padding))


@pytest.mark.parametrize("piece", [1, 700, 5000, 1 << 30])
def test_pieces_do_not_show(piece, monkeypatch):
    monkeypatch.setitem(augment._PIECE, "cpu", piece)
    images = random_images(41, 3, 8, 8, dtype=torch.uint8)
    offsets, flips = draw(41, 2, True, torch.Generator().manual_seed(1))
    assert torch.equal(crop_and_flip(images, offsets, flips, 2), one_by_one(images, offsets, flips, 2))


@pytest.mark.parametrize("device", DEVICES)
def test_an_epoch(device):
    images = random_images(300, 3, 6, 6, dtype=torch.uint8, device=device)
    before = images.clone()
    first, again, other = (
        augment_epoch(images, 2, True, torch.Generator(device).manual_seed(seed)) for seed in (5, 5, 6)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(images, before)
    offsets, flips = draw(300, 2, True, torch.Generator(device).manual_seed(5))
    assert torch.equal(first, one_by_one(images, offsets, flips, 2))
    assert torch.equal(augment_epoch(images, 0, False, torch.Generator(device).manual_seed(5)), images)


def test_chance_is_fair():
    offsets, flips = draw(90_000, 4, True, torch.Generator().manual_seed(0))
    counts = torch.bincount(offsets[:, 0] * 9 + offsets[:, 1], minlength=81)
    # 90,000 draws from 81 cells: six standard deviations of a cell's count.
    assert float((counts - 90_000 / 81).abs().max()) < 6 * (90_000 / 81) ** 0.5
    assert abs(int(flips.sum()) - 45_000) < 6 * 150
    assert not bool(draw(100, 4, False, torch.Generator().manual_seed(0)).flips.any())


def test_images_in_another_memory_format():
    images = random_images(20, 3, 8, 8, dtype=torch.float32)
    offsets, flips = draw(20, 2, True, torch.Generator().manual_seed(1))
    expected = crop_and_flip(images, offsets, flips, 2)
    assert torch.equal(crop_and_flip(images.contiguous(memory_format=torch.channels_last), offsets, flips, 2), expected)
    assert torch.equal(crop_and_flip(images.flip(0).flip(0)[::1], offsets, flips, 2), expected)
    assert len(crop_and_flip(images[:0], offsets[:0], flips[:0], 2)) == 0
