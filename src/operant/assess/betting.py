"""Formulas of a guided proof: what one label of a block says about the error rate, and how much to bet on it.

Everything here is a function of numpy arrays. Arrays may have leading dimensions, so that a simulation can follow many
proofs at once. J is the number of risk bins of a model, P the number of error rates that are bet against.

References:
    | Estimating Means of Bounded Random Variables by Betting (Waudby-Smith and Ramdas, 2024)
    | https://arxiv.org/abs/2010.09686
    | Risk-limiting Financial Audits via Weighted Sampling without Replacement (Shekhar et al., 2023)
    | https://arxiv.org/abs/2305.06884
    | Active Statistical Inference (Zrnic and Candes, 2024), https://arxiv.org/abs/2403.03208
    | ALPHA: Audit that Learns from Previously Hand-audited Ballots (Stark, 2023), https://arxiv.org/abs/2201.02707
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

TINY = 1e-300
STEP = 0.06  # between error rates of the grid, in log odds

# One label ----------------------------------------------------------------------------------------------------------


def spread(rates: Array) -> Array:
    """How uncertain a failure is in each bin, sqrt(s (1 - s)): the active draw follows it."""
    uncertainty: Array = np.sqrt(rates * (1 - rates))
    return uncertainty


def draw_weights(uncertainty: Array, sizes: Array, active: float) -> Array:
    """Weights w of a block's inputs, for a draw with chance proportional to sizes / w, ``(..., m)``.

        w_i = 1 / (1 - eps + eps omega_i / mean omega)        (1)

    omega is the uncertainty of the input's bin, its mean is weighted by size; w is at most 1 / (1 - eps).
    """
    mean = (sizes * uncertainty).sum(-1, keepdims=True) / sizes.sum(-1, keepdims=True)
    weights: Array = 1 / (1 - active + active * uncertainty / np.maximum(mean, TINY))
    return weights


def corrected_failure(rates: Array, sizes: Array, drawn: Integers, weight: Array, failed: Array, most: Array) -> Array:
    """Z: an unbiased estimate of the error rate of a block from its one label, and of the field's, given the past.

        Z = eta (mean s - w s_i) + w failed_i,   eta = min(1, c / mean s)        (2)

    The drawn input i fails with a chance of about s_i; what was expected of it is replaced by what is expected of the
    whole block. The correction is zero on average over the draw, whatever the rates s are, so a wrong s costs labels
    and never validity. eta keeps Z below c + w; it depends on the block alone and not on the draw.

    Args:
        rates: s of each input of the block, ``(..., m)``, estimated from earlier labels.
        sizes: of the inputs' groups, as shares of the largest possible one; means are weighted by them.
        drawn: place of the labelled input in the block, ``(...)``.
        weight: w, with which it was drawn.
        failed: 1 or 0.
        most: c, fixed before the block.
    """
    mean = (sizes * rates).sum(-1) / sizes.sum(-1)
    own = np.take_along_axis(rates, np.asarray(drawn)[..., None], -1)[..., 0]
    eta = np.minimum(1, most / np.maximum(mean, TINY))
    z: Array = eta * (mean - weight * own) + weight * failed  # (2)
    return z


# The bets ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, kw_only=True)
class Outcomes:
    """What the next label may give if the estimated rates are true, ``(..., 2J)``: first failures, then successes."""

    corrected: Array  # Z
    weighted: Array  # w failed
    chances: Array

    @classmethod
    def of(cls, rates: Array, masses: Array, active: float = 0.0) -> Self:
        """(2) for an average block: a draw of bin j has the chance mass_j / w_j and fails with the chance s_j."""
        w = draw_weights(spread(rates), masses, active)
        mean = (rates * masses).sum(-1, keepdims=True)
        return cls(
            corrected=np.concatenate([mean + w * (1 - rates), mean - w * rates], -1),
            weighted=np.concatenate([w, np.zeros_like(w)], -1),
            chances=np.concatenate([masses / w * rates, masses / w * (1 - rates)], -1),
        )


def best_bet(gains: Array, chances: Array, limit: Array) -> Array:
    """The stake in [0, limit] with the largest expected log growth E[log(1 + stake gain)], by bisection on its slope.

    Args:
        gains, chances: of the possible outcomes, ``(..., outcomes)``.
        limit: largest stake, ``(...)``; 1 + limit gain must be positive.
    """
    low, high = np.zeros_like(limit), limit.copy()
    for _ in range(20):
        stake = (low + high) / 2
        rising = (chances * gains / (1 + stake[..., None] * gains)).sum(-1) > 0
        low, high = np.where(rising, stake, low), np.where(rising, high, stake)
    return low


def largest_stake(grid: Array, most: Array, active: float, share: Array) -> Array:
    """The stake against each p, ``(..., P)``, with which no label can lose more than a share of the wealth.

    share / (c + 1 / (1 - eps) - p)          since Z is at most c + 1 / (1 - eps)        (3)
    """
    stake: Array = share[..., None] / (most[..., None] + 1 / (1 - active) - grid)  # (3)
    return stake


# The bound -----------------------------------------------------------------------------------------------------------


def error_rates(requirement: float) -> Array:
    """The grid of error rates that are bet against, ``(P,)``: steps of .06 in log odds, the requirement among them.

    It goes from a twentieth of the requirement to .995. A bound is a value of the grid. That is valid between its
    values too: a bet on an error rate below p is fair or worse for every error rate of p or more.
    """

    def odds(p: float) -> float:
        return float(np.log(p / (1 - p)))

    below = int((odds(requirement) - odds(requirement / 20)) / STEP)
    above = max(int((odds(0.995) - odds(requirement)) / STEP), 0)
    grid: Array = 1 / (1 + np.exp(-(odds(requirement) + STEP * np.arange(-below, above + 1))))
    grid[below] = requirement  # exactly
    return grid


def upper_bound(log_wealth: Array, grid: Array, alpha: float) -> Array:
    """The least p such that the wealth against it, and against every larger one of the grid, ever was 1 / alpha."""
    alive = log_wealth < -np.log(alpha)
    last = alive.shape[-1] - np.argmax(alive[..., ::-1], -1)  # place after the last that is not rejected
    place = np.where(alive.any(-1), last, 0)
    upper: Array = np.append(grid, 1.0)[place]
    return upper


def lower_bound(log_wealth: Array, grid: Array, alpha: float) -> Array:
    """The largest p such that the wealth against it, and against every smaller one of the grid, ever was 1 / alpha."""
    alive = log_wealth < -np.log(alpha)
    place = np.where(alive.any(-1), np.argmax(alive, -1), alive.shape[-1])
    lower: Array = np.insert(grid, 0, 0.0)[place]
    return lower
