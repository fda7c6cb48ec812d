"""How many labels a proof is likely to need: before it begins, and while it runs."""

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import log_ndtr, ndtr

from operant.assess.betting import Array, Integers, Outcomes
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
        """Labels to ask for at once, `batch_size`."""
        return int(batch_size(np.array(self.least), np.array(self.mean)))

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

    and the 90 % quantile is that of its first passage, an inverse Gaussian distribution.
    """
    if evidence.bounds(alpha)[0] <= requirement:
        return LabelForecast(least=0.0, mean=0.0, high=0.0)
    walk = (
        guided_walk(evidence, requirement)
        if isinstance(evidence, GuidedEvidence)
        else plain_walk(np.array(evidence.failures), evidence.labels, requirement)
    )
    least, mean = (float(n) for n in walk.labels(alpha))
    if math.isinf(mean):
        return LabelForecast(least=least, mean=mean, high=mean)
    return LabelForecast(least=least, mean=mean, high=_quantile(mean, float(walk.drift), float(walk.variance)))


def _quantile(mean: float, drift: float, variance: float, *, share: float = 0.9) -> float:
    """Labels n by which a random walk has reached its goal with this chance, by bisection on

    P(T <= n) = Phi((drift n - d) / sd) + exp(2 drift d / variance) Phi(-(drift n + d) / sd),  sd^2 = variance n    (2)
    """
    distance, low, high = drift * mean, math.log(mean) - 10, math.log(mean) + 10
    for _ in range(50):
        n = math.exp((low + high) / 2)
        sd = math.sqrt(max(variance, 1e-12) * n)
        log_second = 2 * drift * distance / max(variance, 1e-12) + log_ndtr(-(drift * n + distance) / sd)
        reached = ndtr((drift * n - distance) / sd) + math.exp(min(log_second, 0.0))  # (2)
        low, high = (low, math.log(n)) if reached >= share else (math.log(n), high)
    return math.exp(high)


def batch_size(least: Array, mean: Array) -> Integers:
    """Labels to ask for at once: a quarter of the mean, from 5 to 25, and no more than may suffice."""
    quarter = np.clip(np.ceil(mean / 4), MIN_BATCH, MAX_BATCH)
    size: Integers = np.minimum(quarter, np.maximum(np.ceil(least), 1)).astype(np.int64)
    return size


@dataclass(frozen=True, eq=False, kw_only=True)
class Walk:
    """The log wealth against the requirement, and its change by one label: mean, variance, and mean of successes."""

    wealth: Array
    drift: Array
    variance: Array
    success: Array

    def labels(self, alpha: float) -> tuple[Array, Array]:
        """Labels until the wealth is 1 / alpha: without a failure, and on average."""
        distance = np.maximum(-math.log(alpha) - self.wealth, 1e-3)
        with np.errstate(divide="ignore"):
            least = np.where(self.success > 0, distance / np.maximum(self.success, 0), math.inf)
            mean = np.where(self.drift > 1e-9, distance / np.maximum(self.drift, 0), math.inf)  # (1)
        return least, mean


def guided_walk(evidence: GuidedEvidence, requirement: float) -> Walk:
    """With the bets that come next."""
    ready = evidence.ready()
    place = int(np.flatnonzero(ready.grid == requirement)[0])
    outcomes = Outcomes.of(ready.bets.rates, ready.prior.masses)
    stake = ready.bets.up[..., place] * (1 + ready.sizes) / (1 + ready.labels)
    change = np.log1p(stake[..., None] * (requirement - outcomes.corrected))
    drift, half = (outcomes.chances * change).sum(-1), change.shape[-1] // 2  # failures come first
    passed = outcomes.chances[..., half:]
    return Walk(
        wealth=ready.up[..., place],
        drift=drift,
        variance=(outcomes.chances * change**2).sum(-1) - drift**2,
        success=(passed * change[..., half:]).sum(-1) / passed.sum(-1),
    )


def plain_walk(failures: Array | Integers, labels: int, requirement: float) -> Walk:
    """A label changes the log wealth of a plain sequence by that of the best fixed bet, nearly."""
    k, n = np.asarray(failures), labels
    p = np.minimum((k + PRIOR_LABELS * requirement / 2) / (n + PRIOR_LABELS), requirement)  # at most: no drift
    below = k < n * requirement
    wealth = np.where(below, log_wealth(np.where(below, k, 0), max(n, 1), requirement), 0.0 if n == 0 else -1.0)
    failed, passed = np.log(p / requirement), np.log((1 - p) / (1 - requirement))
    return Walk(
        wealth=wealth,
        drift=p * failed + (1 - p) * passed,
        variance=p * (1 - p) * (failed - passed) ** 2,
        success=np.full_like(p, -math.log1p(-requirement)),
    )
