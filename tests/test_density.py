"""Kernel density estimation: against direct sums in double precision, closed forms, and the laws of densities."""

import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from operant.density import KDE, fit_kde
from operant.density import kde as kernels
from operant.model import Classifier
from operant.rng import normal_like, spawn, uniform_like

NATS = 1e-4  # what log_prob promises


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return normal_like(torch.empty(shape, dtype=dtype), generator=spawn(seed, "normal"))


def stretched(n: int, d: int, seed: int = 0) -> Tensor:
    """References with another mean and another spread in each dimension."""
    return normal(n, d, seed=seed) * torch.linspace(0.1, 3.0, d) + torch.linspace(-50.0, 50.0, d)


def direct(z: Tensor, kde: KDE) -> Tensor:
    """log p of each row by the definition, pair by pair and dimension by dimension."""
    mu, sigma, w = (v.double() for v in (kde.references.flatten(1), kde.bandwidth, kde.weights))
    sigma = sigma.flatten(1) if sigma.shape == kde.references.shape else sigma.flatten().expand_as(mu)
    rows = z.double().flatten(1)
    log_kernels = torch.stack([torch.distributions.Normal(mu, sigma).log_prob(row).sum(1) for row in rows])
    return torch.logsumexp(log_kernels + w.log(), 1)


def pairwise(z: Tensor, kde: KDE) -> Tensor:
    """The same for many rows, where all references have one bandwidth and weight: from differences, pair by pair."""
    a, r = (v.double() / kde.bandwidth for v in (z, kde.references))
    apart = torch.cdist(a, r, compute_mode="donot_use_mm_for_euclid_dist")
    top = (kde.bandwidth * (2 * math.pi) ** 0.5).log().sum()
    return torch.logsumexp(apart.square() / -2, 1) - top - math.log(len(r))


def largest_error(kde: KDE, z: Tensor) -> float:
    return float((kde.log_prob(z) - direct(z, kde)).abs().max())


# Exactness


@pytest.mark.parametrize("d", [4, 16, 32, 64])
@pytest.mark.parametrize("narrower", [1.0, 0.3])
def test_log_prob_agrees_with_direct_sums(d: int, narrower: float) -> None:
    """10 000 references; 1000 queries on references, between them, and up to 10 standard deviations away from all."""
    mu = stretched(10_000, d)
    kde = fit_kde(mu, bandwidth=fit_kde(mu).bandwidth * narrower)
    sd, side = mu.std(0), normal(100, d, seed=1).sign()
    near = [mu[:200], mu[200:400] + 0.3 * sd * normal(200, d, seed=2), stretched(300, d, seed=3)]
    far = [mu[:100] + k * sd * side for k in (1.0, 3.0, 10.0)]
    z = torch.cat([*near, *far])
    assert float((kde.log_prob(z) - pairwise(z, kde)).abs().max()) < NATS
    assert largest_error(kde, z[::50]) < NATS


def test_rows_that_single_precision_cannot_do_are_found() -> None:
    """Without the second computation in double precision the promise would be broken."""
    mu = stretched(2000, 16)
    kde = fit_kde(mu, bandwidth=fit_kde(mu).bandwidth * 0.1)
    features = kde._features(mu[:50])
    single, _ = kernels._log_sum_exp(features, kde._single, None)
    double, _ = kernels._log_sum_exp(features, kde._double, None)
    assert float((single - double).abs().max()) > NATS
    assert kde._single.rough(features).all()
    assert largest_error(kde, mu[:50]) < 1e-9


@pytest.mark.parametrize("n", [2, 2000])
def test_numbers_that_all_round_alike(n: int) -> None:
    """Two values a dimension: rounding errors add up instead of averaging out."""
    mu = normal(n, 64).sign()
    mu[1] = -mu[0]
    for wider in (0.5, 1.0, 2.0):
        kde = fit_kde(mu, bandwidth=fit_kde(mu).bandwidth * wider)
        assert largest_error(kde, torch.cat([mu[:50], 3 * mu[:50]])) < NATS


