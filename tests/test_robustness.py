"""Clopper-Pearson intervals, and empirical robustness in both of its meanings."""

from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, binomtest
from torch import nn

from operant import Classifier, Samples, Suite, spawn
from operant.assess import Rate, Robustness, attack_cases, clopper_pearson_interval, empirical_robustness
from operant.generate import FGSM, PGD
from operant.generate.engine import judge
from operant.results import load, save

# The interval


@settings(max_examples=200)
@given(n=st.integers(1, 5000), share=st.floats(0, 1), confidence=st.floats(0.5, 0.9999))
def test_the_interval_is_scipys(n, share, confidence):
    k = round(share * n)
    ours = clopper_pearson_interval(k, n, confidence=confidence)
    theirs = binomtest(k, n).proportion_ci(confidence, method="exact")
    assert (ours.lower, ours.upper) == pytest.approx((theirs.low, theirs.high), abs=1e-9)
    assert 0 <= ours.lower <= k / n <= ours.upper <= 1
    assert ours.confidence == confidence


@pytest.mark.parametrize("n", [1, 2, 10, 1000])
def test_the_ends_in_closed_form(n):
    none, every = clopper_pearson_interval(0, n), clopper_pearson_interval(n, n)
    assert none.lower == 0
    assert every.upper == 1
    assert none.upper == pytest.approx(1 - 0.025 ** (1 / n))
    assert every.lower == pytest.approx(0.025 ** (1 / n))


@settings(max_examples=100)
@given(n=st.integers(1, 200), p=st.floats(0, 1), confidence=st.sampled_from([0.8, 0.95, 0.99]))
def test_the_interval_covers_every_probability_often_enough(n, p, confidence):
    """Coverage summed exactly over all outcomes, so that no luck takes part."""
    intervals = [clopper_pearson_interval(k, n, confidence=confidence) for k in range(n + 1)]
    covered = [interval.lower <= p <= interval.upper for interval in intervals]
    assert float(binom.pmf(np.arange(n + 1)[covered], n, p).sum()) >= confidence - 1e-9


def test_the_interval_covers_in_simulation():
    p, n, times = 0.93, 150, 2000
    counts = torch.bernoulli(torch.full((times, n), p), generator=spawn(0)).sum(1).int().tolist()
    intervals = {k: clopper_pearson_interval(k, n) for k in set(counts)}
    assert sum(intervals[k].lower <= p <= intervals[k].upper for k in counts) >= 1877


@pytest.mark.parametrize(
    ("k", "n", "confidence", "sentence"),
    [
        (0, 0, 0.95, "n must be at least 1, got 0"),
        (5, 4, 0.95, "from 0 to n, got k=5 of n=4"),
        (-1, 4, 0.95, "from 0 to n, got k=-1"),
        (0.5, 4, 0.95, "whole number"),
        (1, 4, 1.0, "confidence must be between 0 and 1, got 1.0"),
        (1, 4, 0.0, "confidence must be between 0 and 1, got 0.0"),
        (1, 4, float("nan"), "confidence must be between 0 and 1, got nan"),
    ],
)
def test_a_bad_count_is_rejected(k, n, confidence, sentence):
    with pytest.raises(ValueError) as error:
        clopper_pearson_interval(k, n, confidence=confidence)
    assert sentence in str(error.value)


# Robustness whose answer is known: two classes, separated by one plane, in float64

W = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)


def linear(shift: float = 0.0) -> Classifier:
    """Class 1 where W x + shift is positive."""
    layer = nn.Linear(4, 2).double()
    with torch.no_grad():
        layer.weight.copy_(torch.stack([-W / 2, W / 2]))
        layer.bias.copy_(torch.tensor([-shift / 2, shift / 2]))
    return Classifier(layer, bounds=(-10.0, 10.0))


