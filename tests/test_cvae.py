"""The conditional VAE: images of each class, the evidence of each class, and that it comes back from disk."""

import math
from dataclasses import replace

import pytest
import torch
from torch.distributions import MultivariateNormal, kl_divergence

from operant import Classifier, Samples, load_digits, spawn
from operant.generate import FeatureSource
from operant.networks import CVAE, LeNet5, fit, fit_cvae, initialise
from operant.networks.cvae import normal_kl
from operant.results import load, save


@pytest.fixture(scope="module")
def digits():
    return load_digits()


@pytest.fixture(scope="module")
def cvae(digits) -> CVAE:
    return learned(digits.train, epochs=40)


def learned(data: Samples, *, seed: int = 0, **options) -> CVAE:
    options = {"epochs": 2, "width": 16, "latent": 8} | options
    return fit_cvae(data, generator=spawn(seed, "cvae"), progress=False, **options)


def test_its_images_show_the_class_that_was_asked_for(cvae, digits):
    start = initialise(lambda: LeNet5(size=8), generator=spawn(0, "weights"))
    judge = fit(start, digits.train, epochs=8, learning_rate=4e-3, generator=spawn(0, "training"), progress=False)
    source = FeatureSource.of(cvae)
    rated = source.rated(digits.test, judge=Classifier(judge.module), layer="relu_fc2", generator=spawn(1))
    assert rated.quality.problems == ()
    assert rated.quality.consistency > 0.85


def test_its_evidence_separates_real_images_of_different_classes(cvae, digits):
    evidence = cvae.evidence(digits.test.x)
    assert evidence.shape == (len(digits.test), 10)
    assert float((evidence.argmax(1) == digits.test.labels).double().mean()) > 0.85
    noise = cvae.evidence(torch.rand(20, 1, 8, 8, generator=spawn(0)))
    assert float(noise.amax(1).mean()) < float(evidence.amax(1).mean())


def test_the_evidence_is_the_formula(cvae, digits):
    x, c = digits.test.x[:5], 3
    y = torch.full((5,), c)
    pair = cvae._pair
    mean, std = pair.code(x, y)
    prior = MultivariateNormal(pair.decoder.centre[c], scale_tril=pair.decoder.root[c])
    kl = torch.stack([kl_divergence(MultivariateNormal(m, torch.diag(s**2)), prior) for m, s in zip(mean, std)])  # noqa: B905
    error = (pair.decoder.decode(mean, y) - x).flatten(1).square().sum(1)
    by_hand = -error / (2 * cvae.noise) - kl
    assert torch.allclose(cvae.evidence(x)[:, c], by_hand, rtol=1e-3, atol=1e-2)


def test_the_divergence_is_that_of_normal_distributions():
    mean, std = torch.randn(6, 3, generator=spawn(0)).double(), torch.rand(6, 3, generator=spawn(1)).double() + 0.1
    root = torch.tensor([[1.0, 0, 0], [0.5, 2.0, 0], [-0.3, 0.2, 0.7]]).double()
    centre = torch.tensor([1.0, -1.0, 0.5]).double()
    own = MultivariateNormal(mean, torch.diag_embed(std**2))
    assert torch.allclose(
        normal_kl(mean, std, centre, root), kl_divergence(own, MultivariateNormal(centre, scale_tril=root))
    )
    plain = MultivariateNormal(torch.zeros(3).double(), torch.eye(3).double())
    assert torch.allclose(normal_kl(mean, std), kl_divergence(own, plain))


def test_codes_of_a_class_have_the_mean_and_spread_that_it_keeps(cvae, digits):
    """What the decoder is given for standard normal latents is distributed as the codes of real images are."""
    zeros = digits.train.x[digits.train.labels == 0]
    mean, std = cvae._pair.code(zeros, torch.zeros(len(zeros), dtype=torch.int64))
    decoder = cvae.module
    assert torch.allclose(decoder.centre[0], mean.mean(0), atol=1e-4)
    spread = torch.cov(mean.T) + torch.diag(std.square().mean(0))
    assert torch.allclose(decoder.root[0] @ decoder.root[0].T, spread, atol=1e-3)


def test_the_best_epoch_is_kept_and_noise_is_what_is_left(cvae, digits):
    assert len(cvae.history) == 40
    assert all(math.isfinite(loss) for loss in cvae.history)
    assert 0 < cvae.noise < float(digits.train.x.var())


def test_the_same_generator_gives_the_same_weights(digits):
    a, b = (learned(digits.train[:400]) for _ in range(2))
    assert all(torch.equal(a.weights[name], b.weights[name]) for name in a.weights)
    assert all(torch.equal(a.encoder[name], b.encoder[name]) for name in a.encoder)
    assert (a.noise, a.history) == (b.noise, b.history)


def test_it_is_stored_without_loss(cvae, digits, tmp_path):
    save(cvae, tmp_path / "cvae.json")
    again = load(tmp_path / "cvae.json", CVAE)
    assert torch.equal(again.evidence(digits.test.x[:30]), cvae.evidence(digits.test.x[:30]))
    z, y = torch.randn(8, 8, generator=spawn(0)), torch.arange(8)
    assert torch.equal(again.module(z, y), cvae.module(z, y))


def test_images_in_colour_and_of_other_bounds_will_do(digits):
    tinted = digits.train.x[:400].repeat(1, 3, 1, 1) * torch.tensor([1.0, 0.5, 0.2]).view(3, 1, 1)
    cvae = learned(Samples(2 * tinted - 1, digits.train.labels[:400]), bounds=(-1.0, 1.0))
    x = cvae.module(torch.randn(20, 8, generator=spawn(0)), torch.arange(20) % 10)
    assert x.shape == (20, 3, 8, 8)
    assert -1 <= float(x.min()) < float(x.max()) <= 1
    assert FeatureSource.of(cvae).bounds == (-1.0, 1.0)


def test_bad_data_and_options_are_rejected(digits):
    with pytest.raises(ValueError, match="images must have shape"):
        learned(Samples(torch.rand(60, 64), torch.arange(60) % 3))
    with pytest.raises(ValueError, match="at least 20 images of every class"):
        learned(digits.train[:100])
    with pytest.raises(ValueError, match="class a has [0-9]+, class b has"):
        learned(replace(digits.train[:100], classes=tuple("abcdefghij")))
    with pytest.raises(ValueError, match="learning_rate must be positive"):
        learned(digits.train, learning_rate=-1.0)
