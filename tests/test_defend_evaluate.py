"""What defences stop, counted by hand; intervals; and the two criteria of retraining."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import binomtest
from torch import nn

from operant import Classifier, Samples, Suite, spawn
from operant.assess import clopper_pearson_interval
from operant.defend import (
    AccuracyChange,
    DefenceTable,
    TransferCalibration,
    accuracy_change,
    evaluate_defences,
    fit_feature_squeezing,
    transfer_calibration_rate,
)
from operant.defend import evaluate as module
from operant.defend.evaluate import interval
from operant.generate import BIM
from operant.generate.engine import judge
from operant.measure import Thresholds
from operant.results import load, save


def made(n: int = 40, *, cases_per_seed: int = 1, columns: bool = True) -> Suite:
    """Cases whose only value says everything about them."""
    seeds = Samples(torch.arange(n // cases_per_seed)[:, None].float() / n, torch.arange(n // cases_per_seed) % 3)
    origin = torch.arange(n) // cases_per_seed
    x = torch.arange(n)[:, None].float() / n
    wrong = torch.arange(n) % 4 == 0
    pcs, vro = torch.where(wrong, 0.1, 0.9), torch.where(torch.arange(n) % 8 < 4, 0.1, 0.9)
    return Suite.of(
        x,
        seeds=seeds,
        origin=origin,
        prediction=(seeds.labels[origin] + wrong.long()) % 3,
        method=["a" if i % 2 else "b" for i in range(n)],
        columns={"pcs": pcs, "vro": vro} if columns else {},
    )


def number(x: torch.Tensor) -> torch.Tensor:
    return (x[:, 0] * 40).round().long()


# Counting


def test_success_is_counted_by_hand():
    suite = made()
    defences = {
        "detector": lambda x: number(x) % 4 != 0,  # right about every case
        "accepts all": lambda x: torch.ones(len(x), dtype=torch.bool),
        "reads": lambda x: number(x) % 3,  # the label
        "reads 0": lambda x: torch.zeros(len(x), dtype=torch.int64),
    }
    table = evaluate_defences(suite, defences)
    assert table.detectors == ("detector", "accepts all")
    for name, good in (("detector", 40), ("accepts all", 30), ("reads", 40), ("reads 0", 14)):
        assert (table.of(name).k, table.of(name).n) == (good, 40)
    assert table.of("accepts all", "adversarial").k == 0
    assert table.of("accepts all", "benign").value == 1
    n = torch.arange(40)
    for pattern, rows in {
        "LL": (n % 4 == 0) & (n % 8 < 4),
        "LH": (n % 4 == 0) & (n % 8 >= 4),
        "HL": (n % 4 != 0) & (n % 8 < 4),
        "HH": (n % 4 != 0) & (n % 8 >= 4),
    }.items():
        found = table.of("reads 0", "all", pattern)
        assert (found.k, found.n) == (int(((n % 3 == 0) & rows).sum()), int(rows.sum()))
    with pytest.raises(KeyError, match="no cases benign LL for reads; there are adversarial LH"):
        table.of("reads", "benign", "LL")
    with pytest.raises(KeyError, match="no defence named other; there are detector, accepts all"):
        table.of("other")


def test_thresholds_decide_the_patterns_and_without_columns_there_are_none():
    suite = made()
    wide = evaluate_defences(suite, {"d": number_is_even}, thresholds=Thresholds(high_pcs=0.95, high_vro=0.95))
    assert {row.pattern for row in wide.rows} == {"all", "LL", "none"}
    bare = evaluate_defences(made(columns=False), {"d": number_is_even})
    assert [row.pattern for row in bare.rows] == ["all"] * 3


def number_is_even(x: torch.Tensor) -> torch.Tensor:
    return number(x) % 2 == 0


def test_cases_are_read_in_parts_also_from_disk(tmp_path, monkeypatch):
    suite = made()
    suite.save(tmp_path / "suite")
    monkeypatch.setattr(module, "BATCH_CASES", 7)
    sizes = []

    def defence(x):
        sizes.append(len(x))
        return number_is_even(x)

    found = evaluate_defences(Suite.open(tmp_path / "suite"), {"d": defence})
    assert sizes == [7] * 5 + [5]
    assert found == evaluate_defences(suite, {"d": number_is_even})


def test_objects_with_accepts_or_predict_are_defences():
    class Guard:
        def accepts(self, x):
            return number_is_even(x)

        def predict(self, x):
            raise AssertionError("a detector is asked what it accepts")

    suite = made()
    model = Classifier(nn.Linear(1, 3))
    table = evaluate_defences(suite, {"guard": Guard(), "model": model})
    assert table.detectors == ("guard",)
    assert table.of("model").k == int((model.predict(suite.x) == suite.label).sum())


# Intervals


@pytest.mark.parametrize(("k", "n"), [(0, 10), (3, 10), (10, 10), (57, 91)])
def test_intervals_are_clopper_and_pearsons(k, n):
    exact = clopper_pearson_interval(k, n, confidence=0.9)
    assert interval(k, n, 0.9) == pytest.approx((exact.lower, exact.upper))
    theirs = binomtest(k, n).proportion_ci(0.9)
    assert interval(k, n, 0.9) == pytest.approx((theirs.low, theirs.high))


def test_cases_of_one_seed_count_together():
    one, four = (evaluate_defences(made(cases_per_seed=c), {"d": lambda x: number(x) % 4 == 3}).of("d") for c in (1, 4))
    assert (one.k, one.n, one.seeds) == (four.k, four.n, 4 * four.seeds) == (20, 40, 40)
    exact = clopper_pearson_interval(5, 10)  # ten seeds of four cases each, and half of the cases are right
    assert (four.lower, four.upper) == pytest.approx((exact.lower, exact.upper))
    assert four.upper - four.lower > one.upper - one.lower


# As a value


def test_the_table_prints_and_comes_back_from_disk(tmp_path):
    table = evaluate_defences(made(), {"mine": number_is_even, "reader": lambda x: number(x) % 3}, confidence=0.9)
    save(table, tmp_path / "table.json")
    assert load(tmp_path / "table.json", DefenceTable) == table
    text = str(table)
    assert text.splitlines()[0].split() == ["cases", "all", "HL", "LH", "LL", "HH"]
    cells = [line.split()[:6] for line in text.splitlines()[1:7]]
    assert cells[0] == ["mine", "benign", "30", "33", "%", "(19-50)"]
    assert cells[1] == ["mine", "adversarial", "10", "0", "%", "(0-26)"]
    assert cells[5] == ["reader", "all", "40", "100", "%", "(93-100)"]
    assert "90 % intervals in percent. mine: accept benign and reject adversarial cases; the others: predict" in text
    assert " - " in text  # no benign cases of low PCS
    assert max(map(len, text.splitlines()[:-1])) < 120


def test_a_suite_of_a_network_goes_through(lenet, digits28):
    good = lenet.correct(digits28.test)
    cases = BIM(radius=0.3, minimal=True)(lenet, good[200:260], generator=spawn(0))
    suite = Suite.concat([judge(lenet, good[200:260], good[200:260].x, method="inputs"), cases])
    squeezing = fit_feature_squeezing(lenet, good[:150])
    table = evaluate_defences(suite, {"squeezing": squeezing, "no defence": lenet})
    assert table.of("no defence", "benign").value == 1
    assert table.of("no defence", "adversarial").value == 0
    assert table.of("squeezing", "benign").value > 0.8
    assert table.of("squeezing", "adversarial").k == int((~squeezing.accepts(suite.failures().x)).sum())


# Invalid arguments


@pytest.mark.parametrize(
    ("change", "error", "sentence"),
    [
        ({"suite": made()[:0]}, ValueError, "suite must not be empty"),
        ({"defences": {}}, ValueError, "defences must not be empty"),
        ({"confidence": 1.0}, ValueError, "confidence must be between 0 and 1, got 1.0"),
        ({"defences": {"odd": 3}}, TypeError, "odd is not a defence: it has neither accepts(x)"),
        ({"defences": {"soft": lambda x: x[:, 0]}}, ValueError, "soft must return one boolean"),
        ({"defences": {"short": lambda x: number_is_even(x)[1:]}}, ValueError, "got torch.bool of shape (39,)"),
    ],
)
def test_what_cannot_be_judged_is_rejected(change, error, sentence):
    inputs = {"suite": made(), "defences": {"d": number_is_even}, "confidence": 0.95, **change}
    with pytest.raises(error) as caught:
        evaluate_defences(inputs["suite"], inputs["defences"], confidence=inputs["confidence"])
    assert sentence in str(caught.value)


# Criteria of retraining


def test_the_transfer_calibration_rate_is_the_mean_over_methods(tmp_path):
    suite = made(48, columns=False)
    suite = replace(suite, method=np.array(["a" if i % 12 == 0 else "b" for i in range(48)]))

    class Retrained:
        def predict(self, x):
            return torch.where(x[:, 0] < 0.5, (x[:, 0] * 48).round().long() % 3, 3)

    found = transfer_calibration_rate(Retrained(), suite)
    assert [(r.defence, r.k, r.n) for r in found.rates] == [("a", 2, 4), ("b", 4, 8)]
    assert found.mean == pytest.approx(0.5)
    assert str(found).startswith(
        "transfer calibration rate 50 %, the mean of a 50 % (6.8-93) of 4, b 50 % (16-84) of 8"
    )
    save(found, tmp_path / "rate.json")
    assert load(tmp_path / "rate.json", TransferCalibration) == found
    with pytest.raises(ValueError, match="none of the 36 cases was misclassified by the original model"):
        transfer_calibration_rate(Retrained(), suite[suite.prediction == suite.label])


class Table(nn.Module):
    """Predicts the i-th given label for the i-th input."""

    def __init__(self, answers: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("answers", answers)

    def forward(self, x):
        rows = (x[:, 0] * len(self.answers)).round().long()
        return nn.functional.one_hot(self.answers[rows], 2).float() * 5


def pair(n: int, gained: int, lost: int) -> AccuracyChange:
    y = torch.zeros(n, dtype=torch.int64)
    old, new = y.clone(), y.clone()
    old[:gained], new[gained : gained + lost] = 1, 1
    samples = Samples(torch.arange(n)[:, None].float() / n, y)
    return accuracy_change(Classifier(Table(old)), Classifier(Table(new)), samples)


def test_the_change_of_accuracy_is_that_of_pairs(tmp_path):
    found = pair(100, 12, 4)
    assert (found.gained, found.lost, found.n) == (12, 4, 100)
    assert (found.before, found.after) == pytest.approx((0.88, 0.96))
    assert found.change == pytest.approx(0.08)
    b, c, n = 12.5, 4.5, 102  # Agresti and Min: half a pair in each of four cells
    spread = ((b + c) - (b - c) ** 2 / n) ** 0.5 / n
    assert found.lower == pytest.approx((b - c) / n - 1.959964 * spread, abs=1e-6)
    assert found.upper == pytest.approx((b - c) / n + 1.959964 * spread, abs=1e-6)
    assert found.lower > 0
    assert pair(100, 5, 4).lower < 0 < pair(100, 5, 4).upper
    assert str(found).startswith("accuracy 88 % -> 96 %, change +8.00 points (+")
    save(found, tmp_path / "change.json")
    assert load(tmp_path / "change.json", AccuracyChange) == found


def test_intervals_of_changes_hold_the_truth():
    """As often as they say, on pairs drawn with a gain of 6 % and a loss of 3 %."""
    kinds = torch.multinomial(torch.tensor([0.06, 0.03, 0.91]), 300 * 200, replacement=True, generator=spawn(0)).view(
        300, 200
    )
    held = 0
    for row in kinds:
        found = pair(200, int((row == 0).sum()), int((row == 1).sum()))
        held += found.lower <= 0.03 <= found.upper
    assert held >= 274  # not rejected against 95 % at level .01


def test_a_change_needs_labels_and_a_level():
    with pytest.raises(ValueError, match="confidence must be between 0 and 1"):
        accuracy_change(
            Classifier(nn.Linear(1, 2)), Classifier(nn.Linear(1, 2)), Samples(torch.rand(3, 1)), confidence=2
        )
    with pytest.raises(ValueError, match="carry no labels"):
        accuracy_change(Classifier(nn.Linear(1, 2)), Classifier(nn.Linear(1, 2)), Samples(torch.rand(3, 1)))
