"""Batches: the same wherever the images are, in memory or in their files, and however many processes share the work."""

import multiprocessing
import os
import subprocess
import sys
from itertools import chain, product
from multiprocessing import connection

import numpy as np
import pytest
import torch
from PIL import Image

from data.fakes import DEVICES, image_set, random_bytes, same, save_picture
from isoconv.data import EpochBatches, StreamedSet, epoch_generator, hold_out, load_image, read_csv, read_folder, resize
from isoconv.data.batches import fits
from isoconv.data.streamed import free_memory
from isoconv.errors import IsoconvError

WORKERS = (0, 2)
DATA = image_set(n=50)
AUGMENTED = {"padding": 3, "flip": True, "augment": (0.5, 0.5)}
EVERYTHING = {"flip": True, "resized_crop": (0.3, 0.9), "rand_augment": (2, 15.0), "colour_jitter": (0.4, 0.4, 0.4)}
EVERYTHING |= {"augment": (0.5, 0.5)}


def collected(batches, epoch=0):
    return [(images.cpu(), labels.cpu()) for images, labels in batches.epoch(epoch)]


@pytest.mark.parametrize("resident", [True, False])
def test_what_happens_to_an_image_does_not_depend_on_its_batch(resident):
    """In batches of any size, in any order, in any process, from anywhere: the bytes that it has when it is alone."""
    batches = EpochBatches(DATA, 50, seed=4, resident=resident, **EVERYTHING)
    drawn = batches.augmentation.draw(50, seed=4, epoch=3)
    alone = torch.cat([batches.augmentation(DATA.images[k : k + 1], drawn, torch.tensor([k])) for k in range(50)])
    assert (alone != DATA.images).flatten(1).any(dim=1).float().mean() > 0.9
    for size, world_size in ((1, 1), (7, 1), (50, 1), (10, 2), (20, 4)):
        for rank in range(world_size):
            options = {"seed": 4, "resident": resident, "rank": rank, "world_size": world_size, **EVERYTHING}
            batches = EpochBatches(DATA, size, **options)
            for index, (images, _) in zip(batches.indices(3), batches.epoch(3), strict=True):
                assert torch.equal(images, alone[index])


@pytest.mark.parametrize("resident", [True, False])
def test_every_image_once_an_epoch(resident):
    """All batches are kept until the end, so that none may share its memory with a later one."""
    batches = EpochBatches(DATA, 8, drop_last=False, resident=resident)
    kept = list(batches.epoch(0))
    assert [len(labels) for _, labels in kept] == [8] * 6 + [2] and len(EpochBatches(DATA, 8)) == 6
    assert sorted(torch.cat(batches.indices(0)).tolist()) == list(range(50))
    for index, (images, labels) in zip(batches.indices(0), kept, strict=True):
        assert (images.dtype, labels.dtype) == (torch.uint8, torch.int64)
        assert torch.equal(images, DATA.images[index]) and torch.equal(labels, DATA.labels[index])


@pytest.mark.parametrize(("world_size", "drop_last", "resident"), [(4, True, True), (2, False, False)])
def test_processes_share_each_batch(world_size, drop_last, resident):
    options = {"drop_last": drop_last, "resident": resident, "seed": 7, **AUGMENTED}
    alone = collected(EpochBatches(DATA, 8, **options), 2)
    ranks = [EpochBatches(DATA, 8, rank=rank, world_size=world_size, **options) for rank in range(world_size)]
    shares = [collected(batches, 2) for batches in ranks]
    together = [tuple(torch.cat(part) for part in zip(*batch, strict=True)) for batch in zip(*shares, strict=True)]
    assert same(together, alone)
    assert all(len({len(labels) for _, labels in batch}) == 1 for batch in zip(*shares, strict=True))


@pytest.mark.parametrize("options", [AUGMENTED, EVERYTHING], ids=["augmented", "everything"])
def test_an_epoch_depends_on_seed_and_number_alone(options):
    run = EpochBatches(DATA, 10, seed=1, **options)
    epochs = [collected(run, epoch) for epoch in range(3)]
    assert same(collected(EpochBatches(DATA, 10, seed=1, **options), 2), epochs[2])  # resumed
    assert not same(epochs[0], epochs[1])
    assert not same(collected(EpochBatches(DATA, 10, seed=0, **options), 1), epochs[0])
    next(iter(run.epoch(1)))  # broken off
    assert same(collected(run, 1), epochs[1])


def test_generators_are_independent_and_do_not_change():
    choices = product(range(4), range(4), ("order", "augmentation"))
    assert len({int(torch.randint(0, 2**60, (), generator=epoch_generator(*choice))) for choice in choices}) == 32
    assert epoch_generator(3, 5, "order").initial_seed() == 9428001226478652317  # for ever: or no run could be repeated


