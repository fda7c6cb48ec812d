"""DeepHunter: the laws of fuzzers, its published constraint on every mutant, its queue, and coverage against random."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from operant import Classifier, Samples, spawn
from operant.conditions import operations
from operant.generate.baselines import DeepHunter, RandomMutation
from operant.generate.baselines._image_mutations import AFFINE, NAMES, PIXEL, RANGES, ImageMutation, transform
from operant.generate.baselines._shared_queue import Queue, search_shared
from operant.generate.baselines.deephunter import FadingRoundRobin, neuron_coverage
from operant.measure import KMNC, NBC, SNAC, TKNC, Coverage, find_neurons, fit_ranges
from operant.testing import LAWS, toy_classifier, toy_seeds

TRAIN = Samples(torch.rand(30, 1, 8, 8, dtype=torch.float64, generator=spawn(0, "train")))


def kmnc(model, x):
    return KMNC(ranges=fit_ranges(model, TRAIN), k=20)


SHIPPED = {
    "nc": DeepHunter(rows_per_seed=12),
    "kmnc": DeepHunter(rows_per_seed=12, criterion=kmnc),
    "tknc": DeepHunter(rows_per_seed=12, criterion=lambda model, x: TKNC(neurons=find_neurons(model, x), k=1)),
    "few at once": DeepHunter(rows_per_seed=8, criterion=kmnc, at_once=5),
    "random": RandomMutation(search=DeepHunter(rows_per_seed=12, criterion=kmnc)),
}


def random_transformations(**options):
    return RandomMutation(search=DeepHunter(**options))


@pytest.fixture(scope="module")
def toy():
    model = toy_classifier()
    return model, toy_seeds(model)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize("name", SHIPPED)
def test_every_law_holds(name, law, toy):
    law(SHIPPED[name], *toy)


# The published constraint


def distance(a, b):
    """How many values differ, and by how much at most, counted one by one."""
    pairs = list(zip(a.flatten().tolist(), b.flatten().tolist(), strict=True))
    return sum(p != q for p, q in pairs), max(abs(p - q) for p, q in pairs)


def along(path):
    """The two distances of (2) between the first and the last of a path of names and images."""
    images = [image for _, image in path]
    turns = [j for j, (name, _) in enumerate(path) if name in AFFINE]
    if not turns:
        return distance(images[0], images[-1])
    before, after = distance(images[0], images[turns[0] - 1]), distance(images[turns[0]], images[-1])
    return before[0] + after[0], max(before[1], after[1])


def start(x):
    n, none = len(x), torch.zeros(len(x), dtype=torch.int64)
    far, no = torch.zeros(n, dtype=x.dtype), torch.zeros(n, dtype=torch.bool)
    return {"x": x, "reference": x, "l0": none, "linf": far, "l0_before": none, "linf_before": far, "affine": no}


@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**32),
    alpha=st.sampled_from([0.0, 0.02, 0.3]),
    beta=st.sampled_from([0.01, 0.2, 1.0]),
    bounds=st.sampled_from([(0.0, 1.0), (-1.0, 1.0), (0.0, 255.0)]),
    shape=st.sampled_from([(1, 8, 8), (3, 5, 7)]),
    dark=st.booleans(),
)
def test_every_mutant_of_mutants_satisfies_the_constraint(seed, alpha, beta, bounds, shape, dark):
    low, high = bounds
    g = spawn(seed)
    x0 = torch.rand(6, *shape, generator=g) * (torch.rand(6, *shape, generator=g) < (0.3 if dark else 1.0))
    now = start((low + (high - low) * x0).clamp(low, high))
    mutation = ImageMutation(alpha=alpha, beta=beta, bounds=bounds, tries=7)
    paths = [[("seed", x)] for x in now["x"]]
    for _ in range(5):
        made = mutation(now, generator=g)
        assert bool((made["row"].diff() > 0).all())
        for i, (row, which) in enumerate(zip(made["row"].tolist(), made["which"].tolist(), strict=True)):
            paths[row] = [*paths[row], (NAMES[which], made["x"][i])]
        now = {name: values.clone() for name, values in now.items()}
        for name, values in now.items():
            values[made["row"]] = made[name]
    for row, path in enumerate(paths):
        assert [name in AFFINE for name, _ in path].count(True) <= 1
        for n in range(1, len(path) + 1):
            l0, linf = along(path[:n])
            assert n == 1 or l0 < alpha * x0[0].numel() or linf < beta * (high - low)
            assert low <= float(path[n - 1][1].min()) <= float(path[n - 1][1].max()) <= high
        assert int(now["l0"][row]) == l0
        assert float(now["linf"][row]) == pytest.approx(linf)


@settings(max_examples=6)
@given(seed=st.integers(0, 2**32), guided=st.booleans())
def test_every_case_and_all_its_ancestors_satisfy_the_constraint(seed, guided):
    model = toy_classifier()
    options = DeepHunter(rows_per_seed=25, criterion=kmnc, alpha=0.05, beta=0.25)
    search = search_shared(model, toy_seeds(model, n=8), options, guided=guided, generator=spawn(seed))
    queue, paths = search.queue.take(torch.arange(len(search.queue))), []
    for x, parent, which in zip(queue["x"], queue["parent"].tolist(), queue["which"].tolist(), strict=True):
        paths.append([*paths[parent], (NAMES[which], x)] if parent >= 0 else [("seed", x)])
    cases = search.cases.rows()
    for x, parent, which in zip(cases["x"], cases["parent"].tolist(), cases["which"].tolist(), strict=True):
        paths.append([*paths[parent], (NAMES[which], x)])
    columns = [torch.cat([queue[name], cases[name]]) for name in ("l0", "linf")]
    after_turning = 0
    for path, l0, linf in zip(paths, *columns, strict=True):
        kinds = [name in AFFINE for name, _ in path]
        after_turning += kinds.count(True) == 1 and not kinds[-1]
        assert kinds.count(True) <= 1
        assert (int(l0), float(linf)) == pytest.approx(along(path))
        assert float(l0) < 0.05 * 64 or float(linf) < 0.25
        assert 0 <= float(path[-1][1].min()) <= float(path[-1][1].max()) <= 1
    assert after_turning > 10


@pytest.mark.parametrize("fuzzer", [DeepHunter, random_transformations], ids=["guided", "random"])
@pytest.mark.parametrize(("alpha", "beta"), [(0.02, 0.2), (0.2, 0.6)])
def test_every_case_satisfies_the_constraint(fuzzer, alpha, beta, toy, generator):
    model, seeds = toy
    options = {"rows_per_seed": 40, "criterion": kmnc, "alpha": alpha, "beta": beta}
    suite = fuzzer(**options)(model, seeds, generator=generator)
    assert bool(((suite["l0"] < alpha * 64) | (suite["linf"] < beta)).all())
    assert float(suite.x.min()) >= 0
    assert float(suite.x.max()) <= 1
    ways = [way.split() for way in suite["mutations"]]
    assert {name for way in ways for name in way} > set(AFFINE)
    assert all(sum(name in AFFINE for name in way) <= 1 for way in ways)
    straight = torch.tensor([not any(name in AFFINE for name in way) for way in ways])
    assert bool(straight.any()) or beta < 0.5  # strict limits leave the toy model right until an image is turned
    change = (suite.x - suite.x0).flatten(1)[straight]
    assert torch.equal((change != 0).sum(1), suite["l0"][straight].long())
    assert torch.allclose(change.abs().amax(1), suite["linf"][straight].to(change))
    once = torch.tensor([way[0] in AFFINE and len(way) == 1 for way in ways])
    assert bool(once.any() and (suite["l0"][once] == 0).all() and (suite["linf"][once] == 0).all())


def test_colour_images_in_other_bounds(generator):
    model = Classifier(nn.Sequential(nn.Flatten(), nn.Linear(3 * 6 * 6, 3)), bounds=(-1.0, 1.0))
    x = 2 * torch.rand(20, 3, 6, 6, generator=generator) - 1
    suite = DeepHunter(rows_per_seed=30)(model, Samples(x, model.predict(x)), generator=generator)
    assert len(suite)
    assert bool(((suite["l0"] < 0.02 * 108) | (suite["linf"] < 0.4)).all())
    assert float(suite.x.min()) >= -1
    assert float(suite.x.max()) <= 1


def test_an_image_without_a_valid_mutant_is_passed_over(generator):
    x = 0.2 + 0.5 * torch.rand(5, 1, 8, 8, generator=generator)
    affine = torch.tensor([True, False, True, False, True])
    mutation = ImageMutation(alpha=0.0, beta=1e-9, bounds=(0.0, 1.0), tries=50)
    made = mutation(start(x) | {"affine": affine}, generator=generator)
    assert made["row"].tolist() == [1, 3]
    assert bool((made["which"] >= len(PIXEL)).all())


def test_a_search_in_which_no_input_has_a_valid_mutant_ends(generator):
    model, x = Classifier(nn.Sequential(nn.Flatten(), nn.Linear(16, 3))), torch.zeros(2, 1, 4, 4)
    with pytest.raises(ValueError, match="must have valid mutants, and 2[0-9] times in a row one had none"):
        DeepHunter(alpha=0.0, beta=1e-9, tries=1)(model, Samples(x, model.predict(x)), generator=generator)


# The transformations


def test_all_transformations_are_equally_likely_and_only_pixel_ones_after_an_affine_one(generator):
    x = torch.rand(4000, 1, 4, 4, generator=generator)
    affine = torch.arange(4000) < 2000
    mutation = ImageMutation(alpha=1.0, beta=1.0, bounds=(0.0, 1.0), tries=1)
    which = mutation._tried(start(x) | {"affine": affine}, generator)["which"]
    after, before = (which[affine == t].bincount(minlength=8) for t in (True, False))
    assert after[4:].tolist() == [0, 0, 0, 0]
    assert bool(((after[:4] - 500).abs() < 120).all() and ((before - 250).abs() < 90).all())


def test_transformations_by_hand(generator):
    x = 0.3 + 0.3 * torch.rand(8, 2, 9, 9, dtype=torch.float64, generator=generator)
    which, u = torch.arange(8), torch.tensor([[0.25, 0.75]] * 8, dtype=torch.float64)
    out = transform(x, which, u, torch.arange(8) * 3, bounds=(0.0, 1.0))
    value = {name: low + 0.25 * (high - low) for name, (low, high) in RANGES.items()}

    def one(number, name):
        return x[number : number + 1], torch.tensor([value[name]], dtype=torch.float64)

    zero = torch.zeros(1, dtype=torch.float64)
    still = {"rotation": zero, "scale": zero, "shear": zero, "shift_x": zero, "shift_y": zero, "padding": "zeros"}
    assert torch.allclose(out[0], x[0] * value["contrast"])
    assert torch.allclose(out[1], x[1] - 10 / 255)
    assert torch.allclose(out[2:3], operations.blur(*one(2, "blur")))
    assert torch.allclose(out[3:4], operations.gaussian_noise(x[3:4], zero + 0.02, seeds=torch.tensor([9])))
    shift = {"shift_x": zero - 0.05, "shift_y": zero + 0.05}
    assert torch.allclose(out[4:5], operations.warp(x[4:5], **still | shift))
    for number, name in ((6, "shear"), (7, "rotation")):
        image, parameter = one(number, name)
        assert torch.allclose(out[number : number + 1], operations.warp(image, **still | {name: parameter}))
    image, factor = one(5, "scale")
    assert torch.allclose(out[5:6], operations.warp(image, **still | {"scale": factor.log()}))
    alone = torch.cat(
        [transform(x[i : i + 1], which[i : i + 1], u[:1], 3 * which[i : i + 1], bounds=(0, 1)) for i in which]
    )
    assert torch.equal(out, alone)


def test_values_that_a_transformation_leaves_alone_stay_exactly(generator):
    x = 255 * torch.rand(60, 1, 9, 9, generator=generator)
    u, seeds = torch.rand(60, 2, dtype=torch.float64, generator=generator), 3 * torch.arange(60) + 1
    out = transform(x, torch.full((60,), 3), u, seeds, bounds=(0.0, 255.0))  # salt and pepper
    changed = out != x
    assert 0 < float(changed.double().mean()) < 0.03
    assert bool(((out[changed] == 0) | (out[changed] == 255)).all())


# The queue


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**32),
    sizes=st.lists(st.tuples(st.integers(0, 4), st.integers(1, 9)), min_size=1, max_size=6),
    gamma=st.sampled_from([1.0, 5.0]),
)
def test_inputs_are_taken_in_turn_with_fading_probability(seed, sizes, gamma):
    select, draws = FadingRoundRobin(gamma=gamma, p_min=0.3, generator=spawn(seed)), spawn(seed)
    queue, taken, place = Queue({"x": torch.zeros(2, 1)}), [0, 0], 0
    for more, n in sizes:
        queue.append({"x": torch.zeros(more, 1)})
        taken, expected = taken + [0] * more, []
        while len(expected) < n:
            u = torch.rand(len(taken), generator=draws, dtype=torch.float64).tolist()
            p = [max(0.3, 1 - t / gamma) for t in taken]
            for k in range(len(taken)):
                here = (place + k) % len(taken)
                if u[k] < p[here]:
                    expected.append(here)
                    taken[here] += 1
                if len(expected) == n:
                    place = (here + 1) % len(taken)
                    break
        assert select(queue, n).tolist() == expected
        assert select.taken.tolist() == taken


def test_a_queue_keeps_what_it_is_given(generator):
    x = torch.rand(40, 3, generator=generator)
    queue = Queue({"x": x[:2], "number": torch.arange(2)})
    for a, b in ((2, 3), (3, 3), (3, 20), (20, 40)):
        queue.append({"x": x[a:b], "number": torch.arange(a, b)})
    assert len(queue) == 40
    rows = torch.tensor([39, 0, 17, 17])
    assert torch.equal(queue.take(rows)["x"], x[rows])
    assert torch.equal(queue.take(rows)["number"], rows)


@pytest.mark.parametrize("name", ["nc", "kmnc", "tknc", "few at once"])
def test_the_queue_holds_the_seeds_and_what_covered_more(name, toy, generator):
    model, seeds = toy
    options = SHIPPED[name]
    search = search_shared(model, seeds, options, guided=True, generator=generator)
    x = search.queue.store["x"][: len(search.queue)]
    criterion = options.criterion(model, seeds.x)
    new, state = Coverage.of(criterion).update(criterion.neurons(model, x))
    assert torch.equal(x[:12], seeds.x[seeds.ids.argsort()])
    assert bool((new[12:] > 0).all())
    assert state.coverage == pytest.approx(search.coverage[-1])
    assert bool((torch.tensor(search.coverage).diff() >= 0).all())
    assert torch.equal(model.predict(x), seeds.labels[search.queue.store["origin"][: len(x)]])
    assert search.spent[-1] == 12 * options.rows_per_seed
    parents = search.queue.store["parent"][12 : len(x)]
    assert bool((parents < torch.arange(12, len(x))).all() and (parents >= 0).all())


def test_without_guidance_every_mutant_that_does_not_fail_joins(toy, generator):
    model, seeds = toy
    search = search_shared(model, seeds, SHIPPED["random"].search, guided=False, generator=generator)
    assert len(search.queue) == search.spent[-1] - len(search.cases.rows()["x"])


def test_the_gain_of_a_case_is_what_the_queue_had_not_covered(toy, generator):
    model, seeds = toy
    suite = DeepHunter(rows_per_seed=10, criterion=kmnc, at_once=1000)(model, seeds, generator=generator)
    criterion = kmnc(model, seeds.x)
    state = Coverage.of(criterion).update(criterion.neurons(model, seeds.x))[1]
    first = suite[suite["row"] == 120]
    assert len(first) == len(suite) > 5  # all in one step
    assert torch.equal(first["gain"].long(), state.gain(criterion.neurons(model, first.x)))


# What seeds and budgets do


def test_cases_are_failures_and_misclassified_seeds_are_skipped(toy, generator):
    model, seeds = toy
    y = seeds.labels.clone()
    y[8:] = (y[8:] + 1) % 4
    suite = SHIPPED["kmnc"](model, Samples(seeds.x, y), generator=generator)
    assert (suite.attempted, suite.skipped) == (8, 4)
    assert bool((suite.prediction != suite.label).all() and (suite["margin"] > 0).all())
    assert set(suite.seed.tolist()) <= set(seeds.ids[:8].tolist())
    alone = SHIPPED["kmnc"](model, seeds[:8], generator=torch.Generator().manual_seed(0))
    assert torch.equal(suite.x, alone.x)


def test_the_order_of_seeds_changes_nothing(toy):
    model, seeds = toy
    order = torch.randperm(len(seeds), generator=spawn(0, "order"))
    a, b = (SHIPPED["kmnc"](model, s, generator=spawn(0)) for s in (seeds, seeds[order]))
    assert len(a)
    assert sorted(a.samples().ids.tolist()) == sorted(b.samples().ids.tolist())


def test_budgets_end_the_search(toy, generator):
    found = DeepHunter(rows_per_seed=7, at_once=5).explore(*toy, generator=generator)
    assert (float(found.rows[0]), float(found.rows[-1])) == (1, 7)
    assert found.coverage.shape == (1, len(found.rows))
    none = DeepHunter(rows_per_seed=7, seconds_per_seed=1e-9).explore(*toy, generator=generator)
    assert none.rows.tolist() == [1]
    assert len(none.suite) == 0
    assert {"mutations", "l0", "linf", "gain", "row"} <= set(none.suite.columns)


# Is it a fair rival?


@pytest.mark.parametrize("kind", ["nc", "nbc"])
def test_it_raises_coverage_faster_than_the_same_mutations_without_guidance(kind, lenet, digits28):
    seeds = lenet.correct(digits28.test[:60])[:40]
    criterion = {"nc": neuron_coverage, "nbc": lambda model, x: NBC(ranges=fit_ranges(model, digits28.train))}[kind]
    ours, theirs = (
        fuzzer(criterion=criterion, rows_per_seed=40).explore(lenet, seeds, generator=spawn(0, "search"))
        for fuzzer in (DeepHunter, random_transformations)
    )
    assert float(ours.rows[-1]) == float(theirs.rows[-1]) == 40
    assert float(ours.coverage[0, 0]) == float(theirs.coverage[0, 0])
    assert float(ours.coverage[0, -1]) > float(theirs.coverage[0, -1])
    assert len(ours.suite) > 1.5 * len(theirs.suite)


# What is rejected


@pytest.mark.parametrize("fuzzer", [DeepHunter, random_transformations])
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"rows_per_seed": 1}, "rows_per_seed must be at least 2, got 1; the seed and one mutant"),
        ({"seconds_per_seed": 0.0}, "seconds_per_seed must be positive and finite, got 0.0"),
        ({"at_once": 0}, "at_once must be at least 1, got 0"),
        ({"alpha": 1.5}, "alpha must be a share from 0 to 1, got 1.5"),
        ({"beta": 0.0}, "beta must be above 0 and at most 1, got 0.0"),
        ({"tries": 0}, "tries must be at least 1, got 0"),
        ({"criterion": KMNC}, "profiled ranges, got the class KMNC; write"),
        ({"criterion": "kmnc"}, "profiled ranges, got 'kmnc'; write"),
    ],
)
def test_bad_options_are_rejected(fuzzer, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        fuzzer(**options)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"gamma": 0.0}, "gamma must be positive and finite, got 0.0"),
        ({"p_min": 0.0}, "p_min must be above 0 and at most 1, got 0.0"),
    ],
)
def test_bad_probabilities_are_rejected(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        DeepHunter(**options)


def test_criteria_without_ranges_or_for_another_model_are_rejected(toy, lenet, digits28, generator):
    model, seeds = toy
    ready = kmnc(model, seeds.x)
    with pytest.raises(ValueError, match="profiled ranges, got KMNC"):
        DeepHunter(criterion=ready)
    with pytest.raises(ValueError, match="one that cannot be called so"):
        DeepHunter(criterion=SNAC)(model, seeds, generator=generator)
    with pytest.raises(ValueError, match="one that gives a NoneType"):
        DeepHunter(criterion=lambda model, x: None)(model, seeds, generator=generator)
    with pytest.raises(ValueError, match="profiled ranges, got one that gives a KMNC without them"):
        DeepHunter(criterion=lambda model, x: KMNC(ranges=None))(model, seeds, generator=generator)
    with pytest.raises(ValueError, match="no layer named"):
        DeepHunter(criterion=lambda m, x: neuron_coverage(lenet, digits28.test.x))(model, seeds, generator=generator)


def test_inputs_that_are_no_images_and_seeds_that_are_all_wrong_are_rejected(toy, generator):
    flat = Classifier(nn.Linear(5, 3))
    x = torch.rand(9, 5, generator=generator)
    with pytest.raises(ValueError, match=r"mutations are for images .* got inputs of shape \(5,\)"):
        DeepHunter()(flat, Samples(x, flat.predict(x)), generator=generator)
    model, seeds = toy
    endless = Classifier(model.unwrap(), bounds=(0.0, float("inf")))
    with pytest.raises(ValueError, match="images must have finite bounds"):
        DeepHunter()(endless, seeds, generator=generator)
    with pytest.raises(ValueError, match="at least one seed must be classified correctly .* got 12"):
        DeepHunter()(model, Samples(seeds.x, (seeds.labels + 1) % 4), generator=generator)
