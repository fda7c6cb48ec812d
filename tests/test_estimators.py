"""Estimates from draws: without bias, with the right variance, and with bounds that hold, or none."""

import math
import re
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom
from torch import Tensor

from operant import Samples, spawn
from operant.assess.bounds import STRATIFIED, clopper_pearson, stratified_bound
from operant.assess.estimators import (
    ESTIMATORS,
    Estimate,
    des_raj,
    estimate,
    hansen_hurwitz,
    horvitz_thompson,
    lure,
    prediction_powered,
    rao_hartley_cochran,
    stratified,
)
from operant.results import load, save
from operant.seeds import Draw, combine, draw

SIZE = 3000
EVERY = {
    "hansen_hurwitz": ("pps", hansen_hurwitz),
    "horvitz_thompson": ("poisson", horvitz_thompson),
    "rao_hartley_cochran": ("rhc", rao_hartley_cochran),
    "des_raj": ("sequential", des_raj),
    "lure": ("sequential", lure),
    "stratified": ("stratified", stratified),
}


def pool_of(size: int) -> Samples:
    return Samples(torch.zeros(size, 1), ids=torch.arange(size))


def a_pool() -> tuple[Tensor, Tensor, Tensor]:
    """Mass, risk and failures of a pool of which about one in eight fails, mostly but not only where risk is high."""
    g = spawn(0, "pool")
    mass = torch.rand(SIZE, generator=g, dtype=torch.float64) + 0.1
    risk = torch.rand(SIZE, generator=g, dtype=torch.float64) ** 4
    y = torch.rand(SIZE, generator=g, dtype=torch.float64) < 0.02 + 0.5 * risk
    return mass / mass.sum(), risk, y


MASS, RISK, Y = a_pool()
TRUTH = float(MASS @ Y.double())
WEIGHTS = combine(MASS, RISK, risk_power=0.5)


def drawn_by(design: str, n: int, *, seed: int = 0, weights: Tensor = WEIGHTS) -> Draw:
    return draw(pool_of(SIZE), weights, n, design=design, mass=MASS, generator=spawn(seed, design))


def many(design: str, n: int, times: int, *, weights: Tensor = WEIGHTS) -> list[Draw]:
    g, pool = spawn(1, design, n), pool_of(SIZE)
    return [draw(pool, weights, n, design=design, mass=MASS, generator=g) for _ in range(times)]


# Bias and variance ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [100, 1500])
@pytest.mark.parametrize("name", [*EVERY, "prediction_powered"])
def test_estimates_are_unbiased_and_know_their_variance(name, n):
    """n is small, and half of the pool, where drawing without replacement pays. Thresholds: five standard errors."""
    if name == "prediction_powered":
        design, f = "pps", lambda d, y: prediction_powered(d, y, RISK / 2, mass=MASS, power=0.8)
    else:
        design, f = EVERY[name]
    times = 120 if design == "stratified" else 250
    result = [f(d, Y[d.indices]) for d in many(design, n, times)]
    found = torch.tensor([t.estimate for t in result], dtype=torch.float64)
    assert abs(float(found.mean()) - TRUTH) < 5 * float(found.std()) / times**0.5
    squares = (found - TRUTH) ** 2
    claimed = torch.tensor([t.standard_error**2 for t in result], dtype=torch.float64)
    error = math.hypot(float(squares.std()), float(claimed.std())) / times**0.5
    assert abs(float(squares.mean() - claimed.mean())) < 5 * error
    assert error < 0.2 * float(squares.mean())  # precise enough to mean something


def test_a_good_score_makes_the_estimate_more_precise_and_a_bad_one_does_not_hurt():
    """η is estimated: near 1 for a good score, near 0 for noise."""
    noise = torch.rand(SIZE, generator=spawn(5), dtype=torch.float64)
    draws = many("pps", 800, 100, weights=MASS)
    known = {"good": Y.double() * 0.9 + 0.05, "noise": noise, "none": torch.zeros(SIZE)}
    errors = {
        name: [prediction_powered(d, Y[d.indices], s, mass=MASS).standard_error for d in draws]
        for name, s in known.items()
    }
    plain = [hansen_hurwitz(d, Y[d.indices]).standard_error for d in draws]
    assert max(errors["good"]) < 0.05 * min(plain)
    assert torch.tensor(errors["noise"]).mean() < 1.01 * torch.tensor(plain).mean()
    assert errors["none"] == pytest.approx(plain, rel=1e-12)