@pytest.fixture
def points() -> Samples:
    """Labelled by the plane through the middle, but every tenth wrongly."""
    x = torch.randn(200, 4, dtype=torch.float64, generator=spawn(0, "points"))
    y = (x @ W > 0).long()
    y[::10] = 1 - y[::10]
    return Samples(x, y)


def margin(points: Samples, shift: float = 0.0):
    """Distance from the plane, positive on the right side of it; attacks of radius r take r * 6.5 from it."""
    return (points.x @ W + shift) * (2 * points.labels - 1)


ATTACKS = {"small": FGSM(radius=0.1), "large": PGD(radius=0.3, steps=5), "other": FGSM(radius=0.2)}


@pytest.mark.parametrize("shift", [0.0, 0.7, -1.3])
def test_adaptive_robustness_is_what_the_margin_says(points, shift, generator):
    result = empirical_robustness(linear(shift), points, ATTACKS, generator=generator)
    expected = [int((margin(points, shift) > r * 6.5).sum()) for r in (0.0, 0.1, 0.3, 0.2, 0.3)]
    rows = (result.clean, *result.adaptive)
    assert [row.name for row in rows] == ["clean", "small", "large", "other", "all"]
    assert [row.k for row in rows] == expected
    assert {row.n for row in rows} == {200}
    assert result.value == result.adaptive[-1].value == expected[-1] / 200
    assert result.static is None


def test_static_robustness_is_what_the_shifted_plane_says(points, generator):
    """An FGSM case loses radius * 6.5 of its margin; another plane shifts the margins of all cases."""
    attacks = {"small": FGSM(radius=0.1), "other": FGSM(radius=0.2)}
    cases = attack_cases(linear(), points, attacks, generator=generator)
    m, y = margin(points), 2 * points.labels - 1
    for shift in (0.0, 0.9, -0.9):
        result = empirical_robustness(linear(shift), points, attacks, mode="static", cases=cases, generator=generator)
        broken = {r: (m > 0) & (m - r * 6.5 < 0) for r in (0.1, 0.2)}  # by the reference
        right = {r: m - r * 6.5 + shift * y > 0 for r in broken}
        small, other, every = result.static
        assert [row.name for row in result.static] == ["small", "other", "all"]
        assert (small.k, small.n) == (int((broken[0.1] & right[0.1]).sum()), int(broken[0.1].sum()))
        assert (other.k, other.n) == (int((broken[0.2] & right[0.2]).sum()), int(broken[0.2].sum()))
        whole = (~broken[0.1] | right[0.1]) & right[0.2] & broken[0.2]
        assert (every.k, every.n) == (int(whole.sum()), int(broken[0.2].sum()))
        assert result.value == every.value
        assert [row.name for row in result.adaptive] == ["small", "other", "all"]  # reported all the same


def test_intervals_are_those_of_the_counts(points, generator):
    cases = attack_cases(linear(), points, ATTACKS, generator=generator)
    result = empirical_robustness(linear(0.5), points, ATTACKS, cases=cases, generator=generator, confidence=0.8)
    for row in (result.clean, *result.adaptive, *result.static):
        interval = clopper_pearson_interval(row.k, row.n, confidence=0.8)
        assert (row.lower, row.upper) == (interval.lower, interval.upper)
    assert result.confidence == 0.8


def test_cases_are_failures_of_correct_samples_named_by_their_attack(points, generator):
    model = linear()
    cases = attack_cases(model, points, ATTACKS, generator=generator)
    assert bool((cases.prediction != cases.label).all())
    assert torch.equal(model.predict(cases.x), cases.prediction)
    assert bool(torch.isin(cases.seed, model.correct(points).ids).all())
    assert set(cases.method.tolist()) == set(ATTACKS)