def test_far_away_nothing_underflows_or_cancels() -> None:
    """One reference: log p is the logarithm of a normal density, down to minus ten million nats and more."""
    kde = fit_kde(torch.zeros(1, 3), bandwidth=torch.tensor([1.0, 2.0, 0.5]))
    z = torch.tensor([[0.0, 0.0, 0.0], [1.0, -2.0, 0.5], [100.0, 0.0, 0.0], [0.0, 1e4, 1e3], [1e12, 0.0, 0.0]])
    expected = torch.distributions.Normal(torch.zeros(3).double(), kde.bandwidth.double()).log_prob(z.double()).sum(1)
    torch.testing.assert_close(kde.log_prob(z), expected, rtol=1e-12, atol=NATS)


def test_in_the_empty_middle_of_the_references() -> None:
    """Where the query is short once centred, and what it is compared with long."""
    direction = normal(400, 3)
    mu = 300 * direction / direction.norm(dim=1, keepdim=True)
    kde = fit_kde(mu, bandwidth=1.0)
    assert largest_error(kde, torch.cat([mu.mean(0, keepdim=True), 0.01 * normal(5, 3, seed=1)])) < NATS


def test_a_distant_cluster_is_seen_from_afar_and_from_within() -> None:
    mu = torch.cat([normal(500, 4), normal(500, 4, seed=1) + 1e4])
    kde = fit_kde(mu, bandwidth=0.5)
    z = torch.cat([mu[::100], mu[::100] + 20.0, torch.full((3, 4), 5e3)])
    assert largest_error(kde, z) < NATS


@pytest.mark.parametrize("low", [0.5, 0.01])
def test_each_reference_may_have_its_own_bandwidth(low: float) -> None:
    """As from an encoder that gives a mean and a spread for every input."""
    mu = normal(3000, 8) + 3.0
    sigma = uniform_like(mu, low, 1.0, generator=spawn(0, "sigma"))
    kde = fit_kde(mu, bandwidth=sigma)
    z = torch.cat([mu[:20], normal(20, 8, seed=1) + 3.0, mu[:10] + 10.0])
    assert largest_error(kde, z) < NATS


def test_own_bandwidths_by_hand() -> None:
    """Two references in two dimensions, each term written out."""
    mu = torch.tensor([[0.0, 1.0], [2.0, -1.0]])
    sigma = torch.tensor([[0.5, 2.0], [1.0, 0.25]])
    z = torch.tensor([[0.5, 0.0], [1.5, -1.0], [0.0, 0.0]])

    def bump(row: list[float], m: list[float], s: list[float]) -> float:
        return math.prod(
            math.exp(-(((v - c) / w) ** 2) / 2) / (w * math.sqrt(2 * math.pi))
            for v, c, w in zip(row, m, s, strict=True)
        )

    expected = [sum(bump(r, m, s) for m, s in zip(mu.tolist(), sigma.tolist(), strict=True)) / 2 for r in z.tolist()]
    found = fit_kde(mu, bandwidth=sigma).log_prob(z).exp()
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-6, atol=1e-9)


def test_equal_own_bandwidths_are_one_for_all() -> None:
    mu, z = normal(700, 5), normal(40, 5, seed=1) * 3
    width = torch.linspace(0.2, 0.9, 5)
    one, each = fit_kde(mu, bandwidth=width), fit_kde(mu, bandwidth=width.expand(700, 5))
    torch.testing.assert_close(one.log_prob(z), each.log_prob(z), rtol=0, atol=NATS)


