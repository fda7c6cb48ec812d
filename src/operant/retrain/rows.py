"""Where the rows of a training batch come from: labelled inputs, plain or changed by fresh draws of conditions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from operant.conditions import Recipe, apply
from operant.conditions.recipe import DrawnConditions
from operant.data import Samples
from operant.retrain._sampling import drawn_rows
from operant.rng import shuffled

ANGLES = ("motion_angle",)  # a direction has no strength


class Change(Protocol):
    """Returns changed copies of inputs ``(n, *shape)``; fresh random numbers in every call."""

    def __call__(self, x: Tensor, *, generator: torch.Generator) -> Tensor: ...


@dataclass(frozen=True, kw_only=True)
class UnderConditions:
    """A change: conditions drawn from a recipe.

    Args:
        recipe: of the field.
        strength: factor on the drawn severities; 0.5 for inputs that are already under the field's conditions.
    """

    recipe: Recipe
    strength: float = 1.0

    def __call__(self, x: Tensor, *, generator: torch.Generator) -> Tensor:
        if not self.recipe.names:
            return x
        return apply(x, weakened(self.recipe.draw(len(x), generator=generator), self.strength))


@dataclass(frozen=True, kw_only=True)
class Sometimes:
    """A change of a share of the inputs; the others stay as they are."""

    change: Change
    share: float = 0.5

    def __call__(self, x: Tensor, *, generator: torch.Generator) -> Tensor:
        rows = (torch.rand(len(x), generator=generator, device=generator.device) < self.share).nonzero().flatten().cpu()
        return x if len(rows) == 0 else x.index_copy(0, rows.to(x.device), self.change(x[rows], generator=generator))


def weakened(drawn: DrawnConditions, strength: float) -> DrawnConditions:
    """Drawn conditions at a share of their strength; directions stay as they are."""
    if strength == 1:
        return drawn
    factors = [1.0 if name in ANGLES else strength for name in drawn.names]
    return replace(drawn, values=drawn.values * torch.tensor(factors, dtype=drawn.values.dtype))


@dataclass(frozen=True, kw_only=True, eq=False)
class RowSource:
    """Rows of labelled inputs, drawn by chance and then changed.

    Args:
        samples: labelled inputs.
        chances: the probability of each input.
        rows: per training step.
        change: what happens to the drawn rows (default: nothing).
    """

    samples: Samples
    chances: Tensor
    rows: int
    change: Change | None = None

    def draw(self, steps: int, *, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Inputs and labels for so many steps, in random order; each input as often as expected, rounded."""
        chosen = drawn_rows(self.chances, steps * self.rows, generator=generator)
        chosen = chosen[shuffled(len(chosen), generator)]
        x, y = self.samples.x[chosen], self.samples.labels[chosen]
        return (x if self.change is None else self.change(x, generator=generator)), y


def equal_chances(samples: Samples) -> Tensor:
    return torch.full((len(samples),), 1 / max(len(samples), 1), dtype=torch.float64)


def chances_by_class(samples: Samples, shares: Tensor, *, floor: float = 0.1) -> Tensor:
    """Chances that give classes these shares; a share ``floor`` of the rows is drawn regardless of them.

    Classes that have no labelled input cannot be drawn; their share goes to the others.
    """
    labels, equal = samples.labels.cpu(), equal_chances(samples)
    counts = torch.bincount(labels, minlength=len(shares)).double()
    shares = resized(shares.double(), len(counts))
    each = torch.where(counts > 0, shares / counts.clamp_min(1), 0.0)[labels]
    total = float(each.sum())
    return equal if total == 0 else (1 - floor) * each / total + floor * equal


def resized(shares: Tensor, classes: int) -> Tensor:
    """Class shares with zeros for further classes: training data need not contain the model's last ones."""
    return torch.cat([shares, shares.new_zeros(max(0, classes - len(shares)))])
