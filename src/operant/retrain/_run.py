"""A whole retraining with any loss: epochs, choice of the best one, checkpoints and the record."""

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from operant.data import Samples
from operant.model import Classifier, copy_module
from operant.networks.training import announced_training
from operant.retrain._checkpoint import Checkpoint, options_of
from operant.retrain._judge import EpochJudge, best_of, monitor_value
from operant.retrain._sampling import EpochRows
from operant.retrain.losses import Loss, ModelCheck, TrainingBatch
from operant.retrain.monitor import FieldMonitor
from operant.retrain.retrainer import FinetuneEpoch, FinetuneRecord, OnEpoch, Retrained
from operant.retrain.training import TrainableModel, TrainingDiverged, TrainingOptions, average_in
from operant.rng import global_streams
from operant.types import Monitor
from operant.validation import check_not_empty


@dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """Runs the epochs of a retrainer and returns the best model; the options are those of `OperationalFinetune`."""

    options: TrainingOptions
    loss: Loss
    rate: Callable[[int, int], float]  # of a step, from its number, counted from 1, and the total number of steps
    must_improve: bool = False
    patience: int | None = None
    ema: float = 0.0

    def __call__(
        self,
        model: Classifier,
        rows: EpochRows,
        *,
        start: Classifier | None = None,
        validation: Samples,
        monitor: Monitor | None,
        max_drop: float | None,
        generator: torch.Generator,
        checkpoint: str | Path | None,
        on_epoch: OnEpoch | None,
        also: Mapping[str, object] | None = None,
    ) -> Retrained:
        """Train from ``start`` if given; arguments are those of `CaseRetrainer`; ``also`` identifies a checkpoint."""
        options = self.options if max_drop is None else replace(self.options, max_drop=max_drop)
        begin = model if start is None else start
        begin.check(validation)
        begin.prepare(validation.x)
        if isinstance(self.loss, ModelCheck):
            self.loss.check(begin, rows.train.x)
        judge = self._judge(model, validation, monitor, options.max_drop)
        trainable = TrainableModel(begin, optimiser=options.optimiser, learning_rate=options.learning_rate)
        identity = {
            **options_of(options), "model": model, "start": start, "train": rows.train, "cases": rows.cases,
            "validation": validation,
            "weights or seeds": (*rows.chances, rows.seeds), "monitor": monitor, "generator": generator.get_state(),
            **(also or {}),
        }  # fmt: skip
        average = copy_module(trainable.module) if self.ema else None
        saved = Checkpoint(
            checkpoint, identity, FinetuneEpoch, trainable=trainable, average=average, generator=generator
        )
        kept, problem = self._train(saved, rows, judge, on_epoch)
        record = _record(rows, judge, saved.history, problem, epochs=options.epochs)
        return Retrained(model=model if kept is None else kept, record=record)

    def _judge(self, model: Classifier, validation: Samples, monitor: Monitor | None, max_drop: float) -> EpochJudge:
        accuracy = model.accuracy(validation)
        return EpochJudge(
            validation=validation,
            monitor=monitor,
            max_drop=max_drop,
            accuracy_before=accuracy,
            monitor_before=monitor_value(monitor, model, accuracy) if self.must_improve else None,
            patience=self.patience,
        )

    def _train(
        self, saved: Checkpoint[FinetuneEpoch], rows: EpochRows, judge: EpochJudge, on_epoch: OnEpoch | None
    ) -> tuple[Classifier | None, str]:
        """The best model, or None if no epoch is acceptable; and a message if training diverged."""
        history, kept = saved.history, saved.kept
        try:
            with closing(self._epochs(saved, rows)) as epochs:
                while not judge.impatient(history) and (done := next(epochs, None)):
                    loss, candidate = done
                    history.append(judge.judge(candidate, loss, history))
                    kept = candidate if history[-1].kept else kept
                    saved.write(kept)
                    if on_epoch is not None:
                        on_epoch(history[-1])
        except TrainingDiverged as error:
            return None, f"{error}, so the original weights were kept; try a lower learning_rate"
        return kept, ""

    def _epochs(self, saved: Checkpoint[FinetuneEpoch], rows: EpochRows) -> Generator[tuple[float, Classifier]]:
        """Yield the mean loss and the model to judge after each epoch that the checkpoint does not hold yet.

        Batches are of even size, so that batch norm never gets a last batch of one row.
        """
        epochs, shown = self.options.epochs, 0
        steps = math.ceil(sum(rows.counts) / self.options.batch_size)
        announced = announced_training(self.options.progress, epochs=epochs, steps=steps)
        with global_streams(saved.generator), announced as show:
            saved.resume_streams()
            for epoch in range(len(saved.history) + 1, epochs + 1):
                saved.trainable.module.train()
                before, total, order = _accuracies(saved), 0.0, rows.order(saved.generator)
                for number, some in enumerate(order.tensor_split(steps), start=(epoch - 1) * steps + 1):
                    loss = self._step(saved, rows.batch(some), self.rate(number, epochs * steps))
                    if not math.isfinite(loss):
                        raise TrainingDiverged(f"the loss became {loss} in epoch {epoch}")
                    show(before, loss, number - shown)
                    shown = number
                    total += loss * len(some)
                loss = total / len(order)
                yield loss, saved.trainable.classifier(saved.average)
                show(_accuracies(saved), loss, 0)

    def _step(self, saved: Checkpoint[FinetuneEpoch], batch: TrainingBatch, rate: float) -> float:
        """Train on a batch and return its loss."""
        loss = self.loss(saved.trainable, batch, generator=saved.generator)
        value = saved.trainable.descend(loss, rate=rate)
        if saved.average is not None:
            average_in(saved.average, saved.trainable.module, self.ema)
        return value


