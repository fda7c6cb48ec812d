"""FGSM, BIM and PGD: projected steps along the gradient of the loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from operant.data import Samples
from operant.generate.engine import (
    Goal,
    Radii,
    Rows,
    advance,
    check_ball,
    chosen,
    column,
    fuzz,
    loss_gradient,
    project,
    random_point,
    steepest,
)
from operant.model import Classifier
from operant.suite import Suite
from operant.validation import check_at_least, check_positive

SCAN = 50  # points tried along a ray, from the seed outwards
HALVINGS = 10  # bisection steps


@dataclass(frozen=True, kw_only=True)
class PGD:
    """Projected gradient ascent on the loss, from a random point of the ball.

        x ← project(x + step_size · steepest(∇L(x, y)))        (1)

    Args:
        radius: of the ball around each seed, in input units.
        norm: ``"linf"`` or ``"l2"``.
        steps: how many; all are run unless ``stop_early``.
        step_size: in input units (default: 2.5 * radius / steps, so that every point of the ball can be reached).
        random_start: start from a uniform point of the ball instead of the seed.
        target: the class to reach, or None for any but the label; seeds of that class are skipped.
        stop_early: rows stop as soon as they fail, which is faster and ends nearer to the seed.
        confidence: with ``stop_early``, by how many logits a row must fail before it stops.

    References:
        | Towards Deep Learning Models Resistant to Adversarial Attacks (Madry et al., 2018)
        | https://arxiv.org/abs/1706.06083
    """

    radius: float
    norm: str = "linf"
    steps: int = 10
    step_size: float | None = None
    random_start: bool = True
    target: int | None = None
    stop_early: bool = False
    confidence: float = 0.0

    def __post_init__(self) -> None:
        check_ball(self.radius, self.norm)
        check_at_least(1, steps=self.steps)
        if self.step_size is not None:
            check_positive(step_size=self.step_size)
        _check_goal(self, needed=self.stop_early, by="stop_early")

    def __call__(self, model: Classifier, seeds: Samples, *, generator: torch.Generator) -> Suite:
        goal = Goal(target=self.target, confidence=self.confidence)
        size = 2.5 / self.steps if self.step_size is None else self.step_size / self.radius
        climb = partial(ascend, model, goal=goal, size=size, norm=self.norm, steps=self.steps)
        search, start = partial(climb, radius=self.radius, leave=self.stop_early), _start(self, model, generator)
        return fuzz(model, seeds, search, goal=goal, method=f"pgd-{self.norm}", start=start)


@dataclass(frozen=True, kw_only=True)
class FGSM:
    """One step along the gradient (its sign for ``"linf"``), of length ``radius``.

    With ``minimal=True`` the step is the smallest along that direction that makes the model fail: the ray is scanned
    outwards, since failing is not monotone along it, and the first bracket is bisected. Papers that ran early Foolbox
    versions with default settings report this. Seeds without such a step get the full one.

    Args:
        radius: length of the step, or with ``minimal`` the largest to try.
        norm, random_start, target: as in `PGD`.
        minimal: use the smallest step that fails.
        confidence: with ``minimal``, by how many logits the case must fail.

    References:
        | Explaining and Harnessing Adversarial Examples (Goodfellow et al., 2015)
        | https://arxiv.org/abs/1412.6572
    """

    radius: float
    norm: str = "linf"
    random_start: bool = False
    target: int | None = None
    minimal: bool = False
    confidence: float = 0.0

    def __post_init__(self) -> None:
        check_ball(self.radius, self.norm)
        _check_goal(self, needed=self.minimal, by="minimal")
        if self.minimal and self.random_start:
            raise ValueError("minimal=True searches outwards from the seed; leave random_start off")

    def __call__(self, model: Classifier, seeds: Samples, *, generator: torch.Generator) -> Suite:
        goal = Goal(target=self.target, confidence=self.confidence)
        move = _smallest_step if self.minimal else partial(ascend, size=1.0, steps=1, leave=False)
        search = partial(move, model, goal=goal, radius=self.radius, norm=self.norm)
        name = f"fgsm-{self.norm}-minimal" if self.minimal else f"fgsm-{self.norm}"
        return fuzz(model, seeds, search, goal=goal, method=name, start=_start(self, model, generator))


@dataclass(frozen=True, kw_only=True)
class BIM:
    """The basic iterative method: projected steps from the seed itself.

    With ``minimal=True`` the radius is bisected for each row, with the step in proportion, down to the smallest ball in
    which the steps still make the model fail. Seeds that withstand the full radius get the case of that radius.

    Args:
        radius: of the ball, or with ``minimal`` the largest to try.
        norm, target: as in `PGD`.
        steps: how many; all are run unless ``stop_early`` or ``minimal``.
        step_size: in input units (default: radius / 5). With ``minimal``, for the full radius.
        stop_early: rows stop as soon as they fail.
        minimal: use the smallest ball that holds a failure.
        confidence: with ``stop_early`` or ``minimal``, by how many logits a row must fail.

    References:
        | Adversarial Examples in the Physical World (Kurakin et al., 2017)
        | https://arxiv.org/abs/1607.02533
    """

    radius: float
    norm: str = "linf"
    steps: int = 10
    step_size: float | None = None
    target: int | None = None
    stop_early: bool = False
    minimal: bool = False
    confidence: float = 0.0

    def __post_init__(self) -> None:
        check_ball(self.radius, self.norm)
        check_at_least(1, steps=self.steps)
        if self.step_size is not None:
            check_positive(step_size=self.step_size)
        _check_goal(self, needed=self.stop_early or self.minimal, by="stop_early or minimal")

    def __call__(self, model: Classifier, seeds: Samples, *, generator: torch.Generator) -> Suite:
        goal = Goal(target=self.target, confidence=self.confidence)
        size = 0.2 if self.step_size is None else self.step_size / self.radius
        climb = partial(ascend, model, goal=goal, size=size, norm=self.norm, steps=self.steps)

        def search(rows: Rows) -> Tensor:
            x = climb(rows, radius=self.radius, leave=self.stop_early or self.minimal)
            if self.minimal and bool((broken := _reached(model, goal, x, rows["y"])).any()):
                x[broken] = self._smallest_ball(model, goal, chosen(rows, broken), climb, x[broken])
            return x

        name = f"bim-{self.norm}-minimal" if self.minimal else f"bim-{self.norm}"
        return fuzz(model, seeds, search, goal=goal, method=name)

    def _smallest_ball(
        self, model: Classifier, goal: Goal, rows: Rows, climb: Callable[..., Tensor], best: Tensor
    ) -> Tensor:
        """Cases that fail in the smallest ball, by bisection; ``best`` are those of the full ball."""
        low = torch.zeros_like(rows["y"], dtype=best.dtype)
        high = torch.full_like(low, self.radius)
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            x = climb(rows, radius=middle, leave=True)
            failing = _reached(model, goal, x, rows["y"])
            best = torch.where(column(failing, x), x, best)
            low, high = torch.where(failing, low, middle), torch.where(failing, middle, high)
        return best


def ascend(
    model: Classifier, rows: Rows, goal: Goal, *, radius: Radii, size: float, norm: str, steps: int, leave: bool
) -> Tensor:
    """Projected steps of ``size`` times each row's radius; with ``leave``, rows stop once they reach the goal."""
    radii = torch.as_tensor(radius, dtype=rows["x"].dtype, device=rows["x"].device).expand(len(rows["x"]))

    def step(state: Rows) -> tuple[Rows, Tensor | None]:
        logits, gradient = loss_gradient(model, goal, state["x"], state["y"])
        moved = state["x"] + column(size * state["radius"], gradient) * steepest(gradient, norm)
        moved = project(moved, state["x0"], state["radius"], norm, model.bounds)
        if not leave:
            return state | {"x": moved}, None
        done = goal.reached(logits, state["y"])
        return state | {"x": torch.where(column(done, moved), state["x"], moved)}, done

    return advance(rows | {"radius": radii}, step, steps=steps)["x"]


