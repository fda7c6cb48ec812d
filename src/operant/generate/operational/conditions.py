"""The move by field conditions: which severities, among those that are declared, make the model fail on a seed."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from operant.conditions import DrawnConditions, Recipe, apply
from operant.data import Samples
from operant.generate.engine import Goal, Rows
from operant.generate.operational._search import LEVEL, Met, check_search, rated
from operant.measure.naturalness import Naturalness
from operant.model import Classifier, value_and_gradient
from operant.rng import normal_like
from operant.suite import Suite

AT_ONCE = 4096  # images in play together


@dataclass(frozen=True, kw_only=True)
class ConditionMove:
    """Search over the severities of field conditions: draws from the recipe first, then steps around the best.

        fitness(v) = min(margin, 0) + weight · (log p(v) + min(log naturalness - log level, 0))        (1)

    with p(v) the declared density of the severities v, and margin how far past the boundary the model is on the image
    under v, in logits: to be wrong by more is worth nothing, to be likelier is. Only failures are asked how natural
    they are.
    In the first step ``population`` draws of the recipe are tried on every seed. In each later step the best so far
    moves along the sign of the gradient of (1), without naturalness, in the conditions that are smooth; then it is
    tried, with ``population - 1`` others around it: each condition normal about the best one's or, with probability
    ``fresh``, from a new draw. What is random in an image (its noise, say) is the best one's, or that draw's.

    Failures whose p-value reaches the level are cases, the likeliest severities first; a seed with ``enough`` of them
    leaves. These cases lie in no ball: their severities lie in the declared ranges instead, and have a positive
    density. They stand in columns named after the conditions, ``noise_seed`` among them, from which `replay` makes the
    same cases again, bit for bit; ``log_prob`` is log p(v). Seeds do not see each other: random numbers are drawn for
    all of them before the first leaves.

    Args:
        recipe: the conditions, declared or estimated from field data.
        naturalness: accepts failures by its p-value; None accepts all.
        population: severities tried on a seed in a step, each a row of the model.
        steps: how many, at most; all but the first cost one more row, with its gradient, if a condition is smooth.
        weight: of likelihood and naturalness, in logits for a nat.
        spread: of the steps and of what is tried around the best, as a share of each declared range.
        fresh: how often a condition of a new trial comes from a new draw.
        enough: natural failures after which a seed leaves; None keeps all there are.
        level: the p-value from which a failure is natural.
    """

    recipe: Recipe
    naturalness: Naturalness | None = field(repr=False)
    population: int = 4
    steps: int = 4
    weight: float = 0.5
    spread: float = 0.1
    fresh: float = 0.25
    enough: int | None = 2
    level: float = LEVEL

    def __post_init__(self) -> None:
        check_search(weight=self.weight, enough=self.enough, level=self.level)
        if self.population < 1 or self.steps < 1:
            raise ValueError(f"population and steps must be at least 1, got {self.population} and {self.steps}")
        if not (0 < self.spread <= 1 and 0 <= self.fresh <= 1):
            raise ValueError(
                f"spread must lie in (0, 1] and fresh in [0, 1], shares both, got {self.spread} and {self.fresh}"
            )
        if not self.recipe.names:
            raise ValueError("the recipe must declare at least one condition to search over, got none")

    def __call__(self, model: Classifier, seeds: Samples, *, generator: torch.Generator) -> Suite:
        model.check(seeds)
        if self.recipe.bounds != model.bounds:
            raise ValueError(
                f"the recipe's bounds must be the model's {model.bounds}, got {self.recipe.bounds}; declare them so"
            )
        seeds = seeds.to(model.device)
        met = Met(seeds, *self.recipe.names, "noise_seed", "log_prob")
        luck = self._luck(len(seeds), generator)
        for some in torch.arange(len(seeds)).split(max(1, AT_ONCE // self.population)):
            rows = {"x0": seeds.x[some], "y": seeds.labels[some], "origin": some.to(seeds.x.device)}
            self._search(model, rows, {name: values[some] for name, values in luck.items()}, met)
        return met.suite(model, method="conditions").failures()

    def _luck(self, n: int, generator: torch.Generator) -> Rows:
        """All random numbers of all seeds: draws, what is added around the best, and which of the two is taken."""
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

    def _search(self, model: Classifier, rows: Rows, luck: Rows, met: Met) -> None:
        """Every step of one batch of seeds."""
        k = len(self.recipe.names)
        rows = rows | {
            "best": torch.zeros(len(rows["y"]), k, dtype=torch.float64),
            "best_seed": torch.zeros(len(rows["y"]), dtype=torch.int64),
            "fitness": torch.full((len(rows["y"]),), -math.inf, dtype=torch.float64),
            "met": torch.zeros(len(rows["y"]), dtype=torch.int64),
        }
        for step in range(self.steps):
            now = {name: values[:, step] for name, values in luck.items()}
            values, noise = (now["draw"], now["noise_seed"]) if step == 0 else self._around(model, rows, now)
            rows = self._tried(model, rows, values, noise, met)
            going = rows["met"] < (math.inf if self.enough is None else self.enough)
            if not bool(going.any()):
                return
            rows = {name: v[going.to(v.device)] for name, v in rows.items()}
            luck = {name: v[going] for name, v in luck.items()}

    def _tried(self, model: Classifier, rows: Rows, values: Tensor, noise: Tensor, met: Met) -> Rows:
        """Look at a population of each seed: keep its natural failures, and the best of it if that is an advance."""
        m, size = noise.shape
        drawn = self._drawn(values.flatten(0, 1), noise.flatten())
        x = apply(rows["x0"].repeat_interleave(size, 0), drawn)
        y = rows["y"].repeat_interleave(size)
        logits = model.batched_logits(x)
        failing = Goal().reached(logits, y)
        log_p = self.recipe.log_prob(drawn)
        p = rated(self.naturalness, x, failing).cpu()
        strange = (p.log() - math.log(self.level)).clamp_max(0)
        fitness = Goal().margin(logits, y).double().cpu().clamp_max(0) + self.weight * (log_p + strange)  # (1)
        kept = self._kept((failing.cpu() & (p >= self.level)).view(m, size), log_p.view(m, size), rows["met"])
        columns = drawn.columns() | {"log_prob": log_p, "noise_seed": drawn.seeds.double()}
        met.add(columns | {"x": x, "origin": rows["origin"].repeat_interleave(size)}, kept.flatten())
        top, place = fitness.view(m, size).max(1)
        ahead, each = top > rows["fitness"], torch.arange(m)
        return rows | {
            "best": torch.where(ahead[:, None], values[each, place], rows["best"]),
            "best_seed": torch.where(ahead, noise[each, place], rows["best_seed"]),
            "fitness": torch.where(ahead, top, rows["fitness"]),
            "met": rows["met"] + kept.sum(1),
        }

    def _kept(self, good: Tensor, log_p: Tensor, met: Tensor) -> Tensor:
        """Of the natural failures, the likeliest, as many as each seed still lacks."""
        if self.enough is None:
            return good
        order = log_p.masked_fill(~good, -math.inf).argsort(dim=1, descending=True, stable=True)
        lacks: Tensor = self.enough - met
        return good & (order.argsort(1) < lacks[:, None])

    def _around(self, model: Classifier, rows: Rows, now: Rows) -> tuple[Tensor, Tensor]:
        """The best of each seed, moved along its gradient, and others around it."""
        low, high, may_be_absent = self._ranges
        centre = self._climbed(model, rows)[:, None]
        moves = (centre != 0) | ~may_be_absent  # what is absent stays so, unless a new draw says otherwise
        around = torch.where(moves, (centre + self.spread * (high - low) * now["around"]).clamp(low, high), 0.0)
        values = torch.where(now["fresh"], now["draw"], around)
        values[:, 0] = centre[:, 0]
        new = now["fresh"].any(2)
        new[:, 0] = False
        return values, torch.where(new, now["noise_seed"], rows["best_seed"][:, None])

    def _climbed(self, model: Classifier, rows: Rows) -> Tensor:
        """The best severities of each seed after one step along the gradient of (1), where conditions are smooth."""
        smooth, best = torch.tensor(self.recipe.smooth), rows["best"]
        if not bool(smooth.any()):
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
        """Smallest and largest value of each condition where it happens, and whether it may not."""
        each = self.recipe.severities.values()
        low, high, absent = torch.tensor([[s.low, s.high, s.absent] for s in each], dtype=torch.float64).T
        return low, high, absent > 0


def replay(suite: Suite, recipe: Recipe) -> Tensor:
    """The cases of a `ConditionMove`, made again from their seeds and columns, ``(N, *shape)``: the same bits.

    Args:
        suite: cases of that move alone; choose them by ``suite["move"]`` if others made cases too.
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
