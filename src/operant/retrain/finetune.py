"""Fine-tuning: further epochs from the model's own weights, on training data and cases together."""

from dataclasses import dataclass
from pathlib import Path

import torch

from operant.data import Samples
from operant.model import Classifier
from operant.retrain._run import TrainingRun, check_data
from operant.retrain._sampling import every_row
from operant.retrain.losses import CrossEntropy, Loss
from operant.retrain.retrainer import OnEpoch, Retrained
from operant.retrain.training import TrainingOptions
from operant.types import Monitor
from operant.validation import check_from_below


@dataclass(frozen=True, kw_only=True)
class Finetune(TrainingOptions):
    """Continue training a model with training data and cases, shuffled together in every epoch.

        minimise  1/|D ∪ T| Σ J(f(x), y)  over (x, y) in D ∪ T        (1)

    The epoch with the lowest monitor is kept, among those whose clean accuracy on the validation samples is at most
    ``max_drop`` below the original model's; of equal ones the more accurate, then the earlier. If there is none, or the
    loss is no longer finite, the original weights are kept. The paper's program chooses the epoch on the cases that it
    reports, and resumes the optimiser's saved state; here the caller provides separate validation samples, and the
    optimiser starts fresh.

    Args:
        loss: J, the loss of one batch: `CrossEntropy` (default), `LabelSmoothing`, `ManifoldMixup`, or your own `Loss`.
        epochs: the paper has 10, and 40 for CIFAR-10.
        decay_after: epoch after which the learning rate is a tenth (default: never). The paper's program has 25 of 40
            for CIFAR-10, with a learning rate of 1e-4.
        batch_size, learning_rate, optimiser, max_drop, progress: see `TrainingOptions`.

    References:
        | RobOT: Robustness-Oriented Testing for Deep Learning Systems (Wang et al., 2021), Eq. 2
        | https://arxiv.org/abs/2102.05913
    """

    loss: Loss = CrossEntropy()  # noqa: RUF009  # frozen
    decay_after: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.decay_after is not None:
            check_from_below(1, self.epochs, decay_after=self.decay_after)

    def __call__(
        self,
        model: Classifier,
        train: Samples,
        cases: Samples,
        *,
        validation: Samples,
        start: Classifier | None = None,
        monitor: Monitor | None = None,
        max_drop: float | None = None,
        generator: torch.Generator,
        checkpoint: str | Path | None = None,
        on_epoch: OnEpoch | None = None,
    ) -> Retrained:
        """Retrain a model; arguments are those of `CaseRetrainer`, and ``start``: the network whose weights train.

        To train from scratch, pass ``model.rewrap(initialise(LeNet5, ...))``; by default it is the model itself.
        """
        check_data(model, train=train, cases=cases, validation=validation, monitor=monitor)
        return TrainingRun(options=self, loss=self.loss, rate=self._rate)(
            model,
            every_row(train, cases),
            start=start,
            validation=validation,
            monitor=monitor,
            max_drop=max_drop,
            generator=generator,
            checkpoint=checkpoint,
            on_epoch=on_epoch,
        )

    def _rate(self, step: int, steps: int) -> float:
        decayed = self.decay_after is not None and step > self.decay_after * (steps // self.epochs)
        return self.learning_rate * 0.1 if decayed else self.learning_rate
