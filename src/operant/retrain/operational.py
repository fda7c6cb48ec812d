"""Fine-tuning that pays where the system is used: cases drawn by operational weight, the epoch chosen by pmi."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from operant.data import Samples
from operant.model import Classifier, copy_module
from operant.retrain._checkpoint import Checkpoint, belonging
from operant.retrain._loop import FinetuneEpoch, Learner, average_in, check_training, passes
from operant.retrain._losses import INNER, Batch, adversarial_loss, consistent_loss, plain_loss
from operant.retrain._sampling import Rows, chances_of
from operant.retrain.finetune import (
    FinetuneRecord,
    Retrained,
    Told,
    check_apart,
    check_data,
    floor_of,
    number,
    reason_of,
    watch,
)
from operant.retrain.monitor import FieldMonitor
from operant.types import Monitor


@dataclass(frozen=True, kw_only=True)
class OperationalEpoch(FinetuneEpoch):
    """One pass, and whether its weights were the ones to keep when it ended."""

    kept: bool
    why: str


@dataclass(frozen=True, kw_only=True)
class OperationalRecord(FinetuneRecord):
    """How an operational fine-tuning went.

    Attributes:
        monitor_before: what the monitor said of the original model; None if it was not asked.
        train_rows, case_rows: how many rows of each kind an epoch learns from.
        effective_cases: how many equally likely cases would be as varied as those drawn, 1 / Σ p².
        stopped_early: whether epochs were left out because the monitor no longer fell.
    """

    history: tuple[OperationalEpoch, ...]
    monitor_before: float | None
    train_rows: int
    case_rows: int
    effective_cases: float
    stopped_early: bool

    def __str__(self) -> str:
        before = "" if self.monitor_before is None else f" The monitor was {self.monitor_before:.4g} before."
        return (
            f"{len(self.history)} epochs, each of {self.train_rows} training rows and {self.case_rows} draws from "
            f"{self.n_cases} cases (as varied as {self.effective_cases:.0f} equal ones).{before} "
            f"{self.reason[:1].upper()}{self.reason[1:]}."
        )


@dataclass(frozen=True, kw_only=True)
class Repaired(Retrained):
    """A model retrained for its field, and how it came about."""

    record: OperationalRecord


@dataclass(frozen=True, kw_only=True)
class OperationalFinetune:
    """Train on from a model's weights with training data and cases, the cases drawn by operational weight.

        minimise  E J(f(x), y) + consistency · E KL(f(x) ‖ f(x'))                           (1)
        a row is case i with probability case_share · p_i,
        p_i = min(c w_i, cap / n)  with c such that Σ p_i = 1                               (2)
        rate(t) = learning_rate · t / a              up to step a = slow_start · T          (3)
                  learning_rate · decay_to^((t - a) / (T - a))  from there to step T

    J is the cross-entropy. Cases are drawn, not scaled: weights on the loss fade as a network learns to separate its
    data. Over an epoch each case is met as often as it is expected to be, rounded down or up. The pairs (x, x') of (1)
    are seed and case; or, with an inner loop, every row and its perturbed copy. An inner loop without ``consistency``
    puts J(f(x'), y) in place of J(f(x), y).

    The epoch of the lowest monitor is kept, among those whose clean accuracy on the validation samples fell no more
    than ``max_drop`` below the original model's. If there is none, or none that the monitor puts below the original,
    or the loss stops being finite, the original weights stay. With equal weights and ``case_share=None, slow_start=0,
    decay_to=1, patience=None, must_improve=False`` this is `Finetune`, bit for bit.

    The inner loop climbs J also where the pairs are compared by KL; TRADES climbs KL there. One gradient serves both.

    Args:
        monitor: smaller is better, for instance `brier_monitor`; the error on the validation samples unless given. It
            chooses, so what is reported must come from inputs that it has not seen.
        epochs: at most.
        batch_size: rows a step, at most.
        learning_rate: the highest, see (3).
        optimiser: ``"adam"``, or ``"sgd"`` with momentum 0.9.
        case_share: share of the rows that are cases, on average over batches; None for each case once an epoch, on
            average. With 0 cases are not learned from: a control.
        steps: of an epoch; as many as it takes to meet every training input once unless given. Then training inputs
            are drawn too, none again before all others had their turn.
        cap: no case is drawn more often than this many times the mean.
        slow_start, decay_to: see (3); 0 and 1 for a constant rate.
        consistency: how much it counts that pairs are answered alike.
        inner: ``"none"``; or one step up the gradient from a random point near each row: ``"rs-fgsm"`` in the ball of
            ``radius``, or ``"n-fgsm"`` from stronger noise and not brought back into the ball.
        radius: of the inner loop, in input units.
        ema: if above 0, what is judged and kept is the running average of the weights, ``ema · average + (1 - ema) ·
            weights`` after each step, which starts from the original ones.
        patience: stop after this many epochs without a better one; None to run all.
        max_drop: how much clean validation accuracy may be lost.
        must_improve: keep the original weights unless the monitor falls below what it says of them.
        progress: show a bar where there is a terminal to show it on.

    References:
        | What is the Effect of Importance Weighting in Deep Learning? (Byrd and Lipton, 2019)
        | https://arxiv.org/abs/1812.03372
        | A Simple Fine-tuning Is All You Need: Towards Robust Deep Learning Via Adversarial Fine-tuning (Jeddi et al.)
        | https://arxiv.org/abs/2012.13628
        | Theoretically Principled Trade-off between Robustness and Accuracy (Zhang et al., 2019)
        | https://arxiv.org/abs/1901.08573
        | Fast is better than free: Revisiting adversarial training (Wong et al., 2020)
        | https://arxiv.org/abs/2001.03994
        | Make Some Noise: Reliable and Efficient Single-Step Adversarial Training (de Jorge et al., 2022)
        | https://arxiv.org/abs/2202.01181
    """

    monitor: Monitor | None = None
    epochs: int = 10
    batch_size: int = 64
    learning_rate: float = 1e-3
    optimiser: str = "adam"
    case_share: float | None = 0.25
    steps: int | None = None
    cap: float = 10.0
    slow_start: float = 0.2
    decay_to: float = 0.01
    consistency: float = 0.0
    inner: str = "none"
    radius: float | None = None
    ema: float = 0.0
    patience: int | None = 3
    max_drop: float = 0.01
    must_improve: bool = True
    progress: bool = True

    def __post_init__(self) -> None:
        check_training(self)
        _check_sampling(self.case_share, self.steps, self.cap)
        _check_schedule(self.slow_start, self.decay_to, self.patience)
        _check_loss(self.consistency, self.inner, self.radius, self.ema)

    def __call__(
        self,
        model: Classifier,
        train: Samples,
        cases: Samples,
        *,
        validation: Samples,
        weights: Tensor | None = None,
        train_weights: Tensor | None = None,
        seeds: Tensor | None = None,
        generator: torch.Generator,
        checkpoint: str | Path | None = None,
        told: Told | None = None,
    ) -> Repaired:
        """Retrain a model; it stays as it is, and so does torch's own random state.

        Args:
            model: where to start from.
            train: labelled training data.
            cases: labelled cases, for instance ``suite.samples()``.
            validation: labelled clean data, with no input of the above: the guard on clean accuracy.
            weights: one for each case, mass times naturalness; equal unless given.
            train_weights: one for each training input, if those too are to be drawn by how often the field meets
                their like; equal unless given.
            seeds: what each case was made from, row by row (``suite.x0``), for ``consistency`` without an inner loop.
            generator: draws and shuffles the rows and seeds dropout; the same one gives the same weights, bit for bit.
            checkpoint: a file for the state after each finished epoch. Called again with the same arguments after a
                kill, retraining goes on from there and ends with the same weights and record, bit for bit, if the
                monitor says the same of the same model. The file stays: delete it once the model is saved.
            told: is told of each finished epoch.
        """
        self._check(model, train, cases, validation, seeds)
        rows = self._rows(train, cases, seeds, weights, train_weights)
        before = model.accuracy(validation)
        start, floor = self._start(model, before), floor_of(before, self.max_drop)
        learner = Learner(model, optimiser=self.optimiser, learning_rate=self.learning_rate)
        saved = Checkpoint(
            checkpoint,
            lambda: belonging(
                self, model, generator, *rows.chances, rows.seeds, train=train, cases=cases, validation=validation
            ),
            learner=learner,
            average=copy_module(learner.module) if self.ema else None,
            generator=generator,
        )
        kept, problem = watch(
            model,
            self._epochs(saved, rows),
            saved.history,
            validation=validation,
            monitor=self.monitor,
            floor=floor,
            below=math.inf if start is None else start,
            patience=self.patience,
            kept=saved.kept,
            finished=saved.write,
            told=told,
        )
        history = _told(saved.history, floor, start)
        chosen = None if problem else next((e for e in reversed(history) if e.kept), None)
        stopped = not problem and len(history) < self.epochs
        record = OperationalRecord(
            best_epoch=chosen.epoch if chosen else 0,
            reason=problem or _reason(chosen, history, floor, before, self.max_drop, start, stopped),
            n_train=len(train),
            n_cases=len(cases),
            accuracy_before=before,
            history=history,
            monitor_before=start,
            train_rows=rows.counts[0],
            case_rows=rows.counts[1],
            effective_cases=1 / float(rows.chances[1].square().sum()) if len(cases) else 0.0,
            stopped_early=stopped,
        )
        return Repaired(model=kept, record=record)

    def _start(self, model: Classifier, before: float) -> float | None:
        """What the monitor says of the original model, if that matters."""
        if not self.must_improve:
            return None
        return 1 - before if self.monitor is None else number(self.monitor(model))

    def _rows(
        self,
        train: Samples,
        cases: Samples,
        seeds: Tensor | None,
        weights: Tensor | None,
        train_weights: Tensor | None,
    ) -> Rows:
        """What an epoch learns from, and how many of each kind."""
        share = len(cases) / (len(train) + len(cases)) if self.case_share is None else self.case_share
        if self.steps is not None:
            total = self.steps * self.batch_size
            counts = (total - round(total * share), round(total * share))
        elif self.case_share is None:
            counts = (len(train), len(cases))
        else:
            counts = (len(train), round(len(train) * share / (1 - share)))
        return Rows(
            data=Samples.concat([train, cases.to(train.x.device)]) if len(cases) else train,
            seeds=seeds if self.consistency and self.inner == "none" else None,
            chances=(chances_of(train, train_weights, self.cap, "train_weights"), chances_of(cases, weights, self.cap)),
            counts=counts,
        )

    def _epochs(self, saved: Checkpoint, rows: Rows) -> Generator[tuple[float, Classifier]]:
        """After each epoch its mean loss and the model as it then is; the caller adds to the history in between."""
        learner, average, generator = saved.learner, saved.average, saved.generator
        steps = math.ceil(sum(rows.counts) / self.batch_size)

        def step(made: int, some: Tensor) -> float:
            loss = self._loss(learner, rows.batch(some), generator)
            told = learner.descend(loss, rate=self._rate(made + 1, self.epochs * steps))
            if average is not None:
                average_in(average, learner.module, self.ema)
            return told

        return passes(
            learner,
            order=lambda: rows.order(generator),
            step=step,
            candidate=lambda: learner.classifier(average),
            accuracies=lambda: [e.accuracy for e in saved.history],
            epochs=self.epochs,
            steps=steps,
            progress=self.progress,
            generator=generator,
            begin=saved.resume_streams,
        )

    def _loss(self, learner: Learner, batch: Batch, generator: torch.Generator) -> Tensor:
        """(1) of one batch."""
        if self.inner != "none":
            return adversarial_loss(
                learner,
                batch,
                inner=self.inner,
                radius=self.radius or 0.0,
                consistency=self.consistency,
                generator=generator,
            )
        if len(batch.seeds):
            return consistent_loss(learner, batch, consistency=self.consistency)
        return plain_loss(learner, batch)

    def _rate(self, step: int, steps: int) -> float:
        """The learning rate of a step, counted from 1."""
        rise = self.slow_start * steps
        if step < rise:
            return self.learning_rate * (step / rise)  # (3)
        return self.learning_rate * math.pow(self.decay_to, (step - rise) / (steps - rise))

    def _check(
        self, model: Classifier, train: Samples, cases: Samples, validation: Samples, seeds: Tensor | None
    ) -> None:
        if len(cases) == 0 and self.case_share != 0:
            raise ValueError("there are no cases to learn from; give some, or set case_share=0 for a control")
        check_data(model, train=train, cases=cases, validation=validation)
        if isinstance(self.monitor, FieldMonitor):
            for name, part in (("train", train), ("cases", cases)):
                check_apart(self.monitor.validation, part, judge="the monitor", learned=name)
        if self.consistency and self.inner == "none" and len(cases):
            if seeds is None:
                raise ValueError("consistency compares each case with its seed; give seeds=suite.x0, or an inner loop")
            if seeds.shape != cases.x.shape:
                raise ValueError(
                    f"seeds must hold one input for each case, of shape {tuple(cases.x.shape)}, got "
                    f"{tuple(seeds.shape)}; give suite.x0"
                )
            model.check_inputs(seeds)


def _told(history: Sequence[FinetuneEpoch], floor: float, start: float | None) -> tuple[OperationalEpoch, ...]:
    """The history with what was decided after each epoch, and why."""
    told: list[OperationalEpoch] = []
    best: FinetuneEpoch | None = None
    for e in history:
        if e.accuracy < floor:
            kept, why = False, f"clean accuracy {e.accuracy:.4f} is below the {floor:.4f} that must be kept"
        elif start is not None and not e.monitor < start:
            kept, why = False, f"the monitor ({e.monitor:.4g}) is not below the original's {start:.4g}"
        elif best is not None and (e.monitor, -e.accuracy) >= (best.monitor, -best.accuracy):
            kept, why = False, f"the monitor ({e.monitor:.4g}) is not below epoch {best.epoch}'s {best.monitor:.4g}"
        else:
            kept, why, best = True, f"the lowest monitor so far ({e.monitor:.4g})", e
        told.append(
            OperationalEpoch(epoch=e.epoch, loss=e.loss, accuracy=e.accuracy, monitor=e.monitor, kept=kept, why=why)
        )
    return tuple(told)


def _reason(
    chosen: FinetuneEpoch | None,
    history: Sequence[FinetuneEpoch],
    floor: float,
    before: float,
    max_drop: float,
    start: float | None,
    stopped: bool,
) -> str:
    early = f"; stopped after epoch {len(history)}, when the monitor no longer fell" if stopped else ""
    if chosen is None and start is not None and any(e.accuracy >= floor for e in history):
        lowest = min(e.monitor for e in history if e.accuracy >= floor)
        return (
            f"no epoch brought the monitor below the original's {start:.4g} (the lowest was {lowest:.4g}), so the "
            f"original weights were kept{early}"
        )
    return reason_of(chosen, history, floor, before, max_drop) + early


def _check_sampling(case_share: float | None, steps: int | None, cap: float) -> None:
    if case_share is not None and not 0 <= case_share < 1:
        raise ValueError(f"case_share must be a share from 0 to below 1, got {case_share}; 0.25 is a quarter")
    if steps is not None and steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    if not cap >= 1:
        raise ValueError(f"cap must be at least 1, got {cap}; at 1 all cases are drawn equally often")


def _check_schedule(slow_start: float, decay_to: float, patience: int | None) -> None:
    if not 0 <= slow_start < 1:
        raise ValueError(f"slow_start must be a share from 0 to below 1, got {slow_start}")
    if not 0 < decay_to <= 1:
        raise ValueError(f"decay_to must be above 0 and at most 1, got {decay_to}; 1 keeps the rate")
    if patience is not None and patience < 1:
        raise ValueError(f"patience must be at least 1 epoch, got {patience}; None runs all")


def _check_loss(consistency: float, inner: str, radius: float | None, ema: float) -> None:
    if not 0 <= consistency < math.inf:
        raise ValueError(f"consistency must be 0 or more, got {consistency}")
    if inner != "none" and inner not in INNER:
        raise ValueError(f'inner must be "none", "rs-fgsm" or "n-fgsm", got {inner!r}')
    if inner != "none" and not (radius is not None and 0 < radius < math.inf):
        raise ValueError(f"the inner loop needs a positive radius, got {radius}")
    if inner == "none" and radius is not None:
        raise ValueError(f'radius={radius} only takes effect with an inner loop; set inner, for instance "rs-fgsm"')
    if not 0 <= ema < 1:
        raise ValueError(f"ema must be from 0 to below 1, got {ema}; 0 is no averaging")
