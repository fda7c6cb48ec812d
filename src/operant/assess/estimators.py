"""Estimates of the probability of misclassification λ, with a bound, from a draw and which drawn inputs failed.

Every estimate except the prediction-powered one is a sum over the drawn failures, λ̂ = Σ t_i y_i, unbiased for the mass
of all failures that the draw can reach. `estimate` chooses by design:

    design           estimate                      bound
    "pps"            `hansen_hurwitz`              exact if drawn by the mass itself, else normal
    "poisson"        `horvitz_thompson`            normal
    "rhc"            `rao_hartley_cochran`         normal
    "sequential"     `lure` (or `des_raj`)         exact if drawn by equal chances, else normal
    "stratified"     `stratified`                  score

A normal bound is only given where it can be trusted: if the drawn failures are worth at least 20 of equal weight, and
if no drawn input counts for more than a tenth of the estimate. Otherwise ``upper`` is None, a finding says what to do,
and the estimate stands. The second rule covers all drawn inputs, not only failures: if an input of large weight did not
fail, others like it that were not drawn still may. The bound is

    λ̂ + z² t̄ / 2 + z √(V̂ + z² t̄² / 4),   t̄ = Σ t³ / Σ t²  over the failures        (1)

and not λ̂ + z √V̂, which covers too rarely, since a draw with few failures also has a small V̂. Where all terms are
equal and small, (1) is Wilson's. Failures that were likely to be drawn in any case count less in t̄.

Failures that cannot be drawn (`Draw.unreachable`) are in no estimate; their mass is added to every bound. References
for the designs are in `operant.seeds.draw`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from scipy.stats import norm
from torch import Tensor

from operant.assess.bounds import STRATIFIED, check_confidence, clopper_pearson, stratified_bound
from operant.formatting import at_least, at_most, percent
from operant.model.doctor import Finding
from operant.seeds.designs import Draw, normalised, one_per_input
from operant.validation import check_finite, check_not_empty, check_one_of

MAX_SHARE = 0.1  # of the estimate that one input may account for under a normal bound
MIN_FAILURES = 20.0  # of equal weight, for a normal bound
TOLERANCE = 1e-9  # relative difference up to which two probabilities are equal
INCLUSION = ("poisson", "stratified")  # designs whose probabilities are those of being in the sample at all
CERTAIN = 1 - TOLERANCE  # rows with at least this probability were sure to be drawn


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """An estimate of the probability of misclassification per input.

    Attributes:
        estimate: λ̂, unbiased and therefore not cut off at 1.
        upper: λ is at most this, with ``confidence``; None where no bound can be trusted, see ``findings``.
        standard_error: of the estimate; None if there are too few labels to compute it.
        bound: the bound's method, or "none".
        labels, failures: number of drawn inputs and of failed ones; one that was drawn twice counts twice.
        effective_failures: (Σ t)² / Σ t² over the failures' terms t: the equivalent number of failures of equal weight.
        unreachable: the mass that could not be drawn; it is in ``upper`` and not in ``estimate``.
        findings: warnings about the numbers.
    """

    estimate: float
    upper: float | None
    confidence: float
    standard_error: float | None
    method: str
    bound: str
    labels: int
    failures: int
    effective_failures: float
    unreachable: float = 0.0
    findings: tuple[Finding, ...] = field(default=())

    def __str__(self) -> str:
        error = "" if self.standard_error is None else f" ± {percent(self.standard_error, 2)}"
        upper = (
            "no bound"
            if self.upper is None
            else f"at most {at_most(self.upper)} with {at_least(self.confidence)} confidence"
        )
        lines = [
            f"Probability of misclassification {percent(self.estimate)}{error}, {upper}; {self.failures} failures "
            f"among {self.labels} labels ({self.method}, bound: {self.bound})."
        ]
        return "\n".join([*lines, *(f"  {finding}" for finding in self.findings)])


def estimate(draw: Draw, failed: Tensor, *, confidence: float = 0.95) -> Estimate:
    """The estimate and bound for the draw's design; raises for the design "top".

    Args:
        failed: for each row of the draw, in order, whether the model misclassified it.

    >>> from operant import Samples, spawn
    >>> from operant.seeds import draw
    >>> pool = Samples(torch.rand(1000, 2, generator=spawn(0)))
    >>> drawn = draw(pool, torch.ones(1000), 300, design="pps", generator=spawn(1))
    >>> estimate(drawn, pool.x[drawn.indices, 0] < 0.01).upper
    0.0302...
    """
    draw.chances  # noqa: B018  # raises if the design has none
    return ESTIMATORS[draw.design](draw, failed, confidence=confidence)


def hansen_hurwitz(draw: Draw, failed: Tensor, *, confidence: float = 0.95) -> Estimate:
    """For ``"pps"``: n independent draws, row i with chance d_i each time.

        λ̂ = (1/n) Σ p_i y_i / d_i,   V̂ = Σ (p_i y_i / d_i - λ̂)² / (n (n - 1))        (1)

    If the chances are the masses, failures are independent with probability λ, and the bound is Clopper-Pearson's.
    """
    y = _checked(draw, failed, confidence, "pps")
    if _agree(draw.mass / draw.chances, 1 - draw.unreachable):
        return _exact(draw, y, _pps(draw, y), confidence, "Hansen-Hurwitz")
    return _normal(draw, y, _pps(draw, y), confidence, "Hansen-Hurwitz")


def horvitz_thompson(draw: Draw, failed: Tensor, *, confidence: float = 0.95) -> Estimate:
    """For ``"poisson"``: each row was included with chance d_i, independently.

    λ̂ = Σ p_i y_i / d_i,   V̂ = Σ (1 - d_i) (p_i y_i / d_i)²        (1)
    """
    y = _checked(draw, failed, confidence, "poisson")
    return _normal(draw, y, _poisson(draw, y), confidence, "Horvitz-Thompson")


def rao_hartley_cochran(draw: Draw, failed: Tensor, *, confidence: float = 0.95) -> Estimate:
    """For ``"rhc"``: one row from each random group g of N_g rows and weight Q_g, with chance d_i = q_i / Q_g.

    λ̂ = Σ p_i y_i / d_i,   V̂ = (Σ N_g² - N) / (N² - Σ N_g²) Σ Q_g (p_i y_i / q_i - λ̂)²        (1)
    """
    y = _checked(draw, failed, confidence, "rhc")
    return _normal(draw, y, _rhc(draw, y), confidence, "Rao-Hartley-Cochran")


def des_raj(draw: Draw, failed: Tensor, *, confidence: float = 0.95) -> Estimate:
    """For ``"sequential"``: at the k-th draw row k had chance d_k among the rows left. DeepEST's estimate.

        z_k = Σ_{j<k} p_j y_j + p_k y_k / d_k,   λ̂ = (1/n) Σ z_k,   V̂ = Σ (z_k - λ̂)² / (n (n - 1))        (1)

    Each z_k is unbiased, whatever was drawn before, and they are uncorrelated. In V̂, DeepEST's program takes the
    distance from z_1 instead of λ̂, which does not estimate the variance; we do not follow it.
    """
    y = _checked(draw, failed, confidence, "sequential")
    return _without_replacement(draw, y, _des_raj(draw, y), confidence, "Des Raj")


def lure(draw: Draw, failed: Tensor, *, confidence: float = 0.95) -> Estimate:
    """For ``"sequential"``: the terms of `des_raj`, with more weight on later ones, where fewer rows were unknown.

        λ̂ = Σ c_k z_k,   c_k = (N/n) (N - n) / ((N - k) (N - k + 1)),   V̂ = (n / (n - 1)) Σ c_k² (z_k - λ̂)²        (1)

    This is LURE written as a sum of uncorrelated parts, which also gives its variance. With equal chances it is the
    plain rate; if the whole pool is drawn, it is exact.

    References:
        | Active Testing: Sample-Efficient Model Evaluation (Kossen et al., 2021)
        | https://arxiv.org/abs/2103.05331
    """
    y = _checked(draw, failed, confidence, "sequential")
    return _without_replacement(draw, y, _lure(draw, y), confidence, "LURE")


def stratified(draw: Draw, failed: Tensor, *, confidence: float = 0.95, bound: str = "score") -> Estimate:
    """For ``"stratified"``: the stratum rates weighted by mass. The default for claims from few labels.

        λ̂ = Σ P_h k_h / n_h,   V̂ = Σ P_h² (1 - f_h) r_h (1 - r_h) / (n_h - 1),   r_h = k_h / n_h        (1)

    f_h is the drawn share of the stratum. Rows that were certain to be drawn are counted separately, exactly. The bound
    treats the draws of a stratum as independent; since they are without replacement, it is somewhat long.

    Fewest labels are needed with the weights ``combine(mass, risk, risk_power=0.5, defensive=0.5)``: inputs that look
    safe must be drawn often enough, or their possible failures dominate the bound. Six strata do better than four.

    Args:
        bound: ``"score"``, ``"laplace"``, ``"beta"`` or ``"jeffreys"``; see `operant.assess.stratified_bound`.
    """
    y = _checked(draw, failed, confidence, "stratified")
    check_one_of(STRATIFIED, bound=bound)
    known = float((draw.mass * y)[draw.chances >= CERTAIN].sum())
    upper, method = known, "all labels known"
    drawn = _by_stratum(draw, torch.ones_like(y))
    if bool((some := drawn > 0).any()):
        mass, failures = _by_stratum(draw, draw.mass / draw.chances), _by_stratum(draw, y).round()
        strata = failures[some].tolist(), drawn[some].tolist(), mass[some].tolist()
        rest = stratified_bound(*strata, confidence=confidence, method=bound)
        upper, method = known + rest.upper, rest.method
    return _result(draw, y, _stratified(draw, y), confidence, "stratified", method, upper)


def prediction_powered(
    draw: Draw,
    failed: Tensor,
    scores: Tensor,
    *,
    mass: Tensor | None = None,
    power: float | None = None,
    confidence: float = 0.95,
) -> Estimate:
    """A predicted risk for the whole pool, corrected by the drawn failures: survey sampling's difference estimator.

        λ̂ = η Σ_pool p_i s_i + Σ_drawn t_i (y_i - η s_i)        (1)

    t_i is the weight of a failure of row i in the design's own estimate, for example p_i / (n d_i). That is (1) with
    η = 0; a good score reduces its variance, a bad one increases it. By default η is the coefficient of the
    regression of t y on t s over the drawn rows, at the price of a bias of the order 1 / n.

    Args:
        draw: one that reaches the whole pool.
        scores: s, an estimate of each pool input's probability of failing, in the pool's order.
        mass: the pool's, as given to the draw.
        power: η (default: estimated).

    References:
        | PPI++: Efficient Prediction-Powered Inference (Angelopoulos et al., 2023)
        | https://arxiv.org/abs/2311.01453
        | Model Assisted Survey Sampling (Särndal, Swensson and Wretman, 1992), chapter 6
    """
    y = _checked(draw, failed, confidence, draw.design)
    total, s = _checked_scores(draw, scores, mass)
    terms = TERMS[draw.design]
    shares = terms(draw, y).shares
    eta = _regression(shares * y, shares * s) if power is None else float(power)
    rest = terms(draw, y - eta * s)
    powered = _EstimateTerms(shares, eta * total + float((shares * (y - eta * s)).sum()), rest.error)
    return _normal(draw, y, powered, confidence, f"prediction-powered, η = {eta:.3g}")


ESTIMATORS: dict[str, Callable[..., Estimate]] = {
    "pps": hansen_hurwitz,
    "poisson": horvitz_thompson,
    "rhc": rao_hartley_cochran,
    "sequential": lure,
    "stratified": stratified,
}


class _EstimateTerms(NamedTuple):
    """The weight of a failure of each drawn row, the estimate, and its standard error."""

    shares: Tensor
    estimate: float
    error: float | None


def _pps(draw: Draw, y: Tensor) -> _EstimateTerms:
    n, weights = len(draw), draw.mass / draw.chances
    return _EstimateTerms(weights / n, float((weights * y).mean()), _error_of_mean(weights * y))


def _poisson(draw: Draw, y: Tensor) -> _EstimateTerms:
    weights = draw.mass / draw.chances
    variance = ((1 - draw.chances) * (weights * y) ** 2).sum()
    return _EstimateTerms(weights, float((weights * y).sum()), math.sqrt(float(variance)))


def _rhc(draw: Draw, y: Tensor) -> _EstimateTerms:
    assert draw.groups is not None
    sums, sizes = draw.groups.sums, draw.groups.sizes.double()
    weights = draw.mass / draw.chances
    total, squares, size = (weights * y).sum(), (sizes**2).sum(), sizes.sum()
    spread = (sums * (weights * y / sums - total) ** 2).sum()
    error = math.sqrt(float((squares - size) / (size**2 - squares) * spread)) if len(draw) > 1 else None
    return _EstimateTerms(weights, float(total), error)


def _des_raj(draw: Draw, y: Tensor) -> _EstimateTerms:
    n, k = len(draw), torch.arange(1, len(draw) + 1)
    z = _cumulated(draw, y)
    return _EstimateTerms(draw.mass * ((n - k) + 1 / draw.chances) / n, float(z.mean()), _error_of_mean(z))


def _lure(draw: Draw, y: Tensor) -> _EstimateTerms:
    n, size, k = len(draw), draw.pool_size, torch.arange(1, len(draw) + 1, dtype=torch.float64)
    if n == size:
        c = torch.zeros(n, dtype=torch.float64).index_fill_(0, torch.tensor([n - 1]), 1)  # the last row's term is λ
    else:
        c = size / n * (size - n) / ((size - k) * (size - k + 1))
    later = c.sum() - c.cumsum(0)  # a row is also in every later term
    z = _cumulated(draw, y)
    total = (c * z).sum()
    error = math.sqrt(float(n / (n - 1) * (c**2 * (z - total) ** 2).sum())) if n > 1 else None
    return _EstimateTerms(draw.mass * (later + c / draw.chances), float(total), error)


def _cumulated(draw: Draw, y: Tensor) -> Tensor:
    """z_k of Des Raj."""
    values = draw.mass * y
    return values.cumsum(0) - values + values / draw.chances


def _stratified(draw: Draw, y: Tensor) -> _EstimateTerms:
    assert draw.strata is not None
    of, some = draw.strata.of, draw.chances < CERTAIN
    weights, drawn = draw.mass / draw.chances, torch.bincount(of[some], minlength=len(draw.strata.mass)).double()
    values = weights * y * drawn[of]  # around P_h y
    means = _by_stratum(draw, values) / drawn.clamp_min(1)
    squares = _by_stratum(draw, (values - means[of]) ** 2) / (drawn - 1).clamp_min(1)
    fraction = _by_stratum(draw, draw.chances) / drawn.clamp_min(1)
    variance = (squares * (1 - fraction) / drawn.clamp_min(1)).sum()
    error = None if bool((drawn == 1).any()) else math.sqrt(float(variance))
    return _EstimateTerms(weights, float((weights * y).sum()), error)


def _by_stratum(draw: Draw, values: Tensor) -> Tensor:
    """Sums over the drawn rows of each stratum that were not certain."""
    assert draw.strata is not None
    sums = torch.zeros(len(draw.strata.mass), dtype=torch.float64)
    return sums.index_add_(0, draw.strata.of, values * (draw.chances < CERTAIN))


TERMS: dict[str, Callable[[Draw, Tensor], _EstimateTerms]] = {
    "pps": _pps,
    "poisson": _poisson,
    "rhc": _rhc,
    "sequential": _lure,
    "stratified": _stratified,
}


def _error_of_mean(values: Tensor) -> float | None:
    return math.sqrt(float(values.var()) / len(values)) if len(values) > 1 else None


def _regression(a: Tensor, b: Tensor) -> float:
    """The coefficient of a on b; 0 if b does not vary."""
    da, db = a - a.mean(), b - b.mean()
    spread = float((db**2).sum())
    return float((da * db).sum()) / spread if spread > 0 else 0.0


def _without_replacement(draw: Draw, y: Tensor, terms: _EstimateTerms, confidence: float, method: str) -> Estimate:
    """An exact bound for equal chances and masses, which are a simple random sample; otherwise a normal one."""
    left = draw.pool_size - torch.arange(len(draw))
    if _agree(draw.chances * left, 1) and _agree(draw.mass * draw.pool_size, 1):
        return _exact(draw, y, terms, confidence, method)
    return _normal(draw, y, terms, confidence, method)


def _exact(draw: Draw, y: Tensor, terms: _EstimateTerms, confidence: float, method: str) -> Estimate:
    exact = clopper_pearson(int(y.sum()), len(y), confidence=confidence)
    return _result(draw, y, terms, confidence, method, exact.method, (1 - draw.unreachable) * exact.upper)


def _normal(draw: Draw, y: Tensor, terms: _EstimateTerms, confidence: float, method: str) -> Estimate:
    """A normal bound if it can be trusted, otherwise none."""
    if finding := _why_not_normal(y, terms):
        return _result(draw, y, terms, confidence, method, "none", None, finding)
    assert terms.error is not None
    z, t = float(norm.isf(1 - confidence)), terms.shares * y
    chance = 1 - draw.chances if draw.design in INCLUSION else torch.ones_like(t)
    skew = z * float((chance * t**3).sum() / (chance * t**2).sum().clamp_min(1e-300)) / 2
    upper = max(0.0, terms.estimate) + z * skew + z * math.sqrt(terms.error**2 + skew**2)  # (1)
    return _result(draw, y, terms, confidence, method, "normal", upper)


def _why_not_normal(y: Tensor, terms: _EstimateTerms) -> Finding | None:
    effective, largest = _effective(terms.shares * y), float(terms.shares.max())
    total = float((terms.shares * y).sum())
    if effective < MIN_FAILURES:
        why = f"the drawn failures are worth only {effective:.3g} of equal weight, and {MIN_FAILURES:g} are needed"
    elif largest > MAX_SHARE * total:
        allowed = f"at most {percent(MAX_SHARE, 2)} is allowed"
        why = f"one drawn input counts for {percent(largest / total, 2)} of the estimate; {allowed}"
    elif terms.error is None:
        why = "a stratum has a single label, which gives no variance"
    else:
        return None
    return Finding(
        name="no normal bound",
        problem=f"a normal approximation cannot be trusted here: {why}",
        advice='use the design "stratified", or "pps" with the mass as weights, whose bounds need no normal '
        "approximation; or buy more labels",
    )


def _result(
    draw: Draw,
    y: Tensor,
    terms: _EstimateTerms,
    confidence: float,
    method: str,
    bound: str,
    upper: float | None,
    *findings: Finding,
) -> Estimate:
    lost = draw.unreachable
    if lost > 0:
        findings += (
            Finding(
                name="out of reach",
                problem=f"inputs with {lost:.3g} of the profile's mass could not be drawn and are in no estimate",
                advice="the bound counts all of them as failures; give every input some weight, as combine does",
            ),
        )
    return Estimate(
        estimate=terms.estimate,
        upper=None if upper is None else min(1.0, upper + lost),
        confidence=float(confidence),
        standard_error=terms.error,
        method=method,
        bound=bound,
        labels=len(y),
        failures=int(y.sum()),
        effective_failures=_effective(terms.shares * y),
        unreachable=lost,
        findings=findings,
    )


def _effective(terms: Tensor) -> float:
    squares = float((terms**2).sum())
    return float(terms.sum()) ** 2 / squares if squares > 0 else 0.0


def _agree(values: Tensor, target: float) -> bool:
    return bool(((values - target).abs() <= TOLERANCE * abs(target)).all())


def _checked(draw: Draw, failed: Tensor, confidence: float, design: str) -> Tensor:
    """Whether each row failed, as 0.0 or 1.0."""
    check_confidence(confidence)
    draw.chances  # noqa: B018  # raises if the design has none
    if draw.design != design:
        raise ValueError(f'this is for the design "{design}", not "{draw.design}"; estimate(...) chooses the right one')
    check_not_empty(draw=draw, advice="draw again, with a larger n")
    y = one_per_input(failed, len(draw), "failed", kind="drawn rows")
    if bad := int(((y != 0) & (y != 1)).sum()):
        raise ValueError(f"failed must be 0 or 1, got {bad} of {len(y)} other values; give model.predict(x) != labels")
    return y


def _checked_scores(draw: Draw, scores: Tensor, mass: Tensor | None) -> tuple[float, Tensor]:
    """Σ p s over the pool, and the drawn rows' scores."""
    size = draw.pool_size
    s = one_per_input(scores, size, "scores")
    check_finite(scores=s)
    if draw.unreachable > 0:
        lost = f"{draw.unreachable:.3g} of the mass, which had no weight in the draw"
        raise ValueError(f"scores cannot be corrected for {lost}; draw with positive weights, as combine gives them")
    p = torch.full((size,), 1 / size, dtype=torch.float64) if mass is None else normalised(mass, size, "mass")
    if not torch.allclose(p[draw.indices], draw.mass, rtol=1e-6, atol=0):
        raise ValueError("mass differs from the one that this draw was made with; give the same, in the pool's order")
    return float(p @ s), s[draw.indices]
