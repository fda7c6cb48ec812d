"""Rare failures in cells: linear classifiers, for which the probability is known exactly."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from scipy.stats import binom, gamma, kstest
from torch import nn

from operant import Classifier, Samples, spawn
from operant.assess.bounds import clopper_pearson_interval
from operant.assess.rare import RareFailures, last_particle, reflected, splitting
from operant.results import load, save

RADIUS = 0.4
FEW = {splitting: {"particles": 64, "repeats": 4}, last_particle: {"particles": 16, "repeats": 4}}
METHODS = pytest.mark.parametrize("method", [splitting, last_particle])


def exact(a: np.ndarray, c: float) -> float:
    """P(Σ a_i U_i > c) for U uniform in the unit cube: the volume of the corner where Σ a_i (1 - U_i) < Σ a_i - c."""
    a, c = np.abs(a), c - a[a < 0].sum()
    corners = np.array([math.fsum(part) for n in range(len(a) + 1) for part in itertools.combinations(a, n)])
    signs = np.array([(-1) ** n for n in range(len(a) + 1) for _ in itertools.combinations(a, n)])
    cut = math.fsum(signs * np.maximum(a.sum() - c - corners, 0) ** len(a))
    return cut / (math.factorial(len(a)) * float(np.prod(a)))


class Plane(nn.Module):
    """Class 1 above a plane: its logit is w·x - c, that of class 0 is 0."""

    def __init__(self, w: torch.Tensor, c: float) -> None:
        super().__init__()
        self.register_buffer("w", w)
        self.c = c

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        above = x.flatten(1) @ self.w - self.c
        return torch.stack([torch.zeros_like(above), above], 1)


def plane(p: float, x0: torch.Tensor, *, seed: int = 0) -> Classifier:
    """A plane above which lies a share p of the cell around ``x0``."""
    w = torch.randn(x0.numel(), dtype=torch.float64, generator=spawn(seed, "plane"))
    low, high = (x0.flatten() - RADIUS).clamp(0, 1), (x0.flatten() + RADIUS).clamp(0, 1)
    a, start = (w * (high - low)).numpy(), float(w @ low)
    middle, top = a.sum() / 2, a[a > 0].sum()
    c = brentq(lambda c: math.log(exact(a, c)) - math.log(p), middle, middle + 0.95 * (top - middle))
    return Classifier(Plane(w, c + start), batch_size=4096)


def cells(x0: torch.Tensor, n: int) -> Samples:
    """The same cell n times under n names, so that n independent answers come of one call."""
    return Samples(x0.expand(n, *x0.shape).clone(), torch.zeros(n, dtype=torch.long), torch.arange(n))


def covered(result: RareFailures, p: float) -> int:
    return int(((result.lower <= p) & (p <= result.upper)).sum())


def least(n: int, level: float = 0.95) -> int:
    """How many of n intervals must cover not to be rejected against the nominal level at .01."""
    return int(binom.ppf(0.01, n, level))


MIDDLE = torch.full((8,), 0.5, dtype=torch.float64)
CORNER = torch.tensor([0.0, 0.1, 0.5, 0.9, 1.0, 0.3, 0.05, 0.7], dtype=torch.float64)  # bounds cut the ball here


# The truth ------------------------------------------------------------------------------------------------------------


def test_the_exact_value_is_that_of_one_dimension_and_of_the_symmetric_half():
    assert exact(np.array([2.0]), 1.5) == pytest.approx(0.25)
    assert exact(np.array([-2.0]), -0.5) == pytest.approx(0.25)
    assert exact(np.array([1.0, -0.3, 2.0]), 1.35) == pytest.approx(0.5)
    assert exact(np.array([1.0, 1.0]), 1.9) == pytest.approx(0.005)


@METHODS
@pytest.mark.parametrize("x0", [MIDDLE, CORNER])
def test_both_agree_with_a_million_plain_samples(method, x0):
    model, n = plane(1e-3, x0), 20
    low, high = (x0 - RADIUS).clamp(0, 1), (x0 + RADIUS).clamp(0, 1)
    u = torch.rand(1_000_000, 8, dtype=torch.float64, generator=spawn(0, "plain"))
    failed = int(model.predict(low + (high - low) * u).sum())
    plain = clopper_pearson_interval(failed, len(u))
    assert plain.lower <= 1e-3 <= plain.upper
    result = method(model, cells(x0, n), radius=RADIUS, generator=spawn(1), **FEW[method])
    assert covered(result, failed / len(u)) >= least(n)
    assert bool(result.reached.all())
    assert torch.allclose(result.log_p.mean(), torch.tensor(1e-3).double().log(), atol=0.25)  # natural logarithms


@pytest.mark.slow
@METHODS
def test_one_in_a_million_is_found_within_a_factor_of_two(method):
    model, n = plane(1e-6, CORNER, seed=1), 10
    options = {"particles": 64, "repeats": 16} if method is splitting else {"particles": 16, "repeats": 16}
    result = method(model, cells(CORNER, n), radius=RADIUS, generator=spawn(3), **options)
    assert bool(((result.log_p - math.log(1e-6)).abs() < math.log(2)).all()), result.p
    assert covered(result, 1e-6) >= 9
    assert result.findings == ()


@pytest.mark.slow
@METHODS
def test_intervals_cover_at_one_in_a_million_also_without_the_repeats(method):
    model, n = plane(1e-6, CORNER, seed=2), 100
    for repeats in (1, 8):
        result = method(model, cells(CORNER, n), radius=RADIUS, repeats=repeats, generator=spawn(3, repeats))
        assert covered(result, 1e-6) >= least(n, 0.9)
        assert float(result.p.mean()) == pytest.approx(1e-6, rel=0.25)
    assert bool(((result.log_p - math.log(1e-6)).abs() < math.log(2)).all())


def test_one_call_serves_cells_of_every_rarity_and_shape():
    x = torch.rand(6, 1, 2, 4, dtype=torch.float64, generator=spawn(0, "cells"))
    w = torch.randn(8, dtype=torch.float64, generator=spawn(0, "w"))
    low, high = ((x.flatten(1) + d).clamp(0, 1) for d in (-RADIUS, RADIUS))
    c = float((torch.where(w > 0, high, low) @ w).min()) * 0.8
    truth = [exact(a.numpy(), c - float(at)) for a, at in zip(w * (high - low), low @ w, strict=True)]
    seeds = Samples(x, torch.zeros(6, dtype=torch.long))
    result = splitting(Classifier(Plane(w, c)), seeds, radius=RADIUS, generator=spawn(1))
    assert min(truth) < 1e-5
    assert max(truth) > 1e-3
    assert bool(((result.log_p - torch.tensor(truth).log()).abs() < math.log(2)).all()), (result.p, truth)


# The walk -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [0.03, 0.3, 1.0])
def test_the_walk_is_uniform_in_the_long_run_and_does_not_stick_to_the_walls(step, generator):
    moves = 4 * math.ceil(1 / step**2)
    at_wall = torch.zeros(4000, dtype=torch.float64)
    anywhere = torch.rand(4000, dtype=torch.float64, generator=generator)
    for _ in range(moves):
        noise = torch.rand(2, 4000, dtype=torch.float64, generator=generator)
        at_wall, anywhere = reflected(torch.stack([at_wall, anywhere]), step * (2 * noise - 1))
    for u in (at_wall, anywhere):
        assert 0 <= float(u.min()) <= float(u.max()) <= 1
        assert kstest(u.numpy(), "uniform").pvalue > 1e-3
        assert int(((u < 0.01) | (u > 0.99)).sum()) < 160  # 80 on average
        assert len(u.unique()) == 4000  # nobody is put on the wall


def test_a_move_of_the_whole_side_forgets_where_it_came_from(generator):
    noise = torch.rand(20_000, dtype=torch.float64, generator=generator)
    for start in (0.0, 0.2, 0.5, 1.0):
        assert kstest(reflected(torch.tensor(start), 2 * noise - 1).numpy(), "uniform").pvalue > 1e-3


SEEN: list[torch.Tensor] = []


class Witness(nn.Module):
    """Looks at the first coordinate alone, and remembers what it was shown."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        SEEN.append(x.clone())
        return torch.stack([torch.zeros_like(x[:, 0]), 1e-2 * (x[:, 0] - 0.899)], 1)


