"""Risk scores against the measures they are made of, and laws of their union with the profile's mass."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from operant import Classifier, Samples, spawn
from operant.measure import (
    entropy,
    fit_dsa,
    fit_lsa,
    gini,
    mc_dropout,
    prediction_confidence,
    variation_ratio_original,
    with_dropout,
    zero_order_loss,
)
from operant.model import value_and_gradient
from operant.seeds import (
    combine,
    draw,
    entropy_risk,
    gini_risk,
    gradient_risk,
    margin_risk,
    ranked,
    risk_of,
    surprise_risk,
    vro_risk,
)


@pytest.fixture(scope="module")
def pool(digits28) -> Samples:
    return digits28.test


@pytest.fixture(scope="module")
def scores(lenet, digits28):
    fitted = {
        "lsa": fit_lsa(lenet, digits28.train, layers=["fc3"]),
        "dsa": fit_dsa(lenet, digits28.train, layers=["fc3"]),
    }
    plain = {"margin": margin_risk, "gini": gini_risk, "entropy": entropy_risk, "gradient": gradient_risk}
    return plain | {name: surprise_risk(measure) for name, measure in fitted.items()}


# Scores ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["margin", "gini", "entropy", "gradient", "lsa", "dsa"])
def test_risk_is_one_number_per_row_and_failures_have_more_of_it(name, lenet, pool, scores):
    """In three of four pairs of a failure and another input, the failure has the higher risk."""
    risk = risk_of(lenet, pool, scores[name])
    assert risk.shape == (len(pool),)
    assert risk.dtype == torch.float64
    failed = lenet.predict(pool.x) != pool.labels
    assert float((risk[failed][:, None] > risk[~failed]).double().mean()) > 0.75


@pytest.mark.parametrize("name", ["margin", "gini", "entropy", "gradient", "lsa", "dsa"])
def test_rows_do_not_see_each_other(name, lenet, pool, scores):
    whole = risk_of(lenet, pool[:60], scores[name])
    parts = torch.cat([risk_of(lenet, pool[a:b], scores[name]) for a, b in ((0, 17), (17, 60))])
    assert torch.allclose(whole, parts, rtol=1e-3, atol=1e-5)


def test_without_labels_predictions_stand_for_them(lenet, pool):
    unlabelled = Samples(pool.x)
    for score in (margin_risk, gradient_risk):
        assert torch.equal(risk_of(lenet, pool, score), risk_of(lenet, unlabelled, score))
    confidence = prediction_confidence(lenet.probs(pool.x)).double()
    assert torch.allclose(risk_of(lenet, unlabelled, margin_risk), 1 - confidence, atol=1e-6)
    with pytest.raises(ValueError, match="no labels"):
        risk_of(lenet, unlabelled, margin_risk, labelled=True)


def test_with_labels_known_failures_are_the_riskiest(lenet, pool):
    risk = risk_of(lenet, pool, margin_risk, labelled=True)
    failed = lenet.predict(pool.x) != pool.labels
    assert bool((risk[failed] >= 1).all() & (risk[~failed] <= 1).all())
    assert float(risk.max()) <= 2


def test_gini_and_entropy_are_the_measures(lenet, pool):
    probs = lenet.probs(pool.x)
    assert torch.equal(risk_of(lenet, pool, gini_risk), gini(probs).double())
    assert torch.equal(risk_of(lenet, pool, entropy_risk), entropy(probs).double())


@pytest.mark.parametrize(("norm", "order"), [("l1", 1), ("l2", 2), ("linf", torch.inf)])
def test_gradient_risk_is_the_norm_of_the_gradient_of_the_loss(norm, order):
    model = Classifier(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double(), batch_size=7)
    x, y = torch.rand(20, 6, generator=spawn(0), dtype=torch.float64), torch.arange(20) % 3
    found = gradient_risk(model, x, y, norm=norm)
    _, gradient = value_and_gradient(lambda z: nn.functional.cross_entropy(model.logits(z), y, reduction="none"), x)
    assert torch.allclose(found, torch.linalg.vector_norm(gradient, ord=order, dim=1), rtol=1e-9)
    h = 1e-6 * gradient / torch.linalg.vector_norm(gradient, dim=1, keepdim=True)
    slope = (zero_order_loss(model, (x + h).clamp(0, 1), y) - zero_order_loss(model, x, y)) / 1e-6
    inside = ((x + h) == (x + h).clamp(0, 1)).all(1)
    if norm == "l2":
        assert torch.allclose(found[inside], slope[inside], rtol=1e-3)
    assert torch.equal(risk_of(model, Samples(x, y), partial(gradient_risk, norm=norm), labelled=True), found)


def test_vro_is_the_measure_with_the_same_masks_for_every_call(lenet, pool):
    model = with_dropout(lenet, before=["fc2", "fc3"], rate=0.3)
    score = vro_risk(passes=20, generator=spawn(0))
    risk = risk_of(model, pool[:50], score)
    assert torch.equal(risk, risk_of(model, pool[:50], score))
    halves = [risk_of(model, pool[part], score) for part in (slice(0, 20), slice(20, 50))]
    assert torch.allclose(risk, torch.cat(halves), atol=0.051)  # one pass of twenty may turn by rounding
    other = risk_of(model, pool[:50], vro_risk(passes=20, generator=spawn(1)))
    assert float((risk - other).abs().mean()) < 0.1
    mc = mc_dropout(model, pool.x[:50], passes=400, generator=spawn(2)).probs
    truth = variation_ratio_original(mc, model.predict(pool.x[:50]))
    error = (truth * (1 - truth) * (1 / 20 + 1 / 400)).sqrt() + 0.02
    assert bool(((risk - truth).abs() < 6 * error).all())


def test_vro_is_computed_in_parts_that_meet_the_same_masks(lenet, pool, monkeypatch):
    model = with_dropout(lenet, before=["fc3"], rate=0.3)
    whole = risk_of(model, pool[:300], vro_risk(passes=10, generator=spawn(0)))
    monkeypatch.setattr("operant.seeds.risk.CHUNK", 1)  # batch by batch
    parts = risk_of(model, pool[:300], vro_risk(passes=10, generator=spawn(0)))
    assert torch.allclose(whole, parts, atol=0.101)
    assert float((whole != parts).double().mean()) < 0.05


def test_surprise_is_the_fitted_measure(lenet, digits28, pool):
    dsa = fit_dsa(lenet, digits28.train, layers=["fc3"])
    assert torch.equal(risk_of(lenet, pool, surprise_risk(dsa)), dsa(lenet, pool.x))


def test_any_function_is_a_score(lenet, pool):
    dark = risk_of(lenet, pool, lambda model, x, y: 1 - x.flatten(1).mean(1))
    weights = combine(torch.ones(len(pool)), dark, risk_power=50, defensive=0)
    drawn = draw(pool, weights, 50, design="sequential", generator=spawn(0)).samples(pool)
    assert float(drawn.x.mean()) < float(pool.x.mean())


@pytest.mark.parametrize(
    ("score", "sentence"),
    [
        (lambda model, x, y: x, "score must be a tensor with one number for each of the 5 inputs, got shape"),
        (lambda model, x, y: 1.0, "got a float"),
        (lambda model, x, y: x.flatten(1).sum(1) * torch.nan, "score must be finite, got NaN or infinity in 5 of 5"),
        (partial(gradient_risk, norm="l3"), "norm must be one of l1, l2, linf, got 'l3'"),
    ],
)
def test_what_is_no_score_is_rejected(score, sentence, lenet, pool):
    with pytest.raises(ValueError, match=sentence):
        risk_of(lenet, pool[:5], score)


def test_labels_outside_the_classes_are_rejected(lenet, pool):
    with pytest.raises(ValueError, match="below the model's 10 classes, got 12"):
        gradient_risk(lenet, pool.x[:3], torch.tensor([1, 12, 3]))
    with pytest.raises(ValueError, match="passes must be at least 2"):
        vro_risk(passes=1, generator=spawn(0))


# Combined with mass ---------------------------------------------------------------------------------------------------

numbers = st.lists(st.tuples(st.floats(1e-9, 1e9), st.one_of(st.just(0.0), st.floats(1e-9, 1e9))), max_size=30)


@settings(max_examples=80)
@given(rows=numbers, a=st.sampled_from([0, 0.5, 1, 2]), b=st.sampled_from([0, 0.5, 1, 2]), e=st.floats(0, 1))
def test_weights_sum_to_one_and_every_input_that_has_mass_stays_within_reach(rows, a, b, e):
    mass, risk = torch.tensor([(1.0, 1.0), *rows], dtype=torch.float64).T
    w = combine(mass, risk, mass_power=a, risk_power=b, defensive=e)
    p = mass / mass.sum()
    assert abs(float(w.sum()) - 1) < 1e-9
    assert bool((w >= e * p * (1 - 1e-9)).all())  # so none counts more than 1 / e times
    plain = mass**a * risk**b
    assert torch.allclose(w, (1 - e) * plain / plain.sum() + e * p, rtol=1e-9, atol=1e-30)
    scaled = combine(mass * 1e3, risk * 1e-3, mass_power=a, risk_power=b, defensive=e)
    assert torch.allclose(w, scaled, rtol=1e-9, atol=1e-30)


def test_powers_of_zero_leave_a_factor_out():
    mass, risk = torch.tensor([0.1, 0.2, 0.7]).double(), torch.tensor([0.0, 3.0, 1.0]).double()
    assert torch.allclose(combine(mass, risk, risk_power=0), mass)
    assert torch.allclose(combine(mass, risk, mass_power=0, defensive=0), risk / 4)
    assert torch.allclose(combine(mass, risk, defensive=1), mass)


def test_huge_and_tiny_numbers_neither_overflow_nor_vanish():
    mass, risk = torch.tensor([[1e300, 1e300, 1e-300], [1e300, 5e299, 1e300]], dtype=torch.float64)
    w = combine(mass, risk, mass_power=2, risk_power=3, defensive=0)
    assert torch.allclose(w, torch.tensor([8 / 9, 1 / 9, 0.0]).double())


@pytest.mark.parametrize(
    ("mass", "risk", "options", "sentence"),
    [
        ([1.0, 1.0], [1.0], {}, r"risk must be a tensor with one number for each of the 2 inputs, got shape \(1,\)"),
        ([1.0, 1.0], [1.0, -1.0], {}, r"risk must be 0 or more and finite, got 1 of 2.*use ranked\(risk\)"),
        ([1.0, 1.0], [1.0, torch.nan], {}, "got 1 of 2 that are negative, NaN or infinite"),
        ([1.0, 1.0], [0.0, 0.0], {}, "risk is 0 for every input that has mass, of 2"),
        ([1.0, 0.0], [0.0, 1.0], {}, "risk is 0 for every input that has mass, of 2"),
        ([0.0, 0.0], [1.0, 1.0], {}, "mass must be positive for some input"),
        ([1.0, -1.0], [1.0, 1.0], {}, "mass must be 0 or more"),
        ([], [], {}, "inputs must not be empty"),
        ([1.0], [1.0], {"mass_power": -1}, "mass_power must be 0 or more and finite, got -1"),
        ([1.0], [1.0], {"risk_power": torch.inf}, "risk_power must be 0 or more and finite, got inf"),
        ([1.0], [1.0], {"defensive": 1.5}, "defensive must be a share from 0 to 1, got 1.5"),
        ([1.0], [1.0], {"defensive": torch.nan}, "defensive must be a share from 0 to 1, got nan"),
    ],
)
def test_bad_input_is_rejected(mass, risk, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        combine(torch.tensor(mass), torch.tensor(risk), **options)


@settings(max_examples=60)
@given(values=st.lists(st.one_of(st.floats(-1e30, 1e30), st.integers(-2, 2).map(float)), min_size=1, max_size=30))
def test_ranks_are_shares_in_the_order_of_the_values(values):
    found = ranked(torch.tensor(values, dtype=torch.float64))
    assert found.tolist() == [sum(v <= w for v in values) / len(values) for w in values]


def test_what_has_no_rank_is_rejected():
    for values in (torch.tensor([1.0, torch.nan]), torch.empty(0), torch.rand(2, 2, generator=spawn(0))):
        with pytest.raises(ValueError, match="values must be numbers"):
            ranked(values)
