"""Manifold mixup: at the input it is plain mixup, at a layer what a plain loop computes; who is mixed with whom."""

from dataclasses import replace

import pytest
import torch
from scipy.stats import beta, kstest
from torch import nn
from torch.nn.functional import cross_entropy

from operant import Classifier, Samples, spawn
from operant.networks import LeNet5, initialise
from operant.results import load, save
from operant.retrain import Finetune, FinetuneRecord, ManifoldMixup, TrainableModel
from operant.retrain.manifold_mixup import mixed_loss, mixture


def blobs(n: int, *, seed: str) -> Samples:
    y = torch.arange(n) % 2
    x = torch.randn(n, 2, generator=spawn(0, seed)) * 0.1 + torch.stack([0.2 + 0.6 * y, 0.5 + 0.1 * y], 1)
    return Samples(x.clamp(0, 1).double(), y)


TRAIN, CASES, VALIDATION = blobs(60, seed="train"), blobs(20, seed="cases"), blobs(40, seed="validation")
NET = initialise(
    lambda: nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 2)).double(),
    generator=spawn(0, "weights"),
)
MODEL = Classifier(NET, mean=0.5, std=0.25)
QUICK = Finetune(loss=ManifoldMixup(), epochs=3, batch_size=20, learning_rate=0.01, max_drop=1, progress=False)


class Last:
    """A monitor that keeps the last epoch."""

    def __init__(self) -> None:
        self.value = 0.0

    def __call__(self, model: Classifier) -> float:
        self.value -= 1
        return self.value


def drawn(settings: ManifoldMixup, rows: torch.Tensor, stream: torch.Generator):
    return settings._drawn(rows >= len(TRAIN), stream)


def plain(settings: ManifoldMixup, stream: torch.Generator) -> nn.Module:
    """The same retraining, written out: inputs or the layer's output mixed by hand."""
    import copy

    module = copy.deepcopy(NET)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
    torch.randint(2**63 - 1, (), generator=stream)  # seeds dropout
    x, y = torch.cat([TRAIN.x, CASES.x]), torch.cat([TRAIN.y, CASES.y])
    for _ in range(3):
        for rows in torch.randperm(80, generator=stream).split(20):
            layer, weight, partner = drawn(settings, rows, stream)
            w = weight[:, None]
            z, there = (x[rows] - 0.5) / 0.25, -1 if layer == "input" else int(layer)
            for place, part in enumerate([nn.Identity(), *module], start=-1):
                z = part(z)
                if place == there:
                    z = w * z + (1 - w) * z[partner]
            soft = w * nn.functional.one_hot(y[rows], 2) + (1 - w) * nn.functional.one_hot(y[rows][partner], 2)
            loss = cross_entropy(z, soft)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return module


@pytest.mark.parametrize("mix", ["all", "cases", "across"])
@pytest.mark.parametrize("layers", [("input",), ("1",), ("input", "0", "3")])
def test_weights_are_those_of_a_plain_loop(mix, layers):
    """At the input this is mixup: inputs and one-hot labels mixed by the same λ."""
    settings = ManifoldMixup(layers=layers, mix=mix)
    tuned = replace(QUICK, loss=settings)(
        MODEL, TRAIN, CASES, validation=VALIDATION, monitor=Last(), generator=spawn(3)
    )
    assert tuned.record.best_epoch == 3
    for ours, theirs in zip(tuned.model.unwrap().parameters(), plain(settings, spawn(3)).parameters(), strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-9, atol=1e-9)


def test_at_the_last_layer_logits_are_mixed():
    learner = TrainableModel(MODEL, optimiser="adam", learning_rate=0.01)
    x, y = TRAIN.x[:6], TRAIN.labels[:6]
    weight, partner = torch.full((6,), 0.3), torch.tensor([1, 2, 3, 4, 5, 0])
    found = mixed_loss(learner, x, y, layer="4", weight=weight, partner=partner)
    z = mixture(NET((x - 0.5) / 0.25), weight, partner)
    expected = 0.3 * cross_entropy(z, y) + 0.7 * cross_entropy(z, y[partner])
    assert float(found.detach()) == pytest.approx(float(expected.detach()))
    assert not learner.module[4]._forward_hooks


