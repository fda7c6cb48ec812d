"""Neurons and coverage: counted as the paper counts, equal to dnn-tip and to brute force, and lawful."""

import subprocess
import sys
import textwrap
from unittest.mock import patch

import numpy as np
import pytest
import torch
from dnn_tip import neuron_coverage as tip
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from operant.data import Samples
from operant.measure import coverage
from operant.measure.activations import Neurons, find_neurons, neurons
from operant.measure.coverage import (
    KMNC,
    NBC,
    NC,
    SNAC,
    TKNC,
    Coverage,
    Criterion,
    NeighbourCoverage,
    Ranges,
    fit_ranges,
    ranges_of,
)
from operant.model import Classifier
from operant.networks import LeNet5
from operant.results import load, save
from operant.rng import normal_like, spawn
from operant_studies.networks import ResNet20

LENET = ("relu_conv1", "pool1", "relu_conv2", "pool2", "relu_fc1", "relu_fc2", "fc3", "softmax")


@pytest.fixture(scope="module")
def ranges(lenet, digits28) -> Ranges:
    return fit_ranges(lenet, digits28.train)


@pytest.fixture(scope="module")
def noisy(digits28) -> Tensor:
    """More than a thousand inputs that leave the ranges here and there."""
    x = digits28.train.x
    return (x + 0.2 * normal_like(x, generator=spawn(0, "noise"))).clamp(0, 1)


@pytest.fixture(scope="module")
def activations(lenet, ranges, noisy) -> Tensor:
    a = ranges.neurons(lenet, noisy)
    assert len(a) > 1000
    return a


# What a neuron is


def test_lenet_has_the_neurons_of_the_papers_table(lenet, digits28) -> None:
    found = find_neurons(lenet, digits28.test.x)
    assert found.layers == LENET
    assert found.sizes == (6, 6, 16, 16, 120, 84, 10, 10)
    assert found.count == 268 == neurons(lenet, digits28.test.x).shape[1]


def test_dropout_adds_no_neurons() -> None:
    model = Classifier(LeNet5(dropout=0.5, dropout_after=["conv1", "conv2", "fc1", "fc2"]))
    assert find_neurons(model, torch.rand(3, 1, 28, 28)).layers == LENET


def test_resnet_neurons_and_how_they_add_up_to_the_papers() -> None:
    """The paper's 70 layers of Keras are also the 2 convolutions and 9 additions that are no submodules here."""
    module, x = ResNet20(), torch.rand(2, 3, 32, 32)
    model = Classifier(module)
    relu, before_addition, pool, last = 16 + 6 * (16 + 32 + 64), 3 * (16 + 32 + 64), 64, 10
    assert find_neurons(model, x).count == relu + before_addition + pool + last + last == 1108
    innermost = [name for name, part in module.named_modules() if not list(part.children()) and name != "flatten"]
    assert find_neurons(model, x, layers=innermost).count == 2570 - (32 + 64) - before_addition


class Habits(nn.Module):
    """Unusual features of modules: one shared ReLU, in place; functions for layers; unused parts; weight norm."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.relu = nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(inplace=True)
        self.second = parametrizations.weight_norm(nn.Conv2d(3, 4, 3))
        self.inner = nn.Sequential(nn.Linear(4, 5), nn.Dropout(), nn.Tanh())
        self.last, self.unused, self.softmax = nn.Linear(5, 2), nn.Linear(7, 7), nn.Softmax(1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.second(self.relu(self.norm(self.first(x)))))
        return self.last(self.inner(F.relu(x).amax((2, 3))))


def test_neurons_of_a_module_with_habits() -> None:
    """A shared ReLU does not represent the layers before it; parametrisations and unused parts have no neurons."""
    found = find_neurons(Classifier(Habits()), torch.rand(5, 1, 8, 8))
    assert dict(zip(found.layers, found.sizes, strict=True)) == {
        "norm": 3,
        "relu": 4,
        "second": 4,
        "inner.2": 5,
        "last": 2,
        "softmax": 2,
    }


def test_neurons_of_a_module_that_is_one_layer() -> None:
    assert find_neurons(Classifier(nn.Linear(4, 3)), torch.rand(1, 4)).sizes == (3, 3)


def test_a_neuron_is_a_unit_or_the_mean_of_a_channel(lenet, digits28) -> None:
    x = digits28.train.x[:1100]
    module, expected = lenet.unwrap().eval(), []
    with torch.no_grad():
        h = x
        for name, layer in module.named_children():
            h = layer(h)
            if name in LENET:
                expected.append(h.mean((2, 3)) if h.ndim == 4 else h)
    expected.append(h.softmax(1))
    torch.testing.assert_close(neurons(lenet, x), torch.cat(expected, 1), rtol=1e-4, atol=1e-5)


def test_scaling_is_that_of_deepxplore(lenet, digits28) -> None:
    """Each layer's whole output, one row at a time, brought to [0, 1]; then the mean of each channel."""
    x, layers = digits28.train.x[:1100], ["relu_conv1", "pool2", "relu_fc1", "fc3"]
    scaled = find_neurons(lenet, x, layers=layers, scaled=True)(lenet, x)
    rows = []
    for outputs in zip(*lenet.features(x, layers=layers).values(), strict=True):
        whole = [(v - v.min()) / (v.max() - v.min()) for v in outputs]
        rows.append(torch.cat([v.mean((1, 2)) if v.ndim == 3 else v for v in whole]))
    torch.testing.assert_close(scaled, torch.stack(rows), rtol=1e-4, atol=1e-6)


