"""The small VAE: what it computes, written out; what it learns; and what it rejects."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from operant import Samples, load_digits, spawn
from operant.networks.training import validation_split
from operant.networks.vae import VAE, _flat_with_noise, _loss, fit_vae, in_chunks
from operant.results import load, save

UNBOUNDED = (-math.inf, math.inf)


def learned(field: Samples, *, seed: int = 0, **options) -> VAE:
    return fit_vae(field, generator=spawn(seed, "vae"), progress=False, **options)


def weights(vae: VAE) -> list[Tensor]:
    return [*vae.encoder, *vae.decoder, vae.centre, vae.scale]


def same(a: VAE, b: VAE) -> bool:
    return all(torch.equal(v, w) for v, w in zip(weights(a), weights(b), strict=True)) and a.history == b.history


def double(vae: VAE) -> VAE:
    encoder, decoder = (tuple(w.double() for w in layers) for layers in (vae.encoder, vae.decoder))
    return replace(vae, encoder=encoder, decoder=decoder, centre=vae.centre.double(), scale=vae.scale.double())


def table(n: int = 400, *, seed: int = 0) -> Samples:
    """Rows of three numbers of very different size, the last one nearly the sum of the others."""
    z = torch.randn(n, 3, generator=spawn(seed, "table"))
    z[:, 2] = z[:, 0] + z[:, 1] + 0.01 * z[:, 2]
    return Samples(z * torch.tensor([1.0, 256.0, 2**-6]) + torch.tensor([5.0, -1024.0, 0.0]))


@pytest.fixture(scope="module")
def digits8():
    return load_digits()


@pytest.fixture(scope="module")
def vae(digits28) -> VAE:
    return learned(digits28.train)


# What it computes


def test_codes_and_reconstructions_are_the_formulas_in_double_precision(vae, digits28):
    def layers(v: np.ndarray, parts: tuple[Tensor, ...]) -> np.ndarray:
        w1, b1, w2, b2 = (p.double().numpy() for p in parts)
        return np.maximum(v @ w1.T + b1, 0) @ w2.T + b2

    x = digits28.train.x
    assert len(x) > 1000
    flat = x.flatten(1).double().numpy()
    out = layers(flat, vae.encoder)
    rebuilt = 1 / (1 + np.exp(-layers(out[:, :16], vae.decoder)))
    mean, std = vae.encode(x)
    np.testing.assert_allclose(mean.numpy(), out[:, :16], atol=1e-4)
    np.testing.assert_allclose(std.numpy(), np.exp(out[:, 16:]), rtol=1e-4)
    np.testing.assert_allclose(vae.reconstruct(x).flatten(1).numpy(), rebuilt, atol=1e-5)
    np.testing.assert_allclose(vae.reconstruction_error(x).numpy(), ((flat - rebuilt) ** 2).mean(1), rtol=1e-3)
    assert vae.reconstruct(x).shape == x.shape
    assert vae.latent == mean.shape[1] == 16


def test_rows_do_not_see_each_other(vae, digits28):
    x = digits28.train.x[:1100]
    mean, std = vae.encode(x)
    for n in (1, 2, 15, 16, 17, 1025):
        part_mean, part_std = vae.encode(x[:n])
        torch.testing.assert_close(part_mean, mean[:n], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(part_std, std[:n], atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(vae.reconstruction_error(x[:n]), vae.reconstruction_error(x)[:n])


def test_chunks_are_joined_in_order():
    x = torch.arange(50.0)[:, None]
    assert torch.equal(in_chunks(lambda part: 2 * part[:, 0], x, rows=7), 2 * x[:, 0])
    assert in_chunks(lambda part: part, x[:0]).shape == (0, 1)


def test_gradients_reach_the_inputs(digits8):
    vae = double(learned(digits8.train, epochs=2, latent=4, width=16))
    x = digits8.train.x[:3].double().requires_grad_()
    assert torch.autograd.gradcheck(vae.encode, x)
    assert torch.autograd.gradcheck(vae.reconstruction_error, x)
    assert torch.autograd.gradcheck(vae.decode, torch.randn(3, 4, generator=spawn(0)).double().requires_grad_())


# What it learns


def test_sixteen_numbers_keep_most_of_an_unseen_digit(vae, digits28):
    x, mean = digits28.test.x, digits28.train.x.mean(0)
    error, without = vae.reconstruction_error(x).mean(), (x - mean).square().mean()
    assert float(error) < 0.15 * float(without)


def test_codes_are_distributed_like_the_prior(vae, digits28):
    mean, std = vae.encode(digits28.train.x)
    spread = (mean.var(0) + std.square().mean(0)).sqrt()
    assert bool((spread > 0.4).all() and (spread < 2.5).all())


def test_the_weights_are_those_of_the_epoch_with_the_lowest_validation_loss(digits8):
    field = digits8.train[:100]  # so few that it overfits
    vae = learned(field, seed=3, epochs=40, learning_rate=0.01, batch_size=8)
    assert vae.history.index(min(vae.history)) < 39
    generator = spawn(3, "vae")
    torch.randint(2**63 - 1, (), generator=generator)  # the draw that seeds the first weights
    held = validation_split(field, 0.1)[1]
    assert float(_loss(vae, *_flat_with_noise(vae, held.x, generator=generator))) == min(vae.history)
    assert len(vae.history) == 40


def test_the_same_generator_gives_the_same_weights_and_leaves_global_streams_alone(digits8):
    before = torch.random.get_rng_state()
    a, b, other = (learned(digits8.train, epochs=2, seed=seed) for seed in (0, 0, 1))
    assert same(a, b)
    assert not same(a, other)
    assert torch.equal(before, torch.random.get_rng_state())
    assert not any(w.requires_grad for w in weights(a))


def test_weights_do_not_depend_on_torchs_default_type(digits8):
    field = digits8.train[:200]
    expected = learned(field, epochs=1)
    torch.set_default_dtype(torch.float64)
    try:
        found = learned(field, epochs=1)
    finally:
        torch.set_default_dtype(torch.float32)
    assert same(found, expected)


def test_labels_are_not_used(digits8):
    plain = Samples(digits8.train.x)
    assert same(learned(plain, epochs=1), learned(digits8.train, epochs=1))


def test_epochs_shrink_with_the_data():
    small, large = (Samples(torch.rand(n, 2, generator=spawn(0))) for n in (100, 40_000))
    assert len(learned(small, width=2).history) == 30
    assert len(learned(large, width=2, batch_size=20_000).history) == 5


# Bounds and shapes


def test_the_unit_of_inputs_is_no_matter(digits8):
    """Sixteenths double and move without rounding, so the same codes must come out, bit for bit."""
    a = learned(digits8.train, epochs=2)
    b = learned(Samples(4 * digits8.train.x - 1, ids=digits8.train.ids), epochs=2, bounds=(-1, 3))
    x = digits8.test.x
    assert all(torch.equal(v, w) for v, w in zip(a.encode(x), b.encode(4 * x - 1), strict=True))
    assert torch.equal(a.reconstruction_error(x), b.reconstruction_error(4 * x - 1))
    rebuilt = b.reconstruct(4 * x - 1)
    torch.testing.assert_close(rebuilt, 4 * a.reconstruct(x) - 1)
    assert bool((rebuilt >= -1).all() and (rebuilt <= 3).all())


def test_columns_of_a_table_count_alike_whatever_their_unit():
    field = table()
    units = torch.tensor([8.0, 2**-10, 2.0**12])
    a = learned(field, bounds=UNBOUNDED)
    b = learned(Samples(field.x * units, ids=field.ids), bounds=UNBOUNDED)
    assert torch.equal(a.encode(field.x)[0], b.encode(field.x * units)[0])
    assert torch.equal(a.reconstruction_error(field.x), b.reconstruction_error(field.x * units))
    assert a.latent == 3  # never more than an input has values
    assert float(a.reconstruction_error(field.x).mean()) < 0.1
    torch.testing.assert_close(a.reconstruct(field.x) * units, b.reconstruct(field.x * units))


def test_a_one_sided_bound_is_kept_and_a_constant_column_borne():
    x = torch.cat([torch.rand(200, 2, generator=spawn(0)).square() * 9, torch.full((200, 1), 7.0)], 1)
    vae = learned(Samples(x), epochs=3, bounds=(0, math.inf))
    far = vae.decode(torch.randn(500, vae.latent, generator=spawn(1)) * 30)
    assert bool((far >= 0).all() and far.isfinite().all())
    assert float((vae.reconstruct(x)[:, 2] - 7).abs().max()) < 1


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 9, 30), (2, 8, 8), (7,)])
def test_any_shape(shape):
    x = torch.rand(60, *shape, generator=spawn(0))
    vae = learned(Samples(x), epochs=1, width=8, latent=5)
    mean, std = vae.encode(x)
    assert mean.shape == std.shape == (60, 5)
    assert bool((std > 0).all())
    assert vae.reconstruct(x).shape == x.shape
    assert vae.residual(x).shape == (60, math.prod(shape))
    assert vae.encode(x[:0])[0].shape == (0, 5)
    torch.testing.assert_close(vae.encode(x.double())[0], mean)


# On disk


def test_a_vae_is_stored_without_loss(vae, digits28, tmp_path):
    save(vae, tmp_path / "vae.json")
    again = load(tmp_path / "vae.json", VAE)
    assert same(vae, again)
    assert (again.shape, again.bounds) == (vae.shape, vae.bounds)
    assert torch.equal(again.reconstruction_error(digits28.test.x), vae.reconstruction_error(digits28.test.x))
    unbounded = learned(table(), epochs=1, bounds=UNBOUNDED)
    save(unbounded, tmp_path / "table.json")
    assert load(tmp_path / "table.json", VAE).bounds == UNBOUNDED


# Invalid arguments


def test_data_that_teach_nothing_are_rejected(digits8):
    x = digits8.train.x[:100]
    with pytest.raises(ValueError, match="at least 20 inputs are needed to learn from, got 19"):
        learned(Samples(x[:19]))
    with pytest.raises(ValueError, match="the 30 inputs are all equal"):
        learned(Samples(x[:1].expand(30, 1, 8, 8)))
    with pytest.raises(ValueError, match="NaN or infinity in 2 of 100 rows"):
        learned(Samples(x.index_fill(0, torch.tensor([3, 5]), math.nan)))
    with pytest.raises(ValueError, match=r"must lie within bounds \(0.0, 1.0\), got values from 0 to 16"):
        learned(Samples(16 * x))
    with pytest.raises(ValueError, match="low < high"):
        learned(Samples(x), bounds=(1, 0))
    for options in ({"latent": 0}, {"width": 0}, {"epochs": 0}, {"batch_size": 0}):
        with pytest.raises(ValueError, match=next(iter(options)) + " must be at least 1, got 0"):
            learned(Samples(x), **options)
    for rate in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="learning_rate must be positive"):
            learned(Samples(x), learning_rate=rate)


def test_training_that_diverges_raises():
    with pytest.raises(ValueError, match="the loss became .*; try a lower learning_rate"):
        learned(table(), learning_rate=1e30, bounds=UNBOUNDED)


def test_inputs_of_another_kind_are_rejected(vae):
    x = torch.rand(4, 1, 28, 28, generator=spawn(0))
    for method in (vae.encode, vae.reconstruct, vae.residual, vae.reconstruction_error):
        with pytest.raises(ValueError, match=r"inputs must have shape \(N, 1, 28, 28\), got \(4, 1, 8, 8\)"):
            method(x[:, :, :8, :8])
        with pytest.raises(ValueError, match="NaN or infinity in 1 of 4 rows"):
            method(x.index_fill(0, torch.tensor([1]), math.nan))
        with pytest.raises(ValueError, match=r"must lie within bounds \(0.0, 1.0\)"):
            method(2 * x)
    with pytest.raises(ValueError, match=r"codes must have shape \(N, 16\), got \(4, 3\)"):
        vae.decode(torch.zeros(4, 3))
