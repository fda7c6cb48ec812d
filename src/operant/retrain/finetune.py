"""Fine-tuning: further epochs from the model's own weights, on training data and cases together."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from operant.data import Samples
from operant.model import Classifier
from operant.model.hashing import described
from operant.retrain._checkpoint import Checkpoint, belonging
from operant.retrain._loop import Diverged, FinetuneEpoch, Learner, Training, check_training, passes, shuffled
from operant.types import Monitor

Told = Callable[[FinetuneEpoch], object]
"""Is told of each epoch."""
Loss = Callable[[Learner, Tensor], Tensor]
"""The loss of some rows, by number."""


@dataclass(frozen=True, kw_only=True)
class FinetuneRecord:
    """How a fine-tuning went.

    Attributes:
        best_epoch: whose weights the model has; 0 if the original ones were kept.
        reason: why this epoch, in a sentence.
        n_train, n_cases: how many inputs of each kind were learned from.
        accuracy_before: of the original model on the validation samples.
        history: every finished epoch.
    """

    best_epoch: int
    reason: str
    n_train: int
    n_cases: int
    accuracy_before: float
    history: tuple[FinetuneEpoch, ...]


@dataclass(frozen=True, kw_only=True)
class Retrained:
    """A retrained model, and how it came about."""

    model: Classifier = field(repr=False)
    record: FinetuneRecord


@dataclass(frozen=True, kw_only=True)
class Finetune:
    """Train on from a model's weights with training data and cases, shuffled together in every epoch.

        minimise  1/|D ∪ T| Σ J(f(x), y)  over (x, y) in D ∪ T, J the cross-entropy        (1)

    The epoch of the lowest monitor is kept, among those whose clean accuracy on the validation samples fell no more
    than ``max_drop`` below the original model's; of equal ones the more accurate, then the earlier. If there is none,
    or the loss stops being finite, the original weights stay. The paper's program chooses the epoch on the very cases
    it reports, and goes on from the optimiser's saved state; here the validation samples are the caller's, apart from
    what is reported, and the optimiser starts anew.

    Args:
        epochs: passes over training data and cases; the paper has 10, and 40 for CIFAR-10.
        batch_size: rows a step, at most.
        learning_rate: of the optimiser.
        optimiser: ``"adam"``, or ``"sgd"`` with momentum 0.9.
        decay_after: the learning rate is a tenth after this epoch; the paper's program has 25 of 40 for CIFAR-10, with
            a learning rate of 1e-4.
        max_drop: how much clean validation accuracy may be lost.
        progress: show a bar where there is a terminal to show it on.

    References:
        | RobOT: Robustness-Oriented Testing for Deep Learning Systems (Wang et al., 2021), Eq. 2
        | https://arxiv.org/abs/2102.05913
    """

    epochs: int = 10
    batch_size: int = 64
    learning_rate: float = 1e-3
    optimiser: str = "adam"
    decay_after: int | None = None
    max_drop: float = 0.01
    progress: bool = True

    def __post_init__(self) -> None:
        check_training(self)
        if self.decay_after is not None and not 1 <= self.decay_after < self.epochs:
            raise ValueError(f"decay_after must be an epoch from 1 to {self.epochs - 1}, got {self.decay_after}")

    def __call__(
        self,
        model: Classifier,
        train: Samples,
        cases: Samples,
        *,
        validation: Samples,
        monitor: Monitor | None = None,
        generator: torch.Generator,
        checkpoint: str | Path | None = None,
        told: Told | None = None,
    ) -> Retrained:
        """Retrain a model; it stays as it is, and so does torch's own random state.

        Args:
            model: where to start from.
            train: labelled training data.
            cases: labelled cases, for instance ``suite.samples()``; none for a control that sees clean data alone.
            validation: labelled, with no input of the above: it chooses the epoch.
            monitor: smaller is better; the error on the validation samples unless given.
            generator: shuffles the batches and seeds dropout; the same one gives the same weights, bit for bit.
            checkpoint: a file for the state after each finished epoch. Called again with the same arguments after a
                kill, retraining goes on from there and ends with the same weights and record, bit for bit, if the
                monitor says the same of the same model. The file stays: delete it once the model is saved.
            told: is told of each finished epoch.
        """
        roles = {"train": train, "cases": cases, "validation": validation}
        check_data(model, **roles)
        data = Samples.concat([train, cases.to(train.x.device)]) if len(cases) else train

        def loss(learner: Learner, rows: Tensor) -> Tensor:
            z = learner.logits(data.x[rows])
            return cross_entropy(z, data.labels[rows].to(z.device))  # (1)

        return learn(
            self,
            model,
            loss=loss,
            rows=len(data),
            roles=roles,
            monitor=monitor,
            generator=generator,
            checkpoint=checkpoint,
            told=told,
            decay_after=self.decay_after,
        )


# Epochs on any loss ---------------------------------------------------------------------------------------------------


def learn(
    options: Training,
    model: Classifier,
    *,
    loss: Loss,
    rows: int,
    roles: Mapping[str, Samples],
    start: Classifier | None = None,
    monitor: Monitor | None,
    generator: torch.Generator,
    checkpoint: str | Path | None,
    told: Told | None,
    decay_after: int | None = None,
    learned_from: Mapping[str, Any] | None = None,
) -> Retrained:
    """Further epochs, of which the best that is accurate enough is kept, with a record and checkpoints.

    Args:
        options: of the training, part of what a checkpoint belongs to.
        model: what is compared with, and kept if nothing better comes.
        loss: of some rows.
        rows: how many there are.
        roles: the samples ``train cases validation``.
        start: where learning begins; the model unless given.
        decay_after: the learning rate is a tenth after this epoch.
        learned_from: what else decides the outcome, by name, for the checkpoint.
    """
    validation = roles["validation"]
    begin = model if start is None else start
    begin.check(validation)
    begin.prepare(validation.x)
    before = model.accuracy(validation)
    floor = floor_of(before, options.max_drop)
    others = {"monitor": monitor, "start": start, **(learned_from or {})}
    saved = Checkpoint(
        checkpoint,
        lambda: belonging(options, model, generator, **roles) | {name: described(v) for name, v in others.items()},
        learner=Learner(begin, optimiser=options.optimiser, learning_rate=options.learning_rate),
        average=None,
        generator=generator,
    )
    kept, problem = watch(
        model,
        _epochs(options, saved, loss, rows, decay_after),
        saved.history,
        validation=validation,
        monitor=monitor,
        floor=floor,
        kept=None if saved.kept is begin else saved.kept,
        finished=lambda best: saved.write(begin if best is model else best),
        told=told,
    )
    chosen = None if problem else _best(saved.history, floor)
    record = FinetuneRecord(
        best_epoch=chosen.epoch if chosen else 0,
        reason=problem or reason_of(chosen, saved.history, floor, before, options.max_drop),
        n_train=len(roles["train"]),
        n_cases=len(roles["cases"]),
        accuracy_before=before,
        history=tuple(saved.history),
    )
    return Retrained(model=kept, record=record)


def _epochs(
    options: Training, saved: Checkpoint, loss: Loss, rows: int, decay_after: int | None
) -> Generator[tuple[float, Classifier]]:
    """After each epoch its mean loss and the model as it then is; the caller adds to the history in between."""
    learner, steps = saved.learner, math.ceil(rows / options.batch_size)
    slower = math.inf if decay_after is None else decay_after * steps

    def step(number: int, some: Tensor) -> float:
        rate = options.learning_rate * 0.1 if number >= slower else options.learning_rate
        return learner.descend(loss(learner, some), rate=rate)

    return passes(
        learner,
        order=lambda: shuffled(rows, generator=saved.generator).cpu(),
        step=step,
        candidate=learner.classifier,
        accuracies=lambda: [e.accuracy for e in saved.history],
        epochs=options.epochs,
        steps=steps,
        progress=options.progress,
        generator=saved.generator,
        begin=saved.resume_streams,
    )


# Which epoch ----------------------------------------------------------------------------------------------------------


def watch(
    model: Classifier,
    epochs: Generator[tuple[float, Classifier]],
    history: list[FinetuneEpoch],
    *,
    validation: Samples,
    monitor: Monitor | None,
    floor: float,
    below: float = math.inf,
    patience: int | None = None,
    kept: Classifier | None = None,
    finished: Callable[[Classifier], None] = lambda kept: None,
    told: Told | None = None,
) -> tuple[Classifier, str]:
    """Judge the model after each epoch, into ``history``: the best one, and what went wrong, if something did.

    Args:
        floor: the lowest clean accuracy that will do.
        below: what the monitor must be below.
        patience: stop after this many epochs without a better one.
        kept: the best one of the epochs that are in ``history`` already.
        finished: called after each epoch with the best one so far.
        told: called after each epoch with what came of it.
    """
    kept = kept or model
    try:
        with closing(epochs):
            while not _in_vain(history, floor, below, patience) and (done := next(epochs, None)):
                loss, candidate = done
                accuracy = _finite_accuracy(candidate, validation, len(history) + 1)
                value = 1 - accuracy if monitor is None else number(monitor(candidate))
                history.append(FinetuneEpoch(epoch=len(history) + 1, loss=loss, accuracy=accuracy, monitor=value))
                if _best(history, floor, below) is history[-1]:
                    kept = candidate
                finished(kept)
                if told is not None:
                    told(history[-1])
    except Diverged as error:
        return model, f"{error}, so the original weights were kept; try a lower learning_rate"
    return kept, ""


def floor_of(before: float, max_drop: float) -> float:
    """The lowest clean accuracy that will do."""
    return before - max_drop - 1e-9  # of rounding


def _best(history: Sequence[FinetuneEpoch], floor: float, below: float = math.inf) -> FinetuneEpoch | None:
    """The first epoch that no other beats among those that are accurate enough."""
    good = [e for e in history if e.accuracy >= floor and (e.monitor < below or below == math.inf)]
    return min(good, key=lambda e: (e.monitor, -e.accuracy), default=None)


def _in_vain(history: Sequence[FinetuneEpoch], floor: float, below: float, patience: int | None) -> bool:
    """Whether the last so many epochs brought nothing better."""
    best = _best(history, floor, below)
    return patience is not None and len(history) - (best.epoch if best else 0) >= patience


def reason_of(
    chosen: FinetuneEpoch | None, history: Sequence[FinetuneEpoch], floor: float, before: float, max_drop: float
) -> str:
    """Why this epoch was chosen, or none, in a sentence."""
    within = f"clean validation accuracy at most {max_drop:.4g} below the original {before:.4f}"
    if chosen is None:
        highest = max(e.accuracy for e in history)
        return f"no epoch had a {within} (the highest was {highest:.4f}), so the original weights were kept"
    n = sum(e.accuracy >= floor for e in history)
    return f"epoch {chosen.epoch} had the lowest monitor ({chosen.monitor:.4g}) of the {n} with a {within}"


def _finite_accuracy(model: Classifier, samples: Samples, epoch: int) -> float:
    """The accuracy of a model that may have become useless on samples that the original one could run on."""
    try:
        return model.accuracy(samples)
    except ValueError as error:
        raise Diverged(f"after epoch {epoch} {error}") from None


def number(value: float) -> float:
    """What a monitor said, if it said something."""
    if math.isnan(value):
        raise ValueError("the monitor must return a number, got NaN; smaller is better")
    return float(value)


# Refusals -------------------------------------------------------------------------------------------------------------


def check_data(model: Classifier, *, train: Samples, cases: Samples, validation: Samples) -> None:
    """Refuse data that cannot be learned from, or that would be judged on."""
    if len(train) == 0:
        raise ValueError("there are no training data; cases alone would make the model forget the rest")
    if len(validation) == 0:
        raise ValueError("there are no validation samples; hold some back, for instance with train.split(...)")
    roles = {"train": train, "cases": cases, "validation": validation}
    shapes = {name: tuple(part.shape) for name, part in roles.items()}
    if len(set(shapes.values())) > 1:
        raise ValueError(f"inputs must have one shape, got {shapes}; resize them first")
    for part in roles.values():
        if len(part):
            model.check(part)
    for name in ("train", "cases"):
        check_apart(validation, roles[name], judge="validation", learned=name)


def check_apart(judges: Samples, learned_from: Samples, *, judge: str, learned: str) -> None:
    """Refuse to judge a model on what it learns from."""
    if shared := int(torch.isin(judges.ids, learned_from.ids).sum()):
        raise ValueError(
            f"{judge} must hold no input that is learned from, got {shared} of {len(judges)} that are in {learned} "
            "too; split by id, with Samples.split"
        )