# Other ways to the same numbers ---------------------------------------------------------------------------------------


def test_lure_is_what_its_paper_says():
    """Farquhar's form with weights v, written out."""
    d = drawn_by("sequential", 200)
    total = 0.0
    for m, (row, p, q) in enumerate(zip(d.indices.tolist(), d.mass.tolist(), d.chances.tolist(), strict=True), 1):
        v = 1 + (SIZE - 200) / (SIZE - m) * (1 / ((SIZE - m + 1) * q) - 1)
        total += v * SIZE * p * float(Y[row]) / 200
    assert lure(d, Y[d.indices]).estimate == pytest.approx(total, rel=1e-12)


def test_des_raj_written_out():
    d = drawn_by("sequential", 50)
    seen, terms = 0.0, []
    for row, p, q in zip(d.indices.tolist(), d.mass.tolist(), d.chances.tolist(), strict=True):
        value = p * float(Y[row])
        terms.append(seen + value / q)
        seen += value
    result = des_raj(d, Y[d.indices])
    mean = sum(terms) / 50
    assert result.estimate == pytest.approx(mean, rel=1e-12)
    assert result.standard_error == pytest.approx(math.sqrt(sum((z - mean) ** 2 for z in terms) / (50 * 49)), rel=1e-9)


def test_strata_written_out():
    d = drawn_by("stratified", 300)
    rates, counts = [], []
    for h in range(len(d.strata.mass)):
        counts.append(int(Y[d.indices[d.strata.of == h]].sum()))
        rates.append(counts[-1] / int(d.strata.drawn[h]))
    result = stratified(d, Y[d.indices])
    assert result.estimate == pytest.approx(float(d.strata.mass @ torch.tensor(rates, dtype=torch.float64)), rel=1e-9)
    for bound in STRATIFIED:
        upper = stratified_bound(counts, d.strata.drawn.tolist(), d.strata.mass.tolist(), method=bound).upper
        assert stratified(d, Y[d.indices], bound=bound).upper == pytest.approx(upper, rel=1e-9)


@pytest.mark.parametrize("name", [n for n in EVERY if n not in ("hansen_hurwitz", "des_raj")])
def test_whoever_draws_the_whole_pool_knows_the_truth(name):
    design, f = EVERY[name]
    d = drawn_by(design, SIZE)
    result = f(d, Y[d.indices])
    assert result.estimate == pytest.approx(TRUTH, rel=1e-9)
    assert result.standard_error == pytest.approx(0, abs=1e-9)
    if name == "stratified":
        assert result.upper == pytest.approx(TRUTH, rel=1e-9)
        assert result.bound == "all labels known"


def test_rows_that_were_certain_are_counted_as_they_are():
    """One row holds a third of the mass: it is always drawn, and its failing is no matter of chance."""
    mass = torch.ones(200, dtype=torch.float64)
    mass[0] = 100
    risk = torch.linspace(0.1, 1, 200, dtype=torch.float64)
    d = draw(pool_of(200), combine(mass, risk), 40, design="stratified", mass=mass, generator=spawn(0), strata=2)
    failed = d.indices == 0
    assert int(failed.sum()) == 1
    result = stratified(d, failed)
    assert result.estimate == pytest.approx(100 / 299, rel=1e-9)
    assert result.standard_error == pytest.approx(0, abs=1e-9)
    none = stratified(d, torch.zeros(40))
    assert none.estimate == 0
    assert none.upper == pytest.approx(result.upper - 100 / 299, rel=1e-9)
    assert 0 < none.upper < 0.2


# Exact bounds ---------------------------------------------------------------------------------------------------------


def test_draws_by_the_mass_itself_are_counted():
    for seed in range(5):
        d = drawn_by("pps", 300, weights=MASS * 7, seed=seed)
        result = estimate(d, Y[d.indices])
        k = int(Y[d.indices].sum())
        assert result.upper == clopper_pearson(k, 300).upper
        assert result.bound == "Clopper-Pearson"
        assert result.estimate == pytest.approx(k / 300, rel=1e-9)
        assert result.effective_failures == pytest.approx(k, rel=1e-9)
        assert not result.findings


def test_a_simple_random_sample_is_counted():
    d = draw(pool_of(SIZE), torch.ones(SIZE), 200, design="sequential", generator=spawn(0))
    for f in (lure, des_raj, estimate):
        result = f(d, Y[d.indices])
        assert result.upper == clopper_pearson(int(Y[d.indices].sum()), 200).upper
    assert lure(d, Y[d.indices]).estimate == pytest.approx(float(Y[d.indices].double().mean()), rel=1e-12)
    uneven = draw(pool_of(SIZE), torch.ones(SIZE), 200, design="sequential", mass=MASS, generator=spawn(0))
    assert lure(uneven, Y[uneven.indices]).bound == "none"


