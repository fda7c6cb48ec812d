"""Fine-tuning for the field: cases drawn by operational weight, the epoch chosen by a monitor of field errors."""

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from operant.data import Samples
from operant.model import Classifier
from operant.retrain._run import TrainingRun, check_data
from operant.retrain._sampling import EpochRows, chances_of
from operant.retrain.losses import INNER, CrossEntropy, TrainingBatch, adversarial_loss, consistent_loss
from operant.retrain.retrainer import OnEpoch, Retrained
from operant.retrain.training import TrainableModel, TrainingOptions
from operant.types import Monitor
from operant.validation import (
    check_above_to,
    check_at_least,
    check_from_below,
    check_nonnegative,
    check_one_of,
    check_positive,
)


@dataclass(frozen=True, kw_only=True)
class OperationalFinetune(TrainingOptions):
    """Continue training a model with training data and cases, the cases drawn by operational weight.

        minimise  E J(f(x), y) + consistency · E KL(f(x) ‖ f(x'))                           (1)
        a row is case i with probability case_share · p_i,
        p_i = min(c w_i, cap / n)  with c such that Σ p_i = 1                               (2)
        rate(t) = learning_rate · t / a              up to step a = slow_start · T          (3)
                  learning_rate · decay_to^((t - a) / (T - a))  from there to step T

    J is the cross-entropy. Cases are drawn, not scaled, because the effect of loss weights fades as a network learns to
    separate its data. Each epoch contains each case as often as expected, rounded down or up. The pairs (x, x') of (1)
    are seed and case; or, with an inner loop, every row and its perturbed copy. An inner loop without ``consistency``
    uses J(f(x'), y) in place of J(f(x), y).

    The epoch with the lowest monitor is kept, among those whose clean accuracy on the validation samples is at most
    ``max_drop`` below the original model's. If there is none, or none with a monitor below the original's, or the loss
    is no longer finite, the original weights are kept. With equal weights and ``case_share=None, slow_start=0,
    decay_to=1, patience=None, must_improve=False`` this is `Finetune`, bit for bit.

    The inner loop maximises J even where the pairs are compared by KL; TRADES maximises KL there. One gradient serves
    both.

    Args:
        learning_rate: the highest, see (3).
        case_share: mean share of cases among the rows of a batch; None for each case once per epoch, on average. With 0
            cases are not learned from: a control.
        steps: per epoch (default: enough to use every training input once). If given, training inputs are drawn too,
            none a second time before all others were drawn.
        cap: maximum probability of a case, relative to the mean.
        slow_start, decay_to: see (3); 0 and 1 for a constant rate.
        consistency: weight of the KL term in (1).
        inner: ``"none"``; or one gradient step from a random point near each row: ``"rs-fgsm"`` in the ball of
            ``radius``, or ``"n-fgsm"`` from stronger noise and not clamped to the ball.
        radius: of the inner loop, in input units.
        ema: if above 0, the model that is judged and kept has averaged weights, ``ema · average + (1 - ema) · weights``
            after each step, starting from the original ones.
        patience: epochs without a better one before training stops; None for all epochs.
        must_improve: keep the original weights unless the monitor falls below its value for them.
        epochs, batch_size, optimiser, max_drop, progress: see `TrainingOptions`.

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
    must_improve: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_from_below(0, 1, slow_start=self.slow_start, ema=self.ema)
        check_at_least(1, cap=self.cap)
        if self.case_share is not None:
            check_from_below(0, 1, case_share=self.case_share)
        if self.steps is not None:
            check_at_least(1, steps=self.steps)
        if self.patience is not None:
            check_at_least(1, patience=self.patience)
        check_above_to(0, 1, decay_to=self.decay_to, advice="1 keeps the rate")
        check_nonnegative(consistency=self.consistency)
        check_one_of(("none", *INNER), inner=self.inner)
        if self.radius is not None:
            check_positive(radius=self.radius)
        if (self.inner == "none") != (self.radius is None):
            raise ValueError(f"an inner loop and its radius go together, got {self.inner!r} and radius={self.radius}")

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
        monitor: Monitor | None = None,
        max_drop: float | None = None,
        generator: torch.Generator,
        checkpoint: str | Path | None = None,
        on_epoch: OnEpoch | None = None,
    ) -> Retrained:
        """Retrain a model; arguments are those of `CaseRetrainer`, and:

        Args:
            weights: one per case, mass times naturalness (default: equal).
            train_weights: one per training input, to draw those too in proportion to the field (default: equal).
            seeds: the seed of each case (``suite.x0``), for ``consistency`` without an inner loop.
        """
        if len(cases) == 0 and self.case_share != 0:
            raise ValueError("there are no cases to learn from; give some, or set case_share=0 for a control")
        check_data(model, train=train, cases=cases, validation=validation, monitor=monitor)
        self._check_seeds(model, cases, seeds)
        if self.inner != "none":
            model.check_gradients(train.x)
        return TrainingRun(
            options=self,
            loss=self._loss,
            rate=self._rate,
            must_improve=self.must_improve,
            patience=self.patience,
            ema=self.ema,
        )(
            model,
            self._rows(train, cases, seeds, weights, train_weights),
            validation=validation,
            monitor=monitor,
            max_drop=max_drop,
            generator=generator,
            checkpoint=checkpoint,
            on_epoch=on_epoch,
        )

    def _rows(
        self, train: Samples, cases: Samples, seeds: Tensor | None, weights: Tensor | None, train_weights: Tensor | None
    ) -> EpochRows:
        share = len(cases) / (len(train) + len(cases)) if self.case_share is None else self.case_share
        if self.steps is not None:
            total = self.steps * self.batch_size
            counts = (total - round(total * share), round(total * share))
        elif self.case_share is None:
            counts = (len(train), len(cases))
        else:
            counts = (len(train), round(len(train) * share / (1 - share)))
        return EpochRows(
            train=train,
            cases=cases,
            chances=(chances_of(train, train_weights, self.cap, "train_weights"), chances_of(cases, weights, self.cap)),
            counts=counts,
            seeds=seeds if self.consistency and self.inner == "none" else None,
        )

    def _loss(self, model: TrainableModel, batch: TrainingBatch, *, generator: torch.Generator) -> Tensor:
        """(1) of one batch."""
        if self.inner != "none":
            inner, radius, consistency = self.inner, self.radius or 0.0, self.consistency
            return adversarial_loss(
                model, batch, inner=inner, radius=radius, consistency=consistency, generator=generator
            )
        if len(batch.seeds):
            return consistent_loss(model, batch, consistency=self.consistency)
        return CrossEntropy()(model, batch, generator=generator)

    def _rate(self, step: int, steps: int) -> float:
        """The learning rate of a step, counted from 1."""
        rise = self.slow_start * steps
        if step < rise:
            return self.learning_rate * (step / rise)  # (3)
        return self.learning_rate * math.pow(self.decay_to, (step - rise) / (steps - rise))

    def _check_seeds(self, model: Classifier, cases: Samples, seeds: Tensor | None) -> None:
        if self.consistency and self.inner == "none" and len(cases):
            if seeds is None:
                raise ValueError("consistency compares each case with its seed; give seeds=suite.x0, or an inner loop")
            if seeds.shape != cases.x.shape:
                shapes = f"{tuple(cases.x.shape)}, got {tuple(seeds.shape)}"
                raise ValueError(f"seeds must hold one input for each case, of shape {shapes}; give suite.x0")
            model.check_inputs(seeds)
