"""What to watch while retraining: the estimated probability of misclassification per field input."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from operant.data import Samples
from operant.model import Classifier
from operant.seeds.designs import normalised


@dataclass(frozen=True, kw_only=True, eq=False)
class PmiMonitor:
    """Estimated pmi on labelled inputs; build one with `pmi_monitor`.

    Attributes:
        validation: labelled inputs.
        mass: how much of field use each of them stands for, summing to 1.
    """

    validation: Samples
    mass: Tensor = field(repr=False)

    def __call__(self, model: Classifier) -> float:
        wrong = model.predict(self.validation.x) != self.validation.labels
        return float(self.mass @ wrong.cpu().double())  # (1)


def pmi_monitor(validation: Samples, mass: Tensor | None = None) -> PmiMonitor:
    """A monitor that estimates the probability of misclassification per field input.

        pmi = Σ m_i [f(x_i) ≠ y_i] / Σ m_i        (1)

    It is for choosing: the lowest of several epochs is too low an estimate of what was chosen. What is reported must
    come from inputs that no monitor has seen.

    Args:
        validation: labelled inputs, drawn from the field or weighted to stand for it; retraining refuses to learn from
            any of them.
        mass: one for each input, 0 or more, for instance `operant.profile.Profile.weights`; equal unless given, which
            is right for inputs that were drawn from the field.

    >>> right = torch.nn.Linear(2, 2, bias=False)
    >>> right.weight.data = torch.eye(2)
    >>> field = Samples(torch.tensor([[0.9, 0.1], [0.2, 0.7]]), torch.tensor([0, 0]))
    >>> pmi_monitor(field)(Classifier(right)), pmi_monitor(field, torch.tensor([3.0, 1.0]))(Classifier(right))
    (0.5, 0.25)
    """
    if len(validation) == 0:
        raise ValueError("there are no validation samples to estimate pmi on; hold some field inputs back")
    _ = validation.labels  # refuses samples without
    mass = normalised(torch.ones(len(validation)) if mass is None else mass, len(validation), "mass")
    return PmiMonitor(validation=validation, mass=mass)