@pytest.mark.parametrize("design", ["pps", "poisson", "rhc", "sequential"])
def test_mass_out_of_reach_is_in_the_bound_and_not_in_the_estimate(design):
    weights = MASS.clone()
    weights[:600] = 0
    lost = float(MASS[:600].sum())
    d = drawn_by(design, 1200, weights=weights)
    result = estimate(d, Y[d.indices])
    assert result.unreachable == pytest.approx(lost, rel=1e-9)
    assert abs(result.estimate - float(MASS[600:] @ Y[600:].double())) < 5 * result.standard_error
    assert result.upper > lost + result.estimate
    assert [f.name for f in result.findings] == ["out of reach"]
    if design == "pps":  # what can be reached is drawn in proportion to the mass
        k = int(Y[d.indices].sum())
        assert result.upper == pytest.approx(lost + (1 - lost) * clopper_pearson(k, 1200).upper, rel=1e-9)
    everything = estimate(d, torch.ones(len(d)))
    assert everything.upper == 1


# Normal bounds, and when they are not given ---------------------------------------------------------------------------

WEIGHED = [name for name in EVERY if name != "stratified"]


@pytest.mark.parametrize("name", WEIGHED)
def test_a_normal_bound_is_rejected_where_failures_are_few(name):
    design, f = EVERY[name]
    d = drawn_by(design, 60)
    for failed in (Y[d.indices], torch.zeros(len(d)), torch.arange(len(d)) == 3):
        result = f(d, failed)
        assert result.upper is None
        assert result.bound == "none"
        assert result.effective_failures < 20
        assert result.estimate >= 0
        (finding,) = result.findings
        assert "cannot be trusted" in finding.problem
        assert "and 20 are needed" in finding.problem
        assert '"stratified"' in finding.advice


def test_a_normal_bound_is_rejected_where_one_input_weighs_too_much():
    """Though thirty others failed; and though the heavy one did not fail itself."""
    d = drawn_by("pps", 1500)
    assert hansen_hurwitz(d, Y[d.indices]).upper is not None
    heavy = d.chances.clone()
    heavy[0] /= 2000
    for failed in (Y[d.indices].clone().index_fill_(0, torch.tensor([0]), value) for value in (False, True)):
        result = hansen_hurwitz(replace(d, probabilities=heavy), failed)
        assert result.upper is None
        assert result.effective_failures > 20 or bool(failed[0])


def test_effective_failures_count_by_weight():
    d = drawn_by("pps", 400)
    terms = (d.mass / d.chances)[Y[d.indices]]
    result = hansen_hurwitz(d, Y[d.indices])
    assert result.effective_failures == pytest.approx(float(terms.sum()) ** 2 / float((terms**2).sum()), rel=1e-9)
    assert result.effective_failures <= result.failures == int(Y[d.indices].sum())
    assert result.labels == 400


@pytest.mark.parametrize("name", WEIGHED)
def test_normal_bounds_where_they_are_given(name):
    """By Wilson's form they are longer than λ̂ + z · standard error, and true as often as they should be."""
    design, f = EVERY[name]
    result = [f(d, Y[d.indices]) for d in many(design, 1500, 200)]
    given_ = [t for t in result if t.upper is not None]
    assert len(given_) > 150
    assert sum(t.upper >= TRUTH for t in given_) >= binom.ppf(0.01, len(given_), 0.95)
    plain = [t.estimate + 1.6449 * t.standard_error for t in given_]
    assert all(p < t.upper < 1.2 * p for p, t in zip(plain, given_, strict=True))


# The stratified bound holds -------------------------------------------------------------------------------------------


def regime(kind: str, rate: float, *, size: int = 4000) -> tuple[Tensor, Tensor]:
    """Scores and failures: the scores are the probabilities of failing; or with much noise; or blind to a quarter."""
    g = spawn(0, kind, str(rate))
    u = torch.rand(size, generator=g, dtype=torch.float64)
    risk = torch.where(u < 4 * rate, 0.25 * (1 - u / (4 * rate)) * 2, 1e-3 * u)  # a few risky, nearly all safe
    failed = torch.zeros(size, dtype=torch.bool)
    race = (-torch.log(torch.rand(size, generator=g, dtype=torch.float64))) / risk
    failed[race.topk(max(4, round(rate * size)), largest=False).indices] = True
    scores = risk.clone()
    if kind == "poor":
        scores = risk**0.2 * torch.rand(size, generator=g, dtype=torch.float64)
    if kind == "blind":
        unseen = failed.nonzero().flatten()[::4]
        scores[unseen] = scores.median() * torch.rand(len(unseen), generator=g, dtype=torch.float64)
    return scores, failed


