"""What every coverage-guided search returns, and what all of them check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from operant.data import Samples
from operant.measure.coverage import Criterion
from operant.model import Classifier
from operant.suite import Suite

CriterionFactory = Callable[[Classifier, Tensor], Criterion]
"""From the model and the seeds' inputs to what there is to cover."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Exploration:
    """What a coverage-guided search found, and how its coverage grew.

    Attributes:
        suite: the failures.
        rows: model rows spent per seed, after the seeds and after each turn.
        coverage: ``(searches, len(rows))``, the share covered by then: one line per seed, or a single one where seeds
            share their coverage.
    """

    suite: Suite
    rows: Tensor = field(repr=False)
    coverage: Tensor = field(repr=False)


def correct_rows(model: Classifier, seeds: Samples) -> Tensor:
    """Rows of the seeds that the model classifies correctly; at least one."""
    rows = (model.predict(seeds.x) == seeds.labels).nonzero().flatten()
    if len(rows) == 0:
        raise ValueError(
            f"at least one seed must be classified correctly to start from, got {len(seeds)} that the model gets "
            "wrong; check the labels, or give other seeds"
        )
    return rows
