"""The paper's figures, as printed and as the authors corrected them, and those that it quotes from others.

Accuracies are in percent, (mean, population standard deviation) over five seeds; the deviation is None where none is given.
"""

from dataclasses import dataclass

Figure = tuple[float, float | None]
Key = tuple[str | None, ...]  # (data set, network, method), and the attack where there is one

_CLEAN: dict[Key, Figure] = {  # tables 1, 2 and "additional ablation"
    ("mnist", "small", "ossn"): (96.86, 0.13),
    ("mnist", "small", "rko"): (97.28, 0.08),
    ("mnist", "small", "svcm"): (97.24, 0.09),
    ("mnist", "small", "bcop"): (97.54, 0.06),
    ("mnist", "large", "ossn"): (98.31, 0.03),
    ("mnist", "large", "rko"): (98.44, 0.05),
    ("mnist", "large", "svcm"): (97.93, 0.05),
    ("mnist", "large", "bcop"): (98.69, 0.01),
    ("cifar10", "small", "ossn"): (62.18, 0.66),
    ("cifar10", "small", "rko"): (61.77, 0.63),
    ("cifar10", "small", "svcm"): (62.39, 0.46),
    ("cifar10", "small", "bcop"): (64.53, 0.30),
    ("cifar10", "large", "ossn"): (67.51, 0.47),
    ("cifar10", "large", "rko"): (70.01, 0.26),
    ("cifar10", "large", "svcm"): (69.65, 0.38),
    ("cifar10", "large", "bcop"): (72.16, 0.23),
    ("mnist", "small", "bcop-fixed"): (93.57, 0.17),
    ("mnist", "small", "rkl2ne"): (95.85, 0.12),
    ("mnist", "large", "bcop-fixed"): (69.12, 5.61),
    ("mnist", "large", "rkl2ne"): (96.76, 0.11),
    ("cifar10", "small", "bcop-fixed"): (50.61, 0.65),
    ("cifar10", "small", "rkl2ne"): (58.82, 0.67),
    ("cifar10", "large", "bcop-fixed"): (47.70, 0.92),
    ("cifar10", "large", "rkl2ne"): (56.75, 0.68),
    ("mnist", "fc3", None): (98.71, 0.02),
    ("cifar10", "fc3", None): (62.60, 0.39),
}
_ROBUST: dict[Key, Figure] = {  # at 1.58 on MNIST and at 36/255 on CIFAR-10
    ("mnist", "small", "ossn"): (42.95, 1.09),
    ("mnist", "small", "rko"): (43.58, 0.44),
    ("mnist", "small", "svcm"): (28.94, 1.58),
    ("mnist", "small", "bcop"): (45.84, 0.90),
    ("mnist", "large", "ossn"): (53.77, 1.02),
    ("mnist", "large", "rko"): (55.18, 0.46),
    ("mnist", "large", "svcm"): (38.00, 1.82),
    ("mnist", "large", "bcop"): (56.37, 0.33),
    ("cifar10", "small", "ossn"): (48.03, 0.54),
    ("cifar10", "small", "rko"): (47.46, 0.53),
    ("cifar10", "small", "svcm"): (47.59, 0.56),
    ("cifar10", "small", "bcop"): (50.01, 0.21),
    ("cifar10", "large", "ossn"): (53.64, 0.49),
    ("cifar10", "large", "rko"): (55.76, 0.16),
    ("cifar10", "large", "svcm"): (53.61, 0.51),
    ("cifar10", "large", "bcop"): (58.26, 0.17),
    ("mnist", "small", "bcop-fixed"): (7.51, 1.18),
    ("mnist", "small", "rkl2ne"): (39.77, 0.73),
    ("mnist", "large", "bcop-fixed"): (0.00, 0.00),
    ("mnist", "large", "rkl2ne"): (37.79, 1.21),
    ("cifar10", "small", "bcop-fixed"): (36.44, 0.70),
    ("cifar10", "small", "rkl2ne"): (44.65, 0.61),
    ("cifar10", "large", "bcop-fixed"): (27.47, 1.37),
    ("cifar10", "large", "rkl2ne"): (43.40, 0.46),
    ("mnist", "fc3", None): (54.46, 0.30),
    ("cifar10", "fc3", None): (49.97, 0.35),
}
_ROBUST_CLOSE: dict[Key, Figure] = {  # at 0.3 on MNIST and at 0.1 on CIFAR-10; table "MMR"
    ("mnist", "large", "bcop"): (97.04, 0.03),
    ("mnist", "fc3", None): (97.06, 0.02),
    ("cifar10", "large", "bcop"): (62.53, 0.21),
    ("cifar10", "fc3", None): (53.67, 0.29),
}
_ATTACKED: dict[Key, Figure] = {  # tables 3 and "QW"
    ("cifar10", "small", "bcop", "pgd"): (51.26, 0.17),
    ("cifar10", "small", "bcop", "fgsm"): (51.57, 0.18),
    ("cifar10", "large", "bcop", "pgd"): (64.12, 0.13),
    ("cifar10", "large", "bcop", "fgsm"): (64.24, 0.12),
    ("mnist", "large", "bcop", "pgd"): (86.38, 0.16),
    ("mnist", "large", "bcop", "fgsm"): (86.49, 0.16),
    ("mnist", "fc3", None, "pgd"): (81.96, 0.16),
    ("mnist", "fc3", None, "fgsm"): (83.64, 0.10),
    ("cifar10", "fc3", None, "pgd"): (50.05, 0.36),
    ("cifar10", "fc3", None, "fgsm"): (50.21, 0.34),
    ("cifar10", "small", "bcop", "boundary"): (61.20, 2.99),
    ("cifar10", "small", "bcop", "pointwise"): (74.00, 2.28),
    ("cifar10", "large", "bcop", "boundary"): (71.00, 2.28),
    ("cifar10", "large", "bcop", "pointwise"): (78.40, 1.96),
}
_CLEAN_OF_100: dict[Key, Figure] = {  # on the first 100 test images of CIFAR-10
    ("cifar10", "small", "bcop"): (74.20, 2.23),
    ("cifar10", "large", "bcop"): (78.40, 1.96),
}
# The released code used the first 2×2 block of a larger kernel twice and the last never: only the Large networks changed.
_CORRECTED: dict[Key, float] = {
    ("clean", "cifar10", "large", "bcop"): 72.41,
    ("robust", "cifar10", "large", "bcop"): 58.72,
    ("robust close", "cifar10", "large", "bcop"): 62.97,
    ("attacked", "cifar10", "large", "bcop", "pgd"): 64.39,
    ("clean", "mnist", "large", "bcop"): 98.77,
    ("robust", "mnist", "large", "bcop"): 56.66,
    ("robust close", "mnist", "large", "bcop"): 97.11,
    ("clean", "mnist", "large", "bcop-fixed"): 65.20,
}
WASSERSTEIN: dict[tuple[str, str], Figure] = {  # (activation, method), STL-10; table 4
    ("maxmin", "ossn"): (7.39, 0.31),
    ("maxmin", "rko"): (8.95, 0.12),
    ("maxmin", "bcop"): (9.91, 0.11),
    ("relu", "ossn"): (7.06, 0.72),
    ("relu", "rko"): (7.82, 0.21),
    ("relu", "bcop"): (8.28, 0.19),
}
STEP_SECONDS = {"standard": 0.041, "bcop": 0.138, "rko": 0.120, "ossn": 0.113}  # on one NVIDIA P100
PARAMETERS = {
    ("mnist", "small"): 166_406,
    ("cifar10", "small"): 214_918,
    ("mnist", "large"): 1_974_762,
    ("cifar10", "large"): 2_466_858,
    ("mnist", "fc3"): 2_913_290,
    ("cifar10", "fc3"): 5_256_202,
    ("stl10", "dcgan"): 2_764_737,
}
# Exponents of c and s in the appendix on cost: O(c³) and O(c³s²).
COMPLEXITY = {"bcop": (3, 0), "rko": (3, 0), "ossn": (3, 2), "svcm": (3, 2), "rkl2ne": None}


