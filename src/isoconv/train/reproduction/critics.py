"""The Wasserstein distance between STL-10 and the images of one generator, as critics of each method measure it.

STL-10's 5,000 training images are the distribution, as in the paper: trained on and evaluated on all of them. The
generator's side is evaluated on 6,400 fresh images. Each estimate is divided by the critic's proved Lipschitz bound.
"""

import hashlib
from dataclasses import asdict
from typing import Any

from isoconv.data import EpochBatches
from isoconv.models.generator import Generator
from isoconv.train.reproduction.cells import CriticCell, default_epochs, default_seeds
from isoconv.train.reproduction.data import DataSets
from isoconv.train.reproduction.results import environment
from isoconv.train.reproduction.settings import CannotGoOnError, Settings
from isoconv.train.run_folder import RunFolder
from isoconv.wasserstein.critic import CriticConfig, critic_config, train_critics
from isoconv.wasserstein.gan import GanConfig, load_generator, train_gan
from isoconv.wasserstein.samples import FiniteSamples, GeneratedSamples

_SIZE = 64
_SAVE_EVERY = 60.0
_PIXELS = (-1.0, 1.0)
_QUICK_GAN = {"epochs": 1, "batch_size": 16}
_QUICK_CRITIC = {"steps_per_epoch": 1, "batch_size": 16}
_JUDGED, _QUICK_JUDGED = 6400, 64
_KEPT = ("seed", "estimate", "lower", "interval", "confidence", "method", "lipschitz_bound", "updates")


def critic_record(cell: CriticCell, settings: Settings, data: DataSets) -> dict[str, Any]:
    """Train the critics of a cell, and first the generator if there is none; `Stopped` if there was no time for that."""
    images = data.splits(cell.dataset, _SIZE).train
    generator, batch, fingerprint = _generator(cell.dataset, settings, data)
    first = FiniteSamples(cell.dataset, images.images, whole=True)
    count = _QUICK_JUDGED if settings.quick else _JUDGED
    second = GeneratedSamples("generator", generator, count=count, batch=batch, pixel_range=_PIXELS)
    chosen: dict[str, Any] = {
        "conv": cell.conv,
        "activation": cell.activation,
        "recipe": cell.recipe,
        "pixel_range": _PIXELS,
    }
    chosen |= {"epochs": settings.epochs_or(default_epochs(cell)), "whole": (True, False)}
    chosen |= _QUICK_CRITIC if settings.quick else {}
    configs = [
        critic_config(cell.dataset, fingerprint, first.shape, cell.model, seed=s, **chosen)
        for s in settings.seeds_or(default_seeds(cell))
    ]
    folders = [RunFolder(settings.runs / cell.name / f"seed-{config.seed}") for config in configs]
    for config, folder in zip(configs, folders, strict=True):
        if not folder.exists:
            folder.start(config, overwrite=False)
        elif asdict(CriticConfig.read(folder.config)) != asdict(config):
            raise CannotGoOnError(
                f"Expected a critic with the same settings and generator to go on with in {folder.path}. Got another: "
                f"remove it, or name another folder (--runs)."
            )
    steps = configs[0].epochs * configs[0].steps_per_epoch
    observer = settings.watcher.training(cell.name, steps, folders[0].updates_done())
    try:
        trained = train_critics(
            configs,
            folders,
            first,
            second,
            observer=observer,
            device=settings.device,
            resume=True,
            should_stop=settings.should_stop,
            save_every=_SAVE_EVERY,
        )
    finally:
        settings.watcher.finished()
    results = [one.bound.to_fields() for one in trained]
    kept = asdict(configs[0])
    kept.pop("seed")
    return {
        **cell.identity(),
        "status": "ok",
        "seeds": [config.seed for config in configs],
        "epochs": configs[0].epochs,
        "updates": results[0]["updates"],
        "samples": list(results[0]["samples"]),
        "units": results[0]["units"],
        "generator": fingerprint,
        "results": [{name: result[name] for name in _KEPT} for result in results],
        "train_seconds": results[0]["train_seconds"],
        "hardware": results[0]["device"],
        **environment(),
        "config": kept,
    }


def _generator(dataset: str, settings: Settings, data: DataSets) -> tuple[Generator, int, str]:
    """The generator that all critics are shown, trained first if need be; its batch; and what tells it from others."""
    images = data.splits(dataset, _SIZE).train
    config = GanConfig(dataset, images.shape, **(_QUICK_GAN if settings.quick else {}))  # type: ignore[arg-type]
    folder = RunFolder(settings.runs / f"{dataset}-generator")
    if folder.exists and asdict(GanConfig.read(folder.config)) != asdict(config):
        raise CannotGoOnError(
            f"Expected the paper's generator in {folder.path}. Got another: name another --runs folder."
        )
    if not folder.model.exists():
        if not folder.exists:
            folder.start(config, overwrite=False)
        steps = len(EpochBatches(images, config.batch_size)) * config.epochs
        observer = settings.watcher.training(folder.path.name, steps, folder.updates_done())
        try:
            train_gan(
                config,
                folder,
                images,
                observer,
                device=settings.device,
                resume=True,
                should_stop=settings.should_stop,
                save_every=_SAVE_EVERY,
            )
        finally:
            settings.watcher.finished()
    weights = hashlib.sha256(folder.model.read_bytes()).hexdigest()[:16]
    return load_generator(folder.path)[0], config.batch_size, weights
