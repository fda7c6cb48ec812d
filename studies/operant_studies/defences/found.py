"""What the study of defences has found so far, read from disk."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from operant import results
from operant.defend import Success
from operant.defend.evaluate import interval
from operant_studies.defences.judging import COMMON, UNCOMMON, Tried, tried_name
from operant_studies.defences.settings import Plan
from operant_studies.defences.suites import Home
from operant_studies.shared import Mean, mean

LEAST = 5  # cases of a kind below which its share in a run is not told


@dataclass(frozen=True)
class Found:
    """All finished runs of one model."""

    plan: Plan
    home: Home

    @property
    def title(self) -> str:
        return self.plan.title

    @cached_property
    def tried(self) -> dict[str, dict[int, Tried]]:
        """By defence and run; defences that were not tried are left out."""
        folder, runs = self.home.out / "defences" / self.plan.name, range(self.plan.runs)
        places = {name: {run: folder / f"{tried_name(name, run)}.json" for run in runs} for name in self.plan.defences}
        found = {
            name: {run: results.load(p, Tried) for run, p in every.items() if p.exists()}
            for name, every in places.items()
        }
        return {name: each for name, each in found.items() if each}

    def rows(self, defence: str, data: str, kind: str = "all", pattern: str = "all") -> dict[int, Success]:
        """What became of such cases, by run; runs without any are left out."""
        found = {run: tried.row(data, kind, pattern) for run, tried in self.tried[defence].items()}
        return {run: row for run, row in found.items() if row}

    def pooled(self, defence: str, data: str, kind: str = "all", pattern: str = "all") -> tuple[int, int, int]:
        """Successes, cases and seeds of all runs together."""
        rows = self.rows(defence, data, kind, pattern).values()
        return sum(row.k for row in rows), sum(row.n for row in rows), sum(row.seeds for row in rows)

    def size(self, data: str, kind: str = "all") -> int:
        """Cases of all runs, which are the same for each defence."""
        first = next(iter(self.tried), None)
        return self.pooled(first, data, kind)[1] if first else 0

    def success(self, defence: str, data: str, *, confidence: float = 0.95) -> Mean:
        """Mean over runs; of a single run, or where runs agree to the last case, with the interval of the cases."""
        rows = self.rows(defence, data).values()
        told = mean((row.value for row in rows), confidence=confidence)
        if len(rows) > 1 and told.upper - told.lower > 1e-9:
            return told
        k, n, seeds = self.pooled(defence, data)
        lower, upper = interval(k, n, confidence, trials=seeds)
        return Mean(value=k / n, lower=lower, upper=upper, n=len(rows))

    def falls(self, defence: str, kind: str = "all", data: str = COMMON) -> dict[int, float]:
        """By how much success is lower on uncommon data than on others, run by run."""
        high, low = (self.rows(defence, of, kind) for of in (data, UNCOMMON))
        return {run: high[run].value - low[run].value for run in high if run in low}

    def even_falls(self, defence: str) -> dict[int, float]:
        """The same with benign and adversarial cases counted alike, of runs where both data have enough of both."""
        kinds = ("benign", "adversarial")
        benign, adversarial = (self.falls(defence, kind) for kind in kinds)
        rows = [self.rows(defence, of, kind) for of in (COMMON, UNCOMMON) for kind in kinds]
        enough = [run for run in benign if all(run in each and each[run].n >= LEAST for each in rows)]
        return {run: (benign[run] + adversarial[run]) / 2 for run in enough}

    def fall(self, defence: str, *, confidence: float = 0.95) -> Mean:
        """Mean over runs; of a single run, with Newcombe's interval for a difference of shares."""
        each = self.falls(defence)
        if self.plan.runs > 1:
            return mean(each.values(), confidence=confidence)
        high, low = (self.success(defence, of, confidence=confidence) for of in (COMMON, UNCOMMON))
        value = high.value - low.value
        below = math.hypot(high.value - high.lower, low.upper - low.value)
        above = math.hypot(high.upper - high.value, low.value - low.lower)
        return Mean(value=value, lower=value - below, upper=value + above, n=1)

    @property
    def seconds(self) -> float:
        return sum(t.seconds for each in self.tried.values() for t in each.values()) + self.home.seconds(self.plan)


def average(found: Sequence[Found]) -> Mean | None:
    """By how much success falls: the mean over models of the mean over their cells; None while there is no cell.

    Models with several runs give one such mean for each run, and these an interval over runs. Cells of a model with one
    run share their cases, so that their intervals are not made smaller by taking the mean.
    """
    parts = []
    if several := [f for f in found if f.plan.runs > 1 and f.tried]:
        by_run = run_means([[f.falls(d) for d in f.tried] for f in several])
        parts += [(len(several), mean(by_run))] if by_run else []
    for f in found:
        cells = [f.fall(d) for d in f.tried if f.falls(d)] if f.plan.runs == 1 else []
        if cells:
            ends = {name: plain_mean(getattr(cell, name) for cell in cells) for name in ("value", "lower", "upper")}
            parts.append((1, Mean(**ends, n=1)))
    return _together(parts) if parts else None


def run_means(models: Sequence[Sequence[dict[int, float]]]) -> list[float]:
    """The mean over models of the mean over their cells, for each run that all cells have."""
    cells = [cell for model in models for cell in model]
    runs = set.intersection(*(set(cell) for cell in cells)) if cells else set()
    return [plain_mean(plain_mean(cell[run] for cell in model) for model in models) for run in sorted(runs)]


def plain_mean(values: Iterable[float]) -> float:
    each = list(values)
    return sum(each) / len(each)


def _together(parts: Sequence[tuple[int, Mean]]) -> Mean:
    """The mean of independent means, each weighted by its number of models."""
    total = sum(n for n, _ in parts)
    value = sum(n * part.value for n, part in parts) / total
    below = math.hypot(*(n * (part.value - part.lower) / total for n, part in parts))
    above = math.hypot(*(n * (part.upper - part.value) / total for n, part in parts))
    return Mean(value=value, lower=value - below, upper=value + above, n=max(part.n for _, part in parts))
