"""The loops of the study: a campaign, and the same with one part replaced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from operant import measure, select
from operant.campaign import Campaign
from operant.campaign.choosing import unguided
from operant.conditions import Recipe
from operant.data import Samples
from operant.generate import PGD, ConditionMove, FOLFuzz, GradientMove
from operant.model import Classifier
from operant.seeds import draw, margin_risk, risk_of
from operant.suite import Suite
from operant.types import Fuzzer
from operant_studies.operational.settings import (
    DEEPGINI,
    FULL,
    NO_FEEDBACK,
    NO_NATURALNESS,
    NO_PROFILE,
    PGD_LOOP,
    RANDOM_SEEDS,
    ROBOT_LOOP,
    LoopSetting,
)

ALL = 1e-9  # a p-value that every case reaches
NEVER = 1e-4  # a requirement that no loop meets with so few labels, so that all run as many rounds


def campaign(name: str, trial: LoopSetting, recipe: Recipe, radius: float) -> Campaign:
    """The campaign of a variant.

    Args:
        name: of the variant.
        trial: the field and what may be spent.
        recipe: conditions as they were estimated from unlabelled field inputs.
        radius: of attacks, the best of three.
    """
    finetune, labels = trial.field.finetune, trial.labels_per_round
    moves: dict[str, Callable[..., Fuzzer]] = {
        "conditions": partial(ConditionMove, recipe=recipe),
        "gradient": partial(GradientMove, radius=trial.radius),
    }
    whole = Campaign(
        requirement=NEVER,
        moves=moves,
        max_drop=finetune.max_drop,
        rounds=trial.rounds,
        cases=trial.rounds * trial.cases_per_round + 1,
        labels=labels * (trial.rounds + 1) + 1,
        seeds_per_round=trial.seeds_per_round,
        cases_per_round=trial.cases_per_round,
        label_batch=labels,
        dimensions=32,
        finetune=finetune,
    )
    everything = {"level": ALL, "mass_quantile": 0.0}
    blind = {**everything, "seeds": anywhere, "choose": any_of, "feedback": False}
    changes: dict[str, dict[str, Any]] = {
        FULL: {},
        RANDOM_SEEDS: {"seeds": anywhere},
        NO_PROFILE: {"seeds": weak, "mass_quantile": 0.0, "choose": any_of},
        NO_NATURALNESS: {"level": ALL, "moves": _unguided(recipe, trial.radius)},
        NO_FEEDBACK: {"feedback": False},
        DEEPGINI: {"choose": least_sure},
        PGD_LOOP: {**blind, "moves": {"pgd": partial(unguided, PGD(radius=radius))}},
        ROBOT_LOOP: {
            **blind,
            "moves": {"fol": partial(unguided, FOLFuzz(radius=radius, rows_per_seed=100))},
            "choose": by_fol,
        },
    }
    return replace(whole, **changes[name])


def _unguided(recipe: Recipe, radius: float) -> dict[str, Callable[..., Fuzzer]]:
    return {
        "conditions": partial(unguided, ConditionMove(recipe=recipe, naturalness=None)),
        "gradient": partial(unguided, PGD(radius=radius, norm="l2", random_start=False)),
    }


# Where to start from, and what to learn from --------------------------------------------------------------------------


def anywhere(model: Classifier, inputs: Samples, n: int, *, generator: torch.Generator, **unused: object) -> Samples:
    return inputs[torch.randperm(len(inputs), generator=generator)[:n]]


def weak(model: Classifier, inputs: Samples, n: int, *, generator: torch.Generator, **unused: object) -> Samples:
    """Where the model is weak, wherever use is."""
    weights = risk_of(model, inputs, margin_risk).double() + 1e-12
    n = min(n, len(inputs))
    return draw(inputs, weights / weights.sum(), n, design="sequential", generator=generator).samples(inputs)


def any_of(model: Classifier, good: Suite, n: int, *, generator: torch.Generator, **unused: object) -> Tensor:
    return torch.randperm(len(good), generator=generator)[:n]


def least_sure(model: Classifier, good: Suite, n: int, *, generator: torch.Generator, **unused: object) -> Tensor:
    return select.gini(measure.gini(model.probs(good.x)), n, generator=generator)


def by_fol(model: Classifier, good: Suite, n: int, *, generator: torch.Generator, **unused: object) -> Tensor:
    return select.be_st(good["fol"], n, generator=generator)
