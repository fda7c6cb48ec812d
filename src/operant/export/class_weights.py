"""How much each class should count in training, so that it counts as often as it occurs in the field."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from operant.profile import Priors
from operant.triage.export import csv_text, safe_cell

COLUMNS = ("class", "field share", "lower", "upper", "training share", "weight")


@dataclass(frozen=True, kw_only=True)
class ClassWeight:
    """A row of ``class_weights.csv``.

    Attributes:
        name: of the class.
        field: its estimated share in the field.
        lower, upper: interval of that share; NaN if it is withheld.
        train: its share in the training data.
        weight: field / train, so that the weighted training shares sum to 1; NaN if no training input has the class.
    """

    name: str
    field: float
    lower: float
    upper: float
    train: float
    weight: float


def class_weights(priors: Priors, counts: Sequence[int], names: Sequence[str]) -> tuple[ClassWeight, ...]:
    """The weight of each class.

    Args:
        priors: class shares of the field.
        counts: number of training inputs of each class.
        names: of the classes.
    """
    if not len(counts) == len(names) == len(priors.values) or sum(counts) == 0:
        numbers = f"{len(counts)} counts with the sum {sum(counts)}, {len(names)} names"
        raise ValueError(f"there must be training inputs, and one count and name per class, got {numbers}")
    shares = [n / sum(counts) for n in counts]
    rows = zip(names, priors.values, priors.lower, priors.upper, shares, strict=True)
    return tuple(
        ClassWeight(name=name, field=v, lower=low, upper=high, train=s, weight=v / s if s else math.nan)
        for name, v, low, high, s in rows
    )


def weights_csv(weights: Sequence[ClassWeight]) -> str:
    """The table; unknown values are empty."""
    rows = [
        (
            safe_cell(w.name),
            *("" if math.isnan(v) else f"{v:.9g}" for v in (w.field, w.lower, w.upper, w.train, w.weight)),
        )
        for w in weights
    ]
    return csv_text([COLUMNS, *rows])
