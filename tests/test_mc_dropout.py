"""Laws of MC dropout: one distribution however masks are shared, and the same numbers however passes are run."""

import math
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable
from importlib import import_module
from unittest.mock import patch

import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from torch.nn import functional as F

from operant import Classifier, spawn
from operant.measure._tape import Tape
from operant.measure.mc_dropout import Passes, mc_dropout, with_dropout
from operant.measure.uncertainty import (
    mutual_information,
    predictive_entropy,
    variation_ratio,
    variation_ratio_original,
)
from operant.networks import LeNet5, initialise
from operant_studies.networks import ResNet20

IMPLEMENTATION = import_module("operant.measure.mc_dropout")


def passes(model: Classifier, x: Tensor, t: int = 6, *, seed: int = 0, **options: bool) -> Passes:
    return mc_dropout(model, x, passes=t, generator=spawn(seed, "masks"), **options)


def seed_of(generator: torch.Generator) -> int:
    """The one number that a call draws from its generator."""
    return int(torch.randint(2**63 - 1, (), generator=generator))


# Modules that make it hard --------------------------------------------------------------------------------------------


class Net(nn.Module):
    """Two layers and a functional dropout between them; tests override the parts."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.last = nn.Linear(6, 12), nn.Linear(12, 12), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.rest(self.before(x)))

    def before(self, x: Tensor) -> Tensor:
        return torch.relu(self.one(x))

    def rest(self, h: Tensor) -> Tensor:
        return torch.relu(self.two(F.dropout(h, 0.4, self.training)))


class CalledTwice(Net):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.3)

    def rest(self, h: Tensor) -> Tensor:
        for _ in range(2):
            h = torch.tanh(self.two(self.drop(h)))
        return self.drop(h)


class BranchBefore(Net):
    """Takes another way for some batches, before the first dropout."""

    def before(self, x: Tensor) -> Tensor:
        h = self.one(x)
        if float(h.mean()) > 0:
            h = torch.tanh(h) + 0.1 * h.shape[0]
        n, width = h.shape
        return h.view(n, 1, width).squeeze(1)


class BranchAfter(Net):
    """Takes another way in some passes, after the first dropout."""

    def rest(self, h: Tensor) -> Tensor:
        h = self.two(F.dropout(h, 0.5))
        return F.dropout(torch.tanh(h), 0.2) if bool(h.sum() > 0) else torch.relu(h)


class SometimesDropout(Net):
    """Only batches whose first number is large use dropout."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.before(x)
        return self.last(self.rest(h) if bool(x[0, 0] > 0.5) else h)


