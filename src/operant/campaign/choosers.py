"""Which seeds a round starts from, and which failures it learns from; both can be replaced by your own."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from operant import select
from operant.campaign.feedback import reweighted
from operant.campaign.field import FieldState
from operant.campaign.records import SearchShares
from operant.data import Samples
from operant.model import Classifier
from operant.profile import Profile, RiskMap
from operant.seeds import combine, draw, margin_risk, risk_of
from operant.seeds.risk import is_flat
from operant.suite import Suite
from operant.types import Score


class SeedChooser(Protocol):
    """Chooses the training inputs that a round searches from."""

    def __call__(
        self,
        model: Classifier,
        inputs: Samples,
        n: int,
        *,
        field: FieldState,
        shares: SearchShares,
        generator: torch.Generator,
    ) -> Samples:
        """At most n of the labelled inputs, all of which the model classifies correctly."""


class CaseChooser(Protocol):
    """Chooses the operational failures that a round learns from."""

    def __call__(
        self,
        model: Classifier,
        failures: Suite,
        n: int,
        *,
        profile: Profile,
        learned: Samples,
        generator: torch.Generator,
    ) -> Tensor:
        """n different row numbers of the failures; ``learned`` are the cases of earlier rounds."""


def risk_weighted_seeds(
    model: Classifier,
    inputs: Samples,
    n: int,
    *,
    field: FieldState,
    shares: SearchShares,
    generator: torch.Generator,
) -> Samples:
    """Draw seeds that are likely in the field and near failures, with the given shares of classes and cells.

    A `SeedChooser`. Risks are those of the field's risk map; without a map that has learned, a small margin is a risk.
    If the risk of all inputs is the same, as the margin of a model that is certain of everything, seeds are drawn by
    mass alone.

    Args:
        model: the current model.
        inputs: labelled training inputs that it classifies correctly.
        n: maximum number of seeds.
        field: the current field.
        shares: of classes and cells.
        generator: random numbers.
    """
    mass, risk = field.profile.weights(inputs), risk_of(model, inputs, risk_score(field.risk))
    weights = combine(mass, torch.ones_like(risk) if is_flat(risk, mass) else risk)
    weights = reweighted(weights, field.cells(inputs.x), torch.tensor(shares.cells))
    weights = reweighted(weights, inputs.labels.cpu(), torch.tensor(shares.classes))
    n = min(n, int((weights > 0).sum()))
    return draw(inputs, weights, n, design="sequential", generator=generator).samples(inputs)


def risk_score(risk: RiskMap | None) -> Score:
    """The risk map if it has learned more than the margin, else the margin."""
    return margin_risk if risk is None or not risk.learned else risk


def most_covering_cases(
    model: Classifier, failures: Suite, n: int, *, profile: Profile, learned: Samples, generator: torch.Generator
) -> Tensor:
    """Choose failures that together cover most of the failures, far from cases that were learned before.

    A `CaseChooser`. Seeds are drawn as the field is distributed, so each failure stands for the same share of it.

    Args:
        model: the current model.
        failures: operational failures.
        n: how many to choose, at most ``len(failures)``.
        profile: of the field.
        learned: cases of earlier rounds.
        generator: breaks ties.

    Returns:
        n row numbers.
    """
    codes, covered = (profile.encode(x).detach() for x in (failures.x, learned.x))
    return select.operational(
        torch.ones(len(failures)),
        n,
        codes=codes,
        covered=covered if len(covered) else None,
        shared=False,
        generator=generator,
    )
