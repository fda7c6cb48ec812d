"""The gradient move: up the loss, then towards natural inputs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from operant.data import Samples
from operant.generate.engine import (
    CaseList,
    Goal,
    Rows,
    advance,
    check_ball,
    chosen,
    column,
    loss_gradient,
    project,
    random_point,
    steepest,
)
from operant.generate.operational._cases import LEVEL, check_level, p_values
from operant.measure.naturalness import Naturalness
from operant.model import Classifier, value_and_gradient
from operant.suite import Suite
from operant.validation import check_at_least, check_nonnegative, check_positive


@dataclass(frozen=True, kw_only=True)
class GradientMove:
    """Projected ascent on the loss and, where a row fails but is unnatural, on naturalness as well.

        x ← project(x + step_size · steepest(g / |g| + weight · h / |h|)),   g = ∇L(x, y),  h = ∇s(x)        (1)

    with s the naturalness's surrogate, and without the second term where the row does not fail: up to its first failure
    only the loss counts, which finds failures of more seeds and saves most of the cost of naturalness. Each gradient is
    scaled to length one before they are added, since the loss of a confident model is flat and naturalness steep.

    A point that fails and is natural is a case, and a seed with ``stop_after`` of them leaves the batch. A seed without
    any has its last point as its case, as in `PGD`, so that every seed has at least one row, failing or not. With
    ``weight=0`` naturalness has no effect: this is `PGD`, and with ``stop_after=1`` it is `PGD` that stops early. Seeds
    do not affect each other: random numbers are drawn for all of them before the first leaves.

    What guides a search never judges it: a search finds what its guide overlooks. The five scores of naturalness guide
    this move and decide when a seed leaves. In a campaign a learned judge, which the search never sees, decides which
    of its cases are natural (see `operant.campaign.judging`).

    Args:
        naturalness: guides unnatural failures by its surrogate, and by its p-value ends the search of a seed.
        radius: of the ball around each seed, in input units.
        norm: ``"linf"`` or ``"l2"``. In L2 the pixels that matter most move most; in Linf all move equally, which looks
            like noise.
        steps: maximum; a step is one row of the model, with its gradient.
        step_size: in input units (default: 2.5 * radius / steps).
        random_start: start from a uniform point of the ball instead of the seed.
        weight: of naturalness, relative to the loss, in (1).
        stop_after: natural failures after which a seed leaves; None runs every step and keeps the last point only.
        level: the p-value from which a failure is natural.
    """

    naturalness: Naturalness = field(repr=False)
    radius: float
    norm: str = "l2"
    steps: int = 10
    step_size: float | None = None
    random_start: bool = False
    weight: float = 3.0
    stop_after: int | None = 1
    level: float = LEVEL

    def __post_init__(self) -> None:
        check_ball(self.radius, self.norm)
        check_level(self.level)
        check_at_least(1, steps=self.steps)
        if self.stop_after is not None:
            check_at_least(1, stop_after=self.stop_after)
        if self.step_size is not None:
            check_positive(step_size=self.step_size)
        check_nonnegative(weight=self.weight)

    def __call__(self, model: Classifier, seeds: Samples, *, generator: torch.Generator) -> Suite:
        model.check(seeds)
        seeds = seeds.to(model.device)
        start = seeds.x
        if self.random_start:
            start = random_point(start, self.radius, self.norm, generator=generator).clamp(*model.bounds)
        origin, found = torch.arange(len(seeds), device=start.device), torch.zeros_like(seeds.labels)
        rows = {"x0": seeds.x, "y": seeds.labels, "x": start, "origin": origin, "found": found}
        cases = CaseList(seeds)
        for some in origin.split(model.batch_size):
            batch = advance(chosen(rows, some), partial(self._step, model, cases), steps=self.steps)
            cases.add(batch, batch["found"] == 0)
        return cases.suite(model, method=f"gradient-{self.norm}")

    def unselected(self, model: Classifier, seeds: Samples, *, generator: torch.Generator) -> Samples:
        """The last point of each seed after all steps, failing or not, for a judge of these cases."""
        return replace(self, stop_after=None)(model, seeds, generator=generator).samples()

    def _step(self, model: Classifier, cases: CaseList, state: Rows) -> tuple[Rows, Tensor | None]:
        x, y = state["x"], state["y"]
        logits, direction = loss_gradient(model, Goal(), x, y)
        failing = Goal().reached(logits, y)
        found = failing & (p_values(self.naturalness if self.weight else None, x, failing) >= self.level)
        done = None
        if self.stop_after is not None:
            cases.add(state, found)
            state = state | {"found": state["found"] + found}
            done = state["found"] >= self.stop_after
        if self.weight:
            direction = self._with_naturalness(x, direction, failing & ~found)
        radius = torch.full_like(y, self.radius, dtype=x.dtype)
        size = 2.5 / self.steps if self.step_size is None else self.step_size / self.radius
        moved = x + column(size * radius, x) * steepest(direction, self.norm)  # (1)
        moved = project(moved, state["x0"], radius, self.norm, model.bounds)
        return state | {"x": moved if done is None else torch.where(column(done, x), x, moved)}, done

    def _with_naturalness(self, x: Tensor, gradient: Tensor, unnatural: Tensor) -> Tensor:
        """The direction to climb: along the loss, and along naturalness in unnatural rows."""
        direction = steepest(gradient, "l2")
        if bool(unnatural.any()):
            _, pull = value_and_gradient(self.naturalness.surrogate, x[unnatural])
            direction[unnatural] += self.weight * steepest(pull.nan_to_num(0.0), "l2")
        return direction
