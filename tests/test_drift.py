"""Drift: tests agree with oracles and keep their level, known shifts are detected and named, bad input is rejected."""

import sys
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest, ks_2samp
from torch import nn

from operant import Classifier, Samples, results, spawn
from operant.conditions import Recipe, apply, fixed
from operant.networks import LeNet5, fit, initialise
from operant.profile.drift import (
    Drift,
    _causes,
    drift,
    gaussian_kernel,
    ks_distances,
    mmd,
    mmd_within,
    splits,
)

ZIPF = (1 / torch.arange(1.0, 11)) / (1 / torch.arange(1.0, 11)).sum()


NAMES = ("red", "a longer name", "blue")


class Blobs(nn.Module):
    """The exact log posterior of three Gaussians in a plane, along its first axis."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return -0.5 * ((x[:, :1] - 4 * torch.arange(3.0).to(x)) / 0.6) ** 2


@pytest.fixture(scope="module")
def toy() -> Classifier:
    return Classifier(Blobs(), bounds=(-99.0, 99.0), strict=True)


def blobs(n: int, *path: int | str, priors: tuple[float, ...] = (1.0, 1.0, 1.0), lift: float = 0.0) -> Samples:
    """Inputs of these priors; ``lift`` moves them along the second axis, which the model ignores."""
    generator = spawn(0, *path)
    y = torch.multinomial(torch.tensor(priors), n, replacement=True, generator=generator)
    noise = 0.6 * torch.randn(n, 2, generator=generator)
    return Samples(noise + torch.stack([4.0 * y, torch.full((n,), lift)], 1), y)


def names(d: Drift) -> list[str]:
    return [finding.name for finding in d.findings]


# Outputs


@settings(max_examples=50)
@given(
    n=st.integers(1, 30),
    m=st.integers(1, 30),
    levels=st.sampled_from([2, 5, 1000]),  # few levels: many ties
    seed=st.integers(0, 2**31),
)
@pytest.mark.filterwarnings("ignore:ks_2samp. Exact calculation unsuccessful:RuntimeWarning")
def test_distances_are_those_of_scipy(n: int, m: int, levels: int, seed: int) -> None:
    generator = spawn(seed)
    a, b = (torch.randint(levels, (k, 4), generator=generator).double() / 7 for k in (n, m))
    theirs = [ks_2samp(a[:, c].numpy(), b[:, c].numpy()).statistic for c in range(4)]
    assert ks_distances(a, b).numpy() == pytest.approx(np.array(theirs))


@pytest.mark.parametrize("current", [60, 61, 300])
def test_the_p_value_of_outputs_is_the_smallest_of_scipys_times_the_classes(toy, current: int) -> None:
    a, b = blobs(60, "a"), blobs(current, "b", priors=(1.0, 1.0, 2.5))
    found = drift(a, b, toy, permutations=99, generator=spawn(0))
    p, q = (toy.batched_logits(s.x).double().log_softmax(1).numpy() for s in (a, b))
    theirs = [ks_2samp(p[:, c], q[:, c]) for c in range(3)]
    assert found.outputs == pytest.approx(min(1.0, 3 * min(t.pvalue for t in theirs)))
    assert found.distances == pytest.approx([t.statistic for t in theirs])
    assert found.most_moved == int(np.argmax([t.statistic for t in theirs]))


def test_the_detectable_distance_is_where_the_test_on_outputs_turns() -> None:
    """Reference outputs lie evenly on a line, a share of the current ones is moved beyond its end."""
    model = Classifier(nn.Sequential(nn.Linear(1, 2, bias=False)), bounds=(-9.0, 9.0), strict=True)
    grid = torch.linspace(-1, 1, 400)[:, None]
    for by, alarm in ((-0.03, False), (0.03, True)):
        share = drift(Samples(grid), Samples(grid + 1e-3), model, generator=spawn(0)).detectable + by
        moved = torch.where(torch.arange(400)[:, None] < share * 400, 2.5 + grid, grid) + 1e-3
        found = drift(Samples(grid), Samples(moved), model, permutations=99, generator=spawn(0))
        assert (found.outputs <= 0.05 / 3) == alarm


# Inputs


def mmd_by_hand(x: np.ndarray, y: np.ndarray, scale: float) -> float:
    def k(a: np.ndarray, b: np.ndarray) -> float:
        return float(np.exp(-((a - b) ** 2).sum() / scale))

    xx = np.mean([k(a, b) for i, a in enumerate(x) for j, b in enumerate(x) if i != j])
    yy = np.mean([k(a, b) for i, a in enumerate(y) for j, b in enumerate(y) if i != j])
    return float(xx + yy - 2 * np.mean([k(a, b) for a in x for b in y]))


@given(n=st.integers(2, 7), m=st.integers(2, 9), seed=st.integers(0, 2**31))
def test_mmd_is_its_definition_for_every_split(n: int, m: int, seed: int) -> None:
    x = torch.randn(n + m, 3, dtype=torch.float64, generator=spawn(seed))
    columns = splits(torch.arange(n + m) < n, torch.zeros(n + m), 5, generator=spawn(seed, "splits"))
    scale = float(torch.pdist(x).square().sort().values[((n + m) * (n + m - 1) // 2 - 1) // 2])
    by_hand = [mmd_by_hand(x[c == 1].numpy(), x[c == 0].numpy(), scale) for c in columns.T]
    assert mmd(gaussian_kernel(x), columns).numpy() == pytest.approx(np.array(by_hand), abs=1e-9)


def test_mmd_is_zero_on_average_over_all_splits(generator) -> None:
    """Unbiased: deviations of the splits cancel."""
    kernel = gaussian_kernel(torch.randn(7, 2, generator=generator))
    columns = torch.zeros(7, 35, dtype=torch.float64)
    for column, rows in enumerate(combinations(range(7), 3)):
        columns[list(rows), column] = 1
    values = mmd(kernel, columns)
    assert float(values.mean()) == pytest.approx(0, abs=1e-12)
    assert float(values.std()) > 0.01


def test_splits_keep_the_sizes_in_every_group_and_begin_with_the_given_one() -> None:
    first, groups = torch.arange(12) < 5, torch.tensor([0, 0, 1, 2, 1, 1, 0, 0, 1, 0, 2, 2])
    columns = splits(first, groups, 4000, generator=spawn(0))
    assert columns.shape == (12, 4001)
    assert torch.equal(columns[:, 0], first.double())
    for group in range(3):
        inside = columns[groups == group]
        assert bool((inside.sum(0) == inside[:, 0].sum()).all())
        share = float(inside[:, 0].mean())
        assert inside[:, 1:].mean(1).tolist() == pytest.approx([share] * len(inside), abs=0.05)  # each row alike


def test_mmd_within_is_the_distance_of_weighted_class_means() -> None:
    """By explicit features: a linear kernel, h = nm / (n + m) of each group, everything times (1/n + 1/m) apart."""
    x = torch.randn(20, 3, dtype=torch.float64, generator=spawn(0))
    first, groups = torch.arange(20) < 8, torch.randint(3, (20,), generator=spawn(1))
    gap = torch.zeros(3, dtype=torch.float64)
    for c in range(3):
        a, b = x[first & (groups == c)], x[~first & (groups == c)]
        assert min(len(a), len(b)) > 0
        gap += len(a) * len(b) / (len(a) + len(b)) * (a.mean(0) - b.mean(0))
    value = mmd_within(x @ x.T, first.double()[:, None], groups)
    assert float(value) == pytest.approx(float(gap @ gap))


def test_mmd_within_does_not_see_what_all_inputs_of_a_group_share() -> None:
    x = torch.randn(20, 3, dtype=torch.float64, generator=spawn(0))
    groups = torch.randint(3, (20,), generator=spawn(1))
    columns = splits(torch.arange(20) < 8, groups, 10, generator=spawn(2))
    moved = x + torch.tensor([0.0, 5.0, -9.0])[groups][:, None]
    assert torch.allclose(mmd_within(x @ x.T, columns, groups), mmd_within(moved @ moved.T, columns, groups))


def test_the_kernel_knows_neither_place_nor_scale(generator) -> None:
    x = torch.randn(40, 5, dtype=torch.float64, generator=generator)
    kernel = gaussian_kernel(x)
    assert torch.allclose(kernel, kernel.T, atol=1e-12)
    assert bool((kernel.diagonal() == 1).all())
    assert torch.allclose(kernel, gaussian_kernel(1000 * x + 7), atol=1e-9)
    assert float(kernel.flatten().median()) == pytest.approx(np.exp(-1), abs=0.02)


def test_the_kernel_does_not_depend_on_blocks(generator, monkeypatch) -> None:
    x = torch.randn(50, 6, generator=generator)
    whole = gaussian_kernel(x)
    monkeypatch.setattr(sys.modules[gaussian_kernel.__module__], "BLOCK", 100)
    assert torch.allclose(gaussian_kernel(x), whole, atol=1e-12)


@pytest.mark.parametrize("distinct", [1, 2])
def test_inputs_that_are_nearly_all_equal_raise_no_alarm(toy, distinct: int) -> None:
    x = torch.full((80, 2), 0.3)
    x[::40] += distinct - 1
    found = drift(Samples(x[:40], ids=torch.arange(40)), Samples(x[40:]), toy, permutations=99, generator=spawn(0))
    assert (found.inputs, found.outputs, found.alarm) == (1.0, 1.0, False)


def test_p_values_are_as_often_below_a_level_as_it_says(toy) -> None:
    """Neither too often nor too seldom; (1) may be below, since Bonferroni and steps of the KS distance are careful."""
    inputs, within, outputs = [], [], []
    for r in range(300):
        found = drift(blobs(40, r, "a"), blobs(30, r, "b"), toy, permutations=99, generator=spawn(r))
        inputs.append(found.inputs <= 0.2)
        within.append(found.within <= 0.2)
        outputs.append(found.outputs <= 0.2)
    for below in (inputs, within):
        assert binomtest(sum(below), 300, 0.2).pvalue > 0.005
    assert binomtest(sum(outputs), 300, 0.2, alternative="greater").pvalue > 0.01


# Both


def test_the_tests_share_the_level(toy) -> None:
    a, b = blobs(60, "a"), blobs(60, "b", priors=(1.0, 1.0, 2.0))
    found = drift(a, b, toy, permutations=99, generator=spawn(0))
    for p in ((0.3, 0.03, 0.2), (0.02, 0.6, None), (0.9, 0.8, 0.7), (0.9, 0.8, 0.07)):
        other = replace(found, **dict(zip(("outputs", "inputs", "within"), p, strict=True)))
        assert other.p_value == min(1.0, 3 * min(v for v in p if v is not None))
        assert not replace(other, level=other.p_value * 0.99).alarm
        assert replace(other, level=other.p_value).alarm


def test_re_splits_of_the_same_data_raise_no_more_alarms_than_the_level_allows(toy) -> None:
    data, alarms = blobs(400, "data"), 0
    for r in range(200):
        order = torch.randperm(400, generator=spawn(r))
        alarms += drift(data[order[:60]], data[order[60:120]], toy, permutations=99, generator=spawn(r, 1)).alarm
    assert alarms <= 18  # not rejected against 5 % of 200 at level .01


def test_a_change_of_class_shares_is_detected_and_named(toy) -> None:
    found = drift(blobs(300, "a"), blobs(300, "b", priors=(1.0, 2.0, 5.0)), toy, generator=spawn(0))
    assert found.alarm
    assert found.outputs < 1e-3 and found.inputs < 0.01 and found.shares < 1e-6  # noqa: PT018
    assert found.within > 0.1
    assert names(found) == ["class shares moved"]
    assert "estimate_priors" in found.findings[0].advice
    assert found.moved[0] == pytest.approx(1 / 8 - 1 / 3, abs=0.09)
    assert sum(found.moved) == pytest.approx(0, abs=1e-6)


def test_a_change_that_the_model_does_not_see_is_detected_in_the_inputs(toy) -> None:
    found = drift(blobs(300, "a"), blobs(300, "b", lift=0.6), toy, generator=spawn(0))
    assert found.alarm
    assert found.outputs > 0.1
    assert found.inputs < 0.05
    assert found.within < 0.01
    assert names(found) == ["inputs moved"]
    assert "label some" in found.findings[0].advice
    assert found.discrepancy > 0


def test_a_change_without_a_clear_cause_is_called_so(toy) -> None:
    found = drift(blobs(300, "a"), blobs(300, "b", priors=(1.0, 1.0, 3.0)), toy, generator=spawn(0))
    cases = {
        "inputs moved": replace(found, within=0.01, shares=0.5),
        "class shares moved": replace(found, within=0.5, shares=0.01),
        "cause not clear": replace(found, within=0.5, shares=0.5),
    }
    assert {name: [finding.name for finding in _causes(case)] for name, case in cases.items()} == {
        name: [name] for name in cases
    }
    assert [finding.name for finding in _causes(replace(found, within=None, shares=0.001))] == ["cause not clear"]
    assert "estimate_priors" in _causes(replace(found, within=0.01, shares=0.01))[0].advice
    assert "estimate_priors" not in _causes(cases["inputs moved"])[0].advice
    assert _causes(replace(found, outputs=0.9, inputs=0.9, within=0.9)) == ()


def test_predictions_that_the_reference_does_not_have_cannot_be_compared_within(toy) -> None:
    found = drift(
        blobs(60, "a", priors=(1.0, 1.0, 0.0)), blobs(60, "b", priors=(0.0, 0.0, 1.0)), toy, generator=spawn(0)
    )
    assert found.within is None
    assert names(found) == ["cause not clear"]
    assert "not comparable" in str(found)


def test_the_sides_are_alike(toy) -> None:
    a, b = blobs(90, "a"), blobs(70, "b", priors=(1.0, 1.0, 2.0))
    one, other = (drift(*pair, toy, generator=spawn(0)) for pair in ((a, b), (b, a)))
    assert other.outputs == pytest.approx(one.outputs)
    assert other.discrepancy == pytest.approx(one.discrepancy)
    assert other.distances == pytest.approx(one.distances)
    assert other.moved == pytest.approx([-v for v in one.moved])
    assert other.inputs == pytest.approx(one.inputs, abs=0.1)
    assert (one.sizes, other.sizes) == ((90, 70), (70, 90))


def test_labels_are_ignored(toy) -> None:
    a, b = blobs(60, "a"), blobs(60, "b")
    bare = [Samples(s.x) for s in (a, b)]
    assert drift(a, b, toy, generator=spawn(0)) == drift(*bare, toy, generator=spawn(0))


def test_many_inputs_are_compared_in_part(toy) -> None:
    a, b = blobs(300, "a"), blobs(40, "b", lift=1.0)
    found = drift(a, b, toy, rows=50, permutations=99, generator=spawn(0))
    assert found.compared == (50, 40)
    assert found.sizes == (300, 40)
    assert found.within <= 0.02


def test_columns_of_a_table_are_compared_as_the_model_gets_them() -> None:
    """A change of a small column next to a large one shows once both are normalised."""
    a, b = blobs(200, "a"), blobs(200, "b", lift=0.5)
    large = [Samples(s.x * torch.tensor([1000.0, 1.0])) for s in (a, b)]
    found = [
        drift(*large, Classifier(Blobs(), bounds=(-1e5, 1e5), mean=0.0, std=std, strict=True), generator=spawn(0))
        for std in ([1000.0, 1.0], [1.0, 1.0])
    ]
    assert found[0].within <= 0.01
    assert found[1].within > 0.05


def test_same_generator_same_numbers_a_round_trip_and_a_print(toy, tmp_path) -> None:
    a, b = blobs(60, "a"), blobs(60, "b", priors=(1.0, 1.0, 4.0))
    first, second = (drift(a, b, toy, generator=spawn(2)) for _ in range(2))
    assert first == second
    results.save(first, tmp_path / "drift.json")
    assert results.load(tmp_path / "drift.json", Drift) == first
    assert str(first).startswith("Drift (p = ")
    calm = drift(a, blobs(60, "c"), toy, generator=spawn(2))
    assert str(calm).startswith("No drift detected (p = ")
    assert "No alarm is no proof" in str(calm)
    assert "No alarm" not in str(first)
    many = replace(calm, distances=(0.1,) * 12, reference_shares=(0.1,) * 12, current_shares=(0.1,) * 12)
    assert "and 2 classes that moved less" in str(many)


# Digits


def digits_sides(digits28, repetition: int) -> tuple[Samples, Samples]:
    """The test digits, split again into two halves."""
    order = torch.randperm(len(digits28.test), generator=spawn(repetition, "deal"))
    return digits28.test[order[::2]], digits28.test[order[1::2]]


def blurred(samples: Samples, sigma: float) -> Samples:
    drawn = Recipe(severities={"blur": fixed(sigma)}).draw(len(samples), generator=spawn(0))
    return Samples(apply(samples.x, drawn), samples.y)


def zipf(samples: Samples, n: int, generator: torch.Generator) -> Samples:
    """At most n different inputs, with class shares by Zipf's law."""
    wanted = torch.multinomial(ZIPF, n, replacement=True, generator=generator).bincount(minlength=10)
    return samples[torch.cat([(samples.labels == c).nonzero().flatten()[: wanted[c]] for c in range(10)])]


