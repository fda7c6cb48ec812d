"""The training loop of every arm: a stated number of steps on rows from several sources, with checkpoints."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from operant.activity import activity
from operant.model import Classifier, copy_module
from operant.retrain._checkpoint import Checkpoint, options_of
from operant.retrain.rows import RowSource
from operant.retrain.training import TrainableModel, TrainingDiverged, average_in
from operant.retrain.unlabelled import UnlabelledRows
from operant.rng import global_streams
from operant.validation import check_above_to, check_at_least, check_from_below, check_one_of, check_positive

SEGMENT = 20  # steps between two checkpoints, at most
SEGMENTS = 15  # of a training, at least, so that shares of short ones can be had too
MAX_BYTES = 2**28  # of rows that are drawn at once
BatchNorm = nn.modules.batchnorm._BatchNorm


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How long and how fast an arm trains.

        rate(t) = learning_rate · t / a                                up to step a = warm_up · steps        (1)
                  learning_rate · decay_to^((t - a) / (steps - a))     from there to the last step
        averaged ← average · averaged + (1 - average) · weights        after each step                       (2)

    The averaged weights are the result, so that the last steps do not decide.

    Args:
        steps: in all.
        learning_rate: the highest (default: found by a short range test on the network, `find_rate`).
        optimiser: ``"adam"``, or ``"sgd"`` with momentum 0.9.
        warm_up, decay_to, average: see (1) and (2).
        smoothing: of the labels.
    """

    steps: int = 400
    learning_rate: float | None = None
    optimiser: str = "adam"
    warm_up: float = 0.2
    decay_to: float = 0.02
    average: float = 0.98
    smoothing: float = 0.05

    def __post_init__(self) -> None:
        check_at_least(1, steps=self.steps)
        check_one_of(("adam", "sgd"), optimiser=self.optimiser)
        check_from_below(0, 1, warm_up=self.warm_up, average=self.average, smoothing=self.smoothing)
        check_above_to(0, 1, decay_to=self.decay_to, advice="1 keeps the rate")
        if self.learning_rate is not None:
            check_positive(learning_rate=self.learning_rate)

    def rate(self, step: int, highest: float) -> float:
        """The learning rate of a step, counted from 1."""
        rise = self.warm_up * self.steps
        if step < rise:
            return highest * step / rise  # (1)
        return highest * math.pow(self.decay_to, (step - rise) / max(self.steps - rise, 1))


