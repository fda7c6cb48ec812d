"""The shapes of things that can be plugged in. No base classes: anything that fits, fits."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

if TYPE_CHECKING:
    from operant.data import Samples
    from operant.model import Classifier
    from operant.suite import Suite

Score = Callable[["Classifier", Tensor, Tensor], Tensor]
"""``(model, x, y) -> one value per row``."""

Labeller = Callable[["Samples"], Tensor]
"""True labels of field inputs, paid per row."""

Monitor = Callable[["Classifier"], float]
"""A number to watch while retraining; smaller is better."""


class Fuzzer(Protocol):
    """Every generator of cases: seeds in, a suite out."""

    def __call__(self, model: Classifier, seeds: Samples, *, generator: torch.Generator) -> Suite: ...


Move = Callable[..., Fuzzer]
"""``move(naturalness=...) -> Fuzzer``: a search of a campaign, without the naturalness that is fitted to field data."""


class Density(Protocol):
    """What a profile is made of."""

    def log_prob(self, x: Tensor) -> Tensor: ...

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor: ...
