"""FOL-Fuzz: a search from each seed for failures of rising, or of very small, first-order loss."""

from __future__ import annotations

import math
import re
from collections import deque
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from operant.data import Samples
from operant.generate.engine import CaseList, Goal, Rows, check_ball, chosen, column, steepest
from operant.measure.loss import rise
from operant.model import Classifier
from operant.rng import uniform_like
from operant.suite import Suite
from operant.validation import check_at_least, check_nonnegative, check_one_of, check_positive

BRANCHES = ("rise", "small", "flip")
MIN_SEED_GRADIENT = 1e-3  # the released program skips seeds whose gradient is not longer than this


@dataclass(frozen=True, kw_only=True)
class FOLFuzz:
    """Follow first-order loss (FOL) from each seed, to failures of both kinds that BE-ST retrains with.

        objective(x) = P(c2) + … + P(ck) - P(c1) + weight · FOL(x)        (1)
        x ← x + learning_rate · radius · U(0.5, 1.5) · steepest(∇objective)        (2)

    c1 is the seed's class, c2 to ck the next likely classes there. Each seed has a queue. Each point taken from it
    makes ``iters`` steps (2). Each new point joins the queue if it lies in the ball and its FOL is at least FOL_m, the
    highest so far (branch ``"rise"``), or below ``xi`` (branch ``"small"``); if the model also fails on it, it is a
    case. All seeds advance together; one whose queue is empty or whose rows are spent leaves the batch.

    Where the paper's Algorithm 3 is silent or ambiguous:

    - label and distance are compared with the *original* seed's; the pseudocode compares with the point just taken,
      so that its cases could drift out of the ball and count returns to the right class as failures;
    - classes in (1) are ranked once, at the seed: ranked again, the objective would pull failures back;
    - FOL_m starts at 0; the queue is first in, first out; a point that both conditions accept joins it once, one that
      did not move never; "0 to iters" is taken as ``iters`` steps;
    - ``processing(grads)`` is (2). With ``step="gradient"`` it is learning_rate · U(0.5, 1.5) · ∇objective, as in the
      released program: where the softmax is saturated that hardly moves, and most seeds of a good model give no case;
    - ξ = 1e-18, the paper's, is below what float32 can resolve, so that its second branch is never taken. ``"q05"``
      requires less than the 5 % quantile of FOL among this seed's failing points so far;
    - ``rows_per_seed`` limits every search.

    Misclassified seeds are skipped. Columns: ``fol``, ``loss``, ``branch``, and ``threshold``, the FOL_m or ξ it met.

    Args:
        radius: of the ball around each seed, in input units.
        norm: ``"linf"`` or ``"l2"``, of the ball and of FOL.
        xi: what counts as small: a number, or a quantile such as ``"q05"``.
        k: how many classes take part in (1), at most all.
        weight: λ in the paper: weight of FOL, relative to the class probabilities.
        iters: steps per point taken from the queue.
        learning_rate: mean length of a step, as a share of the radius.
        rows_per_seed: model rows per seed, including the seed, without the first and the last judgement.
        step: ``"steepest"`` or ``"gradient"``.
        variant: ``"paper"``, or ``"released"``: the objective is ‖g‖₂ - P(c1), a point is queued if ‖g‖₂ rises and its
            L2 distance is below ``radius`` times the seed's length, and *any* failure is a case, however far. Its
            settings are ``radius=0.5, norm="l2", step="gradient", iters=2``; ``xi``, ``k`` and ``weight`` are ignored.

    References:
        | RobOT: Robustness-Oriented Testing for Deep Learning Systems (Wang et al., 2021), Algorithm 3 and Eq. 8
        | https://arxiv.org/abs/2102.05913
    """

    radius: float
    norm: str = "linf"
    xi: float | str = "q05"
    k: int = 5
    weight: float = 1.0
    iters: int = 3
    learning_rate: float = 0.1
    rows_per_seed: int = 60
    step: str = "steepest"
    variant: str = "paper"

    def __post_init__(self) -> None:
        check_ball(self.radius, self.norm)
        _quantile(self.xi)
        check_at_least(1, k=self.k, iters=self.iters)
        check_nonnegative(weight=self.weight)
        check_positive(learning_rate=self.learning_rate)
        check_at_least(2, rows_per_seed=self.rows_per_seed, advice="the seed and one step")
        check_one_of(("steepest", "gradient"), step=self.step)
        check_one_of(("paper", "released"), variant=self.variant)
        if self.variant == "released" and (self.norm != "l2" or self.step != "gradient"):
            raise ValueError('the released program takes raw gradients and L2: give norm="l2", step="gradient"')

    def __call__(self, model: Classifier, seeds: Samples, *, generator: torch.Generator) -> Suite:
        model.check(seeds)
        seeds = seeds.to(model.device)
        u = uniform_like(seeds.x.new_empty(len(seeds), self.rows_per_seed), 0.5, 1.5, generator=generator)
        ranking = model.batched_logits(seeds.x).argsort(1, descending=True)
        right = (ranking[:, 0] == seeds.labels).nonzero().flatten()
        if len(right) == 0:
            raise ValueError(
                f"FOL-Fuzz starts from correctly classified seeds, and none of the {len(seeds)} is one; "
                "check the labels, or run doctor() on the model"
            )
        origin = torch.arange(len(seeds), device=right.device)
        rows = {"x0": seeds.x, "classes": ranking[:, : self.k], "u": u, "origin": origin}
        cases = CaseList(seeds, "branch", "fol", "loss", "threshold")
        for some in right.split(model.batch_size):
            _FOLSearch(self, model, chosen(rows, some), cases).run()
        name = f"fol-fuzz-{self.norm}" if self.variant == "paper" else "fol-fuzz-released"
        suite = cases.suite(model, method=name, skipped=len(seeds) - len(right))
        branch = [BRANCHES[int(b)] for b in suite["branch"]]
        return suite.with_columns(branch=branch).failures()