# Who is mixed with whom


def test_partners_are_who_they_should_be():
    is_case, stream = torch.arange(30) % 3 == 0, spawn(0)
    for _ in range(20):
        _, weight, partner = ManifoldMixup(mix="all")._drawn(is_case, stream)
        assert torch.equal(partner.sort().values, torch.arange(30))
        assert len(weight.unique()) == 1
        _, weight, partner = ManifoldMixup(mix="cases")._drawn(is_case, stream)
        assert bool((weight[~is_case] == 1).all())
        assert torch.equal(partner[~is_case], torch.arange(30)[~is_case])
        assert torch.equal(partner[is_case].sort().values, torch.arange(30)[is_case])
        _, weight, partner = ManifoldMixup(mix="across")._drawn(is_case, stream)
        assert bool((weight[~is_case] == 1).all())
        assert not bool(is_case[partner[is_case]].any())
        assert len(weight[is_case].unique()) == 1


@pytest.mark.parametrize("mix", ["cases", "across"])
@pytest.mark.parametrize("kind", [True, False])
def test_a_batch_of_one_kind_goes_through(mix, kind):
    _, weight, partner = ManifoldMixup(mix=mix)._drawn(torch.full((5,), kind), spawn(0))
    if not (mix == "cases" and kind):
        assert torch.equal(partner, torch.arange(5))
        assert bool((weight == 1).all())


def test_weights_are_beta_and_layers_are_drawn_evenly():
    settings, stream = ManifoldMixup(layers=("input", "1", "3"), alpha=0.4), spawn(0)
    draws = [settings._drawn(torch.zeros(2, dtype=torch.bool), stream) for _ in range(1500)]
    lambdas = [float(weight[0]) for _, weight, _ in draws]
    assert kstest(lambdas, beta(0.4, 0.4).cdf).pvalue > 0.001
    for layer in ("input", "1", "3"):
        assert abs(sum(drawn == layer for drawn, _, _ in draws) / 1500 - 1 / 3) < 0.06


# As a retraining


def test_it_learns_on_images_at_named_layers_and_streams_stay(lenet, digits28):
    parts = digits28.train.split(train=0.4, validation=0.1, rest=0.5)
    before = torch.random.get_rng_state()
    loss = ManifoldMixup(layers=["input", "pool1", "relu_fc1"])
    mixup = Finetune(loss=loss, epochs=1, batch_size=32, max_drop=0.2, progress=False)
    a, b = (
        mixup(lenet, parts["train"], digits28.test[:30], validation=parts["validation"], generator=spawn(1))
        for _ in range(2)
    )
    assert a.record == b.record
    assert all(
        torch.equal(p, q) for p, q in zip(a.model.unwrap().parameters(), b.model.unwrap().parameters(), strict=True)
    )
    assert not torch.equal(next(iter(a.model.unwrap().parameters())), next(iter(lenet.unwrap().parameters())))
    assert torch.equal(before, torch.random.get_rng_state())
    assert (a.record.n_train, a.record.n_cases) == (len(parts["train"]), 30)
    assert a.model.accuracy(parts["validation"]) > lenet.accuracy(parts["validation"]) - 0.2


def test_without_cases_it_is_a_control():
    tuned = QUICK(MODEL, TRAIN, CASES[:0], validation=VALIDATION, generator=spawn(0))
    assert tuned.record.n_cases == 0


class Killed(Exception):
    pass