@pytest.mark.parametrize("rate", [1e-3, 1e-2, 5e-2])
@pytest.mark.parametrize("kind", ["good", "poor", "blind"])
def test_stratified_bounds_are_true_whatever_the_scores(kind, rate):
    scores, failed = regime(kind, rate)
    truth, g, pool = float(failed.double().mean()), spawn(2, kind, str(rate)), pool_of(len(failed))
    weights = combine(torch.ones(len(failed)), scores, risk_power=0.5, defensive=0.5)
    times, n = 100, 300
    draws = [draw(pool, weights, n, design="stratified", generator=g) for _ in range(times)]
    for bound in ("score", "laplace"):
        uppers = [stratified(d, failed[d.indices], bound=bound).upper for d in draws]
        assert sum(upper >= truth for upper in uppers) >= binom.ppf(0.01, times, 0.95)
    if kind == "good" and rate == 5e-2:  # and shorter than counting a simple sample
        uppers = [stratified(d, failed[d.indices]).upper for d in draws]
        assert float(torch.tensor(uppers).mean()) < clopper_pearson(round(n * rate), n).upper


# Laws -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EVERY)
@settings(max_examples=25)
@given(n=st.integers(8, 120), seed=st.integers(0, 10**6), share=st.sampled_from([0.0, 0.1, 0.7, 1.0]))
def test_no_failure_is_no_zero_bound_and_all_failures_are_no_nan(name, n, seed, share):
    design, f = EVERY[name]
    d = drawn_by(design, n, seed=seed)
    failed = torch.rand(len(d), generator=spawn(seed), dtype=torch.float64) < share
    if len(d) == 0:
        return
    result = f(d, failed)
    numbers = [result.estimate, result.effective_failures, result.confidence, result.standard_error or 0.0]
    assert all(math.isfinite(value) and value >= 0 for value in numbers)
    assert result.upper is None or 0 < result.upper <= 1
    assert result.upper is None or result.upper >= min(1, result.estimate) - 1e-9
    assert result.failures == int(failed.sum())
    assert result.labels == len(d)
    if name == "stratified":
        assert result.upper is not None
        assert share < 1 or result.upper == pytest.approx(1)
    for kind in (torch.bool, torch.float32, torch.int64):
        assert f(d, failed.to(kind)) == result


@pytest.mark.parametrize("design", ["pps", "poisson", "rhc", "sequential", "stratified"])
def test_prediction_powered_with_any_design(design):
    """Without power it is the design's own estimate; perfect scores give the truth; without failures it is 0."""
    d = drawn_by(design, 500)
    own = estimate(d, Y[d.indices])
    none = prediction_powered(d, Y[d.indices], RISK, mass=MASS, power=0)
    assert none.estimate == pytest.approx(own.estimate, rel=1e-9)
    assert none.standard_error == pytest.approx(own.standard_error, rel=1e-9)
    perfect = prediction_powered(d, Y[d.indices], Y.double(), mass=MASS, power=1)
    assert perfect.estimate == pytest.approx(TRUTH, rel=1e-9)
    assert perfect.standard_error == pytest.approx(0, abs=1e-12)
    quiet = prediction_powered(d, torch.zeros(len(d)), RISK, mass=MASS)
    assert (quiet.estimate, quiet.upper) == (pytest.approx(0, abs=1e-12), None)


@pytest.mark.parametrize("design", ["pps", "poisson", "rhc", "sequential", "stratified"])
def test_estimate_takes_what_suits_the_design(design):
    d = drawn_by(design, 400)
    assert estimate(d, Y[d.indices], confidence=0.9) == ESTIMATORS[design](d, Y[d.indices], confidence=0.9)
    assert estimate(d, Y[d.indices], confidence=0.9).confidence == 0.9


def test_more_confidence_is_a_larger_bound():
    d = drawn_by("stratified", 400)
    uppers = [estimate(d, Y[d.indices], confidence=c).upper for c in (0.8, 0.95, 0.99, 0.999)]
    assert uppers == sorted(uppers)
    assert len(set(uppers)) == 4


