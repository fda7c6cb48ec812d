"""Samples of cases to judge, and what their verdicts say about all cases."""

from __future__ import annotations

import warnings
from bisect import bisect_left
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import betaln, gammaln
from scipy.stats import hypergeom
from torch import Tensor

from operant.assess.bounds import Interval, check_confidence
from operant.data import Samples
from operant.formatting import percent
from operant.rng import spawn
from operant.seeds import draw
from operant.suite import Suite, open_with_index
from operant.suite.verdicts import CaseIndex, VerdictReader
from operant.validation import check_at_least, check_one_of

POPULATIONS = ("failures", "all")


@dataclass(frozen=True, kw_only=True)
class SamplePlan:
    """The sample to judge, chosen before the first verdict.

    Attributes:
        of: the cases to sample from: ``"failures"`` of the model, or ``"all"``; all if there is no failure.
        n: sample size, or all cases if there are fewer. 100 cases give the share to 10 points.
    """

    of: str = "failures"
    n: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        check_one_of(POPULATIONS, of=self.of)
        check_at_least(1, n=self.n, advice="100 give the share to about 10 points")


@dataclass(frozen=True, kw_only=True)
class ValidShare:
    """The share of valid cases, estimated from a random sample.

    A case counts as valid if somebody calls it valid and nobody invalid. If the whole sample is judged and was planned
    before the first verdict, the interval is exact for its size. Otherwise it is one that holds however often one
    checks and whenever one stops, which makes it wider. Each holds with its confidence by itself.

    Attributes:
        population: number of failures or of all cases, by ``of``.
        planned: size of the sample.
        judged, valid: number of cases judged in the order of the sample without a gap, and of valid ones among them.
        lower, upper, confidence: interval of the share in the population.
        verdicts: number of judged cases in the whole suite.
        people: names of those who judged.
    """

    of: str
    population: int
    planned: int
    judged: int
    valid: int
    lower: float
    upper: float
    confidence: float
    verdicts: int
    people: tuple[str, ...]

    @property
    def share(self) -> float:
        """The estimate; NaN before the first verdict."""
        return self.valid / self.judged if self.judged else float("nan")

    @property
    def finished(self) -> bool:
        """Whether the whole sample is judged."""
        return 0 < self.planned == self.judged

    def __str__(self) -> str:
        what = "failures" if self.of == "failures" else "cases"
        if not self.judged:
            others = f" ({self.verdicts} in another order)" if self.verdicts else ""
            return f"No case is judged in the order of the sample{others}: the share of valid {what} is unknown."
        by = f" by {', '.join(self.people)}" if self.people else ""
        rest = "" if self.finished else f"; {self.planned - self.judged} cases of the sample are not judged yet"
        return (
            f"{percent(self.share)} of {self.population} {what} are valid, between {percent(self.lower)} and "
            f"{percent(self.upper)} with {percent(self.confidence)} confidence: {self.valid} of {self.judged} drawn at "
            f"random were called valid{by}{rest}."
        )


def population(suite: Suite, of: str) -> Tensor:
    """The rows to sample from."""
    failing = (suite.prediction != suite.label).nonzero().flatten()
    return failing if of == "failures" and len(failing) else torch.arange(len(suite))


def sample_rows(suite: Suite, plan: SamplePlan) -> Tensor:
    """The rows of the sample in the order of drawing: every start of it is a random sample too."""
    rows = population(suite, plan.of)
    if len(rows) == 0:
        return rows
    pool = Samples(torch.zeros(len(rows), 1), ids=rows)
    n, generator = min(plan.n, len(rows)), spawn(plan.seed, "triage")
    return rows[draw(pool, torch.ones(len(rows)), n, design="sequential", generator=generator).indices]


def ranked_rows(suite: Suite) -> Tensor:
    """The failures by mass times naturalness times risk, as far as these are known; likely ones in the field first.

    The risk says how likely field inputs like this one are to fail: a failure that has many others around it comes
    before one that stands alone.
    """
    failing = (suite.prediction != suite.label).nonzero().flatten()
    score = torch.ones(len(failing), dtype=torch.float64)
    for name in ("mass", "naturalness", "risk"):
        column = suite.columns.get(name)
        if isinstance(column, Tensor):
            score *= column[failing].double().nan_to_num(0)
    return failing[score.argsort(descending=True, stable=True)]


def valid_share(path: str | Path, *, confidence: float = 0.95) -> ValidShare | None:
    """The share of valid cases of a suite; None if there are no verdicts."""
    suite, known = open_with_index(path)
    for problem in suite.rejected:
        warnings.warn(f"left out: {problem}", stacklevel=2)
    reader, verdicts = VerdictReader(Path(path)), np.asarray(suite.columns.get("verdict", ""))
    if not reader.new_judgements(known) or not (verdicts != "").any():
        return None
    people = {name for names in np.unique(np.asarray(suite["verdict_by"])) for name in str(names).split(", ") if name}
    return share_of(
        suite, plan_from_log(reader.plan), verdicts != "", verdicts == "valid", tuple(sorted(people)),
        first_plan=reader.first_plan, confidence=confidence,
    )  # fmt: skip