@dataclass(frozen=True)
class Printed:
    """What the paper says of one figure: as printed, and as corrected where that is known."""

    printed: Figure
    corrected: float | None = None

    @property
    def bar(self) -> Figure:
        """The higher of the two, with the printed deviation: what ours is compared with."""
        mean, std = self.printed
        return (mean if self.corrected is None else max(mean, self.corrected)), std


def paper_accuracy(
    quantity: str, dataset: str, model: str, conv: str | None, attack: str | None = None
) -> Printed | None:
    """One figure of the paper, or None if it has none.

    quantity : "clean", "robust", "robust close" (at the smaller radius), "attacked" (by `attack`), or "clean of 100"
    """
    key: Key = (dataset, model, conv) if attack is None else (dataset, model, conv, attack)
    tables = {
        "clean": _CLEAN,
        "robust": _ROBUST,
        "robust close": _ROBUST_CLOSE,
        "attacked": _ATTACKED,
        "clean of 100": _CLEAN_OF_100,
    }
    found = tables[quantity].get(key)
    return None if found is None else Printed(found, _CORRECTED.get((quantity, *key)))


@dataclass(frozen=True)
class Quoted:
    """Figures of other people's networks as the paper quotes them."""

    name: str
    dataset: str
    epsilon: str
    clean: float
    robust: float | None = None
    pgd: float | None = None
    fgsm: float | None = None
    boundary: float | None = None
    pointwise: float | None = None
    source: str = ""


