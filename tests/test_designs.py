"""Sampling designs against their theory: exact laws, small pools counted out, large pools by simulation.

The estimators at the top are what a draw must suffice for. All thresholds are five standard errors.
"""

from collections import Counter
from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from operant import Samples, spawn
from operant.results import load, save
from operant.seeds import Draw, combine, draw, inclusion_probabilities
from operant.seeds.designs import DESIGNS

SIZE = 10_000


def pool_of(size: int) -> Samples:
    return Samples(torch.zeros(size, 1), ids=torch.arange(size) + 1000)


def taken(drawn: Draw, y: Tensor) -> Tensor:
    """p y of the drawn rows; y may have a column for each of several quantities."""
    return drawn.mass[:, None] * y[drawn.indices].double().view(len(drawn), -1)


def hansen_hurwitz(drawn: Draw, y: Tensor) -> Tensor:
    return (taken(drawn, y) / drawn.chances[:, None]).mean(0)


def horvitz_thompson(drawn: Draw, y: Tensor) -> Tensor:
    """Also Rao, Hartley and Cochran's, whose chances are those within a group."""
    return (taken(drawn, y) / drawn.chances[:, None]).sum(0)


def des_raj(drawn: Draw, y: Tensor) -> Tensor:
    values = taken(drawn, y)
    return (values.cumsum(0) - values + values / drawn.chances[:, None]).mean(0)


def lure(drawn: Draw, y: Tensor) -> Tensor:
    n, size, m = len(drawn), drawn.pool_size, torch.arange(1, len(drawn) + 1, dtype=torch.float64)
    fraction = torch.where(m < size, (size - n) / (size - m), 0.0)
    v = 1 + fraction * (1 / ((size - m + 1) * drawn.chances) - 1)
    return (v[:, None] * size * taken(drawn, y)).mean(0)


ESTIMATORS = {
    "hansen-hurwitz": ("pps", hansen_hurwitz),
    "horvitz-thompson": ("poisson", horvitz_thompson),
    "rao-hartley-cochran": ("rhc", horvitz_thompson),
    "des raj": ("sequential", des_raj),
    "lure": ("sequential", lure),
    "stratified": ("stratified", horvitz_thompson),
}


