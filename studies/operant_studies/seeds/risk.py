"""The risk map of a set-up: what a user can know without any label of the field."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from operant.campaign.risk import spread_seeds
from operant.conditions import Recipe, normal, uniform, wider
from operant.data import Samples
from operant.generate import RecipeDraws
from operant.generate.engine import judge
from operant.model import Classifier
from operant.profile import FittedConditions, Priors, estimate_priors, fit_conditions, fit_risk
from operant.rng import shuffled, spawn
from operant.suite import Suite
from operant_studies.seeds.settings import SeedsSources
from operant_studies.seeds.setups import SeedsSetup, in_field, zipf_rows

MADE = {"zipf-field": "unlabelled", "zipf-pool": "field"}  # fields made of training images, and their random stream
FEW = Recipe(severities={"rotation": normal(20), "blur": uniform(0, 2), "shift_x": normal(0.2)})  # for quick fits
RESAMPLES = 40  # of class shares; their intervals are not used
WIDER = 0.5  # cases of wider conditions, per case of the recipe


@dataclass(frozen=True, kw_only=True)
class UserInputs:
    """The inputs that a risk map is made from; no training image has two roles."""

    field: Samples  # unlabelled
    clean: Samples  # labelled training images that conditions are fitted with
    labelled: Samples  # clean labelled inputs that class shares are estimated with
    seeds: Samples  # labelled training images that cases are drawn from


@dataclass(frozen=True, kw_only=True, eq=False)
class PoolRisk:
    """The risk map of one network, on the inputs of the pool."""

    failing: float  # share of the cases that fail, weighted by the estimated class shares
    distance: float  # total variation between estimated and true class shares in the field
    learned: bool  # False if inputs are ranked by the margin alone
    findings: tuple[str, ...]  # names of what the map had to do without
    values: Tensor = field(repr=False)  # for each input of the pool


def make_user_inputs(name: str, sources: SeedsSources, setup: SeedsSetup, seed: int) -> UserInputs:
    """Divide training images by role, without those that the field is made of."""
    setting, train = sources.setting, sources.known.train
    if name in MADE:
        path = (seed, "zipf", MADE[name])
        seen = in_field(train, setting.field, spawn(*path))
        used = zipf_rows(train.labels, setting.field, spawn(*path))
    else:
        seen = setup.pool if setup.field is None else setup.field  # all of USPS is the pool: there is no other field
        used = torch.empty(0, dtype=torch.long)
    order = shuffled(len(train), spawn(seed, name, "roles"))
    free, a, b = order[~torch.isin(order, used)], setting.clean, setting.clean + setting.labelled
    return UserInputs(
        field=seen.with_labels(None),
        clean=train[free[:a]],
        labelled=_unseen(sources, seed) if name == "usps-field" else train[free[a:b]],
        seeds=train[free[b:]],
    )


def _unseen(sources: SeedsSources, seed: int) -> Samples:
    """Test images, for a pool that is not made of them."""
    test = sources.known.test
    return test[shuffled(len(test), spawn(seed, "unseen"))[: sources.setting.labelled]]


def find_conditions(inputs: UserInputs, *, widest: Recipe | None, generator: torch.Generator) -> FittedConditions:
    """Conditions of the field, by default settings if none are declared."""
    return fit_conditions(inputs.field, inputs.clean, widest=widest, generator=generator, progress=False)


def find_priors(
    model: Classifier, inputs: UserInputs, conditions: FittedConditions | None, *, generator: torch.Generator
) -> Priors:
    """Class shares of the field."""
    return estimate_priors(
        model, inputs.labelled, inputs.field, conditions=conditions, resamples=RESAMPLES, generator=generator
    )


def rate_pool(
    model: Classifier,
    setup: SeedsSetup,
    inputs: UserInputs,
    recipe: Recipe,
    priors: Priors,
    *,
    cases: int,
    generator: torch.Generator,
) -> PoolRisk:
    """Draw cases of the recipe, then of wider conditions from other seeds, fit the map to them, and rate the pool."""
    shares = torch.tensor(priors.values, dtype=torch.float64)
    seeds = spread_seeds(inputs.seeds, shares, cases, generator=generator)
    drawn = _drawn(model, recipe, seeds, generator=generator)
    others = spread_seeds(_without(inputs.seeds, seeds), shares, wider_of(cases), generator=generator)
    draws = RecipeDraws(recipe=wider(recipe, tuple(others.shape)), dense=1.0)
    risk = fit_risk(model, drawn, wider=draws(model, others, generator=generator), priors=priors)
    return PoolRisk(
        failing=risk.failing,
        distance=float((shares - _true_shares(setup, len(shares))).abs().sum() / 2),
        learned=risk.learned,
        findings=tuple(finding.name for finding in risk.findings),
        values=risk(model, setup.pool.x),
    )


def wider_of(cases: int) -> int:
    """The number of cases of wider conditions."""
    return round(WIDER * cases)


def _drawn(model: Classifier, recipe: Recipe, seeds: Samples, *, generator: torch.Generator) -> Suite:
    """One case per seed; the seeds themselves if the recipe has no condition."""
    if not recipe.names:
        return judge(model, seeds, seeds.x, method="draws")
    return RecipeDraws(recipe=recipe)(model, seeds, generator=generator)


def _without(inputs: Samples, used: Samples) -> Samples:
    """The other inputs; all of them if none would be left, as in quick runs."""
    unused = ~torch.isin(inputs.ids, used.ids)
    return inputs[unused.nonzero().flatten()] if bool(unused.any()) else inputs


def _true_shares(setup: SeedsSetup, classes: int) -> Tensor:
    """For the report only."""
    labels = (setup.pool if setup.fresh is None else setup.fresh).labels
    return torch.bincount(labels, minlength=classes).double() / len(labels)