def test_digits_that_moved_are_detected_and_their_cause_is_named(lenet, digits28) -> None:
    reference, current = digits_sides(digits28, 0)
    cases = {
        "inputs moved": blurred(current, 2.0),  # digits of 8 pixels made 28: one of their pixels is 3.5 of these
        "class shares moved": zipf(current, 60, spawn(0, "zipf")),
    }
    for name, moved in cases.items():
        found = drift(reference, moved, lenet, generator=spawn(1))
        assert found.p_value < 0.02
        assert names(found) == [name]
    assert not drift(reference, current, lenet, generator=spawn(1)).alarm


@pytest.fixture(scope="module")
def learner(digits28) -> tuple[Classifier, Samples]:
    """A LeNet-5 that has learned 600 digits, and all the others."""
    start = initialise(LeNet5, generator=spawn(0, "weights"))
    fitted = fit(start, digits28.train[:600], epochs=8, batch_size=32, generator=spawn(0, "training"), progress=False)
    return Classifier(fitted.module), Samples.concat([digits28.train[600:], digits28.test])


@pytest.mark.slow
def test_re_splits_of_digits_raise_no_more_alarms_than_the_level_allows(learner) -> None:
    model, pool = learner
    alarms = 0
    for r in range(200):
        order = torch.randperm(len(pool), generator=spawn(r, "deal"))
        alarms += drift(pool[order[:300]], pool[order[300:600]], model, generator=spawn(r)).alarm
    assert alarms <= 18  # not rejected against 5 % of 200 at level .01