def two_a_seed(model, seeds, *, generator):
    """A search: for each seed the case itself, and one across the plane where that is near."""
    across = seeds.x - (W * (margin(seeds) + 0.1)[:, None] * (2 * seeds.labels - 1)[:, None] / W.square().sum())
    near = margin(seeds) < 2
    origin = torch.cat([torch.arange(len(seeds)), near.nonzero().flatten()]).sort().values
    twin = torch.cat([torch.zeros(1, dtype=torch.bool), origin[1:] == origin[:-1]])
    x = torch.where(twin[:, None], across[origin], seeds.x[origin])
    return judge(model, seeds, x, origin=origin, method="two")


def test_one_failing_case_of_many_breaks_a_sample(points, generator):
    result = empirical_robustness(linear(), points, {"two": two_a_seed}, generator=generator)
    assert result.adaptive[0].k == int((margin(points) >= 2).sum())
    cases = two_a_seed(linear(), linear().correct(points), generator=generator)  # successful or not
    result = empirical_robustness(linear(), points, {"two": two_a_seed}, cases=cases, generator=generator)
    assert result.static[0].n == int((margin(points) > 0).sum())
    assert result.static[0].k == int((margin(points) >= 2).sum())


def test_a_model_that_gets_nothing_right_has_robustness_0_and_is_no_reference(points, generator):
    wrong = Samples(points.x, (points.x @ W <= 0).long())
    result = empirical_robustness(linear(), wrong, ATTACKS, generator=generator)
    assert [row.k for row in (result.clean, *result.adaptive)] == [0] * 5
    assert [row.name for row in result.adaptive] == [*ATTACKS, "all"]
    with pytest.raises(ValueError, match="none of the 200 samples is classified correctly"):
        attack_cases(linear(), wrong, ATTACKS, generator=generator)


def test_copies_of_one_input_count_each(points, generator):
    twice = Samples.concat([points, points])
    once, both = (empirical_robustness(linear(), s, ATTACKS, generator=generator) for s in (points, twice))
    assert [row.k for row in both.adaptive] == [2 * row.k for row in once.adaptive]
    assert {row.n for row in both.adaptive} == {400}


# On a trained network


@pytest.fixture(scope="module")
def some(digits28) -> Samples:
    return digits28.test[:120]


def test_the_reference_scores_0_on_its_own_cases_and_a_misclassified_sample_is_not_robust(lenet, some, generator):
    attacks = {"fgsm": FGSM(radius=0.1), "pgd": PGD(radius=0.1, steps=5)}
    cases = attack_cases(lenet, some, attacks, generator=generator)
    result = empirical_robustness(lenet, some, attacks, cases=cases, generator=generator)
    assert [row.k for row in result.static] == [0, 0, 0]
    assert 0 < result.clean.k <= 120
    assert all(row.k <= result.clean.k for row in result.adaptive)
    assert result.adaptive[-1].k <= min(row.k for row in result.adaptive[:-1])
    noise = {"nothing": lambda model, seeds, *, generator: judge(model, seeds, seeds.x, method="nothing")}
    assert empirical_robustness(lenet, some, noise, generator=generator).adaptive[0].k == result.clean.k


def test_an_attack_does_not_depend_on_the_others(lenet, some):
    one = {"pgd": PGD(radius=0.1, steps=3)}
    two = {"first": PGD(radius=0.05, steps=2), **one}
    alone, beside = (attack_cases(lenet, some, a, generator=spawn(5)) for a in (one, two))
    assert torch.equal(alone.x, beside[beside.method == "pgd"].x)
    twins = attack_cases(lenet, some, {"a": one["pgd"], "b": one["pgd"]}, generator=spawn(5))
    a, b = (twins[twins.method == name].x for name in "ab")
    assert a.shape != b.shape or not torch.equal(a, b)  # streams of their own


def test_same_generator_same_result_and_no_global_stream(lenet, some):
    attacks, before = {"pgd": PGD(radius=0.08, steps=3)}, torch.random.get_rng_state()
    first, second = (empirical_robustness(lenet, some, attacks, generator=spawn(1)) for _ in range(2))
    assert first == second
    assert torch.equal(before, torch.random.get_rng_state())


