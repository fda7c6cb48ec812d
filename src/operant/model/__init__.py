"""The classifier under test, and a doctor that checks it for common mistakes."""

from operant.model.classifier import MIN_ROWS, Classifier, copy_module, slack_of
from operant.model.doctor import Finding
from operant.model.errors import ModuleFails, NoGradients, NotLogits
from operant.model.gradients import value_and_gradient

__all__ = [
    "MIN_ROWS",
    "Classifier",
    "Finding",
    "ModuleFails",
    "NoGradients",
    "NotLogits",
    "copy_module",
    "slack_of",
    "value_and_gradient",
]
