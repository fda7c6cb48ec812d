"""Naturalness: its guarantee on real digits, what it catches, and every score against sums written out."""

import json
import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from scipy.stats import binom, spearmanr, t
from sklearn.neighbors import NearestNeighbors
from torch import Tensor
from torch.nn.functional import conv2d, interpolate

from operant import Classifier, Samples, load_digits, spawn
from operant.conditions import Recipe, apply, uniform
from operant.generate import FGSM, PGD
from operant.measure._texture import SIZES, texture
from operant.measure.conformal import conformal_p_values, min_bonferroni
from operant.measure.naturalness import (
    SCORES,
    Naturalness,
    Neighbours,
    fit_naturalness,
    load_naturalness,
    rank_correlation,
)
from operant.networks import LeNet5, initialise


@pytest.fixture(scope="module")
def natural(digits28) -> Naturalness:
    return fit_naturalness(digits28.train, generator=spawn(0, "naturalness"), progress=False)


@pytest.fixture(scope="module")
def natural_by_layer(digits28, lenet) -> Naturalness:
    return fit_naturalness(
        digits28.train, generator=spawn(0, "naturalness"), model=lenet, layer="relu_fc2", epochs=8, progress=False
    )


NOISY = Recipe(severities={"blur": uniform(0, 1), "gaussian_noise": uniform(0, 0.2)})


def noisy(samples: Samples, seed: int) -> Samples:
    return replace(samples, x=apply(samples.x, NOISY.draw(len(samples), generator=spawn(seed, "noisy"))))


@pytest.fixture(scope="module")
def natural_in_noise(digits28) -> Naturalness:
    """Learned from noisy field data."""
    return fit_naturalness(noisy(digits28.train, 0), generator=spawn(0, "naturalness"), epochs=8, progress=False)


@pytest.fixture(scope="module")
def fuzzed(lenet, digits28) -> dict[float, Tensor]:
    """Cases of growing strength, by their distance from the seeds."""
    seeds = lenet.correct(digits28.test)
    radii = (0.005, 0.01, 0.02, 0.04, 0.3)
    return {r: PGD(radius=r, steps=5)(lenet, seeds, generator=spawn(0)).x for r in radii}


def dealt(field: Samples) -> tuple[Samples, Samples]:
    fitted, held = field.split(naturalness_fitting=0.6, naturalness_calibration=0.4).values()
    return fitted, held


