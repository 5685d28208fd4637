"""From a model to a sound Lipschitz bound, from logits to a certified radius, from a data set to robust accuracy."""

from isoconv.certify.accuracy import RobustAccuracy, robust_accuracy
from isoconv.certify.certificate_file import weights_sha256, write_certificate
from isoconv.certify.certifier import Certified, Certifier, certified_radius, certify
from isoconv.certify.forward_error import ForwardError
from isoconv.certify.lipschitz import LayerBound, LipschitzBound, lipschitz_bound

__all__ = [
    "Certified",
    "Certifier",
    "ForwardError",
    "LayerBound",
    "LipschitzBound",
    "RobustAccuracy",
    "certified_radius",
    "certify",
    "lipschitz_bound",
    "robust_accuracy",
    "weights_sha256",
    "write_certificate",
]
