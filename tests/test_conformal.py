"""Conformal p-values: the definition written out, and the guarantee they make, by counting and by simulation."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom
from torch import Tensor

from operant import spawn
from operant.measure.conformal import (
    Conformal,
    check_level,
    conformal_p_values,
    fit_conformal,
    min_bonferroni,
    min_calibration_size,
)
from operant.results import load, save

SCORES = st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=40)
TIED_SCORES = st.lists(st.integers(0, 5), min_size=1, max_size=40)
LEVELS = [0.001, 0.01, 0.02, 0.05, 0.1, 0.2, 0.25, 1 / 3, 0.5, 0.75, 0.9, 0.99]


def by_counting(scores: Tensor, calibration: Tensor) -> Tensor:
    counts = (calibration[None] >= scores[:, None]).sum(1)
    return (1 + counts).double() / (len(calibration) + 1)


# The definition


@settings(max_examples=100)
@given(scores=SCORES | TIED_SCORES, calibration=SCORES | TIED_SCORES)
def test_p_values_are_the_counts_they_are_defined_by(scores, calibration):
    a, c = torch.tensor(scores), torch.tensor(calibration)
    expected = by_counting(a, c)
    assert torch.equal(conformal_p_values(a, c), expected)
    assert torch.equal(fit_conformal(c).p_values(a), expected)
    assert expected.dtype == torch.float64


def test_p_values_of_a_trained_network_are_the_counts(lenet, digits28):
    strange = -lenet.batched_logits(digits28.train.x).amax(1)
    tied = (4 * strange).round()
    held = -lenet.batched_logits(digits28.test.x).amax(1)
    assert len(strange) > 1000
    assert torch.equal(conformal_p_values(strange, held), by_counting(strange, held))
    assert torch.equal(conformal_p_values(tied, (4 * held).round()), by_counting(tied, (4 * held).round()))


@settings(max_examples=50)
@given(calibration=SCORES | TIED_SCORES, seed=st.integers(0, 2**32 - 1))
def test_stranger_is_never_more_likely_and_order_is_no_matter(calibration, seed):
    c = torch.tensor(calibration).double()
    a = torch.cat([c, c + 0.5, c - 0.5, torch.tensor([-math.inf, math.inf])]).sort().values
    p = conformal_p_values(a, c)
    assert bool((p.diff() <= 0).all())
    assert float(p[0]) == 1.0
    assert float(p[-1]) == 1 / (len(c) + 1)
    assert torch.equal(p, conformal_p_values(a, c[torch.randperm(len(c), generator=spawn(seed))]))


def test_single_and_double_precision_may_meet():
    c = torch.rand(100, generator=spawn(0))
    assert torch.equal(conformal_p_values(c.double(), c), conformal_p_values(c, c.double()))
    assert torch.equal(conformal_p_values(c.double(), c), by_counting(c, c))


# The guarantee, by counting: each of n + 1 exchangeable scores is equally likely to be the new one. So the guaranteed
# probability is the share of them whose p-value against the n others is at most the level.


def left_out(scores: Tensor) -> Tensor:
    """The p-value of each score against all others; ``(m,)``, or ``(m, k)`` for k scores of each input."""
    n = len(scores)
    others = ~torch.eye(n, dtype=torch.bool)
    columns = scores.view(n, -1).T
    return torch.stack(
        [torch.cat([conformal_p_values(c[i : i + 1], c[others[i]]) for i in range(n)]) for c in columns], 1
    ).view(scores.shape)


@settings(max_examples=100)
@given(
    scores=st.lists(st.floats(-1e6, 1e6, width=32), min_size=2, max_size=30) | st.lists(st.integers(0, 4), min_size=2)
)
def test_the_guarantee_holds_exactly_for_any_scores_with_or_without_ties(scores):
    p = left_out(torch.tensor(scores))
    n = len(scores)
    for level in {*LEVELS, *(i / n for i in range(1, n + 1))}:
        assert int((p <= level).sum()) <= level * n + 1e-9
    if len(set(scores)) == n:
        assert torch.equal(p.sort().values, torch.arange(1, n + 1).double() / n)  # not wasteful without ties


@settings(max_examples=60)
@given(data=st.data(), k=st.integers(1, 4), n=st.integers(2, 20))
def test_the_guarantee_holds_exactly_for_several_scores_together(data, k, n):
    rows = data.draw(st.lists(st.lists(st.integers(0, 9), min_size=k, max_size=k), min_size=n, max_size=n))
    p = min_bonferroni(left_out(torch.tensor(rows)))
    for level in {*LEVELS, *(i / n for i in range(1, n + 1))}:
        assert int((p <= level).sum()) <= level * n + 1e-9


@pytest.mark.parametrize("kind", ["continuous", "heavy ties", "mostly zero", "three dependent"])
@pytest.mark.parametrize("n", [19, 60, 333])
def test_the_guarantee_holds_in_simulation(kind, n):
    """2000 calibration sets, one new input each: no level is passed too often, tested at .01 for all of them."""
    repeats, generator = 2000, spawn(0, kind, n)
    x = torch.randn(repeats, n + 1, 3, generator=generator)
    if kind == "heavy ties":
        x = (2 * x).round()
    elif kind == "mostly zero":
        x = (x - 1).clamp_min(0)
    elif kind == "three dependent":
        x = x + 2 * x[:, :, :1]
    tests = 3 if kind == "three dependent" else 1
    p = torch.stack([torch.cat([conformal_p_values(r[:1, j], r[1:, j]) for r in x]) for j in range(tests)], 1)
    p = min_bonferroni(p)
    for level in LEVELS:
        assert int((p <= level).sum()) <= binom.ppf(1 - 0.01 / len(LEVELS), repeats, level)
    if kind == "continuous":  # and it is used up: the rate is the level, rounded down to a multiple of 1 / (n + 1)
        for level in LEVELS:
            reached = math.floor(level * (n + 1) + 1e-9) / (n + 1)
            assert int((p <= level).sum()) >= binom.ppf(0.01 / len(LEVELS), repeats, reached)


# Several p-values together


def test_bonferroni_by_hand():
    p = torch.tensor([[0.01, 0.5, 0.02], [0.4, 0.5, 1.0], [1 / 3, 1.0, 1.0]], dtype=torch.float64)
    torch.testing.assert_close(min_bonferroni(p), torch.tensor([0.03, 1.0, 1.0], dtype=torch.float64))
    assert torch.equal(min_bonferroni(p[:, :1]), p[:, 0])


# Thresholds and levels


@settings(max_examples=100)
@given(calibration=SCORES | TIED_SCORES, level=st.floats(0.01, 0.99))
def test_a_score_above_the_threshold_is_one_whose_p_value_falls_below_the_level(calibration, level):
    conformal = fit_conformal(torch.tensor(calibration))
    if len(conformal) < min_calibration_size(level):
        with pytest.raises(ValueError, match="no p-value can fall below level"):
            conformal.threshold(level)
        return
    c = conformal.calibration.double()
    scores = torch.cat([c, c + 0.25, c - 0.25])
    assert torch.equal(conformal.p_values(scores) < level, scores > conformal.threshold(level))


@settings(max_examples=100)
@given(level=st.floats(0.001, 0.999), tests=st.integers(1, 5))
def test_min_calibration_size_is_the_smallest_number_that_lets_a_p_value_fall_below_a_level(level, tests):
    n = min_calibration_size(level, tests=tests)
    check_level(level, n, tests=tests)
    far = conformal_p_values(torch.tensor([9.0]), torch.zeros(n)).expand(1, tests)
    assert float(min_bonferroni(far)) < level
    if n > 1:
        with pytest.raises(ValueError, match=f"calibrate on at least {n}, or raise the level"):
            check_level(level, n - 1, tests=tests)


# The smooth surrogate


@settings(max_examples=60)
@given(n=st.integers(10, 400), seed=st.integers(0, 2**32 - 1))
def test_smooth_log_p_is_within_a_factor_of_two_and_strictly_falling(n, seed):
    c = torch.randn(n, dtype=torch.float64, generator=spawn(seed)).exp()
    conformal = fit_conformal(c)
    inside = c.sort().values[: n - 9]
    gap = conformal.smooth_log_p(inside) - conformal.p_values(inside).log()
    assert float(gap.abs().max()) <= math.log(2) + 1e-9
    line = torch.linspace(float(c.min()) - 5, float(c.max()) + 50, 300, dtype=torch.float64)
    assert bool((conformal.smooth_log_p(line).diff() < 0).all())


def test_smooth_log_p_is_exact_at_its_knots_and_straight_beyond():
    conformal = fit_conformal(torch.arange(40.0))  # knots where 40, 20, 10 and 5 scores are at least as large
    knots = torch.tensor([0.0, 20.0, 30.0, 35.0], dtype=torch.float64)
    expected = torch.tensor([41, 21, 11, 6]).double().div(41).log()
    torch.testing.assert_close(conformal.smooth_log_p(knots), expected)
    slope = (expected[3] - expected[2]) / 5
    torch.testing.assert_close(conformal.smooth_log_p(torch.tensor([1035.0])), expected[3:] + 1000 * slope)
    slope = (expected[1] - expected[0]) / 20
    torch.testing.assert_close(conformal.smooth_log_p(torch.tensor([-100.0])), -100 * slope[None])


def test_smooth_log_p_has_the_gradient_of_its_lines():
    conformal = fit_conformal(torch.arange(40.0))
    scores = torch.tensor([-3.0, 1.0, 24.5, 33.0, 90.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(conformal.smooth_log_p, scores)
    (slope,) = torch.autograd.grad(conformal.smooth_log_p(scores).sum(), scores)
    assert bool((slope < 0).all())


@pytest.mark.parametrize("calibration", [[1.0, 2.0], [0.0] * 50 + [1.0], [0, 0, 0, 1, 2, 2, 2]])
def test_smooth_log_p_bears_few_scores_and_many_ties(calibration):
    conformal = fit_conformal(torch.tensor(calibration))
    scores = torch.linspace(-1, 4, 30)
    assert bool((conformal.smooth_log_p(scores).diff() < 0).all())
    known = conformal.calibration.double()
    torch.testing.assert_close(conformal.smooth_log_p(known), conformal.p_values(known).log())


# Values


def test_conformal_round_trips(tmp_path):
    conformal = fit_conformal(torch.rand(100, dtype=torch.float64, generator=spawn(0)))
    save(conformal, tmp_path / "c.json")
    again = load(tmp_path / "c.json", Conformal)
    assert torch.equal(again.calibration, conformal.calibration)
    assert len(again) == 100
    assert again.threshold(0.05) == conformal.threshold(0.05)


def test_gradients_stop_at_p_values():
    scores = torch.rand(5, requires_grad=True)
    assert not conformal_p_values(scores, torch.rand(9)).requires_grad
    assert not fit_conformal(scores).calibration.requires_grad


# Rejected input


def test_what_gives_no_p_value_is_rejected():
    c, nan = torch.arange(5.0), torch.tensor([0.0, math.nan])
    with pytest.raises(ValueError, match="there are no calibration scores"):
        conformal_p_values(c, c[:0])
    with pytest.raises(ValueError, match="there are no calibration scores"):
        fit_conformal(c[:0])
    with pytest.raises(ValueError, match="calibration scores contain NaN in 1 of 2 rows"):
        conformal_p_values(c, nan)
    with pytest.raises(ValueError, match="^scores contain NaN in 1 of 2 rows"):
        fit_conformal(c).p_values(nan)
    with pytest.raises(ValueError, match="scores must be real numbers of shape"):
        conformal_p_values(c[None], c)
    with pytest.raises(ValueError, match="calibration scores must be finite, got 1 of 2 infinite"):
        fit_conformal(torch.tensor([0.0, math.inf]))
    with pytest.raises(ValueError, match="all calibration scores are equal"):
        fit_conformal(torch.ones(30)).smooth_log_p(c)
    assert not fit_conformal(torch.ones(30)).varies
    assert fit_conformal(c).varies
    assert conformal_p_values(c[:0], c).shape == (0,)


@pytest.mark.parametrize("p", [torch.tensor([[0.0, 0.5]]), torch.tensor([[math.nan]]), torch.tensor([[1.5]])])
def test_what_is_not_a_p_value_is_rejected(p):
    with pytest.raises(ValueError, match=r"p-values must lie in \(0, 1\]"):
        min_bonferroni(p)


def test_p_values_without_columns_are_rejected():
    for shape in [(3,), (3, 0), (3, 2, 2)]:
        with pytest.raises(ValueError, match=r"must have shape \(N, k\)"):
            min_bonferroni(torch.ones(shape))


@pytest.mark.parametrize("level", [0.0, 1.0, -0.1, 2.0, math.nan])
def test_a_level_is_between_0_and_1(level):
    with pytest.raises(ValueError, match="level must be between 0 and 1"):
        check_level(level, 1000)


def test_a_level_out_of_reach_says_how_many_scores_would_do():
    with pytest.raises(
        ValueError, match=r"with 59 calibration scores and 3 tests combined the smallest is 0.05; .* 60,"
    ):
        check_level(0.05, 59, tests=3)