class _FOLSearch:
    """A search from one batch of seeds: queues, rows spent and cases."""

    def __init__(self, options: FOLFuzz, model: Classifier, seeds: Rows, cases: CaseList) -> None:
        n = len(seeds["x0"])
        self.options, self.model, self.seeds, self.cases = options, model, seeds, cases
        self.queues: list[deque[tuple[Tensor, Tensor]]] = [deque() for _ in range(n)]  # inputs and directions
        self.used = torch.zeros(n, dtype=torch.int64, device=seeds["x0"].device)
        self.highest = seeds["x0"].new_zeros(n)  # FOL_m
        self.failing = seeds["x0"].new_full((n, options.rows_per_seed), torch.nan)  # FOL of failing points

    def run(self) -> None:
        """Spend the rows of every seed."""
        everyone = torch.arange(len(self.used), device=self.used.device)
        start = self._evaluate(everyone, self.seeds["x0"])
        queued = start["fol"] > MIN_SEED_GRADIENT if self.options.variant == "released" else start["fol"] >= 0
        self._put(everyone[queued], chosen(start, queued))
        self.cases.add(self._classified(everyone, start, start), everyone[:0])
        while len(rows := (self._waiting() & self._rows_left()).nonzero().flatten()):
            x, direction = zip(*(self.queues[row].popleft() for row in rows.tolist()), strict=True)
            now = {"x": torch.stack(x), "direction": torch.stack(direction)}
            for _ in range(self.options.iters):
                left = self._rows_left()[rows]
                rows, now = rows[left], chosen(now, left)
                if len(rows):
                    now = self._step(rows, now)

    def _waiting(self) -> Tensor:
        return torch.tensor([len(queue) > 0 for queue in self.queues], device=self.used.device)

    def _rows_left(self) -> Tensor:
        return self.used < self.options.rows_per_seed

    def _put(self, rows: Tensor, points: Rows) -> None:
        """Add one point to the queue of each of these rows."""
        for row, x, direction in zip(rows.tolist(), points["x"], points["direction"], strict=True):
            self.queues[row].append((x.clone(), direction.clone()))

    def _step(self, rows: Tensor, now: Rows) -> Rows:
        """One step of every row, from which points are queued and cases kept."""
        before = self.used[rows]
        point = self._classified(rows, now, self._evaluate(rows, self._moved(rows, now)))
        self.failing[rows, before] = torch.where(point["near"] & point["fails"], point["fol"], torch.nan)
        self.highest[rows] = torch.where(point["rises"], point["fol"], self.highest[rows])
        self._put(rows[point["queued"]], chosen(point, point["queued"]))
        self.cases.add(point, point["case"])
        return point

    def _moved(self, rows: Tensor, now: Rows) -> Tensor:
        options, direction = self.options, now["direction"]
        if options.step == "steepest":
            direction = options.radius * steepest(direction, options.norm)
        size = options.learning_rate * self.seeds["u"][rows, self.used[rows]]
        return (now["x"] + column(size, direction) * direction).clamp(*self.model.bounds)  # (2)

    def _evaluate(self, rows: Tensor, x: Tensor) -> Rows:
        """FOL, loss, logits and gradient of the objective at ``x``: two gradients from one pass of the model."""
        options, seeds = self.options, chosen(self.seeds, rows)
        released = options.variant == "released"
        norm, radius = ("l2-paper", 1.0) if released else (options.norm, options.radius)
        classes = seeds["classes"][:, :1] if released else seeds["classes"]
        with torch.enable_grad():
            z = x.detach().requires_grad_()
            logits = self.model.logits(z)
            loss = cross_entropy(logits, classes[:, 0], reduction="none")
            g = _gradient(loss, z, again=True)
            fol = rise(g, z - seeds["x0"], radius=radius, norm=norm)
            top = logits.softmax(1).gather(1, classes)
            weight = 1.0 if released else options.weight
            direction = _gradient(top[:, 1:].sum(1) - top[:, 0] + weight * fol, z)  # (1)
        self.used[rows] += 1
        values = {"x": x, "logits": logits, "loss": loss, "fol": fol, "direction": direction.nan_to_num(0.0)}
        return {name: value.detach() for name, value in values.items()} | {"origin": seeds["origin"]}

    def _classified(self, rows: Tensor, before: Rows, point: Rows) -> Rows:
        """Whether each new point is queued, whether it is a case, and by which branch."""
        options, x, x0 = self.options, point["x"], self.seeds["x0"][rows]
        fol, highest = point["fol"], self.highest[rows]
        fails = Goal().reached(point["logits"], self.seeds["classes"][rows, 0])
        new = (x != before["x"]).flatten(1).any(1)
        if options.variant == "released":
            near = (x - x0).flatten(1).norm(dim=1) < options.radius * x0.flatten(1).norm(dim=1)
            rises = near & new & (fol > highest)
            result = {"rises": rises, "queued": rises, "case": fails, "branch": torch.full_like(rows, 2)}
            return point | result | {"near": near, "fails": fails, "threshold": torch.full_like(fol, torch.nan)}
        near = _length(x - x0, options.norm) <= options.radius
        xi = self._xi(rows)
        rises, small = near & new & (fol >= highest), near & new & (fol < xi)
        result = {"rises": rises, "queued": rises | small, "case": (rises | small) & fails, "branch": (~rises).long()}
        return point | result | {"near": near, "fails": fails, "threshold": torch.where(rises, highest, xi)}

    def _xi(self, rows: Tensor) -> Tensor:
        if isinstance(self.options.xi, str):
            failing = self.failing[rows]
            wide = failing.float() if failing.itemsize < 4 else failing  # torch has no quantiles of half precision
            return wide.nanquantile(_quantile(self.options.xi), dim=1).to(failing)
        return self.highest.new_full((len(rows),), self.options.xi)


def _gradient(values: Tensor, x: Tensor, *, again: bool = False) -> Tensor:
    """The gradient of the sum of ``values``; zero where they do not depend on ``x``, as with a constant model."""
    if not values.requires_grad:
        return torch.zeros_like(x)
    return torch.autograd.grad(values.sum(), x, create_graph=again, allow_unused=True, materialize_grads=True)[0]


def _length(moved: Tensor, norm: str) -> Tensor:
    return moved.flatten(1).abs().amax(1) if norm == "linf" else moved.flatten(1).norm(dim=1)


def _quantile(xi: float | str) -> float:
    """The quantile that ``"q05"`` names; NaN for a number."""
    if isinstance(xi, str):
        if not re.fullmatch(r"q\d\d", xi):
            raise ValueError(f'xi must be a number or a quantile such as "q05", got {xi!r}')
        return int(xi[1:]) / 100
    check_nonnegative(xi=xi)
    return math.nan