def test_a_constant_layer_is_scaled_to_zero() -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.Threshold(1e9, 2.0), nn.Linear(3, 2))
    read = find_neurons(Classifier(module), torch.rand(5, 4), layers=["1"], scaled=True)
    assert torch.equal(read(Classifier(module), torch.rand(5, 4)), torch.zeros(5, 3))


def test_neurons_are_named_and_read_as_asked(lenet, digits28) -> None:
    x = digits28.test.x[:20]
    read = find_neurons(lenet, x, layers=["softmax", "fc1"])
    assert read.layers == ("softmax", "fc1")
    torch.testing.assert_close(read(lenet, x)[:, :10], lenet.probs(x))


@pytest.mark.parametrize(
    ("layers", "sentence"),
    [
        (["fc9"], "no layer named fc9; this model has conv1, relu_conv1"),
        ("fc1", "layers must be a list of names, got the single string 'fc1'"),
        ([], "layers must name at least one of conv1, relu_conv1"),
        (["fc1", "fc1"], "each layer must be named once, got fc1 more than once"),
    ],
)
def test_wrong_layers_are_rejected(lenet, digits28, layers, sentence) -> None:
    with pytest.raises(ValueError, match=sentence):
        find_neurons(lenet, digits28.test.x, layers=layers)


def test_wrong_inputs_and_models_are_rejected(lenet, digits28, ranges) -> None:
    with pytest.raises(ValueError, match="inputs contain NaN"):
        fit_ranges(lenet, Samples(digits28.test.x * float("nan")))
    with pytest.raises(ValueError, match="there are no inputs"):
        neurons(lenet, digits28.test.x[:0])
    other = Classifier(LeNet5(classes=7))
    with pytest.raises(ValueError, match="layer fc3 must have 10 neurons, this model has 7 there"):
        ranges.neurons(other, digits28.test.x)


class Folding(nn.Module):
    """A submodule sees two rows for each input."""

    def __init__(self) -> None:
        super().__init__()
        self.pairs, self.last = nn.Linear(2, 2), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.pairs(x.view(-1, 2)).view(-1, 4))


def test_a_layer_that_does_not_see_inputs_as_rows_is_left_out() -> None:
    model = Classifier(Folding())
    assert find_neurons(model, torch.rand(20, 4)).layers == ("last", "softmax")


# Ranges


def test_ranges_are_those_of_numpy(lenet, digits28, ranges) -> None:
    train = ranges.neurons(lenet, digits28.train.x)
    assert torch.equal(ranges.low, train.amin(0))
    assert torch.equal(ranges.high, train.amax(0))
    np.testing.assert_allclose(ranges.std, train.double().numpy().std(0), rtol=1e-6)
    assert torch.equal(ranges_of(train.split(1024), neurons=ranges.neurons).low, ranges.low)
    assert 0 < int(ranges.constant.sum()) < 134  # dead units: worth a thought, not the rule


def test_the_standard_deviation_survives_a_large_mean() -> None:
    a = 1e6 + torch.rand(3000, 2, generator=spawn(0), dtype=torch.float64)
    std = ranges_of(a.split(1024), neurons=Neurons(layers=("a",), sizes=(2,))).std
    np.testing.assert_allclose(std, a.numpy().std(0), rtol=1e-9)