def test_weights_count_references_several_times_over() -> None:
    mu, z = normal(50, 3), normal(20, 3, seed=1)
    times = torch.arange(50) % 4  # zero among them
    weighted = fit_kde(mu, bandwidth=0.4, weights=times.float())
    torch.testing.assert_close(
        weighted.log_prob(z), fit_kde(mu.repeat_interleave(times, 0), bandwidth=0.4).log_prob(z), rtol=0, atol=NATS
    )
    assert abs(float(weighted.weights.sum()) - 1) < 1e-12


def test_references_of_weight_zero_take_no_part_even_where_they_stand_alone() -> None:
    mu = torch.cat([normal(30, 3), normal(5, 3) + 1000.0])
    weights = torch.cat([torch.ones(30), torch.zeros(5)])
    with_them, without = fit_kde(mu, bandwidth=0.5, weights=weights), fit_kde(mu[:30], bandwidth=0.5)
    torch.testing.assert_close(with_them.log_prob(mu), without.log_prob(mu), rtol=1e-12, atol=NATS)
    draws = with_them.sample(2000, generator=spawn(0))
    assert float(draws.max()) < 100


def test_diagonal_case_of_scipy() -> None:
    mu, z = normal(400, 3, dtype=torch.float64), normal(50, 3, seed=1, dtype=torch.float64) * 2
    mu = mu - mu.mean(0)
    mu = mu @ torch.linalg.inv(torch.linalg.cholesky(mu.T.cov()).T) * torch.tensor([1.0, 5.0, 0.2])  # uncorrelated
    weights = uniform_like(mu[:, 0], 0.5, 1.5, generator=spawn(2))
    theirs = stats.gaussian_kde(mu.T.numpy())
    torch.testing.assert_close(fit_kde(mu).log_prob(z), torch.from_numpy(theirs.logpdf(z.T.numpy())), rtol=0, atol=NATS)
    one = stats.gaussian_kde(mu[:, 0].numpy(), weights=weights.numpy())
    found = fit_kde(mu[:, :1], weights=weights)
    torch.testing.assert_close(
        found.log_prob(z[:, :1]), torch.from_numpy(one.logpdf(z[:, 0].numpy())), rtol=0, atol=NATS
    )


def test_activations_of_a_trained_network(lenet: Classifier, digits28) -> None:
    """1000 rows and more, at layers whose units are far from normal."""
    for layer in ("fc3", "fc2", "relu_fc1"):
        taken = [lenet.features(part.x, layers=[layer])[layer] for part in (digits28.train, digits28.test)]
        mu, z = (values[:, taken[0].amax(0) > taken[0].amin(0)] for values in taken)
        assert len(mu) > 1000
        kde, rows = fit_kde(mu), torch.cat([mu, z])
        assert float((kde.log_prob(rows) - pairwise(rows, kde)).abs().max()) < NATS
        assert largest_error(kde, rows[::30]) < NATS


# Laws


@pytest.mark.parametrize("bandwidth", [0.3, torch.tensor([[0.2], [0.4], [0.1], [0.7], [0.3]])])
def test_the_density_of_the_line_integrates_to_one(bandwidth: float | Tensor) -> None:
    kde = fit_kde(torch.tensor([[-2.0], [-1.5], [0.0], [0.2], [3.0]]), bandwidth=bandwidth)
    grid = torch.linspace(-8, 9, 4001, dtype=torch.float64)
    assert abs(float(torch.trapezoid(kde.log_prob(grid[:, None]).exp(), grid)) - 1) < 1e-5


def test_the_density_of_the_plane_integrates_to_one() -> None:
    kde = fit_kde(normal(50, 2) * torch.tensor([1.0, 0.3]), weights=torch.arange(50.0))
    u, v = torch.linspace(-7, 7, 401, dtype=torch.float64), torch.linspace(-3, 3, 301, dtype=torch.float64)
    p = kde.log_prob(torch.cartesian_prod(u, v)).exp().view(401, 301)
    assert abs(float(torch.trapezoid(torch.trapezoid(p, v), u)) - 1) < 1e-5


numbers = st.integers(0, 2**31)


