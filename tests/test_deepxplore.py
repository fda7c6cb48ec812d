"""DeepXplore: the laws of fuzzers, what each constraint allows, a step by hand, and shared coverage by brute force."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from operant import Classifier, Samples, spawn
from operant.generate.baselines import deepxplore
from operant.generate.baselines._network import Network
from operant.generate.baselines.deepxplore import DeepXplore, _DifferentialSearch
from operant.rng import normal_like
from operant.testing import LAWS, toy_classifier, toy_seeds


def sibling(model, seed, *, noise=0.03):
    """A model of the same kind that mostly agrees: the same weights with noise."""
    module, generator = model.unwrap(), spawn(seed, "sibling")
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += noise * normal_like(parameter, generator=generator)
    return model.rewrap(module)


TOY = toy_classifier()
OTHERS = (sibling(TOY, 1), sibling(TOY, 2))
LIGHT = DeepXplore(others=OTHERS, rows_per_seed=45)
SHIPPED = {
    "light": LIGHT,
    "occlusion": replace(LIGHT, constraint="occlusion", step=0.2),
    "blackout": replace(LIGHT, constraint="blackout", step=0.4),
    "one other, any deviates": replace(LIGHT, others=OTHERS[:1], constraint="occlusion", deviating="any"),
    "random": replace(LIGHT, constraint="occlusion", direction="random"),
}


@pytest.fixture(scope="module")
def seeds():
    return toy_seeds(TOY, n=20)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize("name", SHIPPED)
def test_every_law_holds(name, law, seeds):
    law(SHIPPED[name], TOY, seeds)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_case_is_an_input_on_which_models_disagree(name, seeds, generator):
    fuzzer = SHIPPED[name]
    models = (TOY, *fuzzer.others)
    suite = fuzzer(TOY, seeds, generator=generator)
    said = torch.stack([model.predict(suite.x) for model in models])
    assert len(suite) > 3
    assert len(suite.seed.unique()) == len(suite)  # a seed is done with its first case
    assert bool((said != said[0]).any(0).all())
    assert bool((said != suite.label).any(0).all())  # so at least one fails by the label
    assert torch.equal(suite.prediction, said[0])
    for i, answer in enumerate(said[1:], 1):
        assert torch.equal(suite[f"other{i}"].long(), answer)
    assert len(suite.failures()) == int((said[0] != suite.label).sum())
    assert bool((suite["row"] % len(models) == 0).all() and (suite["row"] > len(models)).all())
    assert float(suite["row"].max()) <= fuzzer.rows_per_seed
    right = torch.stack([model.predict(seeds.x) == seeds.labels for model in models]).all(0)
    assert (suite.attempted, suite.skipped) == (int(right.sum()), int((~right).sum()))
    assert bool(torch.isin(suite.seed, seeds.ids[right]).all())


def test_seeds_that_some_model_gets_wrong_change_nothing(seeds, generator):
    y = seeds.labels.clone()
    y[12:] = (y[12:] + 1) % 4
    whole = LIGHT(TOY, seeds, generator=generator)
    part = LIGHT(TOY, Samples(seeds.x, y), generator=torch.Generator().manual_seed(0))
    assert torch.equal(part.x, whole[torch.isin(whole.seed, seeds.ids[:12])].x)
    assert part.skipped == whole.skipped + int(torch.isin(seeds.ids[12:], allowed(seeds).ids).sum())


def allowed(seeds):
    """Those seeds that every model gets right."""
    return seeds[torch.stack([m.predict(seeds.x) == seeds.labels for m in (TOY, *OTHERS)]).all(0)]


# What each constraint allows


@pytest.mark.parametrize(("step", "direction"), [(0.05, "gradient"), (0.3, "gradient"), (0.3, "random")])
def test_light_changes_all_pixels_alike(step, direction, seeds, generator):
    suite = replace(LIGHT, step=step, direction=direction)(TOY, seeds, generator=generator)
    assert len(suite)
    for x, x0 in zip(suite.x, suite.x0, strict=True):
        inside = (x > 0) & (x < 1)
        shift = float((x - x0)[inside].mean()) if bool(inside.any()) else float(torch.sign((x - x0).sum()))
        assert torch.allclose(x, (x0 + shift).clamp(0, 1), atol=1e-12)


@pytest.mark.parametrize("size", [None, (2, 5)])
def test_occlusion_changes_one_rectangle(size, seeds, generator):
    fuzzer = replace(SHIPPED["occlusion"], size=size)
    suite = fuzzer(TOY, seeds, generator=generator)
    height, width = fuzzer.rectangle(seeds.x)
    assert (height, width) == (size or (3, 3))
    corners = set()
    for changed in (suite.x != suite.x0).any(1):
        rows, columns = changed.nonzero(as_tuple=True)
        assert int(rows.max() - rows.min()) < height
        assert int(columns.max() - columns.min()) < width
        corners.add((int(rows.min()), int(columns.min())))
    assert len(corners) > 2


def test_blackout_only_darkens_by_whole_steps(seeds, generator):
    suite = replace(SHIPPED["blackout"], step=0.15)(TOY, seeds, generator=generator)
    darker = suite.x0 - suite.x
    assert len(suite)
    assert bool((darker >= 0).all() and (darker > 0).any())
    times = darker / 0.15
    assert bool((((times - times.round()).abs() < 1e-9) | (suite.x == 0)).all())


@pytest.mark.parametrize(("constraint", "side"), [("occlusion", 10), ("blackout", 6)])
def test_rectangles_are_those_of_the_released_program(constraint, side):
    fuzzer = replace(LIGHT, constraint=constraint)
    assert fuzzer.rectangle(torch.zeros(1, 1, 28, 28)) == (side, side)
    assert fuzzer.rectangle(torch.zeros(1, 3, 2, 2)) == (1, 1)


# One step, by hand


def grab(monkeypatch):
    """The searches of the runs to come."""
    searches = []
    run = _DifferentialSearch.run
    monkeypatch.setattr(_DifferentialSearch, "run", lambda self: searches.append(self) or run(self))
    return searches


@pytest.mark.parametrize("constraint", ["light", "occlusion", "blackout"])
@pytest.mark.parametrize("deviating", ["model", "any"])
def test_a_step_climbs_the_joint_objective(constraint, deviating, seeds, generator, monkeypatch):
    searches = grab(monkeypatch)
    options = {"weight_diff": 1.7, "weight_coverage": 0.6, "step": 0.01, "rows_per_seed": 6}
    replace(LIGHT, constraint=constraint, deviating=deviating, **options)(TOY, seeds, generator=generator)
    (search,) = searches
    rows = search.chosen
    if deviating == "any":
        assert len(search.deviating[rows].unique()) == 3
    z = seeds.x[rows].clone().requires_grad_()
    value = 0.0
    for k, model in enumerate((TOY, *OTHERS)):
        module = model.unwrap()
        hidden = module[1](module[0](z))
        logits = module[3](module[2](hidden))
        neurons = torch.cat([hidden.mean((2, 3)), logits], 1)
        at = torch.arange(len(rows))
        sign = torch.where(search.deviating[rows] == k, -1.7, 1.0)
        value = value + (sign * logits[at, seeds.labels[rows]] + 0.6 * neurons[at, search.goals[k, rows]]).sum()
    (g,) = torch.autograd.grad(value, z)
    moved = (search.x - seeds.x)[rows]
    free = ((seeds.x[rows] > 0.02) & (seeds.x[rows] < 0.98)).double()  # where nothing is clipped
    side = {"light": 8, "occlusion": 3, "blackout": 2}[constraint]
    for row, d, gradient, mask in zip(rows, moved, g, free, strict=True):
        top, left = (int(u * (8 - side + 1)) for u in search.place[row].tolist())
        inside = torch.zeros_like(d)
        inside[:, top : top + side, left : left + side] = 1
        part = gradient * inside
        expected = {
            "light": gradient.mean().sign().expand_as(d),
            "occlusion": part / part.square().sum().div(side**2).sqrt(),
            "blackout": -inside * float(part.sum() < 0),
        }[constraint]
        assert torch.allclose(d * mask, 0.01 * expected * mask, atol=1e-9)


# What is covered, and what is aimed at


def bare(n, first, models=1):
    """A search of n seeds that knows nothing but who covered which neuron first."""
    search = object.__new__(_DifferentialSearch)
    search.x, search.generator = torch.zeros(n, 1), spawn(0, "bare")
    search.first = [first.clone() for _ in range(models)]
    search.networks = [None] * models
    search.goals = torch.full((models, n), -1)
    return search


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32), n=st.integers(1, 9), neurons=st.integers(1, 7), turns=st.integers(1, 4))
def test_a_seed_knows_what_it_and_those_before_it_have_covered(seed, n, neurons, turns):
    g = spawn(seed)
    search = bare(n, torch.full((neurons,), n))
    known = [set() for _ in range(n)]
    for _ in range(turns):
        rows = (torch.rand(n, generator=g) < 0.7).nonzero().flatten()
        active = torch.rand(len(rows), neurons, generator=g) < 0.3
        if len(rows) == 0:
            continue
        reached = {int(row): set(truths.nonzero().flatten().tolist()) for row, truths in zip(rows, active, strict=True)}
        gain = search._cover(0, rows, active)
        assert gain.tolist() == [len(reached[int(row)] - known[int(row)]) for row in rows]
        for row in range(n):
            known[row] |= set().union(*(reached.get(before, set()) for before in range(row + 1)))
    for row in range(n):
        assert known[row] == set((search.first[0] <= row).nonzero().flatten().tolist())


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32), n=st.integers(1, 9), neurons=st.integers(1, 7))
def test_goals_are_not_covered_and_stay_until_they_are(seed, n, neurons):
    g = spawn(seed)
    search = bare(n, torch.randint(n + 1, (neurons,), generator=g), models=2)
    for _ in range(3):
        before = search.goals.clone()
        search._draw_goals(torch.arange(n))
        for k in range(2):
            for row in range(n):
                open_ = (search.first[k] > row).nonzero().flatten().tolist()
                assert int(search.goals[k, row]) in (open_ or range(neurons))
                if int(before[k, row]) in open_:
                    assert search.goals[k, row] == before[k, row]
        search.first = [
            torch.minimum(first, torch.randint(2 * n + 1, (neurons,), generator=g)) for first in search.first
        ]


@pytest.mark.parametrize("rows", [torch.arange(8), torch.tensor([1, 4, 7])])
def test_what_later_seeds_cover_changes_no_goal(rows):
    first = torch.tensor([8, 2, 8, 5, 8, 0, 8])
    later = torch.tensor([8, 2, 7, 5, 6, 0, 8])  # the same for the first six seeds
    goals = []
    for known in (first, later):
        search = bare(8, known)
        search._draw_goals(rows)
        goals.append(search.goals[0, :6])
    assert torch.equal(*goals)


def test_goals_are_drawn_evenly():
    first = torch.tensor([0, 4000, 4000, 0, 4000])
    search = bare(4000, first)
    search._draw_goals(torch.arange(4000))
    share = search.goals[0].bincount(minlength=5) / 4000
    assert share[[0, 3]].tolist() == [0, 0]
    assert torch.allclose(share[[1, 2, 4]], torch.tensor(1 / 3), atol=0.05)


# Budgets


@pytest.mark.parametrize("rows_per_seed", [6, 8, 31])
def test_no_row_is_spent_beyond_the_budget(rows_per_seed, seeds, generator, monkeypatch):
    passed = []
    pass_ = Network._pass
    monkeypatch.setattr(Network, "_pass", lambda self, x: passed.append(len(x)) or pass_(self, x))
    found = replace(LIGHT, rows_per_seed=rows_per_seed).explore(TOY, seeds, generator=generator)
    first = 3 * len(seeds)  # the first judgement
    assert sum(passed) - first == round(float(found.rows[-1]) * found.suite.attempted)
    assert float(found.rows[-1]) <= rows_per_seed
    assert bool((found.rows.diff() > 0).all())
    assert found.coverage.shape == (3, len(found.rows))
    assert bool((found.coverage.diff(dim=1) >= 0).all())
    assert float(found.coverage.max()) <= 1


def test_a_budget_of_time_ends_the_search(seeds, generator, monkeypatch):
    clock = iter(range(1000))
    monkeypatch.setattr(deepxplore, "process_time", lambda: next(clock))
    fuzzer = replace(LIGHT, constraint="occlusion", step=1e-4, seconds_per_seed=5 / len(seeds))
    found = fuzzer.explore(TOY, seeds, generator=generator)
    assert found.rows.tolist() == [3, 6, 9, 12, 15, 18]  # the clock says 0 at the start, 6 > 5 before the sixth look
    assert len(found.suite) == 0
    assert set(found.suite.columns) >= {"other1", "other2", "gain", "row"}


def test_it_finds_differences_that_random_steps_do_not(lenet, digits28):
    others = (sibling(lenet, 1, noise=0.01), sibling(lenet, 2, noise=0.01))
    fuzzer = DeepXplore(others=others, constraint="occlusion", step=0.2, rows_per_seed=45)
    ours, theirs = (
        replace(fuzzer, direction=way).explore(lenet, digits28.test[:80], generator=spawn(0, "search"))
        for way in ("gradient", "random")
    )
    assert len(ours.suite) > 1.25 * len(theirs.suite)
    assert float(ours.rows[-1]) < float(theirs.rows[-1])  # and spends less


# What is rejected


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"others": ()}, "DeepXplore compares models: others must be a tuple of at least one Classifier"),
        ({"others": OTHERS[0]}, "must be a tuple of at least one Classifier"),
        ({"others": (nn.Identity(),)}, "must be a tuple of at least one Classifier"),
        ({"constraint": "fog"}, "constraint must be one of light, occlusion, blackout, got 'fog'"),
        ({"deviating": "all"}, "deviating must be one of model, any"),
        ({"direction": "down"}, "direction must be one of gradient, random"),
        ({"weight_diff": -1.0}, "weight_diff must be 0 or more and finite, got -1.0"),
        ({"weight_coverage": float("inf")}, "weight_coverage must be 0 or more and finite"),
        ({"step": 0.0}, "step must be positive and finite"),
        ({"threshold": 1.0}, r"threshold must be from 0 to below 1, got 1.0"),
        ({"size": (0, 3)}, "size must be a height and a width of at least 1 pixel"),
        (
            {"rows_per_seed": 5},
            "rows_per_seed must be at least 6, got 5; the seed and one step through each model",
        ),
        ({"seconds_per_seed": 0.0}, "seconds_per_seed must be positive, got 0.0"),
    ],
)
def test_bad_options_are_rejected(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        replace(LIGHT, **options)


def dense(shape, classes, **options):
    return Classifier(nn.Sequential(nn.Flatten(), nn.Linear(shape, classes)).double(), **options)


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        (dense(49, 4), "every model must take the seeds, and other1 does not: the module fails on inputs of shape"),
        (dense(64, 5), "models must share their classes, got 4 and, from other1, 5"),
        (
            dense(64, 4, bounds=(-1.0, 1.0)),
            r"models must share bounds and device, got \(0.0, 1.0\) on cpu and, from oth",
        ),
        (TOY, "models must differ to disagree, and two of them give the same logits"),
    ],
)
def test_models_that_cannot_be_compared_are_rejected(other, sentence, seeds, generator):
    with pytest.raises(ValueError, match=sentence):
        replace(LIGHT, others=(other,))(TOY, seeds, generator=generator)


def test_a_rectangle_needs_an_image_that_holds_it(seeds, generator):
    with pytest.raises(ValueError, match="size must fit into images of 8 by 8 pixels, got"):
        replace(SHIPPED["occlusion"], size=(9, 2))(TOY, seeds, generator=generator)
    flat = Samples(seeds.x.flatten(1), seeds.labels)
    models = [dense(64, 4) for _ in range(2)]
    with pytest.raises(ValueError, match="occlusion needs images"):
        replace(SHIPPED["occlusion"], others=(models[1],))(models[0], flat, generator=generator)


def test_light_takes_inputs_of_any_shape(generator):
    x = torch.rand(30, 6, dtype=torch.float64, generator=generator)
    model = dense(6, 3)
    suite = replace(LIGHT, others=(sibling(model, 1),))(model, Samples(x, model.predict(x)), generator=generator)
    assert suite.attempted > 15
    assert len(suite) > 0


def test_seeds_that_some_model_always_gets_wrong_are_rejected(seeds, generator):
    wrong = Samples(seeds.x, (seeds.labels + 1) % 4)
    with pytest.raises(ValueError, match="every model classifies correctly, and none of the 20 is; check the labels"):
        LIGHT(TOY, wrong, generator=generator)
