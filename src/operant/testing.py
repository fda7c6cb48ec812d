"""The laws that every fuzzer keeps, for anyone's plug-in.

>>> from operant.generate import PGD
>>> check_fuzzer(PGD(radius=0.1))
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from operant.data import Samples
from operant.model import Classifier
from operant.rng import spawn
from operant.suite import Suite
from operant.types import Fuzzer


def check_fuzzer(fuzzer: Fuzzer, *, model: Classifier | None = None, seeds: Samples | None = None) -> None:
    """Run every law on a fuzzer; the first one broken raises an AssertionError that says which and how.

    Args:
        fuzzer: options in fields, ``(model, seeds, *, generator) -> Suite``. Where it has ``radius`` and ``norm``, its
            cases must stay in that ball.
        model: a small float64 network on 8x8 images unless given. Give a float64 one: the laws compare closely.
        seeds: some that the model classifies correctly, at least eight; made for the small network unless given.
    """
    model = toy_classifier() if model is None else model
    seeds = toy_seeds(model) if seeds is None else seeds
    for law in LAWS:
        law(fuzzer, model, seeds)


def toy_classifier(*, classes: int = 4) -> Classifier:
    """A small smooth float64 network on 1x8x8 images, the same every time."""
    network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.GELU(), nn.Flatten(), nn.Linear(144, classes)).double()
    generator = spawn(0, "toy")
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.3, generator=generator)
    return Classifier(network)


def toy_seeds(model: Classifier, *, n: int = 12) -> Samples:
    """Inputs for the small network, labelled as it sees them."""
    x = torch.rand(n, 1, 8, 8, dtype=torch.float64, generator=spawn(0, "toy seeds"))
    return Samples(x, model.predict(x))


def _run(fuzzer: Fuzzer, model: Classifier, seeds: Samples) -> Suite:
    return fuzzer(model, seeds, generator=spawn(0, "law"))


def cases_belong_to_their_seeds(fuzzer: Fuzzer, model: Classifier, seeds: Samples) -> None:
    """Each row names a seed that was given and carries its label; rows come in seed order; counts add up."""
    suite = _run(fuzzer, model, seeds)
    place = {int(i): row for row, i in enumerate(seeds.ids)}
    unknown = [int(i) for i in suite.seed if int(i) not in place]
    assert not unknown, f"{len(unknown)} cases name a seed that was not given"
    rows = torch.tensor([place[int(i)] for i in suite.seed], dtype=torch.int64)
    assert bool((rows.diff() >= 0).all()), "cases must come in the order of their seeds"
    assert torch.equal(suite.label, seeds.labels[rows]), "a case must carry its seed's label"
    assert torch.equal(suite.x0, seeds.x[rows]), "x0 must be the seed itself"
    assert suite.attempted + suite.skipped == len(seeds), (
        f"attempted and skipped must add up to {len(seeds)} seeds, got {suite.attempted} and {suite.skipped}"
    )


def cases_stay_in_bounds_and_ball(fuzzer: Fuzzer, model: Classifier, seeds: Samples) -> None:
    """Every case lies within the model's bounds and, where the fuzzer has one, in its ball."""
    suite = _run(fuzzer, model, seeds)
    low, high = model.bounds
    slack = 1e-6 * max(1.0, *(abs(b) for b in model.bounds if math.isfinite(b)))  # of rounding, in input units
    assert bool((suite.x >= low - slack).all() and (suite.x <= high + slack).all()), f"a case leaves bounds {low, high}"
    radius, norm = getattr(fuzzer, "radius", None), getattr(fuzzer, "norm", None)
    if radius is not None and norm is not None and len(suite):
        furthest = float(suite.distances(norm).max())
        assert furthest <= radius + slack, f"a case lies {furthest} from its seed, beyond the radius {radius}"


def predictions_are_the_models(fuzzer: Fuzzer, model: Classifier, seeds: Samples) -> None:
    """`prediction` is what the model says of the finished case."""
    suite = _run(fuzzer, model, seeds)
    if len(suite):
        assert torch.equal(suite.prediction, model.predict(suite.x)), "a prediction is not what the model says now"


def same_generator_same_suite(fuzzer: Fuzzer, model: Classifier, seeds: Samples) -> None:
    """A run repeats itself bit for bit and leaves torch's global stream alone."""
    before = torch.random.get_rng_state()
    assert _run(fuzzer, model, seeds).digest() == _run(fuzzer, model, seeds).digest(), "two equal runs differ"
    assert torch.equal(before, torch.random.get_rng_state()), "the fuzzer draws from torch's global random stream"


def rows_do_not_see_each_other(fuzzer: Fuzzer, model: Classifier, seeds: Samples) -> None:
    """Replacing the later seeds changes nothing about the cases of the earlier ones."""
    half = len(seeds) // 2
    other = Samples.concat([seeds[:half], seeds[half:][torch.arange(len(seeds) - half).flip(0)]])
    keep = torch.isin(seeds.ids, seeds.ids[:half])
    first, second = (_cases_of(_run(fuzzer, model, s), seeds.ids[keep]) for s in (seeds, other))
    _assert_close(first, second, "a case depends on other seeds in the batch")


def batch_size_changes_nothing(fuzzer: Fuzzer, model: Classifier, seeds: Samples) -> None:
    """The model's compute batch is no part of the method."""
    small = model.rewrap(model.unwrap())
    small.batch_size = 5
    _assert_close(_run(fuzzer, model, seeds).x, _run(fuzzer, small, seeds).x, "cases depend on the batch size")


def save_and_open_is_the_identity(fuzzer: Fuzzer, model: Classifier, seeds: Samples) -> None:
    """What is written is what is read."""
    suite = _run(fuzzer, model, seeds)
    with tempfile.TemporaryDirectory() as folder:
        again = Suite.open(suite.save(Path(folder) / "suite"))
        assert again.digest() == suite.digest(), "the suite read back differs from the one written"


def bad_seeds_are_refused(fuzzer: Fuzzer, model: Classifier, seeds: Samples) -> None:
    """No labels, labels outside the classes, NaN, out of bounds, empty: a ValueError, never a number."""
    classes = model.classes(seeds.x)
    nan = seeds.x.clone()
    nan[1] = torch.nan
    bad = {
        "seeds without labels": replace(seeds, y=None),
        "labels outside the classes": replace(seeds, y=seeds.labels + classes),
        "NaN": Samples(nan, seeds.y),
        "inputs out of bounds": Samples(seeds.x + model.bounds[1], seeds.y),
        "empty seeds": seeds[:0],
    }
    for what, samples in bad.items():
        try:
            _run(fuzzer, model, samples)
        except ValueError:
            continue
        raise AssertionError(f"{what} must be refused with a ValueError")


LAWS: tuple[Callable[[Fuzzer, Classifier, Samples], None], ...] = (
    cases_belong_to_their_seeds,
    cases_stay_in_bounds_and_ball,
    predictions_are_the_models,
    same_generator_same_suite,
    rows_do_not_see_each_other,
    batch_size_changes_nothing,
    save_and_open_is_the_identity,
    bad_seeds_are_refused,
)


def _cases_of(suite: Suite, ids: Tensor) -> Tensor:
    chosen: Suite = suite[torch.isin(suite.seed, ids)]
    return chosen.x


def _assert_close(a: Tensor, b: Tensor, message: str) -> None:
    assert a.shape == b.shape, message
    assert torch.allclose(a, b, rtol=0, atol=1e-7), message
