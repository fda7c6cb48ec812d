"""A small perceptron that learns to tell two sets of vectors apart."""

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from operant.rng import normal_like
from operant.validation import check_at_least

MEMBERS, HIDDEN = 4, 48  # networks whose logits are averaged; hidden units of each
STEPS, BATCH = 200, 64  # of the training; rows of each side per step
RATE, DECAY, SMOOTHING = 1e-2, 1e-2, 0.05
JITTER = 0.1  # standard deviation of the noise added to scaled features in training


@dataclass(frozen=True, eq=False, kw_only=True)
class Perceptron:
    """Networks with one hidden layer between two sets of vectors, whose logits are averaged; made by `fit_perceptron`.

        logit(v) = meanₘ (bₘ + wₘᵀ relu(Bₘ + Wₘᵀ u)),   u = asinh((v - centre) / scale)        (1)

    asinh limits the influence of outliers and keeps their order.
    """

    centre: Tensor = field(repr=False)
    scale: Tensor = field(repr=False)
    hidden: Tensor = field(repr=False)  # W, ``(members, features, hidden units)``
    hidden_bias: Tensor = field(repr=False)
    last: Tensor = field(repr=False)
    last_bias: Tensor = field(repr=False)

    def __call__(self, features: Tensor) -> Tensor:
        """Logits ``(N,)`` of vectors ``(N, features)``: positive where they look like the first set."""
        return self.logits(self.scaled(features)).mean(0)  # (1)

    def scaled(self, features: Tensor) -> Tensor:
        return ((features.to(self.centre) - self.centre) / self.scale).asinh()

    def logits(self, u: Tensor) -> Tensor:
        """Of each member ``(members, N)``, for scaled vectors ``(N, features)`` or one set per member."""
        return ((u @ self.hidden + self.hidden_bias).relu() @ self.last + self.last_bias).squeeze(2)


def fit_perceptron(first: Tensor, second: Tensor, *, generator: torch.Generator) -> Perceptron:
    """Train perceptrons to tell the first vectors ``(n, features)`` from the second; both sides have equal weight."""
    check_at_least(2, first=len(first), second=len(second))
    perceptron = _untrained(first, second, generator)
    sides = [perceptron.scaled(v) for v in (first, second)]
    weights = [perceptron.hidden, perceptron.hidden_bias, perceptron.last, perceptron.last_bias]
    optimizer = torch.optim.AdamW([w.requires_grad_() for w in weights], lr=RATE, weight_decay=DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=STEPS)
    target = torch.cat([torch.full((BATCH,), 1 - SMOOTHING / 2), torch.full((BATCH,), SMOOTHING / 2)])
    for _ in range(STEPS):
        rows = [torch.randint(len(side), (MEMBERS, BATCH), generator=generator) for side in sides]
        u = torch.cat([side[some] for side, some in zip(sides, rows, strict=True)], 1)
        logits = perceptron.logits(u + JITTER * normal_like(u, generator=generator))
        loss = binary_cross_entropy_with_logits(logits, target.expand_as(logits)) * MEMBERS
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    for w in weights:
        w.requires_grad_(False)
    return perceptron


def _untrained(first: Tensor, second: Tensor, generator: torch.Generator) -> Perceptron:
    """Scaled by mean and standard deviation, averaged over both sides so that the larger one does not dominate."""
    both = [v.float() for v in (first, second)]
    centre = (both[0].mean(0) + both[1].mean(0)) / 2
    scale = ((both[0] - centre).square().mean(0) + (both[1] - centre).square().mean(0)).div(2).sqrt()
    size = len(centre)
    hidden = normal_like(torch.empty(MEMBERS, size, HIDDEN), generator=generator) * (2 / size) ** 0.5
    last = normal_like(torch.empty(MEMBERS, HIDDEN, 1), generator=generator) * (1 / HIDDEN) ** 0.5
    return Perceptron(
        centre=centre,
        scale=torch.where(scale > 1e-6 * centre.abs(), scale, 1.0),
        hidden=hidden,
        hidden_bias=torch.zeros(MEMBERS, 1, HIDDEN),
        last=last,
        last_bias=torch.zeros(MEMBERS, 1, 1),
    )
