"""Training any network, resumable, fast on a GPU; runs and their folders; classifiers and their recipes."""

from typing import TYPE_CHECKING

from isoconv.lazy import lazy_face

if TYPE_CHECKING:
    from isoconv.losses import LOSSES as LOSSES
    from isoconv.train.classifier import TrainResult as TrainResult
    from isoconv.train.classifier import train as train
    from isoconv.train.classifier import train_classifiers as train_classifiers
    from isoconv.train.config import OPTIMISERS as OPTIMISERS
    from isoconv.train.config import RECIPES as RECIPES
    from isoconv.train.config import SCHEDULES as SCHEDULES
    from isoconv.train.config import TrainConfig as TrainConfig
    from isoconv.train.config import recipe_settings as recipe_settings
    from isoconv.train.diagnostics import complete_run as complete_run
    from isoconv.train.engine import FitResult as FitResult
    from isoconv.train.engine import Stopped as Stopped
    from isoconv.train.engine import fit as fit
    from isoconv.train.run_folder import RunFolder as RunFolder
    from isoconv.train.run_folder import load_run as load_run
    from isoconv.train.runs import AttackRecord as AttackRecord
    from isoconv.train.runs import CertifiedRecord as CertifiedRecord
    from isoconv.train.runs import Prediction as Prediction
    from isoconv.train.runs import TrainedRun as TrainedRun
    from isoconv.train.runs import attack_run as attack_run
    from isoconv.train.runs import certify_run as certify_run
    from isoconv.train.runs import open_run as open_run
    from isoconv.train.runs import open_runs as open_runs
    from isoconv.train.runs import refuse_violations as refuse_violations

__getattr__, __dir__, __all__ = lazy_face(__name__, __file__)