def test_ranges_can_be_loaded_from_disk(tmp_path, ranges) -> None:
    save(ranges, tmp_path / "ranges.json")
    back = load(tmp_path / "ranges.json", Ranges)
    assert back.neurons == ranges.neurons
    assert all(torch.equal(getattr(back, name), getattr(ranges, name)) for name in ("low", "high", "std"))


def test_data_that_say_nothing_are_rejected(lenet, digits28) -> None:
    one = digits28.train[:1]
    with pytest.raises(ValueError, match="must vary for ranges to be learned, got 1 rows"):
        fit_ranges(lenet, one)
    with pytest.raises(ValueError, match="got 4 rows in which no neuron does"):
        ranges_of([torch.ones(4, 3)], neurons=Neurons(layers=("a",), sizes=(3,)))
    with pytest.raises(ValueError, match="NaN or infinity in 1 of 4 rows"):
        ranges_of([torch.tensor([[1.0], [2.0], [torch.inf], [3.0]])], neurons=Neurons(layers=("a",), sizes=(1,)))


# Criteria


def profile(criterion: Criterion, activations: Tensor) -> np.ndarray:
    """Booleans ``(N, size)``: what each row covers."""
    hits = criterion.hits(activations)
    table = torch.zeros(len(hits), criterion.size + 1, dtype=torch.bool)
    return table.scatter_(1, torch.where(hits < 0, criterion.size, hits), True)[:, :-1].numpy()


def cut(ranges: Ranges, columns: slice, dtype: torch.dtype) -> Ranges:
    low, high, std = (t[columns].to(dtype) for t in (ranges.low, ranges.high, ranges.std))
    return Ranges(neurons=Neurons(layers=("some",), sizes=(len(low),)), low=low, high=high, std=std)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("k", "columns"), [(3, slice(None)), (100, slice(None)), (1000, slice(None, None, 8))])
def test_kmnc_is_that_of_dnn_tip(ranges, activations, dtype, k, columns) -> None:
    part, a = cut(ranges, columns, dtype), activations[:, columns].to(dtype)
    _, theirs = tip.KMNC([part.low.numpy()], [part.high.numpy()], k)([a.numpy()])
    assert theirs.any()
    assert np.array_equal(profile(KMNC(ranges=part, k=k), a), theirs.reshape(len(a), -1))


