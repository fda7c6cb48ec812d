"""ADAPT: the laws of fuzzers, its parts against brute force, and its coverage against random mutation."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from operant import Classifier, Samples, spawn
from operant.generate.baselines import ADAPT, RandomMutation, _adapt_strategies
from operant.generate.baselines._adapt_strategies import BOUND, FEATURES, Strategies, breed, fixed_features, parents_of
from operant.generate.baselines._network import Network, NeuronReading
from operant.generate.baselines._seed_queues import SeedQueues, neuron_coverage
from operant.generate.engine import project
from operant.measure import KMNC, NBC, NC, TKNC, Coverage, find_neurons, fit_ranges
from operant.model import NoGradients
from operant.testing import LAWS, toy_classifier, toy_seeds

QUICK = ADAPT(radius=0.2, k=3, rows_per_seed=60, population=3, learning_rate=1.0)  # breeds three generations
TRAIN = Samples(torch.rand(30, 1, 8, 8, dtype=torch.float64, generator=spawn(0, "train")))
SHIPPED = {
    "linf": QUICK,
    "l2": replace(QUICK, radius=1.5, norm="l2"),
    "relative l2": replace(QUICK, radius=0.3, norm="relative-l2"),
    "kmnc": replace(QUICK, criterion=lambda model, x: KMNC(ranges=fit_ranges(model, TRAIN), k=20)),
    "random": RandomMutation(search=ADAPT(radius=0.2, rows_per_seed=60)),
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
        assert 0.9 * fuzzer.radius < float(share.max()) <= fuzzer.radius + 1e-6
        assert float(suite.x.min()) >= 0
        assert float(suite.x.max()) <= 1
    else:
        law(fuzzer, *toy)


@pytest.mark.parametrize("name", SHIPPED)
def test_cases_are_failures_found_once(name, toy, generator):
    fuzzer, (model, seeds) = SHIPPED[name], toy
    suite = fuzzer(model, seeds, generator=generator)
    assert len(suite.seed.unique()) > len(seeds) / 2
    assert bool((suite.prediction != suite.label).all() and (suite["margin"] > 0).all())
    assert len(suite.samples().ids.unique()) == len(suite)
    assert bool((suite["gain"] >= 0).all() and (suite["gain"] > 0).any())
    assert bool((suite["row"] >= 2).all() and (suite["row"] <= 60).all())
    for seed in suite.seed.unique():
        assert bool((suite["row"][suite.seed == seed].diff() > 0).all())  # at most one input of a seed in a pass


def test_misclassified_seeds_are_skipped_and_change_nothing(toy, generator):
    model, seeds = toy
    y = seeds.labels.clone()
    y[8:] = (y[8:] + 1) % 4
    suite = QUICK(model, Samples(seeds.x, y), generator=generator)
    assert (suite.attempted, suite.skipped) == (8, 4)
    whole = QUICK(model, seeds, generator=torch.Generator().manual_seed(0))
    assert torch.equal(suite.x, whole[torch.isin(whole.seed, seeds.ids[:8])].x)


# What is read of the network


@pytest.mark.parametrize("layers", [None, ["pool1", "relu_fc2"], ["softmax", "fc3"]])
def test_a_reading_is_what_neurons_read(lenet, digits28, layers):
    x = digits28.test.x[:20]
    plain, scaled = (find_neurons(lenet, x, layers=layers, scaled=s) for s in (False, True))
    network = Network(lenet, plain, x)
    for reading in (network.read(x), network.climb(x, lambda r: r.values[:, 0])[0]):
        assert torch.allclose(reading.values, plain(lenet, x), atol=1e-5)
        assert torch.allclose(reading.scaled, scaled(lenet, x), atol=1e-5)
        assert torch.allclose(reading.logits, lenet.batched_logits(x), atol=1e-4)
        assert not reading.values.requires_grad


def test_the_gradient_is_that_of_differences(toy, generator):
    model, seeds = toy
    network = Network(model, find_neurons(model, seeds.x), seeds.x)
    chosen = (torch.rand(12, 12, generator=generator) < 0.4).double()
    objective = ADAPT(radius=1.0, neuron_weight=0.7, class_weight=0.3)._objective(chosen, seeds.labels)
    _, gradient = network.climb(seeds.x, objective)
    way = torch.randn(seeds.x.shape, generator=generator, dtype=torch.float64)
    ahead, behind = (network.read(seeds.x + h * way) for h in (1e-5, -1e-5))
    slope = (objective(ahead) - objective(behind)) / 2e-5
    assert torch.allclose(slope, (gradient * way).flatten(1).sum(1), rtol=1e-6)
    a, p = network.read(seeds.x), model.probs(seeds.x)
    expected = 0.7 * (a.values * chosen).sum(1) - 0.3 * p[torch.arange(12), seeds.labels]
    assert torch.allclose(objective(a), expected)


def test_in_place_layers_are_read_before_they_are_changed(generator):
    first, last = nn.Linear(6, 5).double(), nn.Linear(5, 3).double()
    x = torch.rand(4, 6, dtype=torch.float64, generator=generator)
    model = Classifier(nn.Sequential(first, nn.ReLU(inplace=True), last))
    network = Network(model, find_neurons(model, x, layers=["0"]), x)
    reading, _ = network.climb(x, lambda r: r.values.sum(1))
    assert torch.allclose(reading.values, first(x))


# One turn, by hand


@pytest.mark.parametrize("norm", ["linf", "l2", "relative-l2"])
def test_a_turn_is_gradient_steps_towards_the_chosen_neurons(toy, norm, generator, monkeypatch):
    model, seeds = toy
    seen, chosen = [], []
    note, choose = SeedQueues.note, Strategies.choose
    monkeypatch.setattr(SeedQueues, "note", lambda self, x, r: seen.append(x) or note(self, x, r))
    monkeypatch.setattr(Strategies, "choose", lambda self, k: chosen.append(choose(self, k)) or chosen[-1])
    fuzzer = replace(QUICK, rows_per_seed=5, radius=0.04, norm=norm)  # the seed, the head of the queue, three steps
    fuzzer(model, seeds, generator=generator)
    assert len(chosen) == 1
    assert bool((chosen[0].sum(1) == 3).all())
    module, x = model.unwrap(), seeds.x
    radius = 0.04 * (x.flatten(1).norm(dim=1) if norm == "relative-l2" else torch.ones(12, dtype=torch.float64))
    for moved in seen:
        z = x.clone().requires_grad_()
        hidden = module[1](module[0](z))
        logits = module[3](module[2](hidden))
        values = torch.cat([hidden.mean((2, 3)), logits], 1)
        value = 0.5 * (values * chosen[0]).sum() - 0.5 * logits.softmax(1)[torch.arange(12), seeds.labels].sum()
        (gradient,) = torch.autograd.grad(value, z)
        x = project(x + 1.0 * gradient, seeds.x, radius, "linf" if norm == "linf" else "l2", (0.0, 1.0))
        assert torch.allclose(moved, x, atol=1e-12)
    assert len(seen) == 3


# The budget, and that every run ends


@settings(max_examples=15)
@given(rows=st.integers(1, 40), trials=st.integers(1, 5))
def test_the_budget_is_kept_and_used_up(rows, trials):
    model = toy_classifier()
    seeds, passed = toy_seeds(model)[:2], []
    whole = Network._pass
    quick = replace(QUICK, rows_per_seed=rows, trials=trials)
    for fuzzer, extra in ((quick, 1), (RandomMutation(search=quick), 0)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                "operant.generate.baselines.adapt.fixed_features", lambda *_: torch.zeros(3, 8, dtype=torch.int64)
            )
            patch.setattr(Network, "_pass", lambda self, x: passed.append(len(x)) or whole(self, x))
            found = fuzzer.explore(model, seeds, generator=spawn(rows))
        assert sum(passed) == 2 * int(found.rows[-1])
        assert rows - 1 <= int(found.rows[-1]) + extra <= rows + extra
        assert found.coverage.shape == (2, len(found.rows))
        passed.clear()


class Constant(nn.Module):
    """The same answer for every input, whether or not it looks at it."""

    def __init__(self, looks: bool):
        super().__init__()
        self.layer, self.looks = nn.Linear(6, 4), looks
        nn.init.zeros_(self.layer.weight)

    def forward(self, x):
        return self.layer(x.flatten(1) if self.looks else torch.ones(len(x), 6))


@pytest.mark.parametrize("looks", [True, False])
def test_a_constant_network_is_refused(looks, generator):
    model = Classifier(Constant(looks))
    x = torch.rand(5, 6, generator=generator)
    with pytest.raises(NoGradients, match="the module has none"):
        QUICK.explore(model, Samples(x, model.predict(x)), generator=generator)


def test_an_empty_image_stays_where_it_is(toy, generator):
    model, seeds = toy
    x = torch.cat([torch.zeros_like(seeds.x[:2]), seeds.x[2:4]])
    suite = SHIPPED["relative l2"](model, Samples(x, model.predict(x)), generator=generator)
    assert bool(suite.x.isfinite().all())
    assert bool(torch.isin(suite.seed, Samples(x).ids[2:]).all())


# Coverage and queues


@pytest.mark.parametrize("kind", ["nc", "kmnc", "nbc", "tknc"])
def test_coverage_grows_as_the_states_of_measure_say(kind, toy, generator):
    model, seeds = toy
    ranges = fit_ranges(model, seeds[:6])
    criterion = {
        "nc": NC(neurons=find_neurons(model, seeds.x, scaled=True), threshold=0.4),
        "kmnc": KMNC(ranges=ranges, k=7),
        "nbc": NBC(ranges=ranges),
        "tknc": TKNC(neurons=ranges.neurons, k=2),
    }[kind]
    network = Network(model, criterion.neurons, seeds.x)
    rows = torch.tensor([9, 6, 8])  # none of those at the ends of the ranges
    queues = SeedQueues(network, criterion, seeds, rows, [], replace(QUICK, rows_per_seed=7))
    states = [Coverage.of(criterion).update(criterion.neurons(model, seeds.x[row][None]))[1] for row in rows]
    gains = []
    for _ in queues.turns(1, extra=0):
        x = torch.rand(3, 1, 8, 8, dtype=torch.float64, generator=generator)
        before = [len(queue) for queue in queues.queues]
        queues.note(x, network.read(x))
        new, states = zip(
            *(s.update(criterion.neurons(model, v[None])) for s, v in zip(states, x, strict=True)), strict=True
        )
        gains.append(torch.cat(new))
        room = [queues.turns_left > b for b in before]
        assert [len(q) - b for q, b in zip(queues.queues, before, strict=True)] == [
            int(g > 0 and r) for g, r in zip(gains[-1], room, strict=True)
        ]
        assert queues.counts[-1].tolist() == [state.count for state in states]
    assert queues.spent == [1, 2, 3, 4, 5, 6, 7]
    assert 0 < int((torch.cat(gains) > 0).sum()) <= 18


def test_a_queue_gives_first_what_came_first(toy):
    model, seeds = toy
    criterion = neuron_coverage(model, seeds.x)
    queues = SeedQueues(Network(model, criterion.neurons, seeds.x), criterion, seeds, torch.arange(2), [], QUICK)
    queues.turns_left = 2
    logits = torch.zeros(2, 4, dtype=torch.float64)

    def note(value, covering):
        scaled = torch.zeros(2, 8, dtype=torch.float64)
        scaled[0, covering] = 1.0
        queues.covered[0, covering] = False
        queues.note(torch.full_like(seeds.x[:2], value), NeuronReading(logits=logits, values=scaled, scaled=scaled))

    for value in (0.1, 0.2, 0.3):  # there are two turns left, so the third would never be taken
        note(value, 5)
    values = []
    for _ in range(3):
        x, fresh = queues.pop()
        values.append(float(x[0].mean()) if not fresh[0] else None)
        assert bool(fresh[1])
        assert torch.equal(x[1], seeds.x[1])
    assert values == [pytest.approx(0.1), pytest.approx(0.2), None]


# Neurons and strategies


def test_fixed_features_of_lenet_by_hand(lenet, digits28):
    x = digits28.test.x[:4]
    neurons = neuron_coverage(lenet, x).neurons
    assert neurons.count == 258
    quarter, band, kind = fixed_features(Network(lenet, neurons, x), x)
    sizes = torch.tensor([6, 6, 16, 16, 120, 84, 10])
    assert torch.equal(quarter, torch.tensor([0, 0, 1, 1, 2, 2, 3]).repeat_interleave(sizes))
    assert torch.equal(kind, 10 + torch.tensor([2, 1, 2, 1, 3, 3, 3]).repeat_interleave(sizes))
    module = lenet.unwrap()
    zero = [torch.zeros(6), torch.zeros(16)]
    conv1, conv2, *dense = (
        getattr(module, n).weight.detach().flatten(1).mean(1) for n in ("conv1", "conv2", "fc1", "fc2", "fc3")
    )
    weight = torch.cat([conv1, zero[0], conv2, zero[1], *dense])
    assert band.bincount().tolist()[4:] == [26, 26, 26, 26, 25, 129]
    for better in range(4, 9):
        assert float(weight[band == better].min()) >= float(weight[band == better + 1].max())


def test_kinds_of_layers():
    class Sum(nn.Module):
        def forward(self, a, b):
            return a + b

    class Network_(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm, self.act = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Tanh()
            self.sum, self.up, self.flat, self.dense = (
                Sum(),
                nn.Upsample(scale_factor=2),
                nn.Flatten(),
                nn.Linear(576, 3),
            )

        def forward(self, x):
            z = self.act(self.norm(self.conv(x)))
            return self.dense(self.flat(self.up(self.sum(z, z))))

    model, x = Classifier(Network_()), torch.rand(3, 1, 8, 8)
    names = ["conv", "norm", "act", "sum", "up", "dense", "softmax"]
    _, _, kind = fixed_features(Network(model, find_neurons(model, x, layers=names), x), x)
    assert kind.tolist() == [12] * 4 + [10] * 4 + [10] * 4 + [15] * 4 + [16] * 4 + [13] * 3 + [16] * 3


def features_of(fixed, counts, failing):
    """F(n) as 29 zeros and ones, one neuron at a time."""
    rows = []
    ever = sorted((n for n in range(len(counts)) if counts[n] > 0), key=lambda n: (-counts[n], n))
    for n in range(len(counts)):
        f = [0.0] * FEATURES
        for group in fixed[:, n].tolist():
            f[group] = 1.0
        f[17] = float(failing[n])
        f[18 if counts[n] == 0 else 19 + 10 * ever.index(n) // len(ever)] = 1.0
        rows.append(f)
    return torch.tensor(rows, dtype=torch.float64)


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32), n=st.integers(1, 35), k=st.integers(1, 5), most=st.integers(0, 6))
def test_the_chosen_neurons_have_the_highest_scores(seed, n, k, most):
    g, k = spawn(seed), min(k, n)
    fixed = torch.stack([torch.randint(a, b, (n,), generator=g) for a, b in ((0, 4), (4, 10), (10, 17))])
    strategies = Strategies(fixed, [spawn(seed, i) for i in range(3)], population=2, history=4)
    for _ in range(most):
        strategies.see(torch.rand(3, n, generator=g) < 0.4, torch.rand(3, generator=g) < 0.3)
    strategies.next(torch.tensor([True, True, True]))
    chosen = strategies.choose(k)
    for row in range(3):
        f = features_of(fixed, strategies.counts[row].tolist(), strategies.failing[row].tolist())
        score = f @ strategies.pool[row, 0].double()
        inside, outside = score[chosen[row] == 1], score[chosen[row] == 0]
        assert len(inside) == k
        assert len(outside) == 0 or float(inside.min()) >= float(outside.max()) - 1e-5


def test_what_strategies_see_is_counted():
    strategies = Strategies(torch.zeros(3, 4, dtype=torch.int64), [spawn(0), spawn(1)], population=2, history=2)
    active = torch.tensor([[1, 0, 1, 0], [0, 1, 0, 0]]).bool()
    strategies.see(active, torch.tensor([False, True]))
    strategies.see(active.flip(1), torch.tensor([True, False]))
    assert strategies.counts.tolist() == [[1, 1, 1, 1], [0, 1, 1, 0]]
    assert strategies.failing.int().tolist() == [[0, 1, 0, 1], [0, 1, 0, 0]]
    assert strategies.reached.int().tolist() == [[1, 1, 1, 1], [0, 1, 1, 0]]


def test_strategies_take_turns_and_a_new_generation_starts_with_its_first():
    strategies = Strategies(torch.zeros(3, 5, dtype=torch.int64), [spawn(0), spawn(1)], population=2, history=3)
    first = strategies.pool.clone()
    assert float(first.abs().max()) <= BOUND
    assert float(first.std()) == pytest.approx(BOUND / 3**0.5, rel=0.2)
    for turn in range(3):
        strategies.next(torch.tensor([True, turn == 0]))  # the second seed still has a queue
        strategies.see(torch.eye(5)[[turn, 4]].bool(), torch.tensor([False, False]))
    assert strategies.begun.tolist() == [3, 1]
    assert torch.equal(strategies.past[0, :2], first[0])
    assert strategies.past_reached[0].int().tolist() == [[1, 0, 0, 0, 0], [0, 1, 0, 0, 0], [0, 0, 0, 0, 0]]
    assert not bool(strategies.past[1].any() | strategies.past_reached[1].any())
    assert strategies.reached.int().tolist() == [[0, 0, 1, 0, 0], [0, 0, 0, 0, 1]]
    assert bool((strategies.pool[0] != first[0]).any())
    assert torch.equal(strategies.pool[1], first[1])


@pytest.mark.parametrize("history", [1, 3, 5])
def test_only_the_last_strategies_are_remembered(history):
    strategies = Strategies(torch.zeros(3, 4, dtype=torch.int64), [spawn(0)], population=2, history=history)
    used = []
    for _ in range(8):
        strategies.next(torch.tensor([True]))
        used.append(strategies._current()[0].tolist())
    assert sorted(strategies.past[0].tolist()) == sorted(used[-1 - history : -1])


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32), rows=st.integers(1, 8), columns=st.integers(1, 9), n=st.integers(1, 9))
def test_parents_are_a_greedy_cover_and_then_the_best(seed, rows, columns, n):
    reached = torch.rand(rows, columns, generator=spawn(seed)) < 0.35
    sets = [set(row.nonzero().flatten().tolist()) for row in reached]
    left, expected = set().union(*sets), []
    while left and len(expected) < n:
        best = max(range(rows), key=lambda row: (len(sets[row] & left), -row))
        expected.append(best)
        left -= sets[best]
    others = sorted(set(range(rows)) - set(expected), key=lambda row: (-len(sets[row]), row))
    assert parents_of(reached, n) == (expected + others)[:n]


@pytest.mark.parametrize(("n", "remembered"), [(1, 1), (2, 3), (7, 20), (100, 40)])
def test_children_take_each_weight_from_one_of_two_parents(n, remembered, monkeypatch, generator):
    past = (torch.arange(remembered) / 10)[:, None].repeat(1, FEATURES)
    reached = torch.rand(remembered, 12, generator=generator) < 0.3
    chosen = parents_of(reached, max(1, n // 2))
    noisy = breed(past, reached, n, generator=generator)
    assert noisy.shape == (n, FEATURES)
    assert float(noisy.abs().max()) <= BOUND
    monkeypatch.setattr(_adapt_strategies, "NOISE", 0.0)
    children = breed(past, reached, n, generator=generator)
    for child in children:
        origins = {round(10 * float(v)) for v in child}
        assert origins <= set(chosen)
        assert len(origins) <= 2
    if len(chosen) > 3:
        assert any(len(child.unique()) == 2 for child in children)


def test_mutations_are_standard_normal(generator):
    noise = breed(torch.zeros(1, FEATURES), torch.ones(1, 3, dtype=torch.bool), 400, generator=generator)
    assert float(noise.mean()) == pytest.approx(0, abs=0.05)
    assert float(noise.std()) == pytest.approx(1, abs=0.05)


# Is it a fair rival?


PUBLISHED = {"radius": 0.5, "norm": "relative-l2", "rows_per_seed": 280}


@pytest.fixture(scope="module")
def seeds(lenet, digits28):
    return lenet.correct(digits28.test[:30])[:12]


@pytest.fixture(scope="module")
def ours(lenet, seeds):
    return ADAPT(**PUBLISHED).explore(lenet, seeds, generator=spawn(0, "search"))


def gained(exploration):
    """By how much the search raised each seed's coverage, on average."""
    return float((exploration.coverage[:, -1] - exploration.coverage[:, 0]).mean())


