"""The classifier under test, and a doctor that checks it for common mistakes."""

from operant.model.classifier import MIN_ROWS, Classifier, NotLogits, copy_module, slack_of, value_and_gradient
from operant.model.doctor import Finding

__all__ = ["MIN_ROWS", "Classifier", "Finding", "NotLogits", "copy_module", "slack_of", "value_and_gradient"]
