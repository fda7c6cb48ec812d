"""Kinds of cases that a judge should tell apart: those of the field's conditions, and four that are wrong."""

from __future__ import annotations

from dataclasses import replace

import torch

from operant.conditions import CONDITIONS, Recipe, Severity, normal
from operant.data import Samples
from operant.generate import PGD, default_radii
from operant.suite import Suite
from operant_studies.cases.settings import ESTIMATED, GRADIENT, OTHER, STRONG, TRUE, WRONG
from operant_studies.cases.unit import CasesField, drawn
from operant_studies.field.fields import in_shares, read_large
from operant_studies.operational_fuzz.fields import under
from operant_studies.subjects import read_dataset

ADDED = Recipe(severities={"blur": normal(0.2, mean=0.8), "gaussian_noise": normal(0.02, mean=0.08)})
"""What a wrong recipe does to images after the right one."""
DARK = normal(0.2, mean=-1.5)


def kinds_of(field: CasesField) -> tuple[str, ...]:
    """All kinds of the study; the true recipe of a real field is not known."""
    return tuple(kind for kind in field.setting.kinds if kind != TRUE or field.case.recipe is not None)


def make(field: CasesField, kind: str, role: int) -> tuple[Samples, Samples]:
    """The seeds of a kind and its cases, made of the images of a role; nothing is selected."""
    n = (field.setting.draws, field.setting.cases, field.setting.looked)[role]
    generator = field.generator(kind, str(role))
    seeds = field.seeds_for(role, n, _shares(field, kind))
    if kind == OTHER:
        seeds = _other(field, role, n, generator)
    return seeds, _changed(field, kind, seeds, generator)


def _changed(field: CasesField, kind: str, seeds: Samples, generator: torch.Generator) -> Samples:
    recipe, made = _recipe(field), field.case.recipe is not None
    if kind in (TRUE, ESTIMATED):
        suite: Suite = drawn(field.model, recipe if kind == TRUE else field.known.recipe, seeds, generator=generator)
        return Samples(suite.x, suite.label)
    if kind == STRONG:
        return _under(doubled(recipe) if made else darker(recipe), seeds, generator)
    cases = _under(recipe, seeds, generator)
    if kind == WRONG:
        return under(ADDED, cases, generator=generator)
    if kind in GRADIENT:
        radius = default_radii(field.inputs.clean)[GRADIENT.index(kind)]
        return Samples(PGD(radius=radius, norm="l2")(field.model, cases, generator=generator).x, cases.labels)
    return cases


def _under(recipe: Recipe, seeds: Samples, generator: torch.Generator) -> Samples:
    return under(recipe, seeds, generator=generator) if recipe.names else seeds


def _recipe(field: CasesField) -> Recipe:
    """The field's own conditions; of a real field, the estimated ones."""
    return field.known.recipe if field.case.recipe is None else field.case.recipe


def _shares(field: CasesField, kind: str) -> tuple[float, ...]:
    """True class shares where conditions are true, estimated ones where they are estimated."""
    estimated = kind == ESTIMATED or field.case.recipe is None
    return field.known.priors.values if estimated else field.inputs.shares


def doubled(recipe: Recipe) -> Recipe:
    """Twice the mean and twice the spread of each severity, within the range of its condition."""
    return replace(recipe, severities={name: _twice(name, s) for name, s in recipe.severities.items()})


def _twice(name: str, s: Severity) -> Severity:
    low, high = (min(max(2 * end, CONDITIONS[name].low), CONDITIONS[name].high) for end in (s.low, s.high))
    return replace(s, low=low, high=high, mean=2 * s.mean, std=2 * s.std)


def darker(recipe: Recipe) -> Recipe:
    """Much too dark, and otherwise the same."""
    return replace(recipe, severities={**recipe.severities, "exposure": DARK})


def _other(field: CasesField, role: int, n: int, generator: torch.Generator) -> Samples:
    """Images of another data set; they have no labels that count."""
    name = field.case.dataset
    if name == "cifar10":
        x = read_large(field.setting.inputs, field.data)
    else:
        x = 1 - field.inputs.fresh.x if name == "digits" else read_dataset("fashion-mnist", field.data).train.x
    half = len(x) // 2
    x = x[role * half : (role + 1) * half][: max(n, 1)]
    images = Samples(x, torch.zeros(len(x), dtype=torch.long))
    return in_shares(images, n, torch.ones(1), generator=generator)