@pytest.mark.parametrize("step_size", [0.5, 2.0, 8.0])
def test_it_raises_its_coverage_faster_than_random_mutation(lenet, seeds, ours, step_size):
    control = RandomMutation(search=ADAPT(**PUBLISHED), step_size=step_size)
    theirs = control.explore(lenet, seeds, generator=spawn(0, "search"))
    assert int(theirs.rows[-1]) >= int(ours.rows[-1])  # no row less for the rival
    assert torch.equal(ours.coverage[:, 0], theirs.coverage[:, 0])
    assert bool((ours.coverage.diff(dim=1) >= 0).all())
    assert gained(ours) > 1.25 * gained(theirs)
    assert len(ours.suite) > len(theirs.suite)


@pytest.mark.slow
def test_strategies_beat_neurons_chosen_at_random(lenet, seeds, ours, monkeypatch):
    draws = spawn(0, "neurons")

    def at_random(self, k):
        score = torch.rand(self.counts.shape, generator=draws)
        return torch.zeros_like(score).scatter_(1, score.topk(k).indices, 1.0)

    monkeypatch.setattr(Strategies, "choose", at_random)
    theirs = ADAPT(**PUBLISHED).explore(lenet, seeds, generator=spawn(0, "search"))
    assert gained(ours) > 1.25 * gained(theirs)


