"""DLFuzz: the laws of fuzzers, one turn by hand, its four strategies by their definitions, and random mutation."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from operant import Samples, spawn
from operant.generate.baselines import DLFuzz, RandomMutation, dlfuzz
from operant.generate.baselines._network import Network
from operant.generate.baselines._seed_queues import SeedQueues
from operant.generate.baselines.dlfuzz import NEAR, STRATEGIES, draw
from operant.generate.engine import project
from operant.testing import LAWS, toy_classifier, toy_seeds

QUICK = DLFuzz(radius=0.3, neurons=3, step=0.05, rows_per_seed=40)
SHIPPED = {
    **{strategy: replace(QUICK, strategy=strategy) for strategy in STRATEGIES},
    "linf": replace(QUICK, radius=0.2, norm="linf"),
    "l2": replace(QUICK, radius=1.5, norm="l2"),
}


@pytest.fixture(scope="module")
def toy():
    model = toy_classifier()
    return model, toy_seeds(model)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize("name", SHIPPED)
def test_every_law_holds(name, law, toy):
    fuzzer = SHIPPED[name]
    if law.__name__ == "cases_stay_in_bounds_and_ball" and fuzzer.norm == "relative-l2":
        suite = fuzzer(*toy, generator=spawn(0, "law"))
        share = suite.distances("l2") / suite.x0.flatten(1).norm(dim=1)
        assert float(share.max()) <= fuzzer.radius + 1e-6
        assert float(suite.x.min()) >= 0
        assert float(suite.x.max()) <= 1
    else:
        law(fuzzer, *toy)


@pytest.mark.parametrize("name", SHIPPED)
def test_cases_are_failures_found_once(name, toy, generator):
    suite = SHIPPED[name](*toy, generator=generator)
    assert len(suite.seed.unique()) > 3
    assert bool((suite.prediction != suite.label).all() and (suite["margin"] > 0).all())
    assert len(suite.samples().ids.unique()) == len(suite)
    assert bool((suite["gain"] >= 0).all())
    assert bool((suite["row"] > 2).all() and (suite["row"] <= 40).all())


# One turn, by hand


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("k", [1, 2, 9])
def test_a_turn_climbs_towards_other_labels_and_the_chosen_neurons(strategy, k, toy, generator, monkeypatch):
    model, seeds = toy
    seen, chosen = [], []
    note, choose = SeedQueues.note, DLFuzz.choose
    monkeypatch.setattr(SeedQueues, "note", lambda self, x, r: seen.append(x) or note(self, x, r))
    monkeypatch.setattr(DLFuzz, "choose", lambda self, *a: chosen.append(choose(self, *a)) or chosen[-1])
    fuzzer = replace(QUICK, strategy=strategy, k=k, radius=0.04, weight=0.7, rows_per_seed=5)
    fuzzer(model, seeds, generator=generator)
    assert len(chosen) == 1
    assert bool((chosen[0].abs().sum(1) == 3).all())
    module, x, radius = model.unwrap(), seeds.x, 0.04 * seeds.x.flatten(1).norm(dim=1)
    for moved in seen:
        z = x.clone().requires_grad_()
        hidden = module[1](module[0](z))
        logits = module[3](module[2](hidden))
        value = 0.7 * (torch.cat([hidden.mean((2, 3)), logits], 1) * chosen[0]).sum()
        for row, label in zip(logits, seeds.labels.tolist(), strict=True):
            others = sorted((row[c] for c in range(4) if c != label), reverse=True)
            value = value + sum(others[:k]) - row[label]
        (g,) = torch.autograd.grad(value, z)
        step = 0.05 * g / g.square().mean((1, 2, 3), keepdim=True).sqrt()
        x = project(x + step, seeds.x, radius, "l2", (0.0, 1.0))
        assert torch.allclose(moved, x, atol=1e-9)
    assert len(seen) == 3


def test_only_what_covers_something_new_is_queued(toy, generator, monkeypatch):
    gains, taken = [], []
    cover, pop = SeedQueues._cover, SeedQueues.pop
    monkeypatch.setattr(SeedQueues, "_cover", lambda self, r: gains.append(cover(self, r)) or gains[-1])
    monkeypatch.setattr(SeedQueues, "pop", lambda self: taken.append(pop(self)) or taken[-1])
    QUICK(*toy, generator=generator)
    from_queue = torch.stack([~fresh for _, fresh in taken]).sum(0)
    rises = (torch.stack(gains[1:]) > 0).sum(0)
    assert bool(taken[0][1].all())
    assert int(from_queue.sum()) > 0
    assert bool((from_queue <= rises).all())


# Strategies


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32), n=st.integers(1, 12), k=st.integers(1, 12))
def test_places_without_weight_are_drawn_last(seed, n, k):
    g, k = spawn(seed), min(k, n)
    weights = torch.randint(0, 4, (5, n), generator=g).double()
    places = draw(weights, k, torch.rand(5, n, generator=g, dtype=torch.float64))
    for row, drawn in zip(weights, places.tolist(), strict=True):
        assert len(set(drawn)) == k
        positive = [bool(row[place] > 0) for place in drawn]
        assert positive == [True] * min(k, int((row > 0).sum())) + [False] * (k - min(k, int((row > 0).sum())))


def test_draws_are_in_proportion_to_weights(generator):
    weights = torch.tensor([6.0, 3.0, 0.0, 1.0], dtype=torch.float64).expand(20_000, 4)
    places = draw(weights, 2, torch.rand(20_000, 4, generator=generator, dtype=torch.float64))
    first = places[:, 0].bincount(minlength=4) / 20_000
    assert torch.allclose(first, torch.tensor([0.6, 0.3, 0.0, 0.1]), atol=0.02)
    after = places[places[:, 0] == 0, 1].bincount(minlength=4).double()
    assert torch.allclose(after / after.sum(), torch.tensor([0.0, 0.75, 0.0, 0.25]).double(), atol=0.03)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_strategy_prefers_what_it_says(strategy, generator):
    n = 6000
    covered = torch.tensor([0.0, 1.0, 2.0, 5.0, 5.0, 0.0], dtype=torch.float64).expand(n, 6)
    top = torch.tensor([False, True, False, False, True, False])
    scaled = torch.tensor([0.1, 0.31, 0.49, 0.5, 0.74, 0.9], dtype=torch.float64).expand(n, 6)
    u = torch.rand(n, 6, generator=generator, dtype=torch.float64)
    chosen = replace(QUICK, strategy=strategy, neurons=1).choose(covered, top, scaled, u)
    expected = {
        "often": [0, 1 / 13, 2 / 13, 5 / 13, 5 / 13, 0],
        "rare": [5 / 17, 4 / 17, 3 / 17, 0, 0, 5 / 17],
        "weight": [0, 1 / 2, 0, 0, 1 / 2, 0],
        "threshold": [0, 1 / 4, 1 / 4, 1 / 4, -1 / 4, 0],  # from the last one down, across .5
    }[strategy]
    assert torch.allclose(chosen.mean(0), torch.tensor(expected, dtype=torch.float64), atol=0.03)
    assert bool((chosen.abs().sum(1) == 1).all())
    assert NEAR == (-0.2, 0.25)


def test_heavy_neurons_are_those_with_the_largest_mean_weights(lenet, digits28, generator, monkeypatch):
    kept = []
    monkeypatch.setattr(DLFuzz, "choose", lambda self, c, top, s, u: kept.append(top) or torch.zeros_like(c))
    DLFuzz(radius=0.1, rows_per_seed=3)(lenet, lenet.correct(digits28.test[:4]), generator=generator)
    module = lenet.unwrap()
    blocks = [getattr(module, n).weight.detach().flatten(1).mean(1) for n in ("conv1", "conv2", "fc1", "fc2", "fc3")]
    pools = [torch.zeros(6), torch.zeros(16)]
    weight = torch.cat([blocks[0], pools[0], blocks[1], pools[1], *blocks[2:]])
    assert int(kept[0].sum()) == 26
    assert float(weight[kept[0]].min()) >= float(weight[~kept[0]].max())


def test_counts_are_of_this_seeds_inputs(toy, generator, monkeypatch):
    model, seeds = toy
    seen, counts = [], []
    note, choose = SeedQueues.note, DLFuzz.choose
    monkeypatch.setattr(SeedQueues, "note", lambda self, x, r: seen.append(r.scaled > 0.5) or note(self, x, r))
    monkeypatch.setattr(DLFuzz, "choose", lambda self, c, *a: counts.append(c.clone()) or choose(self, c, *a))
    QUICK(model, seeds, generator=generator)
    first = QUICK.criterion(model, seeds.x).neurons(model, seeds.x) > 0.5
    for turn, count in enumerate(counts):
        assert torch.equal(count, first + torch.stack([torch.zeros_like(first), *seen[: 3 * turn]]).double().sum(0))


# Budgets


@pytest.mark.parametrize("rows_per_seed", [1, 2, 3, 9, 22])
def test_the_budget_is_spent_and_no_more(rows_per_seed, toy, generator, monkeypatch):
    passed = []
    pass_ = Network._pass
    monkeypatch.setattr(Network, "_pass", lambda self, x: passed.append(len(x)) or pass_(self, x))
    found = replace(QUICK, rows_per_seed=rows_per_seed).explore(*toy, generator=generator)
    spent = int(found.rows[-1])
    assert sum(passed) == 12 * (1 + spent)  # once to find out how the layers are connected
    assert rows_per_seed - 1 <= spent <= rows_per_seed
    assert found.coverage.shape == (12, len(found.rows))
    assert bool((found.coverage.diff(dim=1) >= 0).all())


def test_a_budget_of_time_ends_the_search(toy, generator, monkeypatch):
    clock = iter(range(1000))
    monkeypatch.setattr(dlfuzz, "process_time", lambda: next(clock))
    found = replace(QUICK, seconds_per_seed=3 / 12).explore(*toy, generator=generator)
    assert found.rows.tolist() == [1, 5, 9, 13] + [13] * 7
    assert torch.equal(found.coverage[:, 3], found.coverage[:, -1])
    whole = QUICK.explore(*toy, generator=torch.Generator().manual_seed(0))
    assert torch.equal(found.coverage[:, :4], whole.coverage[:, :4])


# Is it a fair rival?


@pytest.fixture(scope="module")
def seeds(lenet, digits28):
    return lenet.correct(digits28.test[:20])[:10]


@pytest.mark.parametrize("strategy", ["rare", "weight", "threshold"])
def test_it_raises_its_coverage_faster_than_random_mutation(lenet, seeds, strategy):
    fuzzer = DLFuzz(radius=0.2, strategy=strategy, rows_per_seed=60)
    control = RandomMutation(search=fuzzer, step_size=2.0)
    ours, theirs = (f.explore(lenet, seeds, generator=spawn(0, "search")) for f in (fuzzer, control))
    assert int(theirs.rows[-1]) >= int(ours.rows[-1])  # no row less for the rival
    assert torch.equal(ours.coverage[:, 0], theirs.coverage[:, 0])
    gain = [float((found.coverage[:, -1] - found.coverage[:, 0]).mean()) for found in (ours, theirs)]
    assert gain[0] > 1.25 * gain[1]
    assert len(ours.suite) > len(theirs.suite)


# What is rejected


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"radius": 0.0}, "radius must be positive and finite, got 0.0"),
        ({"norm": "l1"}, "norm must be one of linf, l2, relative-l2, got 'l1'"),
        ({"strategy": "best"}, "strategy must be one of often, rare, weight, threshold, got 'best'"),
        ({"k": 0}, "k must be at least 1, got 0"),
        ({"neurons": 0}, "neurons must be at least 1"),
        ({"trials": 0}, "trials must be at least 1"),
        ({"rows_per_seed": 0}, "rows_per_seed must be at least 1"),
        ({"weight": -1.0}, "weight must be 0 or more and finite, got -1.0"),
        ({"step": float("nan")}, "step must be positive and finite, got nan"),
        ({"threshold": 1.0}, r"threshold must be from 0 to below 1, got 1.0"),
        ({"seconds_per_seed": -1.0}, "seconds_per_seed must be positive, got -1.0"),
    ],
)
def test_bad_options_are_rejected(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        replace(QUICK, **options)


def test_more_neurons_than_there_are_cannot_be_chosen(toy, generator):
    with pytest.raises(ValueError, match="neurons must be at most the 8 there are, got 9"):
        replace(QUICK, neurons=9)(*toy, generator=generator)
    assert len(replace(QUICK, neurons=8)(*toy, generator=generator))


def test_seeds_that_are_all_misclassified_are_rejected(toy, generator):
    model, seeds = toy
    with pytest.raises(ValueError, match="at least one seed must be classified correctly"):
        QUICK(model, Samples(seeds.x, (seeds.labels + 1) % 4), generator=generator)
