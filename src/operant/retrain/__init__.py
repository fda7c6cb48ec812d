"""Step 4: from a model and chosen cases to a better model."""

from operant.retrain._loop import FinetuneEpoch
from operant.retrain.distil import DefensiveDistillation, Distilled, LabelSmoothing
from operant.retrain.finetune import Finetune, FinetuneRecord, Retrained
from operant.retrain.manifold_mixup import ManifoldMixup
from operant.retrain.monitor import FieldMonitor, brier_monitor, pmi_monitor
from operant.retrain.operational import OperationalEpoch, OperationalFinetune, OperationalRecord, Repaired

__all__ = [
    "DefensiveDistillation",
    "Distilled",
    "FieldMonitor",
    "Finetune",
    "FinetuneEpoch",
    "FinetuneRecord",
    "LabelSmoothing",
    "ManifoldMixup",
    "OperationalEpoch",
    "OperationalFinetune",
    "OperationalRecord",
    "Repaired",
    "Retrained",
    "brier_monitor",
    "pmi_monitor",
]
