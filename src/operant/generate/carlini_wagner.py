"""Carlini and Wagner's L2 attack: the nearest failure, by descent on distance plus a weighted hinge."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from operant.data import Samples
from operant.generate.engine import SLACK, Goal, Rows, advance, column, fuzz
from operant.model import Classifier, value_and_gradient
from operant.suite import Suite
from operant.validation import check_at_least, check_positive


@dataclass(frozen=True, kw_only=True)
class CarliniWagner:
    """The nearest failure in L2, found by Adam in a space where bounds always hold.

        minimise over w   ‖x(w) − x₀‖₂² + c · max(0, κ − m(x(w))),   x(w) = (tanh w + 1) / 2        (1)

    (for bounds 0 and 1), with m the margin by which the case fails. The weight c is searched for each row: ten times
    larger until a failure is found, then bisected between weights that worked and that did not. Rows whose objective no
    longer falls stop early.

    Args:
        steps: of Adam per weight.
        step_size: of Adam.
        binary_search_steps: how many weights are tried.
        initial_const: the first weight.
        target: the class to reach, or None for any but the label; seeds of that class are skipped.
        confidence: by how many logits a case must fail.

    References:
        | Towards Evaluating the Robustness of Neural Networks (Carlini and Wagner, 2017)
        | https://arxiv.org/abs/1608.04644
    """

    steps: int = 1000
    step_size: float = 0.01
    binary_search_steps: int = 9
    initial_const: float = 1e-3
    target: int | None = None
    confidence: float = 0.0

    def __post_init__(self) -> None:
        check_at_least(1, steps=self.steps, binary_search_steps=self.binary_search_steps)
        check_positive(step_size=self.step_size, initial_const=self.initial_const)
        Goal(target=self.target, confidence=self.confidence)

    def __call__(self, model: Classifier, seeds: Samples, *, generator: torch.Generator) -> Suite:
        goal = Goal(target=self.target, confidence=self.confidence)
        if not all(map(math.isfinite, model.bounds)):
            raise ValueError(f"bounds must be finite here, got {model.bounds}; give Classifier the bounds of your data")
        if torch.finfo(seeds.x.dtype).eps > 1e-6:
            raise ValueError(f"inputs must be float32 or float64 here, got {seeds.x.dtype}; convert model and inputs")

        def search(rows: Rows) -> Tensor:
            x0 = rows["x0"]
            best, nearest = x0.clone(), torch.full_like(x0.flatten(1)[:, 0], torch.inf)
            low, high = torch.zeros_like(nearest), torch.full_like(nearest, torch.inf)
            weight = torch.full_like(nearest, self.initial_const)
            for _ in range(self.binary_search_steps):
                found, distance = self._descend(model, goal, rows, weight)
                nearer = distance < nearest
                best, nearest = torch.where(column(nearer, best), found, best), torch.minimum(distance, nearest)
                worked = distance < torch.inf
                low, high = torch.where(worked, low, weight), torch.where(worked, weight, high)
                weight = torch.where(high < torch.inf, (low + high) / 2, low * 10)
            return best

        return fuzz(model, seeds, search, goal=goal, method="carlini-wagner-l2")

    def _descend(self, model: Classifier, goal: Goal, rows: Rows, weight: Tensor) -> tuple[Tensor, Tensor]:
        """The nearest failure Adam passes through with this weight, and its squared distance (infinite for none)."""
        low, high = model.bounds
        w0 = torch.atanh((2 * (rows["x0"].clamp(low, high) - low) / (high - low) - 1) * 0.999999)
        patience = math.ceil(1 / self.step_size)  # Adam needs this many steps to move w by 1
        time = 0

        def to_input(w: Tensor) -> Tensor:
            return low + (high - low) / 2 * (torch.tanh(w) + 1)

        def step(state: Rows) -> tuple[Rows, Tensor | None]:
            nonlocal time
            time += 1
            seen: dict[str, Tensor] = {}

            def objective(w: Tensor) -> Tensor:
                x = to_input(w)
                logits = model.logits(x)
                squares = ((x - state["start"]) / (high - low)).flatten(1).square().sum(1)
                short = self.confidence + 2 * SLACK * logits.detach().abs().amax(1) - goal.margin(logits, state["y"])
                seen.update(x=x.detach(), logits=logits.detach(), squares=squares.detach())
                return squares + state["weight"] * short.clamp_min(0)  # (1)

            value, gradient = value_and_gradient(objective, state["w"])
            better = goal.reached(seen["logits"], state["y"]) & (seen["squares"] < state["distance"])
            state = state | {
                "x": torch.where(column(better, seen["x"]), seen["x"], state["x"]),
                "distance": torch.where(better, seen["squares"], state["distance"]),
                **_adam(state, gradient, time, self.step_size),
            }
            lowest = torch.minimum(value, state["lowest"])
            if time % patience:
                return state | {"lowest": lowest}, None
            return state | {"lowest": lowest, "before": lowest}, lowest >= 0.9999 * state["before"]

        blank = torch.full_like(weight, torch.inf)
        state = {"x": rows["x0"], "y": rows["y"], "w": w0, "start": to_input(w0), "weight": weight}
        state |= dict.fromkeys(("distance", "lowest", "before"), blank) | dict.fromkeys("mv", torch.zeros_like(w0))
        final = advance(state, step, steps=self.steps)
        return final["x"], final["distance"]


def _adam(state: Rows, gradient: Tensor, time: int, step_size: float) -> Rows:
    m = 0.9 * state["m"] + 0.1 * gradient
    v = 0.999 * state["v"] + 0.001 * gradient.square()
    move = step_size * (m / (1 - 0.9**time)) / ((v / (1 - 0.999**time)).sqrt() + 1e-8)
    return {"w": state["w"] - move, "m": m, "v": v}
