"""KuK: fitness as the equations say it, laws of fuzzers, VRO asked for late without a difference, honest counts."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from operant import Classifier, Samples, load_digits, spawn
from operant.generate import uncertainty
from operant.generate._uncertainty_fitness import PATTERNS, Aim
from operant.generate.uncertainty import UncertaintyFuzz
from operant.measure import (
    Thresholds,
    mc_dropout,
    pattern,
    prediction_confidence,
    variation_ratio_original,
    with_dropout,
)
from operant.networks import LeNet5, fit, initialise
from operant.testing import check_fuzzer, toy_classifier, toy_seeds

SMALL = {"population": 12, "generations": 3, "tournament": 4, "passes": 6}
CLOSE = Thresholds(low_pcs=0.45, high_pcs=0.5, low_vro=0.2, high_vro=0.25)


@pytest.fixture(scope="module")
def model() -> Classifier:
    start = initialise(lambda: LeNet5(size=8), generator=spawn(0, "weights"))
    few = load_digits().train[:500]
    fitted = fit(start, few, epochs=8, learning_rate=4e-3, generator=spawn(0, "training"), progress=False)
    return with_dropout(Classifier(fitted.module), before=["fc2", "fc3"], rate=0.5)


@pytest.fixture(scope="module")
def seeds(model: Classifier) -> Samples:
    return model.correct(load_digits().test)[:12]


# Fitness --------------------------------------------------------------------------------------------------------------


def written_out(pattern: str, pcs, wrong, vro, p: float) -> list[float]:
    """Equations 1 to 4, word for word, for one population."""
    out = []
    for c, ae, v in zip(pcs, wrong, vro, strict=True):
        be = not ae
        if pattern == "LL":
            out.append(-c if min(pcs) > p else (c < p) - v)
        elif pattern == "HH":
            out.append(c if max(pcs) < p else (c > p) + v)
        elif pattern == "HL":
            if not any(wrong):
                out.append(-c)
            elif any(wrong) and max(pcs) < p:
                out.append(ae + c)
            else:
                out.append(ae + (c > p) - v)
        else:
            out.append(be - c if min(pcs) > p else be + (c < p) + v)
    return out


def demanded(pattern: str, c: float, ae: bool, v: float, aim: Aim) -> bool:
    return {
        "LL": c < aim.p and v < aim.v,
        "HH": c > aim.p and v > aim.v,
        "HL": c > aim.p and v < aim.v and ae,
        "LH": c < aim.p and v > aim.v and not ae,
    }[pattern]


populations = st.integers(1, 4).flatmap(
    lambda m: st.integers(2, 6).flatmap(
        lambda n: st.tuples(
            *[
                st.lists(st.lists(one, min_size=n, max_size=n), min_size=m, max_size=m)
                for one in (
                    st.one_of(st.sampled_from([0.3, 0.7]), st.floats(0, 1)),
                    st.booleans(),
                    st.integers(0, 10).map(lambda k: k / 10),
                )
            ]
        )
    )
)


def tensors(population) -> tuple[Tensor, Tensor, Tensor]:
    pcs, wrong, vro = population
    return torch.tensor(pcs, dtype=torch.float64), torch.tensor(wrong), torch.tensor(vro, dtype=torch.float64)


@pytest.mark.parametrize("pattern", PATTERNS)
@settings(max_examples=40)
@given(population=populations)
def test_fitness_and_objective_are_the_equations(pattern, population):
    aim = Aim.at(pattern, Thresholds())
    pcs, wrong, vro = tensors(population)
    expected = [written_out(pattern, c, w, v, aim.p) for c, w, v in zip(*population, strict=True)]
    assert np.allclose(aim.fitness(pcs, wrong, vro), np.array(expected, dtype=float), rtol=0, atol=1e-12)
    rows = [[demanded(pattern, *one, aim) for one in zip(*part, strict=True)] for part in zip(*population, strict=True)]
    assert aim.met(pcs, wrong, vro).tolist() == rows


@pytest.mark.parametrize("pattern", PATTERNS)
@settings(max_examples=40)
@given(population=populations)
def test_vro_is_in_the_last_line_only_and_the_objective_too(pattern, population):
    aim = Aim.at(pattern, Thresholds())
    pcs, wrong, vro = tensors(population)
    unknown = torch.full_like(vro, torch.nan)
    last = aim.last(pcs, wrong)
    assert torch.equal(aim.fitness(pcs, wrong, unknown).isnan(), last[:, None].expand_as(pcs))
    assert not bool(aim.met(pcs, wrong, vro)[~last].any())
    assert not bool(aim.met(pcs, wrong, unknown).any())


def test_an_aim_takes_the_thresholds_of_its_letters():
    aims = [Aim.at(pattern, Thresholds()) for pattern in ("LL", "HH", "HL", "LH")]
    assert [(aim.p, aim.v) for aim in aims] == [(0.3, 0.4), (0.7, 0.6), (0.7, 0.4), (0.3, 0.6)]


def test_the_best_of_a_failed_seed_is_of_the_kind_and_then_nearest():
    pcs, vro = torch.tensor([0.9, 0.4, 0.2]), torch.tensor([0.1, 0.5, 0.9])
    wrong = torch.tensor([False, True, False])
    best = {p: int(Aim.at(p, Thresholds()).nearness(pcs, wrong, vro).argmax()) for p in PATTERNS}
    assert best == {"LL": 1, "HH": 2, "HL": 1, "LH": 2}  # LL: 0.9 is least; HH: 1.1 is most


# Selection ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "t"), [(6, 1), (6, 3), (7, 5)])
def test_ranks_of_winners_are_those_of_all_tournaments(n, t):
    winners = [min(some) for some in combinations(range(n), t)]
    expected = [np.mean([w >= r for w in winners]) for r in range(n + 1)]
    assert np.allclose(uncertainty._reaching(n, t), expected)


def test_parents_are_two_members_and_the_first_wins_as_often_as_it_should():
    fuzz = UncertaintyFuzz(pattern="LL", population=8, tournament=3, elites=0)
    first, second = torch.cat([fuzz._ranks(spawn(0, i)) for i in range(500)], 1)
    assert bool((first != second).all())
    assert {int(ranks.min()) for ranks in (first, second)} == {0}
    assert int(torch.cat([first, second]).max()) < 8
    share = torch.bincount(first, minlength=8).double() / len(first)
    assert torch.allclose(share, -uncertainty._reaching(8, 3).diff(), rtol=0, atol=0.03)
    assert float(share[6:].sum()) == 0  # of three members, one is at least the third from the end


# Laws -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", PATTERNS)
def test_laws_of_fuzzers(pattern):
    model = with_dropout(toy_classifier(), before=["3"], rate=0.3)
    more = (
        {"mutated": "values", "mutation": 0.2, "screen": 3}
        if pattern in ("HL", "LH")
        else {"elites": 0, "fresh_masks": True}
    )
    fuzz = UncertaintyFuzz(pattern=pattern, **SMALL, **more, radius=0.2, thresholds=CLOSE)
    check_fuzzer(fuzz, model=model, seeds=toy_seeds(model))


def test_members_start_in_the_whole_ball_and_stay_in_it(model, seeds):
    fuzz = UncertaintyFuzz(pattern="HL", **SMALL, radius=0.25, mutation=1.0)
    suite = fuzz(model, seeds, generator=spawn(0))
    assert float(suite.distances("linf").max()) <= 0.25 + 1e-6
    assert float(suite.distances("linf").min()) > 0.2  # 64 values with noise
    assert bool(((suite.x >= 0) & (suite.x <= 1)).all())
    small = replace(fuzz, noise=0.1, mutation=0.0)(model, seeds, generator=spawn(0))
    assert 0.05 < float(small.distances("linf").min()) <= float(small.distances("linf").max()) <= 0.1 + 1e-6


# What the search is after ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("aim", PATTERNS)
@pytest.mark.parametrize("more", [{}, {"screen": 8}, {"fresh_masks": True}], ids=str)
def test_columns_tell_the_truth(model, seeds, aim, more):
    fuzz = UncertaintyFuzz(pattern=aim, **{**SMALL, "passes": 20}, **more, thresholds=CLOSE)
    suite = fuzz(model, seeds, generator=spawn(0))
    wrong, reached, confirmed = suite.prediction != suite.label, suite["reached"] > 0, suite["confirmed"] > 0
    assert len(suite) == suite.attempted == len(seeds)  # one case a seed, reached or not
    assert torch.equal(suite["pcs"].float(), prediction_confidence(model.probs(suite.x)))
    assert bool(fuzz.aim.met(suite["pcs"], wrong, suite["vro_search"])[reached].all())
    if "screen" not in more:  # else one may have met it that was not among the three to be asked
        assert not bool(fuzz.aim.met(suite["pcs"], wrong, suite["vro_search"])[~reached].any())
    assert torch.equal(confirmed, reached & fuzz.aim.met(suite["pcs"], wrong, suite["vro"]))
    assert suite["pattern"].tolist() == pattern(suite["pcs"], suite["vro"], CLOSE).tolist()
    assert set(suite["aim"].tolist()) == {aim}
    assert bool((suite["generation"][~reached] == fuzz.generations).all())


def test_a_screen_asks_the_fittest_candidates_for_all_passes(model, seeds, monkeypatch):
    """Three of a seed and generation at most; whoever is taken met the objective in all passes."""
    asked, plain = [], uncertainty._vro

    def watched(model, x, prediction, passes, masks):
        asked.append((passes, len(x)))
        return plain(model, x, prediction, passes, masks)

    monkeypatch.setattr(uncertainty, "_vro", watched)
    easy = Thresholds(low_pcs=0.0, high_pcs=0.0, low_vro=0.1, high_vro=0.1)
    fuzz = UncertaintyFuzz(pattern="HH", **{**SMALL, "passes": 20}, screen=5, thresholds=easy)
    suite = fuzz(model, seeds, generator=spawn(0))
    screened, whole = ([n for passes, n in asked[:-1] if passes == wanted] for wanted in (5, 20))
    assert max(screened) > 3 * len(seeds) >= max(whole) > len(seeds)
    assert bool((suite["reached"] > 0).any())


def test_vro_of_the_last_look_is_by_other_masks(model, seeds):
    suite = UncertaintyFuzz(pattern="HH", **{**SMALL, "passes": 20})(model, seeds, generator=spawn(0))
    masks = int(torch.randint(2**62, (1 + len(seeds),), generator=spawn(0))[0])
    for name, column in (("search", "vro_search"), ("fresh", "vro")):
        mc = mc_dropout(model, suite.x, passes=20, generator=spawn(masks, name)).probs
        assert torch.equal(suite[column], variation_ratio_original(mc, suite.prediction))
    assert not torch.equal(suite["vro"], suite["vro_search"])


def test_breeding_reaches_what_noise_does_not(model, seeds):
    fuzz = UncertaintyFuzz(pattern="LH", population=30, generations=15, tournament=8, passes=20)
    suite = fuzz(model, seeds, generator=spawn(0))
    reached = suite["reached"] > 0
    first = reached & (suite["generation"] == 0)
    assert int(reached.sum()) > int(first.sum())
    assert bool((suite.prediction == suite.label)[reached].all())


# VRO is asked for late ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", PATTERNS)
def test_asking_for_vro_late_changes_no_case(model, seeds, pattern, monkeypatch):
    asked = []
    spied = uncertainty._vro

    def counting(model, x, *args):
        asked[-1] += len(x)
        return spied(model, x, *args)

    def of_everyone(self, model, rows, masks):
        m, n = rows["pcs"].shape
        x, said = rows["x"].flatten(0, 1), rows["prediction"].flatten()
        return uncertainty._vro(model, x, said, self.passes, masks).view(m, n)

    monkeypatch.setattr(uncertainty, "_vro", counting)
    fuzz = UncertaintyFuzz(pattern=pattern, population=24, generations=6, tournament=10, passes=10)
    digests = []
    for lazy in (True, False):
        asked.append(0)
        with monkeypatch.context() as patch:
            if not lazy:
                patch.setattr(UncertaintyFuzz, "_vro_where_needed", of_everyone)
            digests.append(fuzz(model, seeds, generator=spawn(0)).digest())
    assert digests[0] == digests[1]
    assert asked[0] < asked[1]


def test_populations_on_an_early_line_cost_no_pass(model, seeds, monkeypatch):
    """Where no PCS can be above p, HH stays on its first line; VRO is asked for at the end only."""
    asked = []
    spied = uncertainty._vro
    monkeypatch.setattr(uncertainty, "_vro", lambda model, x, *args: (asked.append(len(x)), spied(model, x, *args))[1])
    fuzz = UncertaintyFuzz(pattern="HH", **SMALL, thresholds=Thresholds(high_pcs=1.0))
    suite = fuzz(model, seeds, generator=spawn(0))
    assert int(suite["reached"].sum()) == 0
    assert sum(asked) == len(seeds) * (fuzz.population + 1)  # all for the best, then each case by fresh masks


# What is skipped and rejected -----------------------------------------------------------------------------------------


def test_misclassified_seeds_are_skipped_and_counted(model, seeds):
    y = seeds.labels.clone()
    y[[1, 4, 5]] = (y[[1, 4, 5]] + 1) % 10
    mixed = replace(seeds, y=y)
    fuzz = UncertaintyFuzz(pattern="LL", **SMALL)
    suite = fuzz(model, mixed, generator=spawn(0))
    assert (suite.attempted, suite.skipped, len(suite)) == (9, 3, 9)
    kept = torch.isin(seeds.ids, suite.seed)
    whole = fuzz(model, seeds, generator=spawn(0))
    assert torch.equal(whole.x[kept], suite.x)  # the others are what they would be
    none = fuzz(model, replace(seeds, y=(seeds.labels + 1) % 10), generator=spawn(0))
    assert (none.attempted, none.skipped, len(none)) == (0, len(seeds), 0)
    assert set(none.columns) == set(suite.columns)


def test_a_model_without_dropout_is_rejected(seeds):
    plain = Classifier(LeNet5(size=8))
    with pytest.raises(ValueError, match="without any dropout.*with_dropout"):
        UncertaintyFuzz(pattern="LL")(plain, Samples(seeds.x, plain.predict(seeds.x)), generator=spawn(0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pattern": "XL"}, "pattern must be one of LL, HH, HL, LH"),
        ({"population": 1}, "population must be at least 2"),
        ({"generations": 0}, "generations must be at least 1"),
        ({"radius": 0.0}, "radius must be positive"),
        ({"crossover": 1.5}, "crossover must be a share from 0 to 1"),
        ({"mutation": -0.1}, "mutation must be a share from 0 to 1"),
        ({"mutated": "rows"}, "mutated must be one of images, values"),
        ({"tournament": 100}, "tournament must be from 1 to 99"),
        ({"elites": 100}, "elites must be from 0 to 99"),
        ({"passes": 1}, "passes must be at least 2"),
        ({"noise": 0.4}, "noise must be above 0 and at most 0.3"),
        ({"noise": 0.0}, "noise must be above 0"),
        ({"screen": 51}, "screen must be from 2 to 50"),
    ],
)
def test_bad_options_are_rejected(options, message):
    with pytest.raises(ValueError, match=message):
        UncertaintyFuzz(**{"pattern": "LL", **options})


def test_children_take_whole_pixels_from_their_parents() -> None:
    fuzz = UncertaintyFuzz(pattern="LL", crossover=0.3)
    dark, light = torch.zeros(40, 3, 8, 8), torch.ones(40, 3, 8, 8)
    crossed = fuzz._crossed(dark, light, spawn(0))
    assert torch.equal(crossed, crossed[:, :1].expand_as(crossed))
    assert float(crossed.mean()) == pytest.approx(0.7, abs=0.04)
    rows = fuzz._crossed(dark.flatten(1), light.flatten(1), spawn(0))  # a table has no pixels: value by value
    assert not torch.equal(rows.view_as(dark)[:, 0], rows.view_as(dark)[:, 1])
