"""Bounds against closed forms and other ways to the same numbers, and how often they hold."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.special import expit
from scipy.stats import beta, binom, binomtest, norm

from operant.assess.bounds import (
    STRATIFIED,
    Bound,
    PartialPrior,
    beta_binomial,
    clopper_pearson,
    clopper_pearson_interval,
    confidence_sequence,
    conservative_bayes,
    conservative_bayes_confidence,
    log_wealth,
    stratified_bound,
)
from operant.results import load, save

BELIEF = PartialPrior(within=1e-5, belief=0.9)
EVERY = {
    "clopper_pearson": clopper_pearson,
    "confidence_sequence": confidence_sequence,
    "uniform": lambda k, n, **o: beta_binomial(k, n, prior="uniform", **o),
    "jeffreys": lambda k, n, **o: beta_binomial(k, n, prior="jeffreys", **o),
    "pair": lambda k, n, **o: beta_binomial(k, n, prior=(0.3, 7.0), **o),
    "conservative_bayes": lambda k, n, **o: conservative_bayes(k, n, prior=BELIEF, **o),
    **{name: lambda k, n, m=name, **o: stratified_bound([k], [n], [1.0], method=m, **o) for name in STRATIFIED},
}
counts = st.integers(1, 3000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


def lowest(repetitions: int, confidence: float = 0.95) -> int:
    """Fewer true bounds than this are too few, at the level .01."""
    return int(binom.ppf(0.01, repetitions, confidence))


def test_coverage_is_judged_as_it_should_be():
    assert [lowest(n) for n in (100, 200, 2000)] == [89, 182, 1877]


# Known numbers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bound", "upper"),
    [
        (clopper_pearson(0, 1000), 2.99e-3),
        (clopper_pearson(5, 1000), 1.05e-2),
        (clopper_pearson(20, 1000), 2.89e-2),
        (beta_binomial(0, 1000, prior="uniform"), 2.99e-3),
        (beta_binomial(0, 1000, prior="jeffreys"), 1.92e-3),
        (confidence_sequence(0, 1000), 3.78e-3),
        (confidence_sequence(20, 1000), 3.64e-2),
    ],
)
def test_bounds_of_a_thousand_trials(bound, upper):
    assert bound.upper == pytest.approx(upper, rel=3e-3)
    assert bound.confidence == 0.95
    assert bound.trials == 1000


@settings(max_examples=60)
@given(counts=counts, confidence=st.floats(0.5, 0.999))
def test_clopper_pearson_is_the_rate_at_which_so_few_failures_have_probability_alpha(counts, confidence):
    k, n = counts
    upper = clopper_pearson(k, n, confidence=confidence).upper
    assert upper == 1 if k == n else binom.cdf(k, n, upper) == pytest.approx(1 - confidence, rel=1e-6)
    both = clopper_pearson_interval(k, n, confidence=confidence)
    theirs = binomtest(k, n).proportion_ci(confidence, method="exact")
    assert (both.lower, both.upper) == pytest.approx((theirs.low, theirs.high), rel=1e-9)
    assert both.upper >= upper


@pytest.mark.parametrize("n", [1, 7, 1000, 10**6])
def test_no_failure_at_all(n):
    assert clopper_pearson(0, n).upper == pytest.approx(-math.expm1(math.log(0.05) / n), rel=1e-9)
    assert stratified_bound([0], [n], [1.0]).upper == pytest.approx(-math.expm1(math.log(0.05) / n), rel=1e-6)


@settings(max_examples=60)
@given(counts=counts, a=st.floats(0.1, 20), b=st.floats(0.1, 20), confidence=st.floats(0.01, 0.999))
def test_a_posterior_quantile_is_one(counts, a, b, confidence):
    k, n = counts
    upper = beta_binomial(k, n, prior=(a, b), confidence=confidence).upper
    assert beta.cdf(upper, a + k, b + n - k) == pytest.approx(confidence, rel=1e-6)


# The confidence sequence ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("k", "n"), [(0, 1), (0, 40), (3, 40), (39, 40), (20, 300)])
def test_the_winnings_are_the_mixture_of_likelihood_ratios(k, n):
    p = confidence_sequence(k, n).upper

    def ratio(u: float) -> float:
        return (u / p) ** k * ((1 - u) / (1 - p)) ** (n - k) * beta.pdf(u, 0.5, 0.5)

    mixed = quad(ratio, 0, p, limit=500, points=[k / n] if 0 < k / n < p else None)[0] / beta.cdf(p, 0.5, 0.5)
    assert math.exp(log_wealth(k, n, p)) == pytest.approx(mixed, rel=1e-5)
    assert mixed == pytest.approx(20, rel=1e-5)


@pytest.mark.parametrize("n", [1, 10, 10**3, 10**6])
def test_the_confidence_sequence_at_the_ends(n):
    none, all_, but_one = (confidence_sequence(k, n).upper for k in (0, n, n - 1))
    assert clopper_pearson(0, n).upper < none < 1
    assert none < 4.6 / n
    assert all_ == 1
    assert none <= but_one <= 1
    assert confidence_sequence(n // 2, n).upper > clopper_pearson(n // 2, n).upper


def test_the_confidence_sequence_holds_however_often_one_looks_and_clopper_pearson_does_not():
    repetitions, n = 2000, 400
    rng = np.random.default_rng(0)
    for truth in (0.05, 0.3):
        k, looks = (rng.random((repetitions, n)) < truth).cumsum(1).astype(float), np.arange(1.0, n + 1)
        below = k < looks * truth
        winnings = np.where(below, log_wealth(np.where(below, k, 0), looks, truth), 0)
        assert repetitions - int((winnings >= math.log(20)).any(1).sum()) >= lowest(repetitions)
        assert repetitions - int((binom.cdf(k, looks, truth) < 0.05).any(1).sum()) < 0.9 * repetitions


@settings(max_examples=60)
@given(counts=counts, truth=st.floats(1e-4, 0.9999), confidence=st.floats(0.5, 0.999))
def test_winnings_reach_one_over_alpha_just_above_the_bound(counts, truth, confidence):
    """So that coverage may be judged by winnings alone, without solving for the bound each time."""
    k, n = counts
    upper = confidence_sequence(k, n, confidence=confidence).upper
    if truth > k / n and abs(upper - truth) > 1e-9:
        assert (upper < truth) == (float(log_wealth(k, n, truth)) > -math.log(1 - confidence))


# A partial prior ------------------------------------------------------------------------------------------------------


def test_conservative_confidence_of_a_thousand_trials_without_failure():
    result = conservative_bayes_confidence(0, 1000, prior=BELIEF, upper=1e-3)
    assert result.confidence == pytest.approx(0.960, abs=5e-4)
    half = PartialPrior(within=1e-5, belief=0.5)
    assert conservative_bayes_confidence(0, 1000, prior=half, upper=1e-3).confidence == pytest.approx(0.729, abs=5e-4)


def worst_posterior(k: int, n: int, prior: PartialPrior, upper: float) -> float:
    """By trying two-point priors on fine grids, which is what the worst one is."""
    low = np.linspace(prior.lowest, prior.within, 301)[:, None]
    high = np.linspace(upper, 1, 20_001)[None, :-1]
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = [np.where(k == 0, 0, k * np.log(x)) + (n - k) * np.log1p(-x) for x in (low, high)]
    return float(expit(math.log(prior.belief / (1 - prior.belief)) + logs[0] - logs[1]).min())


@pytest.mark.parametrize(
    ("k", "n", "prior", "upper"),
    [
        (0, 300, PartialPrior(within=1e-3, belief=0.7), 0.01),
        (2, 300, PartialPrior(within=0.01, belief=0.7, lowest=0.002), 0.03),
        (9, 300, PartialPrior(within=0.01, belief=0.5, lowest=0.005), 0.02),
        (1, 50, PartialPrior(within=0.1, belief=0.9, lowest=0.05), 0.2),
    ],
)
def test_no_two_point_prior_is_worse(k, n, prior, upper):
    result = conservative_bayes_confidence(k, n, prior=prior, upper=upper).confidence
    assert result == pytest.approx(worst_posterior(k, n, prior, upper), abs=2e-3)


@settings(max_examples=40)
@given(
    counts=counts,
    belief=st.floats(0.05, 0.99),
    within=st.floats(1e-6, 0.5),
    part=st.floats(0.05, 1),
    confidence=st.floats(0.1, 0.99),
)
def test_conservative_bound_and_conservative_confidence_are_each_others_inverse(
    counts, belief, within, part, confidence
):
    k, n = counts
    prior = PartialPrior(within=within, belief=belief, lowest=part * within)
    upper = conservative_bayes(k, n, prior=prior, confidence=confidence).upper
    assert within <= upper <= 1
    reached = conservative_bayes_confidence(k, n, prior=prior, upper=upper).confidence
    if upper < 1 - 1e-6:  # nearer to 1 the digits do not suffice
        assert reached >= confidence - 1e-6
        assert upper == within or reached == pytest.approx(confidence, abs=1e-6)


def test_a_failure_voids_a_belief_in_perfection_and_nothing_is_known_below_what_was_believed():
    assert conservative_bayes(1, 10**5, prior=BELIEF).upper == 1
    assert conservative_bayes(1, 10**5, prior=PartialPrior(within=1e-5, belief=0.9, lowest=1e-6)).upper < 1e-3
    assert conservative_bayes_confidence(0, 10**6, prior=BELIEF, upper=9e-6).confidence == 0
    assert conservative_bayes_confidence(3, 3, prior=BELIEF, upper=1).confidence == 1


# Strata ---------------------------------------------------------------------------------------------------------------

THREE = ([1, 0, 12], [90, 80, 30], [0.6, 0.3, 0.1])


def constrained(k, n, mass, total: float) -> np.ndarray:
    """Of all rates on a grid with the given sum, those that make the counts likeliest: three strata, by brute force."""
    a, b = np.meshgrid(np.linspace(0, total / mass[0], 1501), np.linspace(0, total / mass[1], 1501), indexing="ij")
    c = (total - mass[0] * a - mass[1] * b) / mass[2]
    rates = np.stack([a, b, c])
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = sum(
            np.where(k[h] == 0, 0, k[h] * np.log(rates[h])) + (n[h] - k[h]) * np.log1p(-rates[h]) for h in range(3)
        )
    logs[~np.isfinite(logs) | (c < 0) | (c > 1)] = -np.inf
    return rates[(slice(None), *np.unravel_index(logs.argmax(), logs.shape))]


def test_the_score_bound_is_z_standard_deviations_above_the_estimate():
    k, n, mass = (np.array(v) for v in THREE)
    upper = stratified_bound(*THREE, confidence=0.99).upper  # where the normal quantile is the larger one
    rates = constrained(k, n, mass, upper)
    deviation = math.sqrt(float((mass**2 * rates * (1 - rates) / n).sum()))
    assert (upper - float((mass * k / n).sum())) / deviation == pytest.approx(norm.isf(0.01), rel=5e-3)


def test_without_failures_the_score_bound_is_exact():
    n, mass = np.array([90, 80, 30]), np.array([0.5, 0.3, 0.2])
    upper = stratified_bound([0, 0, 0], n, mass).upper
    a, b = np.meshgrid(np.linspace(0, 1 - 0.05 ** (1 / 90), 1201), np.linspace(0, 1 - 0.05 ** (1 / 80), 1201))
    left = 0.05 / ((1 - a) ** 90 * (1 - b) ** 80)
    c = 1 - np.minimum(left, 1) ** (1 / 30)  # so that no failure has probability .05
    assert upper == pytest.approx(float((mass[0] * a + mass[1] * b + mass[2] * c)[left <= 1].max()), rel=1e-3)


def test_one_stratum_is_wilsons_bound():
    """z is 2.3263 at 99 %, and more than half of none fails."""
    z = norm.isf(0.01)
    for k, n in ((1, 40), (10, 40), (100, 5000)):
        rate = k / n
        wilson = (rate + z**2 / (2 * n) + z * math.sqrt(rate * (1 - rate) / n + z**2 / (4 * n**2))) / (1 + z**2 / n)
        assert stratified_bound([k], [n], [1.0], confidence=0.99).upper == pytest.approx(wilson, rel=1e-9)


def test_laplace_and_convolution_by_other_ways():
    k, n, mass = (np.array(v) for v in THREE)
    smooth = (k + 1) / (n + 2)
    laplace = (mass * k / n).sum() + norm.isf(0.05) * np.sqrt((mass**2 * smooth * (1 - smooth) / n).sum())
    assert stratified_bound(*THREE, method="laplace").upper == pytest.approx(laplace, rel=1e-12)
    rng = np.random.default_rng(0)
    for method, more, less in (("beta", 1.0, 0.0), ("jeffreys", 0.5, 0.5)):
        drawn = (mass * rng.beta(k + more, n - k + less, (400_000, 3))).sum(1)
        assert stratified_bound(*THREE, method=method).upper == pytest.approx(np.quantile(drawn, 0.95), rel=4e-3)
    assert stratified_bound([3], [50], [1.0], method="beta").upper == pytest.approx(
        clopper_pearson(3, 50).upper, rel=2e-3
    )


def strata_of(data, most: int = 200):
    n = data.draw(st.lists(st.integers(1, most), min_size=1, max_size=6))
    k = [data.draw(st.integers(0, trials)) for trials in n]
    mass = np.array([data.draw(st.floats(0.01, 1)) for _ in n])
    return k, n, (mass / mass.sum()).tolist()


@pytest.mark.parametrize("method", STRATIFIED)
@settings(max_examples=40)
@given(data=st.data(), confidence=st.floats(0.6, 0.999))
def test_stratified_bounds_lie_above_the_estimate_and_below_one(method, data, confidence):
    k, n, mass = strata_of(data)
    bound = stratified_bound(k, n, mass, confidence=confidence, method=method)
    assert 0 < bound.upper <= 1 + 1e-12
    assert bound.upper >= sum(p * a / b for p, a, b in zip(mass, k, n, strict=True)) - 1e-9 or method == "jeffreys"
    assert (bound.failures, bound.trials) == (sum(k), sum(n))


@settings(max_examples=40)
@given(data=st.data())
def test_the_score_bound_grows_with_each_failure_and_with_confidence(data):
    k, n, mass = strata_of(data)
    upper = stratified_bound(k, n, mass).upper
    for h in range(len(k)):
        if k[h] < n[h]:
            more = [count + (i == h) for i, count in enumerate(k)]
            assert stratified_bound(more, n, mass).upper >= upper - 1e-9
    assert stratified_bound(k, n, mass, confidence=0.99).upper >= upper - 1e-9
    order = list(range(len(k)))[::-1]
    assert stratified_bound(*([v[i] for i in order] for v in (k, n, mass))).upper == pytest.approx(upper, rel=1e-9)


def test_the_score_bound_is_true_where_laplaces_is_not():
    """All failures in the stratum that seemed safe; and evenly spread; and nearly everything fails."""
    n, mass = [75, 75, 75, 75], [0.45, 0.33, 0.16, 0.06]
    rng = np.random.default_rng(0)
    for rates, wrong in (([0.0282, 0, 0, 0], True), ([0.03] * 4, False), ([0.001, 0.001, 0.05, 0.5], False)):
        truth = float(np.dot(mass, rates))
        drawn = rng.binomial(n, rates, (500, 4))
        true = dict.fromkeys(("score", "laplace"), 0)
        found, times = np.unique(drawn, axis=0, return_counts=True)
        for method in true:
            uppers = np.array([stratified_bound(k, n, mass, method=method).upper for k in found])
            true[method] = int(times[uppers >= truth].sum())
        assert true["score"] >= lowest(500)
        assert (true["laplace"] < 460) == wrong


# Every bound ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EVERY)
def test_no_bound_is_zero_and_all_failures_are_no_nan(name):
    for n in (1, 2, 100, 10**6):
        none, all_ = EVERY[name](0, n), EVERY[name](n, n)
        assert 0 < none.upper < 1 or (name in ("laplace",) and n == 1)
        assert 0.05 < all_.upper <= 1
        assert all(math.isfinite(EVERY[name](n // 2, n, confidence=c).upper) for c in (0.5, 0.999999))


@pytest.mark.parametrize("name", EVERY)
@settings(max_examples=30)
@given(counts=counts, confidence=st.floats(0.5, 0.99))
def test_more_failures_and_more_confidence_never_lower_a_bound(name, counts, confidence):
    k, n = counts
    upper = EVERY[name](k, n, confidence=confidence).upper
    if k < n:
        assert EVERY[name](k + 1, n, confidence=confidence).upper >= upper * (1 - 1e-3 * (name in STRATIFIED)) - 1e-12
    assert EVERY[name](k, n, confidence=0.995).upper >= upper * (1 - 1e-3 * (name in STRATIFIED)) - 1e-12


@pytest.mark.parametrize("truth", [0.001, 0.02, 0.3])
def test_clopper_pearson_is_true_at_least_as_often_as_it_says(truth):
    n, k = 300, np.arange(301)
    uppers = np.array([clopper_pearson(count, n).upper for count in k])
    assert float(binom.pmf(k, n, truth)[uppers >= truth].sum()) >= 0.95


def test_a_bound_prints_and_comes_back_from_disk(tmp_path):
    bound = clopper_pearson(5, 1000)
    assert str(bound) == "at most 1.05 % with 95 % confidence, from 5 failures in 1000 trials (Clopper-Pearson)"
    save(bound, tmp_path / "bound.json")
    assert load(tmp_path / "bound.json", Bound) == bound
    named = conservative_bayes(0, 10, prior=PartialPrior(within=0.1, belief=0.5, lowest=0.01)).method
    assert named == "conservative Bayes, prior P(λ ≤ 0.1) = 0.5, λ ≥ 0.01"
    assert beta_binomial(0, 10, prior="jeffreys").method == "jeffreys prior Beta(0.5, 0.5)"


# Invalid arguments ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("confidence", [0.0, 1.0, -0.1, 95.0, math.nan])
def test_confidence_must_lie_between_zero_and_one(name, confidence):
    with pytest.raises(ValueError, match=r"confidence must be between 0 and 1, got .*; 0\.95 is usual"):
        EVERY[name](1, 10, confidence=confidence)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize(
    ("k", "n", "sentence"),
    [
        (0, 0, "n must be at least 1, got 0"),
        (0, math.nan, "n must be at least 1, got nan"),
        (-1, 10, "k must be a whole number from 0 to n, got k=-1"),
        (11, 10, "k must be a whole number"),
        (0.5, 10, "k must be a whole number"),
    ],
)
def test_impossible_counts_are_rejected(name, k, n, sentence):
    with pytest.raises(ValueError, match=sentence):
        EVERY[name](k, n)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: beta_binomial(1, 10, prior="flat"), 'prior must be "uniform", "jeffreys" or a pair.*got \'flat\''),
        (lambda: beta_binomial(1, 10, prior=(0, 1)), "a pair of positive numbers"),
        (lambda: beta_binomial(1, 10, prior=(1, 1, 1)), "a pair of positive numbers"),
        (lambda: PartialPrior(within=0.1, belief=1), "belief must be between 0 and 1, got 1"),
        (lambda: PartialPrior(within=0, belief=0.5), "within must be between 0 and 1"),
        (lambda: PartialPrior(within=0.1, belief=0.5, lowest=0.2), "lowest must be from 0 to 0.1, got 0.2"),
        (
            lambda: conservative_bayes_confidence(0, 9, prior=BELIEF, upper=0),
            "upper must be above 0 and at most 1, got 0",
        ),
        (lambda: stratified_bound([], [], []), "one number for each stratum"),
        (lambda: stratified_bound([1, 2], [10], [1.0]), "one number for each stratum"),
        (lambda: stratified_bound([1, 2], [10, 10], [0.9, 0.2]), "sum to 1 at most"),
        (lambda: stratified_bound([1, 2], [10, 10], [1.0, 0.0]), "mass must be positive in each stratum"),
        (lambda: stratified_bound([1], [10], [1.0], method="normal"), "method must be one of score, laplace, beta"),
    ],
)
def test_bad_input_is_rejected(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()
