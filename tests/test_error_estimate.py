"""The error without labels: methods keep their laws, known shifts are estimated, breaks are reported."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from scipy.special import softmax
from torch import nn

from operant import Classifier, Samples, results, spawn
from operant.conditions import Recipe, apply, fixed
from operant.profile import ErrorEstimate, FittedConditions, Parameter, Priors, estimate_error, estimate_priors
from operant.profile._error_methods import (
    confidence_error,
    fit_temperature,
    fit_threshold,
    negative_entropy,
    transport_error,
    transport_potentials,
    transport_value,
)
from operant.profile._words import describe_error

SEEDS = st.integers(0, 2**32 - 1)
EVEN, SHIFTED = [1 / 3] * 3, [0.7, 0.25, 0.05]
QUICK = {"resamples": 20}


class Blobs(nn.Module):
    """The log posterior of Gaussians around 0, 1 and 2 under even priors, times a factor."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.factor * -0.5 * ((x - torch.arange(3.0).to(x)) / 0.6) ** 2


def blobs(priors: list[float], n: int, generator: torch.Generator) -> Samples:
    y = torch.multinomial(torch.tensor(priors), n, replacement=True, generator=generator)
    return Samples(y[:, None] + 0.6 * torch.randn(n, 1, generator=generator), y)


def toy(factor: float = 3.0) -> Classifier:
    return Classifier(Blobs(factor), bounds=(-9.0, 9.0))


