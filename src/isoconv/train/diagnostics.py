"""Two more files of a finished run, which its report shows: diagnostics.json and gallery.json.

diagnostics.json  the singular values of every layer and the norm of the gradient by depth, before and after training; of
                  a user's own network after it, since what its training began with is not kept
gallery.json      a few test images with what is certified of them and the nearest adversarial example that was found;
                  how often each class was taken for which, and the images that are misclassified

Both hold the hash of the weights that they were made from, so that the report never shows those of an older network.
"""

import base64
import copy
import io
import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

import torch
from torch import Tensor, nn

from isoconv.attacks.gradient import nearest
from isoconv.certify import Certifier, RobustAccuracy, weights_sha256
from isoconv.certify.accuracy import default_batch_size
from isoconv.certify.diagnostics import gradient_norms, singular_values
from isoconv.data import NAMES, ImageSet, as_float
from isoconv.data.streamed import StreamedSet
from isoconv.errors import IsoconvError, require
from isoconv.records import Index, Picture, Range, Size
from isoconv.train.config import TrainConfig, is_own, make_model
from isoconv.train.run_folder import Finding
from isoconv.train.runs import Progress, TrainedRun

CERTIFIED, DIAGNOSTICS, GALLERY = "certified.json", "diagnostics.json", "gallery.json"

_GRADIENT_IMAGES = 128
_BIN, _BINS = 0.01, 200  # bins of a histogram are this wide, or wider if that would make many more than so many
_LARGEST = 64  # pixels of a picture's longer side; larger images are shown smaller
_MISTAKES = 1_000_000  # bytes of pictures of mistakes; those with the largest radii come first
_MOST_CLASSES = 100  # whose confusions are counted: a page shows no larger matrix

# The files -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Histogram(Finding):
    min: Size
    mean: float
    max: Size
    counts: tuple[Index, ...]


@dataclass(frozen=True)
class LayerHistograms(Finding):
    """The singular values of a layer, in bins centred at 0, width, 2·width, …"""

    title: str
    name: str
    kind: str
    width: Annotated[float, Range(1e-12)]
    before: Histogram | None
    after: Histogram

    def __post_init__(self) -> None:
        before, after = len((self.before or self.after).counts), len(self.after.counts)
        require(before == after, f"{before} bins after training, as before it, in {self.title!r}", after)


@dataclass(frozen=True)
class NormSummary(Finding):
    """Mean, 10 % and 90 % quantile over images, for each place in the network."""

    mean: tuple[Size, ...]
    low: tuple[Size, ...]
    high: tuple[Size, ...]


@dataclass(frozen=True)
class GradientNorms(Finding):
    images: int
    places: tuple[str, ...]
    before: NormSummary | None
    after: NormSummary

    def __post_init__(self) -> None:
        for norms in (self.before or self.after, self.after):
            lengths = {len(norms.mean), len(norms.low), len(norms.high)}
            require(lengths == {len(self.places)}, f"a norm for each of {len(self.places)} places", sorted(lengths))


@dataclass(frozen=True)
class Diagnostics(Finding):
    """What the layers of a run do to norms, and in `note` why something is missing."""

    weights_sha256: str
    layers: tuple[LayerHistograms, ...]
    gradient_norms: GradientNorms | None = None
    note: str = ""


@dataclass(frozen=True)
class Adversarial(Finding):
    """The smallest perturbation found that changes the prediction, and the new prediction; images as data URIs."""

    norm: Size
    prediction: Index
    image: Picture
    change: Picture


@dataclass(frozen=True)
class GalleryImage(Finding):
    """One test image. `adversarial` is None if the image is misclassified, or if nothing was found.

    file : the folder and name of a user's own image file
    """

    index: Index
    label: Index
    prediction: Index
    radius: Size
    image: Picture
    adversarial: Adversarial | None = None
    file: str = ""


@dataclass(frozen=True)
class Gallery(Finding):
    """Some images, and what the network gets wrong.

    confusion : how many images of each class (rows) were taken for each class (columns); empty for more than 100 classes
    mistakes : misclassified images, those with the largest radii first; `mistake_count` says how many there are in all
    """

    weights_sha256: str
    images: tuple[GalleryImage, ...]
    confusion: tuple[tuple[Index, ...], ...] = ()
    mistakes: tuple[GalleryImage, ...] = ()
    mistake_count: Index | None = None

    def check_classes(self, count: int) -> None:
        """Raise if a label or a prediction is not one of so many classes."""
        sizes = {len(self.confusion), *map(len, self.confusion)}
        require(not self.confusion or sizes == {count}, f"a confusion matrix of {count} classes", sorted(sizes))
        for image in self.images + self.mistakes:
            numbers = [image.label, image.prediction, image.adversarial.prediction if image.adversarial else 0]
            require(max(numbers) < count, f"classes from 0 to {count - 1}", max(numbers))


_R = TypeVar("_R", Diagnostics, Gallery)

# Making them -----------------------------------------------------------------------------------------------------------