# What is rejected


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"radius": 0.0}, "radius must be positive and finite, got 0.0"),
        ({"radius": -1.0}, "radius must be positive"),
        ({"radius": float("nan")}, "radius must be positive"),
        ({"norm": "l1"}, "norm must be one of linf, l2, relative-l2, got 'l1'"),
        ({"rows_per_seed": 0}, "rows_per_seed must be at least 1, got 0"),
        ({"k": 0}, "k must be at least 1, got 0"),
        ({"trials": 0}, "trials must be at least 1, got 0"),
        ({"population": 0}, "population must be at least 1"),
        ({"history": 0}, "history must be at least 1"),
        ({"learning_rate": 0.0}, "learning_rate must be positive and finite, got 0.0"),
    ],
)
def test_bad_options_are_rejected(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        ADAPT(**{"radius": 0.1, **options})


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"step_size": float("inf")}, "step_size must be positive and finite, got inf"),
        ({"step_size": 0.0}, "step_size must be positive and finite, got 0.0"),
        (
            {"search": "adapt"},
            "search must be ADAPT, DLFuzz, DeepHunter or TensorFuzz, got 'adapt'; DeepXplore has",
        ),
    ],
)
def test_bad_options_of_the_control_are_rejected(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        RandomMutation(**{"search": QUICK, **options})


def test_more_neurons_than_there_are_cannot_be_chosen(toy, generator):
    with pytest.raises(ValueError, match="k must be at most the 8 neurons there are, got 9"):
        replace(QUICK, k=9)(*toy, generator=generator)
    assert len(replace(QUICK, k=8)(*toy, generator=generator))


def test_seeds_that_are_all_misclassified_are_rejected(toy, generator):
    model, seeds = toy
    wrong = Samples(seeds.x, (seeds.labels + 1) % 4)
    with pytest.raises(
        ValueError, match="at least one seed must be classified correctly .* got 12 that the model gets"
    ):
        QUICK(model, wrong, generator=generator)


def test_neurons_of_another_model_are_rejected(toy, lenet, digits28, generator):
    foreign = neuron_coverage(lenet, digits28.test.x)
    with pytest.raises(ValueError, match="no layer named"):
        replace(QUICK, criterion=lambda model, x: foreign)(*toy, generator=generator)
