"""The training loop of every arm: its schedule, average and rows, and that it can be interrupted at any segment."""

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from known_fields import (
    CONDITIONS,
    NETWORKS,
    Breaking,
    blobs,
    model_of,
    normed,
    parts,
    perceptron,
    same_weights,
    separator,
    weights_of,
)
from operant import Classifier, Samples, spawn
from operant.networks import initialise
from operant.retrain import RowSource, Schedule, TrainingRows, UnlabelledRows, find_rate, train_on_rows
from operant.retrain import field_training as module_under_test
from operant.retrain._checkpoint import Checkpoint
from operant.retrain.rows import UnderConditions, chances_by_class, equal_chances
from operant.retrain.training import TrainableModel, TrainingDiverged

TRAIN, FIELD = blobs(60, seed="train"), blobs(40, seed="field", shift=0.2)
SGD = Schedule(steps=12, learning_rate=0.05, optimiser="sgd", average=0.7)
ADAM = replace(SGD, optimiser="adam", learning_rate=0.01)


def source(samples: Samples = TRAIN, rows: int = 16, **options: Any) -> RowSource:
    return RowSource(samples=samples, chances=equal_chances(samples), rows=rows, **options)


def plain_rows(samples: Samples = TRAIN) -> TrainingRows:
    return TrainingRows(sources=[source(samples), source(samples[:20], rows=4)])


def unlabelled(field: Samples = FIELD, **options: Any) -> UnlabelledRows:
    values = {"rows": 6, "priors": torch.tensor([0.5, 0.5]), "confidence": 0.6}
    values |= {"pseudo_weight": 0.5, "information_weight": 0.1}
    return UnlabelledRows(field=field, **(values | options))


class Jumpy:
    """A change that draws fresh numbers in every call."""

    def __call__(self, x: Tensor, *, generator: torch.Generator) -> Tensor:
        return (x + 0.05 * torch.randn(x.shape, generator=generator)).clamp(0, 1)


# The schedule


@given(steps=st.integers(2, 400), warm_up=st.floats(0, 0.9), decay_to=st.floats(0.001, 1), highest=st.floats(1e-5, 1))
def test_rate_follows_its_formula(steps, warm_up, decay_to, highest):
    schedule = Schedule(steps=steps, warm_up=warm_up, decay_to=decay_to)
    rates = [schedule.rate(t, highest) for t in range(1, steps + 1)]
    a = warm_up * steps
    for t, rate in enumerate(rates, 1):
        expected = highest * t / a if t < a else highest * decay_to ** ((t - a) / max(steps - a, 1))
        assert rate == pytest.approx(expected)
    assert all(0 < rate <= highest * (1 + 1e-9) for rate in rates)
    rising = [rate for t, rate in enumerate(rates, 1) if t < a]
    falling = [rate for t, rate in enumerate(rates, 1) if t >= a]
    assert rising == sorted(rising)
    assert falling == sorted(falling, reverse=True)
    if steps - a >= 1:
        assert rates[-1] == pytest.approx(highest * decay_to)


