"""Operational fuzzing: moves that keep the fuzzers' laws, cases that are natural, merged, replayable, and capped."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from operant import Classifier, Samples, load_digits, spawn
from operant.conditions import Recipe, fixed, normal, uniform
from operant.conditions import apply as under
from operant.density import KDE
from operant.generate import PGD, ConditionMove, GeneticMove, GradientMove, OperationalFuzz, hda, replay
from operant.generate.operational.fuzz import distinct
from operant.measure import Naturalness, fit_naturalness
from operant.networks import LeNet5, fit, fit_pca, initialise
from operant.profile import Profile, fit_profile
from operant.profile._cells import box_mass
from operant.suite import Suite
from operant.testing import check_fuzzer, toy_classifier, toy_seeds

FIELD = Recipe(severities={"rotation": normal(12), "shift_x": normal(0.1), "contrast": uniform(-0.8, 0)})
MILD = Recipe(severities={"rotation": normal(6), "shift_x": normal(0.03), "contrast": uniform(-0.3, 0)})
ROUGH = Recipe(
    severities={
        "rotation": uniform(5, 30, absent=0.5),
        "downsampling": uniform(0, 0.5),
        "gaussian_noise": uniform(0, 0.2),
        "impulse_noise": fixed(0.02),
    }
)

# The setting: digits in the field, a network that learned a few, and what is known of the field


@pytest.fixture(scope="module")
def model() -> Classifier:
    start = initialise(lambda: LeNet5(size=8), generator=spawn(0, "weights"))
    few = load_digits().train[:500]
    return Classifier(
        fit(start, few, epochs=8, learning_rate=4e-3, generator=spawn(0, "training"), progress=False).module
    )


@pytest.fixture(scope="module")
def field() -> Samples:
    x = load_digits().train.x[500:]
    return Samples(under(x, FIELD.draw(len(x), generator=spawn(0, "field"))))


@pytest.fixture(scope="module")
def naturalness(field: Samples) -> Naturalness:
    return fit_naturalness(field, latent=8, epochs=10, generator=spawn(0, "naturalness"), progress=False)


@pytest.fixture(scope="module")
def profile(field: Samples) -> Profile:
    return fit_profile(field, encoder=partial(fit_pca, dimensions=8), generator=spawn(0, "profile"))


@pytest.fixture(scope="module")
def seeds() -> Samples:
    return load_digits().test[:60]


@pytest.fixture(scope="module")
def right(model: Classifier) -> Samples:
    return model.correct(load_digits().test)


@pytest.fixture(scope="module")
def fuzz(naturalness: Naturalness, profile: Profile) -> OperationalFuzz:
    moves = {
        "conditions": ConditionMove(recipe=FIELD, naturalness=naturalness, stop_after=3),
        "gradient": GradientMove(naturalness=naturalness, radius=1.0, stop_after=2),
        "genetic": GeneticMove(naturalness=naturalness, radius=0.3, population=20, generations=4, elites=5, keep=2),
    }
    return OperationalFuzz(moves=moves, naturalness=naturalness, profile=profile, stop_early=False)


@pytest.fixture(scope="module")
def suite(fuzz: OperationalFuzz, model: Classifier, seeds: Samples) -> Suite:
    return fuzz(model, seeds, generator=spawn(3))


def _moved_by(suite: Suite, name: str) -> Suite:
    return suite[torch.from_numpy(suite["move"] == name)]


# The laws of fuzzers, where random images are what field inputs look like


@pytest.fixture(scope="module")
def toys() -> dict[str, object]:
    x = torch.rand(600, 1, 8, 8, generator=spawn(1))
    plain = Samples(torch.cat([x[:300], under(x[300:], FIELD.draw(300, generator=spawn(2)))]))
    likely = fit_naturalness(plain, latent=4, epochs=3, generator=spawn(0), progress=False)
    profile = fit_profile(plain, encoder=partial(fit_pca, dimensions=4), generator=spawn(0))
    gradient = GradientMove(naturalness=likely, radius=0.8, steps=6, stop_after=2)
    tight = GradientMove(naturalness=likely, radius=0.1, norm="linf", random_start=True, level=0.3)
    conditions = ConditionMove(recipe=FIELD, naturalness=likely, population=5, steps=3)
    rough = ConditionMove(recipe=ROUGH, naturalness=None, population=4, steps=3, stop_after=None)
    few = {"population": 12, "generations": 4, "elites": 4, "stop_after": 2, "keep": 2}
    genetic = GeneticMove(naturalness=likely, radius=0.3, start=6.0, mutation=3.0, **few)
    values = replace(genetic, genes="values", norm="l2", radius=0.8, start=0.1, mutation=0.05)
    close = replace(hda(), population=20, generations=3, start=0.05, mutation=0.05)
    moves = {"conditions": conditions, "gradient": gradient, "genetic": genetic}
    mix = OperationalFuzz(moves=moves, naturalness=likely, profile=profile)
    shared = replace(mix, shares=dict.fromkeys(moves, 1.0), moves_per_seed=2)
    return {
        **moves,
        "gradient, linf": tight,
        "rough conditions": rough,
        "genetic, values": values,
        "genetic, as HDA": close,
        "mix": mix,
        "shares": shared,
    }


PIXELS = ["gradient", "gradient, linf", "genetic", "genetic, values", "genetic, as HDA"]
MOVES = [*PIXELS, "conditions", "rough conditions"]


@pytest.mark.parametrize("name", [*MOVES, "mix", "shares"])
def test_the_laws_of_fuzzers_hold(toys, name: str) -> None:
    model = toy_classifier()
    found = toys[name](model, toy_seeds(model), generator=spawn(0, "law"))
    assert len(found.failures().seed.unique()) >= 3  # or the laws would say little
    check_fuzzer(toys[name])


@pytest.mark.parametrize("name", MOVES)
def test_a_seed_that_leaves_at_once_changes_nothing_for_others(toys, name: str) -> None:
    model = toy_classifier()
    seeds = toy_seeds(model)
    wrong = seeds.labels.clone()
    wrong[[0, 3]] = (wrong[[0, 3]] + 1) % 4  # the model is wrong about these from the start
    first, second = (
        toys[name](model, Samples(seeds.x, y, seeds.ids), generator=spawn(5)) for y in (seeds.labels, wrong)
    )
    others = torch.isin(first.seed, seeds.ids[[0, 3]], invert=True)
    assert torch.allclose(first.x[others], second.x[torch.isin(second.seed, first.seed[others])], atol=1e-7)
    assert len(first.x[others]) > 0


# The gradient move


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("random_start", [True, False])
@pytest.mark.parametrize("stop_after", [None, 1])
def test_without_weight_it_is_pgd(
    model, naturalness, seeds, norm: str, random_start: bool, stop_after: int | None
) -> None:
    settings = {"radius": 0.1 if norm == "linf" else 0.8, "norm": norm, "random_start": random_start, "steps": 7}
    pgd = PGD(stop_early=stop_after is not None, **settings)(model, seeds, generator=spawn(1))
    move = GradientMove(naturalness=naturalness, weight=0.0, stop_after=stop_after, **settings)
    got = move(model, seeds, generator=spawn(1))
    assert torch.equal(got.x, pgd.x)
    assert torch.equal(got.prediction, pgd.prediction)
    assert torch.equal(got.seed, pgd.seed)
    assert len(got.failures()) > 0


@pytest.mark.parametrize(("norm", "radius"), [("linf", 0.15), ("l2", 1.2)])
def test_naturalness_in_the_ascent_makes_failures_natural(model, naturalness, seeds, norm: str, radius: float) -> None:
    def natural(weight: float) -> int:
        move = GradientMove(naturalness=naturalness, radius=radius, norm=norm, weight=weight)
        found = move(model, seeds, generator=spawn(0))
        assert bool((found.distances(norm) <= radius + 1e-6).all())
        assert bool(((found.x >= 0) & (found.x <= 1)).all())
        return int((naturalness(found.failures().x) >= 0.05).sum())

    assert natural(3.0) > 1.2 * natural(0.0)


def test_a_seed_with_enough_natural_failures_leaves(model, naturalness, seeds) -> None:
    move = GradientMove(naturalness=naturalness, radius=1.5, stop_after=3, steps=20)
    found = move(model, seeds, generator=spawn(0))
    _, counts = found.seed.unique(return_counts=True)
    assert set(seeds.ids.tolist()) == set(found.seed.tolist())  # every seed has a row
    assert int(counts.max()) == 3
    several = torch.isin(found.seed, found.seed.unique()[counts > 1])
    assert bool((naturalness(found.x[several]) >= 0.05).all())
    assert bool((found.prediction != found.label)[several].all())


# The move by conditions


@pytest.mark.parametrize("recipe", [FIELD, ROUGH], ids=["smooth", "rough"])
def test_cases_by_conditions_lie_in_the_declared_ranges_and_can_be_made_again(model, seeds, recipe, tmp_path) -> None:
    move = ConditionMove(recipe=recipe, naturalness=None, stop_after=3)
    found = move(model, seeds, generator=spawn(0))
    assert len(found) > 10
    assert set(found.method.tolist()) == {"conditions"}
    values = torch.stack([found[name] for name in recipe.names], 1)
    low, high = recipe.limits
    assert bool(((values >= low - 1e-6) & (values <= high + 1e-6)).all())
    assert bool(found["log_prob"].isfinite().all())  # nothing between absent and the smallest severity
    assert torch.equal(replay(found, recipe), found.x)
    again = Suite.open(found.save(tmp_path / "suite"))
    assert torch.equal(replay(again[::2], recipe), found.x[::2])


def test_the_search_fails_more_seeds_than_as_many_draws(model, naturalness, right) -> None:
    search = ConditionMove(recipe=MILD, naturalness=naturalness, population=4, steps=4, stop_after=1)
    draws = replace(search, population=19, steps=1)  # the rows of that search
    found, drawn = (len(move(model, right, generator=spawn(0)).seed.unique()) for move in (search, draws))
    assert len(right) > found > 1.2 * drawn > 0


def test_weight_makes_severities_likelier(model, right) -> None:
    move = ConditionMove(recipe=MILD, naturalness=None, stop_after=1, steps=8, population=3)
    heavy, light = (replace(move, weight=weight)(model, right, generator=spawn(0)) for weight in (3.0, 0.0))
    assert 0 < len(heavy) < len(light)
    assert float(heavy["log_prob"].mean()) > float(light["log_prob"].mean()) + 0.5


def test_only_cases_by_conditions_can_be_made_again(suite, model, seeds) -> None:
    own = _moved_by(suite, "conditions")
    assert torch.equal(replay(own, FIELD), own.x)
    with pytest.raises(ValueError, match="of .* were not; choose those"):
        replay(suite, FIELD)
    with pytest.raises(ValueError, match="lacks rotation"):
        replay(PGD(radius=0.1)(model, seeds, generator=spawn(0)), FIELD)
    assert len(replay(own[:0], FIELD)) == 0


# The genetic move


def test_the_second_phase_brings_failures_nearer_to_the_seed(model, seeds) -> None:
    early = replace(hda(radius=0.3), start=0.1, mutation=0.03, population=40, generations=12, stop_after=1, keep=1)
    first, longer = (m(model, seeds[:30], generator=spawn(0)) for m in (early, replace(early, stop_after=None)))
    both = torch.tensor(sorted(set(first.seed.tolist()) & set(longer.seed.tolist())))
    near, nearer = (s.distances("l2")[torch.isin(s.seed, both)].mean() for s in (first, longer))
    assert len(both) >= 5
    assert set(first.seed.tolist()) <= set(longer.seed.tolist())
    assert float(nearer) < float(near)
    assert float(first["generation"].mean()) < 12


def test_genes_of_codes_find_more_natural_failures_than_genes_of_values(model, naturalness, right) -> None:
    codes = GeneticMove(naturalness=naturalness, radius=0.3, population=20, generations=6, start=2.0, mutation=1.0)
    values = replace(codes, genes="values", start=0.1, mutation=0.05)
    found = [move(model, right[:100], generator=spawn(0)) for move in (codes, values)]
    natural = [int((naturalness(s.x) >= 0.05).sum()) for s in found]
    assert natural[0] > 1.2 * natural[1]
    assert all(bool((s.distances("linf") <= 0.3 + 1e-6).all()) for s in found)


def test_the_published_settings_are_those_of_the_paper() -> None:
    move = hda()
    assert (move.population, move.generations, move.elites, move.keep) == (1000, 100, 20, 10)
    assert (move.norm, move.genes) == ("linf", "values")
    assert (move.radius, move.start, move.mutation, move.mutation_rate, move.switch) == (0.1, 0.01, 0.003, 0.2, 0.6)
    assert move.stop_after is None
    assert move.naturalness is None
    assert hda(radius=0.03).radius == 0.03


# Budgets count rows


class Counting(nn.Module):
    """A linear model that counts the rows it is asked about."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.rows = nn.Linear(64, 3), 0

    def forward(self, x: Tensor) -> Tensor:
        self.rows += len(x)
        return self.linear(x.flatten(1))


