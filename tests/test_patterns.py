"""Suites by uncertainty: areas and their intervals against direct sums, tables that add up, the plane as a picture."""

import io
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from operant import Classifier, spawn
from operant.generate import BIM
from operant.generate.engine import judge
from operant.generate.uncertainty import UncertaintyFuzz
from operant.measure import Thresholds, annotate, pattern, with_dropout
from operant.measure.patterns import (
    MEASURES,
    PATTERNS,
    Characterisation,
    auc,
    auc_difference,
    characterise,
    plot_plane,
    toward_adversarial,
)
from operant.results import load, save
from operant.suite import Suite

scores = st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=6, max_size=40).filter(
    lambda rows: 2 <= sum(kind for _, kind in rows) <= len(rows) - 2
)


def unzipped(rows) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor([float(s) for s, _ in rows]), torch.tensor([kind for _, kind in rows])


# Patterns ------------------------------------------------------------------------------------------------------------


def test_patterns_are_those_of_the_thresholds():
    pcs, vro = torch.rand(2, 200, generator=spawn(0)).double()
    half = Thresholds(low_pcs=0.5, high_pcs=0.5, low_vro=0.5, high_vro=0.5)
    expected = [("H" if c > 0.5 else "L") + ("H" if v > 0.5 else "L") for c, v in zip(pcs, vro, strict=True)]
    assert pattern(pcs, vro, half).tolist() == expected


@pytest.mark.parametrize(
    "options", [{"low_pcs": 0.8}, {"low_vro": 0.7}, {"high_vro": 1.2}, {"low_pcs": -0.1}, {"high_pcs": float("nan")}]
)
def test_thresholds_that_cross_or_are_no_shares_are_rejected(options):
    with pytest.raises(ValueError, match="low not above high"):
        Thresholds(**options)


# Areas ---------------------------------------------------------------------------------------------------------------


@given(rows=scores)
def test_the_area_is_scikit_learns_and_lies_in_its_interval(rows):
    score, kind = unzipped(rows)
    found = auc(score, kind)
    assert found.value == pytest.approx(roc_auc_score(kind, score), abs=1e-12)
    assert 0 <= found.lower <= found.value + 1e-12
    assert found.value - 1e-12 <= found.upper <= 1
    assert auc(-score, kind).value == pytest.approx(1 - found.value, abs=1e-12)


@given(rows=scores)
def test_the_spread_is_delongs_written_out(rows):
    score, kind = unzipped(rows)
    x, y = score[kind].numpy(), score[~kind].numpy()
    wins = (x[:, None] > y) + 0.5 * (x[:, None] == y)
    spread = np.sqrt(wins.mean(1).var(ddof=1) / len(x) + wins.mean(0).var(ddof=1) / len(y))
    against_chance = auc_difference(score, torch.zeros_like(score), kind, confidence=0.9)
    assert against_chance.value == pytest.approx(wins.mean() - 0.5, abs=1e-12)
    clipped = np.clip(wins.mean() - 0.5 + 1.6448536 * spread * np.array([-1, 1]), -1, 1)
    assert (against_chance.lower, against_chance.upper) == pytest.approx(clipped, abs=1e-6)


def test_intervals_hold_the_truth_about_as_often_as_they_say():
    """Scores N(1, 1) and N(0, 1): the area is Φ(1/√2) = 0.7602."""
    generator, held = spawn(0, "coverage"), 0
    kind = torch.arange(90) < 40
    for _ in range(300):
        found = auc(torch.randn(90, generator=generator) + kind.float(), kind)
        held += found.lower <= 0.76025 <= found.upper
    assert 270 <= held <= 298


def test_two_kinds_that_do_not_overlap_leave_some_doubt():
    widths = []
    for n in (5, 50, 500):
        score, kind = torch.arange(2 * n).double(), torch.arange(2 * n) >= n
        found, turned = auc(score, kind), auc(-score, kind)
        assert (found.value, found.upper, turned.value, turned.lower) == (1, 1, 0, 0)
        assert turned.upper == pytest.approx(1 - found.lower)
        widths.append(1 - found.lower)
    assert 0.5 > widths[0] > widths[1] > widths[2] > 0


def test_a_difference_turns_its_sign_and_is_none_from_itself():
    kind = torch.arange(60) < 30
    good = torch.randn(60, generator=spawn(0)) + 2 * kind.float()
    poor = torch.randn(60, generator=spawn(1))
    one, other = auc_difference(good, poor, kind), auc_difference(poor, good, kind)
    assert one.lower > 0
    assert (one.value, one.lower, one.upper) == pytest.approx((-other.value, -other.upper, -other.lower))
    same = auc_difference(good, good, kind)
    assert (same.value, same.lower, same.upper) == (0, 0, 0)


@pytest.mark.parametrize(
    ("score", "kind", "confidence", "message"),
    [
        (
            [0.1, 0.2, 0.3],
            [True, False, False],
            0.95,
            "two cases of each kind, got 1 adversarial and 2 benign",
        ),
        ([0.1, float("nan"), 0.3, 0.4], [True, True, False, False], 0.95, "without NaN"),
        ([0.1, 0.2], [True, True, False, False], 0.95, "one per case"),
        ([0.1, 0.2, 0.3, 0.4], [True, True, False, False], 95, "confidence must be between 0 and 1"),
    ],
)
def test_bad_scores_are_rejected(score, kind, confidence, message):
    with pytest.raises(ValueError, match=message):
        auc(torch.tensor(score), torch.tensor(kind), confidence=confidence)


