"""What the study of enhancement has found so far, read from disk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from operant import results
from operant_studies.defences.suites import Home
from operant_studies.enhance.retraining import Enhanced, step_name
from operant_studies.enhance.settings import CONTROL, GROUPS, Enhancement
from operant_studies.shared import Mean, mean

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
    def runs(self) -> dict[str, dict[int, Enhanced]]:
        """By group, those that are finished by their number."""
        folder = self.home.out / "enhance" / self.plan.name
        count = range(self.plan.plan.runs)
        places = {group: {run: folder / f"{step_name(group, run)}.json" for run in count} for group in GROUPS}
        found = {
            group: {run: results.load(p, Enhanced) for run, p in every.items() if p.exists()}
            for group, every in places.items()
        }
        return {group: each for group, each in found.items() if each}

    def values(self, group: str, of: Quantity) -> dict[int, float]:
        """By run; none of a group that was left out."""
        return {run: value for run, e in self.runs.get(group, {}).items() if (value := of(e)) is not None}

    def told(self, group: str, of: Quantity) -> Mean | None:
        """Mean over runs; None where the group was left out."""
        values = self.values(group, of)
        return mean(values.values()) if values else None

    def lead(self, first: str, second: str, of: Quantity, *, confidence: float = 0.95) -> Mean | None:
        """By how much one group exceeds another, run by run; None where one of them was left out."""
        high, low = self.values(first, of), self.values(second, of)
        differences = [high[run] - low[run] for run in high if run in low]
        return mean(differences, confidence=confidence) if differences else None

    @property
    def groups(self) -> list[str]:
        """Those with cases that were learned from."""
        return [group for group in self.runs if group != CONTROL and self.told(group, change) is not None]

    @property
    def seconds(self) -> float:
        return sum(e.seconds for each in self.runs.values() for e in each.values())