@settings(max_examples=25)
@given(seed=numbers, n=st.integers(2, 40), d=st.integers(1, 6), each=st.booleans())
def test_the_order_of_references_and_of_queries_does_not_matter(seed: int, n: int, d: int, each: bool) -> None:
    mu, z = normal(n, d, seed=seed), normal(7, d, seed=seed + 1)
    width = uniform_like(mu if each else mu[0], 0.2, 1.0, generator=spawn(seed))
    a, b = torch.randperm(n, generator=spawn(seed)), torch.randperm(7, generator=spawn(seed))
    before = fit_kde(mu, bandwidth=width).log_prob(z)
    after = fit_kde(mu[a], bandwidth=width[a] if each else width).log_prob(z[b])
    torch.testing.assert_close(after, before[b], rtol=0, atol=NATS)


@settings(max_examples=25)
@given(seed=numbers, shift=st.floats(-1e6, 1e6), scale=st.floats(1e-3, 1e3), d=st.integers(1, 6), each=st.booleans())
def test_moving_and_stretching_space(seed: int, shift: float, scale: float, d: int, each: bool) -> None:
    """log p(c x + t; c h) = log p(x; h) - d log c"""
    mu, z = normal(30, d, seed=seed, dtype=torch.float64), normal(9, d, seed=seed + 1, dtype=torch.float64) * 3
    width = uniform_like(mu if each else mu[0], 0.2, 1.0, generator=spawn(seed))
    before = fit_kde(mu, bandwidth=width).log_prob(z)
    after = fit_kde(scale * mu + shift, bandwidth=scale * width).log_prob(scale * z + shift)
    slack = 1e-9 * abs(shift) / scale  # what adding the shift loses in double precision
    torch.testing.assert_close(after, before - d * math.log(scale), rtol=0, atol=NATS + slack)


@settings(max_examples=25)
@given(seed=numbers, d=st.integers(1, 8))
def test_no_density_exceeds_that_of_one_bump_at_its_top(seed: int, d: int) -> None:
    mu = normal(25, d, seed=seed)
    top = -d * math.log(0.3 * math.sqrt(2 * math.pi))
    found = fit_kde(mu, bandwidth=0.3).log_prob(mu)
    assert (found <= top + NATS).all()
    assert (found >= top - math.log(25) - NATS).all()


def test_tiles_of_other_sizes_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    mu, z = normal(3000, 16), normal(1000, 16, seed=1) * 1.5
    kde = fit_kde(mu)
    whole, left = kde.log_prob(z), kde.leave_out()
    for queries, references, prepared in ((64, 96, 2**22), (512, 64, 1000), (128, 5000, 2**15), (2000, 1024, 2**10)):
        monkeypatch.setattr(kernels, "QUERIES", queries)
        monkeypatch.setattr(kernels, "REFERENCES", references)
        monkeypatch.setattr(kernels, "MAX_DOUBLES", prepared)
        torch.testing.assert_close(fit_kde(mu).log_prob(z), whole, rtol=0, atol=1e-6)
        torch.testing.assert_close(fit_kde(mu).leave_out(), left, rtol=0, atol=1e-6)


def test_rows_do_not_see_each_other() -> None:
    kde, z = fit_kde(normal(1030, 5)), normal(100, 5, seed=1) * 2
    whole = kde.log_prob(z)
    for size in (1, 3, 17, 64):
        torch.testing.assert_close(torch.cat([kde.log_prob(part) for part in z.split(size)]), whole, rtol=0, atol=1e-9)


