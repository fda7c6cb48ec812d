"""Labelled inputs as they would look in the field."""

import torch
from torch import Tensor

from operant.conditions import apply
from operant.data import Samples
from operant.profile.fit_conditions import FittedConditions
from operant.validation import check_at_least

ROWS = 1000  # put under conditions at once


def under_conditions(
    labelled: Samples, conditions: FittedConditions | None, *, copies: int = 1, generator: torch.Generator
) -> tuple[Samples, Tensor]:
    """Labelled inputs under fresh draws of the fitted conditions, each ``copies`` times, and the row of each.

    Without conditions, the labelled inputs themselves, once.
    """
    check_at_least(1, copies=copies)
    rows = torch.arange(len(labelled))
    if conditions is None or not conditions.recipe.severities:
        return labelled, rows
    rows = rows.repeat(copies)
    drawn = conditions.recipe.draw(len(rows), generator=generator)
    places = torch.arange(len(rows)).split(ROWS)
    x = torch.cat([apply(labelled.x.detach()[rows[at]], drawn[at]) for at in places])
    y = None if labelled.y is None else labelled.y[rows]
    groups = None if labelled.groups is None else tuple(labelled.groups[i] for i in rows.tolist())
    return Samples(x, y, groups=groups, classes=labelled.classes), rows
