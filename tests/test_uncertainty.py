"""Laws of the uncertainty measures: closed forms, scipy as an oracle on a trained network, and what is rejected."""

import math
import subprocess
import sys
import textwrap
from collections.abc import Callable
from importlib import import_module
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from operant import Classifier, Samples, Suite, spawn
from operant.generate import PGD
from operant.measure.mc_dropout import mc_dropout, with_dropout
from operant.measure.uncertainty import (
    Thresholds,
    annotate,
    entropy,
    gini,
    margin,
    mutual_information,
    pattern,
    prediction_confidence,
    predictive_entropy,
    variation_ratio,
    variation_ratio_original,
)

IMPLEMENTATION = import_module("operant.measure.uncertainty")
MEASURES = ["pcs", "gini", "entropy", "label_margin", "vr", "vro", "pe", "mi"]


@pytest.fixture(scope="module")
def dropped(lenet: Classifier) -> Classifier:
    """The trained LeNet-5 with dropout in front of its last layers."""
    return with_dropout(lenet, before=["fc2", "fc3"], rate=0.4)


@pytest.fixture(scope="module")
def mc(dropped: Classifier, digits28) -> Tensor:
    """Probabilities of 30 passes for 1200 digits, a third of them blurred by noise."""
    x = digits28.train.x[:1200].clone()
    x[800:] = (x[800:] + 0.6 * torch.randn(x[800:].shape, generator=spawn(0, "noise"))).clamp(0, 1)
    return mc_dropout(dropped, x, passes=30, generator=spawn(0, "masks")).probs


def draws(t: int, n: int, classes: int, *, seed: int) -> Tensor:
    """Probabilities of all kinds: flat, sharp, and with classes of probability zero."""
    generator = spawn(seed, "probabilities")
    logits = (
        torch.randn(t, n, classes, generator=generator).double() * 10 ** torch.randn(n, 1, generator=generator).double()
    )
    logits[:, ::3, 0] = -torch.inf
    return logits.softmax(2)


# Closed forms ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_certain_and_flat_probabilities(classes: int) -> None:
    certain, flat = torch.eye(classes), torch.full((classes, classes), 1 / classes)
    assert prediction_confidence(certain).tolist() == [1.0] * classes
    assert gini(certain).tolist() == entropy(certain).tolist() == [0.0] * classes  # 0 log 0 = 0
    torch.testing.assert_close(prediction_confidence(flat), torch.zeros(classes))
    torch.testing.assert_close(gini(flat), torch.full((classes,), 1 - 1 / classes))
    torch.testing.assert_close(entropy(flat), torch.full((classes,), math.log(classes)))
    label = torch.arange(classes)
    assert margin(certain, label).tolist() == [1.0] * classes
    assert margin(certain, label.roll(1)).tolist() == [-1.0] * classes


def test_passes_that_agree_and_passes_that_do_not() -> None:
    alike = torch.eye(3).expand(6, 3, 3)
    for value in (variation_ratio(alike), predictive_entropy(alike), mutual_information(alike)):
        assert value.tolist() == [0.0] * 3
    votes = torch.tensor([[0, 0], [0, 1], [1, 2], [0, 1], [2, 2], [0, 0]])  # (T, N)
    certain = torch.eye(3)[votes]
    assert variation_ratio(certain).tolist() == [2 / 6, 4 / 6]
    assert variation_ratio(certain, torch.tensor([1, 2])).tolist() == [5 / 6, 4 / 6]
    assert variation_ratio_original(certain, torch.tensor([0, 0])).tolist() == [2 / 6, 4 / 6]
    h = [-(4 / 6) * math.log(4 / 6) - 2 * (1 / 6) * math.log(1 / 6), math.log(3)]
    torch.testing.assert_close(predictive_entropy(certain), torch.tensor(h))
    torch.testing.assert_close(mutual_information(certain), torch.tensor(h))  # each pass is certain


def test_all_passes_against_the_prediction() -> None:
    """The paper's example (3.2): the model is wrong and every pass is right, so VR is 0 and VRO is 1."""
    mc = torch.tensor([[0.2, 0.8]]).expand(10, 1, 2)
    assert variation_ratio(mc).item() == 0.0
    assert variation_ratio_original(mc, torch.tensor([0])).item() == 1.0