def test_shapes_and_types_of_inputs(generator: torch.Generator) -> None:
    images = normal(40, 2, 3, 4)
    kde, flat = fit_kde(images), fit_kde(images.flatten(1))
    torch.testing.assert_close(kde.log_prob(images), flat.log_prob(images.flatten(1)), rtol=0, atol=0)
    assert kde.shape == (2, 3, 4)
    assert kde.bandwidth.shape == (2, 3, 4)
    assert kde.sample(7, generator=generator).shape == (7, 2, 3, 4)
    assert kde.log_prob(images[:0]).shape == (0,)
    for dtype in (torch.float16, torch.float32, torch.float64):
        z = images.to(dtype)
        assert kde.log_prob(z).dtype == torch.float64
        assert largest_error(kde, z) < NATS
    assert "40 references of (2, 3, 4)" in repr(kde)


# Gradients


@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("narrower", [1.0, 0.02])
def test_gradients_agree_with_those_of_direct_sums(each: bool, narrower: float) -> None:
    mu = normal(1500, 6) + 10.0
    width = uniform_like(mu if each else mu[0], 0.5, 1.0, generator=spawn(0)) * narrower
    kde = fit_kde(mu, bandwidth=width)
    z = (mu[:30] + 0.1 * narrower * normal(30, 6, seed=1)).requires_grad_()
    times = torch.arange(-14.0, 16.0).double()  # what comes down the chain rule
    (found,) = torch.autograd.grad(kde.log_prob(z) @ times, z)
    (expected,) = torch.autograd.grad(direct(z, kde) @ times, z)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3 / narrower)


def test_gradients_of_finite_differences() -> None:
    kde = fit_kde(normal(20, 3, dtype=torch.float64), bandwidth=torch.tensor([0.5, 0.7, 0.9]).double())
    z = normal(4, 3, seed=1, dtype=torch.float64).requires_grad_()
    (found,) = torch.autograd.grad(kde.log_prob(z).sum(), z)
    step = 1e-2 * torch.eye(3).double()
    numeric = torch.stack([kde.log_prob(z + s) - kde.log_prob(z - s) for s in step], 1) / 2e-2
    torch.testing.assert_close(found, numeric, rtol=1e-2, atol=1e-2)


def test_climbing_the_gradient_raises_the_density() -> None:
    kde = fit_kde(normal(300, 2, 2))
    z = normal(50, 2, 2, seed=1) * 3
    before = kde.log_prob(z)
    for _ in range(10):
        z.requires_grad_()
        (g,) = torch.autograd.grad(kde.log_prob(z).sum(), z)
        z = (z + 0.05 * g).detach()
    assert (kde.log_prob(z) > before).all()
    assert not kde.log_prob(z).requires_grad


# Leaving out


def test_leaving_one_out_is_fitting_without_it() -> None:
    mu, weights = normal(40, 3), uniform_like(torch.empty(40), 0.1, 1.0, generator=spawn(1))
    kde = fit_kde(mu, bandwidth=0.3, weights=weights)
    others = [torch.arange(40) != i for i in range(40)]
    expected = [fit_kde(mu[o], bandwidth=0.3, weights=weights[o]).log_prob(mu[~o]) for o in others]
    torch.testing.assert_close(kde.leave_out(), torch.cat(expected), rtol=0, atol=NATS)


def test_leaving_groups_out_is_fitting_without_them() -> None:
    mu, groups = normal(60, 2), torch.arange(60) % 5 * 7
    found = fit_kde(mu, bandwidth=0.3).leave_out(groups=groups)
    for group in groups.unique():
        out = groups == group
        expected = fit_kde(mu[~out], bandwidth=0.3).log_prob(mu[out])
        torch.testing.assert_close(found[out], expected, rtol=0, atol=NATS)


def test_an_outlier_is_impossible_without_itself() -> None:
    mu = torch.cat([normal(50, 2), torch.full((1, 2), 100.0)])
    kde = fit_kde(mu, bandwidth=0.5)
    assert float(kde.leave_out()[-1]) < -10_000
    assert float(kde.log_prob(mu[-1:])) > -10


# Bandwidths