def photographs(n: int) -> Tensor:
    """Grey patches of the photographs inside scikit-learn, as large as the digits: another data set."""
    from sklearn.datasets import load_sample_images

    generator, patches = spawn(0, "patches"), []
    for picture in load_sample_images().images:
        grey = torch.from_numpy(picture.astype(np.float32)).mean(2)[None, None] / 255
        for _ in range(n // 2):
            side = int(torch.randint(28, 120, (), generator=generator))
            top, left = (int(torch.randint(size - side, (), generator=generator)) for size in grey.shape[2:])
            patch = grey[:, :, top : top + side, left : left + side]
            patches.append(interpolate(patch, size=(28, 28), mode="bilinear", antialias=True, align_corners=False))
    return torch.cat(patches).clamp(0, 1)


# The guarantee


@pytest.mark.parametrize("features", ["pixels", "layer"])
def test_genuine_digits_fall_below_a_level_no_more_often_than_it_says(features, digits28, request):
    """Over 200 draws of calibration and new digits, judged at level .01.

    The promise is over the draw of calibration inputs and new input, given the scores: whatever the scores were learned
    from, digits that took no part in that are exchangeable. So one fitted set of scores and 200 random partings of the
    held-out digits (the calibration part and the test set; only the test set where the network's features count, which
    was trained on the rest) into those that calibrate and those that are new is the very experiment. The first new
    digit of every draw gives independent trials, for a binomial test; the share of all new digits of a draw, which is
    steadier, for a t test.
    """
    natural = request.getfixturevalue("natural" if features == "pixels" else "natural_by_layer")
    pool = Samples.concat([dealt(digits28.train)[1], digits28.test]) if features == "pixels" else digits28.test
    n = 300 if features == "pixels" else 200
    scores = torch.stack([s.double() for s in natural.scores(pool.x).values()], 1)
    p = []
    for draw in range(200):
        order = torch.randperm(len(pool), generator=spawn(draw, "promise"))
        held, new = scores[order[:n]], scores[order[n:]]
        columns = zip(new.T, held.T, strict=True)
        p.append(min_bonferroni(torch.stack([conformal_p_values(*pair) for pair in columns], 1)))
    rates = {}
    for level in (0.02, 0.05, 0.1, 0.2):
        below = torch.stack([values < level for values in p]).double()
        share = below.mean(1)
        assert int(below[:, 0].sum()) <= binom.ppf(0.99, 200, level)  # 18 of 200 at level .05
        assert float(share.mean()) <= level + t.ppf(0.99, 199) * float(share.std()) / 200**0.5
        rates[level] = float(share.mean())
    assert rates[0.05] > 0.02  # kept by calibration, not by calling everything natural


def test_the_test_set_itself_keeps_the_guarantee(natural, digits28):
    """One calibration set, one test set: their rate varies by the draw of both, so it is held against both."""
    n, m = natural.calibration_size, len(digits28.test)
    rate = float((natural(digits28.test.x) < 0.05).double().mean())
    assert rate <= 0.05 + 2.33 * (0.05 * 0.95 * (1 / n + 1 / m)) ** 0.5


# What it catches

STRANGE = {
    "uniform noise": lambda x: torch.rand(x.shape, generator=spawn(0, "noise")),
    "noisy digits": lambda x: (x + 0.3 * torch.randn(x.shape, generator=spawn(0, "noise"))).clamp(0, 1),
    "photographs": lambda x: photographs(len(x)),
    "inverted digits": lambda x: 1 - x,
    "black and white": lambda x: (x > 0.5).float(),
    "five times the contrast": lambda x: (5 * x).clamp(0, 1),
    "half the light": lambda x: x / 2,
    "constant grey": lambda x: torch.full_like(x, 0.5),
}


@pytest.mark.parametrize("kind", STRANGE)
def test_strange_images_are_distinguished_from_digits(natural, natural_by_layer, digits28, kind):
    x = STRANGE[kind](digits28.test.x)
    for naturalness in (natural, natural_by_layer):
        assert float((naturalness(x) < 0.05).double().mean()) > 0.5


def test_cases_further_from_their_seeds_are_less_natural(natural, fuzzed):
    assert list(fuzzed) == sorted(fuzzed)
    means = [float(natural(x).mean()) for x in fuzzed.values()]
    assert means == sorted(means, reverse=True)
    strength = [float(natural.surrogate(x).mean()) for x in fuzzed.values()]
    assert strength == sorted(strength, reverse=True)
    assert float((natural(fuzzed[0.3]) < 0.05).double().mean()) > 0.5


def rejected_share(p: dict[str, Tensor]) -> float:
    return float((min_bonferroni(torch.stack(list(p.values()), 1)) < 0.05).double().mean())


def test_adversarial_noise_is_seen_where_field_data_are_noisy(natural_in_noise, lenet, digits28):
    seeds = lenet.correct(digits28.test)
    signs = torch.randn(seeds.x.shape, generator=spawn(0, "signs")).sign()
    strange = [(seeds.x + r * signs).clamp(0, 1) for r in (0.1, 0.15)]
    strange.append(FGSM(radius=0.15)(lenet, seeds, generator=spawn(0)).x)
    for x in strange:
        p = natural_in_noise.p_values(x)
        assert rejected_share(p) > 0.9
        del p["texture"]
        assert rejected_share(p) < 0.5


def test_noise_as_the_field_has_it_is_accepted(natural_in_noise, digits28):
    p = natural_in_noise.p_values(noisy(digits28.test, 1).x)
    assert rejected_share(p) < 0.1
    assert rejected_share({"texture": p["texture"]}) < 0.1


# Every score, written out


def test_scores_are_their_definitions_in_double_precision(natural, digits28):
    fitted, _ = dealt(digits28.train)
    x = torch.cat([digits28.train.x, photographs(20)])
    assert len(x) > 1000
    scores = natural.scores(x)
    assert tuple(scores) == SCORES

    residual, own = (natural.vae.residual(v).double().numpy() for v in (x, fitted.x))
    noise = (own**2).mean(0)
    noise = noise + 0.01 * noise.mean()
    np.testing.assert_allclose(scores["reconstruction"], (residual**2 / noise).mean(1), rtol=1e-4)

    pixels, data = (v.flatten(1).double().numpy() for v in (x, fitted.x))
    covariance = np.cov(data.T, bias=True)
    covariance += 0.1 * np.trace(covariance) / 784 * np.eye(784)
    root = np.linalg.cholesky(np.linalg.inv(covariance))
    nearest = NearestNeighbors(n_neighbors=5, algorithm="brute").fit(data @ root).kneighbors(pixels @ root)[0]
    np.testing.assert_allclose(scores["neighbours"], nearest[:, 4], rtol=1e-4, atol=1e-3)

    codes, centres = (natural.vae.encode(v)[0].double().numpy() for v in (x, fitted.x))
    std = natural.vae.encode(fitted.x)[1].double().numpy()
    h = np.sqrt(centres.var(0, ddof=1) + (std**2).mean(0)) * len(centres) ** (-1 / 20)
    apart = (((codes[:, None] - centres) / h) ** 2).sum(2)
    log_p = logsumexp(-apart / 2, axis=1) - np.log(len(centres)) - np.log(h * math.sqrt(2 * math.pi)).sum()
    np.testing.assert_allclose(scores["density"], -log_p, atol=1e-3, rtol=1e-4)

    def above(v: np.ndarray) -> np.ndarray:
        return np.stack([np.maximum(v, level / 8).mean(1) for level in range(8)], 1)

    usual = above(data)
    covariance = np.cov(usual.T, bias=True)
    covariance += 0.01 * np.trace(covariance) / 8 * np.eye(8)
    apart = above(pixels) - usual.mean(0)
    distance = np.sqrt(np.einsum("ni,ij,nj->n", apart, np.linalg.inv(covariance), apart))
    np.testing.assert_allclose(scores["intensities"], distance, rtol=1e-3, atol=1e-3)

    rows, usual = (shares(v).numpy() for v in (x, fitted.x))
    covariance = np.cov(usual.T, bias=True)
    covariance += 1e-3 * np.trace(covariance) / 32 * np.eye(32)
    root = np.linalg.cholesky(np.linalg.inv(covariance))
    nearest = NearestNeighbors(n_neighbors=5, algorithm="brute").fit(usual @ root).kneighbors(rows @ root)[0]
    np.testing.assert_allclose(scores["texture"], nearest[:, 4], rtol=1e-3, atol=1e-2)


def shares(x: Tensor) -> Tensor:
    """The texture of images in (0, 1), by convolutions in double precision."""
    smooth = torch.tensor([[1, 2, 1], [2, 4, 2], [1, 2, 1]]).double() / 16
    kernels = [torch.tensor([[-1.0, 1.0]]), torch.tensor([[-1.0], [1.0]]), torch.eye(9)[4].view(3, 3) - smooth]
    planes = x.double().flatten(0, 1)[:, None]
    maps = [conv2d(planes, kernel.double()[None, None]) for kernel in kernels]
    maps.append(conv2d(maps[2].square(), torch.ones(1, 1, 3, 3).double() / 9).sqrt())
    rows = [v.reshape(len(x), -1) for v in maps]
    return torch.stack([(v**4 / (v**4 + t**4)).mean(1) for v in rows for t in SIZES], 1)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 9, 14)])