class Skip(Net):
    """What was computed before the dropout is used after it, some of it through views."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.before(x)
        left, right = h.chunk(2, 1)
        out = self.rest(h) + h
        return self.last(out + torch.cat([right, left], 1) * x[:, :1])


class InPlaceAfter(Net):
    def rest(self, h: Tensor) -> Tensor:
        out = F.dropout(h, 0.4)
        h += 1.0  # what the tape holds
        return out + h


class InPlaceView(Net):
    def rest(self, h: Tensor) -> Tensor:
        part = h[:, :3]
        out = F.dropout(h, 0.4)
        part.mul_(2.0)
        return out + h


class InPlaceDropout(Net):
    def rest(self, h: Tensor) -> Tensor:
        F.dropout(h, 0.4, inplace=True)
        return h


class CountsItself(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def before(self, x: Tensor) -> Tensor:
        self.count += 1
        return super().before(x) * 1.01

    def rest(self, h: Tensor) -> Tensor:
        return super().rest(h) * self.count.clamp(max=1)


class OtherCalls(Net):
    """Another function in every second pass."""

    turn = 0

    def before(self, x: Tensor) -> Tensor:
        self.turn += 1
        return (torch.relu if self.turn % 2 else torch.tanh)(self.one(x))


class OtherWeights(Net):
    """The same functions, but another layer in every second pass."""

    turn = 0

    def before(self, x: Tensor) -> Tensor:
        self.turn += 1
        return torch.relu((self.one if self.turn % 2 else self.extra)(x))

    def __init__(self) -> None:
        super().__init__()
        self.extra = nn.Linear(6, 12)


class OtherNumber(Net):
    turn = 0

    def before(self, x: Tensor) -> Tensor:
        self.turn += 1
        return super().before(x) * (self.turn % 2)


class EarlierDropout(Net):
    """A layer before the first dropout is left out in every second pass."""

    turn = 0

    def before(self, x: Tensor) -> Tensor:
        self.turn += 1
        h = self.one(x)
        return torch.relu(h) if self.turn % 2 else h


class OtherInput(Net):
    """The first dropout is given something else in every second pass."""

    turn = 0

    def before(self, x: Tensor) -> Tensor:
        self.turn += 1
        h = self.one(x), torch.relu(self.one(x))
        return h[self.turn % 2]


class SideCall(Net):
    """Something that only comes up after the dropout is computed before it, in every second pass."""

    turn = 0

    def rest(self, h: Tensor) -> Tensor:
        self.turn += 1
        side = torch.tanh(h) if self.turn % 2 else 0.0
        return F.dropout(h, 0.4) + side


class LaterDropout(Net):
    """The first dropout is left out in every second pass."""

    turn = 0

    def rest(self, h: Tensor) -> Tensor:
        self.turn += 1
        if self.turn % 2:
            h = F.dropout(h, 0.4)
        return F.dropout(torch.relu(self.two(h)), 0.4)


class Noisy(Net):
    def before(self, x: Tensor) -> Tensor:
        return super().before(x) + 0.1 * torch.randn(x.shape[0], 12)


class ThroughNumpy(Net):
    def before(self, x: Tensor) -> Tensor:
        return torch.from_numpy(super().before(x).numpy() * 2)


class Swallows(OtherCalls):
    """Code that lets no exception out."""

    def before(self, x: Tensor) -> Tensor:
        h = self.one(x)
        self.turn += 1
        try:
            return (torch.relu if self.turn % 2 else torch.tanh)(h)
        except Exception:
            return torch.zeros(len(x), 12)


class Scripted(Net):
    """A part whose calls torch cannot intercept."""

    def __init__(self) -> None:
        super().__init__()
        with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
            self.inner = torch.jit.trace(nn.Sequential(nn.Linear(6, 6)).requires_grad_(False), torch.rand(2, 6))

    def before(self, x: Tensor) -> Tensor:
        return super().before(self.inner(x * 1.0) * 1.0)


class Grad(Net):
    """Switches a state inside, and leaves it on beyond the first dropout."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            h = self.before(x)
        with torch.set_grad_enabled(False):
            return self.last(self.rest(h))


