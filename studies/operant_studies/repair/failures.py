"""Operational cases of the study: draws from the estimated recipe, by the class shares of the field."""

from __future__ import annotations

import torch

from operant.generate import RecipeDraws
from operant.model import Classifier
from operant.retrain import FieldKnowledge
from operant.retrain.rows import chances_by_class
from operant.suite import Suite

SEEDS = 6_000  # training inputs that failures are looked for from
RISK_SEEDS = 3_000  # that a risk map learns from


def operational_failures(model: Classifier, known: FieldKnowledge, *, generator: torch.Generator) -> Suite | None:
    """Failing draws. They occur as often as in the field, so no further weight is needed; None without conditions."""
    cases = drawn_cases(model, known, SEEDS, generator=generator)
    if cases is None:
        return None
    failing: Suite = cases[(cases.prediction != cases.label).nonzero().flatten()]
    return failing


def risk_cases(model: Classifier, known: FieldKnowledge, *, generator: torch.Generator) -> Suite:
    """Draws that pass and draws that fail."""
    cases = drawn_cases(model, known, RISK_SEEDS, generator=generator)
    assert cases is not None
    return cases


def drawn_cases(model: Classifier, known: FieldKnowledge, n: int, *, generator: torch.Generator) -> Suite | None:
    if known.recipe is None or not known.recipe.names:
        return None
    chances = chances_by_class(known.train, known.class_shares)
    rows = torch.multinomial(chances, min(n, len(known.train)), replacement=False, generator=generator)
    return RecipeDraws(recipe=known.recipe)(model, known.train[rows], generator=generator)
