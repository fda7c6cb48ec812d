"""Surprise: equal to dnn-tip, scipy and direct sums on a trained network's activations, and lawful."""

import subprocess
import sys
import textwrap
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
import torch
from dnn_tip import surprise as tip
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist, mahalanobis
from scipy.stats import gaussian_kde
from torch import Tensor

from operant.data import Samples
from operant.measure import surprise
from operant.measure.activations import find_neurons
from operant.measure.surprise import DSA, LSA, MDSA, fit_dsa, fit_lsa, fit_mdsa
from operant.results import load, save
from operant.rng import normal_like, spawn

LAYERS = ["relu_fc1", "relu_fc2", "fc3"]
Traces = tuple[Tensor, Tensor, Tensor, Tensor]  # activations and predictions: of the references, of the queries


@pytest.fixture(scope="module")
def noisy(digits28) -> Tensor:
    x = digits28.train.x
    return (x + 0.2 * normal_like(x, generator=spawn(0, "noise"))).clamp(0, 1)


@pytest.fixture(scope="module")
def traces(lenet, digits28, noisy) -> dict[str, Traces]:
    """Double precision, so that the oracles do not round; more than a thousand references and queries."""
    assert len(noisy) > 1000
    found = {}
    for layer in LAYERS:
        read = find_neurons(lenet, noisy, layers=[layer])
        x = digits28.train.x
        a, b = read(lenet, x).double(), read(lenet, noisy).double()
        found[layer] = (a, lenet.predict(x), b, lenet.predict(noisy))
    return found


# Oracles


@pytest.mark.parametrize("layer", LAYERS)
def test_dsa_is_that_of_dnn_tip(traces, layer, monkeypatch) -> None:
    monkeypatch.setattr(tip.gc, "collect", lambda: 0)  # it collects garbage after every few rows
    a, p, b, q = (t.numpy() for t in traces[layer])
    theirs = tip.DSA(a, p, badge_size=60)(b, q)
    ours = DSA.of(*traces[layer][:2]).values(*traces[layer][2:])
    np.testing.assert_allclose(ours, theirs, rtol=1e-9)


@pytest.mark.filterwarnings("ignore:The version of scipy you are using:UserWarning")
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("options", [{"max_features": 9}, {"max_features": 30}, {"var_threshold": 2.0}])
def test_lsa_is_that_of_dnn_tip(traces, layer, options) -> None:
    a, p, b, q = (t.numpy() for t in traces[layer])
    chosen = {"var_threshold": None, "max_features": None} | options
    theirs = tip.MultiModalSA.build_by_class(a, p, lambda a, _: tip.LSA(a, **chosen))
    ours = LSA.of(*traces[layer][:2], **options).values(*traces[layer][2:])
    likely = ours.numpy() < 700  # beyond, their density underflows
    assert likely.mean() > 0.99
    np.testing.assert_allclose(ours.numpy()[likely], theirs(b[likely], q[likely]), rtol=1e-7, atol=1e-7)


@pytest.mark.filterwarnings("ignore:The version of scipy you are using:UserWarning")
def test_lsa_over_all_classes_is_that_of_dnn_tip(traces) -> None:
    a, p, b, q = traces["fc3"]
    ours = LSA.of(a, p, by_class=False).values(b, q)
    np.testing.assert_allclose(ours, tip.LSA(a.numpy())(b.numpy()), rtol=1e-9)


def test_lsa_is_minus_scipys_log_density_far_out_too(traces) -> None:
    a, p, b, q = traces["relu_fc2"]
    fitted, far = LSA.of(a, p, var_threshold=0.5), 5 * b
    ours = fitted.values(far, q)
    assert ours.isfinite().all()
    assert float(ours.max()) > 2000
    for c, kernels in fitted.parts.items():
        oracle = gaussian_kde(a[p == c][:, kernels.columns].numpy().T)
        expected = -oracle.logpdf(far[q == c][:, kernels.columns].numpy().T)
        np.testing.assert_allclose(ours[q == c], expected, rtol=1e-7)