def test_texture_is_its_definition_at_any_size_and_range(shape):
    assert len(SIZES) == 8
    assert SIZES[0] == 1 / 128
    assert SIZES[-1] == 0.5
    x = torch.rand(40, *shape, generator=spawn(0)).double()
    x[:20] = 0.5 + (x[:20] - 0.5) / 30
    torch.testing.assert_close(texture(x, width=1.0), shares(x))
    torch.testing.assert_close(texture(255 * x - 100, width=255.0), shares(x))
    torch.testing.assert_close(texture(x.flip(3), width=1.0), shares(x))
    assert float(texture(torch.ones_like(x), width=1.0).abs().max()) == 0.0
    assert texture(x[:0], width=1.0).shape == (0, 32)
    few = x[:3].requires_grad_()
    assert torch.autograd.gradcheck(lambda v: texture(v, width=1.0), few, fast_mode=True)


def test_texture_does_not_depend_on_chunks_nor_on_gradients(monkeypatch):
    x = torch.rand(100, 1, 8, 8, generator=spawn(0)).double().requires_grad_()
    whole = texture(x, width=1.0)
    (gradient,) = torch.autograd.grad(whole[:, ::3].sum(), x)
    monkeypatch.setattr("operant.measure._texture.VALUES", 64 * 17)
    with torch.no_grad():
        torch.testing.assert_close(texture(x, width=1.0), whole)
    torch.testing.assert_close(torch.autograd.grad(texture(x, width=1.0)[:, ::3].sum(), x)[0], gradient)