def complete_run(
    run: TrainedRun,
    data: ImageSet | None,
    *,
    device: str = "cpu",
    accuracy: RobustAccuracy | None = None,
    images: int = 12,
    progress: Progress = lambda title, done, total: None,
) -> list[str]:
    """Compute what the report shows and the run's folder lacks; return the names of the files written.

    Without test images, `data`, only the singular values are made. `accuracy` is of this network, if it was certified
    before. The gallery has so many `images`.
    """
    folder, made = run.folder, []
    if data is not None and accuracy is None and not (folder / CERTIFIED).exists():
        accuracy, record = run.certify(data, device=device, progress=progress)
        run.keep(CERTIFIED, record.to_fields())
        made.append(CERTIFIED)
    model, config = copy.deepcopy(run.model).cpu(), run.config
    diagnostics, gallery, weights = _current(folder, model)
    if diagnostics is None or (diagnostics.gradient_norms is None and data is not None):
        _diagnose(config, model, data, weights).write(folder / DIAGNOSTICS)
        made.append(DIAGNOSTICS)
    if data is not None and not _is_complete(gallery):
        if accuracy is None:
            accuracy, _ = run.certify(data, device=device, progress=progress)
        show = partial(progress, "searching examples")
        entries = gallery_entries(accuracy.certifier, data, images, seed=config.seed, progress=show)
        Gallery(weights, tuple(entries), *_mistakes(accuracy, data)).write(folder / GALLERY)
        made.append(GALLERY)
    elif gallery is None:
        (folder / GALLERY).unlink(missing_ok=True)  # of another network
    return made


def lacks_images(run: TrainedRun) -> bool:
    """Return True if `complete_run` has something to do that it needs test images for."""
    diagnostics, gallery, _ = _current(run.folder, run.model)
    diagnosed = diagnostics is not None and diagnostics.gradient_norms is not None
    return not (diagnosed and _is_complete(gallery) and (run.folder / CERTIFIED).exists())


def _is_complete(gallery: Gallery | None) -> bool:
    """Return False also for a gallery that an earlier version made, without the mistakes."""
    return gallery is not None and gallery.mistake_count is not None


def _current(folder: Path, model: nn.Module) -> tuple[Diagnostics | None, Gallery | None, str]:
    """Return what the two files hold, None if one is not there or of other weights, and the hash of the weights."""
    weights = weights_sha256(model)

    def read(kind: type[_R], name: str) -> _R | None:
        found = kind.read(folder / name) if (folder / name).exists() else None
        return found if found is not None and found.weights_sha256 == weights else None

    return read(Diagnostics, DIAGNOSTICS), read(Gallery, GALLERY), weights


def _diagnose(config: TrainConfig, trained: nn.Module, data: ImageSet | None, weights: str) -> Diagnostics:
    fresh = None if is_own(config.model) else make_model(config)  # from the run's seed: what training began with
    left_out, notes = list[str](), list[str]()
    spectra = singular_values(trained, config.input_shape, left_out)
    before: list[Tensor | None] = [None] * len(spectra)
    if fresh is not None:
        before = [spectrum.values for spectrum in singular_values(fresh, config.input_shape)]
    layers = tuple(
        LayerHistograms(after.title, after.name, after.kind, *_histograms(values, after.values))
        for values, after in zip(before, spectra, strict=True)
    )
    if fresh is None:
        began = "what a network of your own began with is not kept"
        notes.append(f"Singular values and gradient norms are those after training: {began}.")
    if left_out:
        which = f"{len(left_out)} of {len(left_out) + len(layers)} layers"
        reason = "they are computed for convolutions that pad circularly, without groups or dilation"
        notes.append(f"The singular values of {which} are left out: {reason}.")
    return Diagnostics(weights, layers, None if data is None else _gradients(fresh, trained, data), " ".join(notes))


def _histograms(before: Tensor | None, after: Tensor) -> tuple[float, Histogram | None, Histogram]:
    """Return the bins' width, which both share, and the histograms: the many values at 1, give or take 1e-7, share a bin."""
    largest = max(float(values.max()) for values in (before, after) if values is not None)
    least = max(_BIN, largest / _BINS)  # about the width: 1, 2 or 5 times a power of ten, so that a bin lies around 1
    power = 10.0 ** math.floor(math.log10(least))
    width = min((1.0, 2.0, 5.0, 10.0), key=lambda digit: abs(digit * power - least)) * power
    bins = round(largest / width) + 1

    def histogram(values: Tensor) -> Histogram:
        counts = torch.bincount(torch.round(values / width).long().clamp(0, bins - 1), minlength=bins)
        return Histogram(float(values.min()), float(values.mean()), float(values.max()), tuple(counts.tolist()))

    return width, None if before is None else histogram(before), histogram(after)


