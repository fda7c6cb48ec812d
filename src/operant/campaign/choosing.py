"""The parts of a round that can be replaced: what to start from, what to search with, and what to learn from."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from operant import select
from operant.campaign.feedback import Decision, reweighted
from operant.campaign.field import FieldState
from operant.data import Samples
from operant.measure import Naturalness
from operant.model import Classifier
from operant.profile import Profile
from operant.seeds import combine, draw, margin_risk, risk_of
from operant.suite import Suite
from operant.types import Fuzzer


@dataclass(frozen=True, kw_only=True)
class Shares:
    """How the seeds of a round are spread, and what was decided about it."""

    classes: tuple[float, ...]
    cells: tuple[float, ...]
    moves: dict[str, float]
    decisions: tuple[Decision, ...] = ()


def risk_weighted_seeds(
    model: Classifier, inputs: Samples, n: int, *, view: FieldState, shares: Shares, generator: torch.Generator
) -> Samples:
    """Draw seeds where use and weakness meet: likely in the field, with a small margin, spread as was decided.

    Args:
        model: as it is now.
        inputs: labelled, which it gets right.
        n: how many seeds, at most.
        view: what is known of the field.
        shares: of classes and cells.
        generator: draws.
    """
    weights = combine(view.profile.weights(inputs), risk_of(model, inputs, margin_risk))
    weights = reweighted(weights, view.cells(inputs.x), torch.tensor(shares.cells))
    weights = reweighted(weights, inputs.labels.cpu(), torch.tensor(shares.classes))
    n = min(n, int((weights > 0).sum()))
    return draw(inputs, weights, n, design="sequential", generator=generator).samples(inputs)


def unguided(fuzz: Fuzzer, *, naturalness: Naturalness) -> Fuzzer:
    """A fuzzer that naturalness does not guide, as a move: ``partial(unguided, UncertaintyFuzz(pattern="HL"))``.

    What it finds is rated by naturalness all the same, and only what is operational is learned from.

    Args:
        fuzz: any; its benign cases are dropped.
        naturalness: of field inputs, which every move of a campaign is given.
    """
    return fuzz


def most_covering_cases(
    model: Classifier, good: Suite, n: int, *, profile: Profile, learned: Samples, generator: torch.Generator
) -> Tensor:
    """Choose failures that together cover most, far from what was learned from.

    Seeds are drawn as the field has their like, so each failure stands for the same share of it.

    Args:
        model: as it is now.
        good: operational failures.
        n: how many to choose; no more than there are.
        profile: of the field.
        learned: cases so far.
        generator: settles ties.

    Returns:
        n row numbers.
    """
    codes, covered = (profile.encode(x).detach() for x in (good.x, learned.x))
    return select.operational(
        torch.ones(len(good)),
        n,
        codes=codes,
        covered=covered if len(covered) else None,
        shared=False,
        generator=generator,
    )
