"""Adversarial fine-tuning: training on the worst input near each image."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from operant.data import Samples
from operant.generate.engine import project
from operant.model import Classifier, copy_module, value_and_gradient
from operant.networks.training import descend, shuffled_batches
from operant.rng import uniform_like

STEPS = 7  # of PGD per batch
RAMP = 0.5  # share of the epochs in which the radius grows to its full size


def fine_tune(
    model: Classifier,
    train: Samples,
    *,
    radius: float,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    generator: torch.Generator,
) -> Classifier:
    """Continue training on PGD cases instead of images, as Madry et al. do; returns the last epoch.

    The radius grows over the first half of the epochs: with the full one from the start a small network forgets all.

    References:
        | Towards Deep Learning Models Resistant to Adversarial Attacks (Madry et al., 2018)
        | https://arxiv.org/abs/1706.06083
    """
    module = copy_module(model.unwrap())
    optimizer = torch.optim.Adam(module.parameters(), lr=learning_rate)
    steps, ramp = math.ceil(len(train) / batch_size), max(1.0, RAMP * epochs)
    for epoch in range(epochs):
        reach = radius * min(1.0, (epoch + 1) / ramp)
        for x, y in shuffled_batches(train, steps, generator=generator):
            descend(optimizer, module, worst(module, x, y, radius=reach, generator=generator), y)
    return Classifier(module.eval())


def worst(module: nn.Module, x: Tensor, y: Tensor, *, radius: float, generator: torch.Generator) -> Tensor:
    """Images of high loss within the radius."""
    ball = torch.full_like(y, radius, dtype=x.dtype)
    moved = (x + uniform_like(x, -radius, radius, generator=generator)).clamp(0, 1)
    for _ in range(STEPS):
        _, gradient = value_and_gradient(partial(_loss, module, y), moved)
        moved = project(moved + 2.5 * radius / STEPS * gradient.sign(), x, ball, "linf", (0.0, 1.0))
    return moved


def _loss(module: nn.Module, y: Tensor, x: Tensor) -> Tensor:
    return cross_entropy(module(x), y, reduction="none")