@pytest.mark.parametrize("layer", LAYERS)
def test_mdsa_is_the_root_of_dnn_tips(traces, layer) -> None:
    a, p, b, q = (t.numpy() for t in traces[layer])
    one = MDSA.of(*traces[layer][:2], by_class=False).values(*traces[layer][2:])
    np.testing.assert_allclose(one**2, tip.MDSA(a)(b), rtol=1e-7)
    each = tip.MultiModalSA.build_by_class(a, p, lambda a, _: tip.MDSA(a))(b, q)
    np.testing.assert_allclose(MDSA.of(*traces[layer][:2]).values(*traces[layer][2:]) ** 2, each, rtol=1e-7)


def test_mdsa_is_scipys_mahalanobis_distance(traces) -> None:
    a, p, b, q = traces["fc3"]
    inverse = np.linalg.inv(np.cov(a.numpy().T, bias=True))
    expected = [mahalanobis(row, a.numpy().mean(0), inverse) for row in b.numpy()]
    np.testing.assert_allclose(MDSA.of(a, p, by_class=False).values(b, q), expected, rtol=1e-9)


def test_dsa_in_single_precision_far_from_the_origin(traces) -> None:
    """Against distances from differences in double precision; sums of squares alone would lose them."""
    a, p, b, q = (t + 3e3 if t.is_floating_point() else t for t in traces["relu_fc2"])
    a, b = a.float(), b.float()
    within = cdist(b.double(), a.double())
    between = cdist(a.double(), a.double())
    between[p[:, None] == p[None]] = np.inf
    within[q[:, None] != p[None]] = np.inf
    expected = within.min(1) / between.min(1)[within.argmin(1)]
    np.testing.assert_allclose(DSA.of(a, p).values(b, q), expected, rtol=1e-5)


def test_a_small_dsa_by_hand() -> None:
    a = torch.tensor([[0.0, 0.0], [0.0, 1.0], [4.0, 0.0], [0.0, 5.0]])
    p = torch.tensor([0, 0, 1, 1])
    queries = torch.tensor([[1.0, 0.0], [0.0, 2.0], [4.0, 3.0]])
    ours = DSA.of(a, p).values(queries, torch.tensor([0, 0, 1]))
    torch.testing.assert_close(ours, torch.tensor([1 / 4, 1 / 4, 3 / 4], dtype=torch.float64))


# A model and inputs


@pytest.mark.parametrize("fit", [fit_lsa, fit_dsa, fit_mdsa])
def test_fitted_to_a_model_means_fitted_to_its_activations(lenet, digits28, noisy, fit) -> None:
    x, layers = digits28.train.x, ["fc3", "pool2"]
    fitted = fit(lenet, Samples(x), layers=layers)
    read = find_neurons(lenet, x, layers=layers)
    assert fitted.neurons == read
    again = type(fitted).of(read(lenet, x), lenet.predict(x))
    values = fitted(lenet, noisy[:300])
    assert values.shape == (300,)
    torch.testing.assert_close(values, again.values(read(lenet, noisy[:300]), lenet.predict(noisy[:300])))


@pytest.mark.parametrize("fit", [fit_lsa, fit_dsa, fit_mdsa])
def test_surprise_grows_with_noise(lenet, digits28, fit) -> None:
    fitted, x = fit(lenet, digits28.train, layers=["fc3"]), digits28.test.x
    noise = normal_like(x, generator=spawn(0, "more noise"))
    medians = [float(fitted(lenet, (x + level * noise).clamp(0, 1)).median()) for level in (0.0, 0.3, 0.6)]
    assert medians == sorted(medians)


def test_references_are_drawn_with_the_generator(lenet, digits28) -> None:
    def references(seed: int) -> Tensor:
        fitted = fit_dsa(lenet, digits28.train, layers=["fc3"], references=400, generator=spawn(seed))
        return torch.cat([part.points for part in fitted.parts.values()])

    assert len(references(0)) == 400
    assert torch.equal(references(0), references(0))
    assert not torch.equal(references(0), references(1))
    with pytest.raises(ValueError, match="references=400 are drawn at random; give a generator"):
        fit_mdsa(lenet, digits28.train, layers=["fc3"], references=400)
    with pytest.raises(
        ValueError, match="references must be from 2 to 1428, got 1; give more training inputs, or draw fewer"
    ):
        fit_lsa(lenet, digits28.train, layers=["fc3"], references=1, generator=spawn(0))


