"""What the study of enhancement has found so far, read from disk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from operant import results
from operant.studies._work import Mean, mean
from operant.studies.defences.suites import Home
from operant.studies.enhance.retraining import Enhanced, step_name
from operant.studies.enhance.settings import CONTROL, GROUPS, Enhancement

Quantity = Callable[[Enhanced], float | None]
"""Of one run; None where it has none."""


def change(e: Enhanced) -> float | None:
    """By how much accuracy on clean inputs rose."""
    return e.accuracy.change if e.accuracy else None


def rate(e: Enhanced) -> float | None:
    """The transfer calibration rate."""
    return e.transfer.mean if e.transfer else None


@dataclass(frozen=True)
class Found:
    """All finished runs of one model."""

    plan: Enhancement
    home: Home

    @property
    def title(self) -> str:
        return self.plan.title

    @cached_property
    def runs(self) -> dict[str, list[Enhanced]]:
        """By group, in the order of runs."""
        folder = self.home.out / "enhance" / self.plan.name
        count = range(self.plan.plan.runs)
        places = {group: [folder / f"{step_name(group, run)}.json" for run in count] for group in GROUPS}
        found = {group: [results.load(p, Enhanced) for p in every if p.exists()] for group, every in places.items()}
        return {group: each for group, each in found.items() if each}

    def told(self, group: str, of: Quantity) -> Mean | None:
        """Mean over runs; None where the group was left out."""
        values = [value for e in self.runs.get(group, []) if (value := of(e)) is not None]
        return mean(values) if values else None

    def lead(self, first: str, second: str, of: Quantity) -> Mean | None:
        """By how much one group exceeds another, run by run; None where one of them was left out."""
        pairs = [(of(a), of(b)) for a, b in zip(self.runs.get(first, []), self.runs.get(second, []), strict=False)]
        differences = [a - b for a, b in pairs if a is not None and b is not None]
        return mean(differences) if differences else None

    @property
    def groups(self) -> list[str]:
        """Those with cases that were learned from."""
        return [group for group in self.runs if group != CONTROL and self.told(group, change) is not None]

    @property
    def seconds(self) -> float:
        return sum(e.seconds for each in self.runs.values() for e in each)
