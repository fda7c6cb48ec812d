"""Shared by all searches: goals, a loop that drops finished rows, projection into balls, and the final judgement."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from operant.data import Samples
from operant.model import Classifier, value_and_gradient
from operant.rng import normal_like, uniform_like
from operant.suite import Suite
from operant.validation import check_nonnegative, check_one_of, check_positive

Rows = dict[str, Tensor]
"""The state of a search: tensors with one row per active seed."""

Radii = Tensor | float
"""One radius for all rows, or one per row."""

SLACK = 1e-4  # margin that a case must have, as a share of the largest logit, so that every later pass agrees


@dataclass(frozen=True, kw_only=True)
class Goal:
    """What counts as success, and the loss to raise.

    Args:
        target: the class to reach, or None for any class but the label.
        confidence: by how much the wrong logit must exceed the right one.
    """

    target: int | None = None
    confidence: float = 0.0

    def __post_init__(self) -> None:
        if self.target is not None and not (hasattr(self.target, "__index__") and self.target >= 0):
            raise ValueError(f"target must be a class, 0 or more, got {self.target}")
        check_nonnegative(confidence=self.confidence)

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        """Cross-entropy of the label, to raise; or of the target, negated. One value per row."""
        if self.target is None:
            return cross_entropy(logits, y, reduction="none")
        return -cross_entropy(logits, torch.full_like(y, self.target), reduction="none")

    def margin(self, logits: Tensor, y: Tensor) -> Tensor:
        """How far past the boundary each row is, in logits; negative where the goal is not reached."""
        c = y if self.target is None else torch.full_like(y, self.target)
        own = logits.gather(1, c[:, None])[:, 0]
        other = logits.scatter(1, c[:, None], -torch.inf).amax(1)
        return other - own if self.target is None else own - other

    def reached(self, logits: Tensor, y: Tensor) -> Tensor:
        """Rows that succeed by a margin no rounding can undo."""
        return self.margin(logits, y) > self.confidence + SLACK * logits.abs().amax(1)


def advance(rows: Rows, step: Callable[[Rows], tuple[Rows, Tensor | None]], *, steps: int) -> Rows:
    """Run ``step`` on all rows together; rows that it returns as finished keep their state and leave the batch.

    Returns the final state of every row, in the initial order.
    """
    final = {name: values.clone() for name, values in rows.items()}
    place = torch.arange(len(rows["x"]), device=rows["x"].device)
    for _ in range(steps):
        rows, finished = step(rows)
        if finished is None or not bool(finished.any()):
            continue
        for name, values in rows.items():
            final[name][place[finished]] = values[finished]
        rows, place = chosen(rows, ~finished), place[~finished]
        if len(place) == 0:
            return final
    for name, values in rows.items():
        final[name][place] = values
    return final


def fuzz(
    model: Classifier,
    seeds: Samples,
    search: Callable[[Rows], Tensor],
    *,
    goal: Goal,
    method: str,
    start: Callable[[Tensor], Tensor] | None = None,
) -> Suite:
    """Check the seeds, search from them batch by batch, and judge every case in one final pass of the model.

    Args:
        search: from ``x0``, ``y`` and ``x`` (starting points) of one batch to its cases.
        start: from all seeds to all starting points; called once, so that random numbers do not depend on batches.
    """
    model.check(seeds)
    seeds = seeds.to(model.device)
    origin = eligible(model, seeds, goal)
    rows = {"x0": seeds.x, "y": seeds.labels, "x": seeds.x if start is None else start(seeds.x)}
    cases = [search(chosen(rows, some)) for some in origin.split(model.batch_size) if len(some)]
    x, skipped = torch.cat([seeds.x[:0], *cases]), len(seeds) - len(origin)
    return judge(model, seeds, x, origin=origin, goal=goal, method=method, skipped=skipped)


def judge(
    model: Classifier,
    seeds: Samples,
    x: Tensor,
    *,
    method: str,
    origin: Tensor | None = None,
    skipped: int = 0,
    goal: Goal = Goal(),  # frozen
) -> Suite:
    """A suite of these cases with the model's predictions, from one batched pass, and their margins (``margin``).

    Args:
        method: name of the method that made the cases ``x``.
        origin: the row of ``seeds`` that each case came from (default: one case per seed, in order).
        skipped: how many seeds were not searched; a seed that was searched and gave no case is not among them.
    """
    origin = torch.arange(len(seeds)) if origin is None else origin
    y = seeds.labels[origin]
    logits = model.batched_logits(x) if len(x) else x.new_zeros(0, model.classes(seeds.x))
    columns = {"margin": goal.margin(logits, y)}
    if goal.target is not None:
        columns["target"] = torch.full_like(columns["margin"], goal.target)
    prediction = logits.argmax(1)
    return Suite.of(
        x, seeds=seeds, origin=origin, prediction=prediction, method=method, columns=columns, skipped=skipped
    )


class CaseList:
    """The cases that a search has found, with the row of their seed (``origin``) and further columns."""

    def __init__(self, seeds: Samples, *names: str) -> None:
        self.seeds, self.names = seeds, ("x", "origin", *names)
        self.parts: list[Rows] = []

    def add(self, rows: Rows, which: Tensor | slice) -> None:
        self.parts.append({name: rows[name][which] for name in self.names})

    def rows(self) -> Rows:
        """All cases in seed order, then in the order they were found."""
        none = dict.fromkeys(self.names, self.seeds.labels[:0]) | {"x": self.seeds.x[:0]}
        rows = {name: torch.cat([part[name] for part in self.parts or [none]]) for name in self.names}
        return chosen(rows, rows["origin"].argsort(stable=True))

    def suite(self, model: Classifier, *, method: str, skipped: int = 0) -> Suite:
        """All cases after a final pass of the model."""
        rows = self.rows()
        suite = judge(model, self.seeds, rows.pop("x"), origin=rows.pop("origin"), method=method, skipped=skipped)
        return suite.with_columns(**rows)


def chosen(rows: Rows, which: Tensor) -> Rows:
    return {name: values[which] for name, values in rows.items()}


def loss_gradient(model: Classifier, goal: Goal, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Logits at ``x`` and the gradient of the goal's loss there."""
    logits: list[Tensor] = []

    def objective(z: Tensor) -> Tensor:
        logits.append(model.logits(z))
        return goal.loss(logits[0], y)

    _, gradient = value_and_gradient(objective, x)
    return logits[0].detach(), gradient.nan_to_num(0.0)  # a row without a direction stays where it is


