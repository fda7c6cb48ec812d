"""Cells: distances between classes, failures around inputs, and a bootstrap that knows that cells hang together."""

import math

import pytest
import torch
from scipy import stats
from torch import nn

from operant import Classifier, Samples, results, spawn
from operant.assess import (
    Ball,
    CellEstimate,
    CellRates,
    Separation,
    UnderConditions,
    cells_estimate,
    clopper_pearson,
    kernel_masses,
    local_failures,
    seed_masses,
    separation,
)
from operant.conditions import Recipe, normal
from operant.density import fit_kde


class Halves(nn.Module):
    """Class 1 where the first value exceeds a half."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([torch.zeros_like(x[:, 0]), x[:, 0] - 0.5], 1)


@pytest.fixture
def halves() -> Classifier:
    return Classifier(Halves())


# Separation


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_separation_is_the_smallest_distance_between_classes(norm: str) -> None:
    g = spawn(0)
    x, y = torch.rand(300, 5, generator=g), torch.randint(3, (300,), generator=g)
    found = separation(Samples(x, y), norm=norm)
    apart = torch.cdist(x.double(), x.double(), p=math.inf if norm == "linf" else 2.0)
    apart[y[:, None] == y] = math.inf
    nearest = apart.amin(1)
    assert found.quantiles["0"] == pytest.approx(float(nearest.min()), rel=1e-5)
    assert found.quantiles["0.5"] == pytest.approx(float(nearest.median()), rel=1e-2)
    assert found.radius == pytest.approx(found.quantiles["0"] / 2)
    assert list(found.quantiles.values()) == sorted(found.quantiles.values())


def test_separation_round_trips_and_rejects(tmp_path) -> None:
    labelled = Samples(torch.rand(20, 2), torch.arange(20) % 2)
    found = separation(labelled)
    results.save(found, tmp_path / "r.json")
    assert results.load(tmp_path / "r.json", Separation) == found
    with pytest.raises(ValueError, match="at least two classes"):
        separation(Samples(torch.rand(5, 2), torch.zeros(5).long()))
    with pytest.raises(ValueError, match="norm must be one of"):
        separation(labelled, norm="l1")
    with pytest.raises(ValueError, match="NaN or infinity in 20 of 20"):
        separation(Samples(labelled.x * torch.nan, labelled.y))
    sorted_by_class = Samples(torch.rand(4500, 2), (torch.arange(4500) > 4200).long())
    assert separation(sorted_by_class).inputs == 2250
    with pytest.raises(ValueError, match="carry no labels"):
        separation(Samples(torch.rand(5, 2)))


# Failures in cells


def test_a_ball_is_uniform_within_its_bounds() -> None:
    x = torch.tensor([[0.0, 0.5, 0.95]]).expand(20_000, -1)
    drawn = Ball(radius=0.1)(x, generator=spawn(0))
    for column, (low, high) in zip(drawn.T, [(0, 0.1), (0.4, 0.6), (0.85, 1.0)], strict=True):
        assert stats.kstest(column.numpy(), "uniform", args=(low, high - low)).pvalue > 1e-3


def test_rates_of_a_known_model(halves: Classifier) -> None:
    """A centre at distance d below the half fails with probability (r - d) / (2 r)."""
    x = torch.full((5, 3), 0.5)
    x[:, 0] = torch.tensor([0.5 - 0.15, 0.5 - 0.08, 0.5 - 0.03, 0.45, 0.55])
    y = torch.tensor([0, 0, 0, 0, 0])
    rates = local_failures(halves, Samples(x, y), Ball(radius=0.1), samples=20_000, generator=spawn(1))
    wanted = torch.tensor([0.0, 0.1, 0.35, 0.25, 1.0], dtype=torch.float64)  # the last centre is missed: counts fully
    torch.testing.assert_close(rates.rates, wanted, atol=0.015, rtol=0)
    assert rates.missed.tolist() == [False] * 4 + [True]
    assert float(rates.failures[4]) / 20_000 == pytest.approx(0.75, abs=0.02)
    assert "1 centres fail" in str(rates)


def test_the_same_generator_gives_the_same_counts_whatever_the_batch(halves: Classifier) -> None:
    x = torch.rand(130, 4, generator=spawn(2))
    seeds = Samples(x, (x[:, 0] > 0.5).long())
    first, again = (
        local_failures(halves, seeds, Ball(radius=0.2), samples=50, generator=spawn(3)).failures for _ in range(2)
    )
    assert torch.equal(first, again)
    assert int(first.sum()) > 0


def test_field_conditions_make_cells_too(lenet, digits28) -> None:
    local = UnderConditions(recipe=Recipe(severities={"rotation": normal(40)}))
    seeds = digits28.test[:30]
    rates = local_failures(lenet, seeds, local, samples=40, generator=spawn(0))
    calm = UnderConditions(recipe=Recipe(severities={"rotation": normal(1)}))
    still = local_failures(lenet, seeds, calm, samples=40, generator=spawn(0))
    assert float(rates.rates.mean()) > float(still.rates.mean()) + 0.05


# Adding up


def two_stage(rate: torch.Tensor, samples: int, seed: int) -> CellEstimate:
    k = torch.distributions.Binomial(samples, rate.double()).sample().long()
    n = len(rate)
    rates = CellRates(failures=k, samples=samples, missed=torch.zeros(n).bool(), ids=torch.arange(n))
    again = seed_masses(n, resamples=300, generator=spawn(seed, "masses"))
    return cells_estimate(rates, resampled=again, generator=spawn(seed, "rates"))


def test_the_two_stage_bound_covers() -> None:
    """Seeds drawn anew from a population of cells, of which most never fail and few often: the bound holds."""
    population = torch.distributions.Beta(0.1, 1.9).sample((20_000,))
    truth, held, errors, estimates = float(population.mean()), 0, [], []
    for repetition in range(100):
        rows = torch.randint(len(population), (200,), generator=spawn(repetition, "seeds"))
        found = two_stage(population[rows], 50, repetition)
        held += int(found.upper >= truth)
        errors.append(found.standard_error)
        estimates.append(found.estimate)
    assert held >= 89
    sd = float(torch.tensor(estimates).std())
    assert 0.8 * sd < float(torch.tensor(errors).mean()) < 1.3 * sd


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "missed"), [(30, 0.1), *(pytest.param(100, missed, marks=pytest.mark.slow) for missed in (0.01, 0.05))]
)
def test_the_bound_covers_where_few_cells_fail_entirely(n: int, missed: float) -> None:
    """Cells that fail entirely or not at all: the bound must be as safe as Clopper-Pearson's."""
    held = 0
    for repetition in range(100):
        gone = torch.rand(n, generator=spawn(repetition, "missed")) < missed
        rates = CellRates(failures=torch.zeros(n).long(), samples=1000, missed=gone, ids=torch.arange(n))
        again = seed_masses(n, resamples=2000, generator=spawn(repetition, "masses"))
        found = cells_estimate(rates, resampled=again, generator=spawn(repetition, "rates"))
        exact = clopper_pearson(int(gone.sum()), n, confidence=0.95).upper
        assert found.upper == pytest.approx(exact, rel=0.15)
        held += int(found.upper >= missed)
    assert held >= 89


