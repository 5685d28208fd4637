"""Look for points within a budget of an image that the deployed network gets wrong."""

from isoconv.attacks.against_certificates import against_certificates
from isoconv.attacks.apgd import apgd
from isoconv.attacks.decision import boundary, pointwise
from isoconv.attacks.pgd import fgsm, pgd
from isoconv.attacks.result import AttackResult
from isoconv.attacks.rounding_search import rounding_search

__all__ = ["AttackResult", "against_certificates", "apgd", "boundary", "fgsm", "pgd", "pointwise", "rounding_search"]
