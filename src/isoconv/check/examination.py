"""Everything that is checked, in order, and the sentence that says what that proves."""

from pathlib import Path

from .certificate import Certificate, read_certificate
from .exact import shown
from .forward_error import require_error_terms
from .images import require_radii
from .network import assembled, require_claims, require_pair_constants, require_product
from .replay import read_images, require_logits
from .tensors import read_model, weights_sha256
from .verdict import Invalid, Malformed

__all__ = ["Invalid", "Malformed", "examine"]


def examine(file: Path, model: Path, images: Path | None = None) -> str:
    """What was proved, in one line. Raises `Invalid` or `Malformed` otherwise."""
    certificate = read_certificate(file)
    tensors = read_model(model)
    pictures = None if images is None else read_images(images, certificate.input_shape)
    found = weights_sha256(tensors)
    if certificate.weights_sha256 != found:
        raise Invalid(f"weights_sha256 is {certificate.weights_sha256!r:.70}, but the model's weights have {found!r}.")
    steps = assembled(certificate, tensors)
    require_claims(steps)
    require_product(certificate)
    require_pair_constants(certificate, tensors)
    require_error_terms(certificate, steps)
    certified = require_radii(certificate)
    replayed = None if pictures is None else require_logits(certificate, steps, pictures)
    return _summary(certificate, certified, replayed)


def _summary(certificate: Certificate, certified: int, replayed: int | None) -> str:
    low, high = certificate.input_range
    shape = "×".join(str(size) for size in certificate.input_shape)
    proved = (
        f"Lipschitz constant at most {shown(certificate.lipschitz)} in the L2 norm from {shape} inputs to "
        f"{certificate.classes} logits, and {certified} of {len(certificate.images)} images with a proved radius, for "
        f"inputs from {low!r} to {high!r}, run in {certificate.arithmetic}"
    )
    order = "that the model applies the layers as they are listed"
    if replayed is None:
        return f"{proved}; not checked without --images: the images' norms and logits, {order}."
    unseen = len(certificate.images) - replayed
    rest = f"{unseen} images that the file does not hold, " if unseen else ""
    return f"{proved}; {replayed} recomputed from their pixels; not checked: {rest}labels, {order} for other inputs."
