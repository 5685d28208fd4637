"""What an attack left of a network, beside what had been proved of it."""

from typing import Any

from torch import Tensor

from isoconv.attacks.result import AttackResult
from isoconv.certify import RobustAccuracy


def against_certificates(result: AttackResult, certified: RobustAccuracy, epsilon: float) -> dict[str, Any]:
    """Clean, certified and attacked accuracy of the images that were attacked, in percent, and certificates broken.

    The attacked images are the first of those certified. An image counts as surviving only if it is right both before and
    after; a violation is a success within the image's own certified radius.
    """
    success, norms = result.success.cpu(), result.norms.cpu()
    right, radius = certified.right[: len(success)], certified.certificates.radius[: len(success)]
    return {
        "clean": _percent(right),
        "certified": _percent(right & (radius >= epsilon)),
        "accuracy": _percent(right & ~success),
        "violations": int((right & success & (norms <= radius)).sum()),
    }


def _percent(which: Tensor) -> float:
    return 100 * int(which.sum()) / len(which)