def test_rows_spent_are_those_the_options_say(naturalness) -> None:
    n = 32
    seeds = Samples(torch.rand(n, 1, 8, 8, generator=spawn(0)), torch.zeros(n).long())
    budgets = {
        7: GradientMove(naturalness=naturalness, radius=0.1, steps=7, stop_after=None, weight=0.0),
        5 * 3 + 2: ConditionMove(recipe=FIELD, naturalness=None, population=5, steps=3, stop_after=None),
        10 * 5: replace(hda(), population=10, generations=4, elites=3),
    }
    for rows, move in budgets.items():
        model = Classifier(Counting(), strict=True)
        found = move(model, seeds, generator=spawn(0))
        judged = [max(len(part), 16) for part in found.x.split(256)]  # small batches are padded
        assert len(found) > 0
        assert model._plain.rows == n * rows + sum(judged) + 16  # of which `Classifier.check` asks the last


# All together


def test_every_case_carries_what_is_known_of_it(suite, model, naturalness, profile, seeds) -> None:
    assert set(suite["move"].tolist()) == {"conditions", "gradient", "genetic"}
    assert torch.equal(suite.prediction, model.predict(suite.x))
    assert bool((suite.prediction != suite.label).all())
    expected = {
        "naturalness": naturalness(suite.x),
        "density": profile.log_prob(suite.x),
        "mass": profile.cell_mass(suite.x, 1.0),
        "quantile": profile.quantile(suite.x),
        "l2": suite.distances("l2"),
        "linf": suite.distances("linf"),
    }
    for name, values in expected.items():
        assert torch.allclose(suite[name].double(), values.double(), rtol=1e-4, atol=1e-6), name
    assert suite.attempted == len(seeds)
    assert bool((_moved_by(suite, "gradient")["l2"] <= 1.0 + 1e-6).all())
    assert bool((_moved_by(suite, "genetic")["linf"] <= 0.3 + 1e-6).all())


