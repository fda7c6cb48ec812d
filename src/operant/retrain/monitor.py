"""What to watch while retraining: how wrong a model is about labelled field inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from operant.data import Samples
from operant.model import Classifier
from operant.seeds.designs import normalised


@dataclass(frozen=True, kw_only=True, eq=False)
class FieldMonitor:
    """How wrong a model is about labelled inputs; build one with `pmi_monitor` or `brier_monitor`.

    Attributes:
        validation: labelled inputs.
        mass: how much of field use each of them stands for, summing to 1.
        score: from logits and labels to how wrong each answer is.
    """

    validation: Samples
    mass: Tensor = field(repr=False)
    score: Callable[[Tensor, Tensor], Tensor]

    def __call__(self, model: Classifier) -> float:
        logits = model.batched_logits(self.validation.x).cpu()
        return float(self.mass @ self.score(logits, self.validation.labels.cpu()).double())


def errors(logits: Tensor, labels: Tensor) -> Tensor:
    """1 for each wrong answer, else 0."""
    return logits.argmax(1) != labels


def brier_scores(logits: Tensor, labels: Tensor) -> Tensor:
    """Half the squared distance of the probabilities from those of somebody who knows."""
    p = logits.double().softmax(1)
    return (p - torch.nn.functional.one_hot(labels, p.shape[1])).square().sum(1) / 2


def pmi_monitor(validation: Samples, mass: Tensor | None = None) -> FieldMonitor:
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
    return FieldMonitor(validation=validation, mass=_mass_of(validation, mass), score=errors)


def brier_monitor(validation: Samples, mass: Tensor | None = None) -> FieldMonitor:
    """A monitor that sees more in few inputs than `pmi_monitor` does: also how sure the model is of each.

        ½ Σ m_i ‖p(x_i) - e(y_i)‖² / Σ m_i        (1)

    p are the model's probabilities, e(y) is 1 for the label and 0 for every other class. It lies between 0 and 1 and
    equals the share of errors where the model is quite sure of everything. Few inputs usually tell more by it than by
    counting errors, since models that err equally often on them still differ. It also rewards being less sure of
    errors, so it may prefer a model that makes more of them.

    Args:
        validation, mass: as in `pmi_monitor`.

    >>> sure = torch.nn.Linear(2, 2, bias=False)
    >>> sure.weight.data = 100 * torch.eye(2)
    >>> field = Samples(torch.tensor([[0.9, 0.1], [0.2, 0.7]]), torch.tensor([0, 0]))
    >>> brier_monitor(field)(Classifier(sure))
    0.5

    References:
        | Verification of forecasts expressed in terms of probability (Brier, 1950)
    """
    return FieldMonitor(validation=validation, mass=_mass_of(validation, mass), score=brier_scores)


def _mass_of(validation: Samples, mass: Tensor | None) -> Tensor:
    if len(validation) == 0:
        raise ValueError("there are no validation samples to watch; hold some field inputs back")
    _ = validation.labels  # refuses samples without
    return normalised(torch.ones(len(validation)) if mass is None else mass, len(validation), "mass")