def a_pool(*, uniform: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Mass, risk and failures of a pool in which a few per cent fail, mostly but not only where risk is high."""
    g = spawn(0, "pool")
    mass = torch.ones(SIZE).double() if uniform else torch.rand(SIZE, generator=g, dtype=torch.float64) + 0.1
    risk = torch.rand(SIZE, generator=g, dtype=torch.float64) ** 12
    y = torch.rand(SIZE, generator=g, dtype=torch.float64) < 0.02 + 0.5 * risk
    return mass / mass.sum(), risk, y


# Unbiased, at N = 1e4 -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ESTIMATORS)
def test_estimates_are_unbiased_for_failures_wherever_they_are(name):
    """The failures' mass, and the mass of forty parts of the pool from the least weight to the largest."""
    design, estimate = ESTIMATORS[name]
    mass, risk, y = a_pool()
    weights = combine(mass, risk)
    parts = torch.zeros(SIZE, 41).double()
    parts[weights.argsort(), 1 + torch.arange(SIZE) * 40 // SIZE] = 1
    parts[:, 0] = y
    truth, pool, g = mass @ parts, pool_of(SIZE), spawn(1, name)
    found = torch.stack(
        [estimate(draw(pool, weights, 400, design=design, mass=mass, generator=g), parts) for _ in range(200)]
    )
    z = (found.mean(0) - truth) / (found.std(0) / len(found) ** 0.5 + 1e-12)
    assert float(z.abs().max()) < 5
    assert float(found[:, 0].std()) < float(truth[0])  # precise enough to mean something


@pytest.mark.parametrize("name", ESTIMATORS)
def test_leaving_the_probabilities_out_would_be_found(name):
    """The test above has the power to detect a wrong design: the plain rate of the sample is far from the truth."""
    design, estimate = ESTIMATORS[name]
    mass, risk, y = a_pool()
    weights, pool, g = combine(mass, risk), pool_of(SIZE), spawn(1, name)
    drawn = [draw(pool, weights, 400, design=design, mass=mass, generator=g) for _ in range(25)]
    plain = torch.stack([y[d.indices].double().mean() for d in drawn])
    assert float((plain.mean() - mass @ y.double()) / (plain.std() / 25**0.5)) > 10
    estimates = torch.stack([estimate(d, y)[0] for d in drawn])
    assert abs(float((estimates.mean() - mass @ y.double()) / (estimates.std() / 25**0.5))) < 5


def variance_in_theory(design: str, drawn: Draw, weights: Tensor, mass: Tensor, y: Tensor) -> float:
    """What textbooks give for one pool; for strata, with equal masses."""
    n, q, t = drawn.n, weights / weights.sum(), mass * y
    spread = float((t**2 / q).sum() - t.sum() ** 2)
    if design == "pps":
        return spread / n
    if design == "rhc":
        sizes = drawn.groups.sizes.double()
        return float((sizes**2).sum() - SIZE) / (SIZE * (SIZE - 1)) * spread
    if design == "poisson":
        pi = inclusion_probabilities(q, n)
        return float(((1 - pi) / pi * t**2).sum())
    order = (weights / mass).argsort()
    total = 0.0
    for part, n_h in zip(order.split(drawn.strata.sizes.tolist()), drawn.strata.drawn.tolist(), strict=True):
        total += len(part) ** 2 * (1 - n_h / len(part)) * float(t[part].var()) / n_h
    return total


@pytest.mark.parametrize("design", ["pps", "poisson", "rhc", "stratified"])
def test_the_variance_is_that_of_theory_and_a_draw_suffices_to_estimate_it(design):
    mass, risk, y = a_pool(uniform=True)
    weights, pool, g = combine(mass, risk), pool_of(SIZE), spawn(2, design)
    estimate = hansen_hurwitz if design == "pps" else horvitz_thompson
    drawn = [draw(pool, weights, 300, design=design, mass=mass, generator=g) for _ in range(250)]
    squares = (torch.stack([estimate(d, y)[0] for d in drawn]) - mass @ y.double()) ** 2
    estimated = torch.tensor([variance_from(d, y) for d in drawn])
    truth = variance_in_theory(design, drawn[0], weights, mass, y.double())
    for found in (squares, estimated):
        error = float(found.std()) / len(found) ** 0.5
        assert abs(float(found.mean()) - truth) < 5 * error
        assert error < 0.25 * truth  # precise enough to mean something


def variance_from(drawn: Draw, y: Tensor) -> float:
    """The unbiased estimates of these designs' variances."""
    t, d, n = taken(drawn, y)[:, 0], drawn.chances, len(drawn)
    if drawn.design == "pps":
        return float((t / d).var()) / n
    if drawn.design == "poisson":
        return float(((1 - d) * (t / d) ** 2).sum())
    if drawn.design == "rhc":
        sums, squares = drawn.groups.sums, float((drawn.groups.sizes.double() ** 2).sum())
        spread = float((sums * (t / (d * sums) - (t / d).sum()) ** 2).sum())
        return (squares - SIZE) / (SIZE**2 - squares) * spread
    strata, total = drawn.strata, 0.0
    for h, (size, n_h) in enumerate(zip(strata.sizes.tolist(), strata.drawn.tolist(), strict=True)):
        spread = float(y[drawn.indices][strata.of == h].double().var())
        total += float(strata.mass[h]) ** 2 * (1 - n_h / size) * spread / n_h
    return total


# Frequencies, at N = 1e4 ----------------------------------------------------------------------------------------------


def test_pps_draws_each_row_as_often_as_its_weight_says():
    weights = torch.rand(SIZE, generator=spawn(0), dtype=torch.float64) + 0.2
    drawn = draw(pool_of(SIZE), weights, 400_000, design="pps", generator=spawn(1))
    mean = 400_000 * weights / weights.sum()
    chi2 = float(((drawn.indices.bincount(minlength=SIZE) - mean) ** 2 / mean).sum())
    assert abs(chi2 - (SIZE - 1)) < 5 * (2 * SIZE) ** 0.5
    assert torch.allclose(drawn.probabilities, (weights / weights.sum())[drawn.indices], rtol=1e-12)


@pytest.mark.parametrize("design", ["poisson", "stratified"])
def test_rows_are_included_as_often_as_the_draw_says(design):
    """Some rows are certain: their weight, or in a stratum their mass, is a hundred times the others'."""
    mass, risk, _ = a_pool()
    weights = combine(mass, risk)
    (weights if design == "poisson" else mass)[::1000] *= 100
    pool, g, times, counts = pool_of(SIZE), spawn(1, design), 100, torch.zeros(SIZE).double()
    chances = inclusion_probabilities(weights, 2000) if design == "poisson" else chances_in_strata(weights, mass, 2000)
    for _ in range(times):
        drawn = draw(pool, weights, 2000, design=design, mass=mass, generator=g)
        counts[drawn.indices] += 1
        assert torch.allclose(chances[drawn.indices], drawn.probabilities, rtol=1e-12)
    assert int((chances == 1).sum()) >= 10
    assert bool((counts[chances == 1] == times).all())
    order = chances.argsort()
    found, expected = (v[order].view(100, 100).sum(1) for v in (counts, times * chances))
    error = (times * chances * (1 - chances))[order].view(100, 100).sum(1).sqrt()
    assert bool(((found - expected).abs() <= 5 * error + 1e-9).all())


def chances_in_strata(weights: Tensor, mass: Tensor, n: int) -> Tensor:
    """From the strata of a draw that takes everything, and from how many rows another draw took of each."""
    every = draw(pool_of(SIZE), weights, SIZE, design="stratified", mass=mass, generator=spawn(0))
    some = draw(pool_of(SIZE), weights, n, design="stratified", mass=mass, generator=spawn(0))
    chances = torch.empty(SIZE).double()
    for h, n_h in enumerate(some.strata.drawn.tolist()):
        rows = every.indices[every.strata.of == h]
        chances[rows] = inclusion_probabilities(mass[rows], n_h)
    return chances


def test_poisson_samples_are_of_the_size_asked_for_in_the_mean():
    mass, risk, _ = a_pool()
    pool, g, weights = pool_of(SIZE), spawn(0), combine(mass, risk)
    sizes = torch.tensor([len(draw(pool, weights, 100, design="poisson", generator=g)) for _ in range(200)]).double()
    pi = inclusion_probabilities(weights, 100)
    assert abs(float(sizes.mean()) - 100) < 5 * float((pi * (1 - pi)).sum() / 200) ** 0.5
    assert float(sizes.std()) > 5


# Small pools, counted out ---------------------------------------------------------------------------------------------


def near(found: int, truth: float, times: int) -> bool:
    return abs(found / times - truth) <= 5 * (truth * (1 - truth) / times) ** 0.5 + 1e-12


def test_sequential_draws_come_in_every_order_as_often_as_they_should():
    q, pool, g, times = torch.tensor([0.4, 0.3, 0.2, 0.1, 0.0]), pool_of(5), spawn(0), 2000
    counts = Counter(tuple(draw(pool, q, 3, design="sequential", generator=g).indices.tolist()) for _ in range(times))
    for a, b, c in permutations(range(4), 3):
        truth = float(q[a] * q[b] / (1 - q[a]) * q[c] / (1 - q[a] - q[b]))
        assert near(counts.pop((a, b, c), 0), truth, times)
    assert not counts


def test_random_groups_give_every_pair_as_often_as_they_should():
    q, pool, g, times = torch.tensor([0.4, 0.3, 0.2, 0.1, 0.0]), pool_of(5), spawn(0), 2000
    counts = Counter(tuple(sorted(draw(pool, q, 2, design="rhc", generator=g).indices.tolist())) for _ in range(times))
    truth = Counter()
    for first, second in [((0, 1), (2, 3)), ((0, 2), (1, 3)), ((0, 3), (1, 2))]:  # one in three each
        for a in first:
            for b in second:
                one, two = q[a] / q[list(first)].sum(), q[b] / q[list(second)].sum()
                truth[tuple(sorted((a, b)))] += float(one * two) / 3
    assert abs(sum(truth.values()) - 1) < 1e-6
    assert set(counts) <= set(truth)
    assert all(near(counts[pair], chance, times) for pair, chance in truth.items())


# Laws -----------------------------------------------------------------------------------------------------------------

some_weights = st.lists(st.one_of(st.just(0.0), st.floats(1e-30, 1e30), st.integers(1, 3).map(float)), max_size=30)


@pytest.mark.parametrize("design", DESIGNS)
@settings(max_examples=60)
@given(values=some_weights, data=st.data())
def test_a_draw_is_what_it_says(design, values, data):
    weights = torch.tensor([1.0, 2.0, *values], dtype=torch.float64)
    mass = torch.tensor([data.draw(st.floats(1e-3, 1e3)) for _ in weights], dtype=torch.float64)
    mass[:2] = 1
    possible = int((weights > 0).sum()) if design != "stratified" else len(weights)
    n = data.draw(st.integers(min(4, possible) if design == "stratified" else 1, possible))
    pool = pool_of(len(weights))
    drawn = draw(pool, weights, n, design=design, mass=mass, generator=spawn(0), strata=2)
    rows, p = drawn.indices, mass / mass.sum()
    assert rows.dtype == torch.int64
    assert design == "poisson" or len(drawn) == n
    assert design == "pps" or len(rows.unique()) == len(rows)
    assert design == "stratified" or bool((weights[rows] > 0).all())
    assert torch.equal(drawn.ids, pool.ids[rows])
    assert torch.allclose(drawn.mass, p[rows], rtol=1e-12)
    if design != "top":
        assert drawn.probabilities.dtype == torch.float64
        assert bool((drawn.chances > 0).all() & (drawn.chances <= 1).all())
    if design in ("pps", "poisson", "rhc", "sequential"):
        assert abs(drawn.unreachable - float(p[weights == 0].sum())) < 1e-12
    if design == "rhc":
        assert int(drawn.groups.sizes.sum()) == possible
        assert int(drawn.groups.sizes.max() - drawn.groups.sizes.min()) <= 1
        assert abs(float(drawn.groups.sums.sum()) - 1) < 1e-9
        assert torch.allclose(drawn.chances * drawn.groups.sums, (weights / weights.sum())[rows], rtol=1e-9)
    if design == "stratified":
        assert drawn.unreachable == 0
        assert torch.equal(drawn.strata.of.bincount(minlength=len(drawn.strata.drawn)), drawn.strata.drawn)
        assert int(drawn.strata.sizes.sum()) == len(weights)
        assert bool((drawn.strata.drawn <= drawn.strata.sizes).all())
        assert bool((drawn.strata.drawn >= drawn.strata.sizes.clamp_max(2)).all())
        assert abs(float(drawn.strata.mass.sum()) - 1) < 1e-9


@settings(max_examples=60)
@given(values=st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=20), data=st.data())
def test_sequential_probabilities_are_shares_of_what_is_left(values, data):
    weights = torch.tensor(values, dtype=torch.float64)
    n = data.draw(st.integers(1, len(values)))
    drawn = draw(pool_of(len(values)), weights, n, design="sequential", generator=spawn(0))
    left = list(range(len(values)))
    for row, chance in zip(drawn.indices.tolist(), drawn.probabilities.tolist(), strict=True):
        assert abs(chance - values[row] / sum(values[i] for i in left)) < 1e-9
        left.remove(row)
    assert n < len(values) or drawn.probabilities[-1] == 1


@settings(max_examples=100)
@given(values=st.lists(st.one_of(st.just(0.0), st.floats(1e-12, 1e12)), min_size=1, max_size=30), data=st.data())
def test_inclusion_probabilities_sum_to_n_and_are_proportional_below_one(values, data):
    weights = torch.tensor([*values, 1.0], dtype=torch.float64)
    n = data.draw(st.integers(1, int((weights > 0).sum())))
    pi = inclusion_probabilities(weights, n)
    assert abs(float(pi.sum()) - n) < 1e-9
    assert bool((pi <= 1).all())
    assert bool(((pi > 0) == (weights > 0)).all())
    free = (pi < 1) & (pi > 0)
    if bool(free.any()):
        factor = pi[free] / weights[free]
        assert torch.allclose(factor, factor[:1].expand_as(factor), rtol=1e-9)
        assert bool((weights[pi == 1] * factor[0] >= 1 - 1e-9).all())  # none is certain without need


@pytest.mark.parametrize("name", ["horvitz-thompson", "rao-hartley-cochran", "lure", "stratified"])
def test_drawing_the_whole_pool_is_exact(name):
    design, estimate = ESTIMATORS[name]
    mass, risk, y = (v[:200] for v in a_pool())
    drawn = draw(pool_of(200), combine(mass, risk), 200, design=design, mass=mass, generator=spawn(0))
    assert abs(float(estimate(drawn, y)) - float(mass @ y.double() / mass.sum())) < 1e-12


@pytest.mark.parametrize("name", ["hansen-hurwitz", "rao-hartley-cochran"])
def test_weights_equal_to_the_mass_estimate_a_certain_failure_without_error(name):
    design, estimate = ESTIMATORS[name]
    mass, _, _ = a_pool()
    drawn = draw(pool_of(SIZE), mass, 50, design=design, mass=mass, generator=spawn(0))
    assert abs(float(estimate(drawn, torch.ones(SIZE))) - 1) < 1e-12


def test_strata_rates_and_masses_give_the_estimate():
    """Σ P_h k_h / n_h, for masses of any kind, unless rows are certain."""
    mass, risk, y = a_pool()
    drawn = draw(pool_of(SIZE), combine(mass, risk), 300, design="stratified", mass=mass, generator=spawn(0))
    failed = torch.zeros(len(drawn.strata.mass)).double().index_add_(0, drawn.strata.of, y[drawn.indices].double())
    rates = failed / drawn.strata.drawn
    assert abs(float((drawn.strata.mass * rates).sum()) - float(horvitz_thompson(drawn, y))) < 1e-12
    assert rates[-1] > rates[0]


def test_strata_are_cut_by_risk_and_allotted_half_by_mass_and_half_by_weight():
    mass, risk, _ = a_pool()
    weights = combine(mass, risk, defensive=0)
    every = draw(pool_of(SIZE), weights, SIZE, design="stratified", mass=mass, generator=spawn(0))
    stratum = torch.empty(SIZE).long().index_copy_(0, every.indices, every.strata.of)
    assert bool((stratum[risk.argsort()].diff() >= 0).all())  # whatever the mass
    drawn = draw(pool_of(SIZE), weights, 400, design="stratified", mass=mass, generator=spawn(0))
    shares = torch.stack([(mass + weights)[stratum == h].sum() / 2 for h in range(4)])
    assert bool(((drawn.strata.drawn - 400 * shares).abs() < 1).all())
    assert bool(((shares - 0.25).abs() < 0.01).all())
    assert torch.equal(drawn.strata.sizes, stratum.bincount())
    halves = draw(pool_of(SIZE), weights, 401, design="stratified", mass=mass, generator=spawn(0), strata=2)
    assert sorted(halves.strata.drawn.tolist()) == [200, 201]


def test_rows_of_equal_score_stay_in_one_stratum():
    """Equal risk and unequal mass: equal scores up to rounding. Most inputs have no risk at all, as with VRO."""
    mass, _, _ = a_pool()
    risk = torch.tensor([0.0] * 8 + [0.02, 0.4]).double().repeat(SIZE // 10)
    drawn = draw(pool_of(SIZE), combine(mass, risk), 100, design="stratified", mass=mass, generator=spawn(0))
    assert drawn.strata.sizes.tolist() == [SIZE * 8 // 10, SIZE // 10, SIZE // 10]
    with pytest.raises(ValueError, match="weights / mass is the same for all 10000 inputs"):
        draw(pool_of(SIZE), combine(mass, mass * 0 + 1), 100, design="stratified", mass=mass, generator=spawn(0))


def test_a_share_that_dwarfs_the_others_still_leaves_two_strata():
    for risk in ([1.0] * 99 + [0.5], [0.5] + [0.0] * 99):
        drawn = draw(pool_of(100), torch.tensor(risk), 10, design="stratified", generator=spawn(0))
        assert sorted(drawn.strata.sizes.tolist()) == [1, 99]
        assert sorted(drawn.strata.drawn.tolist()) == [1, 9]


@pytest.mark.parametrize("design", DESIGNS)
def test_same_seed_same_draw_and_no_other_stream_is_touched(design):
    mass, risk, _ = a_pool()
    before = torch.random.get_rng_state()
    one, two, other = (
        draw(pool_of(SIZE), scale * combine(mass, risk), 100, design=design, generator=spawn(seed))
        for seed, scale in ((0, 1), (0, 2**20), (1, 1))
    )
    assert torch.equal(one.indices, two.indices)  # the weights' scale means nothing
    assert design == "top" or torch.equal(one.probabilities, two.probabilities)
    assert design == "top" or not torch.equal(one.indices, other.indices)
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize("design", DESIGNS)
def test_a_draw_comes_back_from_disk(design, tmp_path):
    mass, risk, _ = a_pool()
    drawn = draw(pool_of(SIZE), combine(mass, risk), 20, design=design, mass=mass, generator=spawn(0))
    save(drawn, tmp_path / "draw.json")
    again = load(tmp_path / "draw.json", Draw)
    assert repr(again) == repr(drawn)
    for name in ("indices", "probabilities", "mass", "ids"):
        a, b = getattr(drawn, name), getattr(again, name)
        assert (a is None and b is None) or torch.equal(a, b)
    assert (again.groups is None, again.strata is None) == (design != "rhc", design != "stratified")
    if design == "rhc":
        assert torch.equal(again.groups.sums, drawn.groups.sums)
        assert torch.equal(again.groups.sizes, drawn.groups.sizes)
    if design == "stratified":
        for name in ("of", "sizes", "drawn", "mass"):
            assert torch.equal(getattr(again.strata, name), getattr(drawn.strata, name))


@pytest.mark.parametrize("design", DESIGNS)
def test_a_million_rows(design):
    size = 10**6
    risk = torch.rand(size, generator=spawn(0), dtype=torch.float64) ** 8
    weights, mass = combine(torch.ones(size), risk), torch.ones(size)
    drawn = draw(pool_of(size), weights, 5000, design=design, mass=mass, generator=spawn(1))
    assert abs(len(drawn) - 5000) < (400 if design == "poisson" else 1)
    assert float(risk[drawn.indices].mean()) > 2 * float(risk.mean())


# The top --------------------------------------------------------------------------------------------------------------


def test_the_top_has_the_largest_weights_and_no_probabilities():
    weights = torch.rand(SIZE, generator=spawn(0))
    drawn = draw(pool_of(SIZE), weights, 50, design="top", generator=spawn(1))
    assert torch.equal(weights[drawn.indices], weights.sort(descending=True).values[:50])
    assert drawn.probabilities is None
    assert abs(drawn.unreachable - (1 - 50 / SIZE)) < 1e-9
    with pytest.raises(
        ValueError, match='"top" only takes the largest weights.*no estimate.*draw by one of pps, poisson'
    ):
        drawn.chances  # noqa: B018


def test_equal_weights_at_the_top_come_in_random_order():
    draws = [draw(pool_of(4), torch.ones(4), 2, design="top", generator=spawn(s)).indices.tolist() for s in range(40)]
    assert len({tuple(rows) for rows in draws}) > 6


# The pool and invalid arguments ---------------------------------------------------------------------------------------


def test_the_drawn_samples_come_from_the_same_pool_only():
    pool = Samples(torch.rand(30, 2, generator=spawn(0)), torch.arange(30))
    drawn = draw(pool, torch.ones(30), 5, design="sequential", generator=spawn(1))
    assert torch.equal(drawn.samples(pool).labels, drawn.indices)
    for other in (pool[:29], pool[torch.arange(29, -1, -1)]):
        with pytest.raises(ValueError, match="another pool, of 30 inputs"):
            drawn.samples(other)


def test_unreachable_mass_is_reported():
    weights = torch.tensor([0.0, 1.0, 1.0, 1.0])
    mass = torch.tensor([1.0, 1.0, 1.0, 1.0])
    for design in ("pps", "poisson", "rhc", "sequential"):
        assert draw(pool_of(4), weights, 2, design=design, mass=mass, generator=spawn(0)).unreachable == 0.25
    assert draw(pool_of(4), weights, 4, design="stratified", mass=mass, generator=spawn(0)).unreachable == 0


W = torch.ones(10)
ONE = torch.tensor([1.0] + [0.0] * 9)


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize(
    ("weights", "n", "options", "sentence"),
    [
        (W, 0, {}, "n must be at least 1, got 0"),
        (W, -3, {}, "n must be at least 1, got -3"),
        (W[:9], 2, {}, r"weights must be a tensor with one number for each of the 10 inputs, got shape \(9,\)"),
        (W[None], 2, {}, r"got shape \(1, 10\)"),
        ([1.0] * 10, 2, {}, "got a list"),
        (-W, 2, {}, "weights must be 0 or more and finite, got 10 of 10"),
        (W * torch.nan, 2, {}, "got 10 of 10 that are negative, NaN or infinite"),
        (torch.tensor([torch.inf] + [1.0] * 9), 2, {}, "got 1 of 10"),
        (W * 0, 2, {}, "weights must be positive for some input, all 10 are 0"),
        (W, 2, {"mass": W[:3]}, r"mass must be a tensor with one number for each of the 10 inputs, got shape \(3,\)"),
        (W, 2, {"mass": -W}, "mass must be 0 or more"),
        (W, 2, {"mass": W * 0}, "mass must be positive for some input"),
    ],
)
def test_bad_input_is_rejected_by_every_design(design, weights, n, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        draw(pool_of(10), weights, n, design=design, generator=spawn(0), **options)


@pytest.mark.parametrize(
    ("design", "weights", "n", "options", "sentence"),
    [
        ("best", W, 2, {}, "design must be one of pps, poisson, rhc, sequential, stratified, top, got 'best'"),
        *((name, W, 11, {}, "at most the 10 inputs of positive weight") for name in ("poisson", "rhc", "sequential")),
        *((name, ONE, 2, {}, 'the 1 inputs of positive weight.*use "pps"') for name in ("rhc", "sequential", "top")),
        ("stratified", W, 11, {}, "the 10 inputs of positive mass"),
        ("stratified", W, 5, {}, "weights / mass is the same for all"),
        (
            "stratified",
            torch.arange(10.0),
            5,
            {},
            "n must be at least 7 \\(2 from each of 4 strata, or all rows of a smaller one\\), got 5",
        ),
        ("stratified", torch.arange(10.0), 5, {"strata": 1}, "strata must be at least 2, got 1; without strata"),
        ("stratified", ONE, 5, {"mass": 1 - ONE}, "weights / mass is the same for all"),
    ],
)
def test_bad_input_is_rejected(design, weights, n, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        draw(pool_of(10), weights, n, design=design, generator=spawn(0), **options)


def test_a_pool_without_inputs_and_a_number_that_is_none_are_rejected():
    with pytest.raises(ValueError, match="inputs must not be empty"):
        draw(pool_of(0), torch.ones(0), 1, design="pps", generator=spawn(0))
    with pytest.raises(TypeError, match="float"):
        draw(pool_of(3), torch.ones(3), 1.5, design="pps", generator=spawn(0))