def test_scotts_rule() -> None:
    mu = stretched(500, 4)
    expected = mu.double().std(0) * 500 ** (-1 / 8)
    torch.testing.assert_close(fit_kde(mu).bandwidth, expected, rtol=1e-9, atol=0)
    pooled = mu.double().var(0).mean().sqrt() * 500 ** (-1 / 8)
    torch.testing.assert_close(fit_kde(mu, bandwidth="scott-scalar").bandwidth, pooled.expand(4), rtol=1e-9, atol=0)


def test_scotts_rule_with_weights_is_scipys() -> None:
    mu = normal(200, 1, dtype=torch.float64)
    weights = uniform_like(mu[:, 0], 0.0, 1.0, generator=spawn(1))
    theirs = stats.gaussian_kde(mu.T.numpy(), weights=weights.numpy())
    expected = torch.from_numpy(theirs.covariance[0]).sqrt()
    torch.testing.assert_close(fit_kde(mu, weights=weights).bandwidth, expected, rtol=1e-9, atol=0)


def test_likelihood_picks_the_best_bandwidth() -> None:
    """Two narrow clusters far apart, for which Scott's rule is much too wide."""
    mu = torch.cat([normal(150, 2), normal(150, 2, seed=1) + 100.0])
    fresh = torch.cat([normal(500, 2, seed=2), normal(500, 2, seed=3) + 100.0])
    scott = fit_kde(mu)
    chosen = fit_kde(mu, bandwidth="likelihood")
    grid = {k: fit_kde(mu, bandwidth=scott.bandwidth * 10 ** (k / 40)) for k in range(-120, 41)}
    best = max(grid, key=lambda k: float(grid[k].leave_out().mean()))
    factor = chosen.bandwidth / scott.bandwidth
    assert float(chosen.leave_out().mean()) > float(grid[best].leave_out().mean()) - 0.01
    assert bool((factor / 10 ** (best / 40)).log10().abs().max() <= 0.1)  # neighbours on the coarser grid
    assert float(factor.max()) < 0.1  # beyond the grid it starts with
    assert float(chosen.log_prob(fresh).mean()) > float(scott.log_prob(fresh).mean()) + 1


def test_likelihood_of_many_references_tries_some_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    mu = normal(1200, 3)
    whole = fit_kde(mu, bandwidth="likelihood").bandwidth
    monkeypatch.setattr(kernels, "MAX_SCORED", 300)
    some = fit_kde(mu, bandwidth="likelihood").bandwidth
    assert float((some / whole).log10().abs().max()) <= 0.2 + 1e-9
    torch.testing.assert_close(some, fit_kde(mu, bandwidth="likelihood").bandwidth, rtol=0, atol=0)


# Samples


def test_samples_have_the_moments_of_the_density(generator: torch.Generator) -> None:
    mu = stretched(200, 3)
    weights = torch.arange(200.0)
    kde = fit_kde(mu, bandwidth=torch.tensor([0.1, 1.0, 2.0]), weights=weights)
    draws = kde.sample(40_000, generator=generator).double()
    assert draws.shape == (40_000, 3)
    mean = kde.weights @ mu.double()
    variance = kde.weights @ (mu.double() - mean).square() + kde.bandwidth.double().square()
    assert ((draws.mean(0) - mean).abs() < 5 * (variance / 40_000).sqrt()).all()
    torch.testing.assert_close(draws.var(0), variance, rtol=0.05, atol=0)


