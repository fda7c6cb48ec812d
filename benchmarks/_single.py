"""FOL-Fuzz as one would write it first: one seed at a time, eager torch.

The rival of `fuzz.py`, and what the tests compare the batched search with.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from operant.generate import FOLFuzz

Logits = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Found:
    x: Tensor
    branch: str
    fol: float
    threshold: float


def fol_fuzz_one(options: FOLFuzz, logits: Logits, x0: Tensor, y: int, u: Tensor) -> list[Found]:
    """Algorithm 3 for the seed ``x0`` of shape ``(1, *shape)``; ``u`` holds the random length of each step."""
    with torch.no_grad():
        classes = logits(x0)[0].argsort(descending=True)[: options.k].tolist()
    _, _, direction = look(options, logits, x0, x0, y, classes)
    queue, highest, seen, found = deque([(x0, direction)]), 0.0, [], []
    used = 1
    while queue:
        x, direction = queue.popleft()
        for _ in range(options.iters):
            if used >= options.rows_per_seed:
                return found
            moved = step(options, x, direction, float(u[used]))
            used += 1
            same, x = torch.equal(moved, x), moved
            fol, wrong, direction = look(options, logits, x, x0, y, classes)
            near = distance(x - x0, options.norm) <= options.radius
            xi = small_fol(options, seen)
            if near and wrong:
                seen.append(fol)
            rises, small = fol >= highest, fol < xi
            if near and not same and (rises or small):
                queue.append((x, direction))
                if wrong:
                    found.append(Found(x, "rise" if rises else "small", fol, highest if rises else xi))
                highest = fol if rises else highest
    return found


def step(options: FOLFuzz, x: Tensor, direction: Tensor, u: float) -> Tensor:
    """One step up the objective, from ``x``."""
    if options.step == "steepest":
        direction = direction.sign() if options.norm == "linf" else direction / direction.norm().clamp_min(1e-300)
        direction = options.radius * direction
    return (x + options.learning_rate * u * direction).clamp(0, 1)


def look(
    options: FOLFuzz, logits: Logits, x: Tensor, x0: Tensor, y: int, classes: list[int]
) -> tuple[float, bool, Tensor]:
    """FOL at ``x``, whether the model fails there, and where the objective rises: all from one pass."""
    z = x.clone().requires_grad_()
    out = logits(z)
    (g,) = torch.autograd.grad(cross_entropy(out, torch.tensor([y])), z, create_graph=True)
    reach = g.abs().sum() if options.norm == "linf" else g.norm()
    fol = options.radius * reach - ((z - x0) * g).sum()
    p = out.softmax(1)[0]
    objective = p[classes[1:]].sum() - p[classes[0]] + options.weight * fol
    (direction,) = torch.autograd.grad(objective, z)
    return float(fol.detach()), fails(out.detach()[0], y), direction


def fails(logits: Tensor, y: int) -> bool:
    """By a margin that rounding cannot undo, as the engine asks."""
    others = torch.cat([logits[:y], logits[y + 1 :]])
    return bool(others.max() - logits[y] > 1e-4 * logits.abs().max())


def distance(moved: Tensor, norm: str) -> float:
    return float(moved.abs().max() if norm == "linf" else moved.norm())


def small_fol(options: FOLFuzz, seen: list[float]) -> float:
    if not isinstance(options.xi, str):
        return options.xi
    share = int(options.xi[1:]) / 100
    return float(torch.tensor(seen, dtype=torch.float64).quantile(share)) if seen else float("nan")
