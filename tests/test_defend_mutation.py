"""Mutation-based detection: mutants differ as they should, the sequential test errs as often as it says, rows leave."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom
from torch import nn

from operant import Classifier, Samples, spawn
from operant.defend import SequentialTest, fit_mutation_detector
from operant.defend.mutants import mutate
from operant.defend.sequential import critical_thresholds
from operant.generate import BIM
from operant.networks import LeNet5, initialise

NET = initialise(lambda: LeNet5(size=8), generator=spawn(0, "weights"))
HIDDEN = {"conv1": 6, "conv2": 16, "fc1": 120, "fc2": 84}


# Mutants


def rows_that_differ(mutant: dict[str, torch.Tensor]) -> dict[str, list[int]]:
    own = dict(NET.named_parameters())
    return {
        name: (values != own[name]).flatten(1).any(1).nonzero().flatten().tolist()
        for name, values in mutant.items()
        if name.endswith("weight")
    }


@pytest.mark.parametrize("operator", ["NAI", "WS", "NS", "GF"])
def test_a_mutant_differs_in_as_much_as_it_should_and_the_network_stays(operator):
    before = {name: values.clone() for name, values in NET.state_dict().items()}
    mutant = mutate(NET, operator=operator, rate=0.05, generator=spawn(1))
    assert all(torch.equal(values, NET.state_dict()[name]) for name, values in before.items())
    changed = rows_that_differ(mutant)
    if operator == "GF":
        own = dict(NET.named_parameters())
        moved = sum(int((values != own[name]).sum()) for name, values in mutant.items())
        total = sum(own[name].numel() for name in mutant)
        assert abs(moved / total - 0.05) < 6 * math.sqrt(0.05 * 0.95 / total)
        assert "fc3.weight" in mutant
        return
    assert "fc3.weight" not in mutant
    n = sum(len(rows) for rows in changed.values())
    assert n == round(0.05 * 226) if operator != "NS" else 4 <= n <= 2 * round(0.05 * 226 / 2)
    assert changed.keys() <= {f"{name}.weight" for name in HIDDEN}


def test_inverting_a_neuron_turns_its_sign():
    own = dict(NET.named_parameters())
    mutant = mutate(NET, operator="NAI", rate=0.1, generator=spawn(1))
    for name, rows in rows_that_differ(mutant).items():
        assert torch.equal(mutant[name][rows], -own[name][rows])
        bias = name.replace("weight", "bias")
        assert torch.equal(mutant[bias][rows], -own[bias][rows])


def test_shuffling_keeps_the_weights_of_a_neuron_and_switching_those_of_a_layer():
    own = dict(NET.named_parameters())
    for name, values in mutate(NET, operator="WS", rate=0.1, generator=spawn(1)).items():
        assert torch.equal(values.flatten(1).sort(1).values, own[name].flatten(1).sort(1).values)
    switched = mutate(NET, operator="NS", rate=0.1, generator=spawn(1))
    for name in rows_that_differ(switched):
        bias = name.replace("weight", "bias")
        both, theirs = (torch.cat([m[name].flatten(1), m[bias][:, None]], 1) for m in (switched, own))
        order = [int((theirs == row).all(1).nonzero()[0]) for row in both]
        assert sorted(order) == list(range(len(theirs)))


def test_noise_is_added_to_the_weight_in_units_of_its_layer():
    own = dict(NET.named_parameters())
    mutant = mutate(NET, operator="GF", rate=1.0, generator=spawn(1))
    for name in ("fc1.weight", "fc2.weight"):
        noise = (mutant[name] - own[name].detach()) / own[name].detach().std()
        assert abs(float(noise.mean())) < 0.05
        assert float(noise.std()) == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize(
    ("network", "options", "sentence"),
    [
        (NET, {"operator": "XX"}, "operator must be one of NAI, GF, WS, NS, got 'XX'"),
        (NET, {"rate": 0.0}, "rate must be above 0 and at most 1, got 0.0"),
        (nn.Linear(3, 2), {}, "NAI changes hidden neurons, but this network has none"),
        (nn.ReLU(), {"operator": "GF"}, "GF changes weights, but this network has no"),
        (
            nn.Sequential(nn.Linear(3, 1), nn.Linear(1, 2)),
            {"operator": "NS"},
            "no hidden layer of this network has two",
        ),
    ],
)
def test_what_cannot_be_mutated_is_rejected(network, options, sentence):
    with pytest.raises(ValueError, match=sentence.replace("(", "\\(")):
        mutate(network, **{"operator": "NAI", "rate": 0.1, "generator": spawn(0), **options})


# The sequential test


@pytest.mark.parametrize(
    ("threshold", "indifference", "alpha", "beta"),
    [(0.05, 0.5, 0.05, 0.05), (0.3, 0.2, 0.02, 0.1), (0.1, 0.4, 0.1, 0.01)],
)
def test_errors_are_within_alpha_and_beta(threshold, indifference, alpha, beta):
    test = SequentialTest(threshold=threshold, indifference=indifference, alpha=alpha, beta=beta)
    n, longest = 2000, 2500
    for sign, wrong, rate in ((-1, 1, alpha), (1, -1, beta)):
        p = threshold * (1 + sign * indifference)
        changed = torch.rand(n, longest, generator=spawn(0, sign)) < p
        answer, used = test.run(changed)
        assert int((answer == wrong).sum()) <= binom.isf(0.01, n, rate)
        assert int((used == longest).sum()) == 0  # all were decided
        assert float(used.double().mean()) < longest / 10


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**31),
    threshold=st.floats(0.01, 0.5),
    rate=st.floats(0, 1),
    length=st.integers(1, 60),
)
def test_the_answer_is_that_of_a_plain_loop(seed, threshold, rate, length):
    """Every observation counts, before the ratio is looked at, whether the label changed or not."""
    test = SequentialTest(threshold=threshold)
    changed = torch.rand(5, length, generator=spawn(seed)) < rate
    answers, used = test.run(changed)
    p0, p1 = 0.5 * threshold, 1.5 * threshold
    for row, answer, n in zip(changed.tolist(), answers.tolist(), used.tolist(), strict=True):
        ratio, expected = 0.0, None
        for seen, change in enumerate(row, start=1):
            ratio += math.log(p1 / p0) if change else math.log((1 - p1) / (1 - p0))
            if abs(abs(ratio) - math.log(19)) < 1e-9:  # rounding may decide
                return
            if abs(ratio) > math.log(19):
                expected = (1 if ratio > 0 else -1, seen)
                break
        assert (answer, n) == (expected or (1 if sum(row) > threshold * length else -1, length))


@settings(max_examples=40)
@given(seed=st.integers(0, 2**31), rate=st.floats(0, 0.6), length=st.integers(1, 80), threshold=st.floats(0.005, 0.6))
def test_the_critical_threshold_is_where_the_answer_turns(seed, rate, length, threshold):
    changed = torch.rand(6, length, generator=spawn(seed)) < rate
    critical = critical_thresholds(changed)
    answer, _ = SequentialTest(threshold=threshold).run(changed)
    apart = (critical - threshold).abs() > 1e-6
    assert torch.equal((answer == 1)[apart], (critical > threshold)[apart])
    for row, value in zip(changed, critical.tolist(), strict=True):
        if value < 0.666:
            assert int(SequentialTest(threshold=value).run(row[None])[0]) == -1


def test_a_label_that_never_changes_is_decided_after_a_known_number():
    test = SequentialTest(threshold=0.0441)
    answer, used = test.run(torch.zeros(3, 500, dtype=torch.bool))
    assert answer.tolist() == [-1, -1, -1]
    assert used.tolist() == [test.shortest] * 3
    assert 60 < test.shortest < 75
    assert SequentialTest(threshold=0.0441, indifference=0.1).shortest > 300  # the public program's


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"threshold": 0.0}, "threshold must be above 0 and below 0.6667, got 0.0"),
        ({"threshold": 0.7}, "got 0.7"),
        ({"indifference": 1.0}, "indifference must be between 0 and 1, got 1.0"),
        ({"alpha": 0.6}, "alpha must be between 0 and 0.5, got 0.6"),
    ],
)
def test_bad_tests_are_rejected(options, sentence):
    with pytest.raises(ValueError) as error:
        SequentialTest(**{"threshold": 0.1, **options})
    assert sentence in str(error.value)


# The detector


class Counting(nn.Module):
    """Counts the rows it is given."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network, self.rows = network, 0

    def forward(self, x):
        self.rows += len(x)
        return self.network(x)


