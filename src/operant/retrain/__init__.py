"""Step 4: from a model and chosen cases to a better model."""

from operant.retrain.arms import BatchNormStatistics, CaseTraining, FieldTraining, OwnTraining, Retrainer
from operant.retrain.augmentation import GenericAugmentation, generic_augmentation
from operant.retrain.default_arms import default_arms, further_arms
from operant.retrain.distil import DefensiveDistillation, Distilled
from operant.retrain.field_training import Schedule, TrainingRows, find_rate, train_on_rows
from operant.retrain.finetune import Finetune
from operant.retrain.interpolation import interpolate
from operant.retrain.knowledge import FieldKnowledge, TeachingLabels, known_field
from operant.retrain.losses import CrossEntropy, LabelSmoothing, Loss, TrainingBatch
from operant.retrain.manifold_mixup import ManifoldMixup
from operant.retrain.monitor import FieldMonitor, brier_monitor, pmi_monitor
from operant.retrain.operational import OperationalFinetune
from operant.retrain.repaired import ArmRecord, Repaired
from operant.retrain.repairing import hold_out_judges, judge_labels, repair
from operant.retrain.retrainer import CaseRetrainer, FinetuneEpoch, FinetuneRecord, OnEpoch, Retrained, without_bar
from operant.retrain.rows import RowSource, UnderConditions
from operant.retrain.training import TrainableModel, TrainingDiverged, TrainingOptions
from operant.retrain.unlabelled import UnlabelledRows

__all__ = [
    "ArmRecord",
    "BatchNormStatistics",
    "CaseRetrainer",
    "CaseTraining",
    "CrossEntropy",
    "DefensiveDistillation",
    "Distilled",
    "FieldKnowledge",
    "FieldMonitor",
    "FieldTraining",
    "Finetune",
    "FinetuneEpoch",
    "FinetuneRecord",
    "GenericAugmentation",
    "LabelSmoothing",
    "Loss",
    "ManifoldMixup",
    "OnEpoch",
    "OperationalFinetune",
    "OwnTraining",
    "Repaired",
    "Retrained",
    "Retrainer",
    "RowSource",
    "Schedule",
    "TeachingLabels",
    "TrainableModel",
    "TrainingBatch",
    "TrainingDiverged",
    "TrainingOptions",
    "TrainingRows",
    "UnderConditions",
    "UnlabelledRows",
    "brier_monitor",
    "default_arms",
    "find_rate",
    "further_arms",
    "generic_augmentation",
    "hold_out_judges",
    "interpolate",
    "judge_labels",
    "known_field",
    "pmi_monitor",
    "repair",
    "train_on_rows",
    "without_bar",
]