# Oracles on a trained network -----------------------------------------------------------------------------------------


def test_measures_of_one_pass_against_numpy_and_scipy(lenet: Classifier, digits28) -> None:
    probs, label = lenet.probs(digits28.train.x), digits28.train.labels
    assert len(probs) > 1000
    p = probs.double().numpy()
    ordered = np.sort(p, 1)
    close = {"rtol": 1e-4, "atol": 1e-6}
    np.testing.assert_allclose(prediction_confidence(probs), ordered[:, -1] - ordered[:, -2], **close)
    np.testing.assert_allclose(entropy(probs), stats.entropy(p, axis=1), **close)
    np.testing.assert_allclose(gini(probs), 1 - (p**2).sum(1), **close)
    own = p[np.arange(len(p)), label]
    others = np.where(np.eye(10, dtype=bool)[label], -1, p).max(1)
    np.testing.assert_allclose(margin(probs, label), own - others, **close)
    assert torch.equal(margin(probs, label) > 0, lenet.predict(digits28.train.x) == label)
    assert torch.equal(margin(probs), prediction_confidence(probs))
    torch.testing.assert_close(margin(probs, probs.argmax(1)), prediction_confidence(probs))


def test_measures_of_many_passes_against_numpy_and_scipy(mc: Tensor) -> None:
    p = mc.double().numpy()
    mode, count = stats.mode(p.argmax(2), axis=0)
    np.testing.assert_allclose(variation_ratio(mc), 1 - count / 30, atol=1e-12)
    assert 0.05 < float((variation_ratio(mc) > 0).double().mean()) < 1
    label = torch.arange(1200) % 10
    for ratio in (variation_ratio, variation_ratio_original):
        np.testing.assert_allclose(ratio(mc, label), (p.argmax(2) != label.numpy()).mean(0), atol=1e-12)
    np.testing.assert_allclose(variation_ratio(mc, torch.tensor(mode)), 1 - count / 30, atol=1e-12)
    total = stats.entropy(p.mean(0), axis=1)
    np.testing.assert_allclose(predictive_entropy(mc), total, rtol=1e-4, atol=1e-6)
    each = stats.entropy(p, axis=2).mean(0)
    np.testing.assert_allclose(mutual_information(mc), total - each, rtol=1e-4, atol=1e-6)
    divergence = np.mean([stats.entropy(p[t], p.mean(0), axis=1) for t in range(30)], 0)
    np.testing.assert_allclose(mutual_information(mc), divergence, rtol=1e-3, atol=1e-6)  # Jensen-Shannon


@settings(max_examples=50)
@given(seed=st.integers(0, 2**32 - 1), t=st.integers(2, 7), n=st.integers(1, 9), classes=st.integers(2, 6))
def test_order_of_the_measures(seed: int, t: int, n: int, classes: int) -> None:
    mc = draws(t, n, classes, seed=seed)
    label = torch.arange(n) % classes
    vr, vro, pe, mi = variation_ratio(mc), variation_ratio(mc, label), predictive_entropy(mc), mutual_information(mc)
    assert bool((vr >= 0).all() and (vr <= 1 - 1 / classes + 1e-12).all())
    assert bool((vr <= vro).all() and (vro <= 1).all())
    assert bool((mi >= 0).all() and (mi <= pe + 1e-12).all() and (pe <= math.log(classes) + 1e-9).all())
    assert bool((gini(mc[0]) <= entropy(mc[0]) + 1e-12).all())  # 1 - p <= -log p
    assert bool((margin(mc[0], label) <= prediction_confidence(mc[0])).all())


@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e-6])
def test_rounding_never_makes_mutual_information_negative(scale: float) -> None:
    logits = torch.randn(1, 500, 10, generator=spawn(1)) + scale * torch.randn(9, 500, 10, generator=spawn(2))
    for probs in (logits.softmax(2), logits[:1].expand(9, 500, 10).softmax(2)):
        mi = mutual_information(probs)
        assert bool((mi >= 0).all())
        exact = mutual_information(probs.double())
        torch.testing.assert_close(mi.double(), exact, rtol=1e-3, atol=1e-9)