@pytest.fixture(scope="module")
def subject(lenet, digits28):
    model = Classifier(Counting(lenet.unwrap()))
    good = lenet.correct(digits28.test)
    parts = good.split(benign=0.7, judged=0.3)
    cases = BIM(radius=0.3, minimal=True)(lenet, parts["judged"], generator=spawn(0)).failures()
    detector = fit_mutation_detector(model, parts["benign"], mutants=60, generator=spawn(1))
    return detector, parts["judged"].x, cases.x


def test_decisions_are_those_of_all_mutants_on_all_inputs_and_rows_leave(subject):
    detector, benign, wrong = subject
    x = torch.cat([benign, wrong])
    detector.network.rows = 0
    decisions = detector.decisions(x)
    asked = detector.network.rows
    answer, used = detector.test.run(detector.changes(x))
    assert torch.equal(decisions.adversarial, answer == 1)
    assert torch.equal(decisions.mutants, used)
    assert asked <= len(x) + int(used.sum()) + 16 * 60  # small batches are padded
    assert int(used.sum()) < 0.5 * 60 * len(x)
    assert torch.equal(detector.accepts(x), ~decisions.adversarial)


def test_labels_of_attacked_inputs_change_more_often(subject):
    detector, benign, wrong = subject
    rates = [float(detector.changes(x).double().mean()) for x in (benign, wrong)]
    assert rates[1] > 3 * rates[0]
    rejected = [float((~detector.accepts(x)).double().mean()) for x in (benign, wrong)]
    assert rejected[1] > rejected[0] + 0.3