@pytest.mark.parametrize("each", [False, True])
def test_samples_follow_the_density(generator: torch.Generator, each: bool) -> None:
    """The share of draws below a point, against the density's own share (a Kolmogorov-Smirnov test at level 0.001)."""
    mu = torch.tensor([[-2.0], [0.0], [0.5], [4.0]])
    width = torch.tensor([[0.2], [1.0], [0.1], [0.5]]) if each else torch.tensor([0.4])
    weights = torch.tensor([1.0, 2.0, 0.5, 3.0])
    kde = fit_kde(mu, bandwidth=width, weights=weights)
    draws = kde.sample(5000, generator=generator)[:, 0].double()

    def share_below(z: np.ndarray) -> np.ndarray:
        return stats.norm.cdf(z[:, None], mu[:, 0], width.expand(4, 1)[:, 0]) @ kde.weights.numpy()

    assert stats.kstest(draws.numpy(), share_below).pvalue > 1e-3
    rated = -kde.log_prob(kde.sample(4000, generator=generator))
    grid = torch.linspace(-8, 10, 20001, dtype=torch.float64)
    p = kde.log_prob(grid[:, None])
    entropy = float(torch.trapezoid(-p * p.exp(), grid))
    assert abs(float(rated.mean()) - entropy) < 5 * float(rated.std()) / 4000**0.5


def test_two_samples_of_one_density_are_indistinguishable(generator: torch.Generator) -> None:
    mu = normal(500, 4)
    kde = fit_kde(mu)
    noise = normal(3000, 4, seed=9)
    chosen = torch.randint(500, (3000,), generator=spawn(4))
    by_hand = mu[chosen] + kde.bandwidth.float() * noise
    drawn = kde.sample(3000, generator=generator)
    for a, b in [*zip(by_hand.T, drawn.T, strict=True), (kde.log_prob(by_hand), kde.log_prob(drawn))]:
        assert stats.ks_2samp(a.numpy(), b.numpy()).pvalue > 1e-3


