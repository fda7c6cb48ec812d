"""Zero- and first-order loss: closed forms, the maximum they claim to be, and plain autograd on a trained network."""

import math
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from operant.measure.loss import first_order_loss, loss_gradient, rise, zero_order_loss
from operant.model import Classifier
from operant.rng import normal_like, spawn, uniform_like

SHAPES = [(1, 5), (3, 5), (7, 2, 3, 4)]
EXACT = ["linf", "l2"]


def network(shape: tuple[int, ...], *, seed: int = 0, hidden: int | None = 9, batch_size: int = 256) -> Classifier:
    """A small network in float64 with random weights; linear without a hidden layer."""
    inputs, generator = math.prod(shape), spawn(seed, "weights")
    layers = [nn.Linear(inputs, 4)] if hidden is None else [nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, 4)]
    module = nn.Sequential(nn.Flatten(), *layers).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(normal_like(parameter, generator=generator))
    return Classifier(module, bounds=(-10.0, 10.0), batch_size=batch_size)


def draw(shape: tuple[int, ...], seed: int = 0) -> tuple[Tensor, Tensor]:
    """Seeds and labels."""
    x0 = uniform_like(torch.empty(shape, dtype=torch.float64), -1.0, 1.0, generator=spawn(seed, "x0"))
    return x0, torch.randint(4, shape[:1], generator=spawn(seed, "y"))


def point_of_ball(x0: Tensor, radius: float, norm: str, *, generator: torch.Generator) -> Tensor:
    """Uniform in the box, or anywhere in the Euclidean ball, its boundary included."""
    if norm == "linf":
        return x0 + uniform_like(x0, -radius, radius, generator=generator)
    direction = normal_like(x0, generator=generator).flatten(1)
    length = uniform_like(direction[:, :1], 0.0, 1.5, generator=generator).clamp_max(1.0)
    return x0 + (radius * length * direction / direction.norm(dim=1, keepdim=True)).view_as(x0)


def gradient_of(model: Classifier, x: Tensor, y: Tensor) -> Tensor:
    return loss_gradient(model, x, y)[1]


# Zero order


@pytest.mark.parametrize("shape", SHAPES)
def test_zero_order_loss_is_minus_the_log_of_the_labels_probability(shape: tuple[int, ...]) -> None:
    model = network(shape[1:])
    x, y = draw(shape)
    expected = -model.probs(x)[torch.arange(len(x)), y].log()
    torch.testing.assert_close(zero_order_loss(model, x, y), expected, rtol=1e-10, atol=1e-10)


# First order: closed forms


