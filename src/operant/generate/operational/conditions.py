"""The condition move: search the declared severities of field conditions for failures."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from operant.conditions import DrawnConditions, Recipe, apply
from operant.data import Samples
from operant.generate.engine import CaseList, Goal, Rows
from operant.generate.operational._cases import LEVEL, check_conditions, check_level, check_same_bounds, p_values
from operant.generate.operational.draws import RecipeDraws
from operant.measure.naturalness import Naturalness
from operant.model import Classifier, value_and_gradient
from operant.rng import normal_like
from operant.suite import Suite
from operant.validation import check_above_to, check_at_least, check_nonnegative, check_share

MAX_IMAGES = 4096  # images that are searched together


@dataclass(frozen=True, kw_only=True)
class ConditionMove:
    """Search over the severities of field conditions: first random draws, then steps around the best.

        fitness(v) = min(margin, 0) + weight · (log p(v) + min(log naturalness - log level, 0))        (1)

    with p(v) the declared density of the severities v, and margin how far past the boundary the model is on the image
    under v, in logits: being wrong by more gains nothing, being likelier does. Only failures are rated by naturalness.
    In the first step ``population`` draws of the recipe are tried on every seed. In each later step the best so far
    moves along the sign of the gradient of (1), without naturalness, in the conditions that are smooth; then it is
    tried, with ``population - 1`` others around it: each condition normal about the best one's or, with probability
    ``fresh``, from a new draw. The randomness in an image (such as its noise) is the best one's, or that draw's.

    Failures whose p-value reaches the level are cases, the likeliest severities first; a seed with ``stop_after`` of
    them leaves. These cases are not limited to a ball: their severities lie in the declared ranges and have a positive
    density. Columns are named after the conditions; from them and ``noise_seed`` `replay` makes the same cases again,
    bit for bit; ``log_prob`` is log p(v). Seeds do not affect each other: random numbers are drawn for all of them
    before the first leaves.

    Args:
        recipe: the conditions, declared or estimated from field data.
        naturalness: accepts failures by its p-value; None accepts all.
        population: severities tried per seed and step, each one row of the model.
        steps: maximum; all but the first cost one more row, with its gradient, if a condition is smooth.
        weight: of likelihood and naturalness, in logits per nat.
        spread: of the steps and of the trials around the best, as a share of each declared range.
        fresh: probability that a condition of a new trial comes from a new draw.
        stop_after: natural failures after which a seed leaves; None keeps all.
        level: the p-value from which a failure is natural.
    """

    recipe: Recipe
    naturalness: Naturalness | None = field(repr=False)
    population: int = 4
    steps: int = 4
    weight: float = 0.5
    spread: float = 0.1
    fresh: float = 0.25
    stop_after: int | None = 2
    level: float = LEVEL

    def __post_init__(self) -> None:
        check_level(self.level)
        check_nonnegative(weight=self.weight)
        check_at_least(1, population=self.population, steps=self.steps)
        if self.stop_after is not None:
            check_at_least(1, stop_after=self.stop_after)
        check_above_to(0, 1, spread=self.spread)
        check_share(fresh=self.fresh)
        check_conditions(self.recipe)

    def __call__(self, model: Classifier, seeds: Samples, *, generator: torch.Generator) -> Suite:
        model.check(seeds)
        check_same_bounds(self.recipe, model)
        seeds = seeds.to(model.device)
        cases = CaseList(seeds, *self.recipe.names, "noise_seed", "log_prob")
        draws = self._draws(len(seeds), generator)
        for some in torch.arange(len(seeds)).split(max(1, MAX_IMAGES // self.population)):
            rows = {"x0": seeds.x[some], "y": seeds.labels[some], "origin": some.to(seeds.x.device)}
            self._search(model, rows, {name: values[some] for name, values in draws.items()}, cases)
        return cases.suite(model, method="conditions").failures()

    def unselected(self, model: Classifier, seeds: Samples, *, generator: torch.Generator) -> Samples:
        """One draw of the recipe per seed, for a judge of these cases; nothing is searched."""
        return RecipeDraws(recipe=self.recipe, dense=1).unselected(model, seeds, generator=generator)

    def _draws(self, n: int, generator: torch.Generator) -> Rows:
        """All random numbers of all seeds: draws of the recipe, noise around the best, and the choice between them."""
        shape = (n, self.steps, self.population, len(self.recipe.names))
        drawn = self.recipe.draw(math.prod(shape[:3]), generator=generator)
        values = drawn.values.view(shape)
        u = torch.rand(shape, dtype=torch.float64, generator=generator, device=generator.device).cpu()
        return {
            "draw": values,
            "noise_seed": drawn.seeds.view(shape[:3]),
            "around": normal_like(values, generator=generator),
            "fresh": u < self.fresh,
        }

    def _search(self, model: Classifier, rows: Rows, draws: Rows, cases: CaseList) -> None:
        """All steps of one batch of seeds."""
        k = len(self.recipe.names)
        rows = rows | {
            "best": torch.zeros(len(rows["y"]), k, dtype=torch.float64),
            "best_seed": torch.zeros(len(rows["y"]), dtype=torch.int64),
            "fitness": torch.full((len(rows["y"]),), -math.inf, dtype=torch.float64),
            "found": torch.zeros(len(rows["y"]), dtype=torch.int64),
        }
        for step in range(self.steps):
            now = {name: values[:, step] for name, values in draws.items()}
            values, noise = (now["draw"], now["noise_seed"]) if step == 0 else self._around(model, rows, now)
            rows = self._evaluated(model, rows, values, noise, cases)
            active = rows["found"] < (math.inf if self.stop_after is None else self.stop_after)
            if not bool(active.any()):
                return
            rows = {name: v[active.to(v.device)] for name, v in rows.items()}
            draws = {name: v[active] for name, v in draws.items()}

    def _evaluated(self, model: Classifier, rows: Rows, values: Tensor, noise: Tensor, cases: CaseList) -> Rows:
        """Evaluate a population of each seed: keep its natural failures, and its best member if that is an advance."""
        m, size = noise.shape
        drawn = self._drawn(values.flatten(0, 1), noise.flatten())
        x = apply(rows["x0"].repeat_interleave(size, 0), drawn)
        y = rows["y"].repeat_interleave(size)
        logits = model.batched_logits(x)
        failing = Goal().reached(logits, y)
        log_p = self.recipe.log_prob(drawn)
        p = p_values(self.naturalness, x, failing).cpu()
        unnatural = (p.log() - math.log(self.level)).clamp_max(0)
        fitness = Goal().margin(logits, y).double().cpu().clamp_max(0) + self.weight * (log_p + unnatural)  # (1)
        kept = self._kept((failing.cpu() & (p >= self.level)).view(m, size), log_p.view(m, size), rows["found"])
        columns = drawn.columns() | {"log_prob": log_p, "noise_seed": drawn.seeds.double()}
        cases.add(columns | {"x": x, "origin": rows["origin"].repeat_interleave(size)}, kept.flatten())
        top, place = fitness.view(m, size).max(1)
        ahead, each = top > rows["fitness"], torch.arange(m)
        return rows | {
            "best": torch.where(ahead[:, None], values[each, place], rows["best"]),
            "best_seed": torch.where(ahead, noise[each, place], rows["best_seed"]),
            "fitness": torch.where(ahead, top, rows["fitness"]),
            "found": rows["found"] + kept.sum(1),
        }

    def _kept(self, good: Tensor, log_p: Tensor, found: Tensor) -> Tensor:
        """The likeliest natural failures, as many as each seed may still add."""
        if self.stop_after is None:
            return good
        order = log_p.masked_fill(~good, -math.inf).argsort(dim=1, descending=True, stable=True)
        missing: Tensor = self.stop_after - found
        return good & (order.argsort(1) < missing[:, None])

    def _around(self, model: Classifier, rows: Rows, now: Rows) -> tuple[Tensor, Tensor]:
        """The best of each seed, moved along its gradient, and others around it."""
        low, high, may_be_absent = self._ranges
        centre = self._climbed(model, rows)[:, None]
        moves = (centre != 0) | ~may_be_absent  # absent conditions stay absent, except in new draws
        around = torch.where(moves, (centre + self.spread * (high - low) * now["around"]).clamp(low, high), 0.0)
        values = torch.where(now["fresh"], now["draw"], around)
        values[:, 0] = centre[:, 0]
        new = now["fresh"].any(2)
        new[:, 0] = False
        return values, torch.where(new, now["noise_seed"], rows["best_seed"][:, None])

    def _climbed(self, model: Classifier, rows: Rows) -> Tensor:
        """The best severities of each seed after one step along the gradient of (1), in smooth conditions."""
        smooth, best = torch.tensor(self.recipe.smooth), rows["best"]
        if not (bool(smooth.any()) and model.has_gradients(rows["x0"])):
            return best
        low, high, may_be_absent = self._ranges
        parts = []
        for some in torch.arange(len(best)).split(model.batch_size):
            x0, y, seeds = rows["x0"][some], rows["y"][some], rows["best_seed"][some]

            def fitness(values: Tensor, x0: Tensor = x0, y: Tensor = y, seeds: Tensor = seeds) -> Tensor:
                drawn = self._drawn(values, seeds)
                margin = Goal().margin(model.logits(apply(x0, drawn)), y).double().cpu()
                return margin.clamp_max(0) + self.weight * self.recipe.log_prob(drawn)

            parts.append(value_and_gradient(fitness, best[some])[1].nan_to_num(0.0))
        moves = smooth & ((best != 0) | ~may_be_absent)
        moved = (best + self.spread * (high - low) * torch.cat(parts).sign()).clamp(low, high)
        return torch.where(moves, moved, best)

    def _drawn(self, values: Tensor, seeds: Tensor) -> DrawnConditions:
        return replace(self.recipe.neutral(len(seeds)), values=values, seeds=seeds)

    @property
    def _ranges(self) -> tuple[Tensor, Tensor, Tensor]:
        """Smallest and largest value of each condition where it is present, and whether it may be absent."""
        each = self.recipe.severities.values()
        low, high, absent = torch.tensor([[s.low, s.high, s.absent] for s in each], dtype=torch.float64).T
        return low, high, absent > 0


def replay(suite: Suite, recipe: Recipe) -> Tensor:
    """The cases of a `ConditionMove` or of `RecipeDraws`, made again from their seeds and columns, bit for bit.

    Args:
        suite: cases of conditions only; choose them by ``suite["move"]`` if there are others.
        recipe: the one they were made with.
    """
    if missing := [name for name in (*recipe.names, "noise_seed") if name not in suite.columns]:
        raise ValueError(f"the suite must have the columns of this recipe's conditions, it lacks {', '.join(missing)}")
    columns = torch.stack([torch.as_tensor(suite[name]).double() for name in (*recipe.names, "noise_seed")], 1)
    if other := int(columns.isnan().any(1).sum()):
        raise ValueError(
            f"every case must have been made by conditions, {other} of {len(suite)} were not; choose those that were: "
            'suite[suite["move"] == "conditions"]'
        )
    if len(suite) == 0:
        return suite.x
    drawn = replace(recipe.neutral(len(suite)), values=columns[:, :-1], seeds=columns[:, -1].long())
    return apply(suite.x0, drawn)