def test_no_seed_fills_the_suite_and_no_two_cases_of_one_are_alike(fuzz, suite, profile, model, seeds) -> None:
    _, counts = suite.seed.unique(return_counts=True)
    assert int(counts.max()) == fuzz.per_seed
    codes = profile.encode(suite.x)
    gaps = (profile.held[:, None] - profile.codes).norm(dim=2).amin(1)
    apart = float(gaps.quantile(fuzz.merge))
    same = (suite.seed[:, None] == suite.seed) & ~torch.eye(len(suite), dtype=torch.bool)
    assert float(torch.cdist(codes, codes)[same].min()) > apart * 0.999
    assert len(replace(fuzz, merge=0.9)(model, seeds, generator=spawn(3))) < len(suite)


def test_operational_failures_are_natural_dense_and_ranked(suite) -> None:
    for level, quantile in ((0.05, 0.1), (0.3, 0.0), (0.05, 0.5)):
        kept = suite.operational(level=level, mass_quantile=quantile)
        right = (suite["naturalness"] >= level) & (suite["quantile"] >= quantile)
        assert len(kept) == int(right.sum()) > 0
        assert bool((kept["naturalness"] >= level).all() & (kept["quantile"] >= quantile).all())
        assert bool(((kept["mass"] * kept["naturalness"]).diff() <= 0).all())
    assert len(suite.operational()) < len(suite)