# As a value


def example(mode: str = "adaptive", *, static: bool = True) -> Robustness:
    def rate(name: str, k: int, n: int) -> Rate:
        interval = clopper_pearson_interval(k, n)
        return Rate(name=name, k=k, n=n, lower=interval.lower, upper=interval.upper)

    return Robustness(
        mode=mode,
        confidence=0.95,
        clean=rate("clean", 98, 100),
        adaptive=(rate("pgd", 40, 100), rate("all", 37, 100)),
        static=(rate("pgd", 66, 80), rate("all", 60, 80)) if static else None,
    )


@pytest.mark.parametrize("static", [True, False])
def test_robustness_comes_back_from_disk(tmp_path, static):
    result = example(static=static)
    save(result, tmp_path / "robustness.json")
    assert load(tmp_path / "robustness.json", Robustness) == result
    with pytest.raises(FrozenInstanceError):
        result.mode = "static"


def test_the_text_never_gives_one_mode_in_the_others_name():
    assert str(example("adaptive")).startswith("Empirical robustness 37 % (adaptive)")
    assert str(example("static")).startswith("Empirical robustness 75 % (static)")
    lines = [line.split() for line in str(example()).splitlines()]
    assert ["adaptive", "all", "37", "%"] in [line[:4] for line in lines]
    assert ["static", "all", "75", "%"] in [line[:4] for line in lines]
    assert ["clean", "98", "%"] in [line[:3] for line in lines]
    assert "not measured" not in str(example())
    assert "Static was not measured, because no cases were given" in str(example(static=False))


# Invalid arguments


def test_bad_requests_are_rejected(points, generator):
    model, attacks = linear(), {"fgsm": FGSM(radius=0.2)}
    cases = attack_cases(model, points, attacks, generator=generator)
    wide = Suite.of(
        torch.zeros(3, 5), seeds=Samples(torch.zeros(3, 5), torch.zeros(3).long(), torch.arange(3)),
        origin=torch.arange(3), prediction=torch.zeros(3), method="x",
    )  # fmt: skip
    bad = [
        ({"mode": "adaptve"}, "mode must be one of adaptive, static, got 'adaptve'"),
        ({"mode": "static"}, "pass cases=attack_cases("),
        ({"attacks": {}}, "attacks must be fuzzers by name, at least one"),
        ({"attacks": [FGSM(radius=0.1)]}, "attacks must be fuzzers by name"),
        ({"attacks": {"all": FGSM(radius=0.1)}}, 'no attack may be named "all"'),
        ({"samples": points[:0]}, "there are no inputs"),
        ({"samples": Samples(points.x)}, "carry no labels"),
        ({"samples": Samples(points.x, points.labels + 1)}, "labels must be below the model's 2 classes"),
        ({"cases": wide}, "cases must have the samples' shape (4,) and labels below 2, got shape (5,)"),
        ({"cases": replace(cases, label=cases.label + 2)}, "labels below 2, got shape (4,) and labels up to 3"),
        ({"cases": cases[:0]}, "cases must not be empty; generate them with stronger attacks"),
        ({"cases": replace(cases, method=np.array(["all"] * len(cases)))}, 'may be named "all"'),
        ({"confidence": 95}, "confidence must be between 0 and 1, got 95"),
    ]
    for change, sentence in bad:
        request = {"samples": points, "attacks": attacks, "generator": generator, **change}
        with pytest.raises(ValueError) as error:
            empirical_robustness(model, **request)
        assert sentence in str(error.value)
    for samples, sentence in ((points[:0], "there are no inputs"), (Samples(points.x), "carry no labels")):
        with pytest.raises(ValueError, match=sentence):
            attack_cases(model, samples, attacks, generator=generator)
    with pytest.raises(ValueError, match="at least one"):
        attack_cases(model, points, {}, generator=generator)