@METHODS
def test_particles_stay_in_the_cell_and_uniform_where_the_margin_does_not_look(method):
    SEEN.clear()
    seeds = cells(torch.tensor([0.5, 0.9, 0.1, 0.5], dtype=torch.float64), 10)
    model = Classifier(Witness(), batch_size=4096, strict=True)
    result = method(model, seeds, radius=RADIUS, generator=spawn(0), **FEW[method])
    assert covered(result, 1.25e-3) >= 8  # one part in 800 of the first coordinate's side
    shown = torch.cat([seen for seen in SEEN if len(seen) > 16][1:])  # without the seeds themselves
    low, high = torch.tensor([[0.1, 0.5, 0.0, 0.1], [0.9, 1.0, 0.5, 0.9]], dtype=torch.float64)
    assert bool(((shown >= low - 1e-9) & (shown <= high + 1e-9)).all())
    others = ((shown - low) / (high - low))[:, 1:]
    assert float(((others < 0.05) | (others > 0.95)).double().mean(0).sub(0.1).abs().max()) < 0.03
    assert float(others.mean(0).sub(0.5).abs().max()) < 0.05
    assert float(others.var(0).sub(1 / 12).abs().max()) < 0.015


# The intervals --------------------------------------------------------------------------------------------------------


def test_one_run_of_the_last_particle_has_the_exact_interval():
    n, confidence = 20, 0.9
    result = last_particle(
        plane(0.02, MIDDLE),
        cells(MIDDLE, 30),
        radius=RADIUS,
        particles=n,
        repeats=1,
        confidence=confidence,
        generator=spawn(0),
    )
    m = result.runs[:, 0] / math.log(1 - 1 / n)  # whole but where copies had not moved and died with their originals
    assert torch.allclose(result.p, (1 - 1 / n) ** m)
    assert torch.allclose(result.lower, torch.as_tensor(np.exp(-gamma.ppf(0.95, m + 1) / n)))
    assert torch.allclose(result.upper, torch.as_tensor(np.exp(-gamma.ppf(0.05, m) / n)))
    assert covered(result, 0.02) >= least(30, confidence)
    assert torch.allclose(result.evaluations.double(), n + 20 * m, rtol=0.1)
    assert float((m - m.mean()).square().mean() / m.mean()) == pytest.approx(1, abs=0.8)  # a Poisson variable


