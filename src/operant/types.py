"""Types of the parts that users can supply. They are protocols: no base class is needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch
from torch import Tensor

if TYPE_CHECKING:
    from operant.data import Samples
    from operant.model import Classifier
    from operant.suite import Suite

Score = Callable[["Classifier", Tensor, Tensor], Tensor]
"""``(model, x, y) -> one value per row``."""

Labeller = Callable[["Samples"], Tensor]
"""Returns the true labels of field inputs; every label costs."""


@runtime_checkable
class StoredLabels(Protocol):
    """A labeller that looks labels up. They can be read again at no cost, so that a resumed run notices changes."""

    def __call__(self, asked: Samples, /) -> Tensor: ...

    def stored(self, ids: Tensor, /) -> dict[int, tuple[str, int]]:
        """By id, the name that a label is stored under, and the label; inputs without a label are left out."""


Monitor = Callable[["Classifier"], float]
"""A score to monitor while retraining; smaller is better."""


class Fuzzer(Protocol):
    """Generates cases from seeds and returns them as a suite."""

    def __call__(self, model: Classifier, seeds: Samples, *, generator: torch.Generator) -> Suite: ...


@runtime_checkable
class UnselectedDraws(Protocol):
    """A fuzzer that can show what it makes of seeds without looking for failures.

    A campaign fits a judge of its cases to these draws. The five scores of naturalness rate the cases of any other
    fuzzer.
    """

    def __call__(self, model: Classifier, seeds: Samples, *, generator: torch.Generator) -> Suite: ...

    def unselected(self, model: Classifier, seeds: Samples, *, generator: torch.Generator) -> Samples:
        """One case per seed, whether it fails or not; the search does not stop at failures."""


Move = Callable[..., Fuzzer]
"""``move(naturalness=...) -> Fuzzer``: a search of a campaign, without the naturalness that is fitted to field data."""


class Density(Protocol):
    """A distribution of inputs, as a profile needs it."""

    def log_prob(self, x: Tensor) -> Tensor: ...

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor: ...