@pytest.mark.parametrize(
    "wrong",
    [
        {"steps": 0},
        {"optimiser": "adagrad"},
        {"warm_up": 1.0},
        {"average": 1.0},
        {"smoothing": -0.1},
        {"decay_to": 0.0},
        {"learning_rate": 0.0},
        {"learning_rate": math.nan},
    ],
)
def test_schedules_that_mean_nothing_are_rejected(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Schedule(**wrong)


# Against a plain loop


@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
def test_weights_are_the_running_average_of_a_plain_loop(optimiser, monkeypatch):
    """In float64, with normalisation, in two segments; rows are drawn from the generator."""
    monkeypatch.setattr(module_under_test, "SEGMENT", 20)
    monkeypatch.setattr(module_under_test, "SEGMENTS", 1)
    network = perceptron().double()
    samples = Samples(TRAIN.x.double(), TRAIN.y)
    schedule = Schedule(steps=25, learning_rate=0.02, optimiser=optimiser, average=0.8, smoothing=0.1)
    rows = plain_rows(samples)
    trained = train_on_rows(Classifier(network, mean=0.5, std=0.25), rows, schedule, generator=spawn(3))

    stream, average = spawn(3), copy.deepcopy(network)
    torch.randint(2**63 - 1, (), generator=stream)  # seeds dropout
    optimizer = (
        torch.optim.Adam(network.parameters())
        if optimiser == "adam"
        else torch.optim.SGD(network.parameters(), momentum=0.9)
    )
    t = 0
    for steps in (20, 5):
        for x, y, _ in rows.batches(steps, generator=stream):
            t += 1
            optimizer.param_groups[0]["lr"] = schedule.rate(t, 0.02)
            optimizer.zero_grad()
            cross_entropy(network((x - 0.5) / 0.25), y, label_smoothing=0.1).backward()
            optimizer.step()
            for mean, now in zip(average.parameters(), network.parameters(), strict=True):
                mean.data = 0.8 * mean.data + 0.2 * now.data
    for ours, theirs in zip(trained.unwrap().parameters(), average.parameters(), strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-9, atol=1e-11)


def test_without_an_average_the_last_weights_are_the_result(tmp_path):
    """An average of 0 keeps nothing of what was before."""
    file = tmp_path / "state.safetensors"
    trained = train_on_rows(separator(), plain_rows(), replace(SGD, average=0.0), generator=spawn(0), checkpoint=file)
    state = load_file(file)
    assert all(torch.equal(state[f"trainable/{name}"], values) for name, values in weights_of(trained).items())


# Rows


@settings(max_examples=20)
@given(seed=st.integers(0, 2**32 - 1), steps=st.integers(1, 9), rows=st.integers(1, 20))
def test_every_input_is_drawn_as_often_as_expected_rounded(seed, steps, rows):
    samples = Samples(torch.rand(12, 3, generator=spawn(seed)), torch.arange(12) % 3)
    chances = chances_by_class(samples, torch.tensor([0.7, 0.3, 0.0]))
    x, y = RowSource(samples=samples, chances=chances, rows=rows).draw(steps, generator=spawn(seed, "rows"))
    assert len(x) == len(y) == steps * rows
    expected = chances * steps * rows
    for i in range(12):
        drawn = (x == samples.x[i]).all(1)
        assert abs(float(drawn.sum()) - float(expected[i])) < 1 + 1e-6
        assert bool((y[drawn] == samples.labels[i]).all())


@given(shares=st.lists(st.floats(0.01, 1), min_size=3, max_size=3), floor=st.floats(0, 1))
def test_classes_are_drawn_by_their_shares(shares, floor):
    samples = Samples(torch.rand(10, 2), torch.tensor([0] * 5 + [1] * 3 + [2] * 2))
    wanted = torch.tensor(shares, dtype=torch.float64) / sum(shares)
    chances = chances_by_class(samples, wanted, floor=floor)
    got = torch.stack([chances[samples.labels == c].sum() for c in range(3)])
    counts = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    assert torch.allclose(got, (1 - floor) * wanted + floor * counts)
    for c in range(3):
        assert len(chances[samples.labels == c].unique()) == 1  # alike within a class


@pytest.mark.parametrize("labels", [[0, 0, 1, 1], [0, 0, 2, 2], [3, 3, 3, 3]])
def test_classes_without_shares_or_without_inputs_leave_chances_that_sum_to_one(labels):
    samples = Samples(torch.rand(4, 2), torch.tensor(labels))
    for shares in ([0.2, 0.3, 0.5], [0.0, 0.0, 1.0], [1.0]):
        chances = chances_by_class(samples, torch.tensor(shares))
        assert float(chances.sum()) == pytest.approx(1)
        assert bool((chances > 0).all())


def test_a_batch_holds_the_rows_of_every_source_in_order():
    rows = TrainingRows(sources=[source(), source(FIELD, rows=5)], unlabelled=unlabelled())
    assert rows.rows == 16 + 5 + 6
    for x, y, bare in rows.batches(4, generator=spawn(0)):
        assert (len(x), len(y), len(bare)) == (21, 21, 6)
        assert bool((x[:16, None] == TRAIN.x).all(2).any(1).all())
        assert bool((x[16:, None] == FIELD.x).all(2).any(1).all())
        assert bool((bare[:, None] == FIELD.x).all(2).any(1).all())


def test_conditions_are_drawn_anew_in_every_step():
    digits = parts()["train"]
    one = RowSource(samples=digits[:1], chances=torch.ones(1), rows=3, change=UnderConditions(recipe=CONDITIONS))
    images = torch.cat([x for x, _, _ in TrainingRows(sources=[one]).batches(5, generator=spawn(0))])
    assert len(images.flatten(1).unique(dim=0)) == 15
    assert 0 <= float(images.min()) <= float(images.max()) <= 1


# Randomness, and what does not change


def digit_rows(*, bare: bool = False) -> TrainingRows:
    train = parts()["train"][:120]
    change = UnderConditions(recipe=CONDITIONS)
    priors = torch.full((10,), 0.1)
    term = unlabelled(parts()["field"][:50], priors=priors, change=change, confidence=0.1) if bare else None
    return TrainingRows(sources=[source(train, rows=8), source(train, rows=8, change=change)], unlabelled=term)


@pytest.mark.parametrize("name", list(NETWORKS))
def test_same_generator_same_weights_and_nothing_else_moves(name):
    model, schedule = model_of(name), replace(ADAM, steps=6)
    before, stream = weights_of(model), torch.random.get_rng_state()
    first, second, other = (
        train_on_rows(model, digit_rows(bare=True), schedule, generator=spawn(seed)) for seed in (1, 1, 2)
    )
    assert same_weights(first, second)
    assert not same_weights(first, other)
    assert torch.equal(stream, torch.random.get_rng_state())
    assert all(torch.equal(values, weights_of(model)[name]) for name, values in before.items())
    assert not first.unwrap().training


def test_finding_a_rate_leaves_the_model_and_the_global_stream_alone():
    model = model_of("dropout")
    before, stream = weights_of(model), torch.random.get_rng_state()
    rates = [find_rate(model, digit_rows(), ADAM, generator=spawn(seed)) for seed in (1, 1)]
    assert rates[0] == rates[1]
    assert torch.equal(stream, torch.random.get_rng_state())
    assert all(torch.equal(values, weights_of(model)[name]) for name, values in before.items())


def test_frozen_layers_stay_and_frozen_batch_norm_keeps_its_statistics():
    network = normed()
    for part in (network[0], network[1]):
        for p in part.parameters():
            p.requires_grad_(False)
    before = copy.deepcopy(network.state_dict())
    after = weights_of(train_on_rows(Classifier(network), digit_rows(), ADAM, generator=spawn(0)))
    frozen = [name for name in after if name.startswith(("0.", "1."))]
    assert "1.running_mean" in frozen
    assert all(torch.equal(before[name], after[name]) for name in frozen)
    assert all(not torch.equal(before[name], after[name]) for name in after if name not in frozen)


def test_a_model_of_which_nothing_can_be_trained_is_rejected():
    class Fixed(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.stack([x[:, 0], 1 - x[:, 0]], 1)

    with pytest.raises(ValueError, match="no trainable parameters"):
        train_on_rows(Classifier(Fixed()), plain_rows(), SGD, generator=spawn(0))


@pytest.mark.parametrize("after", [0, 5])
def test_a_loss_that_is_no_number_ends_the_training(after):
    with pytest.raises(TrainingDiverged, match="nan"):
        train_on_rows(Classifier(Breaking(after), strict=True), plain_rows(), SGD, generator=spawn(0))


# Interruptions

ROWS = {
    "labels": lambda: digit_rows(),
    "labels and unlabelled rows": lambda: digit_rows(bare=True),
}


class Killed(BaseException):
    pass


def dying(at: int, *, after: bool) -> Callable[..., None]:
    """`Checkpoint.write`, which dies in its call number ``at`` before or after its work."""
    calls, write = count(1), Checkpoint.write

    def call(self, kept):
        last = next(calls) == at
        if last and not after:
            raise Killed
        write(self, kept)
        if last:
            raise Killed

    return call


@pytest.fixture
def _short_segments(monkeypatch):
    """Of two steps or fewer."""
    monkeypatch.setattr(module_under_test, "SEGMENT", 2)
    monkeypatch.setattr(module_under_test, "SEGMENTS", 4)


@pytest.mark.usefixtures("_short_segments")
@pytest.mark.parametrize("after", [True, False])
@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
@pytest.mark.parametrize("rows", list(ROWS))
def test_an_interrupted_training_ends_with_the_same_weights(optimiser, rows, after, tmp_path, monkeypatch):
    model, schedule = model_of("dropout"), replace(ADAM, optimiser=optimiser, steps=10)
    expected = train_on_rows(model, ROWS[rows](), schedule, generator=spawn(5))
    file = tmp_path / "state.safetensors"
    for at in (1, 2):
        with monkeypatch.context() as patch:
            patch.setattr(Checkpoint, "write", dying(at, after=after))
            with pytest.raises(Killed):
                train_on_rows(model, ROWS[rows](), schedule, generator=spawn(5), checkpoint=file)
    resumed = train_on_rows(model, ROWS[rows](), schedule, generator=spawn(5), checkpoint=file)
    assert same_weights(resumed, expected)


def random_rate(*_: Any, generator: torch.Generator) -> float:
    return 0.02 * float(torch.rand(1, generator=generator))


@pytest.mark.usefixtures("_short_segments")
@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
@pytest.mark.parametrize("name", ["batch norm", "dropout"])
@pytest.mark.parametrize("rate", [0.01, None])
def test_training_in_two_parts_ends_with_the_same_weights(optimiser, name, rate, tmp_path, monkeypatch):
    """Also if the first part is asked for twice, and if the rate has to be found; it depends on the rows drawn."""
    monkeypatch.setattr(module_under_test, "find_rate", random_rate)
    model, schedule = model_of(name), replace(ADAM, optimiser=optimiser, steps=10, learning_rate=rate)
    expected = train_on_rows(model, digit_rows(bare=True), schedule, generator=spawn(5))
    file = tmp_path / "state.safetensors"
    first, again, whole, once_more = (
        train_on_rows(model, digit_rows(bare=True), schedule, generator=spawn(5), until=until, checkpoint=file)
        for until in (0.4, 0.4, 1.0, 1.0)
    )
    assert same_weights(first, again)
    assert not same_weights(first, expected)
    assert same_weights(whole, expected)
    assert same_weights(once_more, expected)


@pytest.fixture
def steps_taken(monkeypatch) -> list[float]:
    """The learning rate of every step."""
    rates: list[float] = []
    descend = TrainableModel.descend

    def noted(self, loss, *, rate):
        rates.append(rate)
        return descend(self, loss, rate=rate)

    monkeypatch.setattr(TrainableModel, "descend", noted)
    return rates


def test_parts_of_a_training_follow_each_other(steps_taken, tmp_path):
    schedule = replace(SGD, steps=300)
    for until, total in ((0.2, 60), (0.4 / 3, 60), (0.4, 120), (1.0, 300)):
        train_on_rows(separator(), plain_rows(), schedule, generator=spawn(0), until=until, checkpoint=tmp_path / "a")
        assert len(steps_taken) == total  # none is repeated
    assert steps_taken == pytest.approx([schedule.rate(t, 0.05) for t in range(1, 301)])


@pytest.mark.parametrize("steps", [1, 5, 20, 31, 100, 299])
@pytest.mark.parametrize("until", [0.4 / 3, 0.2, 0.4, 1.0])
def test_a_share_of_the_training_is_no_more_than_that_share_of_its_steps(steps, until, steps_taken):
    """Also of short trainings, so that a race costs what it promises; one step is the least."""
    train_on_rows(separator(), plain_rows(), replace(SGD, steps=steps), generator=spawn(0), until=until)
    assert len(steps_taken) <= max(1, until * steps + 1e-6)
    assert len(steps_taken) >= max(1, until * steps - steps / 10 - 1)
    assert until < 1 or len(steps_taken) == steps


def test_the_checkpoint_of_another_training_is_rejected(tmp_path):
    file = tmp_path / "state.safetensors"
    train_on_rows(separator(), plain_rows(), SGD, generator=spawn(0), checkpoint=file, identity={"arm": 1})
    for change in (
        {"schedule": replace(SGD, steps=13)},
        {"generator": spawn(1)},
        {"identity": {"arm": 2}},
        {"model": Classifier(initialise(perceptron, generator=spawn(9)))},
    ):
        given_ones = {"model": separator(), "schedule": SGD, "generator": spawn(0), "identity": {"arm": 1}} | change
        with pytest.raises(ValueError, match="holds the state of another retraining"):
            train_on_rows(rows=plain_rows(), checkpoint=file, **given_ones)


def test_memory_limits_the_rows_drawn_at_once_and_files_appear_where_they_should(monkeypatch, tmp_path):
    drawn: list[int] = []
    draw = RowSource.draw
    monkeypatch.setattr(
        RowSource,
        "draw",
        lambda self, steps, *, generator: drawn.append(steps) or draw(self, steps, generator=generator),
    )
    one = plain_rows().rows * TRAIN.x[:1].numel() * TRAIN.x.element_size()
    monkeypatch.setattr(module_under_test, "MAX_BYTES", 2 * one)
    file = Path(tmp_path) / "new" / "folder" / "state.safetensors"
    train_on_rows(separator(), plain_rows(), SGD, generator=spawn(0), checkpoint=file)
    assert max(drawn) <= 2
    assert sum(drawn) == 12 * len(plain_rows().sources)
    assert file.exists()


# The learning rate


@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
@pytest.mark.parametrize("name", list(NETWORKS))
def test_the_rate_that_is_found_trains(name, optimiser):
    """From random weights, the loss falls within sixty steps."""
    model, rows = model_of(name), digit_rows()
    schedule = Schedule(steps=60, optimiser=optimiser, average=0.9)
    rate = find_rate(model, rows, schedule, generator=spawn(0))
    assert math.isfinite(rate)
    assert rate > 0
    trained = train_on_rows(model, rows, replace(schedule, learning_rate=rate), generator=spawn(1))
    x, y = parts()["train"][:120].x, parts()["train"][:120].labels
    before, after = (float(cross_entropy(m.batched_logits(x), y)) for m in (model, trained))
    assert after < 0.99 * before


def test_a_rate_is_found_even_if_every_loss_is_nan():
    rate = find_rate(Classifier(Breaking(0), strict=True), plain_rows(), SGD, generator=spawn(0))
    assert math.isfinite(rate)
    assert rate > 0
