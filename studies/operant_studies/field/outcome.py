"""The results of the study, read from its finished steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import add
from pathlib import Path

from operant.profile import FittedConditions, Parameter
from operant_studies.field.scores import Counts, counts, inside, total_variation
from operant_studies.field.settings import FieldCase, FieldStudySetting
from operant_studies.field.unit import COMBINED, FITTED, MODEL, FieldError, FieldShares, Likeness, steps_of
from operant_studies.operational.unit import TimedConditions
from operant_studies.shared import HELD, NOT_DECIDED, NOT_HELD, Mean, mean

MAX_OFF = 0.03  # by which an estimate of the error may be off


@dataclass(frozen=True)
class FieldOutcome:
    """One field over its seeds."""

    case: FieldCase
    seeds: tuple[int, ...]
    out: Path

    @cached_property
    def fits(self) -> list[TimedConditions]:
        return [steps_of(self.out, self.case, seed).read("conditions", TimedConditions) for seed in self.seeds]

    @property
    def fitted(self) -> list[FittedConditions]:
        return [fit.conditions for fit in self.fits]

    @cached_property
    def likeness(self) -> list[Likeness]:
        return [steps_of(self.out, self.case, seed).read("likeness", Likeness) for seed in self.seeds]

    @cached_property
    def shares(self) -> list[FieldShares]:
        return [steps_of(self.out, self.case, seed).read("shares", FieldShares) for seed in self.seeds]

    @cached_property
    def errors(self) -> list[FieldError]:
        found = [steps_of(self.out, self.case, seed).load("error", FieldError) for seed in self.seeds]
        return [error for error in found if error is not None]

    def counts(self, *, kinds: bool = False) -> Counts:
        """Conditions found and true ones, over all seeds."""
        assert self.case.recipe is not None
        return sum_of(counts(f, self.case.recipe, kinds=kinds) for f in self.fitted)

    def parameters(self) -> list[tuple[Parameter, float, bool]]:
        """Fitted parameters of true conditions, with the true value and whether the interval holds it."""
        return [row for f in self.fitted for row in inside(f, self.case.recipe)] if self.case.recipe else []

    def mean_likeness(self, of: Callable[[Likeness], float | None]) -> float | None:
        values = [value for each in self.likeness if (value := of(each)) is not None]
        return sum(values) / len(values) if values else None

    def distances(self, name: str) -> list[float]:
        """Total variation of an estimate of class shares to the truth, one per seed; empty if it was not made."""
        made = [(s.of(name), s.true) for s in self.shares]
        return [total_variation(e.values, true) for e, true in made if e is not None]

    def excess(self) -> list[float]:
        """By how much the combination is farther from the truth than the better of the two, one per seed."""
        rows = zip(self.distances(COMBINED), self.distances(FITTED), self.distances(MODEL), strict=False)
        return [both - min(fitted, model) for both, fitted, model in rows]


def outcomes_of(setting: FieldStudySetting, out: Path) -> list[FieldOutcome]:
    return [FieldOutcome(case, setting.seeds, out) for case in setting.cases]


def sum_of(each: object) -> Counts:
    total: Counts = reduce(add, each, Counts())  # type: ignore[call-overload]
    return total


def off(error: FieldError) -> bool:
    """Whether the estimated error is too far from the true one."""
    return abs(error.value - error.true) > MAX_OFF


def at_most(values: Sequence[float], limit: float) -> tuple[Mean, str]:
    """The mean, and whether it is at most the limit, with its whole 95 % interval.

    >>> at_most([0.5, 0.52, 0.51], 0.6)[1]
    'held'
    """
    average = mean(values)
    return average, HELD if average.upper <= limit else NOT_HELD if average.lower > limit else NOT_DECIDED


def average(values: Sequence[float]) -> float:
    return sum(values) / len(values)