def _gradients(fresh: nn.Module | None, trained: nn.Module, data: ImageSet) -> GradientNorms:
    part = data.take(min(_GRADIENT_IMAGES, len(data)))

    def summarise(model: nn.Module) -> tuple[tuple[str, ...], NormSummary]:
        batches = part.batches(default_batch_size(part.shape))
        parts = [gradient_norms(model, as_float(images, torch.float64), labels) for images, labels in batches]
        norms = torch.cat([found.norms for found in parts], dim=1)
        figures = norms.mean(dim=1), norms.quantile(0.1, dim=1), norms.quantile(0.9, dim=1)
        return tuple(parts[0].places), NormSummary(*(tuple(figure.tolist()) for figure in figures))

    places, after = summarise(trained)
    return GradientNorms(len(part), places, None if fresh is None else summarise(fresh)[1], after)


def gallery_entries(certifier: Certifier, data: ImageSet, count: int = 12, **options: Any) -> list[GalleryImage]:
    """Return the first images of the test set, of all classes in turn, with the nearest adversarial example of each.

    options : seed and progress of `isoconv.attacks.nearest`
    """
    # The first image of each class, in their order, then the second of each, …
    turns = nn.functional.one_hot(data.labels).cumsum(dim=0).gather(1, data.labels[:, None])[:, 0]
    indices = turns.argsort(stable=True)[:count].tolist()
    part = data.subset(indices)
    pixels = as_float(part.images, torch.float64)
    certificates = certifier(pixels).cpu()
    radii = torch.where(certificates.prediction == part.labels, certificates.radius, 0.0)
    attack = nearest(certifier.deployed, pixels, part.labels, certified=radii, **options)
    fooled = certifier(attack.images).cpu().prediction
    entries = []
    for k, index in enumerate(indices):
        adversarial = None
        if bool(attack.clean[k]) and bool(attack.success[k]):
            change = attack.images[k] - pixels[k]  # its picture is grey where nothing changes
            visible = 0.5 + change / (2 * float(change.abs().max()) or 1)
            uris = picture_uri(attack.images[k]), picture_uri(visible)
            adversarial = Adversarial(float(attack.norms[k]), int(fooled[k]), *uris)
        figures = int(part.labels[k]), int(certificates.prediction[k]), float(certificates.radius[k])
        entries.append(GalleryImage(index, *figures, picture_uri(pixels[k]), adversarial, _file_name(data, index)))
    return entries


def _mistakes(
    accuracy: RobustAccuracy, data: ImageSet
) -> tuple[tuple[tuple[int, ...], ...], tuple[GalleryImage, ...], int]:
    """Return the confusion matrix, the misclassified images, the most certain first, and their number."""
    labels, predictions = accuracy.labels, accuracy.certificates.prediction
    count, radii = len(data.classes), accuracy.certificates.radius
    pairs = torch.bincount(labels * count + predictions, minlength=count**2) if count <= _MOST_CLASSES else None
    confusion = () if pairs is None else tuple(map(tuple, pairs.view(count, count).tolist()))
    wrong = (predictions != labels).nonzero()[:, 0]
    wrong = wrong[radii[wrong].argsort(descending=True, stable=True)]
    mistakes, size = list[GalleryImage](), 0
    for index in wrong.tolist():
        picture = picture_uri(as_float(data.subset([index]).images[0], torch.float64))
        size += len(picture)
        if size > _MISTAKES:
            break
        figures = int(labels[index]), int(predictions[index]), float(radii[index])
        mistakes.append(GalleryImage(index, *figures, picture, file=_file_name(data, index)))
    return confusion, tuple(mistakes), len(wrong)


def _file_name(data: ImageSet, index: int) -> str:
    """Return the folder and the name of a picture's file, or nothing for data sets in files of another kind."""
    if not isinstance(data, StreamedSet):
        return ""
    source = str(data.files.sources[int(data.index[index])])  # FOLDER/FILE, or SHARD:MEMBER
    return "/".join(Path(source).parts[-2:]).encode(errors="replace").decode()


def picture_uri(pixels: Tensor) -> str:
    """Return pixels in [0, 1], (1 or 3, H, W), rounded to 8 bits, as a PNG in a data URI."""
    from PIL import Image

    array = (pixels * 255).round().clamp(0, 255).to(torch.uint8).cpu()
    picture = Image.fromarray(array[0].numpy() if len(array) == 1 else array.permute(1, 2, 0).contiguous().numpy())
    if max(picture.size) > _LARGEST:
        picture.thumbnail((_LARGEST, _LARGEST))
    file = io.BytesIO()
    picture.save(file, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def find_test_images(run: TrainedRun, folder: Path | None, download: bool) -> ImageSet | str:
    """Return a run's test images, or why there are none. A data set that was pointed at, or is to be fetched, must be there.

    `folder` is for all runs of a page: a user's own images may be there, or still where they were.
    """
    own, reasons = run.config.data not in NAMES, []
    for source in dict.fromkeys((None, folder) if own else (folder,)):
        try:
            return run.test_images(source, download and not own)
        except IsoconvError as error:
            if not own and (folder is not None or download):
                raise
            reasons.append(str(error))
    return reasons[0]