@pytest.mark.parametrize("device", DEVICES)
def test_what_fits_stays_on_the_device(device):
    assert EpochBatches(image_set(), 4, device=device).resident
    assert fits(1 << 50, device) == (device == "cpu")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("resident", [True, False])
def test_a_busy_gpu_gets_the_right_batches(resident):
    """The work on a batch is still queued while later ones arrive: nothing may be written over or given away."""
    data = image_set(n=2048, shape=(3, 32, 32))
    batches = EpochBatches(data, 64, device="cuda", resident=resident, padding=4, flip=True)
    heavy = torch.randn(2048, 2048, device="cuda")
    sums = []
    for images, labels in batches.epoch(1):
        for _ in range(5):
            heavy = torch.tanh(heavy @ heavy)
        sums.append((images.double().sum((1, 2, 3)) + labels, heavy[0, 0]))
    reference = EpochBatches(data, 64, padding=4, flip=True)
    expected = [images.double().sum((1, 2, 3)) + labels for images, labels in reference.epoch(1)]
    assert all(torch.equal(mine.cpu(), theirs) for (mine, _), theirs in zip(sums, expected, strict=True))


# Pictures that stay in their files


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize(
    ("options", "form"), [({}, "squash"), ({"drop_last": False, **AUGMENTED}, "crop"), (EVERYTHING, "crop")]
)
def test_batches_are_those_of_the_set_in_memory(album, workers, options, form):
    expected = read_folder(album, size=(12, 16), resize=form)
    splits = read_folder(album, size=(12, 16), resize=form, stream=True, workers=workers)
    assert isinstance(splits.train, StreamedSet) and not isinstance(expected.train, StreamedSet)
    assert splits.listing == expected.listing and splits.train.shape == expected.train.shape == (3, 12, 16)
    drawn = torch.get_rng_state()
    for epoch in (0, 3):
        batches = [list(EpochBatches(x.train, 7, seed=5, **options).epoch(epoch)) for x in (expected, splits)]
        assert same(*batches)
    assert torch.equal(torch.get_rng_state(), drawn)  # it belongs to training
    resumed = list(EpochBatches(splits.train, 7, seed=5, **options).epoch(3, start=4))
    assert len(resumed) == len(batches[0]) and same(resumed[4:], batches[0][4:])
    assert [len(images) for images, _ in resumed] == [len(images) for images, _ in batches[0]]
    assert not multiprocessing.active_children()


def test_parts_are_those_of_the_set_in_memory(album):
    expected, splits = read_folder(album, size=9), read_folder(album, size=9, stream=True, workers=0)
    parts = (
        [x.test, x.train.take(5), x.train.take(0), x.train.subset([3, 1, 1]), hold_out(x.train, 0.2, seed=3)[1],
         resize(x.test, 4), x.test.to("cpu")] for x in (expected, splits)
    )  # fmt: skip
    for a, b in zip(*parts, strict=True):
        assert len(a) == len(b) and (a.shape, a.classes, a.name) == (b.shape, b.classes, b.name)
        assert torch.equal(a.images, b.images) and torch.equal(a.labels, b.labels)
        assert same(list(a.batches(4)), list(b.batches(4)))
    with pytest.raises(IsoconvError, match="indices from 0 to"):
        splits.test.subset([len(splits.test)])
    with pytest.raises(IsoconvError, match="in memory"):
        EpochBatches(splits.train, 4, resident=True)


def test_what_decides_the_shape_without_a_size_or_channels(tmp_path):
    """Grey if all are, also those with three equal channels; the size of the first, which the others must have."""
    for k in range(8):
        grey = random_bytes(4, 6, seed=k)
        save_picture(tmp_path / "ab"[k % 2] / f"{k}.png", grey if k % 3 else np.stack([grey] * 3, axis=2))
    expected, splits = read_folder(tmp_path), read_folder(tmp_path, stream=True, workers=0)
    assert splits.train.shape == expected.train.shape == (1, 4, 6)
    assert torch.equal(splits.train.images, expected.train.images)
    lines = "".join(f"{path.relative_to(tmp_path)},{path.parent.name}\n" for path in sorted(tmp_path.rglob("*.png")))
    (tmp_path / "list.csv").write_text(lines)
    listed = read_csv(tmp_path / "list.csv", stream=True, workers=0, channels=3)
    assert torch.equal(listed.train.images, read_csv(tmp_path / "list.csv", channels=3).train.images)
    save_picture(tmp_path / "b" / "wide.png", random_bytes(4, 7))
    for workers in WORKERS:
        splits = read_folder(tmp_path, stream=True, workers=workers)
        with pytest.raises(IsoconvError, match=r"one size.*6×4 in .*7×4 in .*wide\.png"):
            list(chain(splits.train.batches(4), splits.test.batches(4)))