class Pooled(nn.Module):
    """Convolutions, batch norm, pooling of even and odd sizes, and every kind of dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm = nn.Conv2d(2, 5, 3, padding=1), nn.BatchNorm2d(5)
        self.conv2, self.last = nn.Conv2d(5, 8, 3), nn.Linear(8, 4)
        self.channels, self.alpha = nn.Dropout2d(0.3), nn.AlphaDropout(0.2)
        self.feature_alpha = nn.FeatureAlphaDropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm(self.conv1(x)))
        h = F.max_pool2d(self.channels(h), 2)
        h = self.alpha(F.max_pool2d(self.conv2(h), 2))
        h = self.feature_alpha(F.max_pool2d(h, 2, stride=1))
        return self.last(F.dropout(h.mean((2, 3)), 0.1))


CACHED = [Net, CalledTwice, BranchBefore, BranchAfter, Skip, Grad]
IN_FULL: dict[type[Net], str] = {
    InPlaceAfter: "in place",
    InPlaceView: "in place",
    InPlaceDropout: "in place",
    CountsItself: "in place",
    Noisy: "random numbers",
    ThroughNumpy: "ndarray",
    Scripted: "a later pass ended in RuntimeError",
}


OTHERWISE = [
    *(OtherCalls, OtherWeights, OtherNumber, OtherInput),
    *(EarlierDropout, LaterDropout, SideCall, Swallows),
]


def toy(kind: type[nn.Module], **options: object) -> Classifier:
    module = initialise(kind, generator=spawn(0, kind.__name__))
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.running_mean.uniform_(-0.2, 0.2, generator=spawn(1))
            part.running_var.uniform_(0.5, 1.5, generator=spawn(2))
    return Classifier(module, **options)


def inputs(n: int, *shape: int, seed: int = 0) -> Tensor:
    return torch.rand(n, *(shape or (6,)), generator=spawn(seed, "inputs"))


# The same numbers however passes are run ------------------------------------------------------------------------------


@pytest.mark.parametrize("independent", [False, True])
@pytest.mark.parametrize("kind", CACHED)
def test_cached_is_full_bit_for_bit(kind: type[nn.Module], independent: bool) -> None:
    model, x = toy(kind, batch_size=32), inputs(75)
    cached = passes(model, x, independent=independent)
    full = passes(model, x, independent=independent, cache=False)
    assert torch.equal(cached.probs, full.probs)
    assert "ran once per batch" in cached.note
    assert "every pass ran in full" in full.note


@pytest.mark.parametrize("independent", [False, True])
@pytest.mark.parametrize("together", [0, 2**21])
def test_cached_is_full_for_convolutions_and_every_kind_of_dropout(together: int, independent: bool) -> None:
    model, x = toy(Pooled, batch_size=32), inputs(50, 2, 15, 14)
    with patch.object(IMPLEMENTATION, "MAX_STACKED", together):
        cached = passes(model, x, independent=independent)
    assert "ran once per batch" in cached.note
    assert torch.equal(cached.probs, passes(model, x, independent=independent, cache=False).probs)


@pytest.mark.parametrize(
    ("network", "shape"),
    [
        (lambda: LeNet5(dropout=0.25, dropout_after=("conv1", "conv2", "fc1", "fc2")), (1, 28, 28)),
        (lambda: LeNet5(dropout=0.25, dropout_after=("fc1", "fc2")), (1, 28, 28)),
        (lambda: ResNet20(dropout=0.25, dropout_after=("pool",)), (3, 16, 16)),
        (lambda: ResNet20(dropout=0.25, dropout_after=("block",)), (3, 16, 16)),
    ],
)
def test_cached_is_full_for_the_shipped_networks(network: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    model, x = Classifier(initialise(network, generator=spawn(3)), batch_size=32), inputs(40, *shape)
    cached = passes(model, x, 5)
    assert "ran once per batch" in cached.note
    assert torch.equal(cached.probs, passes(model, x, 5, cache=False).probs)


def test_passes_together_are_passes_one_by_one() -> None:
    for kind in (Net, CalledTwice, BranchBefore, Skip):
        model, x = toy(kind, batch_size=32), inputs(75)
        together = passes(model, x, 9)
        assert "together" in together.note
        with patch.object(IMPLEMENTATION, "MAX_STACKED", 32 * 12 * 4):  # four at a time
            assert torch.equal(together.probs, passes(model, x, 9).probs)
        with patch.object(IMPLEMENTATION, "MAX_STACKED", 0):
            apart = passes(model, x, 9)
        assert "together" not in apart.note
        assert torch.equal(together.probs, apart.probs)


def test_a_way_that_depends_on_the_masks_is_not_taken_together() -> None:
    note = passes(toy(BranchAfter), inputs(40)).note
    assert "ran once per batch" in note
    assert "together" not in note


@pytest.mark.parametrize("kind", IN_FULL)
def test_what_cannot_be_taped_runs_in_full_and_reports_it(kind: type[Net]) -> None:
    model, x = toy(kind, batch_size=32, strict=True), inputs(75)
    found = passes(model, x)
    assert "every pass ran in full" in found.note
    assert IN_FULL[kind] in found.note
    assert torch.equal(found.probs, passes(toy(kind, batch_size=32, strict=True), x, cache=False).probs)


@pytest.mark.parametrize("together", [0, 2**21])
@pytest.mark.parametrize("kind", OTHERWISE)
def test_passes_that_differ_from_the_first_are_detected(kind: type[Net], together: int) -> None:
    with patch.object(IMPLEMENTATION, "MAX_STACKED", together):
        found = passes(toy(kind, strict=True), inputs(40))
    assert "every pass ran in full" in found.note
    assert "first pass" in found.note


def test_a_model_is_prepared_before_its_passes_are_watched() -> None:
    """Choosing how a module is run takes extra passes once; reading features alone does not choose."""

    class Counted(Net):
        calls = 0

        def before(self, x: Tensor) -> Tensor:
            Counted.calls += 1
            return super().before(x)

    model, x = toy(Counted), inputs(40)
    model.features(x, layers=["one"])
    expected = passes(toy(Counted), x).probs
    assert torch.equal(passes(model, x).probs, expected)
    before = Counted.calls
    model.prepare(x)
    assert Counted.calls == before
    model.logits(x)
    assert Counted.calls == before + 1


def test_row_dimensions_are_surveyed_once_per_shape() -> None:
    """The second call saves the two passes of the survey and gives the same result."""
    passes: list[int] = []

    class Counted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            passes.append(len(x))
            return self.layer(F.dropout(x.flatten(1)[:, :4], 0.5))

    model = Classifier(Counted(), strict=True)
    x, counts, said = torch.rand(20, 4, generator=spawn(0)), [], []
    for given in (x, x, x[:, :, None].expand(-1, -1, 2)):
        passes.clear()
        said.append(mc_dropout(model, given, passes=5, generator=spawn(1)).probs)
        counts.append(len(passes))
    assert counts[0] == counts[2] == counts[1] + 2
    assert torch.equal(said[0], said[1])


def test_in_place_work_before_the_first_dropout_is_fine() -> None:
    layers = [nn.Linear(6, 12), nn.ReLU(inplace=True), nn.Dropout(0.3), nn.Linear(12, 12), nn.ReLU(inplace=True)]
    model, x = Classifier(nn.Sequential(*layers, nn.Linear(12, 4)), strict=True), inputs(40)
    cached = passes(model, x)
    assert "ran once per batch" in cached.note
    assert torch.equal(cached.probs, passes(model, x, cache=False).probs)


def test_memory_of_the_first_part_is_freed() -> None:
    """A tape holds what is still in use at the first dropout, not every tensor before it."""
    layers = [layer for _ in range(40) for layer in (nn.Linear(6, 6), nn.Tanh())]
    model, alive = Classifier(nn.Sequential(*layers, nn.Dropout(0.3), nn.Linear(6, 4))), []
    original = Tape.check

    def check(tape: Tape) -> None:
        alive.append(sum(t.numel() for t in tape._kept) - sum(p.numel() for p in model.unwrap().parameters()))
        original(tape)

    with patch.object(Tape, "check", check):
        passes(model, inputs(256))
    assert 0 < max(alive) < 5 * 256 * 6


@pytest.mark.parametrize("batch", [0, 1, 2])
def test_a_batch_that_meets_no_dropout_says_the_same_in_every_pass(batch: int) -> None:
    model, x = toy(SometimesDropout, batch_size=32), inputs(96)
    x[:, 0] = 0.1
    x[32 * batch, 0] = 0.9
    found = passes(model, x)
    assert torch.equal(found.probs, passes(model, x, cache=False).probs)
    spread = [float(part.std(0).amax()) for part in found.probs.split(32, 1)]
    assert [value > 1e-3 for value in spread] == [i == batch for i in range(3)]


def test_double_precision() -> None:
    module = initialise(Net, generator=spawn(0)).double()
    x = inputs(40).double()
    found = passes(Classifier(module), x)
    assert found.probs.dtype == torch.float64
    single = passes(Classifier(initialise(Net, generator=spawn(0))), x.float())
    torch.testing.assert_close(found.probs.float(), single.probs, atol=1e-5, rtol=1e-4)  # the same masks


# Masks ----------------------------------------------------------------------------------------------------------------


def test_masks_do_not_depend_on_torchs_default_type() -> None:
    model, x = toy(CalledTwice), inputs(40)
    expected = {independent: passes(model, x, independent=independent).probs for independent in (False, True)}
    torch.set_default_dtype(torch.float64)
    try:
        for independent, probs in expected.items():
            assert torch.equal(passes(model, x, independent=independent).probs, probs)
    finally:
        torch.set_default_dtype(torch.float32)


def test_hand_computed_measures_with_known_masks() -> None:
    """Two inputs, half of them dropped: logits are twice the kept inputs, plus (0, 0.1)."""
    layer = nn.Linear(2, 2)
    layer.weight.data, layer.bias.data = torch.eye(2), torch.tensor([0.0, 0.1])
    model = Classifier(nn.Sequential(nn.Dropout(0.5), layer).double())
    x = torch.tensor([[1.0, 0.2], [0.1, 0.8], [0.5, 0.42]]).double()
    mc = passes(model, x, 5, seed=4).probs

    seed = seed_of(spawn(4, "masks"))
    keep = torch.cat([torch.rand(1, 2, generator=spawn(seed, t, 0)) >= 0.5 for t in range(5)])
    assert keep.int().tolist() == [[0, 0], [1, 0], [1, 0], [0, 1], [1, 1]]

    ahead = [  # of class 1, in logits, for the masks above
        [0.1, -1.9, -1.9, 0.5, -1.5],
        [0.1, -0.1, -0.1, 1.7, 1.5],
        [0.1, -0.9, -0.9, 0.94, -0.06],
    ]
    one = [[1 / (1 + math.exp(-d)) for d in row] for row in ahead]
    torch.testing.assert_close(mc[:, :, 1], torch.tensor(one, dtype=torch.float64).T)
    assert variation_ratio(mc).tolist() == [0.4, 0.4, 0.4]
    assert model.predict(x).tolist() == [0, 1, 1]
    assert variation_ratio_original(mc, model.predict(x)).tolist() == [0.4, 0.4, 0.6]
    assert variation_ratio(mc, torch.tensor([1, 0, 0])).tolist() == [0.6, 0.6, 0.4]

    def entropy(p: float) -> float:
        return -p * math.log(p) - (1 - p) * math.log(1 - p)

    pe = [entropy(sum(row) / 5) for row in one]
    mi = [h - sum(map(entropy, row)) / 5 for h, row in zip(pe, one, strict=True)]
    torch.testing.assert_close(predictive_entropy(mc), torch.tensor(pe, dtype=torch.float64))
    torch.testing.assert_close(mutual_information(mc), torch.tensor(mi, dtype=torch.float64))


def probe(rate: float, *, dropout: Callable[..., Tensor] = F.dropout) -> Classifier:
    """A model whose second logit is ``(1/64) Σ z`` of the inputs z after dropout, and whose first is 0."""

    class Probe(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            total = dropout(x, rate).flatten(1).sum(1) / 64
            return torch.stack([torch.zeros_like(total), total], 1)

    return Classifier(Probe(), bounds=(-9.0, 9.0), strict=True)


def sums(found: Passes) -> Tensor:
    """What the probe's second logit was, times 64: ``(T, N)``."""
    return 64 * (found.probs[..., 1] / found.probs[..., 0]).log()


