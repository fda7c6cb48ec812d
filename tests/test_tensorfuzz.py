"""TensorFuzz: the laws of fuzzers, its noise and corpus against what they should be, and coverage against random."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from operant import Classifier, Samples, spawn
from operant.generate.baselines import RandomMutation, TensorFuzz
from operant.generate.baselines._shared_queue import Queue, search_shared
from operant.generate.baselines.tensorfuzz import recently
from operant.rng import normal_like
from operant.testing import LAWS, toy_classifier, toy_seeds

SHIPPED = {
    "guided": TensorFuzz(radius=0.3, rows_per_seed=20, threshold=0.3),
    "few at once": TensorFuzz(radius=0.2, rows_per_seed=12, threshold=0.3, at_once=5),
    "random": RandomMutation(search=TensorFuzz(radius=0.3, rows_per_seed=20)),
}


def random_noise(**options):
    return RandomMutation(search=TensorFuzz(**options))


@pytest.fixture(scope="module")
def toy():
    model = toy_classifier()
    return model, toy_seeds(model)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize("name", SHIPPED)
def test_every_law_holds(name, law, toy):
    law(SHIPPED[name], *toy)


# Noise and corpus


@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**32),
    radius=st.floats(0.01, 0.9),
    std=st.floats(0.01, 2.0),
    bounds=st.sampled_from([(0.0, 1.0), (-1.0, 2.0)]),
    shape=st.sampled_from([(5,), (1, 4, 4), (3, 2, 5)]),
)
def test_mutants_of_mutants_stay_near_their_seeds(seed, radius, std, bounds, shape):
    low, high = bounds
    g = spawn(seed)
    model = Classifier(nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 3)).double(), bounds=bounds)
    x0 = low + (high - low) * torch.rand(7, *shape, generator=g, dtype=torch.float64)
    options = TensorFuzz(radius=radius, std=std)
    plan = options.plan(model, x0, g)
    numbers = torch.arange(7)
    queue = Queue({"x": x0, "root": numbers, "origin": numbers, "parent": torch.full_like(numbers, -1)})
    for _ in range(4):
        places = plan.select(queue, 6)
        noise = std * normal_like(queue.take(places)["x"], generator=torch.Generator().set_state(g.get_state()))
        mutants = plan.mutate(queue, places)
        root, x = mutants["root"], queue.take(places)["x"]
        expected = x0[root] + (x + noise - x0[root]).clamp(-radius, radius)
        assert torch.allclose(mutants["x"], expected.clamp(low, high))
        assert float((mutants["x"] - x0[root]).abs().max()) <= radius + 1e-12
        assert float(mutants["x"].min()) >= low
        assert float(mutants["x"].max()) <= high
        assert torch.equal(mutants["parent"], places)
        queue.append(mutants)


def test_recent_inputs_are_taken_as_often_as_they_should_be(generator):
    queue = Queue({"x": torch.zeros(100, 1)})
    places = recently(queue, 12000, 5, 5, generator)
    counts = places.bincount(minlength=100)
    assert bool(((counts[-5:] - 12000 * (1 / 6 + 1 / 600)).abs() < 250).all())
    assert abs(int(counts[:95].sum()) - 1900) < 250
    assert int((counts[:95] > 0).sum()) > 90
    wide = recently(queue, 12000, 5, 40, generator).bincount(minlength=100)
    assert abs(int(wide[60:].sum()) - 12000 * (5 / 6 + 0.4 / 6)) < 250
    assert bool((wide[60:] > 100).all())
    few = recently(Queue({"x": torch.zeros(2, 1)}), 50, 5, 50, generator)
    assert set(few.tolist()) == {0, 1}


@pytest.mark.parametrize("name", ["guided", "few at once"])
def test_the_corpus_holds_the_seeds_and_what_is_far_from_all_before(name, toy, generator):
    model, seeds = toy
    options = SHIPPED[name]
    search = search_shared(model, seeds, options, guided=True, generator=generator)
    x = search.queue.store["x"][: len(search.queue)]
    assert torch.equal(x[:12], seeds.x[seeds.ids.argsort()])
    kept = []
    for row, z in enumerate(model.batched_logits(x)):
        far = all(float((z - k).norm()) > options.threshold for k in kept)
        assert far or row < 12
        kept += [z] if far else []
    assert len(kept) == search.covered.count == search.coverage[-1]
    assert len(x) > 20
    assert torch.equal(model.predict(x), seeds.labels[search.queue.store["origin"][: len(x)]])
    assert search.spent[-1] == 12 * options.rows_per_seed


def test_without_guidance_every_mutant_that_does_not_fail_joins(toy, generator):
    search = search_shared(*toy, SHIPPED["random"].search, guided=False, generator=generator)
    assert len(search.queue) == search.spent[-1] - len(search.cases.rows()["x"])


def test_the_distance_of_a_case_is_that_to_the_nearest_kept(toy, generator):
    model, seeds = toy
    suite = TensorFuzz(radius=0.5, std=0.4, rows_per_seed=10, at_once=1000, threshold=0.0)(
        model, seeds, generator=generator
    )
    assert bool((suite["row"] == 120).all())  # all in one step, so that only the seeds were kept
    assert len(suite) > 5
    nearest = torch.cdist(model.batched_logits(suite.x), model.batched_logits(seeds.x)).amin(1)
    assert torch.allclose(suite["distance"].double(), nearest, atol=1e-5)


# What seeds and budgets do


def test_cases_are_failures_and_misclassified_seeds_are_skipped(toy, generator):
    model, seeds = toy
    y = seeds.labels.clone()
    y[8:] = (y[8:] + 1) % 4
    suite = SHIPPED["guided"](model, Samples(seeds.x, y), generator=generator)
    assert (suite.attempted, suite.skipped) == (8, 4)
    assert len(suite)
    assert bool((suite.prediction != suite.label).all() and (suite["margin"] > 0).all())
    assert set(suite.seed.tolist()) <= set(seeds.ids[:8].tolist())
    alone = SHIPPED["guided"](model, seeds[:8], generator=torch.Generator().manual_seed(0))
    assert torch.equal(suite.x, alone.x)


def test_the_order_of_seeds_changes_nothing(toy):
    model, seeds = toy
    order = torch.randperm(len(seeds), generator=spawn(0, "order"))
    a, b = (SHIPPED["guided"](model, s, generator=spawn(0)) for s in (seeds, seeds[order]))
    assert len(a)
    assert sorted(a.samples().ids.tolist()) == sorted(b.samples().ids.tolist())


def test_budgets_end_the_search(toy, generator):
    found = TensorFuzz(radius=0.2, rows_per_seed=7, at_once=5).explore(*toy, generator=generator)
    assert (float(found.rows[0]), float(found.rows[-1])) == (1, 7)
    assert found.coverage.shape == (1, len(found.rows))
    assert bool((found.coverage[0].diff() >= 0).all())
    none = TensorFuzz(radius=0.2, rows_per_seed=7, seconds_per_seed=1e-9).explore(*toy, generator=generator)
    assert none.rows.tolist() == [1]
    assert len(none.suite) == 0
    assert {"distance", "row"} <= set(none.suite.columns)


def test_inputs_need_not_be_images(generator):
    layer = nn.Linear(6, 3, bias=False)
    nn.init.normal_(layer.weight, generator=generator)
    model = Classifier(layer, bounds=(-0.5, 0.5))
    x = torch.rand(20, 6, generator=generator) - 0.5
    suite = TensorFuzz(radius=0.4, threshold=0.05)(model, Samples(x, model.predict(x)), generator=generator)
    assert len(suite)
    assert float(suite.distances("linf").max()) <= 0.4 + 1e-6


# Is it a fair rival?


def points(fuzzer, toy, *, radius, threshold):
    options = fuzzer(radius=radius, threshold=threshold, rows_per_seed=120)
    return float(options.explore(*toy, generator=spawn(0, "search")).coverage[0, -1])


def test_it_keeps_more_points_than_the_same_noise_without_guidance(toy):
    ours, theirs = (points(fuzzer, toy, radius=0.6, threshold=0.4) for fuzzer in (TensorFuzz, random_noise))
    assert ours > 1.15 * theirs


def test_a_threshold_out_of_reach_of_one_mutation_stops_it(toy):
    ours, theirs = (points(fuzzer, toy, radius=0.3, threshold=0.8) for fuzzer in (TensorFuzz, random_noise))
    assert ours < 0.85 * theirs


# What is rejected


@pytest.mark.parametrize("fuzzer", [TensorFuzz, random_noise])
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"radius": 0.0}, "radius must be positive and finite, got 0.0"),
        ({"rows_per_seed": 1}, "rows_per_seed must be at least 2, got 1; the seed and one mutant"),
        ({"seconds_per_seed": -1.0}, "seconds_per_seed must be positive and finite, got -1.0"),
        ({"at_once": 0}, "at_once must be at least 1, got 0"),
        ({"std": float("inf")}, "std must be positive and finite, got inf"),
        ({"threshold": -1.0}, "threshold must be 0 or more and finite, got -1.0"),
    ],
)
def test_bad_options_are_rejected(fuzzer, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        fuzzer(**{"radius": 0.1, **options})


def test_recent_must_be_some():
    with pytest.raises(ValueError, match="recent must be at least 1, got 0"):
        replace(SHIPPED["guided"], recent=0)


def test_seeds_that_are_all_misclassified_are_rejected(toy, generator):
    model, seeds = toy
    with pytest.raises(ValueError, match="at least one seed must be classified correctly .* got 12"):
        SHIPPED["guided"](model, Samples(seeds.x, (seeds.labels + 1) % 4), generator=generator)
