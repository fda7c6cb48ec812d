"""Abstention and regressions: the fewest inputs are handed over, and changes of cases are counted."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from operant import Classifier, Samples, Suite, results, spawn
from operant.assess import Abstention, abstain, check_abstention, clopper_pearson_interval, regressions
from operant.assess.abstention import labels_that_decide


@settings(max_examples=50, deadline=None)
@given(
    values=st.lists(st.sampled_from([0.0, 0.01, 0.02, 0.1, 0.5, 1.0]) | st.floats(0, 1), min_size=1, max_size=30),
    target=st.floats(0.001, 0.999),
)
def test_the_rest_keeps_the_target_and_no_smaller_share_does(values: list[float], target: float) -> None:
    risk = torch.tensor(values, dtype=torch.float64)
    plan = abstain(risk, target=target)
    handed = plan.hands_over(risk)
    kept = risk[~handed]
    assert plan.share == pytest.approx(float(handed.double().mean()))
    assert plan.expected == pytest.approx(float(kept.mean()) if len(kept) else 0.0)
    assert plan.expected <= target + 1e-12
    for more in risk[handed].unique():  # whoever keeps more misses the target
        assert float(risk[risk <= more].mean()) > target - 1e-12


def test_it_prints_and_says_that_it_estimates(tmp_path) -> None:
    plan = abstain(torch.tensor([0.0, 0.02, 0.04, 0.9]), target=0.03)
    assert str(plan).startswith("Hand over 25 % of the inputs")
    assert "estimated" in str(plan)
    assert str(abstain(torch.zeros(3), target=0.1)).startswith("Hand over nothing")
    assert str(abstain(torch.ones(3), target=0.1)).startswith("Hand over everything")
    assert abstain(torch.zeros(3), target=0.1).threshold == math.inf
    results.save(plan, tmp_path / "plan.json")
    assert results.load(tmp_path / "plan.json", Abstention) == plan


def test_it_says_that_it_is_optimistic_and_how_many_labels_decide() -> None:
    plan = abstain(torch.tensor([0.0, 0.02, 0.04, 0.9]), target=0.03)
    assert "usually too low: test it with check_abstention and about 356 labelled" in str(plan)
    assert abstain(torch.ones(3), target=0.1).labels == 0
    assert "check_abstention" not in str(abstain(torch.ones(3), target=0.1))


@pytest.mark.parametrize("target", [0.001, 0.01, 0.05, 0.1, 0.3, 0.5, 0.9])
def test_so_many_labels_exclude_twice_the_target_if_it_holds(target: float) -> None:
    n = labels_that_decide(target)
    assert clopper_pearson_interval(math.floor(target * n + 1e-6), n).upper < 2 * target


@pytest.mark.parametrize("kind", [np.array, list])
def test_arrays_and_lists_are_risks_too(kind) -> None:
    plan = abstain(kind([0.0, 0.02, 0.04, 0.9]), target=0.03)
    assert plan == abstain(torch.tensor([0.0, 0.02, 0.04, 0.9], dtype=torch.float64), target=0.03)
    assert plan.hands_over(kind([0.01, 0.5])).tolist() == [False, True]


def test_what_holds_no_numbers_is_refused() -> None:
    with pytest.raises(TypeError, match="risk must be a tensor, an array or a list of numbers, got str"):
        abstain("high", target=0.1)


def echo() -> Classifier:
    """Predicts the larger of the two values of an input."""
    module = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        module.weight.copy_(torch.eye(2))
    return Classifier(module)


def own_risk(model: Classifier, x: Tensor, y: Tensor) -> Tensor:
    return 1 - model.probs(x).amax(1)


def test_labels_confirm_or_refute_it() -> None:
    x = torch.rand(400, 2, generator=spawn(0))
    y = echo().predict(x)
    plan = abstain(own_risk(echo(), x, y), target=0.4)
    handed = plan.hands_over(own_risk(echo(), x, y))
    assert 0 < int(handed.sum()) < 400
    fine = check_abstention(plan, echo(), Samples(x, torch.where(handed, 1 - y, y)), own_risk)
    assert (fine.failures, fine.all_failures, fine.refuted) == (0, int(handed.sum()), False)
    wrong = check_abstention(plan, echo(), Samples(x, 1 - y), own_risk)
    assert wrong.refuted
    assert wrong.interval == clopper_pearson_interval(wrong.kept, wrong.kept)
    assert "more than the target" in str(wrong)


@pytest.mark.parametrize("risk", [torch.tensor([0.1, 1.2]), torch.tensor([[0.1]]), torch.tensor([float("nan")])])
def test_what_is_no_probability_is_refused(risk: Tensor) -> None:
    with pytest.raises(ValueError, match="risk must be probabilities"):
        abstain(risk, target=0.1)


def test_broken_and_fixed_cases_are_named() -> None:
    x = torch.rand(200, 2, generator=spawn(0))
    y = echo().predict(x)
    label = torch.where(torch.arange(200) < 60, 1 - y, y)
    other = Classifier(nn.Linear(2, 2, bias=False))
    seeds = Samples(torch.rand(200, 2, generator=spawn(1)), label)
    suite = Suite.of(x, seeds=seeds, origin=torch.arange(200), prediction=y, method="draws")
    found, new = regressions(other, suite), other.predict(x)
    assert found.broken.tolist() == [i for i in range(60, 200) if new[i] != label[i]]
    assert found.fixed.tolist() == [i for i in range(60) if new[i] == label[i]]
    assert (found.before, found.now) == (60, int((new != label).sum()))
    back = regressions(echo(), suite, before=other)
    assert torch.equal(back.broken, found.fixed)
    assert torch.equal(back.fixed, found.broken)
    same = regressions(echo(), suite)
    assert len(same.broken) == len(same.fixed) == 0
    assert same.p_value == 1