@METHODS
def test_intervals_hold_the_estimate_and_grow_with_confidence(method):
    model, seeds = plane(1e-2, MIDDLE), cells(MIDDLE, 5)
    narrow, wide = (
        method(model, seeds, radius=RADIUS, moves=5, confidence=c, generator=spawn(0), **FEW[method])
        for c in (0.5, 0.99)
    )
    assert torch.equal(narrow.log_p, wide.log_p)
    ends = torch.stack([wide.lower, narrow.lower, narrow.p, narrow.upper, wide.upper])
    assert bool((ends.diff(dim=0) > 0).all())


@METHODS
def test_certain_failure_is_no_accident(method):
    result = method(plane(1e-2, MIDDLE), replace(cells(MIDDLE, 3), y=torch.ones(3).long()), radius=RADIUS,
                  generator=spawn(0), **FEW[method])  # fmt: skip
    assert covered(result, 0.99) >= 2
    sure = method(Classifier(Plane(torch.zeros(8).double(), -1.0)), cells(MIDDLE, 3), radius=RADIUS,
                  generator=spawn(0), **FEW[method])  # fmt: skip
    assert sure.p.tolist() == [1, 1, 1]
    assert sure.upper.tolist() == [1, 1, 1]
    assert bool((sure.lower > 0.9).all())
    assert bool((sure.lower < 1).all())
    assert sure.findings == ()


# Unreached cells and findings -----------------------------------------------------------------------------------------


@METHODS
def test_where_nothing_fails_the_answer_is_at_most_the_floor(method):
    model = Classifier(Plane(torch.ones(8).double(), 8.0))  # its highest point in the cell is 0.8 short of failing
    result = method(model, cells(MIDDLE, 4), radius=RADIUS, floor=1e-4, generator=spawn(0), **FEW[method])
    assert not bool(result.reached.any())
    assert result.lower.tolist() == [0] * 4
    assert bool((result.runs <= math.log(1e-4)).all())
    assert bool(((result.upper > result.p) & (result.upper < 1e-3)).all())
    assert "at most" in str(result)


@METHODS
def test_a_flat_margin_stalls_and_says_so(method):
    result = method(Classifier(Plane(torch.zeros(8).double(), 1.0)), cells(MIDDLE, 2), radius=RADIUS,
                  generator=spawn(0), **FEW[method])  # fmt: skip
    assert result.upper.tolist() == [1, 1]
    assert result.lower.tolist() == [0, 0]
    assert bool(result.variance_ratio.isfinite().all())
    assert [finding.name for finding in result.findings] == ["stalled"]


