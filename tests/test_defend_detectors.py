"""Detectors: scores against plain transcriptions, false positives within the stated level, and what is rejected."""

import pytest
import torch
from scipy.stats import betabinom
from torch import nn

from operant import Classifier, Samples, spawn
from operant.defend import BitDepth, Median, fit_feature_squeezing, fit_logit_detector, fit_mutation_detector
from operant.generate import BIM, FGSM
from operant.measure import fit_conformal
from operant.networks import initialise

LEVEL = 0.1
TOY = Classifier(
    initialise(
        lambda: nn.Sequential(
            nn.Flatten(), nn.Linear(64, 48), nn.Tanh(), nn.Linear(48, 32), nn.Tanh(), nn.Linear(32, 4)
        ).double(),
        generator=spawn(0, "toy"),
    )
)


def fresh(n: int, word: str) -> Samples:
    """Images drawn alike and independently, and labelled as the model reads them."""
    x = torch.rand(n, 1, 8, 8, dtype=torch.float64, generator=spawn(0, word))
    return Samples(x, TOY.predict(x))


BENIGN = fresh(1000, "benign")
WRONG = FGSM(radius=0.2)(TOY, fresh(300, "attacked"), generator=spawn(0)).failures().samples()
FITTED = {
    "squeezing": lambda: fit_feature_squeezing(TOY, BENIGN, squeezers=[BitDepth(bits=2), Median(size=2)], level=LEVEL),
    **{
        f"binary classifier on {on}": lambda on=on: fit_logit_detector(
            TOY, BENIGN, WRONG, on=on, level=LEVEL, epochs=8, generator=spawn(1)
        )
        for on in ("logits", "input", "2")
    },
    **{
        f"mutation {operator}": lambda operator=operator: fit_mutation_detector(
            TOY, BENIGN, operator=operator, rate=0.04, mutants=40, min_accuracy=0.5, level=LEVEL, generator=spawn(2)
        )
        for operator in ("NAI", "GF", "WS", "NS")
    },
}


@pytest.fixture(scope="module")
def fitted():
    return {name: make() for name, make in FITTED.items()}


# The promise


@pytest.mark.parametrize("name", FITTED)
def test_fresh_benign_inputs_are_rejected_at_most_at_the_level(name, fitted):
    """Of m fresh inputs the number rejected is beta-binomial: binomial, at a rate that calibration has drawn."""
    x = fresh(2000, "fresh").x
    rejected = int((~fitted[name].accepts(x)).sum())
    n = len(BENIGN) if name == "squeezing" else len(BENIGN.split(learning=0.5, calibration=0.5)["calibration"])
    k = sum(j / (n + 1) < LEVEL for j in range(1, n + 2))
    assert rejected <= betabinom.isf(0.01, len(x), k, n + 1 - k)
    assert rejected > 0


@pytest.mark.parametrize("name", FITTED)
def test_rows_do_not_see_each_other(name, fitted):
    x = torch.cat([fresh(60, "rows").x, WRONG.x[:40]])
    order = torch.randperm(100, generator=spawn(3))
    accepted = fitted[name].accepts(x)
    assert accepted.dtype == torch.bool
    assert torch.equal(fitted[name].accepts(x[order]), accepted[order])
    assert torch.equal(torch.cat([fitted[name].accepts(part) for part in x.split(37)]), accepted)
    assert 0 < int(accepted.sum()) < 100


@pytest.mark.parametrize("name", FITTED)
def test_another_shape_is_rejected(name, fitted):
    with pytest.raises(
        ValueError,
        match=r"inputs must have shape \(N, 1, 8, 8\), got \(\d+, 1, 9, 9\); fit a defence on inputs of this",
    ):
        fitted[name].accepts(torch.rand(3, 1, 9, 9, dtype=torch.float64))


@pytest.mark.parametrize("name", FITTED)
def test_bad_inputs_are_rejected(name, fitted):
    x = fresh(20, "bad").x
    x[3, 0, 2, 2] = float("nan")
    with pytest.raises(ValueError, match="NaN in 1 of 20 rows"):
        fitted[name].accepts(x)


# Feature squeezing


def test_the_score_of_squeezing_is_a_plain_transcription(lenet, digits28):
    x = digits28.test.x[:50]
    detector = fit_feature_squeezing(lenet, Samples(digits28.test.x[50:150]), level=0.05)
    network, expected = lenet.unwrap().requires_grad_(False), []
    for row in x:
        row = row[None]
        plain = network(row).softmax(1)
        one_bit = (row > 0.5).float()
        median = torch.empty_like(row)
        for i in range(28):
            for j in range(28):
                window = [row[0, 0, max(i + a, 0), max(j + b, 0)] for a in (-1, 0) for b in (-1, 0)]
                median[0, 0, i, j] = sorted(window)[2]
        gaps = [float((plain - network(s).softmax(1)).abs().sum()) for s in (one_bit, median)]
        expected.append(max(gaps))
    assert detector.score(x).tolist() == pytest.approx(expected, abs=1e-4)
    threshold = detector.calibration.threshold(0.05)
    assert torch.equal(detector.accepts(x), detector.score(x) <= threshold)