@pytest.mark.parametrize("fit", [fit_lsa, fit_dsa, fit_mdsa])
def test_what_was_learned_can_be_loaded_from_disk(tmp_path, lenet, digits28, fit) -> None:
    fitted = fit(lenet, digits28.train, layers=["fc3"])
    save(fitted, tmp_path / "surprise.json")
    back = load(tmp_path / "surprise.json", type(fitted))
    assert torch.equal(back(lenet, digits28.test.x), fitted(lenet, digits28.test.x))


# Laws


def points(seed: int, n: int = 60) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """References and queries of three classes in four dimensions."""
    z = torch.randn(2 * n, 4, generator=spawn(seed), dtype=torch.float64)
    c = torch.arange(2 * n) % 3
    z = z + 2 * c[:, None]
    return z[:n], c[:n], z[n:], c[n:]


KINDS = [LSA, DSA, MDSA]


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_do_not_matter(traces, kind) -> None:
    a, p, b, q = traces["fc3"]
    whole = kind.of(a, p).values(b, q)
    with patch.object(surprise, "ROWS", 37), patch.object(surprise, "POINTS", 11):
        torch.testing.assert_close(kind.of(a, p).values(b, q), whole, rtol=1e-9, atol=1e-9)


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32), kind=st.sampled_from(KINDS))
def test_rows_do_not_see_each_other(seed, kind) -> None:
    a, p, b, q = points(seed)
    fitted = kind.of(a, p)
    order = torch.randperm(len(b), generator=spawn(seed))
    torch.testing.assert_close(fitted.values(b[order], q[order]), fitted.values(b, q)[order], rtol=1e-9, atol=1e-9)
    shuffled = torch.randperm(len(a), generator=spawn(seed, "references"))
    again = kind.of(a[shuffled], p[shuffled]).values(b, q)
    torch.testing.assert_close(again, fitted.values(b, q), rtol=1e-6, atol=1e-6)


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32))
def test_units_of_activations(seed) -> None:
    """Any invertible change leaves MDSA, and moves LSA by log |det|; shifts, turns and one scale for all leave DSA."""
    a, p, b, q = points(seed)
    change = torch.randn(4, 4, generator=spawn(seed, "change"), dtype=torch.float64) + 3 * torch.eye(4)
    shift, turn = torch.tensor([5.0, -3.0, 0.0, 1.0]), torch.linalg.qr(change).Q
    mdsa, lsa, dsa = (kind.of(a, p).values(b, q) for kind in (MDSA, LSA, DSA))
    a2, b2 = a @ change + shift, b @ change + shift
    torch.testing.assert_close(MDSA.of(a2, p).values(b2, q), mdsa, rtol=1e-6, atol=1e-6)
    moved = LSA.of(a2, p, var_threshold=0.0).values(b2, q) - torch.linalg.slogdet(change).logabsdet
    torch.testing.assert_close(moved, lsa, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(DSA.of(a @ turn * 7 + shift, p).values(b @ turn * 7 + shift, q), dsa)


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32))
def test_a_reference_does_not_surprise_dsa(seed) -> None:
    a, p, _, _ = points(seed)
    assert torch.equal(DSA.of(a, p).values(a, p), torch.zeros(len(a), dtype=torch.float64))


def test_constant_neurons_are_left_out() -> None:
    a, p, b, q = points(0)
    wide, queries = torch.cat([a, torch.ones(len(a), 2)], 1), torch.cat([b, torch.ones(len(b), 2)], 1)
    for kind in KINDS:
        torch.testing.assert_close(kind.of(wide, p).values(queries, q), kind.of(a, p).values(b, q))


# Rejected input


def test_too_few_or_equal_references_are_rejected() -> None:
    a, p, _, _ = points(0)
    for kind in KINDS:
        for n in (0, 1):
            with pytest.raises(ValueError, match=f"at least two references are needed, got {n}"):
                kind.of(a[:n], p[:n])
        with pytest.raises(ValueError, match="NaN or infinity in 60 of 60 rows"):
            kind.of(a * torch.nan, p)
    with pytest.raises(ValueError, match="at least two predicted classes, got one"):
        DSA.of(a, torch.zeros_like(p))
    with pytest.raises(ValueError, match="60 of 60 references have the same activations as one with another"):
        DSA.of(torch.ones_like(a), p)
    with pytest.raises(ValueError, match="the references of class 0 must vary, all have the same activations"):
        MDSA.of(torch.ones_like(a), p)
    with pytest.raises(ValueError, match="the references must vary"):
        MDSA.of(torch.ones_like(a), p, by_class=False)
    with pytest.raises(
        ValueError, match="neuron must vary by var_threshold=1e-05 over the references of class 0, none"
    ):
        LSA.of(torch.ones_like(a), p)
    with pytest.raises(ValueError, match="none does"):
        LSA.of(torch.ones_like(a), p, var_threshold=0.0)


