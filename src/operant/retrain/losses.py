"""Losses of one batch: the option ``loss`` of `Finetune`, and those of `OperationalFinetune`."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div, log_softmax

from operant.model import Classifier, value_and_gradient
from operant.retrain.training import TrainableModel
from operant.rng import uniform_like
from operant.validation import check_from_below

INNER = {  # noise and step size in radii, and whether the result is clamped to the ball
    "rs-fgsm": (1.0, 1.25, True),
    "n-fgsm": (2.0, 1.0, False),
}


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainingBatch:
    """The rows of one training step.

    Attributes:
        x, y: inputs, in input units, and labels.
        rows: row numbers in the training data followed by the cases.
        is_case: whether each row is a case.
        seeds: the seed of each row that is a case; empty where no loss needs them.
    """

    x: Tensor
    y: Tensor
    rows: Tensor
    is_case: Tensor
    seeds: Tensor


class Loss(Protocol):
    """Returns the loss of one batch, a scalar that can be differentiated; any function with this signature is a loss.

    Use a frozen dataclass for a loss with options. Draw random numbers only from ``generator``, so that an interrupted
    training resumes identically. If the loss has a method ``check`` (`ModelCheck`), it is called before training.

    >>> def squared_error(model, batch, *, generator):
    ...     p = model.logits(batch.x).softmax(1)
    ...     return (1 - p.gather(1, batch.y[:, None].to(p.device))).square().mean()
    """

    def __call__(self, model: TrainableModel, batch: TrainingBatch, *, generator: torch.Generator) -> Tensor: ...


@runtime_checkable
class ModelCheck(Protocol):
    """Optional method of a loss: raises ValueError if the loss cannot be used with a model and inputs like ``x``."""

    def check(self, model: Classifier, x: Tensor) -> None: ...


@dataclass(frozen=True, kw_only=True)
class CrossEntropy:
    """The mean cross-entropy of a batch."""

    def __call__(self, model: TrainableModel, batch: TrainingBatch, *, generator: torch.Generator) -> Tensor:
        z = model.logits(batch.x)
        return cross_entropy(z, batch.y.to(z.device))


@dataclass(frozen=True, kw_only=True)
class LabelSmoothing:
    """Cross-entropy with soft labels.

        1/B Σ J(f(x), y'),    y' = 1 - share for the label, share / (classes - 1) for every other class        (1)

    References:
        | Adversarial Perturbations of Deep Neural Networks (Warde-Farley and Goodfellow, 2016)
    """

    share: float = 0.1

    def __post_init__(self) -> None:
        check_from_below(0, 1, share=self.share, advice="0.1 is a tenth")

    def __call__(self, model: TrainableModel, batch: TrainingBatch, *, generator: torch.Generator) -> Tensor:
        z = model.logits(batch.x)
        return cross_entropy(z, smooth_labels(batch.y, z.shape[1], self.share).to(z))  # (1)


def smooth_labels(y: Tensor, classes: int, share: float) -> Tensor:
    """Label probabilities ``(N, classes)`` that divide a share equally among the other classes.

    >>> smooth_labels(torch.tensor([0, 2]), 3, 0.5)
    tensor([[0.5000, 0.2500, 0.2500],
            [0.2500, 0.2500, 0.5000]])
    """
    soft = torch.full((len(y), classes), share / (classes - 1), device=y.device)
    return soft.scatter_(1, y[:, None], 1 - share)


def consistent_loss(model: TrainableModel, batch: TrainingBatch, *, consistency: float) -> Tensor:
    """1/B Σ J(f(x), y) + consistency/B Σ KL(f(seed) ‖ f(case)), the second sum over the rows that are cases."""
    n = len(batch.x)
    z, of_seeds = model.logits(torch.cat([batch.x, batch.seeds.to(batch.x)])).split([n, len(batch.seeds)])
    loss = cross_entropy(z, batch.y.to(z.device))
    return loss + consistency * _divergence(of_seeds, z[batch.is_case.to(z.device)]) / n


def adversarial_loss(
    model: TrainableModel,
    batch: TrainingBatch,
    *,
    inner: str,
    radius: float,
    consistency: float,
    generator: torch.Generator,
) -> Tensor:
    """1/B Σ J(f(x'), y); or, with consistency, 1/B Σ J(f(x), y) + consistency/B Σ KL(f(x) ‖ f(x'))."""
    moved = one_step(model, batch.x, batch.y, inner=inner, radius=radius, generator=generator)
    if not consistency:
        z = model.logits(moved)
        return cross_entropy(z, batch.y.to(z.device))
    z, of_moved = model.logits(torch.cat([batch.x, moved])).tensor_split(2)
    return cross_entropy(z, batch.y.to(z.device)) + consistency * _divergence(z, of_moved) / len(z)


def one_step(
    model: TrainableModel, x: Tensor, y: Tensor, *, inner: str, radius: float, generator: torch.Generator
) -> Tensor:
    """Each row after one gradient step from a random point near it; batch norm statistics stay as they are."""
    noise, size, clamped = INNER[inner]
    bounds = model.original.bounds
    start = uniform_like(x, -noise * radius, noise * radius, generator=generator)
    model.module.eval()
    _, gradient = value_and_gradient(
        lambda z: cross_entropy(model.logits(z), y.to(model.original.device), reduction="none"),
        (x + start).clamp(*bounds),
    )
    model.module.train()
    delta = start + size * radius * gradient.nan_to_num(0.0).sign()
    return (x + (delta.clamp(-radius, radius) if clamped else delta)).clamp(*bounds)


def _divergence(a: Tensor, b: Tensor) -> Tensor:
    """Σ KL(softmax a ‖ softmax b) over the rows."""
    return kl_div(log_softmax(b, 1), log_softmax(a, 1), reduction="sum", log_target=True)