def _smallest_step(model: Classifier, rows: Rows, goal: Goal, *, radius: float, norm: str) -> Tensor:
    _, gradient = loss_gradient(model, goal, rows["x0"], rows["y"])
    ray = rows | {"direction": steepest(gradient, norm), "reach": torch.zeros_like(rows["y"], dtype=gradient.dtype)}

    def at(state: Rows, reach: Tensor) -> Tensor:
        return (state["x0"] + column(reach, state["x0"]) * state["direction"]).clamp(*model.bounds)

    def outwards(state: Rows) -> tuple[Rows, Tensor]:
        done = _reached(model, goal, at(state, state["reach"]), state["y"])
        return state | {"reach": torch.where(done, state["reach"], state["reach"] + radius / SCAN)}, done

    ray = advance(ray, outwards, steps=SCAN)
    ray["reach"] = ray["reach"].clamp_max(radius)
    high, low = ray["reach"], (ray["reach"] - radius / SCAN).clamp_min(0)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        failing = _reached(model, goal, at(ray, middle), rows["y"])
        low, high = torch.where(failing, low, middle), torch.where(failing, middle, high)
    found = _reached(model, goal, at(ray, high), rows["y"])
    return at(ray, torch.where(found, high, radius))


def _reached(model: Classifier, goal: Goal, x: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        return goal.reached(model.logits(x), y)


def _start(options: PGD | FGSM, model: Classifier, generator: torch.Generator) -> Callable[[Tensor], Tensor] | None:
    if not options.random_start:
        return None
    return lambda x0: random_point(x0, options.radius, options.norm, generator=generator).clamp(*model.bounds)


def _check_goal(options: PGD | FGSM | BIM, *, needed: bool, by: str) -> None:
    if options.confidence and not needed:
        raise ValueError(f"confidence={options.confidence} only takes effect with {by}=True")
    Goal(target=options.target, confidence=options.confidence)
