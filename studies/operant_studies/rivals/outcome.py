"""The results of the study, read from disk: leads over random mutation, and the sentences that they support."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from scipy.stats import t as student

from operant_studies.operational_fuzz.finding import SearchResult, load_facts, load_results
from operant_studies.operational_fuzz.finding_judge import JudgeFacts
from operant_studies.rivals import curves, finding
from operant_studies.rivals.contests import CONTESTS, WHY, Contest, ContestArm
from operant_studies.rivals.curves import ContestFacts, CoverageCurve, CoverageCurves
from operant_studies.rivals.settings import RivalsSetting
from operant_studies.shared import Mean, Steps, mean, verdict

BEATS = {"held": "beats random", "not held": "loses to random", "not decided": "does not beat random (not decided)"}


@dataclass(frozen=True)
class RivalsOutcome:
    """One model, over its seeds."""

    setting: RivalsSetting
    out: Path

    @cached_property
    def curves(self) -> dict[str, list[dict[str, CoverageCurve]]]:
        """By contest, one per seed, by search."""
        return {c.key: [steps.read(c.key, CoverageCurves).of for steps in self._coverage] for c in CONTESTS}

    @cached_property
    def facts(self) -> list[ContestFacts]:
        return [steps.read("facts", ContestFacts) for steps in self._coverage]

    @cached_property
    def found(self) -> dict[str, list[SearchResult]]:
        return load_results(self._searches, finding.arm_names(self.setting))

    @cached_property
    def judged(self) -> list[JudgeFacts]:
        return load_facts(self._searches)

    @property
    def _coverage(self) -> list[Steps]:
        return [curves.steps_of(self.setting, self.out, seed) for seed in self.setting.seeds]

    @property
    def _searches(self) -> list[Steps]:
        return [finding.steps_of(self.setting, self.out, seed) for seed in self.setting.seeds]

    def pairs(self, contest: Contest, arm: ContestArm) -> list[RivalsComparison]:
        return [pair(each, arm) for each in self.curves[contest.key]]

    def lead(self, contest: Contest, arm: ContestArm) -> Mean:
        """Coverage of the arm relative to that of random mutation, minus 1."""
        return mean(p.lead for p in self.pairs(contest, arm))

    def change(self, contest: Contest, arm: ContestArm) -> Mean:
        """Difference of the arm's lead from that of the first arm, paired by seed."""
        both = zip(self.pairs(contest, arm), self.pairs(contest, contest.arms[0]), strict=True)
        return mean(a.lead - b.lead for a, b in both)


@dataclass(frozen=True, kw_only=True)
class RivalsComparison:
    """An arm and the best of its controls, after as many model rows as both have spent."""

    rows: float
    start: float
    covered: float
    control: float

    @property
    def lead(self) -> float:
        return self.covered / self.control - 1


def pair(each: dict[str, CoverageCurve], arm: ContestArm) -> RivalsComparison:
    ours = each[arm.name]
    best = max((each[name] for name in arm.controls), key=lambda c: c.at(min(ours.rows[-1], c.rows[-1])))
    rows = min(ours.rows[-1], best.rows[-1])
    return RivalsComparison(rows=rows, start=best.coverage[0], covered=ours.at(rows), control=best.at(rows))


def widened(repetitions: int, among: int) -> float:
    """The factor by which 95 % t-intervals must be wider for this many to hold at once (Bonferroni).

    >>> round(widened(8, 14), 1)
    1.8
    """
    if repetitions < 2:
        return math.inf
    return float(student.ppf(1 - 0.025 / among, repetitions - 1) / student.ppf(0.975, repetitions - 1))


def firm(difference: Mean, among: int) -> bool:
    """Whether a difference is decided even after correction for this many comparisons."""
    half = (difference.upper - difference.lower) / 2
    return verdict(difference) != "not decided" and abs(difference.value) > half * widened(difference.n, among)


def answer(outcome: RivalsOutcome, contest: Contest, *, models: int) -> str:
    """A sentence: does the rival beat random mutation as published, and if not, what changes that?

    Args:
        models: number of models on the page; each has as many answers, and as many changes to compare.
    """
    first, *rest = contest.arms
    lead, answers = outcome.lead(contest, first), models * len(CONTESTS)
    begin = f"{contest.title} ({first.name}) {BEATS[verdict(lead)]}: lead {lead} %"
    if verdict(lead) != "not decided" and not firm(lead, answers):
        begin += f", though not after correction for all {answers} answers"
    if verdict(lead) == "held":
        return f"{begin}."
    changes = {arm: change for arm in rest if (change := outcome.change(contest, arm)).lower > 0}
    if changes:
        each = "; ".join(_helps(arm, change, outcome.lead(contest, arm)) for arm, change in changes.items())
        return f"{begin}. What helps: {each}. {_reason(changes, models)}"
    better = [arm for arm in rest if verdict(outcome.lead(contest, arm)) == "held"]
    if better:
        names = ", ".join(f"*{arm.name}*" for arm in better)
        return f"{begin}. With {names} it beats random, but the difference is not decided: the reason is not found."
    apart = max(abs(lead.lower), abs(lead.upper))
    return f"{begin}. No change helps: the reason is not found. They differ by {apart:.1%} at most."


def _helps(arm: ContestArm, change: Mean, lead: Mean) -> str:
    return f"*{arm.name}*, by {change} points" + (", which beats random" if verdict(lead) == "held" else "")


def _reason(changes: dict[ContestArm, Mean], models: int) -> str:
    """What the changes that help mean for the cause; only a hint if many comparisons may explain them."""
    among = models * sum(len(contest.arms) - 1 for contest in CONTESTS)
    sure = [arm for arm, change in changes.items() if firm(change, among)]
    why = "; ".join(WHY[arm.name] for arm in sure or changes if arm.name in WHY)
    if not why:
        return "The reason is open."
    return f"{'Reason found' if sure else 'A hint at the reason'}: {why}."