def test_first_order_loss_of_a_linear_model_is_known_by_hand() -> None:
    """Two classes, logits (w·x, 0), label 1: the gradient is σ(w·x) w."""
    w = torch.tensor([[2.0, -1.0], [0.0, 0.0]], dtype=torch.float64)
    linear = nn.Linear(2, 2, bias=False).double()
    with torch.no_grad():
        linear.weight.copy_(w)
    model = Classifier(linear, bounds=(-1.0, 1.0))
    x0, y = torch.zeros(2, 2, dtype=torch.float64), torch.ones(2, dtype=torch.int64)
    x = torch.tensor([[0.1, 0.05], [-0.1, -0.1]], dtype=torch.float64)
    slope = torch.sigmoid(torch.tensor([0.15, -0.1], dtype=torch.float64))
    done = torch.tensor([0.2 - 0.05, -0.2 + 0.1], dtype=torch.float64)  # <x - x0, w>
    known = {"linf": 0.1 * 3 - done, "l2": 0.2 * 5**0.5 - done, "l2-paper": torch.full((2,), 0.2 * 5**0.5).double()}
    for (norm, expected), radius in zip(known.items(), (0.1, 0.2, 0.2), strict=True):
        found = first_order_loss(model, x, y, x0=x0, radius=radius, norm=norm)
        torch.testing.assert_close(found, slope * expected, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("norm", EXACT)
def test_first_order_loss_vanishes_at_the_best_point_of_the_ball(shape: tuple[int, ...], norm: str) -> None:
    """A linear model's gradient keeps its direction, for two classes; so the best point is known beforehand."""
    linear = nn.Linear(math.prod(shape[1:]), 2).double()
    with torch.no_grad():
        linear.weight.copy_(normal_like(linear.weight, generator=spawn(3)))
    model = Classifier(nn.Sequential(nn.Flatten(), linear), bounds=(-10.0, 10.0))
    x0, y = draw(shape)
    y = y % 2
    g = gradient_of(model, x0, y)
    step = g.sign() if norm == "linf" else g / g.flatten(1).norm(dim=1).view(-1, *[1] * (g.ndim - 1))
    at_best = first_order_loss(model, x0 + 0.3 * step, y, x0=x0, radius=0.3, norm=norm)
    at_worst = first_order_loss(model, x0 - 0.3 * step, y, x0=x0, radius=0.3, norm=norm)
    torch.testing.assert_close(at_best, torch.zeros_like(at_best), rtol=0, atol=1e-12)
    assert (at_worst > 1e6 * at_best.abs()).all()
    assert (zero_order_loss(model, x0 + 0.3 * step, y) > zero_order_loss(model, x0, y)).all()


# First order: laws


@settings(max_examples=50)
@given(
    seed=st.integers(0, 2**31),
    radius=st.floats(1e-3, 2.0),
    norm=st.sampled_from(EXACT),
    shape=st.sampled_from(SHAPES),
)
def test_first_order_loss_is_never_negative_inside_the_ball(
    seed: int, radius: float, norm: str, shape: tuple[int, ...]
) -> None:
    model = network(shape[1:], seed=seed)
    x0, y = draw(shape, seed)
    x = point_of_ball(x0, radius, norm, generator=spawn(seed, "x"))
    assert (first_order_loss(model, x, y, x0=x0, radius=radius, norm=norm) >= -1e-12).all()


@pytest.mark.parametrize("norm", EXACT)
def test_first_order_loss_is_the_maximum_of_the_linearised_loss(norm: str) -> None:
    """No point of the ball gains more, and points close to the best one gain nearly as much."""
    model, radius = network((3,)), 0.5
    x0, y = draw((20, 3))
    x = point_of_ball(x0, radius, norm, generator=spawn(0, "x"))
    g = gradient_of(model, x, y)
    found = first_order_loss(model, x, y, x0=x0, radius=radius, norm=norm)
    many = x0.repeat(20_000, 1, 1)
    if norm == "linf":
        z = many + uniform_like(many, -2 * radius, 2 * radius, generator=spawn(0, "z")).clamp(-radius, radius)
    else:
        noise = normal_like(many, generator=spawn(0, "z"))
        z = many + radius * noise / noise.norm(dim=2, keepdim=True)
    brute = ((z - x) * g).sum(2).amax(0)
    assert (brute <= found + 1e-12).all()
    assert (found - brute <= 0.01 * radius * g.abs().sum(1)).all()


def test_the_papers_l2_is_the_exact_one_plus_what_was_gained() -> None:
    model = network((2, 3, 4))
    x0, y = draw((7, 2, 3, 4))
    x = point_of_ball(x0, 0.5, "l2", generator=spawn(0, "x"))
    exact, paper = (first_order_loss(model, x, y, x0=x0, radius=0.5, norm=norm) for norm in ("l2", "l2-paper"))
    gained = ((x - x0) * gradient_of(model, x, y)).flatten(1).sum(1)
    torch.testing.assert_close(exact + gained, paper)
    at_seed = [first_order_loss(model, x0, y, x0=x0, radius=0.5, norm=norm) for norm in ("l2", "l2-paper")]
    torch.testing.assert_close(*at_seed)
    assert (paper > 0).all()


@pytest.mark.parametrize("norm", ["linf", "l2", "l2-paper"])
def test_rows_do_not_see_each_other(norm: str) -> None:
    x0, y = draw((37, 5))
    x = point_of_ball(x0, 0.3, "l2", generator=spawn(0, "x"))
    whole = first_order_loss(network((5,)), x, y, x0=x0, radius=0.3, norm=norm)
    small = network((5,), batch_size=4)
    torch.testing.assert_close(first_order_loss(small, x, y, x0=x0, radius=0.3, norm=norm), whole)
    torch.testing.assert_close(zero_order_loss(small, x, y), zero_order_loss(network((5,)), x, y))
    order = torch.randperm(37, generator=spawn(1))
    moved = first_order_loss(small, x[order], y[order], x0=x0[order], radius=0.3, norm=norm)
    torch.testing.assert_close(moved, whole[order])


def test_gradient_loss_and_logits_come_from_one_pass() -> None:
    model = network((5,))
    x, y = draw((9, 5))
    loss, gradient, logits = loss_gradient(model, x, y)
    torch.testing.assert_close(loss, zero_order_loss(model, x, y))
    torch.testing.assert_close(logits, model.batched_logits(x))
    expected = first_order_loss(model, x, y, x0=x * 0.9, radius=0.2, norm="l2")
    torch.testing.assert_close(rise(gradient, x - x * 0.9, radius=0.2, norm="l2"), expected)
    assert not loss.requires_grad
    assert not gradient.requires_grad


# A trained network


@pytest.mark.slow
def test_losses_on_a_trained_network_agree_with_plain_autograd(lenet: Classifier, digits28) -> None:
    """In double precision on every row; in single precision but for rows on which a kink of the network flips."""
    x0, y, radius = digits28.train.x[:1024], digits28.train.labels[:1024], 0.3
    assert len(x0) > 1000
    x = (x0 + uniform_like(x0, -0.1, 0.1, generator=spawn(0, "noise"))).clamp(0, 1)
    module = lenet.unwrap().double()
    z = x.double().requires_grad_()
    losses = cross_entropy(module(z), y, reduction="none")
    (g,) = torch.autograd.grad(losses.sum(), z)
    g, moved = g.flatten(1), (x.double() - x0.double()).flatten(1)
    gained, l1, l2 = (moved * g).sum(1), g.abs().sum(1), g.square().sum(1).sqrt()
    known = {"linf": radius * l1 - gained, "l2": radius * l2 - gained, "l2-paper": radius * l2}
    double = lenet.rewrap(module)
    torch.testing.assert_close(zero_order_loss(double, x.double(), y), losses.detach(), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(zero_order_loss(lenet, x, y).double(), losses.detach(), rtol=1e-4, atol=1e-5)
    for norm, expected in known.items():
        exact = first_order_loss(double, x.double(), y, x0=x0.double(), radius=radius, norm=norm)
        torch.testing.assert_close(exact, expected, rtol=1e-9, atol=1e-12)
        found = first_order_loss(lenet, x, y, x0=x0, radius=radius, norm=norm)
        assert ((found - expected).abs() <= 1e-3 * expected.abs() + 1e-6).double().mean() > 0.99


def test_searching_lowers_the_first_order_loss_and_raises_the_zero_order(lenet: Classifier, digits28) -> None:
    """What the measure is for: after steps up the gradient, less is left to gain."""
    x0, y, radius = digits28.test.x[:200], digits28.test.labels[:200], 0.05
    x = x0
    for _ in range(20):
        step = torch.cat([gradient_of(lenet, z, c) for z, c in zip(x.split(64), y.split(64), strict=True)]).sign()
        x = torch.clamp(x + radius / 5 * step, x0 - radius, x0 + radius).clamp(0, 1)
    left, whole = (first_order_loss(lenet, x, y, x0=z, radius=radius) for z in (x0, x))
    share = left / whole  # of what a ball around the case would hold: 1 at the seed, 2 at the worst point
    assert float(share.median()) < 0.5
    assert (zero_order_loss(lenet, x, y) > zero_order_loss(lenet, x0, y)).float().mean() > 0.95


# Rejected input


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"x": torch.zeros(0, 5)}, "there are no inputs"),
        ({"x": torch.full((3, 5), torch.nan)}, "inputs contain NaN in 3 of 3 rows"),
        ({"x": torch.full((3, 5), 11.0)}, "inputs must lie within bounds"),
        ({"y": torch.zeros(2, dtype=torch.int64)}, r"labels must be integers of shape \(3,\)"),
        ({"y": torch.zeros(3)}, "labels must be integers"),
        ({"y": torch.tensor([0, 1, 4])}, "labels must be from 0 to 3, got 0 to 4"),
        ({"y": torch.tensor([0, -1, 2])}, "labels must be from 0 to 3, got -1 to 2"),
        ({"x0": torch.zeros(1, 5).double()}, r"x0 must hold one seed per case, of shape \(3, 5\), got \(1, 5\)"),
        ({"x0": torch.full((3, 5), torch.nan).double()}, "inputs contain NaN"),
        ({"radius": 0.0}, "radius must be positive and finite, got 0.0"),
        ({"radius": -1.0}, "radius must be positive"),
        ({"radius": math.nan}, "radius must be positive"),
        ({"radius": math.inf}, "radius must be positive and finite, got inf"),
        ({"norm": "l1"}, "norm must be one of linf, l2, l2-paper, got 'l1'"),
    ],
)
def test_bad_input_is_rejected(change: dict[str, object], sentence: str) -> None:
    x0, y = draw((3, 5))
    given = {"x": x0, "y": y, "x0": x0, "radius": 0.1, "norm": "linf"} | change
    x, y = given.pop("x"), given.pop("y")
    with pytest.raises(ValueError, match=sentence):
        first_order_loss(network((5,)), x, y, **given)
    if {"x", "y"} & set(change):
        with pytest.raises(ValueError, match=sentence):
            zero_order_loss(network((5,)), x, y)


