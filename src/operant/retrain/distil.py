"""Defensive distillation: a student learns from a teacher's soft labels."""

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from operant.data import Samples
from operant.model import Classifier
from operant.retrain._run import TrainingRun, check_data
from operant.retrain._sampling import every_row
from operant.retrain.losses import TrainingBatch
from operant.retrain.retrainer import FinetuneRecord, OnEpoch, Retrained
from operant.retrain.training import TrainableModel, TrainingOptions
from operant.types import Monitor
from operant.validation import check_positive


@dataclass(frozen=True, kw_only=True)
class Distilled(Retrained):
    """A distilled model, its teacher, and the records of both.

    ``model`` and ``record`` are the student's. ``teacher_record`` is None if the caller provided the teacher.
    """

    teacher: Classifier = field(repr=False)
    teacher_record: FinetuneRecord | None


@dataclass(frozen=True, kw_only=True)
class DefensiveDistillation(TrainingOptions):
    """Train a teacher at a high temperature, then a student at the same temperature on the teacher's probabilities.

        teacher:  minimise  1/|D ∪ T| Σ J(f(x) / T, y)                         (1)
        student:  minimise  1/|D ∪ T| Σ J(g(x) / T, softmax(f(x) / T))         (2)

    with J the cross-entropy and f, g logits. At temperature 1, as deployed, both are more confident than any label, and
    gradients almost vanish. The kept epoch of each is chosen as in `Finetune`.

    Args:
        temperature: T; the paper has 20, and 100 at most.
        epochs: of the teacher, and of the student.
        batch_size, learning_rate, optimiser, max_drop, progress: see `TrainingOptions`.

    References:
        | Distillation as a Defense to Adversarial Perturbations against Deep Neural Networks (Papernot et al., 2016)
        | https://arxiv.org/abs/1511.04508
    """

    temperature: float = 20.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(temperature=self.temperature)

    def __call__(
        self,
        model: Classifier,
        train: Samples,
        cases: Samples,
        *,
        validation: Samples,
        start: Classifier | None = None,
        teacher: Classifier | None = None,
        monitor: Monitor | None = None,
        max_drop: float | None = None,
        generator: torch.Generator,
        checkpoint: str | Path | None = None,
        on_epoch: OnEpoch | None = None,
    ) -> Distilled:
        """Distil a model; arguments are those of `CaseRetrainer`, and:

        Args:
            start: network whose weights both train (default: the model's). The student must not start with the
                teacher's final weights, or there is nothing to learn.
            teacher: one that was already trained at this temperature (default: train one).
            checkpoint: the teacher's state is in a second file, with ``.teacher`` appended to the name.
            on_epoch: called with the teacher's epochs, then with the student's.
        """
        check_data(model, train=train, cases=cases, validation=validation, monitor=monitor)
        rows, taught = every_row(train, cases), None

        def stage(targets: Tensor) -> partial[Retrained]:
            loss = _TemperedLoss(temperature=self.temperature, targets=targets)
            return partial(
                TrainingRun(options=self, loss=loss, rate=lambda step, steps: self.learning_rate),
                model,
                rows,
                start=start,
                validation=validation,
                monitor=monitor,
                max_drop=max_drop,
                generator=generator,
                on_epoch=on_epoch,
            )

        if teacher is None:
            beside = None if checkpoint is None else Path(checkpoint).with_name(Path(checkpoint).name + ".teacher")
            taught = stage(rows.data.labels)(checkpoint=beside)  # (1)
            teacher = taught.model
        soft = (teacher.batched_logits(rows.data.x) / self.temperature).softmax(1)
        student = stage(soft)(checkpoint=checkpoint, also={"teacher": teacher})  # (2)
        record = taught.record if taught else None
        return Distilled(model=student.model, teacher=teacher, record=student.record, teacher_record=record)


@dataclass(frozen=True, kw_only=True, eq=False)
class _TemperedLoss:
    """Cross-entropy of ``logits / temperature`` with one target per row: a class, or probabilities."""

    temperature: float
    targets: Tensor

    def __call__(self, model: TrainableModel, batch: TrainingBatch, *, generator: torch.Generator) -> Tensor:
        z, targets = model.logits(batch.x) / self.temperature, self.targets[batch.rows]
        return cross_entropy(z, targets.to(z.device) if targets.ndim == 1 else targets.to(z))
