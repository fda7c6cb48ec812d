"""Failure rates on cases: closed forms, coverage of the interval, and what is refused."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from operant import Classifier, Samples, Suite, results, spawn
from operant.assess import CaseRate, clopper_pearson_interval, failure_rate
from operant.data import content_ids


def echo() -> Classifier:
    """Predicts the larger of the two values of an input."""
    module = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        module.weight.copy_(torch.eye(2))
    return Classifier(module)


def cases(label: Tensor, failed: Tensor, *, per_seed: int = 1, seed: int = 0) -> Suite:
    """Cases that `echo` gets wrong where ``failed`` is true; labels are given per seed."""
    x = 0.4 * torch.rand(len(failed), 2, generator=spawn(seed))
    y = label.repeat_interleave(per_seed)
    x[torch.arange(len(x)), torch.where(failed, 1 - y, y)] += 0.5
    seeds = Samples(torch.rand(len(label), 2, generator=spawn(seed, "seeds")), label)
    origin = torch.arange(len(x)) // per_seed
    return Suite.of(x, seeds=seeds, origin=origin, prediction=echo().predict(x), method="draws")


def test_without_priors_it_is_the_share_that_fails_and_its_exact_interval() -> None:
    label, failed = torch.zeros(400).long(), torch.arange(400) < 30
    found = failure_rate(echo(), cases(label, failed))
    exact = clopper_pearson_interval(30, 400)
    assert found.value == pytest.approx(30 / 400)
    assert (found.cases, found.seeds, found.findings) == (400, 400, ())
    assert (found.lower, found.upper) == pytest.approx((exact.lower, exact.upper), rel=0.02)


def test_priors_weight_the_classes() -> None:
    label = torch.tensor([0] * 100 + [1] * 300)
    failed = torch.cat([torch.arange(100) < 50, torch.arange(300) < 30])
    suite = cases(label, failed)
    assert failure_rate(echo(), suite).value == pytest.approx(80 / 400)
    assert failure_rate(echo(), suite, priors=[0.5, 0.5]).value == pytest.approx(0.3)
    assert failure_rate(echo(), suite, priors=[1.0, 0.0]).value == pytest.approx(0.5)


def test_cases_of_one_seed_count_as_one_trial() -> None:
    label, failed = torch.zeros(50).long(), (torch.arange(50) < 10).repeat_interleave(20)
    found = failure_rate(echo(), cases(label, failed, per_seed=20))
    exact = clopper_pearson_interval(10, 50)
    assert (found.lower, found.upper) == pytest.approx((exact.lower, exact.upper), abs=0.02)


def test_the_interval_covers_the_rate() -> None:
    covered = 0
    for seed in range(200):
        g = spawn(seed, "coverage")
        label = (torch.rand(150, generator=g) < 0.3).long()
        rate = torch.where(label == 1, 0.3, 0.05)
        found = failure_rate(echo(), cases(label, torch.rand(150, generator=g) < rate, seed=seed), priors=[0.5, 0.5])
        covered += found.lower <= 0.175 <= found.upper
    assert covered >= 182  # of 190 expected


def test_no_failure_has_an_interval_too(tmp_path: Path) -> None:
    found = failure_rate(echo(), cases(torch.arange(100) % 2, torch.zeros(100).bool()))
    assert (found.value, found.lower) == (0, 0)
    assert found.upper == pytest.approx(clopper_pearson_interval(0, 100).upper)
    results.save(found, tmp_path / "rate.json")
    assert results.load(tmp_path / "rate.json", CaseRate) == found
    assert "of 100 cases from 100 seeds fail" in str(found)


def test_selected_cases_and_missing_classes_are_reported() -> None:
    found = failure_rate(echo(), cases(torch.zeros(20).long(), torch.ones(20).bool()), priors=[0.6, 0.4])
    assert [f.name for f in found.findings] == ["class without cases", "selected cases"]
    assert found.value == 1


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda m, c: failure_rate(m, c, used=content_ids(c.x[3:5])), "2 of 40 cases were used for training"),
        (lambda m, c: failure_rate(m, c[:0]), "RecipeDraws"),
        (lambda m, c: failure_rate(m, c, priors=[1.0]), "2 classes"),
        (lambda m, c: failure_rate(m, c[c.label == 0], priors=[0.0, 1.0]), "no case has a class"),
        (lambda m, c: failure_rate(m, c, confidence=1.0), "confidence"),
    ],
)
def test_bad_input_is_refused(call: Callable[[Classifier, Suite], object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        call(echo(), cases(torch.arange(40) % 2, torch.arange(40) < 4))
