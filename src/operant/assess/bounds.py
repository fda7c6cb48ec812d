"""Bounds for the probability of failure from k failures in n trials.

Choose by assumption. `clopper_pearson`: n was fixed beforehand. `confidence_sequence`: the bound is checked as often as
one likes. `stratified_bound`: trials come from several strata of known mass. `conservative_bayes` and `beta_binomial`:
there is a partial or a full prior.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import betainc, betaln, xlog1py, xlogy
from scipy.stats import beta, norm

from operant.formatting import at_least, at_most
from operant.validation import check_above_to, check_at_least, check_between, check_from_to, check_one_of

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
    """The probability of failing is at most ``upper`` (never 0), with ``confidence``; ``method`` names any prior."""

    upper: float
    confidence: float
    method: str
    failures: int
    trials: int

    def __str__(self) -> str:
        return (
            f"at most {at_most(self.upper)} with {at_least(self.confidence)} confidence, from {self.failures} "
            f"failures in {self.trials} trials ({self.method})"
        )


def clopper_pearson_interval(k: int, n: int, *, confidence: float = 0.95) -> Interval:
    """The exact two-sided interval for a probability, from k successes in n independent trials.

        lower = B(α/2; k, n - k + 1),  upper = B(1 - α/2; k + 1, n - k),  α = 1 - confidence        (1)

    B(q; a, b) is the q-quantile of the beta distribution; the lower end is 0 for k = 0, the upper end 1 for k = n. It
    covers the truth at least as often as promised, and is therefore somewhat longer than necessary.

    >>> clopper_pearson_interval(0, 10).upper
    0.3084...

    References:
        | The Use of Confidence or Fiducial Limits Illustrated in the Case of the Binomial (Clopper and Pearson, 1934)
        | https://doi.org/10.1093/biomet/26.4.404
    """
    _check(k, n, confidence)
    tail = (1 - confidence) / 2
    lower = float(beta.ppf(tail, k, n - k + 1)) if k > 0 else 0.0  # (1)
    return Interval(lower=lower, upper=_exact_upper(k, n, tail), confidence=confidence)


def clopper_pearson(k: int, n: int, *, confidence: float = 0.95) -> Bound:
    """The exact upper bound from k failures in n independent trials, n fixed beforehand.

        upper = B(1 - α; k + 1, n - k),  B as in `clopper_pearson_interval`        (1)

    All of α is above the bound, so it is lower than the upper end of the interval. Without a failure it is
    1 - α^(1/n), about 3 / n at 95 %.

    >>> clopper_pearson(0, 1000).upper
    0.00299...
    """
    _check(k, n, confidence)
    return _bound(_exact_upper(k, n, 1 - confidence), k, n, confidence, "Clopper-Pearson")


def _exact_upper(k: int, n: int, tail: float) -> float:
    return float(beta.isf(tail, k + 1, n - k)) if k < n else 1.0  # (1)


def confidence_sequence(k: int, n: int, *, confidence: float = 0.95) -> Bound:
    """An upper bound that holds after all trials simultaneously: check it after each trial and stop at any time.

        M(p) = ∫₀^p u^k (1 - u)^(n - k) dB(u) / (B(p) p^k (1 - p)^(n - k)),   upper = sup {p : M(p) < 1 / α}        (1)

    B is the beta distribution with both parameters ½. If p is the truth, M is the wealth of a fair bet on smaller
    values, which ever reaches 1 / α with probability at most α (Ville's inequality). The bound is 20 to 40 % larger
    than that of `clopper_pearson`.

    >>> confidence_sequence(0, 1000).upper
    0.00378...

    References:
        | Statistical Methods Related to the Law of the Iterated Logarithm (Robbins, 1970)
        | https://doi.org/10.1214/aoms/1177696786
        | Time-uniform, Nonparametric, Nonasymptotic Confidence Sequences (Howard et al., 2021)
        | https://arxiv.org/abs/1810.08240
    """
    _check(k, n, confidence)
    upper = 1.0
    if k < n:
        upper = _share(_root(lambda x: float(log_wealth(k, n, _share(x, k / n))) + math.log1p(-confidence)), k / n)
    return _bound(upper, k, n, confidence, "confidence sequence")


def log_wealth(k: Array | int, n: Array | int, p: Array | float) -> Array:
    """log M(p) of `confidence_sequence`, for p no smaller than k / n; broadcasts."""
    a, b = MIXTURE
    after = betaln(a + k, b + n - k) + np.log(betainc(a + k, b + n - k, p))
    before = betaln(a, b) + np.log(betainc(a, b, p))
    out: Array = after - before - xlogy(k, p) - xlog1py(np.subtract(n, k), -np.asarray(p))
    return out


def _share(x: float, low: float) -> float:
    """Map the real line to (low, 1), with high resolution at both ends."""
    return low + (1 - low) / (1 + math.exp(-x))


def _root(f: Callable[[float], float], *, limit: float = 32.0) -> float:
    """The root of an increasing function, or ``limit`` if it lies above."""
    low, high = -1.0, 1.0
    while f(low) >= 0:
        low *= 2
    while f(high) < 0:
        if high >= limit:
            return high
        high *= 2
    return float(brentq(f, low, high, xtol=1e-12))


def stratified_bound(
    k: Sequence[int], n: Sequence[int], mass: Sequence[float], *, confidence: float = 0.95, method: str = "score"
) -> Bound:
    """An upper bound for Σ P_h θ_h, from k_h failures in n_h trials of each stratum h of mass P_h.

    ``"score"``, the default, finds the rates θ with the given sum that make the counts most likely, and how far the
    estimate then lies below that sum in units of its standard deviation:

        n_h θ_h - k_h = m P_h θ_h (1 - θ_h)  for each h,   m (upper - λ̂) = z²,   upper = Σ P_h θ_h        (1)

    with λ̂ = Σ P_h k_h / n_h. For one stratum that is Wilson's bound. z is the normal quantile, or larger, such that
    without any failure the bound is the exact one: the largest Σ P_h θ_h with Π (1 - θ_h)^n_h = α. Where more than half
    of a stratum fails, one more failure is counted, since there the normal approximation errs to the other side.

    Unseen failures are assumed where they would weigh most, so the bound holds when all failures are in one stratum
    that seemed safe, and a stratum without failures costs nothing if another has more mass per trial. Neither is true
    of the other methods:

    - ``"laplace"``: λ̂ + z √(Σ P_h² θ̃_h (1 - θ̃_h) / n_h), θ̃_h = (k_h + 1) / (n_h + 2)        (2)
      Short, and correct for typical scores. With 4 strata of 75 trials its coverage can fall from .95 to .89 if all
      failures are in the safest stratum.
    - ``"beta"``: the quantile of Σ P_h B_h, B_h ~ Beta(k_h + 1, n_h - k_h) independent        (3)
      Safe, but long: every stratum adds 1 / n_h to its rate.
    - ``"jeffreys"``: the same with Beta(k_h + ½, n_h - k_h + ½); in between.

    Mass missing to a sum of 1 is known not to fail.

    >>> stratified_bound([0, 0, 3], [100, 100, 100], [0.6, 0.3, 0.1]).upper
    0.0207...

    References:
        | Probable Inference, the Law of Succession, and Statistical Inference (Wilson, 1927)
        | https://doi.org/10.1080/01621459.1927.10502953
        | Comparative Analysis of Two Rates (Miettinen and Nurminen, 1985), for standard deviations under a constraint
        | https://doi.org/10.1002/sim.4780040211
    """
    check_confidence(confidence)
    check_one_of(STRATIFIED, method=method)
    counts, trials, shares = _checked_strata(k, n, mass)
    upper = STRATIFIED[method](counts, trials, shares, 1 - confidence)
    k_all, n_all = int(counts.sum()), int(trials.sum())
    return _bound(min(upper, float(shares.sum())), k_all, n_all, confidence, f"stratified, {method}")


def _score(k: Array, n: Array, mass: Array, tail: float) -> float:
    z2 = max(max(float(norm.isf(tail)), 0.0) ** 2, _z2_of_no_failure(n, mass, tail))
    k = np.where(2 * k > n, np.minimum(k + 1, n), k)
    if bool((k == n).all()):
        return float(mass.sum())
    rate = float((mass * k / n).sum())
    x = _root(lambda x: math.exp(x) * (float((mass * _rates(k, n, mass, math.exp(x))).sum()) - rate) - z2, limit=64)
    return float((mass * _rates(k, n, mass, math.exp(x))).sum())  # (1)


def _rates(k: Array, n: Array, mass: Array, m: float) -> Array:
    """θ_h of (1), by the numerically stable one of the two forms of the solution."""
    b = m * mass - n
    root = np.sqrt(b**2 + 4 * m * mass * k)
    return np.where(b > 0, (b + root) / (2 * m * mass), 2 * k / np.maximum(root - b, np.finfo(float).tiny))


def _z2_of_no_failure(n: Array, mass: Array, tail: float) -> float:
    """z² with which (1) gives the exact bound if there is no failure: the largest Σ P_h θ_h not yet excluded."""
    none = np.zeros_like(n)
    x = _root(lambda x: math.log(tail) - float((n * np.log1p(-_rates(none, n, mass, math.exp(x)))).sum()), limit=64)
    return math.exp(x) * float((mass * _rates(none, n, mass, math.exp(x))).sum())


def _laplace(k: Array, n: Array, mass: Array, tail: float) -> float:
    smooth = (k + 1) / (n + 2)
    error = math.sqrt(float((mass**2 * smooth * (1 - smooth) / n).sum()))
    return float((mass * k / n).sum()) + float(norm.isf(tail)) * error  # (2)


def _convolution(before: float, behind: float) -> Callable[[Array, Array, Array, float], float]:
    """(3) on a grid; rounding up raises the bound by about a three-thousandth in total."""

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
        size = 2 * GRID  # the grid ends where almost no mass is left, so nothing wraps around
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


@dataclass(frozen=True, kw_only=True)
class PartialPrior:
    """A partial prior: P(λ ≤ within) = belief and, where there is reason for it, λ ≥ lowest.

    Attributes:
        within: ε, in (0, 1).
        belief: θ, in (0, 1).
        lowest: p_l, from 0 to ε. With 0, failures may be impossible, and a single one voids the belief.
    """

    within: float
    belief: float
    lowest: float = 0.0

    def __post_init__(self) -> None:
        check_between(0, 1, belief=self.belief, within=self.within)
        check_from_to(0, self.within, lowest=self.lowest)


def conservative_bayes(k: int, n: int, *, prior: PartialPrior, confidence: float = 0.95) -> Bound:
    """The upper bound that holds with the given posterior confidence for every prior that agrees with the partial one.

    Solves (1) of `conservative_bayes_confidence` for p. Use it to carry over evidence from an earlier release; it is
    only as good as the belief, and does not replace trials.

    >>> prior = PartialPrior(within=1e-5, belief=0.9)
    >>> conservative_bayes(0, 1000, prior=prior, confidence=0.96).upper
    0.00099...
    """
    _check(k, n, confidence)

    def doubt(p: float) -> float:
        return _log_odds(k, n, p, prior) - math.log(confidence / (1 - confidence))

    if doubt(prior.within) >= 0:
        upper = prior.within
    elif k == n or doubt(math.nextafter(1, 0)) < 0:
        upper = 1.0
    else:
        low = max(prior.within, k / n)  # below, the odds are constant
        upper = _share(_root(lambda x: doubt(_share(x, low))), low)
    return _bound(upper, k, n, confidence, _prior_name(prior))


def conservative_bayes_confidence(k: int, n: int, *, prior: PartialPrior, upper: float) -> Bound:
    """The smallest posterior confidence in λ ≤ upper over all priors that agree with the partial one.

        P(λ ≤ p | k, n) ≥ θ L(x*) / (θ L(x*) + (1 - θ) sup_{x > p} L(x)),   L(x) = x^k (1 - x)^(n - k)        (1)

    x* is where L is smallest in [p_l, ε]: the worst prior puts all its belief there, and the rest just above p or where
    the counts are most likely. For p below ε nothing is known, and the confidence is 0.

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
    _check(k, n)
    check_above_to(0, 1, upper=upper)
    odds = math.inf if upper == 1 else _log_odds(k, n, upper, prior)
    confidence = 0.0 if upper < prior.within else 1 / (1 + math.exp(min(-odds, 700.0)))
    return _bound(upper, k, n, confidence, _prior_name(prior))


def _log_odds(k: int, n: int, p: float, prior: PartialPrior) -> float:
    """The logarithm of the odds in (1) of λ ≤ p against λ > p."""

    def log_likelihood(x: float) -> float:
        return float(xlogy(k, x) + xlog1py(n - k, -x))

    worst = min(log_likelihood(prior.lowest), log_likelihood(prior.within))  # L has one peak: smallest at an end
    return math.log(prior.belief) - math.log1p(-prior.belief) + worst - log_likelihood(max(p, k / n))


def _prior_name(prior: PartialPrior) -> str:
    lowest = f", λ ≥ {prior.lowest:g}" if prior.lowest else ""
    return f"conservative Bayes, prior P(λ ≤ {prior.within:g}) = {prior.belief:g}{lowest}"


def beta_binomial(k: int, n: int, *, prior: str | tuple[float, float], confidence: float = 0.95) -> Bound:
    """The posterior quantile from a beta prior, which must be named: the bound is only as good as the prior.

        upper = B(confidence; a + k, b + n - k)        (1)

    ``"uniform"`` (a = b = 1) is close to `clopper_pearson`. ``"jeffreys"`` (a = b = ½) is shorter and no guarantee:
    without a failure it claims 1.9 / n where the valid bound at 95 % is 3 / n.

    >>> beta_binomial(0, 1000, prior="jeffreys").upper
    0.00191...
    """
    _check(k, n, confidence)
    pair = PRIORS.get(prior) if isinstance(prior, str) else tuple(prior)
    if pair is None or len(pair) != 2 or not all(0 < value < math.inf for value in pair):
        raise ValueError(f'prior must be "uniform", "jeffreys" or a pair of positive numbers (a, b), got {prior!r}')
    a, b = pair
    upper = float(beta.isf(1 - confidence, a + k, b + n - k))  # (1)
    name = f"{prior} prior" if isinstance(prior, str) else "prior"
    return _bound(upper, k, n, confidence, f"{name} Beta({a:g}, {b:g})")


def _bound(upper: float, k: int, n: int, confidence: float, method: str) -> Bound:
    return Bound(upper=upper, confidence=float(confidence), method=method, failures=int(k), trials=int(n))


def check_confidence(confidence: float) -> None:
    check_between(0, 1, confidence=confidence, advice="0.95 is usual")


def _check(k: int, n: int, confidence: float | None = None) -> None:
    if confidence is not None:
        check_confidence(confidence)
    check_at_least(1, n=n)
    if not 0 <= k <= n or k != int(k) or n != int(n):
        raise ValueError(f"k must be a whole number from 0 to n, got k={k} of n={n}")


def _checked_strata(k: Sequence[int], n: Sequence[int], mass: Sequence[float]) -> tuple[Array, Array, Array]:
    counts, trials, shares = (np.asarray(values, dtype=np.float64) for values in (k, n, mass))
    if counts.ndim != 1 or not len(counts) or not counts.shape == trials.shape == shares.shape:
        shapes = f"shapes {counts.shape}, {trials.shape} and {shares.shape}"
        raise ValueError(f"k, n and mass must have one number for each stratum, got {shapes}")
    for one, all_ in zip(counts.tolist(), trials.tolist(), strict=True):
        _check(one, all_)
    if not bool((shares > 0).all()) or not float(shares.sum()) <= 1 + 1e-9:
        raise ValueError(f"mass must be positive in each stratum and sum to 1 at most, got {shares.tolist()}")
    return counts, trials, shares
