"""Which cases to look at, and what the verdicts on a sample of them say about all."""

from __future__ import annotations

import warnings
from dataclasses import asdict, dataclass
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

POPULATIONS = ("failures", "all")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Which sample is to be judged, chosen before the first verdict.

    Attributes:
        of: the cases that the share is about: ``"failures"`` of the model, or ``"all"``; all if there is no failure.
        n: how many of them; fewer if there are not so many. 100 tell the share to 10 points.
        seed: of the draw.
    """

    of: str = "failures"
    n: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        if self.of not in POPULATIONS:
            raise ValueError(f"of must be one of {', '.join(POPULATIONS)}, got {self.of!r}")
        if self.n < 1:
            raise ValueError(f"n must be at least 1, got {self.n}; 100 tell the share to about 10 points")


@dataclass(frozen=True, kw_only=True)
class ValidShare:
    """The share of cases that people call valid, judged by a random sample.

    A case counts as valid if somebody says so and nobody calls it invalid. When the whole sample is judged, and it is
    the one that was chosen before the first verdict, the interval is exact for its size. Otherwise it is one that holds
    however often one looks and whenever one stops, which makes it wider. Each holds with its confidence by itself.

    Attributes:
        of: what the share is of, ``"failures"`` or ``"all"`` cases.
        population: how many these are.
        planned: how many of them are drawn to be judged.
        judged, valid: those judged so far without leaving one out, in the order in which they were drawn, and the
            valid ones among them.
        lower, upper, confidence: of the share among all of the population.
        verdicts: cases of the whole suite that anybody has judged.
        people: who they are.
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
            looked = f"{self.verdicts} were judged, but not " if self.verdicts else "Not "
            return f"{looked}in the order of the sample, so the share of valid {what} cannot be told."
        by = f" by {', '.join(self.people)}" if self.people else ""
        rest = "" if self.finished else f"; {self.planned - self.judged} of the sample are still to be judged"
        return (
            f"{percent(self.share)} of {self.population} {what} are valid, between {percent(self.lower)} and "
            f"{percent(self.upper)} with {percent(self.confidence)} confidence: {self.valid} of {self.judged} drawn at "
            f"random were called so{by}{rest}."
        )


def population(suite: Suite, of: str) -> Tensor:
    """The rows that a share is about."""
    failing = (suite.prediction != suite.label).nonzero().flatten()
    return failing if of == "failures" and len(failing) else torch.arange(len(suite))


def sample_rows(suite: Suite, plan: Plan) -> Tensor:
    """The rows of the sample in the order in which they are drawn: each start of it is a random sample too."""
    rows = population(suite, plan.of)
    if len(rows) == 0:
        return rows
    pool = Samples(torch.zeros(len(rows), 1), ids=rows)
    drawn = draw(
        pool, torch.ones(len(rows)), min(plan.n, len(rows)), design="sequential", generator=spawn(plan.seed, "triage")
    )
    return rows[drawn.indices]


def ranked_rows(suite: Suite) -> Tensor:
    """The failures, those first that use will meet most: by mass times naturalness, as far as these are known."""
    failing = (suite.prediction != suite.label).nonzero().flatten()
    score = torch.ones(len(failing), dtype=torch.float64)
    for name in ("mass", "naturalness"):
        column = suite.columns.get(name)
        if isinstance(column, Tensor):
            score *= column[failing].double().nan_to_num(0)
    return failing[score.argsort(descending=True, stable=True)]


def valid_share(path: str | Path, *, confidence: float = 0.95) -> ValidShare | None:
    """What the verdicts on a suite say about all of it; None if nobody has judged anything.

    Args:
        path: the suite's folder.
        confidence: of the interval.
    """
    suite, known = open_with_index(path)
    for sentence in suite.rejected:
        warnings.warn(f"left out: {sentence}", stacklevel=2)
    reader, verdicts = VerdictReader(Path(path)), np.asarray(suite.columns.get("verdict", ""))
    if not reader.new_judgements(known) or not (verdicts != "").any():
        return None
    people = {name for names in np.unique(np.asarray(suite["verdict_by"])) for name in str(names).split(", ") if name}
    return share_of(
        suite, plan_of(reader.plan), verdicts != "", verdicts == "valid", tuple(sorted(people)),
        begun=reader.first_plan, confidence=confidence,
    )  # fmt: skip


def latest_plan(path: str | Path) -> Plan:
    """The plan that a suite is judged by; the usual one if nobody has begun. Only logs are read."""
    reader = VerdictReader(Path(path))
    reader.new_judgements(CaseIndex(parts=(), rows_of_key=lambda _: []))
    return plan_of(reader.plan)


