"""The classifier under test: logits from inputs, in input units, and a doctor that looks for mistakes."""

from operant.model.classifier import MIN_ROWS, Classifier, NotLogits, copy_module, slack_of, value_and_gradient
from operant.model.doctor import Finding

__all__ = ["MIN_ROWS", "Classifier", "Finding", "NotLogits", "copy_module", "slack_of", "value_and_gradient"]
