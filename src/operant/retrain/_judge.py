"""Which epoch's weights are kept."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from operant import formatting
from operant.data import Samples
from operant.formatting import points
from operant.model import Classifier
from operant.retrain.retrainer import FinetuneEpoch
from operant.retrain.training import TrainingDiverged
from operant.types import Monitor


@dataclass(frozen=True, kw_only=True, eq=False)
class EpochJudge:
    """Decides after each epoch whether its weights are the best so far.

    An epoch is acceptable if its clean accuracy is at most ``max_drop`` below ``accuracy_before`` and its monitor is
    below ``monitor_before``. The best epoch is the acceptable one with the lowest monitor; of equal ones the more
    accurate, then the earlier.
    """

    validation: Samples
    monitor: Monitor | None  # None: the error rate on the validation samples
    max_drop: float
    accuracy_before: float
    monitor_before: float | None = None  # None: the monitor need not improve
    patience: int | None = None  # epochs without a better one before training stops; None: all epochs

    @property
    def floor(self) -> float:
        """The lowest acceptable clean accuracy."""
        return self.accuracy_before - self.max_drop - 1e-9  # rounding error

    def judge(self, candidate: Classifier, loss: float, history: Sequence[FinetuneEpoch]) -> FinetuneEpoch:
        """The next epoch of a history."""
        number = len(history) + 1
        try:
            accuracy = candidate.accuracy(self.validation)
        except ValueError as error:  # the original model could run on these samples
            raise TrainingDiverged(f"after epoch {number} {error}") from None
        monitor = monitor_value(self.monitor, candidate, accuracy)
        kept, why = self.decide(accuracy, monitor, history)
        return FinetuneEpoch(epoch=number, loss=loss, accuracy=accuracy, monitor=monitor, kept=kept, why=why)

    def decide(self, accuracy: float, monitor: float, history: Sequence[FinetuneEpoch]) -> tuple[bool, str]:
        """Whether an epoch with these values is the best so far, and why."""
        best = best_of(history)
        if accuracy < self.floor:
            required = formatting.accuracy(self.floor)
            return False, f"clean accuracy {formatting.accuracy(accuracy)} is below the required {required}"
        if self.monitor_before is not None and not monitor < self.monitor_before:
            return False, f"the monitor ({monitor:.4g}) is not below the original's {self.monitor_before:.4g}"
        if best is not None and (monitor, -accuracy) >= (best.monitor, -best.accuracy):
            return False, f"the monitor ({monitor:.4g}) is not below epoch {best.epoch}'s {best.monitor:.4g}"
        return True, f"the lowest monitor so far ({monitor:.4g})"

    def impatient(self, history: Sequence[FinetuneEpoch]) -> bool:
        """Whether the last epochs brought no improvement, as many as ``patience`` allows."""
        best = best_of(history)
        return self.patience is not None and len(history) - (best.epoch if best else 0) >= self.patience

    def reason(self, history: Sequence[FinetuneEpoch]) -> str:
        """Why the best epoch was kept, or none, in a sentence."""
        best, good = best_of(history), [e for e in history if e.accuracy >= self.floor]
        before = formatting.accuracy(self.accuracy_before)
        within = f"clean validation accuracy at most {points(self.max_drop)} below the original {before}"
        if best is not None:
            return f"epoch {best.epoch} had the lowest monitor ({best.monitor:.4g}) of the {len(good)} with a {within}"
        kept = "so the original weights were kept"
        if not good:
            highest = max(e.accuracy for e in history)
            return f"no epoch had a {within} (the highest was {formatting.accuracy(highest)}), {kept}"
        below = f"below the original's {self.monitor_before:.4g}"
        lowest = f"the lowest was {min(e.monitor for e in good):.4g}"
        if len(good) == len(history):
            return f"no epoch brought the monitor {below} ({lowest}), {kept}"
        return f"no epoch with a {within} brought the monitor {below} ({lowest}), {kept}"

    def reason_to_stop(self, history: Sequence[FinetuneEpoch]) -> str:
        """Why `impatient` ended the training, in half a sentence."""
        best, last = best_of(history), f"stopped after epoch {len(history)} (patience {self.patience})"
        if best is None:
            return f"{last}, since no epoch was acceptable until then"
        return f"{last}, since no later epoch was acceptable with a lower monitor than epoch {best.epoch}"


def best_of(history: Sequence[FinetuneEpoch]) -> FinetuneEpoch | None:
    """The best epoch: the last that was kept."""
    return next((e for e in reversed(history) if e.kept), None)


def monitor_value(monitor: Monitor | None, model: Classifier, accuracy: float) -> float:
    """The monitor's value for a model; without a monitor, its error rate."""
    value = 1 - accuracy if monitor is None else monitor(model)
    if math.isnan(value):
        raise ValueError("the monitor must return a number, got NaN; smaller is better")
    return float(value)