def test_a_gradient_that_is_not_finite_is_rejected() -> None:
    class Root(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.stack([x.abs().sum(1).sqrt(), x.sum(1)], 1)

    x, y = torch.zeros(4, 3), torch.zeros(4, dtype=torch.int64)
    with pytest.raises(ValueError, match="the loss or its gradient is NaN or infinite for some inputs; run doctor()"):
        first_order_loss(Classifier(Root()), x, y, x0=x, radius=0.1)


# Memory

CAPPED = """
import os
os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
import resource, torch
torch.set_num_threads(1)
from operant import Classifier, spawn
from operant.measure.loss import first_order_loss, zero_order_loss
from operant.networks import LeNet5
model = Classifier(LeNet5())
x = torch.rand(10_000, 1, 28, 28, generator=spawn(0))
x0, y = (x + 0.05).clamp(0, 1), torch.arange(10_000) % 10
first_order_loss(model, x[:300], y[:300], x0=x0[:300], radius=0.1)  # what libraries set up once
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + 2**30, size + 2**30))
print(len(zero_order_loss(model, x, y)), len(first_order_loss(model, x, y, x0=x0, radius=0.1, norm="l2")))
"""


@pytest.mark.slow
def test_ten_thousand_rows_take_less_than_a_gibibyte() -> None:
    run = subprocess.run([sys.executable, "-c", CAPPED], capture_output=True, text=True, check=False)
    assert run.stdout.strip() == "10000 10000", run.stderr
