"""Which arms take part in a race: those that do by default, and those that can be added."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from operant.formatting import percent
from operant.generate import UncertaintyFuzz
from operant.model import Classifier
from operant.retrain.arms import BatchNormStatistics, CaseTraining, FieldTraining, Retrainer, batch_norms
from operant.retrain.field_training import Schedule
from operant.retrain.finetune import Finetune
from operant.retrain.knowledge import FieldKnowledge
from operant.retrain.manifold_mixup import INPUT, ManifoldMixup

DEFAULT, PLAIN = "labels and simulated field", "the same without unlabelled inputs"
SELF_TRAINING, FAILURES = "the same with self-training", "the same with operational failures"
GENERIC = "labels and generic augmentation"
SIMULATED, INFORMATION = "simulated field alone", "information maximisation"
FAILURES_ALONE, PATTERNS = "operational failures alone", "uncertainty patterns"
FURTHER = (SIMULATED, INFORMATION, FAILURES_ALONE, PATTERNS)
MIXED, MIN_STATISTICS = (0.3, 0.5, 0.7), 100  # shares of the field's batch-norm statistics; inputs that they need
RADIUS = 0.1  # of cases by uncertainty, relative to the width of the bounds


def default_arms(
    model: Classifier,
    known: FieldKnowledge,
    schedule: Schedule = Schedule(),  # noqa: B008  # frozen
) -> dict[str, Retrainer]:
    """The arms of a race, the default one first; without teaching labels, it learns from the simulated field alone."""
    field = FieldTraining(schedule=schedule)
    arms: dict[str, Retrainer] = {
        DEFAULT: field,
        PLAIN: replace(field, information=0.0),
        SELF_TRAINING: replace(field, self_training=1.0),
        GENERIC: replace(field, conditions=False, generic=1.0),
    }
    if known.failures is not None and len(known.failures):
        arms[FAILURES] = replace(field, failures=True)
    if batch_norms(model.unwrap()) and len(known.field) >= MIN_STATISTICS:
        arms |= {f"batch-norm statistics, {percent(mix)} of the field": BatchNormStatistics(mix=mix) for mix in MIXED}
    return arms


def further_arms(model: Classifier, schedule: Schedule = Schedule()) -> dict[str, Retrainer]:  # noqa: B008  # frozen
    """Arms that do not race by default, since all arms share one budget.

    The simulated field and information maximisation learn from no label; `CaseTraining` learns from operational
    failures alone, as papers/1 does, or from an uncertainty pattern of papers/5 with Manifold Mixup.
    """
    label_free = FieldTraining(schedule=schedule, labels=False)
    low, high = model.bounds
    patterns = UncertaintyFuzz(
        pattern="LL", radius=RADIUS * (high - low), population=20, tournament=5, generations=10, passes=20
    )
    mixup = ManifoldMixup(layers=(INPUT, *_first_layers(model)))
    return {
        SIMULATED: replace(label_free, information=0.0),
        INFORMATION: replace(label_free, conditions=False, generic=0.0, information=1.0),
        FAILURES_ALONE: CaseTraining(),
        PATTERNS: CaseTraining(fuzz=patterns, retrainer=Finetune(loss=mixup, epochs=2, progress=False)),
    }


def _first_layers(model: Classifier) -> list[str]:
    """Names of the first two linear or convolutional layers."""
    weighted = (nn.Linear, nn.Conv1d, nn.Conv2d)
    return [name for name, part in model.unwrap().named_modules() if name and isinstance(part, weighted)][:2]