@pytest.mark.parametrize("independent", [False, True])
def test_the_mean_of_a_linear_layer_after_dropout_is_its_value_without(independent: bool) -> None:
    x, t, rate = inputs(20).double(), 4000, 0.3
    found = sums(passes(probe(rate), x, t, independent=independent))
    variance = rate / (1 - rate) * x.square().sum(1)
    z = (found.mean(0) - x.sum(1)) / (variance / t).sqrt()
    assert float(z.abs().max()) < 4.5
    if independent:
        assert float(stats.kstest(z.numpy(), "norm").pvalue) > 1e-3
    torch.testing.assert_close(found.var(0), variance, rtol=0.12, atol=0)


@pytest.mark.parametrize(
    ("dropout", "shape", "groups"),
    [
        (F.dropout, (3, 2, 2), 12),
        (lambda x, rate: torch.dropout(x, rate, False), (3, 2, 2), 12),
        (F.dropout1d, (3, 4), 3),
        (F.dropout2d, (3, 2, 2), 3),
        (F.dropout3d, (3, 1, 2, 2), 3),
        (lambda x, rate: torch.feature_dropout(x, p=rate, train=False), (3, 2, 2), 3),
    ],
)
@pytest.mark.parametrize("independent", [False, True])
def test_every_dropout_drops_what_it_should(
    dropout: Callable[..., Tensor], shape: tuple[int, ...], groups: int, independent: bool
) -> None:
    """With ones for inputs, the sum is 12 / (1 - p) times the share of groups kept: a binomial number."""
    t, rate = 3000, 0.25
    found = sums(passes(probe(rate, dropout=dropout), torch.ones(2, *shape).double(), t, independent=independent))
    kept = (found * (1 - rate) * groups / 12).round()
    torch.testing.assert_close(found, kept * 12 / groups / (1 - rate))
    for row in kept.T:
        counts = torch.bincount(row.long(), minlength=groups + 1).double()
        expected = t * torch.tensor(stats.binom.pmf(range(groups + 1), groups, 1 - rate))
        assert float(stats.chisquare(counts, expected * counts.sum() / expected.sum()).pvalue) > 1e-4
    assert torch.equal(kept[:, 0], kept[:, 1]) is not independent


