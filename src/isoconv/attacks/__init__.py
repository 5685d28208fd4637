"""Search the ball around an image for points that the deployed network misclassifies."""

from isoconv.attacks.decision import boundary, pointwise
from isoconv.attacks.gradient import apgd, fgsm, pgd
from isoconv.attacks.rounding_search import rounding_search
from isoconv.attacks.search import AttackResult, against_certificates

__all__ = ["AttackResult", "against_certificates", "apgd", "boundary", "fgsm", "pgd", "pointwise", "rounding_search"]