def test_a_singular_covariance_is_rejected() -> None:
    a, p, _, _ = points(0)
    with pytest.raises(ValueError, match="3 references of class 0 must span the 4 neurons.*max_features below 4"):
        LSA.of(a[:9], p[:9])
    doubled = torch.cat([a, a], 1)
    with pytest.raises(ValueError, match="20 references of class 0 must span the 8 neurons that vary"):
        LSA.of(doubled, p)
    single = p.clone()
    single[0] = 7
    for kind in (LSA, MDSA):
        with pytest.raises(ValueError, match="class 7"):
            kind.of(a, single)


def test_messages_name_the_class(lenet, digits28) -> None:
    a, p, b, q = points(0)
    names = tuple("abcdefghij")
    for kind in KINDS:
        with pytest.raises(ValueError, match="20 of 60 rows are predicted as class j, which has no references"):
            kind.of(a, p, classes=names).values(b, torch.where(q == 0, 9, q))
    with pytest.raises(ValueError, match="the references of class a must vary"):
        MDSA.of(torch.ones_like(a), p, classes=names)
    with pytest.raises(ValueError, match="3 references of class a must span"):
        LSA.of(a[:9], p[:9], classes=names)
    train = replace(digits28.train[:200], classes=tuple(f"digit {name}" for name in names))
    known = [fit(lenet, train, layers=["fc2"]) for fit in (fit_dsa, fit_mdsa)]
    assert [fitted.classes for fitted in known] == [train.classes] * 2
    assert fit_mdsa(lenet, replace(train, classes=(*train.classes, "one too many")), layers=["fc2"]).classes == ()
    with pytest.raises(ValueError, match="references of class digit a must span"):
        fit_lsa(lenet, train, layers=["fc2"])


def test_wrong_queries_are_rejected(lenet, digits28) -> None:
    a, p, b, q = points(0)
    for kind in KINDS:
        fitted = kind.of(a, p)
        with pytest.raises(ValueError, match="20 of 60 rows are predicted as class 9, which has no references"):
            fitted.values(b, torch.where(q == 0, 9, q))
        with pytest.raises(ValueError, match="predicted must be an integer class for each of 60 rows"):
            fitted.values(b, q[:-1])
        with pytest.raises(ValueError, match="predicted must be an integer class"):
            fitted.values(b, q.double())
        with pytest.raises(ValueError, match="NaN or infinity"):
            fitted.values(b / 0, q)
        with pytest.raises(ValueError, match="activations must have 4 columns like the references, got 3"):
            fitted.values(b[:, 1:], q)
        with pytest.raises(ValueError, match="was fitted to activations, not to a model"):
            fitted(lenet, digits28.test.x)


def test_layers_that_do_not_exist_are_rejected(lenet, digits28) -> None:
    for fit in (fit_lsa, fit_dsa, fit_mdsa):
        with pytest.raises(ValueError, match="no layer named fc9; this model has conv1, relu_conv1"):
            fit(lenet, digits28.train, layers=["fc9"])


MEMORY = """
    import resource, torch
    torch.set_num_threads(1)
    from operant import spawn
    from operant.measure.surprise import DSA, LSA, MDSA

    z = torch.randn(20_000, 84, generator=spawn(0))
    p = torch.randint(0, 2, (20_000,), generator=spawn(1))
    a, b, p, q = z[:10_000], z[10_000:], p[:10_000], p[10_000:]
    torch.linalg.eigh(a.T.cov()), a @ a[:16].T  # what the library itself keeps
    size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + 2**30, size + 2**30))
    for kind in (DSA, LSA, MDSA):
        assert len(kind.of(a, p).values(b, q)) == 10_000
    print("enough")
"""


@pytest.mark.slow
def test_ten_thousand_rows_need_less_than_a_gibibyte() -> None:
    command = [sys.executable, "-c", textwrap.dedent(MEMORY)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "enough\n"