def _accuracies(saved: Checkpoint[FinetuneEpoch]) -> list[float]:
    return [epoch.accuracy for epoch in saved.history]


def _record(
    rows: EpochRows, judge: EpochJudge, history: Sequence[FinetuneEpoch], problem: str, *, epochs: int
) -> FinetuneRecord:
    best, stopped = best_of(history), not problem and len(history) < epochs
    early = f"; {judge.reason_to_stop(history)}" if stopped else ""
    return FinetuneRecord(
        best_epoch=best.epoch if best and not problem else 0,
        reason=problem or judge.reason(history) + early,
        n_train=len(rows.train),
        n_cases=len(rows.cases),
        accuracy_before=judge.accuracy_before,
        history=tuple(history),
        monitor_before=judge.monitor_before,
        train_rows=rows.counts[0],
        case_rows=rows.counts[1],
        effective_cases=rows.effective_cases,
        stopped_early=stopped,
        diverged=bool(problem),
    )


def check_data(
    model: Classifier, *, train: Samples, cases: Samples, validation: Samples, monitor: Monitor | None
) -> None:
    """Reject data that cannot be learned from, and validation or monitor inputs that are also learned from."""
    check_not_empty(train=train, advice="cases alone would make the model forget the rest")
    check_not_empty(validation=validation, advice="hold some back, for instance with train.split(...)")
    roles = {"train": train, "cases": cases, "validation": validation}
    shapes = {name: tuple(part.shape) for name, part in roles.items()}
    if len(set(shapes.values())) > 1:
        raise ValueError(f"inputs must have one shape, got {shapes}; resize them first")
    for part in roles.values():
        if len(part):
            model.check(part)
    for name in ("train", "cases"):
        _check_apart(validation, roles[name], judge="validation", learned=name)
        if isinstance(monitor, FieldMonitor):
            _check_apart(monitor.validation, roles[name], judge="the monitor", learned=name)


def _check_apart(judges: Samples, learned_from: Samples, *, judge: str, learned: str) -> None:
    if shared := int(torch.isin(judges.ids, learned_from.ids).sum()):
        got = f"{shared} of {len(judges)} that are in {learned} too"
        raise ValueError(f"{judge} must hold no input that is learned from, got {got}; split by id, with Samples.split")
