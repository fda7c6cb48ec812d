"""Class priors in the field: known shifts are found, intervals hold, other shifts detected, bad input is rejected."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import softmax
from torch import nn

from operant import Classifier, Samples, load_digits, results, spawn
from operant.networks import LeNet5, fit, initialise
from operant.profile import Priors, estimate_priors
from operant.profile._estimators import Outputs, bbse, mlls, rlls, saerens

SHIFTS = {
    "uniform": np.full(10, 0.1),
    "zipf": (1 / np.arange(1, 11)) / (1 / np.arange(1, 11)).sum(),
    "one class missing": np.array([0.0, *[1 / 9] * 9]),
}


def resampled(samples: Samples, priors: np.ndarray, n: int, generator: torch.Generator) -> Samples:
    """n inputs of these priors, drawn with replacement."""
    classes = torch.multinomial(torch.from_numpy(priors), n, replacement=True, generator=generator)
    rows = torch.empty(n, dtype=torch.int64)
    for c in range(len(priors)):
        members = (samples.labels == c).nonzero().flatten()
        here = classes == c
        rows[here] = members[torch.randint(len(members), (int(here.sum()),), generator=generator)]
    return samples[rows]


class Blobs(nn.Module):
    """The exact log posterior of Gaussians around 0, 1 and 2, under even priors; overconfident by a factor."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.factor * -0.5 * ((x - torch.arange(3.0).to(x)) / 0.6) ** 2


def blobs(priors: list[float], n: int, generator: torch.Generator) -> Samples:
    y = torch.multinomial(torch.tensor(priors), n, replacement=True, generator=generator)
    return Samples(y[:, None] + 0.6 * torch.randn(n, 1, generator=generator), y)


@pytest.fixture(scope="module")
def toy() -> Classifier:
    return Classifier(Blobs(3.0), bounds=(-9.0, 9.0))


@pytest.mark.parametrize("method", ["mlls", "bbse", "rlls"])
def test_known_priors_come_out_and_calibration_undoes_overconfidence(toy, method: str) -> None:
    labelled, field = blobs([1 / 3] * 3, 5000, spawn(0)), blobs([0.7, 0.25, 0.05], 5000, spawn(1))
    priors = estimate_priors(toy, labelled, field, method=method, resamples=40, generator=spawn(2))
    assert priors.values == pytest.approx((0.7, 0.25, 0.05), abs=0.03 if method == "mlls" else 0.05)
    assert sum(priors.values) == pytest.approx(1)
    assert all(low <= v <= high for low, v, high in zip(priors.lower, priors.values, priors.upper, strict=True))
    assert priors.findings == ()
    assert priors.weights[0] == pytest.approx(priors.values[0] / priors.labelled[0])


@pytest.mark.parametrize("shift", SHIFTS)
def test_digits_resampled_to_known_priors(lenet, digits28, shift: str) -> None:
    parts = digits28.test.split(labelled=0.5, field=0.5)
    field = resampled(parts["field"], SHIFTS[shift], 1500, spawn(0, shift))
    labelled = Samples.concat([parts["labelled"]])
    priors = estimate_priors(lenet, labelled, field, resamples=40, generator=spawn(1))
    off = np.abs(np.array(priors.values) - SHIFTS[shift])
    assert (off.max() < 0.07, off.mean() < 0.02) == (True, True)  # weights differ a little from machine to machine


@pytest.mark.slow
def test_intervals_cover_as_often_as_they_say(toy) -> None:
    truth, covered = [0.6, 0.3, 0.1], 0
    for repetition in range(40):
        labelled, field = blobs([1 / 3] * 3, 400, spawn(repetition, 0)), blobs(truth, 400, spawn(repetition, 1))
        priors = estimate_priors(toy, labelled, field, resamples=40, generator=spawn(repetition, 2))
        covered += int(priors.lower[0] <= truth[0] <= priors.upper[0])
    assert covered >= 33  # not rejected against 95 % of 40 at level .01


