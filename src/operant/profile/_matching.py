"""The search behind `fit_conditions`: simulate at some parameters, compare with the field, step towards it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import least_squares, nnls
from scipy.stats import chi2
from torch import Tensor
from torch.nn.functional import one_hot

from operant.conditions import Recipe, Severity, apply, fixed
from operant.data import Samples
from operant.profile._appearance import Array, Look
from operant.profile.synthesis import checked_priors

REFERENCE = 1000  # images of either side from which scales are taken
STARTS = 24  # places that the search may begin from
FEW, SOME = 400, 800  # images simulated at each start, and in the first search
ROUGH, FINE = 0.02, 0.01  # steps of finite differences in the two searches, as shares of a range
DOUBT = 0.95  # a condition stays if leaving it out makes the distance larger than chance does at this level


# What is unknown


class Unknown(NamedTuple):
    """A parameter, searched over t from 0 to 1: means in proportion to t, ends and spreads to its root.

    Small spreads change the distribution of images by their square, which is why.
    """

    condition: str
    name: str
    first: float
    last: float

    def value(self, t: float) -> float:
        part = t if self.name == "mean" else math.sqrt(t)
        return float(self.first + (self.last - self.first) * part)

    @property
    def none(self) -> float:
        """Where the condition does nothing, or as little as it can."""
        return min(1.0, max(0.0, -self.first / (self.last - self.first))) if self.name == "mean" else 0.0


def unknowns_of(condition: str, s: Severity) -> list[Unknown]:
    if s.low == s.high:
        return []
    if math.isinf(s.std):
        return [Unknown(condition, name, 0.0, end) for name, end in (("low", s.low), ("high", s.high)) if end != 0]
    spread = Unknown(condition, "std", 0.0, s.std)
    both = s.low < s.mean < s.high
    return [Unknown(condition, "mean", s.mean - s.std, s.mean + s.std), spread] if both else [spread]


def _narrowed(s: Severity, found: dict[str, float]) -> Severity:
    """The declared severity with the values found for its parameters."""
    if not found:
        return s
    if "std" not in found:
        return replace(s, low=found.get("low", 0.0), high=found.get("high", 0.0))
    mean, std = min(s.high, max(s.low, found.get("mean", s.mean))), found["std"]
    if std < 1e-6 * s.std:
        return fixed(mean, absent=s.absent)
    return replace(s, low=max(s.low, mean - 3 * std), high=min(s.high, mean + 3 * std), mean=mean, std=std)


# A trial: simulate, and compare with the field


class Compared(NamedTuple):
    residual: Array  # Σ^(-1/2) d of (2)
    features: Array  # φ of the simulated images
    means: Array  # of φ over each class, in units of the ruler, one a column
    priors: Array


@dataclass(frozen=True, eq=False)
class Trial:
    """Everything that stays the same from one trial to the next: images, random numbers, what the field looks like."""

    look: Look
    widest: Recipe
    unknowns: tuple[Unknown, ...]
    field: Array  # φ of field data
    x: Tensor  # clean images, one for each that is simulated
    origin: NDArray[np.int64]  # the row of each in the clean data; there may be several of one
    classes: Array  # one row an image, 1 at its class
    priors: Array | None
    seed: int
    tick: Callable[[], None]

    def recipe(self, t: Array) -> Recipe:
        found = [(u.condition, u.name, u.value(v)) for u, v in zip(self.unknowns, t, strict=True)]
        severities = {
            name: _narrowed(s, {p: v for condition, p, v in found if condition == name})
            for name, s in self.widest.severities.items()
        }
        return replace(self.widest, severities=severities)

    def simulate(self, recipe: Recipe, rows: int, seed: int) -> Array:
        drawn = recipe.draw(len(self.x), generator=torch.Generator().manual_seed(seed))
        self.tick()
        return self.look(apply(self.x[:rows], drawn[:rows]))

    def compared(self, t: Array, ruler: Array, rows: int | None = None) -> Compared:
        """The field with the first of the images, simulated at t."""
        features = self.simulate(self.recipe(t), rows or len(self.x), self.seed)
        return self.against(features, self.field.mean(0), ruler, np.ones(len(features)))

    def against(self, features: Array, field: Array, ruler: Array, counts: Array) -> Compared:
        weights = self.classes[: len(features)] * counts[:, None]
        means = ruler @ (weights.T @ features / np.maximum(weights.sum(0), 1e-9)[:, None]).T
        priors = _mixture(means, ruler @ field) if self.priors is None else self.priors
        return Compared(means @ priors - ruler @ field, features, means, priors)

    def weights(self, priors: Array) -> Array:
        """What each simulated image counts, of 1."""
        found: Array = self.classes @ (priors / np.maximum(self.classes.sum(0), 1))
        found /= found.sum()
        return found

    @property
    def distinct(self) -> int:
        """Clean images that take part."""
        return len(np.unique(self.origin))

    @property
    def rows(self) -> float:
        """As many as would have to be on the field's side alone for the same noise in d of (2)."""
        return 1 / (1 / len(self.field) + 1 / self.distinct)


