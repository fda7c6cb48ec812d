"""DeepFool: repeated steps to the nearest boundary of the linearised model."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from operant.data import Samples
from operant.generate.engine import SLACK, Goal, Rows, advance, check_ball, column, fuzz
from operant.model import Classifier
from operant.suite import Suite
from operant.validation import check_at_least, check_nonnegative


@dataclass(frozen=True, kw_only=True)
class DeepFool:
    """The smallest change that crosses a boundary, by linearisation.

    With d_k = f_k − f_y and w_k = ∇d_k, each step moves to the nearest linearised boundary,

        k* = argmin_k |d_k| / ‖w_k‖₂,   δ ← δ + |d_k*| w_k* / ‖w_k*‖₂²        (1)

    (for ``"linf"``: the distance is |d| / ‖w‖₁, the direction sign w), and the case is x₀ + (1 + overshoot) δ within
    bounds. We aim a small margin past the boundary, |d| + confidence + slack, and rows stop once they fail by it: with
    the paper's (1) alone some rows converge to the boundary itself, where another batch size may round them back. In
    bfloat16 the last steps are smaller than the rounding of inputs, and fewer rows fail: use float32.

    Args:
        norm: ``"l2"`` or ``"linf"``.
        steps: maximum.
        overshoot: how far past the boundary, as a share of the whole change.
        candidates: how many of the likeliest classes to consider.
        target: the class to reach, or None for the nearest; seeds of that class are skipped.
        confidence: by how many logits a row must fail.

    References:
        | DeepFool: a simple and accurate method to fool deep neural networks (Moosavi-Dezfooli et al., 2016)
        | https://arxiv.org/abs/1511.04599
    """

    norm: str = "l2"
    steps: int = 50
    overshoot: float = 0.02
    candidates: int = 10
    target: int | None = None
    confidence: float = 0.0

    def __post_init__(self) -> None:
        check_ball(1.0, self.norm)
        check_at_least(1, steps=self.steps)
        check_nonnegative(overshoot=self.overshoot)
        check_at_least(2, candidates=self.candidates)
        Goal(target=self.target, confidence=self.confidence)

    def __call__(self, model: Classifier, seeds: Samples, *, generator: torch.Generator) -> Suite:
        goal = Goal(target=self.target, confidence=self.confidence)

        def step(rows: Rows) -> tuple[Rows, Tensor]:
            with torch.no_grad():
                done = goal.reached(model.logits(rows["x"]), rows["y"])
            if bool(done.all()):
                return rows, done
            active = {name: values[~done] for name, values in rows.items()}
            delta = active["delta"] + self._to_boundary(model, active)
            x = (active["x0"] + (1 + self.overshoot) * delta).clamp(*model.bounds)
            rows = rows | {"delta": rows["delta"].clone(), "x": rows["x"].clone()}
            rows["delta"][~done], rows["x"][~done] = delta, x
            return rows, done

        def search(rows: Rows) -> Tensor:
            with torch.no_grad():
                others = model.logits(rows["x0"]).scatter(1, rows["y"][:, None], -torch.inf)
            rivals = others.topk(min(self.candidates, others.shape[1]) - 1, dim=1).indices
            state = rows | {"delta": torch.zeros_like(rows["x0"]), "rivals": rivals}
            return advance(state, step, steps=self.steps)["x"]

        return fuzz(model, seeds, search, goal=goal, method=f"deepfool-{self.norm}")

    def _gaps(self, logits: Tensor, rows: Rows) -> Tensor:
        """d_k for each boundary that a row may cross: to its rivals, or from any class to the target."""
        if self.target is not None:
            return Goal(target=self.target).margin(logits, rows["y"])[:, None]
        return logits.gather(1, rows["rivals"]) - logits.gather(1, rows["y"][:, None])

    def _to_boundary(self, model: Classifier, rows: Rows) -> Tensor:
        """(1): the step from each row to its nearest linearised boundary."""
        best = torch.full_like(rows["x"].flatten(1)[:, 0], torch.inf)
        move = torch.zeros_like(rows["x"])
        with torch.enable_grad():
            z = rows["x"].detach().requires_grad_()
            logits = model.logits(z)
            gaps = self._gaps(logits, rows)
            past = self.confidence + 2 * SLACK * logits.detach().abs().amax(1)
            count = gaps.shape[1]
            for k in range(count):
                (w,) = torch.autograd.grad(gaps[:, k].sum(), z, retain_graph=k < count - 1)
                distance, to = _hyperplane(w, past - gaps[:, k].detach(), self.norm)
                nearer = distance < best
                best = torch.where(nearer, distance, best)
                move = torch.where(column(nearer, move), to, move)
        return move


def _hyperplane(w: Tensor, gap: Tensor, norm: str) -> tuple[Tensor, Tensor]:
    """Distance to the hyperplane ``<w, delta> = gap`` in the norm, and the shortest step to it."""
    tiny = torch.finfo(w.dtype).eps
    dual = w.flatten(1).norm(p=1 if norm == "linf" else 2, dim=1) + tiny
    distance = gap / dual
    direction = w.sign() if norm == "linf" else w / column(dual, w)
    return distance, column(distance, w) * direction