@pytest.fixture(scope="module")
def untrained_on() -> tuple[Classifier, Samples]:
    """A network that has learned from 450 digits, and the 1347 others."""
    digits = load_digits(size=28)
    every = Samples.concat([digits.train, digits.test])
    every = every[torch.randperm(len(every), generator=spawn(0, "deal"))]
    start = initialise(LeNet5, generator=spawn(0, "weights"))
    fitted = fit(start, every[:450], epochs=12, batch_size=32, generator=spawn(0, "training"), progress=False)
    return Classifier(fitted.module), every[450:]


def dealt(rest: Samples, priors: np.ndarray, n: int, generator: torch.Generator) -> tuple[Samples, Samples]:
    """400 labelled digits, and n others of these priors, none twice."""
    counts = torch.bincount(
        torch.multinomial(torch.from_numpy(priors), n, replacement=True, generator=generator), minlength=10
    )
    order = torch.randperm(len(rest), generator=generator)
    field = torch.cat([order[rest.labels[order] == c][: int(counts[c])] for c in range(10)])
    assert len(field) == n
    left = order[~torch.isin(order, field)]
    left = left[torch.randperm(len(left), generator=generator)]
    return rest[left[:400]], rest[field]


@pytest.mark.slow
@pytest.mark.parametrize("shift", SHIFTS)
def test_intervals_cover_on_digits(untrained_on, shift: str) -> None:
    """100 repetitions; every class's interval is judged, ten at once, so each at level .001: at least 87 of 100."""
    model, rest = untrained_on
    covered, truth = np.zeros(10), SHIFTS[shift]
    for repetition in range(100):
        labelled, field = dealt(rest, truth, 250, spawn(repetition, shift))
        priors = estimate_priors(model, labelled, field, generator=spawn(repetition, "resamples"))
        covered += (np.array(priors.lower) <= truth) & (truth <= np.array(priors.upper))
    print(shift, covered)
    assert covered.min() >= 87, covered
    assert covered.mean() >= 93, covered


def test_one_class_in_the_field_is_a_finding(toy) -> None:
    labelled, field = blobs([1 / 3] * 3, 400, spawn(0)), Samples(torch.full((50, 1), 2.5) + torch.rand(50, 1))
    priors = estimate_priors(toy, labelled, field, resamples=20, generator=spawn(2))
    assert "one class" in [finding.name for finding in priors.findings]
    assert priors.values[2] == pytest.approx(1, abs=0.05)  # the mean with BBSE, since no class is so far out


def test_expectation_maximisation_agrees_with_quapy(lenet, digits28) -> None:
    quapy = pytest.importorskip("quapy.method.aggregative", reason="an oracle of the development environment")
    p = lenet.probs(resampled(digits28.test, SHIFTS["zipf"], 800, spawn(5)).x).double().numpy()
    source = np.bincount(digits28.train.labels.numpy(), minlength=10) / len(digits28.train)
    theirs, _ = quapy.EMQ.EM(source, p, epsilon=1e-9)
    assert np.abs(saerens(p, source) - theirs).max() < 1e-3


def test_the_likelihood_is_highest_at_the_estimate(generator) -> None:
    p = softmax(2 * torch.randn(400, 4, generator=generator).numpy().astype(np.float64), axis=1)
    source = np.array([0.4, 0.3, 0.2, 0.1])
    found = saerens(p, source)

    def likelihood(priors: np.ndarray) -> float:
        return float(np.log(p @ (priors / source)).sum())

    for other in torch.distributions.Dirichlet(torch.ones(4)).sample((200,)).numpy().astype(np.float64):
        for step in (0.01, 0.3):
            assert likelihood((1 - step) * found + step * other) <= likelihood(found) + 1e-6


