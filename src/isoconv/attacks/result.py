"""What an attack found."""

import math
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class AttackResult:
    """One row per image, on the device that the images were given on. All measured in float64 at the points returned.

    images : the point that was found, in [0, 1]: where the attack failed, the one of the smallest margin that it saw; the
        image itself where it was wrong from the start
    norms : an upper bound of the exact L2 distance between that point and the image; never above `epsilon`
    clean : whether the network was right about the image itself
    success : whether it is wrong about the point (a tie and NaN are wrong)
    margins : y_t − max_{j ≠ t} y_j at the point, t the label; −inf where the logits are NaN
    epsilon : the budget of each image
    """

    images: Tensor
    norms: Tensor
    clean: Tensor
    success: Tensor
    margins: Tensor
    epsilon: Tensor

    @property
    def survived(self) -> Tensor:
        """Right before the attack and after it."""
        return self.clean & ~self.success

    @property
    def accuracy(self) -> float:
        """Percent of all images that survived; NaN of no images."""
        return _percent(self.survived)

    @property
    def clean_accuracy(self) -> float:
        """Percent of all images that the network was right about before the attack; NaN of no images."""
        return _percent(self.clean)


def _percent(mask: Tensor) -> float:
    return 100 * int(mask.sum()) / len(mask) if len(mask) else math.nan
