"""What the study of defences has found so far, read from disk."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from operant import results
from operant.defend.evaluate import interval
from operant.studies._work import Mean, mean
from operant.studies.defences.judging import COMMON, UNCOMMON, Tried, tried_name
from operant.studies.defences.settings import Plan
from operant.studies.defences.suites import Home

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Found:
    """All finished runs of one model."""

    plan: Plan
    home: Home

    @property
    def title(self) -> str:
        return self.plan.title

    @cached_property
    def tried(self) -> dict[str, list[Tried]]:
        """By defence, one for each run; defences that were not tried are left out."""
        folder = self.home.out / "defences" / self.plan.name
        places = {
            defence: [folder / f"{tried_name(defence, run)}.json" for run in range(self.plan.runs)]
            for defence in self.plan.defences
        }
        found = {name: [results.load(p, Tried) for p in every if p.exists()] for name, every in places.items()}
        return {name: each for name, each in found.items() if each}

    def rates(self, defence: str, data: str) -> list[float]:
        """Success in each run that has such cases."""
        counts = [tried.count(data) for tried in self.tried[defence]]
        return [k / n for k, n in counts if n]

    def pooled(self, defence: str, data: str, kind: str = "all", pattern: str = "all") -> tuple[int, int]:
        """Successes and cases of all runs together."""
        counts = [tried.count(data, kind, pattern) for tried in self.tried[defence]]
        return sum(k for k, _ in counts), sum(n for _, n in counts)

    def size(self, data: str) -> int:
        """Cases of all runs, which are the same for each defence."""
        first = next(iter(self.tried), None)
        return self.pooled(first, data)[1] if first else 0

    def success(self, defence: str, data: str) -> Mean:
        """Mean over runs; of a single run, with the interval of its cases."""
        each = self.rates(defence, data)
        return mean(each) if len(each) > 1 else share(*self.pooled(defence, data))

    def falls(self, defence: str) -> list[float]:
        """By how much success is lower on uncommon data, run by run."""
        both = [[tried.count(data) for data in (COMMON, UNCOMMON)] for tried in self.tried[defence]]
        return [c / m - u / n for (c, m), (u, n) in both if m and n]

    def fall(self, defence: str) -> Mean:
        """Mean over runs; of a single run, with Newcombe's interval for a difference of shares."""
        each = self.falls(defence)
        if len(each) != 1:
            return mean(each)
        common, uncommon = (self.success(defence, data) for data in (COMMON, UNCOMMON))
        value = common.value - uncommon.value
        below = math.hypot(common.value - common.lower, uncommon.upper - uncommon.value)
        above = math.hypot(common.upper - common.value, uncommon.value - uncommon.lower)
        return Mean(value=value, lower=value - below, upper=value + above, n=1)

    @property
    def seconds(self) -> float:
        return sum(t.seconds for each in self.tried.values() for t in each) + self.home.seconds(self.plan)


def share(k: int, n: int) -> Mean:
    """A share with Clopper and Pearson's interval."""
    lower, upper = interval(k, n, CONFIDENCE)
    return Mean(value=k / n, lower=lower, upper=upper, n=1)


def average(found: Sequence[Found]) -> Mean | None:
    """By how much success falls, mean over all cells of both tables; None while there is no cell.

    Models with several runs give one mean over their cells for each run, and these an interval over runs. Cells of a
    model with one run share their cases, so that their intervals are not made smaller by taking the mean.
    """
    many = [f.falls(d) for f in found if f.plan.runs > 1 for d in f.tried]
    once = [f.fall(d) for f in found if f.plan.runs == 1 for d in f.tried if f.falls(d)]
    parts = []
    if runs := min((len(each) for each in many), default=0):
        parts.append((len(many), mean(sum(each[r] for each in many) / len(many) for r in range(runs))))
    if once:
        value, lower, upper = (
            sum(getattr(cell, name) for cell in once) / len(once) for name in ("value", "lower", "upper")
        )
        parts.append((len(once), Mean(value=value, lower=lower, upper=upper, n=1)))
    return _together(parts) if parts else None


def _together(parts: Sequence[tuple[int, Mean]]) -> Mean:
    """The mean of independent means, each weighted by its number of cells."""
    total = sum(n for n, _ in parts)
    value = sum(n * part.value for n, part in parts) / total
    below = math.hypot(*(n * (part.value - part.lower) / total for n, part in parts))
    above = math.hypot(*(n * (part.upper - part.value) / total for n, part in parts))
    return Mean(value=value, lower=value - below, upper=value + above, n=max(part.n for _, part in parts))
