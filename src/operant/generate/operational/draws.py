"""Random draws of field conditions: cases that pass and cases that fail, as the field would send them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from operant.conditions import DrawnConditions, Recipe, apply
from operant.data import Samples
from operant.generate.engine import judge
from operant.generate.operational._cases import check_conditions, check_same_bounds
from operant.model import Classifier
from operant.rng import spawn
from operant.suite import Suite
from operant.validation import check_above_to, check_at_least

PILOT = 4096  # draws that find the edge of the dense region
EXTRA = 1.3  # draws per row still missing, divided by the share that is expected to be dense


@dataclass(frozen=True, kw_only=True)
class RecipeDraws:
    """Draw conditions for each seed, inside the dense region of the recipe, and keep passes as well as failures.

        v ~ p given log p(v) ≥ t,   t: the level that a share ``dense`` of draws from p reaches        (1)

    with p the declared density of the severities. Nothing is searched and nothing is selected, so the share of failing
    cases estimates how often the model fails under these conditions, and cases that pass show where it is safe:
    `operant.profile.fit_risk` needs both. This is the cheapest search: one row of the model per case.

    Columns are named after the conditions; from them and ``noise_seed`` `replay` makes the same cases again, bit for
    bit; ``log_prob`` is log p(v), and ``margin`` how far past the boundary the model is, in logits. Seeds do not affect
    each other.

    Args:
        recipe: the conditions, declared or estimated from field data.
        per_seed: cases per seed. Cases of one seed are alike: more seeds teach more than more cases per seed.
        dense: share of the recipe's draws that may occur; the least likely ones are left out. 1 keeps all.
    """

    recipe: Recipe
    per_seed: int = 1
    dense: float = 0.9

    def __post_init__(self) -> None:
        check_at_least(1, per_seed=self.per_seed)
        check_above_to(0, 1, dense=self.dense)
        check_conditions(self.recipe)

    def __call__(self, model: Classifier, seeds: Samples, *, generator: torch.Generator) -> Suite:
        model.check(seeds)
        check_same_bounds(self.recipe, model)
        seeds = seeds.to(model.device)
        origin = torch.arange(len(seeds)).repeat_interleave(self.per_seed)
        drawn = self.draw(len(origin), generator=generator)
        suite = judge(model, seeds, _applied(model, seeds.x, origin, drawn), origin=origin, method="draws")
        return suite.with_columns(**drawn.columns(), log_prob=self.recipe.log_prob(drawn))

    def unselected(self, model: Classifier, seeds: Samples, *, generator: torch.Generator) -> Samples:
        """One draw per seed, for a judge of these cases; the model is not asked."""
        check_same_bounds(self.recipe, model)
        drawn = self.draw(len(seeds), generator=generator)
        return Samples(_applied(model, seeds.x, torch.arange(len(seeds)), drawn), seeds.y)

    def draw(self, n: int, *, generator: torch.Generator) -> DrawnConditions:
        """Conditions of ``n`` cases, by (1)."""
        drawn, level = self.recipe.draw(n, generator=generator), self._level()
        while len(rare := (self.recipe.log_prob(drawn) < level).nonzero().flatten()):
            again = self.recipe.draw(int(EXTRA / self.dense * len(rare)) + 1, generator=generator)
            again = again[self.recipe.log_prob(again) >= level][: len(rare)]
            some = rare[: len(again)]
            drawn.values[some], drawn.seeds[some] = again.values, again.seeds
        return drawn

    def _level(self) -> float:
        """t of (1), from draws that are the same for every generator."""
        if self.dense == 1:
            return -torch.inf
        log_p = self.recipe.log_prob(self.recipe.draw(PILOT, generator=spawn(0, "dense region")))
        place = min(PILOT - 1, int((1 - self.dense) * PILOT))
        return float(log_p.sort().values[place]) - 1e-9  # equal densities are all dense


def _applied(model: Classifier, x: Tensor, origin: Tensor, drawn: DrawnConditions) -> Tensor:
    """The inputs of these rows under their conditions, a batch at a time."""
    parts = torch.arange(len(origin)).split(model.batch_size)
    return torch.cat([x[:0], *(apply(x[origin[some]], drawn[some]) for some in parts)])