def _mixture(means: Array, target: Array) -> Array:
    """The priors whose mixture of class means is nearest to the target."""
    if means.shape[1] == 1:
        return np.ones(1)
    heavy = 1e3  # keeps the sum at 1
    system = np.vstack([means, np.full((1, means.shape[1]), heavy)])
    found: Array = nnls(system, np.append(target, heavy))[0]
    found /= found.sum()
    return found


def _ruler(features: Array, weights: Array | None, ridge: float) -> Array:
    """A matrix R with RᵀR = Σ⁻¹ of (2)."""
    cov = np.cov(features.T, aweights=weights)
    cov += ridge * np.trace(cov) / len(cov) * np.eye(len(cov))
    root: Array = np.linalg.inv(np.linalg.cholesky(cov))
    return root


def prepared(
    field: Samples,
    clean: Samples,
    widest: Recipe,
    priors: Sequence[float] | None,
    simulated: int,
    generator: torch.Generator,
    tick: Callable[[], None],
) -> Trial:
    some, other = (s.x[shuffled(len(s), generator)[:REFERENCE]].detach().cpu() for s in (field, clean))
    look = Look.of(torch.cat([some, apply(other, widest.draw(len(other), generator=generator))]), widest.bounds)
    y = torch.zeros(len(clean), dtype=torch.int64) if clean.y is None else clean.y.cpu()
    counts = y.bincount()
    shares = (counts > 0) / (counts > 0).sum() if priors is None else checked_priors(priors, y)
    rows = _rows(y, shares, simulated, generator)
    return Trial(
        look=look,
        widest=widest,
        unknowns=tuple(u for name, s in widest.severities.items() for u in unknowns_of(name, s)),
        field=look(field.x),
        x=clean.x.detach().cpu()[rows],
        origin=rows.numpy(),
        classes=one_hot(y[rows], len(counts)).double().numpy(),
        priors=None if priors is None else shares.numpy(),
        seed=int(torch.randint(2**62, (), generator=generator, device=generator.device)),
        tick=tick,
    )


def _rows(y: Tensor, shares: Tensor, n: int, generator: torch.Generator) -> Tensor:
    """About n rows, the classes in these shares, in random order; images are used again where a class has too few."""
    parts = []
    for c, share in enumerate(shares.tolist()):
        members, count = (y == c).nonzero().flatten(), max(round(n * share), 2 * (share > 0))
        mixed = members[shuffled(len(members), generator)]
        parts.append(mixed.repeat(math.ceil(count / max(1, len(mixed))))[:count])
    rows = torch.cat(parts)
    return rows[shuffled(len(rows), generator)]


def shuffled(n: int, generator: torch.Generator) -> Tensor:
    return torch.randperm(n, generator=generator, device=generator.device).cpu()


# The search


def searched(trial: Trial) -> tuple[Array, Array]:
    """Parameters with the smallest distance, and the ruler it was measured by."""
    ruler = _ruler(trial.field, None, 0.1)
    t = _descended(trial, _start(trial, ruler), ruler, rows=SOME, step=ROUGH, most=12)
    there = trial.compared(t, ruler)
    ruler = _ruler(there.features, trial.weights(there.priors), 0.01)
    t = _descended(trial, t, ruler, rows=len(trial.x), step=FINE, most=4)
    return _without_idle(trial, t, ruler), ruler


