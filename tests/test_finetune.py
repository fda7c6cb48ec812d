"""Fine-tuning: which epoch is kept, what is learned from, and what is rejected."""

import copy
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn.functional import cross_entropy

from operant import Classifier, Samples, spawn
from operant.generate import PGD
from operant.networks import LeNet5, initialise
from operant.results import load, save
from operant.retrain import Finetune, FinetuneEpoch, FinetuneRecord
from operant.retrain._judge import EpochJudge, best_of
from operant_studies.networks import ResNet20

QUICK = Finetune(epochs=3, batch_size=32, progress=False)


def same_weights(a: Classifier, b: Classifier) -> bool:
    x, y = a.unwrap().state_dict(), b.unwrap().state_dict()
    return x.keys() == y.keys() and all(torch.equal(x[name], y[name]) for name in x)


def blobs(n: int, *, seed: str, shift: float = 0.0) -> Samples:
    """Two clouds in the plane, separated by the first coordinate."""
    y = torch.arange(n) % 2
    x = torch.randn(n, 2, generator=spawn(0, seed)) * 0.1 + torch.stack([0.2 + 0.6 * y, 0.5 + shift * y], 1)
    return Samples(x.clamp(0, 1), y)


def small(**options) -> Classifier:
    return Classifier(initialise(lambda: nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2)), **options))


@pytest.fixture
def model() -> Classifier:
    """Has seen a little of the blobs."""
    start = small(generator=spawn(0, "weights"))
    return Finetune(epochs=3, learning_rate=0.02, max_drop=1, progress=False)(
        start, blobs(300, seed="early"), blobs(0, seed="none"), validation=VALIDATION, generator=spawn(0)
    ).model


TRAIN, VALIDATION, NONE = blobs(200, seed="train"), blobs(100, seed="validation"), blobs(0, seed="none")
CASES = Samples(torch.rand(40, 2, generator=spawn(0, "cases")), torch.ones(40).long())


# What it does


def test_retraining_with_cases_of_the_model_makes_it_withstand_them(lenet, digits28):
    attack = PGD(radius=0.1, steps=5)
    parts = digits28.train.split(train=0.9, validation=0.1)
    cases = attack(lenet, lenet.correct(parts["train"][:300]), generator=spawn(0)).failures()
    before = copy.deepcopy(lenet.unwrap().state_dict())
    inputs = {"validation": parts["validation"], "monitor": counter(down=True), "generator": spawn(1)}
    retrained = replace(QUICK, max_drop=1)(lenet, parts["train"], cases.samples(), **inputs)
    assert float((retrained.model.predict(cases.x) == cases.label).double().mean()) > 0.3  # it was 0
    assert float((retrained.model.predict(digits28.test.x) == digits28.test.labels).double().mean()) > 0.8
    record = retrained.record
    assert (record.n_train, record.n_cases) == (len(parts["train"]), len(cases))
    assert len(record.history) == record.best_epoch == 3
    assert all(torch.equal(before[name], values) for name, values in lenet.unwrap().state_dict().items())


