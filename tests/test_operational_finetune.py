"""Operational fine-tuning: how rows are drawn, which epoch is kept, when it is plain fine-tuning, what is rejected."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit
from scipy.stats import norm
from sklearn.metrics import brier_score_loss
from torch import nn
from torch.nn.functional import cross_entropy, kl_div, log_softmax

from operant import Classifier, Samples, spawn
from operant.networks import LeNet5, initialise
from operant.results import load, save
from operant.retrain import (
    Finetune,
    FinetuneEpoch,
    FinetuneRecord,
    OperationalFinetune,
    TrainableModel,
    brier_monitor,
    pmi_monitor,
)
from operant.retrain._judge import EpochJudge
from operant.retrain._run import _record
from operant.retrain._sampling import EpochRows, capped_chances, drawn_rows
from operant.retrain.losses import INNER, one_step

PLAIN = {"case_share": None, "slow_start": 0.0, "decay_to": 1.0, "patience": None, "must_improve": False}
QUICK = OperationalFinetune(epochs=3, batch_size=32, max_drop=1, must_improve=False, progress=False)


def same_weights(a: Classifier, b: Classifier) -> bool:
    x, y = a.unwrap().state_dict(), b.unwrap().state_dict()
    return x.keys() == y.keys() and all(torch.equal(x[name], y[name]) for name in x)


def blobs(n: int, *, seed: str) -> Samples:
    """Two clouds in the plane, separated by the first coordinate."""
    y = torch.arange(n) % 2
    x = torch.randn(n, 2, generator=spawn(0, seed)) * 0.1 + torch.stack([0.2 + 0.6 * y, torch.full((n,), 0.5)], 1)
    return Samples(x.clamp(0, 1), y)


TRAIN, VALIDATION, NONE = blobs(200, seed="train"), blobs(100, seed="validation"), blobs(0, seed="none")
CASES = Samples(torch.rand(40, 2, generator=spawn(0, "cases")), torch.ones(40).long())
WEIGHTS = torch.rand(40, generator=spawn(0, "case weights")) ** 4
DATA = {"train": TRAIN, "cases": CASES, "validation": VALIDATION}


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2))


def normed() -> nn.Module:
    """With convolutions and batch norm."""
    layers = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2), nn.BatchNorm2d(8)]
    return nn.Sequential(*layers, nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16, 10))


@pytest.fixture(scope="module")
def model() -> Classifier:
    """Has seen a little of the blobs."""
    start = Classifier(initialise(network, generator=spawn(0, "weights")))
    tune = Finetune(epochs=3, learning_rate=0.02, max_drop=1, progress=False)
    return tune(start, blobs(300, seed="early"), NONE, validation=VALIDATION, generator=spawn(0)).model


def falling():
    """A monitor that falls from call to call, so that the last epoch is kept."""
    calls = iter(range(1, 1000))
    return lambda model: -float(next(calls))


def returning(*values: float):
    """A monitor that returns these numbers, one after the other."""
    remaining = iter(values)
    return lambda model: next(remaining)


# Plain fine-tuning


@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
@pytest.mark.parametrize("build", [lambda: LeNet5(size=12, dropout=0.5, dropout_after=["fc1"], channels=3), normed])
def test_with_equal_weights_and_plain_settings_it_is_finetune_bit_for_bit(build, optimiser):
    """With dropout, batch norm, a monitor and the guard; the weights are equal, whatever their size."""
    images = Samples(torch.rand(61, 3, 12, 12, generator=spawn(1)), torch.arange(61) % 10)
    start = Classifier(initialise(build, generator=spawn(0)))
    data = {"train": images[:30], "cases": images[30:43], "validation": images[43:], "generator": spawn(2)}
    both = {"epochs": 2, "batch_size": 16, "optimiser": optimiser, "max_drop": 1.0, "progress": False}
    finetuned = Finetune(**both)(start, **data, monitor=falling())
    for weights in (None, torch.full((13,), 0.7), torch.full((13,), 3e-8)):
        operational = OperationalFinetune(**both, **PLAIN)
        repaired = operational(start, **(data | {"generator": spawn(2)}), monitor=falling(), weights=weights)
        assert same_weights(finetuned.model, repaired.model)
        assert not same_weights(start, repaired.model)
        for name in ("best_epoch", "reason", "n_train", "n_cases", "accuracy_before"):
            assert getattr(finetuned.record, name) == getattr(repaired.record, name)
        for ours, theirs in zip(repaired.record.history, finetuned.record.history, strict=True):
            assert (ours.loss, ours.monitor, ours.accuracy) == (theirs.loss, theirs.monitor, theirs.accuracy)


def test_plain_settings_choose_the_epoch_as_finetune_does(model):
    for values in ([0.5, 0.1, 0.3], [0.2, 0.2, 0.2], [3.0, 4.0, 5.0]):
        finetuned = Finetune(epochs=3, max_drop=1, progress=False)(
            model, **DATA, monitor=returning(*values), generator=spawn(0)
        )
        tune = OperationalFinetune(epochs=3, max_drop=1, progress=False, **PLAIN)
        repaired = tune(model, **DATA, monitor=returning(*values), generator=spawn(0))
        assert repaired.record.best_epoch == finetuned.record.best_epoch
        assert same_weights(repaired.model, finetuned.model)


@pytest.mark.parametrize(
    "change",
    [
        {"case_share": 0.25},
        {"slow_start": 0.5},
        {"decay_to": 0.1},
        {"ema": 0.5},
        {"inner": "rs-fgsm", "radius": 0.05},
        {"inner": "n-fgsm", "radius": 0.05},
        {"consistency": 1.0},
        {"steps": 3},
    ],
)
def test_every_option_matters(model, change):
    plain = OperationalFinetune(epochs=2, batch_size=32, max_drop=1, progress=False, **PLAIN)
    data = DATA | {"seeds": torch.rand(40, 2, generator=spawn(5)), "monitor": falling()}
    before = plain(model, **data, generator=spawn(0)).model
    after = replace(plain, **change)(model, **data, generator=spawn(0)).model
    assert not same_weights(before, after)


def test_unequal_weights_matter_and_a_cap_of_one_makes_them_equal(model):
    plain = OperationalFinetune(epochs=1, max_drop=1, progress=False, **PLAIN)
    equal = plain(model, **DATA, generator=spawn(0)).model
    assert not same_weights(equal, plain(model, **DATA, weights=WEIGHTS, generator=spawn(0)).model)
    assert same_weights(equal, replace(plain, cap=1.0)(model, **DATA, weights=WEIGHTS, generator=spawn(0)).model)


# How rows are drawn

some_weights = st.lists(st.one_of(st.just(0.0), st.floats(1e-6, 1e6)), min_size=1, max_size=30).filter(any)


@settings(max_examples=80)
@given(values=some_weights, cap=st.floats(1, 20))
def test_the_cap_is_respected_and_what_is_below_it_stays_in_proportion(values, cap):
    w = torch.tensor(values, dtype=torch.float64)
    p, n = capped_chances(w, cap), len(w)
    positive = int((w > 0).sum())
    assert float(p.sum()) == pytest.approx(1)
    assert torch.equal(p > 0, w > 0)
    assert float(p.amax()) <= max(cap / n, 1 / positive) * (1 + 1e-9)
    free = (p < p.amax() * (1 - 1e-9)) & (w > 0)
    ratio = p[free] / w[free]
    assert torch.allclose(ratio, ratio[:1].expand_as(ratio), rtol=1e-9)
    assert bool((p[~free & (w > 0)] <= w[~free & (w > 0)] * ratio.amax() * (1 + 1e-9)).all()) if len(ratio) else True


def test_weights_below_the_cap_are_left_alone():
    w = torch.tensor([1.0, 2.0, 3.0, 10.0])
    assert torch.allclose(capped_chances(w, 10), (w / 16).double())
    assert torch.allclose(capped_chances(w, math.inf), (w / 16).double())


@settings(max_examples=80)
@given(values=some_weights, n=st.integers(0, 200), seed=st.integers(0, 9))
def test_every_row_is_met_as_often_as_expected_rounded_down_or_up(values, n, seed):
    p = capped_chances(torch.tensor(values), 5)
    rows = drawn_rows(p, n, generator=spawn(seed))
    counts = torch.bincount(rows, minlength=len(p)).double()
    assert len(rows) == n
    assert bool(((counts - n * p).abs() < 1 + 1e-6).all())
    assert int(counts[p == 0].sum()) == 0


def test_frequencies_match_the_capped_weights():
    p = capped_chances(torch.tensor([50.0, 3.0, 1.0, 1.0, 0.5, 0.0, 2.0]), 2.5)
    generator, times = spawn(0), 2000
    met = Counter(i for _ in range(times) for i in drawn_rows(p, 3, generator=generator).tolist())
    for i, chance in enumerate(p.tolist()):
        assert abs(met[i] / times - 3 * chance) <= 5 * (0.25 / times) ** 0.5
    assert met[5] == 0


def test_rows_of_equal_chance_are_drawn_independently_of_their_neighbours():
    p, generator, times = capped_chances(torch.ones(6), 10), spawn(0), 1500
    met = Counter(tuple(drawn_rows(p, 2, generator=generator).tolist()) for _ in range(times))
    assert len(met) == 15
    assert all(abs(count / times - 1 / 15) <= 5 * (14 / 225 / times) ** 0.5 for count in met.values())


def test_where_nothing_is_left_to_chance_nothing_is_drawn():
    for n in (1, 3, 7, 49, 1000, 12345):
        generator = spawn(0)
        before = generator.get_state()
        p = capped_chances(torch.full((n,), 0.1), 10)
        assert torch.equal(drawn_rows(p, n, generator=generator), torch.arange(n))
        assert torch.equal(before, generator.get_state())


class Seen(nn.Module):
    """Counts which inputs it is trained on, by their first value in thousandths."""

    def __init__(self) -> None:
        super().__init__()
        self.dense, self.met, self.batches = nn.Linear(2, 2), Counter(), []

    def __deepcopy__(self, memo):
        other = Seen()
        other.load_state_dict(self.state_dict())
        other.met, other.batches = self.met, self.batches
        return other

    def forward(self, x):
        if self.training:
            self.met.update((x[:, 0] * 1000).round().long().tolist())
            self.batches.append(len(x))
        return self.dense(x)


def numbered(n: int, start: int) -> Samples:
    """Inputs that are known by their first value."""
    return Samples(torch.stack([(start + torch.arange(n)) / 1000, torch.full((n,), 0.5)], 1), torch.arange(n) % 2)


@pytest.mark.parametrize(
    ("options", "train_rows", "case_rows"),
    [
        ({"case_share": 0.25}, 90, 30),
        ({"case_share": 0.5}, 90, 90),
        ({"case_share": 0.0}, 90, 0),
        ({"case_share": None}, 90, 10),
        ({"case_share": 0.25, "steps": 5}, 75, 25),
        ({"case_share": None, "steps": 10}, 180, 20),
        ({"case_share": 0.25, "steps": 60}, 900, 300),
    ],
)
def test_an_epoch_meets_training_data_and_cases_in_the_stated_shares(options, train_rows, case_rows):
    seen, weights = Seen(), torch.tensor([100.0] + [1.0] * 9)
    tune = replace(QUICK, epochs=2, batch_size=20, cap=4.0, **options)
    validation = numbered(20, 800)
    tuned = tune(
        Classifier(seen), numbered(90, 0), numbered(10, 500), weights=weights, validation=validation, generator=spawn(0)
    )
    counts = torch.tensor([seen.met[i] for i in [*range(90), *range(500, 510)]])
    assert int(counts[:90].sum()) == 2 * train_rows == 2 * tuned.record.train_rows
    assert int(counts[90:].sum()) == 2 * case_rows == 2 * tuned.record.case_rows
    assert sum(seen.met[i] for i in range(800, 820)) == 0  # validation is not learned from
    spread = counts[:90].double() - 2 * train_rows / 90
    assert float(spread.abs().amax()) < 2  # in each epoch all, or none twice before all others
    assert abs(int(counts[90]) - 2 * 0.4 * case_rows) < 2  # the heavy one is capped at 4 times the mean
    assert max(seen.batches) <= 20
    if case_rows:
        assert tuned.record.effective_cases == pytest.approx(1 / (0.4**2 + 9 * (0.6 / 9) ** 2))


def test_training_data_can_be_weighted_too():
    seen = Seen()
    weights = torch.cat([torch.zeros(45), torch.ones(45)])
    replace(QUICK, epochs=2, steps=3)(
        Classifier(seen),
        numbered(90, 0),
        numbered(10, 500),
        train_weights=weights,
        validation=numbered(20, 800),
        generator=spawn(0),
    )
    assert sum(seen.met[i] for i in range(45)) == 0
    assert sum(seen.met[i] for i in range(45, 90)) == 2 * 72


# Schedule, average, losses


def test_the_rate_rises_slowly_and_falls_fast():
    tune = OperationalFinetune(learning_rate=0.1, slow_start=0.2, decay_to=0.01)
    rates = [tune._rate(step, 100) for step in range(1, 101)]
    assert rates[:20] == pytest.approx([0.1 * step / 20 for step in range(1, 21)])
    assert rates[99] == pytest.approx(0.001)
    ratios = torch.tensor(rates[20:]) / torch.tensor(rates[19:-1])
    assert torch.allclose(ratios, torch.full_like(ratios, 0.01 ** (1 / 80)))
    constant = replace(tune, slow_start=0.0, decay_to=1.0)
    assert {constant._rate(step, 7) for step in range(1, 8)} == {0.1}


def plain_loop(start: Classifier, loss, *, steps: int, averaging: float = 0.0) -> list[torch.Tensor]:
    """Whole batches of TRAIN and CASES with plain SGD, as `WHOLE` below has it; the last weights, or their average."""
    module = start.unwrap()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
    average = [p.detach().clone() for p in module.parameters()]
    for _ in range(steps):
        optimizer.zero_grad()
        loss(module).backward()
        optimizer.step()
        average = [
            averaging * a + (1 - averaging) * p.detach() for a, p in zip(average, module.parameters(), strict=True)
        ]
    return average


WHOLE = OperationalFinetune(
    epochs=4, batch_size=240, learning_rate=0.05, optimiser="sgd", max_drop=1, progress=False, **PLAIN
)
X, Y = torch.cat([TRAIN.x, CASES.x]).double(), torch.cat([TRAIN.labels, CASES.labels])
DOUBLE = {name: Samples(part.x.double(), part.y) for name, part in DATA.items()}


@pytest.fixture(scope="module")
def double(model) -> Classifier:
    return Classifier(model.unwrap().double())


@pytest.mark.parametrize("ema", [0.0, 0.5, 0.9])
def test_what_is_kept_is_the_running_average(double, ema):
    tuned = replace(WHOLE, ema=ema)(double, **DOUBLE, monitor=falling(), generator=spawn(0))
    expected = plain_loop(double, lambda module: cross_entropy(module(X), Y), steps=4, averaging=ema)
    for ours, theirs in zip(tuned.model.unwrap().parameters(), expected, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-7, atol=1e-9)


def test_the_average_of_batch_statistics_and_counts():
    start = Classifier(nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2)))
    tuned = replace(WHOLE, epochs=1, ema=0.75)(start, **DATA, monitor=falling(), generator=spawn(0))
    norm = tuned.model.unwrap()[0]
    after_one = 0.9 * torch.zeros(2) + 0.1 * X.float().mean(0)
    assert torch.allclose(norm.running_mean, 0.25 * after_one, atol=1e-6)
    assert int(norm.num_batches_tracked) == 1


def test_consistency_adds_the_divergence_of_each_case_from_its_seed(double):
    seeds = torch.rand(40, 2, generator=spawn(0, "seeds")).double()

    def loss(module):
        at_seeds, at_cases = (log_softmax(module(x), 1) for x in (seeds, CASES.x.double()))
        pairs = (at_seeds.exp() * (at_seeds - at_cases)).sum()
        return cross_entropy(module(X), Y) + 3.0 * pairs / 240

    tune = replace(WHOLE, consistency=3.0)
    tuned = tune(double, **DOUBLE, monitor=falling(), seeds=seeds, generator=spawn(0))
    for ours, theirs in zip(tuned.model.unwrap().parameters(), plain_loop(double, loss, steps=4), strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("consistency", [0.0, 2.0])
def test_the_inner_loop_learns_from_what_one_step_finds(double, consistency, monkeypatch):
    """With the step replaced by one that is known, the loss is that of adversarial training, or of TRADES."""
    monkeypatch.setattr("operant.retrain.losses.one_step", lambda learner, x, y, **_: x + 0.1 * (1 - x))
    moved = X + 0.1 * (1 - X)

    def loss(module):
        if not consistency:
            return cross_entropy(module(moved), Y)
        z, other = (log_softmax(module(x), 1) for x in (X, moved))
        return cross_entropy(z, Y) + consistency * kl_div(other, z, reduction="batchmean", log_target=True)

    tune = replace(WHOLE, inner="rs-fgsm", radius=0.1, consistency=consistency)
    tuned = tune(double, **DOUBLE, monitor=falling(), generator=spawn(0))
    for ours, theirs in zip(tuned.model.unwrap().parameters(), plain_loop(double, loss, steps=4), strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("inner", INNER)
def test_one_step_raises_the_loss_and_stays_where_it_should(inner):
    images = Samples(torch.rand(64, 3, 12, 12, generator=spawn(1)), torch.arange(64) % 10)
    learner = TrainableModel(Classifier(initialise(normed, generator=spawn(0))), optimiser="adam", learning_rate=1e-3)
    learner.module.train()
    before = {name: values.clone() for name, values in learner.module.state_dict().items()}
    moved = one_step(learner, images.x, images.labels, inner=inner, radius=0.03, generator=spawn(2))
    assert learner.module.training
    assert all(torch.equal(values, before[name]) for name, values in learner.module.state_dict().items())
    assert all(p.grad is None for p in learner.module.parameters())
    assert float((moved - images.x).abs().amax()) <= (0.03 if inner == "rs-fgsm" else 0.09) + 1e-6
    assert 0 <= float(moved.amin()) <= float(moved.amax()) <= 1
    learner.module.eval()
    rows = {"target": images.labels, "reduction": "none"}
    rise = cross_entropy(learner.logits(moved), **rows) - cross_entropy(learner.logits(images.x), **rows)
    assert float((rise > 0).double().mean()) > 0.9


# Which epoch


def test_the_monitor_chooses_and_each_epoch_records_why(model):
    tune = replace(QUICK, epochs=4, must_improve=True, patience=None)
    record = tune(model, **DATA, monitor=returning(0.4, 0.5, 0.2, 0.3, 0.1), generator=spawn(0)).record
    assert (record.monitor_before, record.best_epoch, record.stopped_early) == (0.4, 4, False)
    assert [e.kept for e in record.history] == [False, True, False, True]
    assert record.history[0].why == "the monitor (0.5) is not below the original's 0.4"
    assert record.history[1].why == "the lowest monitor so far (0.2)"
    assert record.history[2].why == "the monitor (0.3) is not below epoch 2's 0.2"
    assert "epoch 4 had the lowest monitor (0.1) of the 4" in record.reason


def test_it_stops_when_the_monitor_no_longer_falls(model):
    seen: list[Classifier] = []
    values = iter([0.5, 0.4, 0.3, 0.3, 0.35])

    def monitor(candidate: Classifier) -> float:
        seen.append(candidate)
        return next(values)

    tune = replace(QUICK, epochs=50, must_improve=True, patience=2)
    tuned = tune(model, **DATA, monitor=monitor, generator=spawn(0))
    assert seen[0] is model
    assert (len(tuned.record.history), tuned.record.best_epoch, tuned.record.stopped_early) == (4, 2, True)
    assert same_weights(tuned.model, seen[2])
    why = "no later epoch was acceptable with a lower monitor than epoch 2"
    assert tuned.record.reason.endswith(f"; stopped after epoch 4 (patience 2), since {why}")


def judged(accuracies: list[float], monitors: list[float], *, epochs: int = 3) -> FinetuneRecord:
    """The record of a training whose epochs have these values; 0.9 and 0.4 before, at most 0.01 may be lost."""
    limits = {"accuracy_before": 0.9, "monitor_before": 0.4, "max_drop": 0.01, "patience": 3}
    judge = EpochJudge(validation=TRAIN, monitor=None, **limits)
    history: list[FinetuneEpoch] = []
    for accuracy, monitor in zip(accuracies, monitors, strict=True):
        kept, why = judge.decide(accuracy, monitor, history)
        values = {"accuracy": accuracy, "monitor": monitor, "kept": kept, "why": why}
        history.append(FinetuneEpoch(epoch=len(history) + 1, loss=0.0, **values))
    none = torch.empty(0)
    rows = EpochRows(train=TRAIN, cases=TRAIN[:0], chances=(none, none), counts=(1, 0))
    return _record(rows, judge, history, "", epochs=epochs)


GUARD = "clean validation accuracy at most 1 point below the original 90 %"


@pytest.mark.parametrize(
    ("accuracies", "monitors", "epochs", "reason"),
    [
        (
            [0.9, 0.9, 0.9],
            [0.7, 0.6, 0.5],  # it fell in every epoch
            10,
            "no epoch brought the monitor below the original's 0.4 (the lowest was 0.5), so the original weights were "
            "kept; stopped after epoch 3 (patience 3), since no epoch was acceptable until then",
        ),
        (
            [0.5, 0.9, 0.6],
            [0.1, 0.5, 0.2],  # it was below the original's, in epochs that lost too much accuracy
            3,
            f"no epoch with a {GUARD} brought the monitor below the original's 0.4 (the lowest was 0.5), "
            "so the original weights were kept",
        ),
        (
            [0.5, 0.8, 0.6],
            [0.5, 0.6, 0.7],
            3,
            f"no epoch had a {GUARD} (the highest was 80 %), so the original weights were kept",
        ),
        (
            [0.9, 0.5, 0.9, 0.9],
            [0.3, 0.1, 0.3, 0.35],  # it was lower after epoch 1, in an epoch that lost too much accuracy
            10,
            f"epoch 1 had the lowest monitor (0.3) of the 3 with a {GUARD}; stopped after epoch 4 (patience 3), since "
            "no later epoch was acceptable with a lower monitor than epoch 1",
        ),
        ([0.9, 0.9], [0.3, 0.2], 2, f"epoch 2 had the lowest monitor (0.2) of the 2 with a {GUARD}"),
    ],
)
def test_the_record_says_truly_why_it_stopped_and_what_was_kept(accuracies, monitors, epochs, reason):
    record = judged(accuracies, monitors, epochs=epochs)
    assert record.reason == reason
    assert record.stopped_early == (len(accuracies) < epochs)
    assert record.changed == ("had the lowest monitor" in reason)


def test_if_the_monitor_never_falls_the_original_weights_stay(model):
    for values in ([0.2, 0.3, 0.4, 0.5], [0.2, 0.2, 0.2, 0.2]):
        tune = replace(QUICK, must_improve=True)
        tuned = tune(model, **DATA, monitor=returning(*values), generator=spawn(0))
        assert tuned.model is model
        assert (tuned.record.best_epoch, len(tuned.record.history)) == (0, 3)
        lowest = min(values[1:])
        expected = f"no epoch brought the monitor below the original's 0.2 (the lowest was {lowest:.4g}), so the"
        assert tuned.record.reason.startswith(expected)


def test_an_infinite_monitor_is_no_improvement_over_an_infinite_one(model):
    tuned = replace(QUICK, must_improve=True)(model, **DATA, monitor=lambda _: math.inf, generator=spawn(0))
    assert tuned.model is model
    assert (tuned.record.best_epoch, [e.kept for e in tuned.record.history]) == (0, [False] * 3)


def test_without_a_monitor_it_is_the_error_on_the_validation_samples(model):
    record = QUICK(model, **DATA, generator=spawn(0)).record
    assert [e.monitor for e in record.history] == [1 - e.accuracy for e in record.history]
    assert record.monitor_before is None
    improving = replace(QUICK, must_improve=True)(model, **DATA, generator=spawn(0)).record
    assert improving.monitor_before == 1 - improving.accuracy_before


def test_the_guard_keeps_the_original_weights(model):
    wrong = DATA | {"train": Samples(TRAIN.x, 1 - TRAIN.labels)}
    tune = replace(QUICK, learning_rate=0.05, max_drop=0.01, patience=2)
    tuned = tune(model, **wrong, monitor=falling(), generator=spawn(0))
    assert tuned.model is model
    assert (tuned.record.best_epoch, len(tuned.record.history)) == (0, 2)
    assert not any(e.kept for e in tuned.record.history)
    assert "is below the required" in tuned.record.history[-1].why
    assert "no epoch had a clean validation accuracy at most 1 point below the original" in tuned.record.reason
    assert tune(model, **wrong, monitor=falling(), max_drop=1, generator=spawn(0)).record.best_epoch > 0


def test_if_the_loss_is_not_finite_the_original_weights_stay(model):
    tune = replace(QUICK, learning_rate=1e37, optimiser="sgd", slow_start=0, decay_to=1)
    tuned = tune(model, **DATA, generator=spawn(0))
    assert tuned.model is model
    assert (tuned.record.best_epoch, tuned.record.history, tuned.record.stopped_early) == (0, (), False)
    assert "original weights were kept; try a lower learning_rate" in tuned.record.reason


def test_the_monitor_is_given_finished_models_only(model):
    """In evaluation mode, frozen, each with weights of its own that later steps do not touch."""
    digests: list[tuple[Classifier, list[torch.Tensor]]] = []

    def monitor(candidate: Classifier) -> float:
        module = candidate._plain
        assert not module.training
        assert not any(p.requires_grad for p in module.parameters())
        digests.append((candidate, [p.clone() for p in module.parameters()]))
        return 1 / len(digests)

    replace(QUICK, ema=0.5)(model, **DATA, monitor=monitor, generator=spawn(0))
    assert len(digests) == 3
    for candidate, before in digests:
        assert all(torch.equal(a, b) for a, b in zip(candidate._plain.parameters(), before, strict=True))


def test_same_generator_same_bits_and_nothing_else_moves(model):
    options = {"inner": "n-fgsm", "radius": 0.05, "consistency": 1.0, "ema": 0.3}
    tune, before = replace(QUICK, **options), torch.random.get_rng_state()
    weights = {name: values.clone() for name, values in model.unwrap().state_dict().items()}
    first, second, other = (
        tune(model, **DATA, monitor=falling(), weights=WEIGHTS, generator=spawn(seed)) for seed in (1, 1, 2)
    )
    assert first.record == second.record
    assert same_weights(first.model, second.model)
    assert not same_weights(first.model, other.model)
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(torch.equal(values, model.unwrap().state_dict()[name]) for name, values in weights.items())


def test_it_learns_where_the_weight_is(model):
    """Two groups of cases that contradict each other: the model learns the one with the weight."""
    x = torch.tensor([[0.5, 0.05]]) + 0.02 * torch.rand(60, 2, generator=spawn(1))
    cases = Samples(x, torch.arange(60) % 2)
    for side in (0, 1):
        weights = (cases.labels == side).float() + 0.01
        tune = replace(QUICK, learning_rate=0.03, case_share=0.5, epochs=8, patience=None)
        data = {"validation": VALIDATION, "weights": weights, "monitor": falling()}
        tuned = tune(model, TRAIN, cases, **data, generator=spawn(0))
        assert bool((tuned.model.predict(x) == side).all())


# The monitor


def test_the_monitor_estimates_pmi_with_masses(model):
    wrong = (model.predict(CASES.x) != CASES.labels).double()
    assert 0 < float(wrong.mean()) < 1
    assert pmi_monitor(CASES)(model) == pytest.approx(float(wrong.mean()))
    mass = torch.rand(40, generator=spawn(3))
    assert pmi_monitor(CASES, mass)(model) == pytest.approx(float(wrong @ mass.double() / mass.double().sum()))
    assert pmi_monitor(CASES, mass * 1e-30)(model) == pytest.approx(pmi_monitor(CASES, mass)(model))


def test_the_brier_monitor_is_scikit_learns_and_rejects_learned_inputs(model):
    p = model.probs(CASES.x)
    mass = torch.rand(40, generator=spawn(3))
    for weights in (None, mass):
        one = [brier_score_loss(CASES.labels == c, p[:, c], sample_weight=weights) for c in range(p.shape[1])]
        assert brier_monitor(CASES, weights)(model) == pytest.approx(sum(one) / 2, abs=1e-6)
    with pytest.raises(ValueError, match="the monitor"):
        QUICK(model, **DATA, monitor=brier_monitor(TRAIN), generator=spawn(0))


def test_few_labels_choose_better_by_brier_than_by_counting():
    """Two models with error rates of 10 % and 15 %: how often fifty labels choose the better; a tie counts half."""
    rng, z = np.random.default_rng(0), norm.ppf([0.9, 0.85])
    correct = dict.fromkeys(("errors", "brier"), 0.0)
    for _ in range(1000):
        leads = 2 * (z[:, None] + 0.8 * rng.normal(size=50) + 0.6 * rng.normal(size=(2, 50)))  # log-odds of the label
        for name, scores in (("errors", leads < 0), ("brier", expit(-leads) ** 2)):
            better, worse = scores.mean(1)
            correct[name] += float(better < worse) + 0.5 * float(better == worse)
    assert correct["brier"] > correct["errors"] + 30


@pytest.mark.parametrize(
    ("samples", "mass", "sentence"),
    [
        (NONE, None, "validation must not be empty; hold some field inputs back"),
        (Samples(CASES.x), None, "carry no labels"),
        (CASES, torch.ones(39), "mass must be a tensor with one number for each of the 40 inputs, got shape (39,)"),
        (CASES, torch.zeros(40), "mass must be positive for some input, all 40 are 0"),
        (CASES, -torch.ones(40), "got 40 of 40 that are negative, NaN or infinite"),
    ],
)
def test_bad_masses_of_the_monitor_are_rejected(samples, mass, sentence):
    with pytest.raises(ValueError) as error:
        pmi_monitor(samples, mass)
    assert sentence in str(error.value)


# As a value


def test_the_record_prints_and_comes_back_from_disk(model, tmp_path):
    tune = replace(QUICK, must_improve=True)
    record = tune(model, **DATA, monitor=returning(0.5, 0.4, 0.3, 0.35), weights=WEIGHTS, generator=spawn(0)).record
    save(record, tmp_path / "record.json")
    assert load(tmp_path / "record.json", FinetuneRecord) == record
    text = str(record)
    assert text.startswith("3 epochs, each with 200 training rows and 67 rows drawn from 40 cases (effective number: ")
    assert "The monitor was 0.5 before. Epoch 2 had the lowest monitor (0.3)" in text


# Rejected arguments


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"learning_rate": math.nan}, "learning_rate must be positive and finite, got nan"),
        ({"optimiser": "adamw"}, "optimiser must be one of adam, sgd, got 'adamw'"),
        ({"max_drop": 2}, "max_drop must be a share from 0 to 1, got 2"),
        ({"case_share": 1.0}, "case_share must be from 0 to below 1, got 1.0"),
        ({"case_share": -0.1}, "got -0.1"),
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"cap": 0.5}, "cap must be at least 1, got 0.5"),
        ({"cap": math.nan}, "got nan"),
        ({"slow_start": 1.0}, "slow_start must be from 0 to below 1, got 1.0"),
        ({"decay_to": 0.0}, "decay_to must be above 0 and at most 1, got 0.0"),
        ({"patience": 0}, "patience must be at least 1, got 0"),
        ({"consistency": -1.0}, "consistency must be 0 or more and finite, got -1.0"),
        ({"inner": "pgd", "radius": 0.1}, "inner must be one of none, rs-fgsm, n-fgsm, got 'pgd'"),
        ({"inner": "rs-fgsm"}, "an inner loop and its radius go together, got 'rs-fgsm' and radius=None"),
        ({"inner": "n-fgsm", "radius": -0.1}, "radius must be positive and finite, got -0.1"),
        ({"radius": 0.1}, "an inner loop and its radius go together, got 'none' and radius=0.1"),
        ({"ema": 1.0}, "ema must be from 0 to below 1, got 1.0"),
    ],
)
def test_bad_options_are_rejected(options, sentence):
    with pytest.raises(ValueError) as error:
        OperationalFinetune(**options)
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"weights": torch.zeros(40)}, "weights must be positive for some input, all 40 are 0"),
        ({"weights": torch.full((40,), -1.0)}, "weights must be 0 or more and finite, got 40 of 40 that are negative"),
        ({"weights": torch.tensor([math.nan] + [1.0] * 39)}, "got 1 of 40 that are negative, NaN or infinite"),
        ({"weights": torch.ones(39)}, "one number for each of the 40 inputs, got shape (39,)"),
        ({"train_weights": torch.zeros(200)}, "train_weights must be positive for some input, all 200 are 0"),
        ({"cases": NONE}, "there are no cases to learn from; give some, or set case_share=0 for a control"),
        ({"train": NONE}, "train must not be empty"),
        ({"train": Samples(TRAIN.x)}, "carry no labels"),
        ({"cases": Samples(CASES.x)}, "carry no labels"),
        ({"validation": NONE}, "validation must not be empty"),
        ({"validation": TRAIN[:30]}, "got 30 of 30 that are in train too"),
    ],
)
def test_bad_data_are_rejected(model, change, sentence):
    with pytest.raises(ValueError) as error:
        QUICK(model, **(DATA | change), generator=spawn(0))
    assert sentence in str(error.value)


def test_a_monitor_that_uses_learned_inputs_is_rejected(model):
    for samples, sentence in (
        (TRAIN[:7], "the monitor must hold no input that is learned from, got 7 of 7 that are in train too"),
        (Samples.concat([blobs(5, seed="other"), CASES[:2]]), "got 2 of 7 that are in cases too"),
    ):
        with pytest.raises(ValueError) as error:
            QUICK(model, **DATA, monitor=pmi_monitor(samples), generator=spawn(0))
        assert sentence in str(error.value)


def test_a_monitor_that_returns_nan_is_rejected(model):
    for improve in (True, False):
        with pytest.raises(ValueError, match="the monitor must return a number, got NaN"):
            replace(QUICK, must_improve=improve)(model, **DATA, monitor=lambda _: math.nan, generator=spawn(0))


def test_consistency_wants_the_seeds(model):
    tune = replace(QUICK, consistency=1.0)
    with pytest.raises(ValueError, match=r"give seeds=suite\.x0, or an inner loop"):
        tune(model, **DATA, generator=spawn(0))
    with pytest.raises(ValueError, match=r"of shape \(40, 2\), got \(39, 2\)"):
        tune(model, **DATA, seeds=CASES.x[:39], generator=spawn(0))
    with pytest.raises(ValueError, match="within bounds"):
        tune(model, **DATA, seeds=CASES.x + 5, generator=spawn(0))