@pytest.mark.parametrize("bounds", [(0.0, 1.0), (-100.0, 155.0), (-math.inf, math.inf)])
def test_small_images_of_any_range_have_a_texture(bounds):
    digits = load_digits()
    scale, shift = (255, -100) if bounds[0] < 0 else (1, 0)
    field, new = (Samples(scale * s.x + shift) for s in (digits.train, digits.test))
    natural = fit_naturalness(field, generator=spawn(0), bounds=bounds, epochs=3, progress=False)
    assert tuple(natural.scores(new.x)) == tuple(natural.calibration) == SCORES
    assert float((natural(new.x) < 0.05).double().mean()) < 0.1
    places = torch.randperm(64, generator=spawn(0))
    mixed = natural.p_values(new.x.flatten(1)[:, places].view_as(new.x))
    assert float((mixed["texture"] < 0.01).double().mean()) > 0.8
    assert natural(new.x[:0]).shape == natural.surrogate(new.x[:0]).shape == (0,)


@pytest.mark.parametrize("shape", [(64,), (8, 8), (1, 7, 9), (1, 1, 64)])
def test_what_is_not_an_image_has_no_texture(shape):
    x = torch.rand(1000, *shape, generator=spawn(0, "rows"))
    natural = fit_naturalness(Samples(x[:600]), generator=spawn(0), epochs=1, progress=False)
    assert natural.texture is None
    assert tuple(natural.scores(x)) == tuple(natural.calibration) == SCORES[:4]
    p = natural.p_values(x[600:])
    torch.testing.assert_close(natural(x[600:]), min_bonferroni(torch.stack(list(p.values()), 1)))
    assert float(natural(torch.zeros(2, *shape)).max()) == 4 / (natural.calibration_size + 1)
    with pytest.raises(ValueError, match=r"4 tests combined .* calibrate on at least 400, or raise the level"):
        natural.is_natural(x, level=0.01)
    with pytest.raises(ValueError, match="at least 140 inputs are needed to learn from, got 139"):
        fit_naturalness(Samples(x[:139]), generator=spawn(0), progress=False)


def test_intensities_are_the_same_wherever_the_values_are(natural, digits28):
    x = digits28.train.x
    moved = x.flatten(1)[:, torch.randperm(784, generator=spawn(0, "places"))].view_as(x)
    a, b = (natural.scores(v)["intensities"] for v in (moved, x))
    torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)


def test_rows_that_all_hold_the_same_values_in_another_order(generator):
    """Such as ranks: then intensities are equal for all field inputs, and differ for other values."""
    rows = torch.stack([torch.randperm(8, generator=generator) for _ in range(700)]) / 8  # all sums are exact
    natural = fit_naturalness(Samples(rows[:500]), generator=generator, epochs=3, progress=False)
    assert float(natural.p_values(rows[500:])["intensities"].min()) == 1.0
    assert float((natural(rows[500:]) < 0.05).double().mean()) < 0.12
    assert float(natural.p_values(rows[500:] * 0.9)["intensities"].max()) == 1 / (natural.calibration_size + 1)
    assert natural.surrogate(rows[500:]).isfinite().all()


