"""The search behind `fit_conditions`: simulate at some parameters, compare with the field, step towards it."""

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
from operant.profile._appearance import Array, ImageDescriptor
from operant.profile.synthesis import checked_priors
from operant.rng import shuffled

REFERENCE = 1000  # images of either side that the descriptor is fitted to
STARTS = 24  # candidate starting points of the search
START_IMAGES, ROUGH_IMAGES = 400, 800  # images simulated at each starting point, and in the rough search
ROUGH, FINE = 0.02, 0.01  # steps of finite differences in the two searches, as shares of a range
CONFIDENCE = 0.95  # a condition stays if removing it raises the distance more than chance does at this level


class FreeParameter(NamedTuple):
    """A parameter of a severity, searched over t from 0 to 1: means are linear in t, ends and spreads in its root.

    The root is used because small spreads change the distribution of images by their square.
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
        """The t at which the condition does nothing, or as little as possible."""
        return min(1.0, max(0.0, -self.first / (self.last - self.first))) if self.name == "mean" else 0.0


def free_parameters(condition: str, s: Severity) -> list[FreeParameter]:
    if s.low == s.high:
        return []
    if math.isinf(s.std):
        ends = (("low", s.low), ("high", s.high))
        return [FreeParameter(condition, name, 0.0, end) for name, end in ends if end != 0]
    spread = FreeParameter(condition, "std", 0.0, s.std)
    two_sided = s.low < s.mean < s.high
    return [FreeParameter(condition, "mean", s.mean - s.std, s.mean + s.std), spread] if two_sided else [spread]


def _narrowed(s: Severity, values: dict[str, float]) -> Severity:
    """The declared severity with these values of its parameters."""
    if not values:
        return s
    if "std" not in values:
        return replace(s, low=values.get("low", 0.0), high=values.get("high", 0.0))
    mean, std = min(s.high, max(s.low, values.get("mean", s.mean))), values["std"]
    if std < 1e-6 * s.std:
        return fixed(mean, absent=s.absent)
    return replace(s, low=max(s.low, mean - 3 * std), high=min(s.high, mean + 3 * std), mean=mean, std=std)


class Comparison(NamedTuple):
    residual: Array  # Σ^(-1/2) d of (2)
    features: Array  # φ of the simulated images
    means: Array  # of φ over each class, whitened, one column per class
    priors: Array

    @property
    def cost(self) -> float:
        return float(self.residual @ self.residual)


@dataclass(frozen=True, eq=False)
class ConditionMatcher:
    """Simulates clean images under conditions and compares them with the field, with fixed images and random numbers.

    ``root`` in its methods is a matrix R with RᵀR = Σ⁻¹ of (2).
    """

    descriptor: ImageDescriptor
    widest: Recipe
    parameters: tuple[FreeParameter, ...]
    field: Array  # φ of field data
    x: Tensor  # clean images, one per simulated image
    origin: NDArray[np.int64]  # row of each in the clean data; rows may repeat
    classes: Array  # one-hot, one row per image
    priors: Array | None
    seed: int
    tick: Callable[[], None]

    def recipe(self, t: Array) -> Recipe:
        values = [(p.condition, p.name, p.value(v)) for p, v in zip(self.parameters, t, strict=True)]
        severities = {
            name: _narrowed(s, {p: v for condition, p, v in values if condition == name})
            for name, s in self.widest.severities.items()
        }
        return replace(self.widest, severities=severities)

    def simulate(self, recipe: Recipe, rows: int, seed: int) -> Array:
        drawn = recipe.draw(len(self.x), generator=torch.Generator().manual_seed(seed))
        self.tick()
        return self.descriptor(apply(self.x[:rows], drawn[:rows]))

    def compare(self, t: Array, root: Array, rows: int | None = None) -> Comparison:
        """Compare the field with the first ``rows`` images, simulated at t."""
        features = self.simulate(self.recipe(t), rows or len(self.x), self.seed)
        return self.compare_features(features, self.field.mean(0), root, np.ones(len(features)))

    def compare_features(self, features: Array, field: Array, root: Array, counts: Array) -> Comparison:
        weights = self.classes[: len(features)] * counts[:, None]
        means = root @ (weights.T @ features / np.maximum(weights.sum(0), 1e-9)[:, None]).T
        priors = _mixture(means, root @ field) if self.priors is None else self.priors
        return Comparison(means @ priors - root @ field, features, means, priors)

    def weights(self, priors: Array) -> Array:
        """Weight of each simulated image; they sum to 1."""
        weights: Array = self.classes @ (priors / np.maximum(self.classes.sum(0), 1))
        weights /= weights.sum()
        return weights


def _mixture(means: Array, target: Array) -> Array:
    """The priors whose mixture of class means is nearest to the target."""
    if means.shape[1] == 1:
        return np.ones(1)
    heavy = 1e3  # keeps the sum at 1
    system = np.vstack([means, np.full((1, means.shape[1]), heavy)])
    priors: Array = nnls(system, np.append(target, heavy))[0]
    priors /= priors.sum()
    return priors


def _inverse_root(features: Array, weights: Array | None, ridge: float) -> Array:
    """A matrix R with RᵀR = Σ⁻¹ of (2)."""
    cov = np.cov(features.T, aweights=weights)
    cov += ridge * np.trace(cov) / len(cov) * np.eye(len(cov))
    root: Array = np.linalg.inv(np.linalg.cholesky(cov))
    return root


def make_matcher(
    field: Samples,
    clean: Samples,
    widest: Recipe,
    priors: Sequence[float] | None,
    simulated: int,
    generator: torch.Generator,
    tick: Callable[[], None],
) -> ConditionMatcher:
    one, other = (s.x[shuffled(len(s), generator)[:REFERENCE]].detach().cpu() for s in (field, clean))
    reference = torch.cat([one, apply(other, widest.draw(len(other), generator=generator))])
    descriptor = ImageDescriptor.of(reference, widest.bounds)
    y = torch.zeros(len(clean), dtype=torch.int64) if clean.y is None else clean.y.cpu()
    counts = y.bincount()
    shares = (counts > 0) / (counts > 0).sum() if priors is None else checked_priors(priors, y, clean.classes)
    rows = _rows(y, shares, simulated, generator)
    return ConditionMatcher(
        descriptor=descriptor,
        widest=widest,
        parameters=tuple(p for name, s in widest.severities.items() for p in free_parameters(name, s)),
        field=descriptor(field.x),
        x=clean.x.detach().cpu()[rows],
        origin=rows.numpy(),
        classes=one_hot(y[rows], len(counts)).double().numpy(),
        priors=None if priors is None else shares.numpy(),
        seed=int(torch.randint(2**62, (), generator=generator, device=generator.device)),
        tick=tick,
    )


def _rows(y: Tensor, shares: Tensor, n: int, generator: torch.Generator) -> Tensor:
    """About n rows in random order, classes in these shares; rows repeat if a class has too few."""
    parts = []
    for c, share in enumerate(shares.tolist()):
        members, count = (y == c).nonzero().flatten(), max(round(n * share), 2 * (share > 0))
        mixed = members[shuffled(len(members), generator)]
        parts.append(mixed.repeat(math.ceil(count / max(1, len(mixed))))[:count])
    rows = torch.cat(parts)
    return rows[shuffled(len(rows), generator)]


def best_match(matcher: ConditionMatcher) -> tuple[Array, Array]:
    """The parameters with the smallest distance, and the matrix R that it was measured with."""
    root = _inverse_root(matcher.field, None, 0.1)
    t = _descend(matcher, _start(matcher, root), root, rough=True)
    there = matcher.compare(t, root)
    root = _inverse_root(there.features, matcher.weights(there.priors), 0.01)
    t = _descend(matcher, t, root)
    return _drop_idle(matcher, t, root), root


def _start(matcher: ConditionMatcher, root: Array) -> Array:
    """The best of some candidates: little of everything, almost nothing, and points spread over all ranges."""
    none = np.array([p.none for p in matcher.parameters])
    little = [np.where([p.name == "mean" for p in matcher.parameters], none, part) for part in (0.1, 0.002)]
    engine = torch.quasirandom.SobolEngine(len(none), scramble=True, seed=matcher.seed % 2**31)
    candidates: list[Array] = [*little, *engine.draw(STARTS).double().numpy()]
    costs = [matcher.compare(t, root, START_IMAGES).cost for t in candidates]
    return candidates[int(np.argmin(costs))]


def _descend(
    matcher: ConditionMatcher, t: Array, root: Array, *, rough: bool = False, free: NDArray[np.bool_] | None = None
) -> Array:
    """The end of a few Gauss-Newton steps from t, moving only the free parameters (default: all)."""
    rows, step, max_steps = (ROUGH_IMAGES, ROUGH, 12) if rough else (len(matcher.x), FINE, 4)
    free = np.ones(len(t), dtype=bool) if free is None else free
    if not free.any():
        return t
    computed: dict[bytes, Array] = {}

    def at(part: Array) -> Array:
        if part.tobytes() not in computed:
            whole = t.copy()
            whole[free] = part
            computed[part.tobytes()] = matcher.compare(whole, root, rows).residual
        return computed[part.tobytes()]

    solution = least_squares(
        at,
        t[free].clip(1e-6, 1 - 1e-6),
        jac=lambda part: _slopes(at, part, step),
        bounds=(0, 1),
        max_nfev=max_steps,
        ftol=3e-3,
        xtol=3e-3,
    )
    end = t.copy()
    end[free] = solution.x
    return end


def _slopes(at: Callable[[Array], Array], t: Array, step: float) -> Array:
    """One-sided finite differences within the range, one column per parameter."""
    here, steps = at(t), np.where(t + step <= 1, step, -step)
    return np.stack([(at(t + h * e) - here) / h for h, e in zip(steps, np.eye(len(t)), strict=True)], 1)


def wide_slopes(matcher: ConditionMatcher, t: Array, root: Array) -> Array:
    """Two-sided finite differences, as wide as the parameters are uncertain: narrow ones would follow chance."""
    columns = []
    for i in range(len(t)):
        left, right = t.copy(), t.copy()
        left[i], right[i] = max(0.0, t[i] - ROUGH), min(1.0, t[i] + ROUGH)
        rise = matcher.compare(right, root).residual - matcher.compare(left, root).residual
        columns.append(rise / (right[i] - left[i]))
    return np.stack(columns, 1)


def _drop_idle(matcher: ConditionMatcher, t: Array, root: Array) -> Array:
    """Remove conditions that are not needed and search again over the rest, until all are needed."""
    conditions = [p.condition for p in matcher.parameters]
    on = list(dict.fromkeys(conditions))
    while on:
        t, needed = _needed(matcher, t, root, on)
        if needed == on:
            break
        on = needed
        t = _descend(matcher, t, root, free=np.isin(conditions, on))
    return t


def _needed(matcher: ConditionMatcher, t: Array, root: Array, on: list[str]) -> tuple[Array, list[str]]:
    """Switch off, one by one, conditions without which the distance rises no more than chance allows."""
    conditions = np.array([p.condition for p in matcher.parameters])
    none = np.array([p.none for p in matcher.parameters])
    cost = matcher.compare(t, root).cost
    while on:
        off = {c: np.where(conditions == c, none, t) for c in on}
        costs = {c: matcher.compare(v, root).cost for c, v in off.items()}
        over = {c: costs[c] - _allowance(matcher, int((conditions == c).sum())) for c in on}
        least = min(on, key=lambda c: over[c])
        if over[least] > cost:
            break
        t, cost, on = off[least], costs[least], [c for c in on if c != least]
    return t, on


def _allowance(matcher: ConditionMatcher, parameters: int) -> float:
    """How much (2) rises by chance if this many parameters are left out."""
    rows = 1 / (1 / len(matcher.field) + 1 / len(np.unique(matcher.origin)))  # as many would give d the same noise
    return float(chi2.ppf(CONFIDENCE, parameters) / rows)