def plan_of(page: dict[str, Any] | None) -> Plan:
    """The plan that a log tells; the usual one where it tells none."""
    try:
        return Plan(**(page or {}))
    except (TypeError, ValueError):
        return Plan()


def page_of(plan: Plan) -> dict[str, Any]:
    """A plan as a log tells it."""
    return asdict(plan)


def share_of(
    suite: Suite,
    plan: Plan,
    judged: Any,
    valid: Any,
    people: tuple[str, ...],
    *,
    begun: dict[str, Any] | None,
    confidence: float = 0.95,
    rows: Any = None,
) -> ValidShare:
    """The share from what is judged and what is valid, one truth for each row of the suite.

    Args:
        suite, plan, judged, valid, people, confidence: as they are called.
        begun: the plan before the first verdict, as a log tells it: a size chosen later may follow from a look.
        rows: the sample; worked out unless given.
    """
    rows = sample_rows(suite, plan).numpy() if rows is None else rows
    size = len(population(suite, plan.of))
    done = judged[rows]
    n = len(rows) if done.all() else int(done.argmin())  # nothing is left out before that
    k = int(valid[rows[:n]].sum())
    fixed = begun is not None and plan_of(begun) == plan
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


# Intervals ------------------------------------------------------------------------------------------------------------


def exact_interval(k: int, n: int, size: int, *, confidence: float = 0.95) -> Interval:
    """The share of a finite population of which n members, drawn at random without replacement, showed k successes.

        lower = min {K : P(X ≥ k | K) > α/2} / N,  upper = max {K : P(X ≤ k | K) > α/2} / N,  α = 1 - confidence     (1)

    X is hypergeometric: n drawn from N, of which K are successes. The size n must have been chosen beforehand. It is
    what `operant.assess.clopper_pearson_interval` is for a population without end, and shrinks to the share itself as
    all of the population is drawn.

    >>> found = exact_interval(80, 100, 1000)
    >>> round(found.lower, 3), round(found.upper, 3), exact_interval(3, 4, 4)
    (0.713, 0.87, Interval(lower=0.75, upper=0.75, confidence=0.95))

    References:
        | A Note on Confidence Intervals for Proportions in Finite Populations (Buonaccorsi, 1987)
        | The American Statistician 41, 215-218
    """
    _check(k, n, size, confidence)
    tail = (1 - confidence) / 2
    fewest, most = k, size - n + k  # successes there can be
    low, high = fewest - 1, most  # P(X ≥ k | high) > α/2, and not so at low
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if hypergeom.sf(k - 1, size, middle, n) > tail else (middle, high)
    lower = high
    low, high = fewest, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if hypergeom.cdf(k, size, middle, n) > tail else (low, middle)
    return Interval(lower=lower / size, upper=low / size, confidence=confidence)  # (1)


def anytime_interval(k: int, n: int, size: int, *, confidence: float = 0.95) -> Interval:
    """The same, for whoever looks after every draw and stops when they like: all looks hold together.

        {K : prior(K) < posterior(K | k of n) / α}        (1)

    The prior over the number K of successes among N is uniform. If K is the truth, prior over posterior is what a fair
    bet would have won, and reaches 1 / α once in all draws with probability α at most (Ville's inequality). At 100
    draws it is about 1.6 times as wide as `exact_interval`.

    >>> found = anytime_interval(80, 100, 1000)
    >>> round(found.lower, 3), round(found.upper, 3), anytime_interval(0, 0, 1000)
    (0.659, 0.902, Interval(lower=0.0, upper=1.0, confidence=0.95))

    References:
        | Confidence Sequences for Sampling Without Replacement (Waudby-Smith and Ramdas, 2020)
        | https://arxiv.org/abs/2006.04347
    """
    _check(k, n, size, confidence)
    rest, more = size - n, np.arange(size - n + 1)  # successes among those not drawn
    ways = gammaln(rest + 1) - gammaln(more + 1) - gammaln(rest - more + 1)
    posterior = ways + betaln(k + 1 + more, size - k - more + 1) - betaln(k + 1, n - k + 1)
    inside = more[posterior > np.log(1 - confidence) - np.log(size + 1)]  # (1)
    return Interval(lower=int(k + inside[0]) / size, upper=int(k + inside[-1]) / size, confidence=confidence)


def _check(k: int, n: int, size: int, confidence: float) -> None:
    check_confidence(confidence)
    if not 0 <= k <= n <= size or size < 1:
        raise ValueError(f"there must be 0 <= k <= n <= size and a size of 1 at least, got {k}, {n} and {size}")
