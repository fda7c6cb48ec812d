"""Step 4: from a model and chosen cases to a better model."""

from operant.retrain.distil import DefensiveDistillation, Distilled
from operant.retrain.finetune import Finetune
from operant.retrain.losses import CrossEntropy, LabelSmoothing, Loss, TrainingBatch
from operant.retrain.manifold_mixup import ManifoldMixup
from operant.retrain.monitor import FieldMonitor, brier_monitor, pmi_monitor
from operant.retrain.operational import OperationalFinetune
from operant.retrain.retrainer import FinetuneEpoch, FinetuneRecord, OnEpoch, Retrained, Retrainer, without_bar
from operant.retrain.training import TrainableModel, TrainingOptions

__all__ = [
    "CrossEntropy",
    "DefensiveDistillation",
    "Distilled",
    "FieldMonitor",
    "Finetune",
    "FinetuneEpoch",
    "FinetuneRecord",
    "LabelSmoothing",
    "Loss",
    "ManifoldMixup",
    "OnEpoch",
    "OperationalFinetune",
    "Retrained",
    "Retrainer",
    "TrainableModel",
    "TrainingBatch",
    "TrainingOptions",
    "brier_monitor",
    "pmi_monitor",
    "without_bar",
]