@pytest.mark.parametrize(
    ("optimiser", "theirs"),
    [
        ("adam", lambda p: torch.optim.Adam(p, lr=0.01)),
        ("sgd", lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9)),
    ],
)
@pytest.mark.parametrize("decay_after", [None, 1])
def test_weights_are_those_of_a_plain_loop(optimiser, theirs, decay_after):
    """In float64, with normalisation; the rows of an epoch are drawn from the generator."""
    network = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    train, cases, held = (Samples(s.x.double(), s.y) for s in (TRAIN, CASES, VALIDATION))
    start = Classifier(network, mean=0.5, std=0.25)
    options = {"epochs": 3, "batch_size": 48, "learning_rate": 0.01, "max_drop": 1.0, "progress": False}
    tune = Finetune(**options, optimiser=optimiser, decay_after=decay_after)
    tuned = tune(start, train, cases, validation=held, monitor=counter(down=True), generator=spawn(3))
    assert tuned.record.best_epoch == 3

    stream, optimizer = spawn(3), theirs(network.parameters())
    torch.randint(2**63 - 1, (), generator=stream)  # seeds dropout
    x, y, losses = torch.cat([train.x, cases.x]), torch.cat([train.y, cases.y]), []
    for epoch in range(3):
        optimizer.param_groups[0]["lr"] = 0.01 if decay_after is None or epoch < decay_after else 0.001
        total = 0.0
        for rows in torch.randperm(240, generator=stream).split(48):
            loss = cross_entropy(network((x[rows] - 0.5) / 0.25), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += float(loss.detach()) * 48
        losses.append(total / 240)
    for ours, plain in zip(tuned.model.unwrap().parameters(), network.parameters(), strict=True):
        assert torch.allclose(ours, plain, rtol=1e-9, atol=1e-9)
    assert [e.loss for e in tuned.record.history] == pytest.approx(losses, rel=1e-5)


def test_same_generator_same_bits_and_nothing_else_moves(lenet, digits28):
    parts = digits28.train.split(train=0.3, validation=0.1, rest=0.6)
    before, weights = torch.random.get_rng_state(), lenet.unwrap().state_dict()
    run = replace(QUICK, epochs=2, max_drop=1)
    first, second, other = (
        run(lenet, parts["train"], digits28.test[:20], validation=parts["validation"], generator=spawn(seed))
        for seed in (1, 1, 2)
    )
    assert first.record == second.record
    assert same_weights(first.model, second.model)
    assert not same_weights(first.model, other.model)
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(torch.equal(values, lenet.unwrap().state_dict()[name]) for name, values in weights.items())


def test_dropout_is_seeded_and_switched_off_again():
    network = initialise(lambda: LeNet5(size=8, dropout=0.5, dropout_after=["fc1"]), generator=spawn(0))
    images = Samples(torch.rand(64, 1, 8, 8, generator=spawn(1)), torch.arange(64) % 10)
    held, start = Samples(images.x.flip(0) * 0.5, images.y), Classifier(network)
    tune = Finetune(epochs=1, max_drop=1, progress=False)
    a, b = (tune(start, images, images[:0], validation=held, generator=spawn(5)).model for _ in range(2))
    assert same_weights(a, b)
    assert not a.unwrap().training
    assert torch.equal(a.predict(held.x), a.predict(held.x))


@pytest.mark.parametrize("network", [lambda: LeNet5(size=16, channels=3), ResNet20])
def test_retrained_weights_are_laid_out_as_they_came(network, tmp_path):
    """Convolutions train in another memory order, which must not show."""
    start = Classifier(initialise(network, generator=spawn(0)))
    images = Samples(torch.rand(40, 3, 16, 16, generator=spawn(1)), torch.arange(40) % 10)
    tuned = Finetune(epochs=1, max_drop=1, progress=False)(
        start, images[:30], images[:0], validation=images[30:], generator=spawn(2)
    )
    state = tuned.model.unwrap().state_dict()
    assert all(values.is_contiguous() for values in state.values())
    save_file(state, tmp_path / "weights.safetensors")
    assert not same_weights(start, tuned.model)
    names = [name for name, p in start.unwrap().named_parameters() if p.requires_grad]
    assert names == [name for name, p in tuned.model.unwrap().named_parameters() if p.requires_grad]
    assert (start.bounds, start.batch_size) == (tuned.model.bounds, tuned.model.batch_size)


def test_a_module_that_needs_the_default_memory_order_trains_too():
    class Viewed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.dense = nn.Conv2d(2, 4, 3), nn.Linear(4 * 16, 3)

        def forward(self, x):
            return self.dense(self.conv(x).view(len(x), -1))

    images = Samples(torch.rand(40, 2, 6, 6, generator=spawn(1)), torch.arange(40) % 3)
    tune = Finetune(epochs=2, max_drop=1, progress=False)
    start = Classifier(Viewed())
    tuned = tune(start, images[:30], images[:0], validation=images[30:], generator=spawn(2))
    assert not same_weights(start, tuned.model)


def test_frozen_parameters_stay(model):
    network = model.unwrap()
    network[0].requires_grad_(False)
    tuned = replace(QUICK, max_drop=1)(Classifier(network), TRAIN, CASES, validation=VALIDATION, generator=spawn(0))
    assert torch.equal(network[0].weight, tuned.model.unwrap()[0].weight)
    assert not torch.equal(network[2].weight, tuned.model.unwrap()[2].weight)


# Which epoch


def counter(*, down: bool):
    """A monitor that falls, or rises, from call to call."""
    calls = iter(range(1, 100))
    return lambda model: -next(calls) if down else next(calls)


def test_the_monitor_chooses_the_epoch(model):
    inputs = {"validation": VALIDATION, "generator": spawn(0)}
    tune = replace(QUICK, max_drop=1)
    values = iter([0.5, 0.1, 0.3])
    seen = []

    def monitor(candidate: Classifier) -> float:
        seen.append(candidate)
        return next(values)

    tuned = tune(model, TRAIN, CASES, monitor=monitor, **inputs)
    assert [e.monitor for e in tuned.record.history] == [0.5, 0.1, 0.3]
    assert tuned.record.best_epoch == 2
    assert same_weights(tuned.model, seen[1])
    assert not same_weights(seen[1], seen[2])  # each is a model of its own
    assert "epoch 2 had the lowest monitor (0.1) of the 3" in tuned.record.reason


def test_without_a_monitor_it_is_the_error(model):
    tuned = replace(QUICK, max_drop=1)(model, TRAIN, NONE, validation=VALIDATION, generator=spawn(0))
    assert [e.monitor for e in tuned.record.history] == [1 - e.accuracy for e in tuned.record.history]
    assert tuned.record.n_cases == 0
    kept = tuned.record.history[tuned.record.best_epoch - 1]
    now = float((tuned.model.predict(VALIDATION.x) == VALIDATION.y).double().mean())
    assert now == kept.accuracy == max(e.accuracy for e in tuned.record.history)


@pytest.mark.parametrize(
    ("history", "best"),
    [
        ([(0.3, 0.95), (0.2, 0.95)], 2),
        ([(0.2, 0.95), (0.2, 0.95)], 1),  # the earlier
        ([(0.2, 0.95), (0.2, 0.96)], 2),  # the more accurate
        ([(0.2, 0.95), (0.0, 0.89)], 1),  # too inaccurate
        ([(0.2, 0.80), (0.0, 0.89)], None),
        ([], None),
    ],
)
def test_the_best_epoch(history, best):
    judge = EpochJudge(validation=VALIDATION, monitor=None, max_drop=0.05, accuracy_before=0.95)
    epochs: list[FinetuneEpoch] = []
    for number, (monitor, accuracy) in enumerate(history, 1):
        kept, why = judge.decide(accuracy, monitor, epochs)
        epochs.append(FinetuneEpoch(epoch=number, loss=1.0, monitor=monitor, accuracy=accuracy, kept=kept, why=why))
    found = best_of(epochs)
    assert (found and found.epoch) == best


def test_if_no_epoch_is_accurate_enough_the_original_weights_stay(model):
    upside_down = Samples(TRAIN.x, 1 - TRAIN.labels)
    tune = Finetune(epochs=2, learning_rate=0.05, progress=False)
    tuned = tune(model, upside_down, NONE, validation=VALIDATION, monitor=counter(down=True), generator=spawn(0))
    assert tuned.record.best_epoch == 0
    assert tuned.model is model
    assert len(tuned.record.history) == 2
    assert max(e.accuracy for e in tuned.record.history) < tuned.record.accuracy_before - 0.01
    assert "no epoch had a clean validation accuracy at most 1 point below the original" in tuned.record.reason
    assert "original weights were kept" in tuned.record.reason


def test_if_the_loss_is_not_finite_the_original_weights_stay(model):
    tune = Finetune(epochs=3, learning_rate=1e37, optimiser="sgd", max_drop=1, progress=False)
    tuned = tune(model, TRAIN, CASES, validation=VALIDATION, generator=spawn(0))
    assert (tuned.record.best_epoch, tuned.record.history) == (0, ())
    assert tuned.model is model
    assert "original weights were kept; try a lower learning_rate" in tuned.record.reason


def test_good_epochs_before_the_loss_diverged_are_recorded_but_not_kept(model):
    class Tiring(nn.Module):
        """Works for a number of training steps, then no more."""

        def __init__(self, network: nn.Module) -> None:
            super().__init__()
            self.network, self.steps = network, 0

        def forward(self, x):
            self.steps += self.training
            return self.network(x) * (float("nan") if self.training and self.steps > 20 else 1.0)

    tune = Finetune(epochs=5, batch_size=24, max_drop=1, progress=False)  # ten steps per epoch
    start = Classifier(Tiring(model.unwrap()))
    tuned = tune(start, TRAIN, CASES, validation=VALIDATION, generator=spawn(0))
    assert [e.epoch for e in tuned.record.history] == [1, 2]
    assert tuned.record.best_epoch == 0
    assert tuned.model is start
    assert tuned.record.reason.startswith("the loss became nan in epoch 3, so the original weights were kept")


def test_a_model_that_breaks_in_the_last_step_is_not_kept(model):
    """One step per epoch: the loss is computed before the step that ruins the weights."""
    tune = Finetune(epochs=1, batch_size=500, learning_rate=1e39, optimiser="sgd", max_drop=1, progress=False)
    tuned = tune(model, TRAIN, CASES, validation=VALIDATION, generator=spawn(0))
    assert (tuned.record.best_epoch, tuned.record.history) == (0, ())
    assert tuned.record.reason.startswith("after epoch 1 the module returned NaN or infinite logits")


def test_an_error_in_the_monitor_leaves_torchs_random_state_alone(model):
    before = torch.random.get_rng_state()

    def broken(candidate: Classifier) -> float:
        raise RuntimeError("the monitor broke")

    with pytest.raises(RuntimeError, match="the monitor broke"):
        QUICK(model, TRAIN, CASES, validation=VALIDATION, monitor=broken, generator=spawn(0))
    assert torch.equal(before, torch.random.get_rng_state())


# As a value


def test_the_record_comes_back_from_disk(model, tmp_path):
    record = QUICK(model, TRAIN, CASES, validation=VALIDATION, generator=spawn(0)).record
    save(record, tmp_path / "record.json")
    assert load(tmp_path / "record.json", FinetuneRecord) == record
    assert (record.n_train, record.n_cases, len(record.history)) == (200, 40, 3)
    assert record.accuracy_before == float((model.predict(VALIDATION.x) == VALIDATION.y).double().mean())


# Rejected arguments


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"learning_rate": 0.0}, "learning_rate must be positive and finite, got 0.0"),
        ({"learning_rate": float("nan")}, "learning_rate must be positive and finite, got nan"),
        ({"optimiser": "adamw"}, "optimiser must be one of adam, sgd, got 'adamw'"),
        ({"decay_after": 0}, "decay_after must be from 1 to below 10, got 0"),
        ({"decay_after": 10}, "decay_after must be from 1 to below 10, got 10"),
        ({"max_drop": -0.1}, "max_drop must be a share from 0 to 1, got -0.1"),
        ({"max_drop": 2}, "got 2"),
    ],
)
def test_bad_options_are_rejected(options, sentence):
    with pytest.raises(ValueError) as error:
        Finetune(**options)
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"train": NONE}, "train must not be empty"),
        ({"train": Samples(TRAIN.x)}, "carry no labels"),
        ({"cases": Samples(CASES.x)}, "carry no labels"),
        ({"validation": Samples(VALIDATION.x)}, "carry no labels"),
        ({"validation": NONE}, "validation must not be empty"),
        ({"validation": TRAIN[:30]}, "got 30 of 30 that are in train too"),
        ({"validation": Samples.concat([VALIDATION, CASES[:7]])}, "got 7 of 107 that are in cases too"),
        ({"cases": Samples(torch.rand(3, 5), torch.zeros(3).long())}, "inputs must have one shape, got {'train': (2,)"),
        ({"cases": Samples(CASES.x, CASES.labels + 5)}, "below the model's 2 classes, got 6"),
        ({"cases": Samples(CASES.x + 9, CASES.labels)}, "within bounds"),
        ({"monitor": lambda model: float("nan")}, "the monitor must return a number, got NaN"),
    ],
)
def test_bad_data_are_rejected(model, change, sentence):
    inputs = {"train": TRAIN, "cases": CASES, "validation": VALIDATION, "generator": spawn(0), **change}
    with pytest.raises(ValueError) as error:
        QUICK(model, **inputs)
    assert sentence in str(error.value)
