"""How many labels a proof is likely to need: before it begins, and while it runs."""

import math
from dataclasses import dataclass

import numpy as np
from scipy.stats import invgauss

from operant.assess.betting import Outcomes
from operant.assess.bounds import log_wealth
from operant.assess.evidence import GuidedEvidence, PlainEvidence
from operant.validation import check_between

GUIDED = 40  # labels times requirement at half the requirement, third model, by simulation
PLAIN = 75
MIN_BATCH, MAX_BATCH = 5, 25
PRIOR_LABELS = 20  # that half the requirement counts for, before labels say more


@dataclass(frozen=True, kw_only=True)
class LabelForecast:
    """Labels still needed to meet the requirement if the present estimate is true; infinite if it never will be.

    Attributes:
        least: if none of them is a failure.
        mean: on average.
        high: enough in nine of ten cases.
    """

    least: float
    mean: float
    high: float

    @property
    def batch(self) -> int:
        """Labels to ask for at once: a quarter of the mean, from 5 to 25, and no more than may suffice."""
        quarter = MAX_BATCH if math.isinf(self.mean) else min(max(math.ceil(self.mean / 4), MIN_BATCH), MAX_BATCH)
        return int(min(quarter, max(math.ceil(self.least), 1)))

    def __str__(self) -> str:
        if math.isinf(self.mean):
            return "At the present estimate the requirement will not be met, however many labels are bought."
        return f"About {math.ceil(self.mean)} more labels, in nine of ten cases at most {math.ceil(self.high)}."


def plan_labels(requirement: float, *, guided: bool) -> int:
    """Proof labels to set aside for a campaign whose last model fails half as often as required.

    About 40 / requirement if scores rank failures well, otherwise 75 / requirement.

    >>> plan_labels(0.1, guided=True), plan_labels(0.1, guided=False)
    (400, 750)
    """
    check_between(0, 1, requirement=requirement)
    return math.ceil(round((GUIDED if guided else PLAIN) / requirement, 6))


def forecast(evidence: GuidedEvidence | PlainEvidence, *, requirement: float, alpha: float) -> LabelForecast:
    """Labels until the upper bound is at most the requirement.

    The log wealth is taken for a random walk with the drift and the variance that one label has by the estimate:

        mean = d / drift,  d = log(1 / alpha) - log wealth        (1)

    and the 90 % quantile is that of an inverse Gaussian distribution with this mean and the shape d^2 / variance.
    """
    if evidence.bounds(alpha)[0] <= requirement:
        return LabelForecast(least=0.0, mean=0.0, high=0.0)
    if isinstance(evidence, GuidedEvidence):
        walk = _guided_walk(evidence, requirement)
    else:
        walk = _plain_walk(evidence, requirement)
    distance = max(-math.log(alpha) - walk.wealth, 1e-3)
    least = distance / walk.success if walk.success > 0 else math.inf
    if walk.drift <= 1e-9:
        return LabelForecast(least=least, mean=math.inf, high=math.inf)
    mean, shape = distance / walk.drift, distance**2 / max(walk.variance, 1e-12)
    high = float(invgauss.ppf(0.9, mean / shape, scale=shape)) if mean / shape > 1e-6 else mean
    return LabelForecast(least=least, mean=mean, high=high)


@dataclass(frozen=True, kw_only=True)
class _Walk:
    """The log wealth against the requirement, and its change by one label: mean, variance, and mean of successes."""

    wealth: float
    drift: float
    variance: float
    success: float


def _guided_walk(evidence: GuidedEvidence, requirement: float) -> _Walk:
    ready = evidence.ready()
    place = int(np.flatnonzero(ready.grid == requirement)[0])
    outcomes = Outcomes.of(ready.bets.rates, ready.prior.masses)
    size = float((1 + ready.sizes) / (1 + ready.labels))
    change = np.log1p(ready.bets.up[place] * size * (requirement - outcomes.values))
    drift, half = float(outcomes.chances @ change), len(change) // 2  # failures come first
    return _Walk(
        wealth=float(ready.up[place]),
        drift=drift,
        variance=float(outcomes.chances @ change**2) - drift**2,
        success=float(outcomes.chances[half:] @ change[half:] / outcomes.chances[half:].sum()),
    )


def _plain_walk(evidence: PlainEvidence, requirement: float) -> _Walk:
    """A label changes the log wealth of a plain sequence by that of the best fixed bet, nearly."""
    k, n = evidence.failures, evidence.labels
    p = (k + PRIOR_LABELS * requirement / 2) / (n + PRIOR_LABELS)
    wealth = float(log_wealth(k, n, requirement)) if k < n * requirement else -1.0
    success = -math.log1p(-requirement)
    if p >= requirement:
        return _Walk(wealth=wealth, drift=0.0, variance=1.0, success=success)
    failed, passed = math.log(p / requirement), math.log((1 - p) / (1 - requirement))
    drift = p * failed + (1 - p) * passed
    return _Walk(wealth=wealth, drift=drift, variance=p * (1 - p) * (failed - passed) ** 2, success=success)