def test_kmnc_is_exact_where_a_range_is_a_few_roundings_wide() -> None:
    """Section borders fall together there; and a range of zero width has sections that nothing covers."""
    low = torch.tensor([1.0, 1.0, -3e6, 0.0, 1e-40, 5.0])
    high = torch.tensor([1.0000001, 1.000005, -2999990.0, 1e-42, 2e-40, 5.0])
    part = Ranges(neurons=Neurons(layers=("a",), sizes=(6,)), low=low, high=high, std=high - low)
    share = torch.rand(1500, 6, generator=spawn(0)) * 1.2 - 0.1
    a = torch.cat([low + share * (high - low), low.expand(1, 6), high.expand(1, 6)])
    for k in (2, 7, 1000):
        _, theirs = tip.KMNC([low.numpy()], [high.numpy()], k)([a.numpy()])
        assert np.array_equal(profile(KMNC(ranges=part, k=k), a), theirs.reshape(len(a), -1))
        assert theirs[:, :5].any((0, 2)).all()
        assert not theirs[:, 5].any()


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.integers(1, 60), st.integers(-8, 8), st.sampled_from([torch.float32, torch.float64]))
def test_kmnc_is_exact_on_the_borders_of_sections(seed, k, magnitude, dtype) -> None:
    """Values on each border as it is rounded, and just beside it, for ranges wide and narrow."""
    low, width = torch.randn(2, 8, generator=spawn(seed), dtype=dtype) * 10.0**magnitude
    high = low + width.abs() * 10.0 ** -torch.arange(8)
    part = Ranges(neurons=Neurons(layers=("a",), sizes=(8,)), low=low, high=high, std=width)
    borders = torch.stack([low + (high - low) / k * i for i in range(k + 1)])
    a = torch.cat([borders, *(borders.nextafter(torch.tensor(to, dtype=dtype)) for to in (-torch.inf, torch.inf))])
    _, theirs = tip.KMNC([low.numpy()], [high.numpy()], k)([a.numpy()])
    assert np.array_equal(profile(KMNC(ranges=part, k=k), a), theirs.reshape(len(a), -1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [0.0, 0.5, 1.0])
def test_corners_are_those_of_dnn_tip(ranges, activations, dtype, scale) -> None:
    part, a = cut(ranges, slice(None), dtype), activations.to(dtype)
    low, high, std = ([t.numpy()] for t in (part.low, part.high, part.std))
    _, theirs = tip.NBC(low, high, std, scale)([a.numpy()])
    both = np.concatenate([theirs[..., 0], theirs[..., 1]], 1)
    assert np.array_equal(profile(NBC(ranges=part, scale=scale, strict=False), a), both)
    _, theirs = tip.SNAC(high, std, scale)([a.numpy()])
    assert np.array_equal(profile(SNAC(ranges=part, scale=scale, strict=False), a), theirs)


@pytest.mark.parametrize("scale", [0.0, 0.5])
def test_strict_corners_lie_outside_the_boundary(ranges, activations, scale) -> None:
    """dnn-tip again, its boundaries moved outwards by one rounding."""
    a, high, std = activations.numpy(), [ranges.high.numpy()], [ranges.std.numpy()]
    oracle = tip.NBC([ranges.low.numpy()], high, std, scale)
    oracle.min_boundaries = np.nextafter(oracle.min_boundaries, np.float32(-np.inf))
    oracle.max_boundaries = np.nextafter(oracle.max_boundaries, np.float32(np.inf))
    _, theirs = oracle([a])
    assert 0 < theirs.mean() < 0.01
    both = np.concatenate([theirs[..., 0], theirs[..., 1]], 1)
    assert np.array_equal(profile(NBC(ranges=ranges, scale=scale), activations), both)
    assert np.array_equal(profile(SNAC(ranges=ranges, scale=scale), activations), theirs[..., 1])


def test_training_data_reach_no_corner(lenet, digits28, ranges) -> None:
    train = ranges.neurons(lenet, digits28.train.x)
    assert Coverage.of(NBC(ranges=ranges)).update(train)[1].coverage == 0
    assert Coverage.of(NBC(ranges=ranges, strict=False)).update(train)[1].coverage == 1


def test_nc_is_that_of_dnn_tip(lenet, noisy, ranges, activations) -> None:
    scaled = find_neurons(lenet, noisy, scaled=True)
    for read, a in ((ranges.neurons, activations), (scaled, scaled(lenet, noisy))):
        _, theirs = tip.NAC(0.75)([a.numpy()])
        assert 0 < theirs.mean() < 1
        assert np.array_equal(profile(NC(neurons=read, threshold=0.75), a), theirs)


@pytest.mark.parametrize("k", [1, 3, 20])
def test_tknc_takes_the_largest_of_each_layer(ranges, activations, k) -> None:
    """Brute force, one row and layer at a time; of equal values the first."""
    expected = np.zeros(activations.shape, dtype=bool)
    for row, values in enumerate(activations.tolist()):
        start = 0
        for size in ranges.neurons.sizes:
            order = sorted(range(start, start + size), key=lambda i: (-values[i], i))
            expected[row, order[:k]] = True
            start += size
    assert np.array_equal(profile(TKNC(neurons=ranges.neurons, k=k), activations), expected)


def test_wrong_options_are_rejected(ranges) -> None:
    for wrong in (lambda: KMNC(ranges=ranges, k=0), lambda: TKNC(neurons=ranges.neurons, k=0)):
        with pytest.raises(ValueError, match="k must be"):
            wrong()
    for kind in (NBC, SNAC):
        with pytest.raises(ValueError, match="scale must be 0 or more and finite, got -1"):
            kind(ranges=ranges, scale=-1.0)
    with pytest.raises(ValueError, match="threshold must be 0 or more and finite, got nan"):
        NeighbourCoverage(threshold=float("nan"))
    with pytest.raises(ValueError, match="covered must be 268 booleans"):
        Coverage(criterion=SNAC(ranges=ranges), covered=torch.zeros(268))
    with pytest.raises(ValueError, match="low, high and std must hold one value for each of 268 neurons"):
        Ranges(neurons=ranges.neurons, low=ranges.low[1:], high=ranges.high, std=ranges.std)


# States


def criteria(ranges: Ranges) -> list[Criterion]:
    read = ranges.neurons
    return [
        NC(neurons=read, threshold=0.6),
        KMNC(ranges=ranges, k=50),
        NBC(ranges=ranges),
        SNAC(ranges=ranges, scale=0.1),
        TKNC(neurons=read, k=2),
    ]


@pytest.mark.parametrize("number", range(5))
def test_states_count_what_a_loop_counts(ranges, activations, number) -> None:
    criterion = criteria(ranges)[number]
    table = profile(criterion, activations)
    seen, expected = np.zeros(criterion.size, dtype=bool), []
    for row in table:
        expected.append(int((row & ~seen).sum()))
        seen |= row
    before = Coverage.of(criterion)
    new, after = before.update(activations)
    assert new.tolist() == expected
    assert np.array_equal(after.covered, seen)
    assert after.count == seen.sum() == sum(expected) > 0
    assert after.coverage == seen.mean()
    assert before.gain(activations).tolist() == table.sum(1).tolist()
    half = before.update(activations[:700])[1]
    assert half.gain(activations).tolist() == (table & ~half.covered.numpy()).sum(1).tolist()


@pytest.mark.parametrize("threshold", [0.0, 1.0, 4.0, 12.0])
def test_neighbour_coverage_keeps_what_a_loop_keeps(lenet, noisy, threshold) -> None:
    logits = lenet.batched_logits(noisy)
    kept, expected = np.empty((0, 10)), []
    for z in logits.double().numpy():
        expected.append(bool((np.linalg.norm(kept - z, axis=1) > threshold).all()))
        kept = np.concatenate([kept, z[None]]) if expected[-1] else kept
    new, state = NeighbourCoverage(threshold=threshold).update(logits)
    assert new.tolist() == expected
    np.testing.assert_array_equal(state.kept, kept)
    assert state.coverage == state.count == sum(expected)
    nearest = np.linalg.norm(logits.double().numpy()[:, None] - kept[None], axis=2).min(1)
    np.testing.assert_allclose(state.gain(logits), nearest, rtol=1e-5, atol=1e-5)


def test_neighbour_coverage_before_any_row(generator) -> None:
    points = torch.rand(6, 3, generator=generator)
    assert NeighbourCoverage().gain(points).tolist() == [float("inf")] * 6
    new, state = NeighbourCoverage().update(points[:0])
    assert (len(new), state.count) == (0, 0)
    assert state.update(points)[0].tolist()[0] == 1


SIZES = (3, 1, 4)
Case = tuple[list[Criterion], Tensor]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Criteria with learned ranges, one neuron constant, and rows with ties, repeats and values out of range."""
    generator = spawn(draw(st.integers(0, 2**32)))
    read = Neurons(layers=("a", "b", "c"), sizes=SIZES)
    train = torch.rand(20, read.count, generator=generator)
    train[:, 2] = 0.5
    grain = draw(st.sampled_from([2, 5, 1000]))
    rows = torch.randint(0, grain, (draw(st.integers(2, 30)), read.count), generator=generator) / grain * 1.4 - 0.2
    states = [Coverage.of(c) for c in criteria(ranges_of(train.split(1024), neurons=read))]
    return [*states, NeighbourCoverage(threshold=draw(st.sampled_from([0.0, 0.3, 0.8])))], rows


def same(a: Coverage | NeighbourCoverage, b: Coverage | NeighbourCoverage) -> bool:
    if isinstance(a, Coverage) and isinstance(b, Coverage):
        return torch.equal(a.covered, b.covered)
    return torch.equal(a.kept, b.kept)


@settings(max_examples=40)
@given(cases(), st.integers(0, 30), st.integers(1, 7))
def test_a_batch_is_its_parts_one_after_the_other(case, at, block) -> None:
    """Including which rows add how much, wherever it is cut and however many rows are handled at once."""
    states, rows = case
    for start in states:
        new, whole = start.update(rows)
        with patch.object(coverage, "ROWS", block), patch.object(coverage, "ROWS_COMPARED", block):
            first, state = start.update(rows[:at])
            second, state = state.update(rows[at:])
            assert torch.equal(torch.cat([first, second]), new)
            assert same(state, whole)
        one_by_one = start
        for i in range(len(rows)):
            added, one_by_one = one_by_one.update(rows[i : i + 1])
            assert int(added) == int(new[i])
        assert same(one_by_one, whole)


@settings(max_examples=40)
@given(cases(), st.integers(0, 30))
def test_coverage_never_falls_and_old_states_stay(case, at) -> None:
    states, rows = case
    for start in states:
        before = start.coverage
        _, middle = start.update(rows[:at])
        held = middle.coverage
        new, end = middle.update(rows[at:])
        assert before <= held <= end.coverage
        assert (start.coverage, middle.coverage) == (before, held)
        assert end.count - middle.count == int(new.sum())
        if isinstance(middle, Coverage):
            assert not (middle.covered & ~end.covered).any()


@settings(max_examples=40)
@given(cases(), st.integers(0, 30), st.integers(0, 2**32))
def test_the_order_of_batches_does_not_matter_in_the_end(case, at, seed) -> None:
    """Except for nearest neighbours, where the first row is kept."""
    states, rows = case
    for start in states[:-1]:
        end = start.update(rows)[1]
        assert same(start.update(rows[at:])[1].update(rows[:at])[1], end)
        assert same(start.update(rows[torch.randperm(len(rows), generator=spawn(seed))])[1], end)


@settings(max_examples=40)
@given(cases())
def test_a_row_repeated_adds_nothing(case) -> None:
    states, rows = case
    for start in states:
        twice, _ = start.update(rows.repeat_interleave(2, 0))
        assert not twice[1::2].any()
        again, _ = start.update(rows)[1].update(rows)
        assert not again.any()


@settings(max_examples=40)
@given(cases())
def test_gain_tells_what_a_row_would_add(case) -> None:
    states, rows = case
    for start in states:
        state = start.update(rows[::2])[1]
        gain = state.gain(rows)
        for i in range(len(rows)):
            added = int(state.update(rows[i : i + 1])[0])
            if isinstance(state, Coverage):
                assert added == int(gain[i])
            else:
                assert added == int(gain[i] > state.threshold)


def test_a_state_is_plain_tensors(tmp_path, ranges, activations) -> None:
    criterion = KMNC(ranges=ranges, k=20)
    _, state = Coverage.of(criterion).update(activations)
    torch.save(state.covered, tmp_path / "covered.pt")
    back = Coverage(criterion=criterion, covered=torch.load(tmp_path / "covered.pt", weights_only=True))
    assert not back.update(activations)[0].any()
    _, kept = NeighbourCoverage(threshold=3.0).update(activations[:, -20:-10])
    save(kept, tmp_path / "kept.json")
    assert torch.equal(load(tmp_path / "kept.json", NeighbourCoverage).kept, kept.kept)


def test_wrong_activations_are_rejected(ranges, activations) -> None:
    state = Coverage.of(KMNC(ranges=ranges))
    wrong = activations.clone()
    wrong[3, 5] = torch.nan
    with pytest.raises(ValueError, match="NaN or infinity in 1 of 1428 rows"):
        state.update(wrong)
    with pytest.raises(ValueError, match="one column for each of 268 neurons, got shape"):
        state.gain(activations[:, 1:])
    with pytest.raises(ValueError, match=r"must be floating-point numbers \(N, neurons\), got torch.int64"):
        state.update(activations.long())
    _, kept = NeighbourCoverage().update(activations[:, :10])
    with pytest.raises(ValueError, match="points must have 10 values like those kept, got 9"):
        kept.update(activations[:, :9])


def test_no_rows_add_nothing(ranges, activations) -> None:
    for criterion in criteria(ranges):
        new, state = Coverage.of(criterion).update(activations[:0])
        assert (len(new), state.count, len(state.gain(activations[:0]))) == (0, 0, 0)


MEMORY = """
    import resource, torch
    torch.set_num_threads(1)
    from operant import Classifier, Samples
    from operant.measure.coverage import KMNC, NBC, NC, SNAC, TKNC, Coverage, NeighbourCoverage, fit_ranges
    from operant.networks import LeNet5

    model, x = Classifier(LeNet5()), torch.rand(10_000, 1, 28, 28)
    model.predict(x[:256])
    size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + 2**30, size + 2**30))
    ranges = fit_ranges(model, Samples(x))
    a = ranges.neurons(model, x)
    read = ranges.neurons
    by_range = [KMNC(ranges=ranges, k=1000), NBC(ranges=ranges), SNAC(ranges=ranges)]
    for criterion in (*by_range, NC(neurons=read), TKNC(neurons=read, k=3)):
        new, state = Coverage.of(criterion).update(a)
        assert len(new) == len(state.gain(a)) == 10_000
    new, state = NeighbourCoverage(threshold=0.0).update(model.batched_logits(x))
    assert state.count > 9_000
    print("enough")
"""


@pytest.mark.slow
def test_ten_thousand_rows_need_less_than_a_gibibyte() -> None:
    command = [sys.executable, "-c", textwrap.dedent(MEMORY)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "enough\n"
