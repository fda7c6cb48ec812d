"""What the labels of a proof say about one model, label by label: guided by its risks, or plain."""

import math
from dataclasses import dataclass, field, replace
from typing import Protocol, Self

import numpy as np

from operant.assess.betting import (
    Array,
    Integers,
    Outcomes,
    best_bet,
    corrected_failure,
    error_rates,
    largest_stake,
    lower_bound,
    upper_bound,
)
from operant.assess.bounds import confidence_sequence
from operant.assess.scored import RatePrior

ACTIVE = (0.0, 0.08, 0.16, 0.25, 0.35)  # eps: shares of a draw that may follow the risk
MAX_LOSS = 0.8  # share of the wealth that one label may lose; more overbets on early estimates
MAX_LOSS_WITHOUT_FAILURE = 0.95  # as long as no failure was seen, early estimates are too large rather than too small


@dataclass(frozen=True, eq=False, kw_only=True)
class SeenBlock:
    """A block with its label, as one model sees it.

    Attributes:
        bins: of the m inputs, ``(..., m)``.
        sizes: of their groups, as shares of the largest possible one, ``(..., m)``; 1 without groups.
        drawn: place of the labelled input, ``(...)``.
        weight: w, with which it was drawn, by whichever model.
        active: eps of that draw: w is at most 1 / (1 - eps).
        failed: 1.0 if this model misclassifies the labelled input, otherwise 0.0.
    """

    bins: Integers
    sizes: Array
    drawn: Integers
    weight: Array
    active: float
    failed: Array


class Evidence(Protocol):
    """What the labels so far say about one model."""

    @property
    def labels(self) -> int: ...
    def add(self, seen: SeenBlock) -> Self: ...
    def bounds(self, alpha: float) -> tuple[float, float]: ...


@dataclass(frozen=True, eq=False, kw_only=True)
class Bets:
    """What is fixed before a label: rates s of the bins, the limit c, and the stakes against each error rate p."""

    rates: Array  # (..., J)
    most: Array  # (...)
    up: Array  # (..., P): on an error rate below p
    down: Array  # (..., P): on an error rate above p