def test_p_values_are_those_of_the_calibration_part(natural, digits28):
    _, held = dealt(digits28.train)
    assert natural.calibration_size == len(held)
    known, x = natural.scores(held.x), digits28.train.x
    scores, p = natural.scores(x), natural.p_values(x)
    for name in SCORES:
        assert torch.equal(p[name], conformal_p_values(scores[name], known[name]))
    combined = (5 * torch.stack(list(p.values()))).amin(0).clamp(max=1)
    torch.testing.assert_close(natural(x), combined)
    assert float(natural(x).min()) >= 5 / (len(held) + 1)
    assert natural(x).dtype == torch.float64


def test_a_layer_is_read_as_the_model_reads_it(natural_by_layer, lenet, digits28):
    fitted, _ = dealt(digits28.train)
    data, rows = (lenet.features(s.x, layers=["relu_fc2"])["relu_fc2"].double() for s in (fitted, digits28.train))
    covariance = np.cov(data.T.numpy(), bias=True)
    covariance += 0.1 * np.trace(covariance) / 84 * np.eye(84)
    root = np.linalg.cholesky(np.linalg.inv(covariance))
    known = NearestNeighbors(n_neighbors=5, algorithm="brute").fit(data.numpy() @ root)
    expected = known.kneighbors(rows.numpy() @ root)[0][:, 4]
    np.testing.assert_allclose(natural_by_layer.scores(digits28.train.x)["neighbours"], expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("offset", [0.0, 3000.0])
def test_neighbours_in_a_trained_network_are_exact(lenet, digits28, offset):
    layers = ["relu_fc1", "fc3"]
    for values in lenet.features(digits28.train.x, layers=layers).values():
        values = values + offset
        rows, references = values, values[::3]
        for k in (1, 4):
            oracle = NearestNeighbors(n_neighbors=k, algorithm="brute", metric="minkowski", p=2)
            exact = oracle.fit(references.double().numpy()).kneighbors(rows.double().numpy())[0][:, k - 1]
            np.testing.assert_allclose(Neighbours(references)(rows, k=k), exact, rtol=1e-4, atol=5e-3)
            assert float(Neighbours(references)(references, k=1).max()) == 0.0


def test_neighbours_do_not_depend_on_chunks(monkeypatch):
    a, b = torch.rand(300, 6, generator=spawn(0)), torch.rand(200, 6, generator=spawn(1))
    whole = Neighbours(b)(a, k=3)
    monkeypatch.setattr("operant.measure.naturalness.PAIRS", 200 * 17)
    torch.testing.assert_close(Neighbours(b)(a, k=3), whole)
    a = a[:20].double().requires_grad_()
    assert torch.autograd.gradcheck(lambda v: Neighbours(b.double())(v, k=3), a)


# Rows and randomness


def test_rows_do_not_see_each_other(natural, natural_by_layer, digits28):
    x = digits28.test.x[:60]
    for naturalness in (natural, natural_by_layer):
        whole = naturalness(x)
        for n in (1, 2, 15, 17):
            torch.testing.assert_close(naturalness(x[:n]), whole[:n], atol=5 / naturalness.calibration_size, rtol=0)
        flipped = naturalness(x.flip(0)).flip(0)
        torch.testing.assert_close(flipped, whole, atol=5 / naturalness.calibration_size, rtol=0)


def test_the_same_generator_gives_the_same_naturalness(digits28):
    field = digits28.train[:400]
    before = torch.random.get_rng_state()
    a, b, other = (
        fit_naturalness(field, generator=spawn(seed, "n"), epochs=2, references=100, progress=False)
        for seed in (0, 0, 1)
    )
    x = digits28.test.x
    for name in SCORES:
        assert torch.equal(a.scores(x)[name], b.scores(x)[name])
    assert not torch.equal(a.scores(x)["neighbours"], other.scores(x)["neighbours"])  # other references were kept
    assert torch.equal(before, torch.random.get_rng_state())
    assert len(a.references) == 100


# The surrogate


def test_the_surrogate_ranks_fuzzed_cases_as_the_p_value_does(natural, natural_by_layer, fuzzed):
    x = torch.cat([cases for radius, cases in fuzzed.items() if radius < 0.1])
    assert len(x) > 1000
    for naturalness in (natural, natural_by_layer):
        rho = rank_correlation(naturalness, x)
        with torch.no_grad():
            oracle = spearmanr(naturalness(x).numpy(), naturalness.surrogate(x).numpy()).statistic
        assert rho == pytest.approx(oracle, abs=1e-9)
        assert rho > 0.9


def test_the_surrogate_is_near_the_logarithm_of_the_p_value_where_that_has_room(natural, digits28):
    """Off by at most log 5 for the sum over scores, and by log 2 for the lines between knots."""
    x = digits28.test.x
    p = torch.stack(list(natural.p_values(x).values())).amin(0)
    room = p > 20 / natural.calibration_size
    gap = (natural.surrogate(x) - p.log())[room]
    assert int(room.sum()) > 200
    assert bool((gap < math.log(2)).all() and (gap > -math.log(5) - math.log(2)).all())


def test_climbing_the_surrogate_makes_cases_more_natural(natural, natural_by_layer, lenet, digits28):
    """In small steps: a step of .005 in every pixel would itself be noise, which digits do not have."""
    start = PGD(radius=0.02)(lenet, lenet.correct(digits28.test)[:100], generator=spawn(0)).x
    for naturalness in (natural, natural_by_layer):
        x = start.clone()
        for _ in range(20):
            x.requires_grad_()
            value = naturalness.surrogate(x)
            (gradient,) = torch.autograd.grad(value.sum(), x)
            assert bool(gradient.isfinite().all())
            assert bool((gradient.flatten(1).abs().amax(1) > 0).all())
            x = (x.detach() + 0.001 * gradient.sign()).clamp(0, 1)
        assert float((naturalness.surrogate(x) > naturalness.surrogate(start)).double().mean()) > 0.95
        assert float(naturalness(x).mean()) > float(naturalness(start).mean())


def test_the_surrogates_gradient_is_its_slope(natural, natural_by_layer, digits28):
    for naturalness in (natural, natural_by_layer):
        x = (0.02 + 0.96 * digits28.test.x[:40]).requires_grad_()
        (gradient,) = torch.autograd.grad(naturalness.surrogate(x).sum(), x)
        direction = gradient / gradient.flatten(1).norm(dim=1)[:, None, None, None]
        ahead, behind = (naturalness.surrogate((x + h * direction).detach()) for h in (1e-4, -1e-4))
        slope = gradient.flatten(1).norm(dim=1).double()
        ratio = (ahead - behind) / 2e-4 / slope
        assert float((ratio - 1).abs().median()) < 0.05  # kinks (ReLU, neighbours, knots) may lie between


def test_nothing_is_out_of_order_where_p_values_are_tied(natural, digits28):
    with pytest.raises(
        ValueError, match="cases must differ in naturalness to be ranked, all 369 have the same p-value"
    ):
        rank_correlation(natural, 1 - digits28.test.x)
    assert len(natural.surrogate(1 - digits28.test.x).unique()) > 300


# Levels


def test_natural_is_a_p_value_of_at_least_the_level(natural, digits28):
    x = torch.cat([digits28.test.x, 1 - digits28.test.x])
    for level in (0.01, 0.05, 0.5):
        assert torch.equal(natural.is_natural(x, level=level), natural(x) >= level)
    assert torch.equal(natural.is_natural(x), natural(x) >= 0.05)
    with pytest.raises(ValueError, match=r"no p-value can fall below level 0.005: .* calibrate on at least 1000"):
        natural.is_natural(x, level=0.005)
    for level in (0.0, 1.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="level must be between 0 and 1"):
            natural.is_natural(x, level=level)


# Tables


def test_a_table_of_any_units_keeps_the_guarantee_too():
    def rows(n: int, seed: int) -> Tensor:
        z = torch.randn(n, 5, generator=spawn(seed, "table"))
        z[:, 4] = z[:, 0] * z[:, 1]
        return z * torch.tensor([1.0, 1e3, 1e-3, 1.0, 10.0]) + 50

    natural = fit_naturalness(
        Samples(rows(2000, 0)), generator=spawn(0), bounds=(-math.inf, math.inf), epochs=10, progress=False
    )
    new, strange = rows(2000, 1), rows(2000, 1)
    strange[:, 2] += 0.02
    assert float((natural(new) < 0.05).double().mean()) < 0.07
    assert float((natural(strange) < 0.05).double().mean()) > 0.9
    assert natural.surrogate(new).shape == (2000,)
    assert natural(new[:0]).shape == natural.surrogate(new[:0]).shape == (0,)


# On disk


def test_naturalness_can_be_loaded_from_disk_as_it_was(natural, natural_by_layer, lenet, digits28, tmp_path):
    x = torch.cat([digits28.test.x, photographs(30)])
    for naturalness, model in ((natural, None), (natural_by_layer, lenet)):
        path = tmp_path / str(naturalness.layer) / "naturalness.json"
        naturalness.save(path)
        again = load_naturalness(path, model=model)
        assert torch.equal(again(x), naturalness(x))
        assert torch.equal(again.surrogate(x), naturalness.surrogate(x))
        assert again.layer == naturalness.layer


def test_files_from_before_texture_are_rejected(natural, tmp_path):
    path = tmp_path / "naturalness.json"
    natural.save(path)
    page = json.loads(path.read_text())
    del page["value"]["texture"]
    path.write_text(json.dumps(page))
    with pytest.raises(ValueError, match=r"naturalness.json is not .* 'texture'; run the step that made it again"):
        load_naturalness(path)


def test_a_model_that_is_missing_wrong_or_too_much_is_rejected(natural, natural_by_layer, lenet, tmp_path):
    natural.save(tmp_path / "pixels.json")
    natural_by_layer.save(tmp_path / "layer.json")
    with pytest.raises(ValueError, match="layer.json uses layer relu_fc2 of a model; give the model"):
        load_naturalness(tmp_path / "layer.json")
    with pytest.raises(ValueError, match="pixels.json uses pixels only; leave out the model"):
        load_naturalness(tmp_path / "pixels.json", model=lenet)
    stranger = Classifier(initialise(LeNet5, generator=spawn(9)))
    with pytest.raises(ValueError, match="was learned with another model: this one's layer relu_fc2 has other outputs"):
        load_naturalness(tmp_path / "layer.json", model=stranger)
    with pytest.raises(ValueError, match="no layer named relu_fc2"):
        load_naturalness(
            tmp_path / "layer.json", model=Classifier(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 3)))
        )