def test_mutants_are_accurate_and_the_same_again(lenet, digits28, subject):
    detector, _, _ = subject
    assert len(detector.numbers) == len(set(detector.numbers)) == 60
    again = fit_mutation_detector(
        lenet, lenet.correct(digits28.test).split(benign=0.7, judged=0.3)["benign"], mutants=60, generator=spawn(1)
    )
    assert again.numbers == detector.numbers
    assert again.test == detector.test
    judged = lenet.correct(digits28.test).split(benign=0.7, judged=0.3)["benign"].split(learning=0.5, calibration=0.5)
    assert float((~detector.changes(judged["learning"].x)).double().mean(0).min()) >= 0.9


def test_a_threshold_is_never_so_small_that_nothing_is_decided(digits28):
    """Mutants that hardly differ: no label changes, and yet benign inputs are accepted within the mutants there are."""
    model = Classifier(nn.Sequential(nn.Flatten(), nn.Linear(784, 4), nn.ReLU(), nn.Linear(4, 2)).eval())
    still = model.unwrap()
    nn.init.zeros_(still[1].weight)
    detector = fit_mutation_detector(
        Classifier(still), Samples(digits28.test.x[:200]), rate=0.01, mutants=30, generator=spawn(0)
    )
    assert detector.test.shortest <= 30
    assert bool(detector.accepts(digits28.test.x[200:250]).all())


def test_modules_that_work_in_place_do_not_change_the_inputs(digits28):
    network = nn.Sequential(nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(784, 64), nn.Tanh(), nn.Linear(64, 3))
    model, x = Classifier(network, bounds=(-1.0, 1.0)), digits28.test.x[:200] * 2 - 1
    kept = x.clone()
    detector = fit_mutation_detector(model, Samples(x), rate=0.02, mutants=10, generator=spawn(0))
    detector.decisions(x)
    assert torch.equal(x, kept)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"mutants": 0}, "mutants must be at least 1, got 0"),
        ({"rate": 0.9, "mutants": 3}, "of 15 mutants agree with the network on at least 90 % of the benign inputs"),
        ({"operator": "YY"}, "operator must be one of"),
        ({"calibration": 0.01}, "benign inputs is empty"),
    ],
)
def test_what_cannot_be_fitted_is_rejected(lenet, digits28, options, sentence):
    benign = lenet.correct(digits28.test)[: 20 if "calibration" in options else 200]
    with pytest.raises(ValueError) as error:
        fit_mutation_detector(lenet, benign, generator=spawn(0), **options)
    assert sentence in str(error.value)
