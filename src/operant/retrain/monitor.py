"""Monitors: the error of a model on labelled field inputs, to choose an epoch by."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from operant.data import Samples
from operant.model import Classifier
from operant.seeds.designs import normalised
from operant.validation import check_not_empty


@dataclass(frozen=True, kw_only=True, eq=False)
class FieldMonitor:
    """The mean score of a model on labelled inputs; build one with `pmi_monitor` or `brier_monitor`.

    Attributes:
        validation: labelled inputs.
        mass: share of field use that each input represents, summing to 1.
        score: from logits and labels to one value per input; smaller is better.
    """

    validation: Samples
    mass: Tensor = field(repr=False)
    score: Callable[[Tensor, Tensor], Tensor]

    def __call__(self, model: Classifier) -> float:
        logits = model.batched_logits(self.validation.x).cpu()
        return float(self.mass @ self.score(logits, self.validation.labels.cpu()).double())


def errors(logits: Tensor, labels: Tensor) -> Tensor:
    """True for each wrong prediction."""
    return logits.argmax(1) != labels


def brier_scores(logits: Tensor, labels: Tensor) -> Tensor:
    """Half the squared distance of the probabilities from the one-hot label."""
    p = logits.double().softmax(1)
    return (p - torch.nn.functional.one_hot(labels, p.shape[1])).square().sum(1) / 2


def pmi_monitor(validation: Samples, mass: Tensor | None = None) -> FieldMonitor:
    """A monitor that estimates the probability of misclassification per field input.

        pmi = Σ m_i [f(x_i) ≠ y_i] / Σ m_i        (1)

    Use it to choose, not to report: the lowest value of several epochs underestimates pmi. Report results on inputs
    that no monitor has used.

    Args:
        validation: labelled inputs, drawn from the field or weighted to represent it; retrainers raise ValueError if
            they would learn from any of them.
        mass: one per input, 0 or more, for instance `operant.profile.Profile.weights` (default: equal, which is right
            for inputs that were drawn from the field).

    >>> right = torch.nn.Linear(2, 2, bias=False)
    >>> right.weight.data = torch.eye(2)
    >>> field = Samples(torch.tensor([[0.9, 0.1], [0.2, 0.7]]), torch.tensor([0, 0]))
    >>> pmi_monitor(field)(Classifier(right)), pmi_monitor(field, torch.tensor([3.0, 1.0]))(Classifier(right))
    (0.5, 0.25)
    """
    return FieldMonitor(validation=validation, mass=_mass_of(validation, mass), score=errors)


def brier_monitor(validation: Samples, mass: Tensor | None = None) -> FieldMonitor:
    """A monitor that also uses the model's confidence, and so needs fewer inputs than `pmi_monitor`.

        ½ Σ m_i ‖p(x_i) - e(y_i)‖² / Σ m_i        (1)

    p are the model's probabilities, e(y) is 1 for the label and 0 for every other class. It lies between 0 and 1 and
    equals the error rate if the model is always certain. On few inputs it usually compares models better than their
    error rates, which are often equal. It also rewards lower confidence in errors, so it may prefer a model that makes
    more of them.

    Arguments are those of `pmi_monitor`.

    >>> certain = torch.nn.Linear(2, 2, bias=False)
    >>> certain.weight.data = 100 * torch.eye(2)
    >>> field = Samples(torch.tensor([[0.9, 0.1], [0.2, 0.7]]), torch.tensor([0, 0]))
    >>> brier_monitor(field)(Classifier(certain))
    0.5

    References:
        | Verification of forecasts expressed in terms of probability (Brier, 1950)
    """
    return FieldMonitor(validation=validation, mass=_mass_of(validation, mass), score=brier_scores)


def _mass_of(validation: Samples, mass: Tensor | None) -> Tensor:
    check_not_empty(validation=validation, advice="hold some field inputs back for the monitor")
    _ = validation.labels  # raises without labels
    return normalised(torch.ones(len(validation)) if mass is None else mass, len(validation), "mass")