class Stairs(nn.Module):
    """The margin takes three values: -1 on 0.9 of the cell, then -0.5, and 0.5 on 0.01 of it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        u = (x[:, 0] - 0.1) / 0.8
        return torch.stack([torch.zeros_like(u), -1 + 0.5 * (u > 0.9) + (u > 0.99)], 1)


@METHODS
def test_particles_that_tie_die_together(method):
    result = method(
        Classifier(Stairs()), cells(MIDDLE, 10), radius=RADIUS, particles=100, repeats=4, generator=spawn(0)
    )
    assert bool(result.reached.all())
    assert covered(result, 0.01) >= 8
    assert float(result.log_p.mean()) == pytest.approx(math.log(0.01), abs=0.4)


def test_walks_that_are_too_short_are_found_out():
    def names(result: RareFailures) -> set[str]:
        return {finding.name for finding in result.findings}

    model, seeds, options = plane(1e-4, MIDDLE), cells(MIDDLE, 8), {"radius": RADIUS, "particles": 32}
    lazy = last_particle(model, seeds, moves=2, generator=spawn(0), **options)
    assert "runs disagree" in names(lazy)
    assert float(lazy.variance_ratio.mean()) > 2
    assert covered(lazy, 1e-4) >= 4  # the exact interval alone would cover next to none
    assert {"stalled", "few moves accepted", "short walks"} <= names(
        splitting(model, seeds, moves=1, generator=spawn(0), **options)
    )
    good = splitting(model, seeds, generator=spawn(0), radius=RADIUS)
    assert names(good) == set()
    assert 0.5 < float(good.variance_ratio.mean()) < 2
    assert "conditional on mixing" in str(good)


# Values ---------------------------------------------------------------------------------------------------------------


@METHODS
def test_a_cell_has_the_same_answer_whatever_else_is_there(method):
    x = torch.rand(5, 8, dtype=torch.float64, generator=spawn(3))
    seeds, model = Samples(x, torch.zeros(5, dtype=torch.long)), plane(1e-3, MIDDLE)
    options = {"radius": RADIUS, "particles": 12, "repeats": 2, "moves": 4, "floor": 1e-4}
    whole = method(model, seeds, generator=spawn(0), **options)
    some = method(model, seeds[[3, 1]], generator=spawn(0), **options)
    for name in ("log_p", "lower", "upper", "runs", "evaluations", "travel"):
        assert torch.allclose(getattr(some, name), getattr(whole, name)[[3, 1]], rtol=1e-6)
    again, other = (method(model, seeds, generator=spawn(s), **options) for s in (0, 1))
    assert torch.equal(again.runs, whole.runs)
    assert not torch.equal(other.runs, whole.runs)
    small = method(Classifier(model.unwrap(), batch_size=3), seeds, generator=spawn(0), **options)
    assert torch.allclose(small.runs, whole.runs, rtol=1e-6)


def test_duplicate_runs_are_independent():
    result = splitting(plane(1e-2, MIDDLE), cells(MIDDLE, 3), radius=RADIUS, generator=spawn(0), repeats=4, moves=3)
    assert len(result.runs.unique()) > 8


@METHODS
def test_the_result_round_trips_and_prints(method, tmp_path):
    result = method(plane(1e-2, MIDDLE), cells(MIDDLE, 10), radius=RADIUS, moves=1, generator=spawn(0), **FEW[method])
    save(result, tmp_path / "rare.json")
    back = load(tmp_path / "rare.json", RareFailures)
    for name, value in vars(result).items():
        same = torch.equal(value, getattr(back, name)) if isinstance(value, torch.Tensor) else value == vars(back)[name]
        assert same, name
    assert str(back) == str(result)
    assert len(back) == 10
    assert "and 2 more" in str(result)


# Invalid arguments ----------------------------------------------------------------------------------------------------


@METHODS
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"radius": 0.0}, "radius must be positive"),
        ({"particles": 1}, "particles must be a whole number of at least 2, got 1"),
        ({"moves": 0}, "moves must be a whole number"),
        ({"repeats": 1.5}, "repeats must be a whole number"),
        ({"floor": 0.0}, "floor must be from 1e-300 to below 1"),
        ({"floor": 1.0}, "floor must be from 1e-300 to below 1"),
        ({"confidence": 1.0}, "confidence must be between 0 and 1"),
    ],
)
def test_bad_options_are_rejected(method, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        method(plane(1e-2, MIDDLE), cells(MIDDLE, 2), **{"radius": RADIUS, "generator": spawn(0), **options})


@METHODS
def test_bad_seeds_and_quantiles_are_rejected(method):
    model, good = plane(1e-2, MIDDLE), cells(MIDDLE, 2)
    for seeds, sentence in (
        (replace(good, y=None), "no labels"),
        (good[:0], "no inputs"),
        (replace(good, y=torch.tensor([0, 2])), "labels must be below"),
        (replace(good, x=good.x * torch.nan), "NaN"),
        (replace(good, x=good.x + 1), "within bounds"),
    ):
        with pytest.raises(ValueError, match=sentence):
            method(model, seeds, radius=RADIUS, generator=spawn(0))
    with pytest.raises(ValueError, match="quantile must be between 0 and 1"):
        splitting(model, good, radius=RADIUS, quantile=1.0, generator=spawn(0))