_KW = "Wong et al. 2018, table 4 of its appendix"
_KW_MODELS = "the networks of Wong et al. 2018 from their repository, measured by the paper"
_MMR = "Croce et al. 2019, table 1"
_QW = "the networks of Qian and Wegman 2018 from their website, measured by the paper"

QUOTED_SOTA = (
    Quoted("kw-large", "mnist", "1.58", 88.12, 44.53, source=_KW),
    Quoted("kw-large", "cifar10", "36/255", 59.76, 50.60, source=_KW),
    Quoted("kw-resnet", "cifar10", "36/255", 61.20, 51.96, source=_KW),
    Quoted("mmr-universal", "mnist", "0.3", 96.96, 89.60, source=_MMR),
    Quoted("mmr-universal", "cifar10", "0.1", 53.04, 46.40, source=_MMR),
    Quoted("qw-3", "mnist", "1.58", 98.65, 42.13, 86.86, 85.83, source=_QW),
    Quoted("qw-4", "mnist", "1.58", 98.23, 27.59, 86.25, 84.17, source=_QW),
    Quoted("qw-3", "cifar10", "36/255", 79.15, 44.46, 72.07, 72.11, source=_QW),
    Quoted("qw-4", "cifar10", "36/255", 77.15, 31.41, 71.89, 71.92, source=_QW),
)
QUOTED_ATTACKS = (
    Quoted("kw-small", "cifar10", "36/255", 54.39, pgd=49.94, fgsm=49.98, source=_KW_MODELS),
    Quoted("kw-large", "cifar10", "36/255", 60.14, pgd=55.53, fgsm=55.55, source=_KW_MODELS),
)
QUOTED_ATTACKS_OF_100 = (
    Quoted("kw-small", "cifar10", "36/255", 63.00, boundary=60.00, pointwise=63.00, source=_KW_MODELS),
    Quoted("kw-large", "cifar10", "36/255", 68.00, boundary=64.00, pointwise=68.00, source=_KW_MODELS),
)
