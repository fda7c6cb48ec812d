"""The loss of one batch: cross-entropy, with pairs that should be answered alike and one step of an attack inside."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div, log_softmax

from operant.model import value_and_gradient
from operant.retrain._loop import Learner
from operant.rng import uniform_like

INNER = {  # noise and step in radii, and whether to come back into the ball
    "rs-fgsm": (1.0, 1.25, True),
    "n-fgsm": (2.0, 1.0, False),
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Batch:
    """Rows to learn from; ``seeds`` are of those rows that are ``cases``, and none where seeds do not matter."""

    x: Tensor
    y: Tensor
    cases: Tensor
    seeds: Tensor


def plain_loss(learner: Learner, batch: Batch) -> Tensor:
    z = learner.logits(batch.x)
    return cross_entropy(z, batch.y.to(z.device))


def consistent_loss(learner: Learner, batch: Batch, *, consistency: float) -> Tensor:
    """1/B Σ J(f(x), y) + consistency/B Σ KL(f(seed) ‖ f(case)), the second sum over the rows that are cases."""
    n = len(batch.x)
    z, of_seeds = learner.logits(torch.cat([batch.x, batch.seeds.to(batch.x)])).split([n, len(batch.seeds)])
    loss = cross_entropy(z, batch.y.to(z.device))
    return loss + consistency * divergence(of_seeds, z[batch.cases.to(z.device)]) / n


def adversarial_loss(
    learner: Learner, batch: Batch, *, inner: str, radius: float, consistency: float, generator: torch.Generator
) -> Tensor:
    """1/B Σ J(f(x'), y); or, with consistency, 1/B Σ J(f(x), y) + consistency/B Σ KL(f(x) ‖ f(x'))."""
    moved = one_step(learner, batch.x, batch.y, inner=inner, radius=radius, generator=generator)
    if not consistency:
        z = learner.logits(moved)
        return cross_entropy(z, batch.y.to(z.device))
    z, of_moved = learner.logits(torch.cat([batch.x, moved])).tensor_split(2)
    return cross_entropy(z, batch.y.to(z.device)) + consistency * divergence(z, of_moved) / len(z)


def one_step(
    learner: Learner, x: Tensor, y: Tensor, *, inner: str, radius: float, generator: torch.Generator
) -> Tensor:
    """Each row after one step up the gradient, from a random point near it; batch norm learns nothing from that."""
    noise, size, back = INNER[inner]
    bounds = learner.model.bounds
    start = uniform_like(x, -noise * radius, noise * radius, generator=generator)
    learner.module.eval()
    _, gradient = value_and_gradient(
        lambda z: cross_entropy(learner.logits(z), y.to(learner.model.device), reduction="none"),
        (x + start).clamp(*bounds),
    )
    learner.module.train()
    delta = start + size * radius * gradient.nan_to_num(0.0).sign()
    return (x + (delta.clamp(-radius, radius) if back else delta)).clamp(*bounds)


def divergence(a: Tensor, b: Tensor) -> Tensor:
    """Σ KL(softmax a ‖ softmax b) over the rows."""
    return kl_div(log_softmax(b, 1), log_softmax(a, 1), reduction="sum", log_target=True)
