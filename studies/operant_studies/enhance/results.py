"""Results of the study of enhancement, read from the finished steps of each model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from operant_studies.defences.suites import SuiteFolders
from operant_studies.enhance.retraining import RetrainOutcome
from operant_studies.enhance.settings import CONTROL, GROUPS, EnhancePlan
from operant_studies.shared import Mean, Steps, mean

Quantity = Callable[[RetrainOutcome], float | None]
"""A number of one run; None if the group was left out."""


def change(e: RetrainOutcome) -> float | None:
    """The change of accuracy on clean inputs."""
    return e.accuracy.change if e.accuracy else None


def rate(e: RetrainOutcome) -> float | None:
    """The transfer calibration rate."""
    return e.transfer.mean if e.transfer else None


@dataclass(frozen=True)
class EnhanceResults:
    """All finished runs of one model."""

    plan: EnhancePlan
    folders: SuiteFolders

    @property
    def title(self) -> str:
        return self.plan.title

    @cached_property
    def runs(self) -> dict[str, dict[int, RetrainOutcome]]:
        """By group and number of the run; groups without any are left out."""
        steps = Steps(self.folders.out / "enhance" / self.plan.name)
        return steps.load_runs(GROUPS, self.plan.suites.runs, RetrainOutcome)

    def values(self, group: str, of: Quantity) -> dict[int, float]:
        """By run; empty if the group was left out."""
        return {run: value for run, e in self.runs.get(group, {}).items() if (value := of(e)) is not None}

    def mean(self, group: str, of: Quantity) -> Mean | None:
        """Mean over runs; None if the group was left out."""
        values = self.values(group, of)
        return mean(values.values()) if values else None

    def lead(self, first: str, second: str, of: Quantity, *, confidence: float = 0.95) -> Mean | None:
        """The mean lead of one group over another, paired by run; None if one of them was left out."""
        high, low = self.values(first, of), self.values(second, of)
        differences = [high[run] - low[run] for run in high if run in low]
        return mean(differences, confidence=confidence) if differences else None

    @property
    def groups(self) -> list[str]:
        """Groups with enough cases for retraining."""
        return [group for group in self.runs if group != CONTROL and self.mean(group, change) is not None]

    @property
    def seconds(self) -> float:
        return sum(e.seconds for each in self.runs.values() for e in each.values())