# Rejected input


def test_field_data_that_cannot_teach_are_rejected(digits28):
    def learn(x: Tensor, **options) -> Naturalness:
        return fit_naturalness(Samples(x), generator=spawn(0), progress=False, **options)

    x = digits28.train.x
    with pytest.raises(ValueError, match="at least 160 inputs are needed to learn from, got 159"):
        learn(x[:159])
    with pytest.raises(
        ValueError, match=r"needs 60 different field inputs to learn from and 100 to calibrate on .* give about 313"
    ):
        learn(x[:180])
    with pytest.raises(ValueError, match="300 inputs, 3 of them different, were split"):
        learn(x[:3].repeat(100, 1, 1, 1))
    with pytest.raises(ValueError, match="the 200 inputs are all equal"):
        learn(x[:1].expand(200, 1, 28, 28))
    with pytest.raises(ValueError, match="NaN or infinity in 1 of 300 rows"):
        learn(x[:300].index_fill(0, torch.tensor([7]), math.nan))
    with pytest.raises(ValueError, match="must lie within bounds"):
        learn(255 * x[:300])
    for share in (0.0, 1.0):
        with pytest.raises(ValueError, match="calibration must be between 0 and 1"):
            learn(x, calibration=share)
    for options, most in (({"k": 0}, 60), ({"k": 61}, 60), ({"k": 5, "references": 4}, 4)):
        sentence = f"k must be from 1 to {most}, got {options['k']}; references limits it too"
        with pytest.raises(ValueError, match=sentence):
            learn(x, **options)
    with pytest.raises(ValueError, match="at most 4096 features, these inputs have 4356"):
        learn(interpolate(x[:400], size=(66, 66)), epochs=1)