def random_outputs(seed: int, n: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities and class shares."""
    draws = np.random.default_rng(seed)
    return softmax(draws.normal(0, 2, (n, classes)), axis=1), draws.dirichlet(np.ones(classes))


# The threshold


@given(seed=SEEDS, n=st.integers(2, 40), levels=st.integers(1, 30))
def test_a_threshold_reproduces_the_error_of_the_data_it_was_fitted_to(seed: int, n: int, levels: int) -> None:
    draws = np.random.default_rng(seed)
    scores, wrong = draws.integers(levels, size=n) / 7, draws.random(n) < 0.3  # with ties
    even = fit_threshold(scores, wrong, np.full(n, 1 / n))
    assert even.error(scores) == pytest.approx(wrong.mean())
    counts = draws.integers(1, 4, n)  # a weight of 2 is an input that occurs twice
    weighted = fit_threshold(scores, wrong, counts / counts.sum())
    assert weighted.error(np.repeat(scores, counts)) == pytest.approx(np.repeat(wrong, counts).mean())


@given(seed=SEEDS)
def test_less_certain_field_inputs_raise_the_estimate(seed: int) -> None:
    draws = np.random.default_rng(seed)
    scores, wrong = draws.normal(size=50), draws.random(50) < 0.3
    threshold = fit_threshold(scores, wrong, np.full(50, 0.02))
    assert threshold.error(scores - 0.5) >= threshold.error(scores) >= threshold.error(scores + 0.5)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_model_that_is_never_or_always_wrong(share: float) -> None:
    scores, wrong = np.linspace(-1, 0, 20), np.full(20, bool(share))
    assert fit_threshold(scores, wrong, np.full(20, 0.05)).error(scores) == pytest.approx(share)


def test_negative_entropy_is_that_of_certain_and_even_outputs() -> None:
    assert negative_entropy(np.array([[1.0, 0, 0, 0], [0.25] * 4])) == pytest.approx([0, -np.log(4)])


# The transport


@settings(max_examples=25, deadline=None)
@given(seed=SEEDS, n=st.integers(1, 25), classes=st.integers(2, 5))
def test_the_transport_costs_what_a_linear_program_finds(seed: int, n: int, classes: int) -> None:
    p, shares = random_outputs(seed, n, classes)
    rows = np.kron(np.eye(n), np.ones(classes))
    columns = np.kron(np.ones(n), np.eye(classes))
    masses = np.concatenate([np.full(n, 1 / n), shares])
    best = linprog((1 - p).ravel(), A_eq=np.vstack([rows, columns])[:-1], b_eq=masses[:-1], method="highs")
    assert transport_error(p, shares) == pytest.approx(best.fun, abs=2e-3)
    assert transport_error(p, shares) <= best.fun + 1e-9


@settings(max_examples=25, deadline=None)
@given(seed=SEEDS)
def test_the_transport_costs_at_least_the_lack_of_confidence_and_ignores_order(seed: int) -> None:
    p, shares = random_outputs(seed, 40, 4)
    cost = transport_error(p, shares)
    assert cost >= confidence_error(p, p.argmax(1)) - 2e-3
    draws = np.random.default_rng(seed)
    rows, classes = draws.permutation(40), draws.permutation(4)
    assert transport_error(p[rows], shares) == pytest.approx(cost, abs=2e-3)
    assert transport_error(p[:, classes], shares[classes]) == pytest.approx(cost, abs=2e-3)


@settings(max_examples=25, deadline=None)
@given(seed=SEEDS)
def test_any_potentials_give_a_lower_bound(seed: int) -> None:
    p, shares = random_outputs(seed, 30, 3)
    other = np.random.default_rng(seed).normal(size=3)
    best = transport_value(1 - p, shares, transport_potentials(1 - p, shares))
    assert transport_value(1 - p, shares, other) <= best + 2e-3


def test_certain_outputs_cost_nothing_in_their_shares_and_the_difference_in_others() -> None:
    p = np.eye(3)[[0] * 5 + [1] * 3 + [2] * 2]
    assert transport_error(p, np.array([0.5, 0.3, 0.2])) == pytest.approx(0, abs=1e-4)
    assert transport_error(p, np.array([0.2, 0.3, 0.5])) == pytest.approx(0.3, abs=1e-3)
    assert transport_error(p, np.array([0.0, 0.5, 0.5])) == pytest.approx(0.5, abs=1e-3)


# Calibration


@pytest.mark.parametrize("factor", [0.4, 1.0, 3.0])
def test_the_temperature_undoes_a_factor(factor: float) -> None:
    labelled = blobs(EVEN, 4000, spawn(0))
    logits = toy(factor).batched_logits(labelled.x).double().numpy()
    found = fit_temperature(logits, labelled.labels.numpy(), np.full(4000, 1 / 4000))
    assert found == pytest.approx(factor, rel=0.1)


# The estimate


@pytest.mark.parametrize("priors", [EVEN, SHIFTED])
def test_under_a_pure_shift_of_classes_all_methods_are_near_the_truth(priors: list[float]) -> None:
    model, labelled, field = toy(), blobs(EVEN, 3000, spawn(0)), blobs(priors, 4000, spawn(1))
    truth = 1 - model.accuracy(field)
    found = estimate_error(model, labelled, field.with_labels(None), priors=priors, **QUICK, generator=spawn(2))
    assert found.method == "atc"
    assert found.lower <= truth <= found.upper
    assert 0 <= found.lower <= found.value <= found.upper <= 1
    near = {name: pytest.approx(truth, abs=0.03 if name != "cot" else 0.06) for name in found.by_method}
    assert found.by_method == near
    assert set(near) == {"atc", "confidence", "cot", "reweighted"}
    assert found.findings == ()
    assert "not a bound" in describe_error(found, 1000)


def test_estimated_class_shares_serve_as_well_and_widen_the_interval() -> None:
    model, labelled, field = toy(), blobs(EVEN, 1000, spawn(0)), blobs(SHIFTED, 1000, spawn(1)).with_labels(None)
    priors = estimate_priors(model, labelled, field, resamples=20, generator=spawn(2))
    assert isinstance(priors, Priors)
    sure = replace(priors, lower=priors.values, upper=priors.values)
    unsure = replace(priors, lower=(0.2, 0.0, 0.0), upper=(1.0, 0.8, 0.8))
    unknown = replace(priors, lower=(float("nan"),) * 3, upper=(float("nan"),) * 3)
    found = [estimate_error(model, labelled, field, priors=p, generator=spawn(3)) for p in (sure, unsure, unknown)]
    assert found[0].value == found[1].value
    assert found[1].upper - found[1].lower > found[0].upper - found[0].lower
    assert found[2] == found[0]


def test_the_order_of_rows_and_classes_does_not_matter() -> None:
    model, labelled, field = toy(), blobs(EVEN, 600, spawn(0)), blobs(SHIFTED, 500, spawn(1))
    order = torch.tensor([2, 0, 1])

    class Turned(Blobs):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x)[:, order]

    turned = Classifier(Turned(3.0), bounds=(-9.0, 9.0))
    first = estimate_error(model, labelled, field, priors=SHIFTED, **QUICK, generator=spawn(2))
    again = estimate_error(
        turned,
        labelled.with_labels(order.argsort()[labelled.labels])[torch.randperm(600, generator=spawn(3))],
        field.with_labels(None)[torch.randperm(500, generator=spawn(4))],
        priors=[SHIFTED[c] for c in order.tolist()],
        **QUICK,
        generator=spawn(2),
    )
    assert again.by_method == pytest.approx(first.by_method, abs=2e-3)


def test_the_same_seed_gives_the_same_estimate_and_labels_of_the_field_are_ignored() -> None:
    model, labelled, field = toy(), blobs(EVEN, 300, spawn(0)), blobs(SHIFTED, 300, spawn(1))
    first = estimate_error(model, labelled, field, **QUICK, generator=spawn(2))
    assert first == estimate_error(model, labelled, field.with_labels(None), **QUICK, generator=spawn(2))


def test_an_estimate_round_trips(tmp_path) -> None:
    model, labelled, field = toy(), blobs(EVEN, 300, spawn(0)), blobs(EVEN, 300, spawn(1))
    found = estimate_error(model, labelled, Samples(field.x + 1.5), **QUICK, generator=spawn(2))
    assert found.findings
    results.save(found, tmp_path / "error.json")
    assert results.load(tmp_path / "error.json", ErrorEstimate) == found


# Conditions


class Bars(nn.Module):
    """Tells whether the left or the right half of an image is brighter."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left, right = x[..., :4].mean((1, 2, 3)), x[..., 4:].mean((1, 2, 3))
        return 40 * torch.stack([left - right, right - left], 1)


def bars(n: int, generator: torch.Generator) -> Samples:
    y = torch.randint(2, (n,), generator=generator)
    x = 0.4 + 0.2 * torch.rand(n, 1, 8, 8, generator=generator)
    x[..., :4] += torch.where(y == 0, 0.05, 0.0)[:, None, None, None]
    x[..., 4:] += torch.where(y == 1, 0.05, 0.0)[:, None, None, None]
    return Samples(x, y)


def fitted(recipe: Recipe, after: float = 1.0) -> FittedConditions:
    parameters = tuple(
        Parameter(condition=name, name="high", value=s.high, lower=s.low, upper=s.high, limits=(0.0, 9.0))
        for name, s in recipe.severities.items()
    )
    distances = {"before": 4.0, "after": after, "floor": 0.9, "floor_high": 1.1}
    return FittedConditions(recipe=recipe, parameters=parameters, **distances, priors=(), confidence=0.95, findings=())


NOISE = Recipe(severities={"gaussian_noise": fixed(0.3)})


def test_labelled_inputs_under_the_conditions_of_the_field_give_its_error() -> None:
    model, labelled, field = Classifier(Bars()), bars(1500, spawn(0)), bars(2000, spawn(1))
    noisy = Samples(apply(field.x, NOISE.draw(2000, generator=spawn(2))), field.y)
    truth = 1 - model.accuracy(noisy)
    assert truth > 0.1 > 2 * (1 - model.accuracy(labelled))
    found = estimate_error(model, labelled, noisy, conditions=fitted(NOISE), **QUICK, generator=spawn(3))
    assert found.value == pytest.approx(truth, abs=0.03)
    assert found.lower <= truth <= found.upper
    assert found.by_method["simulated"] == pytest.approx(truth, abs=0.03)
    assert abs(found.by_method["atc on clean inputs"] - truth) > abs(found.value - truth)
    assert "reweighted" not in found.by_method
    assert found.findings == ()


def test_conditions_of_another_field_are_noticed() -> None:
    model, labelled, field = Classifier(Bars()), bars(500, spawn(0)), bars(500, spawn(1))
    found = estimate_error(model, labelled, field, conditions=fitted(NOISE, after=3.5), **QUICK, generator=spawn(3))
    assert {"field not explained", "much is unexplained"} <= {f.name for f in found.findings}


# Where it breaks


def test_a_field_that_labelled_inputs_do_not_explain_is_reported_and_said() -> None:
    model, labelled, field = toy(), blobs(EVEN, 1000, spawn(0)), blobs(EVEN, 1000, spawn(1))
    moved = Samples(field.x + 0.8, field.y)
    found = estimate_error(model, labelled, moved.with_labels(None), **QUICK, generator=spawn(2))
    assert abs(found.value - (1 - model.accuracy(moved))) > 0.1  # it does break
    assert "field not explained" in {f.name for f in found.unreliable}
    sentence = describe_error(found, 1000)
    assert "unreliable here, because" in sentence
    assert f"label {found.labels} of the 1000 field inputs: `operant assess`" in sentence


def test_a_small_difference_is_reported_without_calling_the_estimate_unreliable() -> None:
    labelled, field = blobs(EVEN, 1000, spawn(0)), blobs(EVEN, 1000, spawn(1))
    found = estimate_error(toy(), labelled, Samples(field.x + 0.3), **QUICK, generator=spawn(2))
    assert {f.name for f in found.findings} == {"field not quite explained"}
    assert not found.unreliable
    assert "not a bound" in describe_error(found, 1000)


def test_methods_that_disagree_are_reported() -> None:
    labelled, field = blobs(EVEN, 2000, spawn(0)), blobs(EVEN, 2000, spawn(1))
    wide = Samples(field.x.sign() * field.x.abs() * 0.25 + 0.4, field.y)  # everything lies between two classes
    found = estimate_error(toy(), labelled, wide, **QUICK, generator=spawn(2))
    assert "methods disagree" in {f.name for f in found.unreliable}


def test_few_labelled_errors_are_reported_and_confidence_is_used() -> None:
    labelled = blobs(EVEN, 2000, spawn(0))
    right = toy().correct(labelled)
    found = estimate_error(toy(), right[:400], blobs(EVEN, 300, spawn(1)), **QUICK, generator=spawn(2))
    assert found.method == "confidence"
    assert found.value == found.by_method["confidence"]
    problem = next(f.problem for f in found.findings if f.name == "few labelled errors")
    assert "gets 0 of 400 labelled inputs wrong" in problem


def test_tied_outputs_are_reported() -> None:
    class Rounded(Blobs):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.one_hot(super().forward(x).argmax(1), 3).float()

    model = Classifier(Rounded(), bounds=(-9.0, 9.0))
    labelled, field = blobs(EVEN, 500, spawn(0)), blobs(EVEN, 500, spawn(1))
    found = estimate_error(model, labelled, field, **QUICK, generator=spawn(2))
    assert "outputs are tied" in {f.name for f in found.findings}
    assert found.value == pytest.approx(1 - model.accuracy(labelled))  # each input has the same score


@pytest.mark.parametrize(("value", "labels"), [(0.0, 50), (0.05, 80), (0.5, 390), (0.9, 390)])
def test_advised_labels_give_an_interval_of_five_points(value: float, labels: int) -> None:
    assert ErrorEstimate(value=value, lower=0.0, upper=value, method="atc").labels == labels


# Bad input


LABELLED, FIELD = blobs(EVEN, 100, spawn(0)), blobs(EVEN, 60, spawn(1))


@pytest.mark.parametrize(
    ("labelled", "field", "options", "message"),
    [
        (LABELLED[:0], FIELD, {}, "labelled"),
        (LABELLED, FIELD[:0], {}, "field"),
        (LABELLED.with_labels(None), FIELD, {}, "no labels"),
        (LABELLED[LABELLED.labels == 1], FIELD, {}, "at least two classes"),
        (LABELLED, FIELD, {"priors": [0.5, 0.5]}, "each of the model's 3 classes, got 2"),
        (LABELLED, FIELD, {"priors": [0.5, 0.6, 0.2]}, "sum to 1"),
        (LABELLED[LABELLED.labels < 2], FIELD, {"priors": EVEN}, "must occur among labelled inputs"),
        (LABELLED, Samples(torch.zeros(5, 2)), {}, "one shape"),
        (LABELLED, FIELD, {"resamples": 3}, "resamples"),
        (LABELLED, FIELD, {"confidence": 1.5}, "confidence"),
    ],
)
def test_bad_input_is_rejected(labelled: Samples, field: Samples, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        estimate_error(toy(), labelled, field, **QUICK | options, generator=spawn(0))


def test_logits_that_are_not_finite_are_rejected() -> None:
    class Broken(Blobs):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.where(x > 1.5, torch.nan, super().forward(x))

    with pytest.raises(ValueError, match="NaN or infinite"):
        estimate_error(Classifier(Broken(), bounds=(-9.0, 9.0)), LABELLED, FIELD, **QUICK, generator=spawn(0))


def test_a_handful_of_inputs_is_enough_for_a_rough_estimate() -> None:
    found = estimate_error(toy(), LABELLED[:12], FIELD[:3], **QUICK, generator=spawn(0))
    assert 0 <= found.lower <= found.value <= found.upper <= 1


def test_a_class_that_does_not_occur_in_the_field_is_left_out() -> None:
    field = blobs([0.5, 0.5, 0.0], 800, spawn(3))
    found = estimate_error(
        toy(), blobs(EVEN, 1000, spawn(0)), field, priors=[0.5, 0.5, 0.0], **QUICK, generator=spawn(0)
    )
    assert found.value == pytest.approx(1 - toy().accuracy(field), abs=0.05)