@dataclass(frozen=True, kw_only=True)
class TrainingSegment:
    """Some finished steps and their mean loss."""

    epoch: int  # number of the segment, counted from 1
    loss: float
    kept: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainingRows:
    """What an arm learns from: labelled rows of several sources, and unlabelled rows.

    Args:
        sources: labelled rows; all rows of a batch count the same.
        unlabelled: field inputs without labels, and what is learned from them (default: nothing).
    """

    sources: Sequence[RowSource]
    unlabelled: UnlabelledRows | None = None

    @property
    def rows(self) -> int:
        """Rows per step."""
        return sum(source.rows for source in self.sources) + (0 if self.unlabelled is None else self.unlabelled.rows)

    def batches(self, steps: int, *, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Inputs, labels and unlabelled inputs of each step; conditions are drawn for all steps at once."""
        parts = [source.draw(steps, generator=generator) for source in self.sources if source.rows]
        bare = None if self.unlabelled is None else self.unlabelled.draw(steps, generator=generator)
        for t in range(steps):
            xs, ys = zip(*((_part(x, t, steps), _part(y, t, steps)) for x, y in parts), strict=True)
            yield torch.cat(xs), torch.cat(ys), xs[0][:0] if bare is None else _part(bare, t, steps)


def _part(values: Tensor, t: int, steps: int) -> Tensor:
    n = len(values) // steps
    return values[t * n : (t + 1) * n]


def train_on_rows(
    model: Classifier,
    rows: TrainingRows,
    schedule: Schedule,
    *,
    generator: torch.Generator,
    until: float = 1.0,
    checkpoint: str | Path | None = None,
    identity: Mapping[str, object] | None = None,
) -> Classifier:
    """The model after training, with averaged weights.

    Args:
        model: whose weights are trained; it is not changed.
        rows: to learn from.
        schedule: with a learning rate; without one, `find_rate` is called first.
        generator: draws rows and conditions and seeds dropout.
        until: share of the steps after which to stop, rounded down to whole segments. Called again with a larger share
            and the same checkpoint, training resumes there.
        checkpoint: file for the state after every few steps. Called again with the same arguments, an interrupted
            training resumes after the last of them, with the same result.
        identity: what else identifies the training in its checkpoint.

    Raises:
        TrainingDiverged: if the loss is no longer finite.
    """
    model.prepare(rows.sources[0].samples.x)
    check_trainable(model)
    trainable = TrainableModel(model, optimiser=schedule.optimiser, learning_rate=schedule.learning_rate or 1.0)
    named = {**options_of(schedule), **(identity or {}), "model": model, "generator": generator.get_state()}
    highest = schedule.learning_rate or find_rate(model, rows, schedule, generator=generator)
    average = copy_module(trainable.module)  # a checkpoint restores the generator, so the rate is found before it
    saved = Checkpoint(checkpoint, named, TrainingSegment, trainable=trainable, average=average, generator=generator)
    _Loop(rows=rows, schedule=schedule, highest=highest, saved=saved).run(until)
    return trainable.classifier(average)


def check_trainable(model: Classifier) -> None:
    """Raise ValueError if nothing of the model can be trained."""
    if not any(p.requires_grad for p in model.unwrap().parameters()):
        raise ValueError("the model has no trainable parameters; give a network whose weights can be trained")


@dataclass(frozen=True, kw_only=True)
class _Loop:
    rows: TrainingRows
    schedule: Schedule
    highest: float  # learning rate
    saved: Checkpoint[TrainingSegment]
    segment: int = field(init=False)

    def __post_init__(self) -> None:
        one = self.rows.sources[0].samples.x[:1]
        step = max(1, self.rows.rows * one.numel() * one.element_size())
        object.__setattr__(self, "segment", max(1, min(SEGMENT, self.schedule.steps // SEGMENTS, MAX_BYTES // step)))

    def run(self, until: float) -> None:
        history, steps = self.saved.history, self.schedule.steps
        whole = math.ceil(steps / self.segment)
        last = whole if until >= 1 else max(1, math.floor(until * steps / self.segment + 1e-9))
        if len(history) >= last:
            return
        with global_streams(self.saved.generator), activity("training", steps, unit="steps") as work:
            self.saved.resume_streams()
            work.reach(len(history) * self.segment)
            training_mode(self.saved.trainable.module)
            for number in range(len(history) + 1, last + 1):
                first = (number - 1) * self.segment
                loss = self._segment(first, min(self.segment, steps - first))
                history.append(TrainingSegment(epoch=number, loss=loss))
                self.saved.write(None)
                work.advance(min(self.segment, steps - first))

    def _segment(self, first: int, steps: int) -> float:
        """Take some steps; the mean loss."""
        total = 0.0
        for t, batch in enumerate(self.rows.batches(steps, generator=self.saved.generator), first + 1):
            total += self._step(*batch, self.schedule.rate(t, self.highest))
        if not math.isfinite(total):
            raise TrainingDiverged(f"the loss became {total} before step {first + steps}")
        return total / steps

    def _step(self, x: Tensor, y: Tensor, bare: Tensor, rate: float) -> float:
        trainable, average = self.saved.trainable, self.saved.average
        assert average is not None
        loss = batch_loss(self.rows, trainable, average, x, y, bare, self.schedule, generator=self.saved.generator)
        value = trainable.descend(loss, rate=rate)
        average_in(average, trainable.module, self.schedule.average)  # (2)
        return value


def batch_loss(
    rows: TrainingRows,
    trainable: TrainableModel,
    average: nn.Module,
    x: Tensor,
    y: Tensor,
    bare: Tensor,
    schedule: Schedule,
    *,
    generator: torch.Generator,
) -> Tensor:
    """Cross-entropy of the labelled rows, and the term of the unlabelled ones."""
    if rows.unlabelled is None:
        z = trainable.logits(x)
        return cross_entropy(z, y.to(z.device), label_smoothing=schedule.smoothing)
    targets = rows.unlabelled.targets(trainable, average, bare)
    seen = rows.unlabelled.changed(bare, generator=generator)
    z, z_bare = trainable.logits(torch.cat([x, seen])).split([len(x), len(seen)])
    labelled = cross_entropy(z, y.to(z.device), label_smoothing=schedule.smoothing)
    return labelled + rows.unlabelled.loss(z_bare, targets) * len(seen) / len(x)


def training_mode(module: nn.Module) -> None:
    """Training mode, but for batch norm whose weights are frozen: its statistics stay frozen too."""
    module.train()
    for part in module.modules():
        own = list(part.parameters(recurse=False))
        if isinstance(part, BatchNorm) and own and not any(p.requires_grad for p in own):
            part.eval()


# The learning rate ----------------------------------------------------------------------------------------------------

RATES = {"adam": (1e-5, 0.1), "sgd": (1e-4, 1.0)}  # lowest and highest rate that are tried
TRIAL_STEPS = 40
SETTLED = 10  # steps after which the smoothed loss means something
SMOOTH = 0.9
TOO_HIGH = 1.1  # times the lowest loss
MARGIN = 15.0  # of the result to the rate that is too high


def find_rate(model: Classifier, rows: TrainingRows, schedule: Schedule, *, generator: torch.Generator) -> float:
    """A learning rate for this network and these rows, by a short range test.

    The rate rises exponentially from step to step while the smoothed loss is recorded. Once the loss is a tenth above
    its lowest value the rate is too high; a fifteenth of that rate is returned.

    References:
        | Cyclical Learning Rates for Training Neural Networks (Smith, 2017), https://arxiv.org/abs/1506.01186
    """
    low, high = RATES[schedule.optimiser]
    trainable = TrainableModel(model, optimiser=schedule.optimiser, learning_rate=low)
    training_mode(trainable.module)
    smooth, total, lowest, rate = 0.0, 0.0, math.inf, low
    with global_streams(generator):
        for t, (x, y, _) in enumerate(rows.batches(TRIAL_STEPS, generator=generator)):
            rate = low * (high / low) ** (t / (TRIAL_STEPS - 1))
            z = trainable.logits(x)
            loss = trainable.descend(cross_entropy(z, y.to(z.device), label_smoothing=schedule.smoothing), rate=rate)
            smooth, total = SMOOTH * smooth + (1 - SMOOTH) * loss, SMOOTH * total + (1 - SMOOTH)
            if t >= SETTLED and not smooth / total <= TOO_HIGH * lowest:  # also if it is NaN
                break
            lowest = min(lowest, smooth / total) if t >= SETTLED else math.inf
    return rate / MARGIN