@pytest.mark.slow
@pytest.mark.parametrize("shift", ["blur", "zipf"])
def test_shifts_of_digits_are_detected_nine_times_in_ten(learner, shift: str) -> None:
    model, pool = learner
    alarms = 0
    for r in range(100):
        order = torch.randperm(len(pool), generator=spawn(r, "deal"))
        reference, current = pool[order[:400]], pool[order[400:]]
        moved = blurred(current[:180], 2.0) if shift == "blur" else zipf(current, 180, spawn(r, "zipf"))
        alarms += drift(reference, moved, model, generator=spawn(r)).alarm
    assert alarms > 90


def test_classes_are_called_by_their_names(toy, tmp_path) -> None:
    a, b = blobs(300, "a"), blobs(300, "b", priors=(1.0, 1.0, 9.0))
    plain = drift(a, b, toy, generator=spawn(0))
    most = NAMES[plain.most_moved]
    for one, other in ((replace(a, classes=NAMES), b), (a, replace(b, classes=NAMES))):
        found = drift(one, other, toy, generator=spawn(0))
        assert replace(found, classes=(), findings=()) == replace(plain, findings=())
        assert f"the output for class {most} moved most" in found.findings[0].problem
        table = [line for line in found.details.splitlines() if " %  " in line]
        assert [line[: len("  a longer name")].strip() for line in table] == sorted(
            NAMES, key=lambda name: -found.distances[NAMES.index(name)]
        )
        assert len({len(line) for line in table}) == 1
        results.save(found, tmp_path / "drift.json")
        assert results.load(tmp_path / "drift.json", Drift) == found
    assert "the output for class 2 moved most" in plain.findings[0].problem
    other_classes = drift(replace(a, classes=tuple("abcd")), b, toy, generator=spawn(0))
    assert other_classes == plain  # names of other classes than the model's are not used