def test_a_seed_with_its_operational_failures_is_left_alone(fuzz, model, right, naturalness, profile) -> None:
    seeds, given = right[:80], []

    def second(model: Classifier, seeds: Samples, *, generator: torch.Generator) -> Suite:
        given.extend(seeds.ids.tolist())
        return PGD(radius=0.1)(model, seeds, generator=generator)

    first = ConditionMove(recipe=MILD, naturalness=naturalness, steps=2)
    mix = replace(fuzz, moves={"first": first, "second": second}, stop_early=True, per_seed=1)
    found = mix(model, seeds, generator=spawn(3))
    cases = first(model, seeds, generator=spawn(3))
    good = (naturalness(cases.x) >= 0.05) & (profile.quantile(cases.x) >= 0.1)
    done = cases.seed[good].tolist()
    assert 0 < len(set(done)) < len(seeds)
    assert given == [i for i in seeds.ids.tolist() if i not in done]
    assert set(found["move"].tolist()) == {"first", "second"}


def test_fields_steer_the_moves(fuzz, model, seeds) -> None:
    one = replace(fuzz, moves_per_seed=1)(model, seeds, generator=spawn(3))
    assert set(one["move"].tolist()) == {"conditions"}
    small = replace(fuzz, radius=0.05, weight=1.0)._steered()
    assert [getattr(m, "radius", None) for m in small.values()] == [None, 0.05, 0.05]
    assert [m.weight for m in small.values()] == [1.0, 1.0, 1.0]
    assert list(fuzz._steered().values()) == list(fuzz.moves.values())
    shares = {"conditions": 3.0, "gradient": 1.0, "genetic": 1e-6}
    order = replace(fuzz, shares=shares, moves_per_seed=1)._order(4000, spawn(0))
    assert order.shape == (4000, 1)
    assert float((order == 0).double().mean()) == pytest.approx(0.75, abs=0.04)