def test_models_that_do_not_fit_are_rejected(digits28, lenet):
    def learn(**options) -> Naturalness:
        return fit_naturalness(digits28.train, generator=spawn(0), epochs=1, progress=False, **options)

    with pytest.raises(ValueError, match="model and layer belong together"):
        learn(model=lenet)
    with pytest.raises(ValueError, match="model and layer belong together"):
        learn(layer="relu_fc2")
    with pytest.raises(ValueError, match="no layer named fc9; this model has conv1"):
        learn(model=lenet, layer="fc9")
    with pytest.raises(ValueError, match=r"bounds must be the model's \(0.0, 1.0\)"):
        learn(model=lenet, layer="relu_fc2", bounds=(-1, 1))
    with pytest.raises(ValueError, match="at most 4096 features, layer relu_conv1 has 4704"):
        learn(model=lenet, layer="relu_conv1")
    broken = lenet.unwrap()
    torch.nn.init.constant_(broken.fc1.bias, math.nan)
    with pytest.raises(
        ValueError, match=r"layer fc1 gives NaN or infinity for \d+ of \d+ inputs; choose another layer"
    ):
        learn(model=lenet.rewrap(broken), layer="fc1")
    silent = lenet.unwrap()
    torch.nn.init.constant_(silent.fc1.bias, -1e6)
    with pytest.raises(ValueError, match="features must vary over the field data, all are equal"):
        learn(model=lenet.rewrap(silent), layer="relu_fc1")


