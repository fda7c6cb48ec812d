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
from operant.conditions import Recipe
from operant.data import Samples
from operant.generate import PGD, ConditionMove, FOLFuzz, GradientMove, unguided
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

ANY_LEVEL = 1e-9  # a p-value that every case reaches
UNREACHABLE = 1e-4  # requirement that no loop can meet with so few labels: all run the same number of rounds


def campaign(name: str, setting: LoopSetting, recipe: Recipe, radius: float) -> Campaign:
    """The campaign of a variant.

    Args:
        recipe: conditions estimated from unlabelled field inputs.
        radius: of attacks, the best of three.
    """
    finetune, labels = setting.field.finetune, setting.labels_per_round
    moves: dict[str, Callable[..., Fuzzer]] = {
        "conditions": partial(ConditionMove, recipe=recipe),
        "gradient": partial(GradientMove, radius=setting.radius),
    }
    whole = Campaign(
        requirement=UNREACHABLE,
        moves=moves,
        max_drop=finetune.max_drop,
        rounds=setting.rounds,
        cases=setting.rounds * setting.cases_per_round + 1,
        labels=labels * (setting.rounds + 1) + 1,
        seeds_per_round=setting.seeds_per_round,
        cases_per_round=setting.cases_per_round,
        label_batch=labels,
        dimensions=32,
        judge_draws=0,  # the published tables are older than judges
        retrainer=finetune,
    )
    everything = {"level": ANY_LEVEL, "mass_quantile": 0.0}
    blind = {**everything, "seed_chooser": random_seeds, "case_chooser": random_cases, "feedback": False}
    changes: dict[str, dict[str, Any]] = {
        FULL: {},
        RANDOM_SEEDS: {"seed_chooser": random_seeds},
        NO_PROFILE: {"seed_chooser": weak_seeds, "mass_quantile": 0.0, "case_chooser": random_cases},
        NO_NATURALNESS: {"level": ANY_LEVEL, "moves": _unguided(recipe, setting.radius)},
        NO_FEEDBACK: {"feedback": False},
        DEEPGINI: {"case_chooser": least_sure_cases},
        PGD_LOOP: {**blind, "moves": {"pgd": partial(unguided, PGD(radius=radius))}},
        ROBOT_LOOP: {
            **blind,
            "moves": {"fol": partial(unguided, FOLFuzz(radius=radius, rows_per_seed=100))},
            "case_chooser": cases_by_fol,
        },
    }
    return replace(whole, **changes[name])


def _unguided(recipe: Recipe, radius: float) -> dict[str, Callable[..., Fuzzer]]:
    return {
        "conditions": partial(unguided, ConditionMove(recipe=recipe, naturalness=None)),
        "gradient": partial(unguided, PGD(radius=radius, norm="l2", random_start=False)),
    }


# Choice of seeds and of cases -----------------------------------------------------------------------------------------


def random_seeds(model: Classifier, inputs: Samples, n: int, *, generator: torch.Generator, **_: object) -> Samples:
    return inputs[torch.randperm(len(inputs), generator=generator)[:n]]


def weak_seeds(model: Classifier, inputs: Samples, n: int, *, generator: torch.Generator, **_: object) -> Samples:
    """Seeds where the model is weak, regardless of use."""
    weights = risk_of(model, inputs, margin_risk).double() + 1e-12
    n = min(n, len(inputs))
    return draw(inputs, weights / weights.sum(), n, design="sequential", generator=generator).samples(inputs)


def random_cases(model: Classifier, good: Suite, n: int, *, generator: torch.Generator, **_: object) -> Tensor:
    return torch.randperm(len(good), generator=generator)[:n]


def least_sure_cases(model: Classifier, good: Suite, n: int, *, generator: torch.Generator, **_: object) -> Tensor:
    return select.gini(measure.gini(model.probs(good.x)), n, generator=generator)


def cases_by_fol(model: Classifier, good: Suite, n: int, *, generator: torch.Generator, **_: object) -> Tensor:
    return select.be_st(good["fol"], n, generator=generator)