def test_an_estimate_prints_and_comes_back_from_disk(tmp_path):
    for design, n in (("stratified", 300), ("sequential", 60)):
        d = drawn_by(design, n)
        result = estimate(d, Y[d.indices])
        save(result, tmp_path / "estimate.json")
        assert load(tmp_path / "estimate.json", Estimate) == result
    text = str(result)
    assert re.match(r"Probability of misclassification \d+(\.\d+)? % ± ", text)
    assert "no bound" in text
    assert "use the design" in text
    d = drawn_by("stratified", 300)
    assert "with 95 % confidence" in str(estimate(d, Y[d.indices]))


# Invalid arguments ----------------------------------------------------------------------------------------------------


def test_the_top_is_rejected_by_every_estimate():
    d = drawn_by("top", 50)
    for f in (estimate, *(f for _, f in EVERY.values()), lambda d, y: prediction_powered(d, y, RISK, mass=MASS)):
        with pytest.raises(ValueError, match='"top" only takes the largest weights, so no estimate'):
            f(d, Y[d.indices])


@pytest.mark.parametrize("name", EVERY)
def test_a_draw_by_another_design_is_rejected(name):
    design, f = EVERY[name]
    other = drawn_by("rhc" if design != "rhc" else "pps", 50)
    with pytest.raises(ValueError, match=f'for the design "{design}", not "{other.design}"'):
        f(other, Y[other.indices])


D = drawn_by("pps", 50)
FINE = Y[D.indices]


@pytest.mark.parametrize(
    ("failed", "confidence", "sentence"),
    [
        (FINE, 0.0, "confidence must be between 0 and 1, got 0"),
        (FINE, 1.0, "confidence must be between 0 and 1"),
        (FINE, 95, "confidence must be between 0 and 1, got 95"),
        (FINE, math.nan, "confidence must be between 0 and 1, got nan"),
        (FINE[:49], 0.95, r"failed must be a tensor with one number for each of the 50 drawn rows, got shape \(49,\)"),
        (FINE[:, None], 0.95, r"got shape \(50, 1\)"),
        (FINE.tolist(), 0.95, "got a list"),
        (FINE.double() + 0.5, 0.95, "failed must be 0 or 1.*got 50 of 50"),
        (FINE.double() * math.nan, 0.95, "failed must be 0 or 1.*got 50 of 50"),
    ],
)
def test_bad_input_is_rejected(failed, confidence, sentence):
    for f in (estimate, hansen_hurwitz, lambda *a, **o: prediction_powered(*a, RISK, mass=MASS, **o)):
        with pytest.raises(ValueError, match=sentence):
            f(D, failed, confidence=confidence)


def test_a_draw_of_nothing_is_rejected():
    empty = next(d for d in (drawn_by("poisson", 1, seed=seed) for seed in range(100)) if len(d) == 0)
    with pytest.raises(ValueError, match="draw must not be empty; draw again, with a larger n"):
        estimate(empty, torch.zeros(0))


@pytest.mark.parametrize(
    ("scores", "options", "sentence"),
    [
        (RISK[:99], {"mass": MASS}, r"scores must be a tensor with one number for each of the 3000 inputs"),
        (RISK.tolist(), {"mass": MASS}, "got a list"),
        (RISK * math.nan, {"mass": MASS}, "scores must be finite, got NaN or infinity in 3000 of 3000"),
        (RISK, {}, "mass differs from the one that this draw was made with"),
        (RISK, {"mass": MASS.flip(0)}, "mass differs from the one"),
        (RISK, {"mass": MASS[:5]}, "mass must be a tensor with one number for each of the 3000 inputs"),
    ],
)
def test_scores_and_masses_that_do_not_match_are_rejected(scores, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        prediction_powered(D, FINE, scores, **options)


def test_scores_cannot_help_where_nothing_could_be_drawn():
    weights = MASS.clone()
    weights[:10] = 0
    d = drawn_by("pps", 50, weights=weights)
    with pytest.raises(ValueError, match="scores cannot be corrected for .* of the mass"):
        prediction_powered(d, Y[d.indices], RISK, mass=MASS)


def test_an_unknown_bound_is_rejected():
    d = drawn_by("stratified", 100)
    with pytest.raises(ValueError, match="bound must be one of score, laplace, beta, jeffreys, got 'normal'"):
        stratified(d, Y[d.indices], bound="normal")