def latest_plan(path: str | Path) -> SamplePlan:
    """The plan in a suite's log, or ``SamplePlan()`` if there is none. Only logs are read."""
    reader = VerdictReader(Path(path))
    reader.new_judgements(CaseIndex(parts=(), rows_of_key=lambda _: []))
    return plan_from_log(reader.plan)


def plan_from_log(stored: dict[str, Any] | None) -> SamplePlan:
    """The plan as a log stores it, or ``SamplePlan()`` if it is missing or damaged."""
    try:
        plan = SamplePlan(**(stored or {}))
        return plan if type(plan.n) is type(plan.seed) is int else SamplePlan()
    except (TypeError, ValueError):
        return SamplePlan()


def share_of(
    suite: Suite,
    plan: SamplePlan,
    judged: Any,
    valid: Any,
    people: tuple[str, ...],
    *,
    first_plan: dict[str, Any] | None,
    confidence: float = 0.95,
    rows: Any = None,
) -> ValidShare:
    """The share of valid cases, from one boolean per row of the suite for judged and valid.

    Args:
        first_plan: the plan before the first verdict, as a log stores it: a size chosen later may depend on verdicts.
        rows: the sample (default: computed).
    """
    rows = sample_rows(suite, plan).numpy() if rows is None else rows
    size = len(population(suite, plan.of))
    done = judged[rows]
    n = len(rows) if done.all() else int(done.argmin())  # before the first gap
    k = int(valid[rows[:n]].sum())
    fixed = first_plan is not None and plan_from_log(first_plan) == plan
    interval = exact_interval if fixed and n == len(rows) else anytime_interval
    found = interval(k, n, size, confidence=confidence) if size else Interval(lower=0, upper=1, confidence=confidence)
    failing = plan.of == "failures" and bool((suite.prediction != suite.label).any())
    return ValidShare(
        of="failures" if failing else "all",
        population=size,
        planned=len(rows),
        judged=n,
        valid=k,
        lower=found.lower,
        upper=found.upper,
        confidence=confidence,
        verdicts=int(judged.sum()),
        people=people,
    )


def exact_interval(k: int, n: int, size: int, *, confidence: float = 0.95) -> Interval:
    """The exact interval of a share in a finite population, from k successes in n draws without replacement.

        lower = min {K : P(X ≥ k | K) > α/2} / N,  upper = max {K : P(X ≤ k | K) > α/2} / N,  α = 1 - confidence     (1)

    X is hypergeometric: n drawn from N, of which K are successes. The size n must be fixed beforehand. For an infinite
    population it is `operant.assess.clopper_pearson_interval`; it shrinks to the share itself as n approaches N.

    >>> found = exact_interval(80, 100, 1000)
    >>> round(found.lower, 3), round(found.upper, 3), exact_interval(3, 4, 4)
    (0.713, 0.87, Interval(lower=0.75, upper=0.75, confidence=0.95))

    References:
        | A Note on Confidence Intervals for Proportions in Finite Populations (Buonaccorsi, 1987)
        | The American Statistician 41, 215-218
    """
    _check(k, n, size, confidence)
    tail = (1 - confidence) / 2
    possible = range(k, size - n + k + 1)  # numbers of successes; both tests are monotone in them
    lower = bisect_left(possible, True, key=lambda m: hypergeom.sf(k - 1, size, m, n) > tail)
    upper = bisect_left(possible, True, key=lambda m: not hypergeom.cdf(k, size, m, n) > tail) - 1
    return Interval(lower=possible[lower] / size, upper=possible[upper] / size, confidence=confidence)  # (1)


def anytime_interval(k: int, n: int, size: int, *, confidence: float = 0.95) -> Interval:
    """An interval like `exact_interval` that holds after every draw simultaneously, so one can stop at any time.

        {K : prior(K) < posterior(K | k of n) / α}        (1)

    The prior over the number K of successes among N is uniform. If K is the truth, prior over posterior is the wealth
    of a fair bet, which ever reaches 1 / α with probability at most α (Ville's inequality). At 100 draws the interval
    is about 1.6 times as wide as `exact_interval`.

    >>> found = anytime_interval(80, 100, 1000)
    >>> round(found.lower, 3), round(found.upper, 3), anytime_interval(0, 0, 1000)
    (0.659, 0.902, Interval(lower=0.0, upper=1.0, confidence=0.95))

    References:
        | Confidence Sequences for Sampling Without Replacement (Waudby-Smith and Ramdas, 2020)
        | https://arxiv.org/abs/2006.04347
    """
    _check(k, n, size, confidence)
    rest, more = size - n, np.arange(size - n + 1)  # successes among the rest
    ways = gammaln(rest + 1) - gammaln(more + 1) - gammaln(rest - more + 1)
    posterior = ways + betaln(k + 1 + more, size - k - more + 1) - betaln(k + 1, n - k + 1)
    inside = more[posterior > np.log(1 - confidence) - np.log(size + 1)]  # (1)
    return Interval(lower=int(k + inside[0]) / size, upper=int(k + inside[-1]) / size, confidence=confidence)


def _check(k: int, n: int, size: int, confidence: float) -> None:
    check_confidence(confidence)
    if not 0 <= k <= n <= size or size < 1:
        raise ValueError(f"0 <= k <= n <= size and size >= 1 must hold, got k={k}, n={n} and size={size}")