# Findings and rejected input


def test_inputs_that_occur_twice_are_reported(toy) -> None:
    a, b = blobs(60, "a"), blobs(60, "b")
    shared = Samples.concat([b[:50], a[:3]])
    found = drift(a, shared, toy, generator=spawn(0))
    assert names(found) == ["shared inputs"]
    assert "3 of 53 current inputs" in found.findings[0].problem
    repeated = drift(a, Samples.concat([b, b[:10]]), toy, generator=spawn(0))
    assert names(repeated) == ["repeated inputs"]
    assert "10 of 70 current inputs" in str(repeated)


def test_bad_input_is_rejected_with_a_sentence(toy) -> None:
    a, b = blobs(60, "a"), blobs(60, "b")
    wide = Samples(torch.rand(60, 3))
    holes = Samples(torch.where(torch.arange(60)[:, None] < 2, torch.nan, b.x))
    for arguments, options, words in (
        ((a, wide), {}, r"must have one shape, got \(2,\) and \(3,\)"),
        ((a[:19], b), {}, "number of reference inputs must be at least 20, got 19"),
        ((a, b[:5]), {}, "number of current inputs must be at least 20, got 5"),
        ((a, b), {"level": 0.0}, "level must be between 0 and 1, got 0.0"),
        ((a, b), {"level": 1.0}, "level must be between"),
        ((a, b), {"level": float("nan")}, "level must be between"),
        ((a, b), {"permutations": 58}, "permutations must be at least 59, got 58"),
        ((a, b), {"level": 0.001}, "permutations must be at least 2999"),
        ((a, b), {"rows": 10}, "rows must be at least 20"),
        ((a, holes), {}, "current inputs contain NaN in 2 of 60 rows"),
        ((replace(a, x=1000 * a.x), b), {}, "reference inputs must lie within bounds"),
        ((a[:25], a), {}, "25 of 60 current inputs are in the reference"),
        ((a, a), {}, "60 of 60 current inputs are in the reference"),
        ((a, replace(b, y=b.labels + 3)), {}, "current inputs have a class 5 that the model does not have"),
        ((a, replace(b, y=b.labels + 3, classes=tuple("abcdef"))), {}, r"have a class f \(number 5\) that the model"),
    ):
        with pytest.raises(ValueError, match=words):
            drift(*arguments, toy, **{"generator": spawn(0), **options})
    assert drift(a, b, toy, permutations=59, generator=spawn(0)).inputs >= 1 / 60