@pytest.mark.parametrize("shape", [(10, 20), (20, 10), (15, 14)])
def test_a_crop_keeps_the_proportions(tmp_path, shape):
    """The middle, scaled; at a picture's own size and proportions there is nothing to choose."""
    pixels = random_bytes(*shape, 3)
    path = save_picture(tmp_path / "a.png", pixels)
    side, (top, left) = min(shape), ((n - min(shape)) / 2 for n in shape)
    expected = Image.fromarray(pixels).resize((5, 5), Image.Resampling.BICUBIC, (left, top, left + side, top + side))
    cropped = load_image(path, (3, 5, 5), "crop")
    assert np.array_equal(cropped.permute(1, 2, 0).numpy(), np.asarray(expected))
    assert not torch.equal(cropped, load_image(path, (3, 5, 5)))
    assert np.array_equal(load_image(path, (3, *shape), "crop").permute(1, 2, 0).numpy(), pixels)


def write_pictures(folder, count=40, side=6):
    for k in range(count):
        save_picture(folder / "ab"[k % 2] / f"{k}.png", random_bytes(side, side, 3, seed=k))
    return folder


@pytest.mark.parametrize("workers", WORKERS)
def test_a_broken_picture_is_named_and_nothing_goes_on_running(album, tmp_path, workers):
    splits = read_folder(write_pictures(tmp_path), size=6, channels=3, stream=True, workers=workers)
    for path in tmp_path.rglob("*.png"):
        path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(IsoconvError) as error:
        list(EpochBatches(splits.train, 4).epoch(0))
    assert str(tmp_path) in str(error.value) and ".png cannot be read" in str(error.value)
    assert "\n" not in str(error.value)
    assert not multiprocessing.active_children()
    batches = EpochBatches(read_folder(album, size=6, stream=True, workers=workers).train, 4).epoch(0)
    next(batches)
    assert len(multiprocessing.active_children()) == workers
    batches.close()
    assert not multiprocessing.active_children()


def test_a_worker_that_is_killed_is_an_error_of_the_next_batch(tmp_path):
    """Not of whatever this process does when it happens: then it would be a traceback."""
    batches = EpochBatches(read_folder(write_pictures(tmp_path), size=6, stream=True, workers=2).train, 1).epoch(0)
    next(batches)
    worker = multiprocessing.active_children()[0]
    worker.kill()
    assert connection.wait([worker.sentinel], timeout=30)  # the signal that it has ended comes here
    with pytest.raises(IsoconvError, match=r"decodes images has failed .*--workers 0"):
        list(batches)
    assert not multiprocessing.active_children()


def test_a_process_can_end_with_batches_that_it_has_not_closed(album):
    """Python waits for processes that others have started with it, and these ignore its signal."""
    code = """if True:
        import sys
        from isoconv.data import EpochBatches, read_folder
        batches = EpochBatches(read_folder(sys.argv[1], size=6, stream=True, workers=2).train, 4).epoch(0)
        next(batches)
    """
    done = subprocess.run([sys.executable, "-c", code, album], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")


def test_sets_side_by_side_share_the_workers(album):
    train = read_folder(album, size=6, stream=True, workers=3).train
    expected = [list(EpochBatches(train, 4, seed=seed).epoch(0)) for seed in (0, 1)]
    iterators = [EpochBatches(train.share_workers(2), 4, seed=seed).epoch(0) for seed in (0, 1)]
    first = [next(iterator) for iterator in iterators]
    assert len(multiprocessing.active_children()) == 4  # two each, not three
    for batch, rest, other in zip(first, iterators, expected, strict=True):
        assert same([batch, *rest], other)
    assert train.share_workers(5).files.workers == 1
    assert read_folder(album, size=6, stream=True, workers=0).train.share_workers(2).files.workers == 0


def test_what_does_not_fit_in_memory_is_streamed(album, monkeypatch):
    asked = {"size": 8, "stream": None, "workers": 0}
    assert not isinstance(read_folder(album, **asked).train, StreamedSet)
    assert free_memory() > 10**6
    # Room for the bytes, not for a copy of them.
    monkeypatch.setattr("isoconv.data.streamed.free_memory", lambda: 60 * 3 * 8 * 8)
    assert isinstance(read_folder(album, **asked).train, StreamedSet)
    assert not isinstance(read_folder(album, size=8).train, StreamedSet)  # unless nobody asked for it


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("workers", WORKERS)
def test_memory_is_that_of_a_few_batches(tmp_path, workers):
    write_pictures(tmp_path, 1600, 4)
    batches = EpochBatches(read_folder(tmp_path, size=320, stream=True, workers=workers).train, 8)

    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    list(zip(range(3), batches.epoch(0), strict=False))  # so that libraries are loaded
    before = resident()
    most = max(resident() - before for _ in batches.epoch(1))
    assert most < 16 * 8 * 3 * 320**2  # sixteen batches of 160