@pytest.mark.parametrize("independent", [False, True])
def test_dropouts_of_one_pass_are_independent(independent: bool) -> None:
    """The variance of a sum of two is twice that of one; were their masks the same, it would be four times."""

    def twice(x: Tensor, rate: float) -> Tensor:
        return F.dropout(x, rate) + F.dropout(x, rate)

    found = sums(passes(probe(0.5, dropout=twice), torch.ones(3, 6).double(), 3000, independent=independent))
    torch.testing.assert_close(found.var(0), torch.full((3,), 12.0).double(), rtol=0.1, atol=0)


def test_alpha_dropout_keeps_mean_and_variance_and_has_two_values() -> None:
    """On standard normal inputs, over rows and passes."""
    x = torch.randn(400, 50, generator=spawn(5)).clamp(-8, 8).double()
    values: list[Tensor] = []

    class Spy(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            h = F.alpha_dropout(x, 0.3)
            values.append(h)
            return h[:, :2]

    model = Classifier(Spy(), bounds=(-9.0, 9.0), strict=True, batch_size=400)
    with patch.object(IMPLEMENTATION, "MAX_STACKED", 0):
        passes(model, x, 30, independent=True)
    h = torch.stack([v for v in values if len(v) == 400][-30:])
    assert abs(float(h.mean())) < 0.01
    assert abs(float(h.var()) - 1) < 0.02
    dropped = h.flatten().mode().values  # the only value that comes twice
    assert abs(float((h == dropped).double().mean()) - 0.3) < 0.005


def test_dropping_everything_leaves_nothing() -> None:
    assert float(sums(passes(probe(1.0), inputs(20))).abs().max()) == 0.0
    assert float(sums(passes(probe(1.0, dropout=F.alpha_dropout), inputs(20))).abs().max()) == 0.0


def test_shared_and_independent_masks_give_a_row_one_distribution(lenet: Classifier, digits28) -> None:
    """Kolmogorov-Smirnov per row on the label's probability, on a trained network; Bonferroni over rows."""
    model = with_dropout(lenet, before=["fc2", "fc3"], rate=0.4)
    x, t, n = digits28.test.x[:12], 1000, 12
    shared = passes(model, x, t).probs
    fresh = passes(model, x, t, seed=1, independent=True).probs
    label = model.predict(x)
    for row in range(n):
        one, two = (mc[:, row, label[row]].numpy() for mc in (shared, fresh))
        assert stats.ks_2samp(one, two).pvalue > 0.01 / n
    mean, other = variation_ratio_original(shared, label), variation_ratio_original(fresh, label)
    assert float((mean - other).abs().max()) < 0.1


def test_equal_rows_agree_under_shared_masks_only() -> None:
    model, x = toy(CalledTwice), inputs(1).repeat(20, 1)
    shared, fresh = passes(model, x).probs, passes(model, x, independent=True).probs
    torch.testing.assert_close(shared, shared[:, :1].expand_as(shared))
    assert len(fresh[0].unique(dim=0)) == 20


@pytest.mark.parametrize("independent", [False, True])
@pytest.mark.parametrize("kind", [Net, CalledTwice, Skip])
def test_batch_size_changes_nothing(kind: type[Net], independent: bool) -> None:
    x = inputs(75)
    whole = passes(toy(kind, batch_size=256), x, independent=independent).probs
    for size in (75, 40, 16, 7):
        torch.testing.assert_close(passes(toy(kind, batch_size=size), x, independent=independent).probs, whole)


def test_shared_masks_do_not_depend_on_the_inputs() -> None:
    """A generator in the same state gives the same networks, so a row's result does not depend on the other rows."""
    model, x = toy(CalledTwice), inputs(60)
    whole = passes(model, x).probs
    torch.testing.assert_close(passes(model, x[20:50]).probs, whole[:, 20:50])
    torch.testing.assert_close(passes(model, x.flip(0)).probs, whole.flip(1))
    torch.testing.assert_close(passes(model, x, 3).probs, whole[:3])  # and fewer passes are the first ones
    assert float((passes(model, x, seed=1).probs - whole).abs().amax()) > 0.01


def test_one_number_of_the_generator_is_used_and_no_global_one() -> None:
    generator, other = spawn(8), spawn(8)
    before = torch.get_rng_state()
    mc_dropout(toy(Noisy), inputs(20), passes=3, generator=generator)
    assert torch.equal(before, torch.get_rng_state())
    seed_of(other)
    assert torch.equal(generator.get_state(), other.get_state())


class TokensFirst(nn.Module):
    """Dropout sees (tokens, rows, width); the logit is the mean over tokens."""

    def forward(self, x: Tensor) -> Tensor:
        h = F.dropout(x.transpose(0, 1), 0.5).mean((0, 2))
        return torch.stack([torch.zeros_like(h), h], 1)


class TokensAsRows(nn.Module):
    """Dropout sees rows and tokens in one dimension."""

    def forward(self, x: Tensor) -> Tensor:
        h = F.dropout(x.flatten(0, 1), 0.5).view_as(x).mean((1, 2))
        return torch.stack([torch.zeros_like(h), h], 1)


@pytest.mark.parametrize("n", [16, 20])
@pytest.mark.parametrize("independent", [False, True])
@pytest.mark.parametrize("kind", [TokensFirst, TokensAsRows])
def test_rows_are_found_in_whichever_dimension_they_are(kind: type[nn.Module], independent: bool, n: int) -> None:
    """A row's values are dropped one by one, also if there are as many tokens as rows."""
    found = passes(Classifier(kind(), strict=True), torch.ones(n, 16, 2).double(), 2000, independent=independent)
    logit = (found.probs[..., 1] / found.probs[..., 0]).log()
    torch.testing.assert_close(logit.var(0), torch.full((n,), 1 / 32).double(), rtol=0.2, atol=0)
    alike = torch.allclose(logit[:, 0], logit[:, 1])
    assert alike == (kind is TokensFirst and not independent)
    assert ("no dimension of rows" in found.note) == (kind is TokensAsRows and not independent)


# What is rejected -----------------------------------------------------------------------------------------------------


def test_a_model_without_dropout_is_rejected() -> None:
    for model in (Classifier(nn.Linear(6, 3)), Classifier(nn.Sequential(nn.Dropout(0.0), nn.Linear(6, 3)))):
        with pytest.raises(ValueError, match="without any dropout.*with_dropout"):
            passes(model, inputs(20))


def test_too_few_passes_and_bad_inputs_are_rejected() -> None:
    model = toy(Net)
    for t in (1, 0, -3):
        with pytest.raises(ValueError, match=f"at least 2, got {t}"):
            passes(model, inputs(20), t)
    bad = inputs(20)
    bad[3, 2] = torch.nan
    with pytest.raises(ValueError, match="NaN in 1 of 20 rows"):
        passes(model, bad)
    with pytest.raises(ValueError, match="no inputs"):
        passes(model, bad[:0])
    with pytest.raises(ValueError, match="within bounds"):
        passes(model, inputs(20) + 3)


class Attention(Net):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(12, 2, dropout=0.1, batch_first=True)

    def rest(self, h: Tensor) -> Tensor:
        h = F.dropout(h, 0.2)[:, None]
        return self.attention(h, h, h)[0][:, 0]


class FusedAttention(Net):
    def rest(self, h: Tensor) -> Tensor:
        h = F.dropout(h, 0.2).view(-1, 1, 3, 4)
        return F.scaled_dot_product_attention(h, h, h, dropout_p=0.3, scale=0.5).flatten(1)


class Recurrent(Net):
    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.GRU(4, 4, num_layers=2, dropout=0.3, batch_first=True)

    def rest(self, h: Tensor) -> Tensor:
        return self.recurrent(h.view(-1, 3, 4))[0].flatten(1)


class DropsRows(Net):
    def rest(self, h: Tensor) -> Tensor:
        return F.dropout1d(h, 0.3)


class Diverges(Net):
    def rest(self, h: Tensor) -> Tensor:
        return F.dropout(h, 0.5) / 0.0


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        (Attention, "multi_head_attention_forward drops 0.1 of its values inside one call"),
        (FusedAttention, "scaled_dot_product_attention drops 0.3"),
        (Recurrent, "gru drops 0.3"),
        (DropsRows, "drops whole rows"),
        (Diverges, "NaN or infinite logits for 40 of 40 inputs"),
    ],
)
def test_what_masks_cannot_reach_is_rejected(kind: type[Net], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        passes(toy(kind, strict=True), inputs(40))


def test_attention_without_own_dropout_is_fine() -> None:
    model, x = toy(Attention), inputs(40)
    plain = model.unwrap()
    plain.attention.dropout = 0.0
    model = model.rewrap(plain)
    found = passes(model, x)
    assert torch.equal(found.probs, passes(model, x, cache=False).probs)


def test_errors_of_the_module_itself_are_shown() -> None:
    class Broken(Net):
        def rest(self, h: Tensor) -> Tensor:
            return F.dropout(h, -0.5)

    with pytest.raises(ValueError, match="dropout probability has to be between 0 and 1"):
        passes(toy(Broken), inputs(20))


def test_tensors_of_inference_mode_are_taken() -> None:
    model = toy(Net)
    expected = passes(model, inputs(20)).probs
    with torch.inference_mode():
        found = passes(model, inputs(20))
    assert torch.equal(found.probs, expected)
    assert "ran once per batch" in found.note


# Putting dropout in ---------------------------------------------------------------------------------------------------


def test_with_dropout_keeps_predictions_names_and_features(lenet: Classifier, digits28) -> None:
    x = digits28.train.x[:1000]
    model = with_dropout(lenet, before=["conv2", "fc3"], rate=0.3)
    torch.testing.assert_close(model.probs(x), lenet.probs(x))
    assert set(lenet.layers) < set(model.layers)
    for name, value in lenet.features(x, layers=["conv2", "fc3"]).items():
        assert torch.equal(model.features(x, layers=[name])[name], value)
    found = passes(model, x, 4)
    assert float(found.probs.std(0).mean()) > 1e-4
    assert torch.equal(found.probs, passes(model, x, 4, cache=False).probs)


def test_with_dropout_drops_the_layers_input_at_the_rate() -> None:
    layer = nn.Linear(8, 2, bias=False)
    layer.weight.data = torch.stack([torch.zeros(8), torch.ones(8)])
    model = with_dropout(Classifier(nn.Sequential(nn.Identity(), layer)), before=["1"], rate=0.2)
    found = passes(model, torch.full((3, 8), 0.1), 3000).probs.double()
    logit = (found[..., 1] / found[..., 0]).log()
    counts = torch.bincount((logit[:, 0] * 0.8 / 0.1).round().long(), minlength=9)
    expected = 3000 * stats.binom.pmf(range(9), 8, 0.8)
    few = expected < 5
    pooled = [counts[few].sum(), *counts[~few]], [expected[few].sum(), *expected[~few]]
    assert stats.chisquare(*pooled).pvalue > 1e-3


def test_with_dropout_in_nested_layers() -> None:
    inner = nn.Sequential(nn.Linear(6, 6), nn.ReLU())
    model = Classifier(nn.Sequential(inner, nn.Linear(6, 3)))
    nested = with_dropout(model, before=["0", "0.0"], rate=0.5)
    assert sum(isinstance(m, nn.Dropout) for m in nested.unwrap().modules()) == 2
    assert torch.equal(nested.predict(inputs(20)), model.predict(inputs(20)))
    assert not any(isinstance(m, nn.Dropout) for m in model.unwrap().modules())


@pytest.mark.parametrize(
    ("before", "rate", "sentence"),
    [
        (["three"], 0.5, "no layer named three; this model has one, two, last"),
        (["one", "six", "ten"], 0.5, "no layer named six, ten"),
        ("last", 0.5, r"single string 'last'; write \['last'\]"),
        ([], 0.5, "at least one layer; this model has one, two, last"),
        (["last"], 0.0, "between 0 and 1, got 0.0"),
        (["last"], 1.0, "between 0 and 1, got 1.0"),
    ],
)
def test_with_dropout_rejects(before: list[str], rate: float, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        with_dropout(toy(Net), before=before, rate=rate)


# Memory ---------------------------------------------------------------------------------------------------------------

MEMORY = """
import os
os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
import resource, torch
torch.set_num_threads(1)
from operant import Classifier, spawn
from operant.measure.mc_dropout import mc_dropout
from operant.networks import LeNet5
model = Classifier(LeNet5(dropout=0.25, dropout_after=("conv1", "fc1")))
dense = Classifier(LeNet5(dropout=0.25, dropout_after=("fc1", "fc2")))
x = torch.rand(10_000, 1, 28, 28, generator=spawn(0))
for kind in (model, dense):
    mc_dropout(kind, x[:300], passes=3, generator=spawn(0))  # what libraries set up once
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + 2**30, size + 2**30))
print(*mc_dropout(model, x, passes=2, generator=spawn(0)).probs.shape)
for independent in (False, True):
    print(*mc_dropout(dense, x, passes=50, generator=spawn(0), independent=independent).probs.shape)
"""


@pytest.mark.slow
def test_ten_thousand_rows_take_less_than_a_gibibyte() -> None:
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(MEMORY)], capture_output=True, text=True, check=False)
    assert run.stdout.splitlines() == ["2 10000 10", "50 10000 10", "50 10000 10"], run.stderr
