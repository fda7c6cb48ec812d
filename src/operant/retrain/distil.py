"""Learning from softer labels: label smoothing, and defensive distillation."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from operant.data import Samples
from operant.model import Classifier
from operant.retrain._loop import Learner, check_training
from operant.retrain.finetune import FinetuneRecord, Retrained, Told, check_data, learn
from operant.types import Monitor


def smooth_labels(y: Tensor, classes: int, share: float) -> Tensor:
    """Labels that leave a share of their weight to the other classes, in equal parts, ``(N, classes)``.

    >>> smooth_labels(torch.tensor([0, 2]), 3, 0.5)
    tensor([[0.5000, 0.2500, 0.2500],
            [0.2500, 0.2500, 0.5000]])
    """
    soft = torch.full((len(y), classes), share / (classes - 1), device=y.device)
    return soft.scatter_(1, y[:, None], 1 - share)


@dataclass(frozen=True, kw_only=True)
class LabelSmoothing:
    """Train on from a model's weights with labels that are not quite sure.

        minimise  1/|D| Σ J(f(x), y'),    y' = 1 - share for the label, share / (classes - 1) for every other        (1)

    with J the cross-entropy. Which epoch is kept, and when the original weights stay, is as in `Finetune`.

    Args:
        share: of the weight that the other classes get.
        epochs, batch_size, learning_rate, optimiser, max_drop, progress: as in `Finetune`.

    References:
        | Adversarial Perturbations of Deep Neural Networks (Warde-Farley and Goodfellow, 2016)
    """

    share: float = 0.1
    epochs: int = 10
    batch_size: int = 64
    learning_rate: float = 1e-3
    optimiser: str = "adam"
    max_drop: float = 0.01
    progress: bool = True

    def __post_init__(self) -> None:
        check_training(self)
        if not 0 <= self.share < 1:
            raise ValueError(f"share must be from 0 to below 1, got {self.share}; 0.1 is a tenth")

    def __call__(
        self,
        model: Classifier,
        train: Samples,
        *,
        validation: Samples,
        start: Classifier | None = None,
        monitor: Monitor | None = None,
        generator: torch.Generator,
        checkpoint: str | Path | None = None,
        told: Told | None = None,
    ) -> Retrained:
        """Retrain a model; it stays as it is, and so does torch's own random state.

        Args:
            model: what the result is compared with.
            train: labelled training data, cases among them or not.
            validation: labelled, with no input of the above: it chooses the epoch.
            start: a network to learn from scratch, for instance ``model.rewrap(initialise(LeNet5, ...))``; the model's
                own weights unless given.
            monitor, generator, checkpoint, told: as in `Finetune`.
        """
        roles = {"train": train, "cases": train[:0], "validation": validation}
        check_data(model, **roles)
        soft = smooth_labels(train.labels, model.classes(train.x), self.share)
        return learn(
            self,
            model,
            start=start,
            loss=lambda learner, rows: soft_loss(learner, train.x[rows], soft[rows]),  # (1)
            rows=len(train),
            roles=roles,
            monitor=monitor,
            generator=generator,
            checkpoint=checkpoint,
            told=told,
        )


@dataclass(frozen=True, kw_only=True)
class Distilled:
    """A distilled model, the teacher that it learned from, and how both came about.

    Attributes:
        model: the student.
        teacher: trained at the same temperature.
        record: of the student.
        teacher_record: of the teacher; None if it was given.
    """

    model: Classifier = field(repr=False)
    teacher: Classifier = field(repr=False)
    record: FinetuneRecord
    teacher_record: FinetuneRecord | None


@dataclass(frozen=True, kw_only=True)
class DefensiveDistillation:
    """A teacher learns at a high temperature, and a student, at the same one, what the teacher says.

        teacher:  minimise  1/|D| Σ J(f(x) / T, y)                         (1)
        student:  minimise  1/|D| Σ J(g(x) / T, softmax(f(x) / T))         (2)

    with J the cross-entropy and f, g logits. In use the temperature is 1, at which both are surer than any label, and
    gradients all but vanish. Which epoch is kept of each, and when the original weights stay, is as in `Finetune`.

    Args:
        temperature: T; the paper has 20, and 100 at most.
        epochs: of the teacher, and again of the student.
        batch_size, learning_rate, optimiser, max_drop, progress: as in `Finetune`.

    References:
        | Distillation as a Defense to Adversarial Perturbations against Deep Neural Networks (Papernot et al., 2016)
        | https://arxiv.org/abs/1511.04508
    """

    temperature: float = 20.0
    epochs: int = 10
    batch_size: int = 64
    learning_rate: float = 1e-3
    optimiser: str = "adam"
    max_drop: float = 0.01
    progress: bool = True

    def __post_init__(self) -> None:
        check_training(self)
        if not 0 < self.temperature < math.inf:
            raise ValueError(f"temperature must be positive, got {self.temperature}")

    def __call__(
        self,
        model: Classifier,
        train: Samples,
        *,
        validation: Samples,
        start: Classifier | None = None,
        teacher: Classifier | None = None,
        monitor: Monitor | None = None,
        generator: torch.Generator,
        checkpoint: str | Path | None = None,
        told: Told | None = None,
    ) -> Distilled:
        """Distil a model; it stays as it is, and so does torch's own random state.

        Args:
            model: what teacher and student are compared with.
            train: labelled training data.
            validation: labelled, with no input of the above: it chooses the epochs.
            start: a network from which both learn, from scratch; the model's own weights unless given. The student must
                not start as the teacher ended, or there is nothing to learn.
            teacher: one that was trained at this temperature already.
            monitor, generator, told: as in `Finetune`.
            checkpoint: a file for the student's state after each epoch, as in `Finetune`; the teacher's is beside it,
                with ``.teacher`` after its name.
        """
        roles = {"train": train, "cases": train[:0], "validation": validation}
        check_data(model, **roles)
        stage = partial(
            learn,
            self,
            model,
            start=start,
            rows=len(train),
            roles=roles,
            monitor=monitor,
            generator=generator,
            told=told,
        )
        x, y, t, taught = train.x, train.labels, self.temperature, None
        if teacher is None:
            beside = None if checkpoint is None else Path(checkpoint).with_name(Path(checkpoint).name + ".teacher")
            taught = stage(
                loss=lambda learner, rows: soft_loss(learner, x[rows], y[rows], temperature=t),  # (1)
                checkpoint=beside,
            )
            teacher = taught.model
        soft = (teacher.batched_logits(x) / t).softmax(1)
        student = stage(
            loss=lambda learner, rows: soft_loss(learner, x[rows], soft[rows], temperature=t),  # (2)
            checkpoint=checkpoint,
            learned_from={"teacher": teacher},
        )
        return Distilled(
            model=student.model,
            teacher=teacher,
            record=student.record,
            teacher_record=taught.record if taught else None,
        )


# The loss -------------------------------------------------------------------------------------------------------------


def soft_loss(learner: Learner, x: Tensor, labels: Tensor, *, temperature: float = 1.0) -> Tensor:
    """The cross-entropy of softer answers, ``logits / temperature``, and labels that are classes or probabilities."""
    z = learner.logits(x) / temperature
    return cross_entropy(z, labels.to(z.device) if labels.ndim == 1 else labels.to(z))
