"""The conditional GAN: its shapes and bounds, what it learns, that it repeats itself, and what it rejects."""

import pytest
import torch

from operant import Samples, load_digits, spawn
from operant.networks import GAN, ConditionalGenerator, fit_gan
from operant.results import load, save


def bars(n: int = 240, *, channels: int = 1) -> Samples:
    """Three classes: a bright bar at the top, in the middle, or at the bottom; its brightness and place vary."""
    y = torch.arange(n) % 3
    x = torch.zeros(n, channels, 8, 8)
    for i in range(n):
        left = int(torch.randint(4, (), generator=spawn(i)))
        x[i, :, 3 * y[i] : 3 * y[i] + 2, left : left + 4] = 0.6 + 0.4 * torch.rand((), generator=spawn(i, "light"))
    return Samples(x, y)


def learned(data: Samples, *, seed: int = 0, **options) -> GAN:
    options = {"epochs": 2, "width": 8, "latent": 4} | options
    return fit_gan(data, generator=spawn(seed, "gan"), progress=False, **options)


def made(gan: GAN, n: int = 90) -> tuple[torch.Tensor, torch.Tensor]:
    y = torch.arange(n) % gan.classes
    with torch.no_grad():
        return gan.module(torch.randn(n, gan.latent, generator=spawn(5)), y), y


@pytest.mark.parametrize(
    ("channels", "size", "bounds"), [(1, 28, (0.0, 1.0)), (3, 28, (-1.0, 1.0)), (2, 8, (0.0, 255.0))]
)
def test_images_have_the_shape_asked_for_and_stay_in_bounds(channels, size, bounds):
    module = ConditionalGenerator(channels=channels, size=size, classes=4, latent=5, width=4, bounds=bounds)
    with torch.no_grad():
        x = module(10 * torch.randn(7, 5, generator=spawn(0)), torch.arange(7) % 4)
    assert x.shape == (7, channels, size, size)
    assert bounds[0] <= float(x.min()) < float(x.max()) <= bounds[1]


@pytest.mark.slow
def test_it_learns_the_classes_it_is_asked_for():
    gan = learned(bars(), epochs=30, batch_size=32, width=16)
    x, y = made(gan)
    rows = torch.stack([x[:, 0, 3 * c : 3 * c + 2].mean((1, 2)) for c in range(3)], 1)
    assert float((rows.argmax(1) == y).double().mean()) > 0.9
    assert float(x[y == 0].std(0).mean()) > 1e-3  # not one picture for all latents


def test_rows_do_not_see_each_other():
    gan = learned(bars(channels=3))
    z, y = torch.randn(20, 4, generator=spawn(1)), torch.arange(20) % 3
    with torch.no_grad():
        together, alone = gan.module(z, y), torch.cat([gan.module(z[i : i + 1], y[i : i + 1]) for i in range(20)])
    assert torch.allclose(together, alone, atol=1e-5)


def test_the_same_generator_gives_the_same_weights_and_global_streams_are_left_alone():
    before = torch.random.get_rng_state()
    a, b, c = learned(bars()), learned(bars()), learned(bars(), seed=1)
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(torch.equal(a.weights[name], b.weights[name]) for name in a.weights)
    assert a.history == b.history
    assert not torch.equal(a.weights["fc1.weight"], c.weights["fc1.weight"])
    assert len(a.history) == 2


def test_it_is_stored_without_loss(tmp_path):
    gan = learned(bars(channels=3), bounds=(-1.0, 2.0))
    save(gan, tmp_path / "gan.json")
    again = load(tmp_path / "gan.json", GAN)
    assert torch.equal(made(gan)[0], made(again)[0])
    assert (again.shape, again.classes, again.bounds, again.history) == ((3, 8, 8), 3, (-1.0, 2.0), gan.history)
    assert list(tmp_path.glob("*.safetensors"))


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (Samples(torch.rand(60, 64), torch.arange(60) % 3), r"shape \(channels, size, size\)"),
        (Samples(torch.rand(60, 1, 8, 12), torch.arange(60) % 3), "images must have shape"),
        (Samples(torch.rand(60, 1, 10, 10), torch.arange(60) % 3), "a multiple of 4"),
        (Samples(torch.rand(60, 1, 8, 8)), "carry no labels"),
        (Samples(torch.rand(60, 1, 8, 8), torch.arange(60) % 4), "class 0 has 15, class 1 has 15"),
        (Samples(torch.rand(60, 1, 8, 8), 2 * (torch.arange(60) % 2)), "class 1 has 0"),
        (Samples(2 * torch.rand(60, 1, 8, 8), torch.arange(60) % 3), "must lie within bounds"),
        (Samples(torch.ones(60, 1, 8, 8), torch.arange(60) % 3), "all equal"),
    ],
)
def test_data_that_it_cannot_learn_from_is_rejected(data, sentence):
    with pytest.raises(ValueError, match=sentence):
        learned(data)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"latent": 0}, "latent must be at least 1, got 0"),
        ({"learning_rate": 0.0}, "learning_rate must be positive"),
        ({"width": 1}, "width of at least 2"),
        ({"bounds": (0.0, float("inf"))}, "with low < high, both finite"),
    ],
)
def test_bad_options_are_rejected(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        learned(bars(60), **options)


def test_digits_are_enough_to_learn_from():
    assert learned(load_digits().train, epochs=1).classes == 10