def _start(trial: Trial, ruler: Array) -> Array:
    """The best of a few places: little of everything, next to nothing, and points spread over all ranges."""
    k = len(trial.unknowns)
    none = np.array([u.none for u in trial.unknowns])
    little = [np.where([u.name == "mean" for u in trial.unknowns], none, part) for part in (0.1, 0.002)]
    engine = torch.quasirandom.SobolEngine(k, scramble=True, seed=trial.seed % 2**31)
    places: list[Array] = [*little, *engine.draw(STARTS).double().numpy()]
    costs = [_cost(trial.compared(t, ruler, FEW)) for t in places]
    return places[int(np.argmin(costs))]


def _cost(compared: Compared) -> float:
    return float(compared.residual @ compared.residual)


def _descended(
    trial: Trial, t: Array, ruler: Array, *, rows: int, step: float, most: int, free: NDArray[np.bool_] | None = None
) -> Array:
    """The end of at most so many Gauss-Newton steps from t, moving the free parameters only."""
    free = np.ones(len(t), dtype=bool) if free is None else free
    if not free.any():
        return t
    seen: dict[bytes, Array] = {}

    def at(part: Array) -> Array:
        if part.tobytes() not in seen:
            whole = t.copy()
            whole[free] = part
            seen[part.tobytes()] = trial.compared(whole, ruler, rows).residual
        return seen[part.tobytes()]

    found = least_squares(
        at,
        t[free].clip(1e-6, 1 - 1e-6),
        jac=lambda part: _slopes(at, part, step),
        bounds=(0, 1),
        max_nfev=most,
        ftol=3e-3,
        xtol=3e-3,
    )
    end = t.copy()
    end[free] = found.x
    return end


def _slopes(at: Callable[[Array], Array], t: Array, step: float) -> Array:
    """Finite differences, one column a parameter, away from the end of the range."""
    here, steps = at(t), np.where(t + step <= 1, step, -step)
    return np.stack([(at(t + h * e) - here) / h for h, e in zip(steps, np.eye(len(t)), strict=True)], 1)


def wide_slopes(trial: Trial, t: Array, ruler: Array) -> Array:
    """Finite differences to both sides, as wide as parameters are uncertain: narrow ones would follow chance."""
    columns = []
    for i in range(len(t)):
        left, right = t.copy(), t.copy()
        left[i], right[i] = max(0.0, t[i] - ROUGH), min(1.0, t[i] + ROUGH)
        rise = trial.compared(right, ruler).residual - trial.compared(left, ruler).residual
        columns.append(rise / (right[i] - left[i]))
    return np.stack(columns, 1)


def _without_idle(trial: Trial, t: Array, ruler: Array) -> Array:
    """Leave out conditions that are not needed, and search again over the rest, until all are needed."""
    conditions = [u.condition for u in trial.unknowns]
    on = list(dict.fromkeys(conditions))
    while on:
        t, needed = _needed(trial, t, ruler, on)
        if needed == on:
            break
        on = needed
        t = _descended(trial, t, ruler, rows=len(trial.x), step=FINE, most=4, free=np.isin(conditions, on))
    return t


def _needed(trial: Trial, t: Array, ruler: Array, on: list[str]) -> tuple[Array, list[str]]:
    """Switch off, one after another, conditions without which the distance is no larger than chance allows."""
    conditions = np.array([u.condition for u in trial.unknowns])
    none = np.array([u.none for u in trial.unknowns])
    cost = _cost(trial.compared(t, ruler))
    while on:
        off = {c: np.where(conditions == c, none, t) for c in on}
        costs = {c: _cost(trial.compared(v, ruler)) for c, v in off.items()}
        over = {c: costs[c] - _allowance(trial, conditions == c) for c in on}
        least = min(on, key=lambda c: over[c])
        if over[least] > cost:
            break
        t, cost, on = off[least], costs[least], [c for c in on if c != least]
    return t, on


def _allowance(trial: Trial, parameters: NDArray[np.bool_]) -> float:
    """By how much (2) rises by chance when that many parameters are left out."""
    return float(chi2.ppf(DOUBT, parameters.sum()) / trial.rows)
