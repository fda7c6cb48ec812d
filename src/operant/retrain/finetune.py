"""Fine-tuning: further epochs from the model's own weights, on training data and cases together."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from operant.data import Samples
from operant.model import Classifier, copy_module
from operant.networks.training import descend, shuffled_batches, training_bar
from operant.rng import global_streams
from operant.types import Monitor

OPTIMISERS = ("adam", "sgd")


@dataclass(frozen=True, kw_only=True)
class FinetuneEpoch:
    """One pass: its mean loss, and then the clean accuracy on the validation samples and what the monitor said."""

    epoch: int  # counted from 1
    loss: float
    accuracy: float
    monitor: float


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
        if self.epochs < 1 or self.batch_size < 1:
            raise ValueError(f"epochs and batch_size must be at least 1, got {self.epochs} and {self.batch_size}")
        if not 0 < self.learning_rate < math.inf:
            raise ValueError(f"learning_rate must be positive, got {self.learning_rate}")
        if self.optimiser not in OPTIMISERS:
            raise ValueError(f'optimiser must be "adam" or "sgd", got {self.optimiser!r}')
        if self.decay_after is not None and not 1 <= self.decay_after < self.epochs:
            raise ValueError(f"decay_after must be an epoch from 1 to {self.epochs - 1}, got {self.decay_after}")
        if not 0 <= self.max_drop <= 1:
            raise ValueError(f"max_drop must be a share from 0 to 1, got {self.max_drop}; 0.01 is one point")

    def __call__(
        self,
        model: Classifier,
        train: Samples,
        cases: Samples,
        *,
        validation: Samples,
        monitor: Monitor | None = None,
        generator: torch.Generator,
    ) -> Retrained:
        """Retrain a model; it stays as it is, and so does torch's own random state.

        Args:
            model: where to start from.
            train: labelled training data.
            cases: labelled cases, for instance ``suite.samples()``; none for a control that sees clean data alone.
            validation: labelled, with no input of the above: it chooses the epoch.
            monitor: smaller is better; the error on the validation samples unless given.
            generator: shuffles the batches and seeds dropout; the same one gives the same weights, bit for bit.
        """
        _check_data(model, train, cases, validation)
        before = model.accuracy(validation)
        floor = before - self.max_drop - 1e-9  # of rounding
        data = Samples.concat([train, cases.to(train.x.device)]) if len(cases) else train
        history: list[FinetuneEpoch] = []
        best, reason = model, ""
        try:
            with closing(self._epochs(model, data, history, generator)) as epochs:
                for loss, candidate in epochs:
                    accuracy = _finite_accuracy(candidate, validation, len(history) + 1)
                    value = 1 - accuracy if monitor is None else _number(monitor(candidate))
                    history.append(FinetuneEpoch(epoch=len(history) + 1, loss=loss, accuracy=accuracy, monitor=value))
                    if _best(history, floor) is history[-1]:
                        best = candidate
        except _Diverged as error:
            best, reason = model, f"{error}, so the original weights were kept; try a lower learning_rate"
        chosen = None if reason else _best(history, floor)
        record = FinetuneRecord(
            best_epoch=chosen.epoch if chosen else 0,
            reason=reason or _reason(chosen, history, floor, before, self.max_drop),
            n_train=len(train),
            n_cases=len(cases),
            accuracy_before=before,
            history=tuple(history),
        )
        return Retrained(model=best, record=record)

    def _epochs(
        self, model: Classifier, data: Samples, history: Sequence[FinetuneEpoch], generator: torch.Generator
    ) -> Generator[tuple[float, Classifier]]:
        """After each epoch its mean loss and the model as it then is; the caller adds to ``history`` in between."""
        learner = _laid_out(model.unwrap(), channels_last=model.channels_last)
        optimizer = self._optimizer(learner)
        steps = math.ceil(len(data) / self.batch_size)

        def logits(x: Tensor) -> Tensor:
            z = model.normalise(x.to(model.device))
            last = model.channels_last and z.ndim == 4
            out: Tensor = learner(z.contiguous(memory_format=torch.channels_last) if last else z)
            return out

        with global_streams(generator), training_bar(self.progress, epochs=self.epochs, steps=steps) as show:
            for epoch in range(1, self.epochs + 1):
                if self.decay_after is not None and epoch == self.decay_after + 1:
                    _decay(optimizer)
                learner.train()
                accuracies, total = [e.accuracy for e in history], 0.0
                for x, y in shuffled_batches(data, steps, generator=generator):
                    loss = float(descend(optimizer, logits, x, y))  # (1)
                    if not math.isfinite(loss):
                        raise _Diverged(f"the loss became {loss} in epoch {epoch}")
                    show(accuracies, loss, 1)
                    total += loss * len(x)
                loss = total / len(data)
                yield loss, model.rewrap(_laid_out(copy_module(learner).eval(), channels_last=False))
                show([e.accuracy for e in history], loss, 0)

    def _optimizer(self, learner: nn.Module) -> torch.optim.Optimizer:
        trainable = [p for p in learner.parameters() if p.requires_grad]
        if self.optimiser == "sgd":
            return torch.optim.SGD(trainable, lr=self.learning_rate, momentum=0.9, fused=True)
        return torch.optim.Adam(trainable, lr=self.learning_rate, fused=True)


class _Diverged(Exception):
    """Training went where no number is."""


def _laid_out(module: nn.Module, *, channels_last: bool) -> nn.Module:
    """The module with the weights of its convolutions in the order that runs fastest, or in torch's usual one."""
    layout = torch.channels_last if channels_last else torch.contiguous_format
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            part.to(memory_format=layout)  # type: ignore[call-overload]
    return module


def _decay(optimizer: torch.optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        group["lr"] *= 0.1


def _best(history: Sequence[FinetuneEpoch], floor: float) -> FinetuneEpoch | None:
    """The first epoch that no other beats among those that are accurate enough."""
    accurate = [e for e in history if e.accuracy >= floor]
    return min(accurate, key=lambda e: (e.monitor, -e.accuracy), default=None)


def _reason(
    chosen: FinetuneEpoch | None, history: Sequence[FinetuneEpoch], floor: float, before: float, max_drop: float
) -> str:
    within = f"clean validation accuracy at most {max_drop} below the original {before:.4f}"
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
        raise _Diverged(f"after epoch {epoch} {error}") from None


def _number(value: float) -> float:
    if math.isnan(value):
        raise ValueError("the monitor must return a number, got NaN; smaller is better")
    return float(value)


def _check_data(model: Classifier, train: Samples, cases: Samples, validation: Samples) -> None:
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
        if shared := int(torch.isin(validation.ids, roles[name].ids).sum()):
            raise ValueError(
                f"validation must hold no input that is learned from, got {shared} of {len(validation)} that are in "
                f"{name} too; split by id, with Samples.split"
            )