def test_the_same_generator_gives_the_same_samples() -> None:
    kde = fit_kde(normal(30, 2))
    first, again, other = (kde.sample(20, generator=spawn(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert kde.sample(0, generator=spawn(1)).shape == (0, 2)


# Memory

PROBE = """
import resource, torch
torch.set_num_threads(1)
from operant.density import fit_kde
g = torch.Generator().manual_seed(0)
x, z = torch.rand(10_000, {d}, generator=g), torch.rand(10_000, {d}, generator=g)
width = torch.rand(10_000, {d}, generator=g) + 0.5 if {each} else "scott"
fit_kde(x[:64], bandwidth=1.0).log_prob(z[:64])
with open("/proc/self/status") as file:
    used = next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmSize"))
resource.setrlimit(resource.RLIMIT_AS, (used + 2**30, used + 2**30))
kde = fit_kde(x, bandwidth=width)
log_prob = kde.log_prob(z.requires_grad_())
log_prob.sum().backward()
assert log_prob.isfinite().all() and z.grad.isfinite().all()
assert {d} > 32 or kde.leave_out().isfinite().all()
"""


@pytest.mark.parametrize(("d", "each"), [(32, False), (64, True), pytest.param(784, False, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_ten_thousand_rows_take_less_than_a_gibibyte(d: int, each: bool) -> None:
    run = subprocess.run([sys.executable, "-c", PROBE.format(d=d, each=each)], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


# Invalid arguments


@pytest.mark.parametrize(
    ("x", "options", "sentence"),
    [
        (torch.zeros(0, 3), {}, r"references must be .* that is not empty, got torch.float32 of shape \(0, 3\)"),
        (torch.zeros(3, 0), {}, "references must be .* that is not empty"),
        (torch.zeros(5), {}, r"references must be a floating-point tensor of shape \(n, \*shape\)"),
        (torch.zeros(5, 2).long(), {}, "references must be a floating-point tensor"),
        ([[1.0]], {}, "references must be a floating-point tensor .* got list"),
        (torch.tensor([[1.0], [math.nan]]), {}, "references must be finite, got NaN or infinity in 1 of 2 rows"),
        (torch.tensor([[1.0], [math.inf]]), {}, "references must be finite"),
        (torch.zeros(1, 3), {}, "bandwidth='scott' needs at least 2 references of positive weight"),
        (torch.zeros(1, 3), {"bandwidth": "likelihood"}, "bandwidth='likelihood' needs at least 2"),
        (normal(9, 3), {"weights": torch.eye(9)[0]}, "at least 2 references of positive weight"),
        (torch.ones(9, 3), {}, "all references are equal in dimension 0, 1, 2 of 3 .counting from 0.;"),
        (torch.ones(9, 3), {"bandwidth": "scott-scalar"}, "all references are equal in dimension 0, 1, 2 of 3"),
        (
            torch.arange(9.0)[:, None] * torch.tensor([1.0, 0.0, 2.0, 0.0]) + 0.1,
            {},
            "all references are equal in dimension 1, 3 of 4",
        ),
        (torch.ones(9, 30), {"bandwidth": "likelihood"}, "in dimension 0, 1, 2, 3, 4, 5, 6, 7 and 22 more of 30"),
        (normal(9, 3).repeat(2, 1), {"bandwidth": "likelihood"}, "every reference seems to have a copy"),
        (normal(9, 3), {"bandwidth": "silverman"}, "bandwidth must be one of scott, scott-scalar, likelihood, a"),
        (normal(9, 3), {"bandwidth": 0.0}, "bandwidth must be positive and finite everywhere, got 0"),
        (normal(9, 3), {"bandwidth": -1}, "bandwidth must be positive and finite everywhere, got -1"),
        (normal(9, 3), {"bandwidth": math.nan}, "bandwidth must be positive and finite everywhere, got nan"),
        (normal(9, 3), {"bandwidth": torch.tensor([1.0, 0.0, 1.0])}, "bandwidth must be positive"),
        (normal(9, 3), {"bandwidth": torch.ones(9)}, r"tensor of shape \(3,\) .* or \(9, 3\) .* got \(9,\)"),
        (normal(9, 3), {"bandwidth": torch.ones(8, 3)}, r"got \(8, 3\)"),
        (normal(9, 3), {"weights": torch.ones(8)}, r"weights must have shape \(9,\)"),
        (normal(9, 3), {"weights": -torch.ones(9)}, "weights must be finite, 0 or more and not all 0"),
        (normal(9, 3), {"weights": torch.zeros(9)}, "weights must be finite, 0 or more and not all 0"),
        (normal(9, 3), {"weights": torch.full((9,), math.nan)}, "weights must be finite"),
        (normal(9, 3), {"bandwidth": 1e-9}, "too narrow for the range of the data: their density"),
        (normal(9, 3), {"bandwidth": 1e-300}, "too narrow for the range of the data"),
        (normal(9, 3), {"bandwidth": torch.full((9, 3), 1e-30)}, "too narrow for the range of the data"),
    ],
)
def test_bad_references_are_rejected(x: Tensor, options: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        fit_kde(x, **options)


def test_bad_queries_are_rejected(generator: torch.Generator) -> None:
    kde = fit_kde(normal(9, 2, 3))
    for z in (torch.zeros(4, 6), torch.zeros(2, 3), torch.zeros(4, 2, 4)):
        with pytest.raises(ValueError, match=r"x must have shape \(N, 2, 3\), got"):
            kde.log_prob(z)
    with pytest.raises(ValueError, match="x must be finite, got NaN or infinity in 2 of 4 rows; remove them"):
        kde.log_prob(torch.tensor([0.0, math.nan, 1.0, math.inf])[:, None, None].expand(4, 2, 3))
    with pytest.raises(ValueError, match="n must be at least 0, got -1"):
        kde.sample(-1, generator=generator)
    with pytest.raises(ValueError, match=r"groups must be integers of shape \(9,\)"):
        kde.leave_out(groups=torch.zeros(9))
    with pytest.raises(ValueError, match="leaving out needs at least two references"):
        kde.leave_out(groups=torch.zeros(9, dtype=torch.int64))
    with pytest.raises(ValueError, match="weights must sum to 1, got 9"):
        KDE(kde.references, kde.bandwidth, torch.ones(9))
