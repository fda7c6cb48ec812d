"""AutoAttack as a fuzzer: the laws, its strength beside PGD, and what it must leave alone."""

import logging
import sys

import numpy as np
import pytest
import torch
from pyautoattack import AutoAttack
from torch import nn

from operant import Classifier, Samples, spawn
from operant.generate import PGD
from operant.generate.adapters import from_autoattack
from operant.testing import LAWS, toy_classifier, toy_seeds


@pytest.fixture(scope="module")
def seeds(digits28) -> Samples:
    return digits28.test[:12]


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize("options", [{"radius": 0.1}, {"radius": 1.5, "norm": "l2"}], ids=["linf", "l2"])
def test_it_keeps_every_law(options, law):
    law(from_autoattack(**options), toy_classifier(), toy_seeds(toy_classifier()))


@pytest.mark.parametrize(("norm", "radius"), [("linf", 0.15), ("l2", 3.0)])
def test_it_breaks_what_pgd_breaks(lenet, seeds, norm, radius):
    """Robust accuracy at most that of PGD with ten steps; its own judgement is ours."""
    autoattack = from_autoattack(radius=radius, norm=norm)(lenet, seeds, generator=spawn(0))
    pgd = PGD(radius=radius, norm=norm, steps=10)(lenet, seeds, generator=spawn(0))
    assert len(autoattack) == len(seeds)
    assert len(autoattack.failures()) >= len(pgd.failures()) > 0
    assert torch.equal(lenet.predict(autoattack.x), autoattack.prediction)
    assert set(autoattack.method.tolist()) == {f"autoattack-standard-{norm}"}
    assert float(autoattack.distances(norm).max()) <= radius + 1e-6


@pytest.mark.slow
def test_cases_are_those_of_autoattack_itself(lenet, seeds):
    class Bare(nn.Module):
        def forward(self, x):
            return lenet.logits(x)

    suite = from_autoattack(radius=0.15)(lenet, seeds, generator=spawn(0))
    seed = int(torch.randint(2**63 - 1, (), generator=spawn(0))) % 2**31
    with torch.random.fork_rng():
        theirs = AutoAttack(Bare(), eps=0.15, seed=seed)
        cases, _ = theirs.run_standard_evaluation(seeds.x, seeds.labels, batch_size=250)
    assert torch.allclose(suite.x, cases, rtol=0, atol=1e-6)


def linear(bounds: tuple[float, float] = (0.0, 1.0), *, classes: int = 4) -> Classifier:
    """The same function of where in the bounds an input lies, whatever the bounds are."""
    network = nn.Sequential(nn.Flatten(), nn.Linear(16, classes)).double()
    for parameter in network.parameters():
        nn.init.normal_(parameter, generator=spawn(0, "linear"))
    return Classifier(network, bounds=bounds, mean=bounds[0], std=bounds[1] - bounds[0])


def images(model: Classifier, n: int = 8) -> Samples:
    low, high = model.bounds
    x = low + (high - low) * torch.rand(n, 1, 4, 4, dtype=torch.float64, generator=spawn(1))
    return Samples(x, model.predict(x))


def test_radius_and_bounds_are_in_input_units():
    """A model on [-3, 5] is attacked as its twin on [0, 1] is, eight times as far."""
    narrow, wide = linear(), linear((-3.0, 5.0))
    a = from_autoattack(radius=0.2)(narrow, images(narrow), generator=spawn(2))
    b = from_autoattack(radius=1.6)(wide, images(wide), generator=spawn(2))
    assert len(a.failures()) == len(b.failures()) > 0
    assert float((8 * a.x - 3 - b.x).abs().mean()) < 0.1  # rounding may turn a sign here and there
    assert 0.2 < float(b.distances("linf").max()) <= 1.6 + 1e-6


@pytest.mark.slow
def test_rand_breaks_some_and_a_seed_that_withstands_is_its_own_case():
    model = linear()
    seeds = images(model)[:2]
    near = from_autoattack(radius=1e-5, version="rand")(model, seeds, generator=spawn(0))
    assert len(near.failures()) == 0
    assert torch.equal(near.x, seeds.x)
    far = from_autoattack(radius=3.0, norm="l2", version="rand")(model, seeds, generator=spawn(0))
    assert len(far.failures()) == 2
    assert set(far.method.tolist()) == {"autoattack-rand-l2"}


def test_it_is_quiet_and_leaves_streams_log_and_trace_alone(capfd, caplog):
    model = linear()
    log, trace = logging.getLogger("auto-attack"), sys.gettrace()
    numpy_before, torch_before = np.random.get_state()[1].copy(), torch.random.get_rng_state()  # noqa: NPY002

    def mine(frame, event, argument):
        return None

    caplog.set_level(logging.DEBUG)
    try:
        sys.settrace(mine)
        from_autoattack(radius=0.2)(model, images(model), generator=spawn(0))
        assert sys.gettrace() is mine
    finally:
        sys.settrace(trace)
    assert (capfd.readouterr(), caplog.records, log.disabled) == (("", ""), [], False)
    assert torch.equal(torch_before, torch.random.get_rng_state())
    assert (numpy_before == np.random.get_state()[1]).all()  # noqa: NPY002


def test_bad_requests_are_rejected():
    model, flat = linear(), Classifier(nn.Linear(16, 4))
    unbounded = Classifier(model.unwrap(), bounds=(-torch.inf, torch.inf))
    two = linear(classes=2)
    for options, sentence in [
        ({"radius": 0}, "radius must be positive"),
        ({"radius": 0.1, "norm": "l1"}, "norm must be one of linf, l2"),
        ({"radius": 0.1, "version": "plus"}, "version must be one of standard, rand, got 'plus'"),
    ]:
        with pytest.raises(ValueError) as error:
            from_autoattack(**options)
        assert sentence in str(error.value)
    for subject, seeds, sentence in [
        (two, images(two), 'AutoAttack in version "standard" needs at least 4 classes, got 2'),
        (unbounded, images(model), "AutoAttack needs finite bounds, got (-inf, inf)"),
        (flat, Samples(torch.rand(3, 16), torch.zeros(3).long()), "AutoAttack needs images (N, C, H, W), got shape"),
    ]:
        with pytest.raises(ValueError) as error:
            from_autoattack(radius=0.1)(subject, seeds, generator=spawn(0))
        assert sentence in str(error.value)