@dataclass(frozen=True, eq=False, kw_only=True)
class GuidedEvidence:
    """Wealth of the bets against each error rate p of the grid.

        W_p *= 1 + lambda_p A (p - Z)                  on an error rate below p        (1)
        V_p *= 1 + kappa_p A (w failed - p)            on an error rate above p        (2)

    Z is `corrected_failure`, A the mean group size of the block as a share of the largest possible one, 1 without
    groups. If the error rate is p or more, the expected factor (1) is at most 1, so that W_p ever reaches 1 / alpha
    with probability at most alpha (Ville's inequality). V_p is the same for the other side; it has no correction, whose
    range would limit the stakes where most inputs fail.

    The stakes lambda and kappa, and the rates s, depend on earlier labels only: not on the block, its draw, its label.
    """

    prior: RatePrior
    grid: Array
    block: int  # inputs per block; only for the limit c, so it need not be exact
    bets: Bets = field(repr=False)
    bin_labels: Array
    bin_failures: Array
    up: Array = field(repr=False)  # log wealth against each p
    down: Array = field(repr=False)
    best_up: Array = field(repr=False)  # the largest so far
    best_down: Array = field(repr=False)
    labels: int = 0
    due: int = 0  # number of labels at which the bets are computed again
    sizes: Array = field(default_factory=lambda: np.zeros(()), repr=False)  # sum of A
    sum: Array = field(default_factory=lambda: np.zeros(()), repr=False)  # sum of A Z

    @property
    def estimate(self) -> Array:
        """The unbiased estimate of the error rate, between 0 and 1."""
        estimate: Array = np.clip(self.sum / np.maximum(self.sizes, 1e-300), 0, 1)
        return estimate

    def bounds(self, alpha: float) -> tuple[float, float]:
        """The smallest upper and the largest lower bound so far; each holds with confidence 1 - alpha at all times."""
        return float(upper_bound(self.best_up, self.grid, alpha)), float(lower_bound(self.best_down, self.grid, alpha))

    def ready(self, active: float = 0.0) -> Self:
        """With bets for the next label. They are computed again after each label at first, later after 5 % more."""
        if self.labels < self.due:
            return self
        rates, masses = self.prior.estimate(self.bin_failures, self.bin_labels), self.prior.masses
        mean = rates @ masses
        sd = np.sqrt(np.maximum(rates**2 @ masses - mean**2, 0))
        bets = self._bets(rates, mean + 3 * sd / math.sqrt(self.block), active)
        return replace(self, bets=bets, due=self.labels + 1 + self.labels // 20)

    def _bets(self, rates: Array, most: Array, active: float) -> Bets:
        outcomes, share = Outcomes.of(rates, self.prior.masses, active), self._max_loss()
        size = ((1 + self.sizes) / (1 + self.labels))[..., None]  # of a typical block; the first counts as full
        limits = largest_stake(self.grid, most, active, share), share[..., None] / self.grid
        gains = (
            self.grid[:, None] - outcomes.corrected[..., None, :],
            outcomes.weighted[..., None, :] - self.grid[:, None],
        )
        chances = outcomes.chances[..., None, :]
        up, down = (best_bet(g, chances, limit * size) / size for g, limit in zip(gains, limits, strict=True))
        return Bets(rates=rates, most=most, up=up, down=down)

    def _max_loss(self) -> Array:
        return np.where(self.bin_failures.sum(-1) > 0, MAX_LOSS, MAX_LOSS_WITHOUT_FAILURE)

    def add(self, seen: SeenBlock) -> Self:
        """After one more label."""
        now = self.ready(seen.active)
        rates = np.take_along_axis(now.bets.rates, seen.bins, -1)
        z = corrected_failure(rates, seen.sizes, seen.drawn, seen.weight, seen.failed, now.bets.most)
        size = seen.sizes.mean(-1)
        limit = largest_stake(now.grid, now.bets.most, seen.active, now._max_loss())
        down_limit = now._max_loss()[..., None] / now.grid
        weighted = np.asarray(seen.weight * seen.failed)[..., None]
        up = now.up + np.log1p(np.minimum(now.bets.up, limit) * size[..., None] * (now.grid - z[..., None]))  # (1)
        down = now.down + np.log1p(
            np.minimum(now.bets.down, down_limit) * size[..., None] * (weighted - now.grid)
        )  # (2)
        own = np.take_along_axis(seen.bins, np.asarray(seen.drawn)[..., None], -1)
        here = own == np.arange(len(now.prior.masses))
        return replace(
            now,
            labels=now.labels + 1,
            bin_labels=now.bin_labels + here,
            bin_failures=now.bin_failures + here * np.asarray(seen.failed)[..., None],
            up=up,
            down=down,
            best_up=np.maximum(now.best_up, up),
            best_down=np.maximum(now.best_down, down),
            sizes=now.sizes + size,
            sum=now.sum + size * z,
        )


def guided_evidence(
    prior: RatePrior, *, requirement: float, block: int, grid: Array | None = None, shape: tuple[int, ...] = ()
) -> GuidedEvidence:
    """Evidence before the first label.

    Args:
        prior: of the model's bins.
        requirement: the stakes are best against it.
        block: inputs per block.
        grid: error rates to bet against (default: `error_rates`).
        shape: leading dimensions of a simulation of many proofs.
    """
    grid = error_rates(requirement) if grid is None else grid
    bins, wealth = np.zeros((*shape, len(prior.masses))), np.zeros((*shape, len(grid)))
    return GuidedEvidence(
        prior=prior,
        grid=grid,
        block=block,
        bets=Bets(rates=bins, most=np.zeros(shape), up=wealth, down=wealth),
        bin_labels=bins,
        bin_failures=bins,
        up=wealth,
        down=wealth,
        best_up=wealth,
        best_down=wealth,
        sizes=np.zeros(shape),
        sum=np.zeros(shape),
    )


@dataclass(frozen=True, kw_only=True)
class PlainEvidence:
    """Failures among inputs drawn with equal chance: the bound is the best `confidence_sequence` so far.

    It ignores bins and blocks, so every draw must be without guidance (eps = 0) and without groups.
    """

    alpha: float
    labels: int = 0
    failures: int = 0
    upper: float = 1.0
    lower: float = 0.0

    @property
    def estimate(self) -> float:
        return self.failures / max(self.labels, 1)

    def bounds(self, alpha: float) -> tuple[float, float]:
        assert alpha == self.alpha, "the bounds were followed at another level"
        return self.upper, self.lower

    def add(self, seen: SeenBlock) -> Self:
        """After one more label; a success can only lower the upper bound, a failure only raise the lower one."""
        assert seen.active == 0, "a plain sequence cannot use a guided draw"
        k, n = self.failures + int(seen.failed), self.labels + 1
        upper, lower = self.upper, self.lower
        if seen.failed:
            lower = max(lower, 1 - confidence_sequence(n - k, n, confidence=1 - self.alpha).upper)
        else:
            upper = min(upper, confidence_sequence(k, n, confidence=1 - self.alpha).upper)
        return replace(self, labels=n, failures=k, upper=upper, lower=lower)


def best_active(evidence: Evidence, requirement: float) -> float:
    """The eps with the fastest expected growth of the wealth against the requirement, from earlier labels alone."""
    if not isinstance(evidence, GuidedEvidence):
        return 0.0
    bets, masses = evidence.ready().bets, evidence.prior.masses

    def growth(active: float) -> float:
        outcomes = Outcomes.of(bets.rates, masses, active)
        limit = largest_stake(np.array([requirement]), bets.most, active, np.array(MAX_LOSS))
        gains = requirement - outcomes.corrected
        stake = best_bet(gains[None], outcomes.chances[None], limit)
        return float(outcomes.chances @ np.log1p(stake * gains))

    return max(ACTIVE, key=growth)
