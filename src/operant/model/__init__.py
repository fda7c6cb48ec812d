"""The classifier under test, and a doctor that checks it for common mistakes."""

from operant.model.classifier import MIN_ROWS, Classifier, slack_of
from operant.model.copies import copy_module, freeze, is_scripted, on_output
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
    "freeze",
    "is_scripted",
    "on_output",
    "slack_of",
    "value_and_gradient",
]