def test_squeezing_sees_attacks_that_stop_at_the_boundary(lenet, digits28):
    good = lenet.correct(digits28.test)
    detector = fit_feature_squeezing(lenet, good[:150], level=0.05)
    cases = BIM(radius=0.3, minimal=True)(lenet, good[150:250], generator=spawn(0)).failures()
    assert float((~detector.accepts(cases.x)).double().mean()) > 0.3
    assert len(detector.squeezers) == 2


def test_colour_images_are_squeezed_by_three():
    model = Classifier(nn.Sequential(nn.Flatten(), nn.Linear(3 * 64, 3)))
    detector = fit_feature_squeezing(model, Samples(torch.rand(40, 3, 8, 8, generator=spawn(0))), level=0.1)
    assert [type(s).__name__ for s in detector.squeezers] == ["BitDepth", "Median", "NonLocalMeans"]


# The binary classifier


def test_a_binary_classifier_tells_what_it_was_shown(fitted):
    cases = FGSM(radius=0.2)(TOY, fresh(300, "others"), generator=spawn(0)).failures()
    for on in ("logits", "input", "2"):
        detector = fitted[f"binary classifier on {on}"]
        assert detector.on == on
        assert float((~detector.accepts(cases.x)).double().mean()) > 1.5 * LEVEL
        assert detector.score(cases.x).shape == (len(cases),)


def test_the_same_generator_gives_the_same_detector():
    x = fresh(50, "again").x
    a, b = (FITTED["binary classifier on logits"]().score(x) for _ in range(2))
    assert torch.equal(a, b)


def test_calibration_is_not_learned_from(fitted):
    detector = fitted["binary classifier on logits"]
    held = BENIGN.split(learning=0.5, calibration=0.5)["calibration"]
    assert torch.equal(detector.calibration.calibration, fit_conformal(detector.score(held.x)).calibration)


# Invalid arguments

NONE = BENIGN[:0]


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: fit_feature_squeezing(TOY, NONE), "there are no benign inputs"),
        (lambda: fit_logit_detector(TOY, NONE, WRONG, generator=spawn(0)), "there are no benign inputs"),
        (lambda: fit_mutation_detector(TOY, NONE, generator=spawn(0)), "there are no benign inputs"),
        (lambda: fit_feature_squeezing(TOY, BENIGN[:5]), "no p-value can fall below level 0.05: with 5"),
        (lambda: fit_mutation_detector(TOY, BENIGN[:20], generator=spawn(0)), "no p-value can fall below level 0.05"),
        (lambda: fit_feature_squeezing(TOY, BENIGN, squeezers=[]), "squeezers must not be empty"),
        (
            lambda: fit_feature_squeezing(TOY, BENIGN, squeezers=[lambda x: x]),
            "are equal (0); choose another setting",
        ),
        (lambda: fit_feature_squeezing(TOY, WRONG), "benign inputs must be classified correctly"),
        (lambda: fit_logit_detector(TOY, WRONG, WRONG, generator=spawn(0)), "give model.correct(samples)"),
        (lambda: fit_logit_detector(TOY, BENIGN, NONE, generator=spawn(0)), "there are no adversarial inputs"),
        (
            lambda: fit_logit_detector(TOY, BENIGN, fresh(20, "right"), generator=spawn(0)),
            "adversarial inputs must be misclassified, got 20 of 20",
        ),
        (
            lambda: fit_logit_detector(TOY, BENIGN, Samples(torch.rand(5, 1, 9, 9)), generator=spawn(0)),
            "adversarial must have shape (N, 1, 8, 8), got ",
        ),
        (
            lambda: fit_logit_detector(TOY, BENIGN, WRONG, on="fc9", generator=spawn(0)),
            "no layer named fc9; this model has 0, 1, 2, 3, 4, 5",
        ),
        (
            lambda: fit_logit_detector(TOY, BENIGN, WRONG, calibration=1.0, generator=spawn(0)),
            "calibration must be between 0 and 1, got 1.0",
        ),
        (lambda: fit_logit_detector(TOY, BENIGN, WRONG, hidden=0, generator=spawn(0)), "hidden must be at least 1"),
        (lambda: fit_feature_squeezing(TOY, BENIGN, level=0), "level must be between 0 and 1, got 0"),
    ],
)
def test_what_cannot_be_fitted_is_rejected(make, sentence):
    with pytest.raises(ValueError) as error:
        make()
    assert sentence in str(error.value)