def test_rows_do_not_see_each_other(mc: Tensor) -> None:
    measures: list[Callable[[Tensor], Tensor]] = [variation_ratio, predictive_entropy, mutual_information]
    for measure in measures:
        torch.testing.assert_close(measure(mc)[100:200], measure(mc[:, 100:200]), rtol=0, atol=1e-7)


# Patterns -------------------------------------------------------------------------------------------------------------


def test_patterns_and_their_bounds() -> None:
    """Strict: what equals a threshold is neither low nor high."""
    pcs = torch.tensor([0.1, 0.9, 0.1, 0.9, 0.3, 0.7, 0.1, 0.9, 0.5])
    vro = torch.tensor([0.1, 0.9, 0.9, 0.1, 0.1, 0.9, 0.4, 0.6, 0.1], dtype=torch.float64)
    assert pattern(pcs, vro).tolist() == ["LL", "HH", "LH", "HL", "", "", "", "", ""]
    half = Thresholds(low_pcs=0.5, high_pcs=0.5, low_vro=0.5, high_vro=0.5)
    assert pattern(pcs, vro, half).tolist() == ["LL", "HH", "LH", "HL", "LL", "HH", "LL", "HH", ""]


def test_shares_of_fifty_passes_meet_the_thresholds_exactly() -> None:
    agree = torch.arange(51)
    mc = torch.eye(2)[(torch.arange(50)[:, None] >= agree).long()]  # row i: i passes say 0
    vro = variation_ratio(mc, torch.zeros(51, dtype=torch.int64))
    assert vro.tolist() == [(50 - i) / 50 for i in range(51)]
    expected = ["LH" if i < 20 else "LL" if i > 30 else "" for i in range(51)]
    assert pattern(torch.zeros(51), vro).tolist() == expected


def test_patterns_are_rejected_for_crossed_thresholds_and_bad_numbers() -> None:
    half = torch.full((3,), 0.5)
    with pytest.raises(ValueError, match="low not above high, got 0.8, 0.7"):
        pattern(half, half, Thresholds(low_pcs=0.8))
    with pytest.raises(ValueError, match="one number per row, got shapes \\(3,\\) and \\(2,\\)"):
        pattern(half, half[:2])
    with pytest.raises(ValueError, match="with 0 and 3 NaN"):
        pattern(half, half * torch.nan)


# A suite's columns ----------------------------------------------------------------------------------------------------


def make_suite(model: Classifier, samples: Samples) -> Suite:
    return PGD(radius=0.1, steps=3)(model, samples, generator=spawn(0, "attack"))


def test_annotate_gives_each_case_what_the_functions_give(dropped: Classifier, digits28) -> None:
    suite = make_suite(dropped, digits28.test[:300])
    found = annotate(dropped, suite, passes=20, generator=spawn(3))
    assert list(found.columns) == [*suite.columns, *MEASURES, "pattern"]
    assert torch.equal(found["margin"], suite["margin"])  # the attack's own, in logits
    probs = dropped.probs(suite.x)
    seed = int(torch.randint(2**63 - 1, (), generator=spawn(3)))
    mc = mc_dropout(dropped, suite.x, passes=20, generator=spawn(seed, "masks")).probs
    expected = [
        *(prediction_confidence(probs), gini(probs), entropy(probs), margin(probs, suite.label)),
        *(variation_ratio(mc), variation_ratio_original(mc, suite.prediction)),
        *(predictive_entropy(mc), mutual_information(mc)),
    ]
    for name, values in zip(MEASURES, expected, strict=True):
        torch.testing.assert_close(found[name], values, rtol=1e-4, atol=1e-6)
    assert found["pattern"].tolist() == pattern(found["pcs"], found["vro"]).tolist()
    assert {"LH", "HL"} & set(found["pattern"].tolist())
    assert torch.equal(found["label_margin"] < 0, suite.prediction != suite.label)


