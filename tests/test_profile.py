"""The operational profile: densities that are densities, cells with their mass, pools weighted like the field."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from operant import Classifier, Samples, load_digits, spawn
from operant.density import fit_flow, fit_kde, fit_mixture
from operant.networks import fit_flat, fit_pca, fit_vae
from operant.profile import (
    Priors,
    Profile,
    fit_profile,
    fit_ratio,
    layer_features,
    load_profile,
    update_profile,
    with_priors,
)

QUICK_FLOW = partial(fit_flow, epochs=40, width=32, progress=False)
DENSITIES = {
    "likelihood": partial(fit_kde, bandwidth="likelihood"),
    "adaptive": partial(fit_kde, bandwidth="adaptive"),
    "mixture": partial(fit_mixture, components=6),
    "flow": QUICK_FLOW,
}
SLOW_FLOW = pytest.param("flow", marks=pytest.mark.slow)
MOST = ["likelihood", "adaptive", "mixture", SLOW_FLOW]
PCA8 = partial(fit_pca, dimensions=8)


def bent(n: int, *, seed: int = 0) -> Samples:
    """Two clouds in the plane, one bent; far from any Gaussian."""
    g = spawn(seed, "bent")
    x = torch.randn(n, 2, generator=g, dtype=torch.float64)
    left = torch.rand(n, generator=g) < 0.4
    x = torch.where(left[:, None], 0.5 * x + torch.tensor([-3.0, 1.0]), x)
    x[:, 1] += 0.3 * x[:, 0] ** 2
    return Samples(x)


@pytest.fixture(scope="module")
def digits() -> Samples:
    return load_digits().train


@pytest.fixture(scope="module")
def held_digits() -> Samples:
    return load_digits().test


@pytest.fixture(scope="module")
def profile(digits) -> Profile:
    return fit_profile(digits, encoder=PCA8, generator=spawn(0))


# Densities


@pytest.mark.parametrize("name", MOST)
def test_log_prob_integrates_to_one_in_the_plane(name: str) -> None:
    fitted = fit_profile(bent(1500), encoder=fit_flat, density=DENSITIES[name], generator=spawn(1))
    a, b = torch.linspace(-12, 12, 401), torch.linspace(-12, 20, 501)
    grid = torch.cartesian_prod(a, b).double()
    total = float(fitted.log_prob(grid).exp().sum() * (a[1] - a[0]) * (b[1] - b[0]))
    assert total == pytest.approx(1, abs=0.01)


def energy_p_value(a: Tensor, b: Tensor, *, permutations: int = 200) -> float:
    """Of the energy distance between two samples, by permutation."""
    z = torch.cat([a, b]).double()
    d = torch.cdist(z, z)
    g = spawn(0, "permutations")
    sides = torch.stack([torch.randperm(len(z), generator=g) < len(a) for _ in range(permutations)])
    sides = torch.cat([(torch.arange(len(z)) < len(a))[None], sides]).double()
    v = sides / len(a) - (1 - sides) / len(b)
    values = -((v @ d) * v).sum(1)
    return float((values[1:] >= values[0]).double().mean())


@pytest.mark.parametrize("name", MOST)
def test_samples_cannot_be_distinguished_from_held_out_data(name: str) -> None:
    """In the plane, where the energy test has power: it detects samples of a single Gaussian."""
    fitted = fit_profile(bent(2000), encoder=fit_flat, density=DENSITIES[name], generator=spawn(1))
    fresh = bent(600, seed=9).x
    assert energy_p_value(fitted.sample(600, generator=spawn(2)), fresh) > 0.01
    gauss = fit_mixture(bent(2000).x, components=1, generator=spawn(1))
    assert energy_p_value(gauss.sample(600, generator=spawn(2)), fresh) < 0.01


def test_mixture_agrees_with_scikit_learn() -> None:
    from sklearn.mixture import GaussianMixture

    x = bent(2000).x
    ours = fit_mixture(x, components=2, generator=spawn(0))
    theirs = GaussianMixture(2, random_state=0, tol=1e-6, max_iter=500).fit(x.numpy())
    assert float(ours.log_prob(x).mean()) == pytest.approx(float(theirs.score(x.numpy())), abs=0.01)
    order, other = ours.weights.argsort(), np.argsort(theirs.weights_)
    np.testing.assert_allclose(ours.means[order], theirs.means_[other], atol=0.05)


def test_mixture_takes_weights() -> None:
    x = bent(600).x
    twice = torch.cat([x, x[:200]])
    weights = torch.ones(600).index_fill_(0, torch.arange(200), 2.0)
    one = fit_mixture(x, components=1, weights=weights, generator=spawn(0))
    two = fit_mixture(twice, components=1, generator=spawn(0))
    torch.testing.assert_close(one.means, two.means)
    torch.testing.assert_close(one.factors, two.factors, rtol=1e-3, atol=1e-3)  # the floor differs a little


def test_a_single_gaussian_has_the_closed_form() -> None:
    x = bent(500).x
    fitted = fit_mixture(x, components=1, generator=spawn(0))
    covariance = np.cov(x.numpy().T, bias=True) + 1e-3 * x.var(0, unbiased=False).mean().item() * np.eye(2)
    wanted = stats.multivariate_normal(x.mean(0).numpy(), covariance).logpdf(x.numpy())
    np.testing.assert_allclose(fitted.log_prob(x).numpy(), wanted, rtol=1e-9)


@pytest.mark.slow
def test_a_flow_learns_more_than_a_gaussian_and_answers_for_single_rows() -> None:
    x = bent(1500).x
    flow = QUICK_FLOW(x, generator=spawn(1))
    gauss = fit_mixture(x, components=1, generator=spawn(0))
    fresh = bent(500, seed=5).x
    assert float(flow.log_prob(fresh).mean()) > float(gauss.log_prob(fresh).mean()) + 0.1
    torch.testing.assert_close(flow.log_prob(fresh[:1]), flow.log_prob(fresh)[:1], rtol=1e-4, atol=1e-4)


# The profile of the digits


def test_fresh_inputs_stand_where_held_back_ones_do_and_negatives_nowhere(profile, held_digits) -> None:
    rated, held = profile.log_prob(held_digits.x), profile.density.log_prob(profile.held)
    assert stats.ks_2samp(rated, held).pvalue > 0.01
    assert 0.4 < float(profile.quantile(held_digits.x).mean()) < 0.6
    assert float(profile.quantile(1 - held_digits.x).mean()) < 0.05


@pytest.mark.parametrize("name", DENSITIES)
def test_saved_and_loaded_gives_the_same_numbers(tmp_path, digits, held_digits, name: str) -> None:
    fitted = fit_profile(digits, encoder=PCA8, density=DENSITIES[name], generator=spawn(0))
    fitted.save(tmp_path / "profile.json")
    again = load_profile(tmp_path / "profile.json")
    x = held_digits.x[:40]
    assert torch.equal(again.log_prob(x), fitted.log_prob(x))
    assert torch.equal(again.quantile(x), fitted.quantile(x))
    assert torch.equal(again.cell_mass(x, 0.5), fitted.cell_mass(x, 0.5))
    assert torch.equal(again.weights(held_digits), fitted.weights(held_digits))
    assert torch.equal(again.sample(5, generator=spawn(3)), fitted.sample(5, generator=spawn(3)))
    assert str(again) == str(fitted)


def test_a_vae_encodes_as_well(digits, held_digits, tmp_path) -> None:
    encoder = partial(fit_vae, latent=6, width=64, epochs=10, progress=False)
    fitted = fit_profile(digits, encoder=encoder, generator=spawn(0))
    fitted.save(tmp_path / "profile.json")
    again = load_profile(tmp_path / "profile.json")
    assert torch.equal(again.log_prob(held_digits.x), fitted.log_prob(held_digits.x))
    assert fitted.sample(4, generator=spawn(1)).shape == (4, *held_digits.shape)
    assert 0.4 < float(fitted.quantile(held_digits.x).mean()) < 0.6


def test_features_of_a_model_must_be_given_again(lenet: Classifier, digits28, tmp_path) -> None:
    features = layer_features(lenet, "fc2")
    fitted = fit_profile(digits28.train, features=features, encoder=PCA8, generator=spawn(0))
    fitted.save(tmp_path / "profile.json")
    again = load_profile(tmp_path / "profile.json", features=features)
    assert torch.equal(again.log_prob(digits28.test.x), fitted.log_prob(digits28.test.x))
    with pytest.raises(ValueError, match="is of features: give the function"):
        load_profile(tmp_path / "profile.json")
    with pytest.raises(ValueError, match="these features are not those"):
        load_profile(tmp_path / "profile.json", features=lambda x: 1 - features(x))
    updated = update_profile(fitted, Samples(digits28.test.x), generator=spawn(1)).profile
    updated.save(tmp_path / "updated.json")
    load_profile(tmp_path / "updated.json", features=features)
    with pytest.raises(ValueError, match="cannot be decoded to inputs"):
        fitted.sample(3, generator=spawn(0))
    with pytest.raises(ValueError, match="no layer named nothing"):
        layer_features(lenet, "nothing")


def test_any_callable_gives_features(digits, held_digits) -> None:
    def rows_and_columns(x: Tensor) -> Tensor:
        return torch.stack([x.flatten(1).mean(1), x[:, :, 3].flatten(1).mean(1)], 1)

    halves = fit_profile(digits, features=rows_and_columns, encoder=fit_flat, generator=spawn(0))
    assert halves.codes.shape[1] == 2
    assert halves.log_prob(held_digits.x).shape == (len(held_digits),)
    with pytest.raises(ValueError, match="features must be floating-point"):
        fit_profile(digits, features=lambda x: x.mean(), generator=spawn(0))


def test_log_prob_can_be_climbed(profile, held_digits) -> None:
    x = held_digits.x[:20].clone().requires_grad_()
    before = profile.log_prob(x)
    (gradient,) = torch.autograd.grad(before.sum(), x)
    after = profile.log_prob((x + 0.02 * gradient / gradient.flatten(1).norm(dim=1).view(-1, 1, 1, 1)).detach())
    assert (after > before).all()


# Cells


def test_a_kernel_box_has_the_mass_that_samples_say(profile) -> None:
    at = profile.probes[:3]
    drawn = profile.density.sample(200_000, generator=spawn(3)).double()
    z = profile.encode(at).double()
    inside = torch.stack([((drawn - row).abs() <= 1.2 * profile._spread).all(1).double().mean() for row in z])
    torch.testing.assert_close(profile.cell_mass(at, 1.2), inside, rtol=0.1, atol=2e-4)


@pytest.mark.parametrize("name", ["mixture", SLOW_FLOW])
def test_other_densities_come_near(name: str) -> None:
    fitted = fit_profile(bent(1500), encoder=fit_flat, density=DENSITIES[name], generator=spawn(1))
    at = bent(20, seed=4).x
    drawn = fitted.density.sample(100_000, generator=spawn(3)).double()
    inside = torch.stack([((drawn - row).abs() <= 0.3 * fitted._spread).all(1).double().mean() for row in at])
    torch.testing.assert_close(fitted.cell_mass(at, 0.3), inside, rtol=0.1, atol=2e-3)


def test_cells_grow_and_all_is_one(profile, held_digits) -> None:
    masses = torch.stack([profile.cell_mass(held_digits.x[:30], r) for r in (0.1, 0.5, 2.0, 30.0)])
    assert (masses.diff(dim=0) > 0).all()
    torch.testing.assert_close(masses[-1], torch.ones(30, dtype=torch.float64))
    for wrong in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="radius must be positive"):
            profile.cell_mass(held_digits.x, wrong)


# Weights of a pool


def test_a_pool_drawn_as_the_field_keeps_its_classes(profile, held_digits) -> None:
    weights = profile.weights(held_digits)
    assert float(weights.sum()) == pytest.approx(1)
    assert float(1 / weights.square().sum()) > 0.2 * len(held_digits)
    found = torch.zeros(10, dtype=torch.float64).index_add_(0, held_digits.labels, weights)
    assert float((found - 0.1).abs().sum() / 2) < 0.1
    with pytest.raises(ValueError, match="NaN or infinity in 369 of 369"):
        profile.weights(Samples(held_digits.x * torch.nan))


def test_weights_turn_a_pool_into_the_field(digits, held_digits) -> None:
    """The field holds few classes; a pool of all of them is weighted accordingly, without using the labels."""
    rare = digits[(digits.labels < 3) | (torch.arange(len(digits)) % 20 == 0)]
    fitted = fit_profile(rare, encoder=PCA8, generator=spawn(0))
    weights = fitted.weights(Samples(held_digits.x))
    found = torch.zeros(10, dtype=torch.float64).index_add_(0, held_digits.labels, weights)
    wanted = torch.bincount(rare.labels, minlength=10) / len(rare)
    plain = torch.bincount(held_digits.labels, minlength=10) / len(held_digits)
    distance, before = ((v - wanted).abs().sum() / 2 for v in (found, plain))
    assert distance < 0.1 < 0.5 < before
    density = fitted.log_prob(held_digits.x).softmax(0)  # what other tools take
    other = torch.zeros(10, dtype=torch.float64).index_add_(0, held_digits.labels, density)
    assert float((other - wanted).abs().sum() / 2) > 2 * distance


def test_priors_are_kept_exactly(profile, held_digits) -> None:
    priors = [0.3, 0.0, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.05, 0.05]
    weights = profile.weights(held_digits, priors=priors)
    found = torch.zeros(10, dtype=torch.float64).index_add_(0, held_digits.labels, weights)
    torch.testing.assert_close(found, torch.tensor(priors, dtype=torch.float64))
    given = Priors(
        values=tuple(priors), lower=tuple(priors), upper=tuple(priors), confidence=0.95, method="mlls",
        labelled=(0.1,) * 10, check=tuple(priors), findings=(),
    )  # fmt: skip
    assert torch.equal(profile.weights(held_digits, priors=given), weights)


def test_priors_that_cannot_be_are_rejected(profile, held_digits) -> None:
    with pytest.raises(ValueError, match="priors must be 0 or more and sum to 1"):
        profile.weights(held_digits, priors=[0.2] * 10)
    with pytest.raises(ValueError, match="priors need the class of each input"):
        profile.weights(Samples(held_digits.x), priors=[0.1] * 10)
    with pytest.raises(ValueError, match="priors for 5 classes, but the pool has a class 9"):
        profile.weights(held_digits, priors=[0.2] * 5)
    zeros = held_digits[held_digits.labels == 0]
    with pytest.raises(ValueError, match="no mass in classes 1, which"):
        with_priors(torch.full((len(zeros),), 1 / len(zeros)), zeros, [0.5, 0.5])


def test_classes_are_called_by_their_names(profile, held_digits) -> None:
    named = replace(held_digits, classes=tuple("abcdefghij"))
    with pytest.raises(ValueError, match="priors for 5 classes, but the pool has a class j"):
        profile.weights(named, priors=[0.2] * 5)
    zeros = named[named.labels == 0]
    with pytest.raises(ValueError, match="no mass in classes b, d, which"):
        with_priors(torch.full((len(zeros),), 1 / len(zeros)), zeros, [0.5, 0.3, 0, 0.2])


# Rejected input and findings


def test_a_density_that_is_overfitted_is_rejected(digits) -> None:
    for narrow in (partial(fit_kde, bandwidth=0.03), partial(fit_mixture, components=120)):
        with pytest.raises(ValueError, match="it is overfitted"):
            fit_profile(digits, encoder=partial(fit_pca, dimensions=16), density=narrow, generator=spawn(0))


def test_what_nothing_can_be_learned_from_is_rejected(digits) -> None:
    with pytest.raises(ValueError, match="at least 30 field inputs, got 20"):
        fit_profile(digits[:20], generator=spawn(0))
    with pytest.raises(ValueError, match="need more than 32 inputs"):
        fit_profile(digits[:35], generator=spawn(0))
    with pytest.raises(ValueError, match="more field inputs than dimensions"):
        fit_profile(digits[:60], encoder=fit_flat, generator=spawn(0))
    with pytest.raises(ValueError, match="features never vary"):
        fit_profile(digits, encoder=fit_flat, generator=spawn(0))
    with pytest.raises(ValueError, match="all equal"):
        fit_profile(Samples(torch.ones(50, 3)), encoder=PCA8, generator=spawn(0))
    with pytest.raises(ValueError, match="NaN or infinity in 1 of"):
        fit_profile(Samples(digits.x.clone().index_fill_(0, torch.tensor([3]), torch.nan)), generator=spawn(0))


def test_another_shape_is_rejected(profile, digits28) -> None:
    with pytest.raises(ValueError, match="inputs must have shape .* this profile is of such inputs"):
        profile.log_prob(digits28.test.x)


def test_one_class_is_a_finding(digits) -> None:
    ones = digits[digits.labels == 1]
    fitted = fit_profile(ones, encoder=PCA8, generator=spawn(0))
    assert [f.name for f in fitted.findings] == ["one class"]
    assert fit_profile(Samples(ones.x), encoder=PCA8, generator=spawn(0)).findings == ()


# Updates


def test_an_update_with_the_same_kind_of_data_moves_little(digits) -> None:
    parts = digits.split(early=0.5, late=0.5)
    first = fit_profile(parts["early"], encoder=PCA8, generator=spawn(0))
    update = update_profile(first, parts["late"], generator=spawn(1))
    assert update.moved < 0.5
    assert update.strange < 0.15
    assert abs(update.divergence) < 1.0
    assert update.profile.shares.sum() == pytest.approx(1)


def test_an_update_says_how_much_moved_and_follows(digits) -> None:
    parts = digits.split(early=0.5, late=0.5)
    first = fit_profile(parts["early"], encoder=PCA8, generator=spawn(0))
    dark = Samples((parts["late"].x * 0.4).clamp(0, 1))
    update = update_profile(first, dark, keep=0.2, generator=spawn(1))
    assert update.moved > 0.7
    assert update.divergence > 1
    assert "standard deviations" in str(update)
    fresh = Samples(load_digits().test.x * 0.4)
    gains = update.profile.log_prob(fresh.x) - first.log_prob(fresh.x)
    assert float(gains.mean()) > 1
    forgotten = update_profile(first, dark, keep=0, generator=spawn(1)).profile
    assert len(forgotten.codes) < len(update.profile.codes)


def test_the_weight_of_old_inputs_falls_with_every_update(digits) -> None:
    parts = digits.split(a=0.4, b=0.3, c=0.3)
    profile = fit_profile(parts["a"], encoder=PCA8, generator=spawn(0))
    n = len(profile.codes)
    for role in ("b", "c"):
        profile = update_profile(profile, parts[role], keep=0.5, generator=spawn(0)).profile
    per_input = profile.shares[[0, n, -1]]
    assert per_input[1] / per_input[0] > 1.5
    assert per_input[2] / per_input[1] > 1.5
    with pytest.raises(ValueError, match="keep must be a share from 0 to 1"):
        update_profile(profile, parts["b"], keep=1.5, generator=spawn(0))


# The ratio


def shifted(n: int, by: float, seed: int) -> Samples:
    x = torch.randn(n, 3, generator=spawn(seed, "shifted"))
    x[:, 0] += by
    return Samples(x)


def test_the_ratio_of_two_gaussians_is_known() -> None:
    pool, field = shifted(6000, 0.0, 1), shifted(4000, 0.7, 2)
    ratio = fit_ratio(pool, field, generator=spawn(0))
    truth = (0.7 * pool.x[:, 0].double() - 0.7**2 / 2).exp()
    error = (ratio(pool.x) / truth).log().abs()
    assert float(error.median()) < 0.1
    weights = ratio.weights(pool)
    assert float(weights @ pool.x[:, 0].double()) == pytest.approx(0.7, abs=0.1)
    assert ratio.auc == pytest.approx(stats.norm.cdf(0.7 / 2**0.5), abs=0.02)
    assert ratio.findings == ()


def test_no_shift_no_weights() -> None:
    pool = shifted(3000, 0.0, 1)
    ratio = fit_ratio(pool, shifted(3000, 0.0, 2), generator=spawn(0))
    assert ratio.effective > 0.95 * len(pool)
    assert ratio.auc < 0.55


def test_no_input_counts_more_than_the_clip() -> None:
    pool = shifted(2000, 0.0, 1)
    ratio = fit_ratio(pool, shifted(2000, 2.5, 2), clip=5, generator=spawn(0))
    weights = ratio.weights(pool)
    assert float(weights.sum()) == pytest.approx(1)
    assert float(weights.max()) <= 5 / len(pool) * (1 + 1e-6)


def test_a_pool_unlike_the_field_is_a_finding() -> None:
    ratio = fit_ratio(shifted(500, 0.0, 1), shifted(500, 8.0, 2), generator=spawn(0))
    assert [f.name for f in ratio.findings] == ["pool unlike field"]


def test_ratio_rejects_bad_input(digits, held_digits) -> None:
    with pytest.raises(ValueError, match="inputs are in both"):
        fit_ratio(digits, digits[:200], generator=spawn(0))
    with pytest.raises(ValueError, match="clip must be between 1 and inf"):
        fit_ratio(digits, held_digits, clip=1.0, generator=spawn(0))
    with pytest.raises(ValueError, match="at least 50 inputs of each"):
        fit_ratio(digits, held_digits[:20], generator=spawn(0))
    with pytest.raises(ValueError, match="one shape"):
        fit_ratio(digits, load_digits(size=9).test, generator=spawn(0))
