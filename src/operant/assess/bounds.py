"""What a count says about the probability behind it: k failures in n trials, and how likely the next one is to fail.

Each bound answers for its own assumption. `clopper_pearson`: n was fixed beforehand. `confidence_sequence`: one looked
as often as one liked and stopped when one liked. `stratified_bound`: trials came from several strata of known mass.
`conservative_bayes` and `beta_binomial`: something was believed before, wholly or in part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import betainc, betaln, xlog1py, xlogy
from scipy.stats import beta, norm

Array = NDArray[np.float64]
PRIORS = {"uniform": (1.0, 1.0), "jeffreys": (0.5, 0.5)}
MIXTURE = (0.5, 0.5)  # the beta distribution over which the confidence sequence mixes
GRID = 4096  # points of a numerical convolution


@dataclass(frozen=True, kw_only=True)
class Interval:
    """Covers the truth in at least ``confidence`` of all repetitions."""

    lower: float
    upper: float
    confidence: float


@dataclass(frozen=True, kw_only=True)
class Bound:
    """The probability of failing is at most ``upper``, with ``confidence``.

    Attributes:
        upper: the bound, never 0 and at most 1.
        confidence: how sure that is.
        method: how it was obtained, in words, with the prior where there is one.
        failures: k.
        trials: n.
    """

    upper: float
    confidence: float
    method: str
    failures: int
    trials: int

    def __str__(self) -> str:
        return (
            f"at most {self.upper:.3g} with {self.confidence:.4g} confidence, from {self.failures} failures in "
            f"{self.trials} trials ({self.method})"
        )


# A number of trials fixed beforehand ----------------------------------------------------------------------------------


def clopper_pearson_interval(k: int, n: int, *, confidence: float = 0.95) -> Interval:
    """The exact two-sided interval for a probability of which n independent trials showed k successes.

        lower = B(α/2; k, n - k + 1),  upper = B(1 - α/2; k + 1, n - k),  α = 1 - confidence        (1)

    B(q; a, b) is the q-quantile of the beta distribution; the lower end is 0 for k = 0, the upper one 1 for k = n.
    Never too short, whatever the probability; for that it is somewhat too long.

    >>> clopper_pearson_interval(0, 10).upper
    0.3084...

    References:
        | The Use of Confidence or Fiducial Limits Illustrated in the Case of the Binomial (Clopper and Pearson, 1934)
        | https://doi.org/10.1093/biomet/26.4.404
    """
    _check_counts(k, n)
    check_confidence(confidence)
    tail = (1 - confidence) / 2
    lower = float(beta.ppf(tail, k, n - k + 1)) if k > 0 else 0.0  # (1)
    return Interval(lower=lower, upper=_exact_upper(k, n, tail), confidence=confidence)


def clopper_pearson(k: int, n: int, *, confidence: float = 0.95) -> Bound:
    """The exact upper bound for n independent trials, n fixed beforehand: true at its confidence, whatever the truth.

        upper = B(1 - α; k + 1, n - k)        (1)

    All of α is above the bound, so it is lower than the upper end of `clopper_pearson_interval`. Without a failure it
    is 1 - α^(1/n), at 95 % about 3 / n.

    >>> clopper_pearson(0, 1000).upper
    0.00299...

    References:
        | The Use of Confidence or Fiducial Limits Illustrated in the Case of the Binomial (Clopper and Pearson, 1934)
        | https://doi.org/10.1093/biomet/26.4.404
    """
    _check_counts(k, n)
    check_confidence(confidence)
    return _bound(_exact_upper(k, n, 1 - confidence), k, n, confidence, "Clopper-Pearson")


def _exact_upper(k: int, n: int, tail: float) -> float:
    return float(beta.isf(tail, k + 1, n - k)) if k < n else 1.0  # (1)


# Any number of looks --------------------------------------------------------------------------------------------------


def confidence_sequence(k: int, n: int, *, confidence: float = 0.95) -> Bound:
    """An upper bound that holds after every trial at once: look after each, stop when you like, sign what it says.

        M(p) = ∫₀^p u^k (1 - u)^(n - k) dB(u) / (B(p) p^k (1 - p)^(n - k)),   upper = sup {p : M(p) < 1 / α}        (1)

    B is the beta distribution with both parameters ½. If p is the truth, M is a fair game's winnings when betting on
    anything smaller, and reaches 1 / α once in a lifetime with probability α at most (Ville's inequality). The price
    against `clopper_pearson` is a bound 20 to 40 % larger.

    >>> confidence_sequence(0, 1000).upper
    0.00378...

    References:
        | Statistical Methods Related to the Law of the Iterated Logarithm (Robbins, 1970)
        | https://doi.org/10.1214/aoms/1177696786
        | Time-uniform, Nonparametric, Nonasymptotic Confidence Sequences (Howard et al., 2021)
        | https://arxiv.org/abs/1810.08240
    """
    _check_counts(k, n)
    check_confidence(confidence)
    threshold = -math.log1p(-confidence)
    if k == n:
        upper = 1.0
    else:
        above = _root(lambda x: float(log_winnings(k, n, _share(x, k / n))) - threshold)
        upper = _share(above, k / n)
    return _bound(upper, k, n, confidence, "confidence sequence")


def log_winnings(k: Array | int, n: Array | int, p: Array | float) -> Array:
    """log M(p) of `confidence_sequence`, for p no smaller than k / n; broadcasts."""
    a, b = MIXTURE
    after = betaln(a + k, b + n - k) + np.log(betainc(a + k, b + n - k, p))
    before = betaln(a, b) + np.log(betainc(a, b, p))
    out: Array = after - before - xlogy(k, p) - xlog1py(np.subtract(n, k), -np.asarray(p))
    return out


def _share(x: float, low: float) -> float:
    """From the whole line to (low, 1), fine at both ends."""
    return low + (1 - low) / (1 + math.exp(-x))


def _root(f: Callable[[float], float], *, most: float = 32.0) -> float:
    """Where a growing function passes 0, as far up as ``most``."""
    low, high = -1.0, 1.0
    while f(low) >= 0:
        low *= 2
    while f(high) < 0:
        if high >= most:
            return high
        high *= 2
    return float(brentq(f, low, high, xtol=1e-12))


# Several strata -------------------------------------------------------------------------------------------------------


def stratified_bound(
    k: Sequence[int], n: Sequence[int], mass: Sequence[float], *, confidence: float = 0.95, method: str = "score"
) -> Bound:
    """An upper bound for Σ P_h θ_h, from k_h failures in n_h trials of each stratum h of mass P_h.

    ``"score"``, the default, asks which rates θ with the given sum would make the counts likeliest, and how far the
    estimate then lies below that sum in units of its standard deviation:

        n_h θ_h - k_h = m P_h θ_h (1 - θ_h)  for each h,   m (upper - λ̂) = z²,   upper = Σ P_h θ_h        (1)

    with λ̂ = Σ P_h k_h / n_h. For one stratum that is Wilson's bound. z is the normal quantile, or larger, such that
    without any failure the bound is the exact one: the largest Σ P_h θ_h with Π (1 - θ_h)^n_h = α. Where more than half
    of a stratum fails, one failure more is counted, for there the normal approximation errs to the other side.

    What no trial has shown is looked for where it would weigh most, so the bound holds when all failures sit in one
    stratum that seemed safe, and a stratum without failures costs nothing if another has more mass per trial. Both are
    otherwise with the other methods:

    - ``"laplace"``: λ̂ + z √(Σ P_h² θ̃_h (1 - θ̃_h) / n_h), θ̃_h = (k_h + 1) / (n_h + 2)        (2)
      Short, and true for scores of the usual kind. With 4 strata of 75 trials the confidence can fall from .95 to .89
      if the failures are all in the safest one.
    - ``"beta"``: the quantile of Σ P_h B_h, B_h ~ Beta(k_h + 1, n_h - k_h) independent        (3)
      Safe, and long: every stratum adds 1 / n_h to its rate.
    - ``"jeffreys"``: the same with Beta(k_h + ½, n_h - k_h + ½); in between.

    Args:
        k: failures of each stratum.
        n: trials of each, one at least.
        mass: P_h, positive; what they do not sum up to 1 is known not to fail.
        confidence: of the bound.
        method: one of the four.

    >>> stratified_bound([0, 0, 3], [100, 100, 100], [0.6, 0.3, 0.1]).upper
    0.0207...

    References:
        | Probable Inference, the Law of Succession, and Statistical Inference (Wilson, 1927)
        | https://doi.org/10.1080/01621459.1927.10502953
        | Comparative Analysis of Two Rates (Miettinen and Nurminen, 1985), for standard deviations under a constraint
        | https://doi.org/10.1002/sim.4780040211
    """
    check_confidence(confidence)
    if method not in STRATIFIED:
        raise ValueError(f"method must be one of {', '.join(STRATIFIED)}, got {method!r}")
    counts, trials, shares = _checked_strata(k, n, mass)
    upper = STRATIFIED[method](counts, trials, shares, 1 - confidence)
    total, everything = int(counts.sum()), float(shares.sum())
    return _bound(min(upper, everything), total, int(trials.sum()), confidence, f"stratified, {method}")


def _score(k: Array, n: Array, mass: Array, tail: float) -> float:
    z2 = max(max(float(norm.isf(tail)), 0.0) ** 2, _z2_of_no_failure(n, mass, tail))
    k = np.where(2 * k > n, np.minimum(k + 1, n), k)
    if bool((k == n).all()):
        return float(mass.sum())
    rate = float((mass * k / n).sum())
    x = _root(lambda x: math.exp(x) * (float((mass * _rates(k, n, mass, math.exp(x))).sum()) - rate) - z2, most=64)
    return float((mass * _rates(k, n, mass, math.exp(x))).sum())  # (1)


def _rates(k: Array, n: Array, mass: Array, m: float) -> Array:
    """θ_h of (1): of the two forms of the solution, the one that loses no digits."""
    b = m * mass - n
    root = np.sqrt(b**2 + 4 * m * mass * k)
    return np.where(b > 0, (b + root) / (2 * m * mass), 2 * k / np.maximum(root - b, np.finfo(float).tiny))


def _z2_of_no_failure(n: Array, mass: Array, tail: float) -> float:
    """z² with which (1) gives, without any failure, the largest Σ P_h θ_h of which none would be seen too rarely."""
    none = np.zeros_like(n)
    x = _root(lambda x: math.log(tail) - float((n * np.log1p(-_rates(none, n, mass, math.exp(x)))).sum()), most=64)
    return math.exp(x) * float((mass * _rates(none, n, mass, math.exp(x))).sum())


def _laplace(k: Array, n: Array, mass: Array, tail: float) -> float:
    smooth = (k + 1) / (n + 2)
    error = math.sqrt(float((mass**2 * smooth * (1 - smooth) / n).sum()))
    return float((mass * k / n).sum()) + float(norm.isf(tail)) * error  # (2)


def _convolution(before: float, behind: float) -> Callable[[Array, Array, Array, float], float]:
    """(3) on a grid. Each part's distribution is rounded up, by a three-thousandth of the bound or so in all."""

    def upper(k: Array, n: Array, mass: Array, tail: float) -> float:
        a, b = k + before, n - k + behind
        certain = b <= 0
        known = float(mass[certain].sum())
        a, b, part = a[~certain], b[~certain], mass[~certain]
        if len(part) == 0:
            return known
        step = float((part * beta.isf(min(tail, 0.5) * 1e-4, a, b)).sum()) / GRID
        edges = np.arange(GRID + 1) * step
        masses = np.diff(betainc(a[:, None], b[:, None], np.minimum(edges / part[:, None], 1)), axis=1)
        size = 2 * GRID  # the grid ends where hardly anything is left: nothing of weight comes round
        product = np.fft.irfft(np.prod(np.fft.rfft(masses, size), axis=0), size)
        place = int(np.searchsorted(product.cumsum(), 1 - tail))
        return known + min((place + len(part)) * step, float(part.sum()))

    return upper


STRATIFIED: dict[str, Callable[[Array, Array, Array, float], float]] = {
    "score": _score,
    "laplace": _laplace,
    "beta": _convolution(1.0, 0.0),
    "jeffreys": _convolution(0.5, 0.5),
}


# Something believed before --------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class PartialPrior:
    """All that is believed before testing: P(λ ≤ within) = belief, and, where there is reason for it, λ ≥ lowest.

    Attributes:
        within: ε, in (0, 1).
        belief: θ, in (0, 1).
        lowest: p_l, from 0 up to ε. With 0, nobody says that failures are possible at all, and a single one voids the
            belief.
    """

    within: float
    belief: float
    lowest: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.belief < 1:
            raise ValueError(f"belief must be between 0 and 1, got {self.belief}")
        if not 0 < self.within < 1 or not 0 <= self.lowest <= self.within:
            raise ValueError(
                f"within must be between 0 and 1, and lowest from 0 to within, got {self.within} and {self.lowest}"
            )


def conservative_bayes(k: int, n: int, *, prior: PartialPrior, confidence: float = 0.95) -> Bound:
    """The upper bound that holds with the given posterior confidence for every prior that has the believed part.

    Solves (1) of `conservative_bayes_confidence` for p. For carrying evidence over from an earlier release; it is as
    good as the belief, and no replacement for trials.

    >>> prior = PartialPrior(within=1e-5, belief=0.9)
    >>> conservative_bayes(0, 1000, prior=prior, confidence=0.96).upper
    0.00099...
    """
    _check_counts(k, n)
    check_confidence(confidence)

    def doubt(p: float) -> float:
        return _log_odds(k, n, p, prior) - math.log(confidence / (1 - confidence))

    if doubt(prior.within) >= 0:
        upper = prior.within
    elif k == n or doubt(math.nextafter(1, 0)) < 0:
        upper = 1.0
    else:
        low = max(prior.within, k / n)  # below, the odds stay what they are
        upper = _share(_root(lambda x: doubt(_share(x, low))), low)
    return _bound(upper, k, n, confidence, _named(prior))


def conservative_bayes_confidence(k: int, n: int, *, prior: PartialPrior, upper: float) -> Bound:
    """The posterior confidence in λ ≤ upper that no prior with the believed part can fall below.

        P(λ ≤ p | k, n) ≥ θ L(x*) / (θ L(x*) + (1 - θ) sup_{x > p} L(x)),   L(x) = x^k (1 - x)^(n - k)        (1)

    x* is where L is smallest in [p_l, ε]: the worst prior has all its belief there, and the rest just above p or where
    the counts are likeliest. For p below ε nothing is known, and the confidence is 0.

    >>> prior = PartialPrior(within=1e-5, belief=0.9)
    >>> conservative_bayes_confidence(0, 1000, prior=prior, upper=1e-3).confidence
    0.960...

    References:
        | Toward a Formalism for Conservative Claims about the Dependability of Software-Based Systems
        | (Bishop et al., 2011) https://doi.org/10.1109/TSE.2010.67
        | Software Fault-freeness and Reliability Predictions (Strigini and Povyakalo, 2013)
        | https://doi.org/10.1007/978-3-642-40793-2_10
        | Assessing Safety-Critical Systems from Operational Testing: A Study on Autonomous Vehicles (Zhao et al., 2020)
        | https://doi.org/10.1016/j.infsof.2020.106393
    """
    _check_counts(k, n)
    if not 0 < upper <= 1:
        raise ValueError(f"upper must be a probability above 0, got {upper}")
    odds = math.inf if upper == 1 else _log_odds(k, n, upper, prior)
    confidence = 0.0 if upper < prior.within else 1 / (1 + math.exp(min(-odds, 700.0)))
    return _bound(upper, k, n, confidence, _named(prior))


def _log_odds(k: int, n: int, p: float, prior: PartialPrior) -> float:
    """Of (1), with natural logarithms: for λ ≤ p against λ > p."""

    def log_likelihood(x: float) -> float:
        return float(xlogy(k, x) + xlog1py(n - k, -x))

    worst = min(log_likelihood(prior.lowest), log_likelihood(prior.within))  # L has one peak: least at an end
    return math.log(prior.belief) - math.log1p(-prior.belief) + worst - log_likelihood(max(p, k / n))


def _named(prior: PartialPrior) -> str:
    lowest = f", λ ≥ {prior.lowest:g}" if prior.lowest else ""
    return f"conservative Bayes, prior P(λ ≤ {prior.within:g}) = {prior.belief:g}{lowest}"


def beta_binomial(k: int, n: int, *, prior: str | tuple[float, float], confidence: float = 0.95) -> Bound:
    """The posterior quantile from a beta prior, which must be named: the bound is as good as the prior.

        upper = B(confidence; a + k, b + n - k)        (1)

    ``"uniform"`` (a = b = 1) is close to `clopper_pearson`. ``"jeffreys"`` (a = b = ½) is shorter and no guarantee:
    without a failure it claims 1.9 / n where 3 / n is true at 95 %.

    >>> beta_binomial(0, 1000, prior="jeffreys").upper
    0.00191...
    """
    _check_counts(k, n)
    check_confidence(confidence)
    pair = PRIORS.get(prior) if isinstance(prior, str) else tuple(prior)
    if pair is None or len(pair) != 2 or not all(0 < value < math.inf for value in pair):
        raise ValueError(
            f'prior must be "uniform", "jeffreys" or a pair of positive numbers (a, b) of a beta distribution, '
            f"got {prior!r}"
        )
    a, b = pair
    upper = float(beta.isf(1 - confidence, a + k, b + n - k))  # (1)
    name = f"{prior} prior" if isinstance(prior, str) else "prior"
    return _bound(upper, k, n, confidence, f"{name} Beta({a:g}, {b:g})")


# Refusals -------------------------------------------------------------------------------------------------------------


def _bound(upper: float, k: int, n: int, confidence: float, method: str) -> Bound:
    return Bound(upper=upper, confidence=float(confidence), method=method, failures=int(k), trials=int(n))


def check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1, got {confidence}; 0.95 is usual")


def _check_counts(k: int, n: int) -> None:
    if not n >= 1:
        raise ValueError(f"n must be at least 1 trial, got {n}")
    if not 0 <= k <= n or k != int(k) or n != int(n):
        raise ValueError(f"k must be a whole number of successes from 0 to n, got k={k} of n={n}")


def _checked_strata(k: Sequence[int], n: Sequence[int], mass: Sequence[float]) -> tuple[Array, Array, Array]:
    counts, trials, shares = (np.asarray(values, dtype=np.float64) for values in (k, n, mass))
    if counts.ndim != 1 or not len(counts) or not counts.shape == trials.shape == shares.shape:
        shapes = f"shapes {counts.shape}, {trials.shape} and {shares.shape}"
        raise ValueError(f"k, n and mass must have one number for each stratum, got {shapes}")
    for one, all_ in zip(counts.tolist(), trials.tolist(), strict=True):
        _check_counts(one, all_)
    if not bool((shares > 0).all()) or not float(shares.sum()) <= 1 + 1e-9:
        raise ValueError(f"mass must be positive in each stratum and sum to 1 at most, got {shares.tolist()}")
    return counts, trials, shares