def test_annotate_does_not_depend_on_the_parts_it_works_in(dropped: Classifier, digits28, tmp_path) -> None:
    suite = make_suite(dropped, digits28.test[:300])
    small = dropped.rewrap(dropped.unwrap())
    small.batch_size = 64
    whole = annotate(small, suite, passes=6, generator=spawn(3))
    with patch.object(IMPLEMENTATION, "CHUNK", 1):
        parts = annotate(small, Suite.open(suite.save(tmp_path / "suite")), passes=6, generator=spawn(3))
    assert whole.digest() == parts.digest()


def test_annotate_an_empty_suite(dropped: Classifier, digits28) -> None:
    suite = annotate(dropped, make_suite(dropped, digits28.test[:20])[:0], generator=spawn(0))
    assert len(suite) == 0
    assert list(suite.columns)[-9:] == [*MEASURES, "pattern"]


def test_annotate_rejects_a_model_without_dropout(lenet: Classifier, digits28) -> None:
    with pytest.raises(ValueError, match="without any dropout.*with_dropout"):
        annotate(lenet, make_suite(lenet, digits28.test[:20]), generator=spawn(0))
    suite = make_suite(lenet, digits28.test[:20])
    for cases in (suite, suite[:0]):
        for passes in (1, 0, -1):
            with pytest.raises(ValueError, match=f"at least 2, got {passes}"):
                annotate(lenet, cases, passes=passes, generator=spawn(0))


# What is rejected -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: gini(torch.tensor([[1.0, 2.0]])), "sum to 1 in each row, got sums that are off by up to 2.*softmax"),
        (lambda: entropy(torch.tensor([[1.5, -0.5]])), "0 or more"),
        (lambda: entropy(torch.tensor([[torch.nan, 0.5]])), "sum to 1"),
        (
            lambda: prediction_confidence(torch.ones(4, 1)),
            "got torch.float32 of shape \\(4, 1\\)",
        ),
        (lambda: prediction_confidence(torch.rand(4)), "shape \\(N, classes\\)"),
        (lambda: gini(torch.rand(0, 3)), "no probabilities"),
        (lambda: variation_ratio(torch.full((4, 2), 0.5)), "shape \\(T, N, classes\\)"),
        (lambda: variation_ratio(torch.full((1, 4, 2), 0.5)), "at least 2 of them, got 1"),
        (lambda: predictive_entropy(torch.full((1, 4, 2), 0.5)), "at least 2"),
        (lambda: mutual_information(torch.full((1, 4, 2), 0.5)), "at least 2"),
        (lambda: mutual_information(torch.full((3, 4, 2), 0.4)), "off by up to 0.2"),
        (lambda: margin(torch.full((4, 2), 0.5), torch.zeros(3).long()), "integers of shape \\(4,\\)"),
        (lambda: margin(torch.full((4, 2), 0.5), torch.full((4,), 2)), "from 0 to 1, got 2 to 2"),
        (lambda: variation_ratio(torch.full((3, 4, 2), 0.5), torch.full((4,), -1)), "from 0 to 1, got -1 to -1"),
        (lambda: variation_ratio(torch.full((3, 4, 2), 0.5), torch.zeros(4)), "integers of shape"),
    ],
)
def test_what_is_not_a_probability_is_rejected(call: Callable[[], Tensor], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        call()


# Memory ---------------------------------------------------------------------------------------------------------------

MEMORY = """
import os
os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
import resource, torch
from torch import nn
torch.set_num_threads(1)
from operant import Classifier, Samples, Suite, spawn
from operant.measure.uncertainty import annotate
n, classes, passes = 10_000, 500, 14  # 280 MB of probabilities
model = Classifier(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, classes)))
x = torch.rand(n, 8, generator=spawn(0))
seeds = Samples(x, torch.arange(n) % classes)
suite = Suite.of(x, seeds=seeds, origin=torch.arange(n), prediction=model.predict(x), method="none")
annotate(model, suite[:600], passes=passes, generator=spawn(0))  # what libraries set up once
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + 2**28, size + 2**28))
print(len(annotate(model, suite, passes=passes, generator=spawn(0))["mi"]))
"""


@pytest.mark.slow
def test_ten_thousand_rows_are_annotated_in_little_memory() -> None:
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(MEMORY)], capture_output=True, text=True, check=False)
    assert run.stdout.strip() == "10000", run.stderr