def test_any_fuzzer_is_a_move(fuzz, model, seeds) -> None:
    def still(model: Classifier, seeds: Samples, *, generator: torch.Generator) -> Suite:
        return PGD(radius=1e-6)(model, seeds, generator=generator)

    moves = {"pgd": PGD(radius=0.2), "still": still}
    found = replace(fuzz, moves=moves, radius=0.1)(model, seeds, generator=spawn(0))
    assert "pgd" in found["move"].tolist()
    assert float(_moved_by(found, "pgd")["linf"].max()) <= 0.1 + 1e-6


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6), st.integers(0, 5)), max_size=25), st.integers(1, 4))
def test_distinct_is_the_greedy_choice_seed_by_seed(rows: list[tuple[int, int, int]], most: int) -> None:
    seed, code, value = (torch.tensor([row[i] for row in rows], dtype=torch.int64) for i in range(3))
    got = distinct(seed, code.double()[:, None], value.double(), min_distance=1.0, limit=most)
    expected = []
    for one in set(seed.tolist()):
        kept: list[int] = []
        for row in sorted((i for i in range(len(rows)) if seed[i] == one), key=lambda i: -int(value[i])):
            if len(kept) < most and all(abs(int(code[row]) - int(code[other])) > 1 for other in kept):
                kept.append(row)
        expected += kept
    assert got.tolist() == sorted(expected)


# What is rejected


def test_what_makes_no_sense_is_rejected(fuzz, suite, model, seeds, naturalness) -> None:
    for level in (0.0, 1.0, -0.1, float("nan")):
        with pytest.raises(ValueError, match="level must be between 0 and 1"):
            suite.operational(level=level)
        with pytest.raises(ValueError, match="level must be between 0 and 1"):
            GradientMove(naturalness=naturalness, radius=0.1, level=level)
        with pytest.raises(ValueError, match="level must be between 0 and 1"):
            replace(fuzz, level=level)
    with pytest.raises(ValueError, match="mass_quantile must be from 0 to below 1"):
        suite.operational(mass_quantile=1.0)
    with pytest.raises(ValueError, match="moves must not be empty"):
        replace(fuzz, moves={})
    with pytest.raises(ValueError, match="carry no labels"):
        fuzz(model, Samples(seeds.x), generator=spawn(0))
    with pytest.raises(ValueError, match="shares must be positive, one for each of conditions, gradient, genetic"):
        replace(fuzz, shares={"gradient": 1.0})


def test_a_suite_without_failures_or_columns_is_rejected(suite, model, seeds) -> None:
    right = seeds[model.predict(seeds.x) == seeds.labels]
    plain = PGD(radius=1e-6)(model, right, generator=spawn(0))
    with pytest.raises(ValueError, match="lacks: naturalness, quantile, mass"):
        plain.operational()
    ones = np.ones(len(plain))
    with pytest.raises(ValueError, match="there must be failures"):
        plain.with_columns(naturalness=ones, quantile=ones, mass=ones).operational()
    with pytest.raises(ValueError, match="there must be failures"):
        suite[:0].operational()