def test_a_killed_retraining_resumes(tmp_path):
    settings = replace(QUICK, loss=ManifoldMixup(layers=("input", "1"), mix="across"))
    inputs = {"validation": VALIDATION, "checkpoint": tmp_path / "state"}
    whole = settings(MODEL, TRAIN, CASES, validation=VALIDATION, monitor=Last(), generator=spawn(3))

    def interrupt(epoch):
        if epoch.epoch == 2:
            raise Killed

    monitor = Last()
    with pytest.raises(Killed):
        settings(MODEL, TRAIN, CASES, monitor=monitor, generator=spawn(3), on_epoch=interrupt, **inputs)
    again = settings(MODEL, TRAIN, CASES, monitor=monitor, generator=spawn(3), **inputs)
    assert again.record == whole.record
    for p, q in zip(again.model.unwrap().parameters(), whole.model.unwrap().parameters(), strict=True):
        assert torch.equal(p, q)
    with pytest.raises(ValueError, match="another retraining, which differs in loss;"):
        replace(settings, loss=replace(settings.loss, alpha=1.0))(
            MODEL, TRAIN, CASES, monitor=monitor, generator=spawn(3), **inputs
        )


def test_the_record_comes_back_from_disk(tmp_path):
    record = QUICK(MODEL, TRAIN, CASES, validation=VALIDATION, generator=spawn(0)).record
    save(record, tmp_path / "record.json")
    assert load(tmp_path / "record.json", FinetuneRecord) == record


def test_the_guard_keeps_the_original():
    wrong = Samples(TRAIN.x, 1 - TRAIN.labels)
    good = QUICK(MODEL, TRAIN, CASES, validation=VALIDATION, generator=spawn(0)).model
    tuned = replace(QUICK, max_drop=0.0, learning_rate=0.1)(
        good, wrong, CASES[:0], validation=VALIDATION, generator=spawn(0)
    )
    assert tuned.model is good
    assert "original weights were kept" in tuned.record.reason


# Rejected arguments


def at(layer: str) -> Finetune:
    return replace(QUICK, loss=ManifoldMixup(layers=(layer,)))


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.relu, self.unused = nn.Linear(2, 4), nn.Linear(4, 2), nn.ReLU(), nn.Linear(2, 2)
        self.double()

    def forward(self, x):
        return self.b(self.relu(self.a(self.relu(x))))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: ManifoldMixup(layers="conv1"), "layers must be several names"),
        (lambda: ManifoldMixup(layers=()), "layers must be several names"),
        (lambda: ManifoldMixup(alpha=0.0), "alpha must be positive and finite, got 0.0"),
        (lambda: ManifoldMixup(mix="both"), "mix must be one of all, cases, across, got 'both'"),
        (lambda: replace(QUICK, epochs=0), "epochs must be at least 1, got 0"),
        (
            lambda: at("fc7")(MODEL, TRAIN, CASES, validation=VALIDATION, generator=spawn(0)),
            "no layer named fc7; this model has input, 0, 1, 2, 3, 4",
        ),
        (
            lambda: at("relu")(Classifier(Twice()), TRAIN, CASES, validation=VALIDATION, generator=spawn(0)),
            "layer relu must run once per pass to be mixed, and runs 2 times",
        ),
        (
            lambda: at("unused")(Classifier(Twice()), TRAIN, CASES, validation=VALIDATION, generator=spawn(0)),
            "and runs 0 times",
        ),
        (
            lambda: QUICK(MODEL, TRAIN[:0], CASES, validation=VALIDATION, generator=spawn(0)),
            "train must not be empty",
        ),
    ],
)
def test_bad_settings_are_rejected(make, sentence):
    with pytest.raises(ValueError) as error:
        make()
    assert sentence in str(error.value)


def test_batch_norm_and_convolutions_are_no_hindrance():
    start = Classifier(initialise(lambda: LeNet5(size=8, dropout=0.2, dropout_after=["fc1"]), generator=spawn(0)))
    images = Samples(torch.rand(60, 1, 8, 8, generator=spawn(1)), torch.arange(60) % 10)
    mixup = Finetune(loss=ManifoldMixup(layers=["conv2"]), epochs=1, max_drop=1, progress=False)
    tuned = mixup(start, images[:40], images[40:50], validation=images[50:], generator=spawn(2))
    assert not tuned.model.unwrap().training