# Tables --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(lenet) -> Classifier:
    return with_dropout(lenet, before=["fc2", "fc3"], rate=0.5)


@pytest.fixture(scope="module")
def suites(model, digits28) -> list[Suite]:
    seeds = model.correct(digits28.test)[:60]
    inputs = judge(model, seeds, seeds.x, method="inputs")
    return [inputs, BIM(radius=0.1, minimal=True)(model, seeds, generator=spawn(0))]


@pytest.fixture(scope="module")
def annotated(model, suites) -> Suite:
    return annotate(model, Suite.concat(suites), passes=20, generator=spawn(0, "masks"))


@pytest.fixture(scope="module")
def found(model, suites) -> Characterisation:
    return characterise(suites, model, passes=20, generator=spawn(0, "masks"))


def test_tables_add_up_and_say_what_the_columns_say(found, suites, annotated):
    assert sum(kind.cases for kind in found.kinds) == len(annotated)
    wrong = annotated.prediction != annotated.label
    for kind in found.kinds:
        rows = torch.from_numpy(annotated.method == kind.method) & (wrong == (kind.kind == "adversarial"))
        assert kind.cases == int(rows.sum()) == sum(kind.patterns.values())
        for name in MEASURES:
            values = annotated[name][rows].double().numpy()
            assert kind.mean[name] == pytest.approx(values.mean(), abs=1e-9)
            assert kind.variance[name] == pytest.approx(values.var(), abs=1e-9)
        shapes = annotated["pattern"][rows.numpy()]
        assert [kind.patterns[p] for p in (*PATTERNS, "")] == [int((shapes == p).sum()) for p in (*PATTERNS, "")]


def test_areas_are_of_each_methods_adversarial_cases_against_all_benign_ones(found, suites, annotated):
    method = str(suites[1].method[0])
    assert list(found.auc) == [method]  # inputs that are read correctly have no adversarial cases
    wrong = annotated.prediction != annotated.label
    for name in MEASURES:
        score = toward_adversarial(name, annotated[name].double())
        assert found.auc[method][name].value == pytest.approx(roc_auc_score(wrong, score), abs=1e-12)
    assert found.auc[method]["pcs"].value > 0.9  # BIM that stops at the boundary


def test_an_annotated_suite_needs_no_model(found, annotated):
    again = characterise(annotated, None)
    assert again == replace(found, passes=None)


def test_the_result_prints_and_can_be_loaded_from_disk(found, tmp_path):
    save(found, tmp_path / "found.json")
    assert load(tmp_path / "found.json", Characterisation) == found
    text = str(found)
    assert all(word in text for word in ("inputs, benign", "adversarial", "PCS", "VRO", "AUC of bim"))
    assert max(map(len, text.splitlines()[:4])) < 170


def test_thresholds_are_obeyed(found, annotated):
    none = characterise(annotated, None, thresholds=Thresholds(low_pcs=0, high_pcs=1, low_vro=0, high_vro=1))
    assert all(kind.patterns[""] == kind.cases for kind in none.kinds)


def test_what_cannot_be_characterised_is_rejected(model, suites):
    with pytest.raises(ValueError, match="lacks the columns pcs, vro.*annotate"):
        characterise(suites, None)
    with pytest.raises(ValueError, match="give a generator"):
        characterise(suites, model)
    with pytest.raises(ValueError, match="no cases to characterise"):
        characterise(suites[0][:0], model, generator=spawn(0))


# The plane -----------------------------------------------------------------------------------------------------------


def test_the_plane_shows_every_case_once(annotated):
    figure = plot_plane(annotated, title="BIM")
    drawn = [points for points in figure.axes[0].collections if len(points.get_offsets())]
    assert sum(len(points.get_offsets()) for points in drawn) == len(annotated)
    places = np.concatenate([np.asarray(points.get_offsets()) for points in drawn])
    expected = np.stack([annotated["pcs"].double(), annotated["vro"].double()], 1)
    assert np.allclose(np.sort(places, 0), np.sort(expected, 0))
    figure.savefig(picture := io.BytesIO(), format="png")
    assert picture.getvalue().startswith(b"\x89PNG")


def test_the_plane_marks_what_was_aimed_at_and_not_reached(model, digits28):
    fuzz = UncertaintyFuzz(pattern="LL", population=8, generations=2, tournament=3, passes=10)
    suite = fuzz(model, model.correct(digits28.test)[:6], generator=spawn(0))
    reached = torch.tensor([1.0, 1, 1, 0, 0, 0], dtype=torch.float64)
    figure = plot_plane(suite.with_columns(reached=reached))
    labels = [points.get_label() for points in figure.axes[0].collections]
    assert all(label.startswith("LL") for label in labels)
    hollow = [p for p in figure.axes[0].collections if p.get_label().endswith("not reached")]
    assert sum(len(p.get_offsets()) for p in hollow) == 3
    assert all(len(p.get_facecolors()) == 0 for p in hollow)


def test_a_suite_without_measures_has_no_plane(suites):
    with pytest.raises(ValueError, match="lacks the columns pcs, vro"):
        plot_plane(suites[0])