def test_the_bootstrap_of_the_whole_sum_is_right_where_independent_cells_are_not() -> None:
    """A grid over a known density in the plane: true spread by repeating the field data."""
    side = torch.linspace(-4, 4, 41, dtype=torch.float64)
    middles = (side[1:] + side[:-1]) / 2
    grid = torch.cartesian_prod(middles, middles)
    rate = 0.2 * torch.sigmoid(3 * (grid[:, 0] - 1.5) + 2 * torch.sin(2 * grid[:, 1]))
    many = 10**9  # rates as good as known
    rates = CellRates(
        failures=(rate * many).long(), samples=many, missed=torch.zeros(len(grid)).bool(), ids=torch.arange(len(grid))
    )
    sums, whole, independent = [], [], []
    for repetition in range(200):
        x = torch.randn(600, 2, generator=spawn(repetition), dtype=torch.float64)
        left = torch.rand(600, generator=spawn(repetition, "side")) < 0.5
        kde = fit_kde(torch.where(left[:, None], 0.5 * x + torch.tensor([1.5, 0.0]), x))
        sums.append(float(kde.log_prob(grid).softmax(0) @ rate))
        if repetition < 6:
            masses, again = kernel_masses(kde, grid, resamples=150, generator=spawn(repetition, "again"))
            assert float(masses @ rate) == pytest.approx(sums[-1], rel=1e-4)
            found = cells_estimate(rates, masses=masses, resampled=again, generator=spawn(repetition, "rates"))
            whole.append(found.standard_error)
            independent.append(found.independent_error)
    truth = float(torch.tensor(sums).std())
    assert float(torch.tensor(whole).mean()) == pytest.approx(truth, rel=0.15)
    assert float(torch.tensor(independent).mean()) < truth / 2


def test_zero_failures_give_no_zero_bound_and_all_give_one() -> None:
    none = two_stage(torch.zeros(100), 20, 0)
    assert none.estimate == 0
    assert 0 < none.upper < 0.1
    every = two_stage(torch.ones(100), 20, 0)
    assert every.estimate == pytest.approx(1)
    assert every.estimate <= every.upper <= 1
    assert "at most" in str(every)


def test_masses_that_do_not_fit_are_rejected() -> None:
    rates = CellRates(failures=torch.zeros(4).long(), samples=5, missed=torch.zeros(4).bool(), ids=torch.arange(4))
    again = seed_masses(4, resamples=30, generator=spawn(0))
    torch.testing.assert_close(again.sum(1), torch.ones(30, dtype=torch.float64))
    for masses, resampled, message in [
        (torch.ones(4), again, "masses must be 0 or more and sum to 1"),
        (None, again * torch.nan, "every row of resampled must be 0 or more"),
        (torch.full((3,), 1 / 3), again, "one column per cell"),
        (None, again[:, :2], "one column per cell"),
        (None, again[:5], "at least 20"),
    ]:
        with pytest.raises(ValueError, match=message):
            cells_estimate(rates, masses=masses, resampled=resampled, generator=spawn(0))
    with pytest.raises(ValueError, match="confidence"):
        cells_estimate(rates, resampled=again, confidence=1.0, generator=spawn(0))
    with pytest.raises(ValueError, match="radius must be positive"):
        Ball(radius=0)
    with pytest.raises(
        ValueError,
        match=r"centres must lie within bounds .*, got values .* bounds=model.bounds",
    ):
        Ball(radius=0.1)(torch.full((2, 3), 5.0), generator=spawn(0))
