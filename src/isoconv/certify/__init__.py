"""From a model to a sound Lipschitz bound, from logits to a certified radius, from a data set to robust accuracy."""

from isoconv.certify.accuracy import RobustAccuracy, robust_accuracy
from isoconv.certify.certificate_file import open_certificate, weights_sha256, write_certificate
from isoconv.certify.certifier import Certified, Certifier, certified_radius, certify
from isoconv.certify.composition import ForwardError, LayerBound, LipschitzBound, lipschitz_bound
from isoconv.certify.rules import Node, Rounding, Rule, register

__all__ = [
    "Certified",
    "Certifier",
    "ForwardError",
    "LayerBound",
    "LipschitzBound",
    "Node",
    "RobustAccuracy",
    "Rounding",
    "Rule",
    "certified_radius",
    "certify",
    "lipschitz_bound",
    "open_certificate",
    "register",
    "robust_accuracy",
    "weights_sha256",
    "write_certificate",
]