def test_inputs_of_another_kind_are_rejected(natural, digits28):
    x = digits28.test.x[:5]
    for method in (natural, natural.p_values, natural.surrogate, natural.is_natural):
        with pytest.raises(ValueError, match=r"inputs must have shape \(N, 1, 28, 28\), got \(5, 1, 20, 28\)"):
            method(x[:, :, :20])
        with pytest.raises(ValueError, match="NaN or infinity in 1 of 5 rows"):
            method(x.index_fill(0, torch.tensor([2]), math.nan))
        with pytest.raises(ValueError, match="must lie within bounds"):
            method(x - 1)


def test_neighbours_that_cannot_be_found_are_rejected():
    a, b = torch.rand(3, 2), torch.rand(4, 2)
    for k in (0, 5):
        with pytest.raises(ValueError, match=f"k must be from 1 to 4, got {k}; there are no more references"):
            Neighbours(b)(a, k=k)
    with pytest.raises(ValueError, match="features must have shape .* like the references"):
        Neighbours(b[:, :1])(a, k=1)
    with pytest.raises(ValueError, match="must be finite"):
        Neighbours(b.index_fill(0, torch.tensor([0]), math.nan))(a, k=1)
    with pytest.raises(ValueError, match="k must be from 1 to 0, got 1; there are no more references"):
        Neighbours(b[:0])(a, k=1)


def test_a_naturalness_without_its_model_says_what_it_needs(natural_by_layer, digits28):
    with pytest.raises(ValueError, match="give model, as in load_naturalness"):
        replace(natural_by_layer, model=None)(digits28.test.x)


# Memory

CAPPED = """
import resource
import torch
from operant import Samples, spawn
from operant.measure.naturalness import Neighbours, fit_naturalness
from operant.measure.similarity import psnr, ssim

torch.set_num_threads(1)
x = torch.rand(10_000, 1, 28, 28, generator=spawn(0))
x0 = (x + 0.1).clamp(0, 1)
field = Samples(x, ids=torch.arange(10_000))
with open("/proc/self/statm") as file:
    size = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + 2**30, size + 2**30))
try:
    torch.empty(2**30 + 2**26, dtype=torch.uint8)
    raise SystemExit("the cap does not hold")
except RuntimeError:
    pass
assert ssim(x, x0, bounds=(0, 1)).shape == psnr(x, x0, bounds=(0, 1)).shape == (10_000,)
assert Neighbours(x[:2000].flatten(1))(x.flatten(1), k=50).shape == (10_000,)
natural = fit_naturalness(field, generator=spawn(0), epochs=1, references=2000, progress=False)
assert natural(x).shape == (10_000,)
x.requires_grad_()
(gradient,) = torch.autograd.grad(natural.surrogate(x).sum(), x)
assert gradient.shape == x.shape
print("fine")
"""


@pytest.mark.slow
def test_ten_thousand_images_need_less_than_a_gibibyte():
    run = subprocess.run([sys.executable, "-c", CAPPED], capture_output=True, text=True, timeout=600)
    assert run.stdout.strip() == "fine", run.stderr[-2000:]
