"""Results of the study of defences, read from the finished steps of each model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from operant.defend import Success
from operant.defend.evaluate import interval
from operant_studies.defences.judging import COMMON, UNCOMMON, DefenceOutcome
from operant_studies.defences.settings import DefencePlan
from operant_studies.defences.suites import SuiteFolders
from operant_studies.shared import Mean, Steps, mean

MIN_CASES = 5  # per kind and run, for a share of this kind


@dataclass(frozen=True)
class DefenceResults:
    """All finished runs of one model."""

    plan: DefencePlan
    folders: SuiteFolders

    @property
    def title(self) -> str:
        return self.plan.title

    @cached_property
    def outcomes(self) -> dict[str, dict[int, DefenceOutcome]]:
        """By defence and run; defences without any are left out."""
        steps = Steps(self.folders.out / "defences" / self.plan.name)
        return steps.load_runs(self.plan.defences, self.plan.runs, DefenceOutcome)

    def rows(self, defence: str, data: str, kind: str = "all", pattern: str = "all") -> dict[int, Success]:
        """Successes among such cases, by run; runs without cases are left out."""
        found = {run: outcome.row(data, kind, pattern) for run, outcome in self.outcomes[defence].items()}
        return {run: row for run, row in found.items() if row}

    def pooled(self, defence: str, data: str, kind: str = "all", pattern: str = "all") -> tuple[int, int, int]:
        """Successes, cases and seeds of all runs together."""
        rows = self.rows(defence, data, kind, pattern).values()
        return sum(row.k for row in rows), sum(row.n for row in rows), sum(row.seeds for row in rows)

    def size(self, data: str, kind: str = "all") -> int:
        """Number of cases of all runs, which is the same for each defence."""
        first = next(iter(self.outcomes), None)
        return self.pooled(first, data, kind)[1] if first else 0

    def success(self, defence: str, data: str, *, confidence: float = 0.95) -> Mean:
        """Mean over runs; with the interval of the cases if there is one run, or if all runs agree exactly."""
        rows = self.rows(defence, data).values()
        over_runs = mean((row.value for row in rows), confidence=confidence)
        if len(rows) > 1 and over_runs.upper - over_runs.lower > 1e-9:
            return over_runs
        k, n, seeds = self.pooled(defence, data)
        lower, upper = interval(k, n, confidence, trials=seeds)
        return Mean(value=k / n, lower=lower, upper=upper, n=len(rows))

    def drops(self, defence: str, kind: str = "all", data: str = COMMON) -> dict[int, float]:
        """The drop of success from other data to uncommon data, by run."""
        high, low = (self.rows(defence, of, kind) for of in (data, UNCOMMON))
        return {run: high[run].value - low[run].value for run in high if run in low}

    def even_drops(self, defence: str) -> dict[int, float]:
        """The same with equal weights for benign and adversarial cases, for runs with enough of both in both data."""
        kinds = ("benign", "adversarial")
        benign, adversarial = (self.drops(defence, kind) for kind in kinds)
        rows = [self.rows(defence, of, kind) for of in (COMMON, UNCOMMON) for kind in kinds]
        enough = [run for run in benign if all(run in each and each[run].n >= MIN_CASES for each in rows)]
        return {run: (benign[run] + adversarial[run]) / 2 for run in enough}

    def drop(self, defence: str, *, confidence: float = 0.95) -> Mean:
        """Mean over runs; for a single run, with Newcombe's interval for a difference of shares."""
        each = self.drops(defence)
        if self.plan.runs > 1:
            return mean(each.values(), confidence=confidence)
        high, low = (self.success(defence, of, confidence=confidence) for of in (COMMON, UNCOMMON))
        value = high.value - low.value
        below = math.hypot(high.value - high.lower, low.upper - low.value)
        above = math.hypot(high.upper - high.value, low.value - low.lower)
        return Mean(value=value, lower=value - below, upper=value + above, n=1)

    @property
    def seconds(self) -> float:
        return sum(t.seconds for each in self.outcomes.values() for t in each.values()) + self.folders.seconds(
            self.plan
        )


def average(found: Sequence[DefenceResults]) -> Mean | None:
    """The mean drop of success, over models and their cells; None without cells.

    Models with several runs give one mean per run, and these an interval over runs. Cells of a model with one run share
    their cases, so that the mean does not narrow their intervals.
    """
    parts = []
    if several := [f for f in found if f.plan.runs > 1 and f.outcomes]:
        by_run = run_means([[f.drops(d) for d in f.outcomes] for f in several])
        parts += [(len(several), mean(by_run))] if by_run else []
    for f in found:
        cells = [f.drop(d) for d in f.outcomes if f.drops(d)] if f.plan.runs == 1 else []
        if cells:
            ends = {name: plain_mean(getattr(cell, name) for cell in cells) for name in ("value", "lower", "upper")}
            parts.append((1, Mean(**ends, n=1)))
    return _together(parts) if parts else None


def run_means(models: Sequence[Sequence[dict[int, float]]]) -> list[float]:
    """The mean over models of the mean over their cells, for each run that all cells share."""
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