def test_bbse_inverts_the_confusion_matrix_exactly() -> None:
    """Predictions that follow known confusion: the priors are those that give the field's predictions."""
    logits = np.eye(3)[[0] * 8 + [1] * 2 + [1] * 10 + [2] * 5 + [0] * 5]
    y = np.array([0] * 10 + [1] * 10 + [2] * 10)
    field = np.eye(3)[[0] * 60 + [1] * 25 + [2] * 15]  # priors .5625, .1375, .3 under that confusion
    outputs = Outputs(labelled=logits, y=y, field=field, start=np.zeros(4))
    assert bbse(outputs) == pytest.approx([0.5625, 0.1375, 0.3])
    assert rlls(outputs) == pytest.approx([0.5625, 0.1375, 0.3], abs=0.08)
    assert mlls(outputs).sum() == pytest.approx(1)


@pytest.mark.parametrize("what", ["wider classes", "a new kind of input"])
def test_more_than_label_shift_is_detected(toy, what: str) -> None:
    labelled, field = blobs([1 / 3] * 3, 3000, spawn(0)), blobs([1 / 3] * 3, 3000, spawn(1))
    wider = field.labels[:, None] + 1.5 * torch.randn(3000, 1, generator=spawn(3)).clamp(-4, 4)
    new = torch.where(torch.rand(3000, 1, generator=spawn(4)) < 0.3, 0.5, field.x)
    changed = replace(field, x=wider if what == "wider classes" else new)
    priors = estimate_priors(toy, labelled, changed, resamples=40, generator=spawn(2))
    assert [finding.name for finding in priors.findings] == ["not pure label shift"]
    assert "not pure label shift" in str(priors)


def test_priors_and_findings_use_class_names(toy) -> None:
    labelled = replace(blobs([1 / 3] * 3, 300, spawn(0)), classes=("cat", "a long name", "fish"))
    field = Samples(torch.full((50, 1), 2.5))
    priors = estimate_priors(toy, labelled, field, resamples=20, generator=spawn(2))
    lines = str(priors).splitlines()
    assert [line[2:13].strip() for line in lines[1:4]] == ["cat", "a long name", "fish"]
    assert "the model predicts class fish for all" in str(priors)
    assert [line[2:5] for line in str(replace(priors, classes=())).splitlines()[1:4]] == ["  0", "  1", "  2"]


def test_same_generator_same_numbers_and_a_round_trip(toy, tmp_path) -> None:
    labelled, field = blobs([1 / 3] * 3, 300, spawn(0)), blobs([0.5, 0.3, 0.2], 300, spawn(1))
    first, second = (estimate_priors(toy, labelled, field, resamples=20, generator=spawn(2)) for _ in range(2))
    assert first == second
    results.save(first, tmp_path / "priors.json")
    assert results.load(tmp_path / "priors.json", Priors) == first


COLOURS = ("red", "green", "blue")


def test_bad_input_is_rejected_with_a_sentence(toy) -> None:
    labelled, field = blobs([1 / 3] * 3, 60, spawn(0)), blobs([0.5, 0.3, 0.2], 60, spawn(1))
    two = labelled[labelled.labels != 1]
    foreign = replace(field, y=field.labels + 3)
    for arguments, options, words in (
        ((labelled, field), {"method": "em"}, "method must be one of mlls, bbse, rlls"),
        ((labelled, field), {"resamples": 5}, "resamples must be at least 20"),
        ((labelled, field), {"confidence": 1.0}, "confidence must be between"),
        ((two, field), {}, "every class must occur in the labelled data, and 1 do not"),
        ((replace(two, classes=COLOURS), field), {}, "every class must occur in the labelled data, and green do not"),
        ((labelled, replace(foreign, classes=(*COLOURS, "x", "y", "z"))), {}, r"have a class z \(number 5\) that the"),
        ((labelled, foreign), {}, "a class . that the model does not have"),
        ((labelled, field[:1]), {}, "at least 2 field inputs"),
        ((replace(labelled, y=None), field), {}, "label"),
    ):
        with pytest.raises(ValueError, match=words):
            estimate_priors(toy, *arguments, **{"resamples": 20, "generator": spawn(0), **options})