def column(values: Tensor, like: Tensor) -> Tensor:
    """One value per row, shaped to multiply with ``like``."""
    return values.view(-1, *[1] * (like.ndim - 1))


def steepest(gradient: Tensor, norm: str) -> Tensor:
    """The direction of unit length in ``norm`` that raises the loss most; zero where the gradient is."""
    if norm == "linf":
        return gradient.sign()
    largest = gradient.flatten(1).abs().amax(1).clamp_min(torch.finfo(gradient.dtype).tiny)
    scaled = gradient / column(largest, gradient)  # squares of small gradients would be lost in rounding
    return scaled / column(scaled.flatten(1).norm(dim=1).clamp_min(1), scaled)


def project(x: Tensor, x0: Tensor, radius: Radii, norm: str, bounds: tuple[float, float]) -> Tensor:
    """``x`` projected into the ball around each seed and clipped to bounds."""
    delta, r = x - x0, column(torch.as_tensor(radius, dtype=x.dtype, device=x.device), x)
    if norm == "linf":
        delta = torch.minimum(torch.maximum(delta, -r), r)
    else:
        length = column(delta.flatten(1).norm(dim=1), x)
        delta = delta * (r / torch.maximum(length, r))
    return (x0 + delta).clamp_(*bounds)


def random_point(x0: Tensor, radius: float, norm: str, *, generator: torch.Generator) -> Tensor:
    """Uniform in the ball around each seed (before bounds are applied)."""
    if norm == "linf":
        return x0 + uniform_like(x0, -radius, radius, generator=generator)
    direction = steepest(normal_like(x0, generator=generator), "l2")
    share = uniform_like(x0.flatten(1)[:, 0], 0.0, 1.0, generator=generator) ** (1 / x0[0].numel())
    return x0 + radius * column(share, x0) * direction


def check_ball(radius: float, norm: str, *, norms: tuple[str, ...] = ("linf", "l2")) -> None:
    check_positive(radius=radius)
    check_one_of(norms, norm=norm)


def eligible(model: Classifier, seeds: Samples, goal: Goal) -> Tensor:
    """Rows of the seeds to search from: for a targeted goal, those that are not of the target class already."""
    if goal.target is None:
        return torch.arange(len(seeds))
    if goal.target >= model.classes(seeds.x):
        raise ValueError(f"target must be one of the model's {model.classes(seeds.x)} classes, got {goal.target}")
    return (seeds.labels != goal.target).nonzero().flatten().cpu()
