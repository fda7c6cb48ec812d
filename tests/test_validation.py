"""Checks of arguments: what passes, what is rejected, and what the message says."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from operant import validation as v
from operant.defend import NonLocalMeans
from operant.generate import PGD
from operant.generate.baselines import DeepXplore, DLFuzz
from operant.model import Classifier
from operant.retrain import Finetune, OperationalFinetune

ALL_FLOATS = st.one_of(st.floats(), st.integers(-3, 3), st.sampled_from([0.0, 1.0, math.nan, math.inf]))

Check = Callable[[float], None]
RANGES: list[tuple[Check, Callable[[float], bool], str]] = [
    (lambda x: v.check_at_least(1, a=x), lambda x: x >= 1, "a must be at least 1, got"),
    (lambda x: v.check_positive(a=x), lambda x: 0 < x < math.inf, "a must be positive"),
    (lambda x: v.check_positive(finite=False, a=x), lambda x: x > 0, "a must be positive, got"),
    (lambda x: v.check_nonnegative(a=x), lambda x: 0 <= x < math.inf, "a must be 0 or more"),
    (lambda x: v.check_share(a=x), lambda x: 0 <= x <= 1, "a must be a share from 0 to 1, got"),
    (lambda x: v.check_between(0, 1, a=x), lambda x: 0 < x < 1, "a must be between 0 and 1, got"),
    (lambda x: v.check_from_to(0, 1, a=x), lambda x: 0 <= x <= 1, "a must be from 0 to 1, got"),
    (lambda x: v.check_from_below(0, 1, a=x), lambda x: 0 <= x < 1, "a must be from 0 to below 1, got"),
    (lambda x: v.check_above_to(0, 1, a=x), lambda x: 0 < x <= 1, "a must be above 0 and at most 1, got"),
]


@pytest.mark.parametrize(("check", "holds", "message"), RANGES)
@given(value=ALL_FLOATS)
def test_a_number_is_rejected_exactly_outside_its_range(
    check: Check, holds: Callable[[float], bool], message: str, value: float
) -> None:
    if holds(value):
        check(value)
    else:
        with pytest.raises(ValueError, match=message):
            check(value)


NONE_FAILS: list[tuple[Callable[..., None], str]] = [
    (partial(v.check_at_least, 1), "a must be at least 1, got None"),
    (v.check_positive, "a must be positive and finite, got None"),
    (partial(v.check_positive, finite=False), "a must be positive, got None"),
    (v.check_nonnegative, "a must be 0 or more and finite, got None"),
    (v.check_share, "a must be a share from 0 to 1, got None"),
    (partial(v.check_between, 0, 1), "a must be between 0 and 1, got None"),
    (partial(v.check_from_to, 0, 1), "a must be from 0 to 1, got None"),
    (partial(v.check_from_below, 0, 1), "a must be from 0 to below 1, got None"),
    (partial(v.check_above_to, 0, 1), "a must be above 0 and at most 1, got None"),
    (partial(v.check_one_of, ("x",)), "a must be one of x, got None"),
    (v.check_ascending, r"a must be \(low, high\) with low < high, both finite, got None"),
    (v.check_not_empty, "a must not be empty, got None; give at least one"),
    (partial(v.check_row_shape, (3,)), "a must be a tensor, got None"),
    (v.check_finite, "a must be a tensor, got None"),
    (partial(v.check_within, (0, 1)), "a must be a tensor, got None"),
]


@pytest.mark.parametrize(("check", "message"), NONE_FAILS)
def test_none_passes_no_check(check: Callable[..., None], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        check(a=None)


OPTIONS: list[tuple[Callable[..., object], dict[str, object], str]] = [
    (PGD, {"radius": None}, "radius must be positive and finite, got None"),
    (PGD, {"radius": 0.1, "steps": None}, "steps must be at least 1, got None"),
    (PGD, {"radius": 0.1, "norm": None}, "norm must be one of linf, l2, got None"),
    (Finetune, {"max_drop": None}, "max_drop must be a share from 0 to 1, got None; 0.01 is one point"),
    (OperationalFinetune, {"cap": None}, "cap must be at least 1, got None"),
    (DLFuzz, {"radius": 0.1, "step": None}, "step must be positive and finite, got None"),
]


@pytest.mark.parametrize(("make", "options", "message"), OPTIONS)
def test_options_that_are_needed_reject_none(
    make: Callable[..., object], options: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        make(**options)


def test_optional_options_may_be_none() -> None:
    PGD(radius=0.1, step_size=None)
    Finetune(decay_after=None)
    OperationalFinetune(case_share=None, steps=None, patience=None, radius=None)
    DLFuzz(radius=0.1, seconds_per_seed=None)


def test_infinity_is_allowed_where_it_means_no_limit() -> None:
    other = (Classifier(torch.nn.Linear(2, 2)),)
    for search in (DLFuzz(radius=0.1, seconds_per_seed=math.inf), DeepXplore(others=other, seconds_per_seed=math.inf)):
        assert search.seconds_per_seed == math.inf
    x = torch.rand(2, 1, 9, 9)
    limit = NonLocalMeans(strength=1e6)(x)
    torch.testing.assert_close(NonLocalMeans(strength=math.inf)(x), limit, rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match="strength must be positive, got 0"):
        NonLocalMeans(strength=0)


def test_the_first_wrong_value_is_named_with_the_advice() -> None:
    with pytest.raises(ValueError, match=r"^b must be between 0 and 1, got 2; 0\.05 is usual$"):
        v.check_between(0, 1, advice="0.05 is usual", a=0.5, b=2, c=3)


def test_a_word_must_be_one_of_the_choices() -> None:
    v.check_one_of({"l2": 1, "linf": 2}, norm="linf")
    with pytest.raises(ValueError, match=r"^norm must be one of l2, linf, got 'l1'$"):
        v.check_one_of(("l2", "linf"), norm="l1")


@pytest.mark.parametrize("pair", [(1.0, 1.0), (1.0, 0.0), (math.nan, 1.0), (0.0, math.nan), (0.0, math.inf)])
def test_a_pair_must_ascend_and_be_finite(pair: tuple[float, float]) -> None:
    v.check_ascending(bounds=(-1.0, 0.0))
    v.check_ascending(finite=False, bounds=(-math.inf, math.inf))
    with pytest.raises(ValueError, match=r"bounds must be \(low, high\) with low < high"):
        v.check_ascending(bounds=pair)


def test_empty_rows_are_rejected() -> None:
    v.check_not_empty(pool=torch.zeros(1, 2))
    with pytest.raises(ValueError, match="pool must not be empty; give at least one"):
        v.check_not_empty(pool=torch.zeros(0, 2))


def test_the_shape_of_a_row_must_match() -> None:
    v.check_row_shape((2, 3), x=torch.zeros(5, 2, 3))
    v.check_row_shape((), x=torch.zeros(5))
    for wrong in (torch.zeros(5, 2), torch.zeros(2, 3), torch.tensor(1.0)):
        with pytest.raises(ValueError, match=r"x must have shape \(N, 2, 3\), got"):
            v.check_row_shape((2, 3), x=wrong)


def test_rows_with_nan_or_infinity_are_counted() -> None:
    v.check_finite(x=torch.zeros(0, 2))
    v.check_finite(x=torch.zeros(4))
    x = torch.zeros(4, 2, 2)
    v.check_finite(x=x)
    x[1], x[3, 0, 0] = math.nan, -math.inf
    with pytest.raises(ValueError, match=r"x must be finite, got NaN or infinity in 2 of 4 rows; remove them"):
        v.check_finite(x=x)


def test_values_must_lie_within_bounds_but_for_the_slack() -> None:
    v.check_within((0, 1), x=torch.tensor([0.0, 1.0]))
    v.check_within((0, 1), x=torch.zeros(0))
    v.check_within((0, 1), slack=0.1, x=torch.tensor([-0.05, 1.05]))
    with pytest.raises(ValueError, match="x contain NaN in 1 of 2 rows; remove them"):
        v.check_within((0, 1), advice="rescale", x=torch.tensor([0.5, math.nan]))
    for wrong, got in {-0.2: "values from -0.2 to 0.5", 1.2: "values from 0.5 to 1.2"}.items():
        with pytest.raises(ValueError, match=rf"x must lie within bounds \(0, 1\), got {got}; rescale"):
            v.check_within((0, 1), slack=0.1, advice="rescale", x=torch.tensor([0.5, wrong]))