def test_a_search_that_finds_nothing_gives_an_empty_suite(fuzz, model, seeds) -> None:
    right = seeds[model.predict(seeds.x) == seeds.labels]
    found = replace(fuzz, moves={"gradient": fuzz.moves["gradient"]}, radius=1e-6)(model, right, generator=spawn(0))
    assert len(found) == 0
    assert {"naturalness", "density", "mass", "quantile", "l2", "linf", "move"} <= set(found.columns)
    assert found.attempted == len(right)


def test_other_shapes_are_rejected(fuzz, digits28, lenet, naturalness, model, seeds) -> None:
    other = fit_profile(digits28.train[:300], encoder=partial(fit_pca, dimensions=4), generator=spawn(0))
    with pytest.raises(ValueError, match=r"must have shape \(N, 1, 28, 28\), got \(1, 1, 8, 8\)"):
        replace(fuzz, profile=other)(model, seeds, generator=spawn(0))
    with pytest.raises(ValueError, match="inputs must have shape"):
        fuzz(lenet, digits28.test[:20], generator=spawn(0))
    wide = ConditionMove(recipe=replace(FIELD, bounds=(0.0, 2.0)), naturalness=None)
    with pytest.raises(ValueError, match="must have the model's bounds"):
        wide(model, seeds, generator=spawn(0))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda n: GradientMove(naturalness=n, radius=0.0), "radius must be positive"),
        (lambda n: GradientMove(naturalness=n, radius=0.1, weight=-1.0), "weight must be 0 or more"),
        (lambda n: GradientMove(naturalness=n, radius=0.1, stop_after=0), "stop_after must be at least 1"),
        (lambda n: GradientMove(naturalness=n, radius=0.1, steps=0), "steps must be at least 1"),
        (lambda n: ConditionMove(recipe=FIELD, naturalness=n, population=0), "population must be at least 1"),
        (lambda n: ConditionMove(recipe=FIELD, naturalness=n, spread=0.0), "spread must be above 0 and at most 1"),
        (lambda n: ConditionMove(recipe=Recipe(severities={}), naturalness=n), "at least one condition"),
        (lambda n: GeneticMove(naturalness=n, radius=0.1, genes="dna"), "genes must be one of codes, values"),
        (lambda n: GeneticMove(naturalness=None, radius=0.1), 'genes="codes" needs naturalness, got None'),
        (lambda n: GeneticMove(naturalness=n, radius=0.1, elites=101), "elites must be from 1 to 30, got 101"),
        (lambda n: GeneticMove(naturalness=n, radius=0.1, generations=0), "generations must be at least 1"),
        (lambda n: GeneticMove(naturalness=n, radius=0.1, switch=1.5), "switch must be a share from 0 to 1"),
        (lambda n: GeneticMove(naturalness=n, radius=0.1, start=0.0), "start must be positive"),
    ],
)
def test_options_out_of_range_are_rejected(naturalness, make, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        make(naturalness)


@pytest.mark.parametrize(
    "options",
    [{"per_seed": 0}, {"moves_per_seed": 0}, {"merge": 1.0}, {"mass_quantile": -0.1}, {"cell_radius": 0.0}],
)
def test_a_mix_out_of_range_is_rejected(fuzz, options) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        replace(fuzz, **options)


# The mass of cells


@pytest.mark.parametrize("width", [0.05, 0.4, 1.0])
@pytest.mark.parametrize("radius", [0.02, 0.5, 1.5, 6.0])
def test_kernels_that_are_left_out_hold_less_than_a_thousandth(width: float, radius: float) -> None:
    at = torch.randn(400, 6, generator=spawn(0, "kernels"))
    weights = torch.rand(400, dtype=torch.float64, generator=spawn(0, "weights"))
    weights = weights / weights.sum()
    shared = width * torch.linspace(0.5, 2, 6, dtype=torch.float64)
    z = torch.cat([at[:20] + 0.1, 3 * torch.randn(20, 6, generator=spawn(1))])
    half = torch.full((6,), radius, dtype=torch.float64)
    few = box_mass(KDE(at, shared, weights), z, half)
    every = box_mass(KDE(at, shared.expand(400, 6).clone(), weights), z, half)  # each its own: none is left out
    precise = every > 1e-30  # below that, single precision has no digits left
    assert int(precise.sum()) >= 5
    torch.testing.assert_close(few[precise], every[precise], rtol=1.1e-3, atol=0)
