"""Shared by the moves: p-values of failures, their level, and recipes that a model accepts."""

from __future__ import annotations

import torch
from torch import Tensor

from operant.conditions import Recipe
from operant.measure.naturalness import Naturalness
from operant.model import Classifier
from operant.validation import check_between, check_not_empty

LEVEL = 0.05  # p-value from which a case counts as natural


def p_values(naturalness: Naturalness | None, x: Tensor, failing: Tensor) -> Tensor:
    """The p-value of each failing row; 1 for the others, which would be costly to rate, and for all without one."""
    p = torch.ones(len(x), dtype=torch.float64, device=x.device)
    if naturalness is not None and bool(failing.any()):
        p[failing] = naturalness(x[failing]).to(p)
    return p


def check_level(level: float) -> None:
    check_between(0, 1, level=level, advice="0.05 rejects one in twenty genuine inputs")


def check_conditions(recipe: Recipe) -> None:
    check_not_empty(recipe=recipe.names, advice="declare at least one condition to search over")


def check_same_bounds(recipe: Recipe, model: Classifier) -> None:
    if recipe.bounds != model.bounds:
        raise ValueError(
            f"the recipe must have the model's bounds {model.bounds}, got {recipe.bounds}; set Recipe's bounds"
        )
