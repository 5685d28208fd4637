"""The present code against the answers of the code before the rebuilding, on a sample; `compare.py` takes all."""

import pytest

from judge import compare
from judge.compare import compare_certificates, compare_networks, load, spread

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same'")


def test_networks() -> None:
    """No bound is smaller and no radius larger than it was, and nothing else has changed without a written reason."""
    networks = load(compare.NETWORKS)["networks"]
    findings = compare_networks(networks, spread(len(networks) - 3, 130))
    assert not findings.unsound and not [line for line in findings.other if "other weights" not in line], str(findings)


def test_shipped_networks() -> None:
    networks = load(compare.NETWORKS)["networks"]
    findings = compare_networks(networks, range(len(networks) - 3, len(networks)))
    assert findings.counts["equal"] > 30 and not findings.unsound and not findings.other, str(findings)


def test_certificates() -> None:
    """No certificate has another verdict than it had, without a written reason."""
    corpus = load(compare.CERTIFICATES)
    findings = compare_certificates(corpus, spread(len(corpus["verdicts"]), 390))
    assert not findings.unsound and not findings.other, str(findings)


def test_a_difference_is_seen() -> None:
    """A bound that is lowered by 1e-9 and a radius that is raised as much are what the judge must see."""
    spec = next(
        case["spec"] for case in load(compare.NETWORKS)["networks"] if isinstance(case["old"].get("float64"), dict)
    )
    old, new = compare.answer(spec), compare.answer(spec)
    for name, factor in (("bounds", 1 - 1e-9), ("radii", 1 + 1e-9)):
        new["float64"][name][0] = (float.fromhex(new["float64"][name][0]) * factor).hex()
    changes = {what: change for what, change in compare.network_changes(old, new).items() if change != "equal"}
    assert changes == {"lipschitz, float64": "smaller", "radius 0, float64": "larger"}
