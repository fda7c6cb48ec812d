"""The search behind `fit_conditions`: add the condition that helps most, step towards the field, leave out the idle."""

from collections.abc import Callable, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import lsq_linear
from scipy.stats import chi2

from operant.conditions import CONDITIONS, Recipe
from operant.profile._appearance import Array
from operant.profile._matching import ConditionMatcher, FreeParameter, inverse_root

PROBE_IMAGES, ROUGH_IMAGES = 200, 400  # images simulated to compare conditions, and in the rough search
EXCHANGE_IMAGES = 1000  # to tell a condition from a similar one
EARLY_RIDGE, LATE_RIDGE = 0.05, 0.02  # of Σ, when the conditions are still wrong, and when they are nearly right
FINALISTS = 2  # conditions that are tried in earnest before one of them is added
CLOSE = 1.5  # factor by which a squared distance may exceed the best one for its condition still to be tried
ROUGH, FINE = 0.03, 0.015  # steps of finite differences in the two searches, as shares of a range
MAX_MOVE = 0.3  # of a parameter in one step, as a share of its range
ALPHA = 0.01  # chance that any of the conditions that are tried seems to help although none does
MIN_GAIN, MIN_SHARE = 0.03, 0.01  # by which a condition must lower the squared distance; share of it
MAX_CONDITIONS = 10
TOGETHER = {"motion_angle": "motion_blur"}  # a direction means nothing without its movement


class Match(NamedTuple):
    """The conditions that were found."""

    matcher: ConditionMatcher  # with the learned description
    t: Array
    on: list[str]  # names of the conditions
    root: Array  # R of the last distance

    @property
    def recipe(self) -> Recipe:
        return self.matcher.recipe(self.t)

    @property
    def places(self) -> list[int]:
        """Those of the parameters of the conditions found."""
        groups = groups_of(self.matcher.parameters)
        return sorted(i for name in self.on for i in groups[name])


def first_match(matcher: ConditionMatcher) -> tuple[Array, list[str]]:
    """Search with equal weights of all numbers, which sees far."""
    return grow(matcher, nothing(matcher.parameters), inverse_root(matcher.field, None, 1.0), [])


def better_match(matcher: ConditionMatcher, t: Array, on: list[str]) -> Match:
    """Search from t with the weights of (2), which see better than equal ones."""
    root = matcher.root(t, EARLY_RIDGE)
    t, on = exchange(matcher, rough(matcher, t, root, on, steps=2), root, on)  # before others make up for a wrong one
    t, on = grow(matcher, t, root, on)
    return Match(matcher, t, on, root)


def best_match(matcher: ConditionMatcher, t: Array, on: list[str], generator: torch.Generator) -> Match:
    """Search from t as `better_match` does, then among similar conditions, at last with learned features.

    These come from a network that learned to tell field data from images under the conditions found so far.
    """
    _, t, on, root = better_match(matcher, t, on)
    t, on = exchange(matcher, t, root, on)
    t = jump(matcher, t, root, on)
    matcher = matcher.with_learned(t, generator)
    root = matcher.root(t, LATE_RIDGE)
    t = descend(matcher, t, root, on, rows=None, step=FINE, steps=4)
    t, on = shrink(matcher, t, root, on, again=True)
    return Match(matcher, t, on, root)


def without_idle(match: Match) -> Match:
    """Without the conditions that all images together show to be of little use."""
    t, on = shrink(match.matcher, match.t, match.root, match.on, again=True)
    return match._replace(t=t, on=on)


Groups = dict[str, list[int]]
"""The places of each condition's parameters."""


def groups_of(parameters: Sequence[FreeParameter]) -> Groups:
    groups: Groups = {}
    present = {p.condition for p in parameters}
    for i, p in enumerate(parameters):
        partner = TOGETHER.get(p.condition)
        groups.setdefault(partner if partner in present else p.condition, []).append(i)
    return groups


def nothing(parameters: Sequence[FreeParameter]) -> Array:
    """The parameters at which every condition does nothing."""
    return np.array([p.none for p in parameters])


def grow(matcher: ConditionMatcher, t: Array, root: Array, on: list[str]) -> tuple[Array, list[str]]:
    """Add the condition that lowers the distance most, until none lowers the squared distance enough."""
    groups = groups_of(matcher.parameters)
    while len(on) < min(MAX_CONDITIONS, len(groups)):
        cost = matcher.compare(t, root, ROUGH_IMAGES).cost
        promises = _promises(matcher, t, root, on, [name for name in groups if name not in on])
        names = _finalists({name: promise for name, (promise, _) in promises.items()})
        ends = {n: rough(matcher, promises[n][1], root, [*on, n], steps=1) for n in names}
        costs = {n: matcher.compare(end, root, ROUGH_IMAGES).cost for n, end in ends.items()}
        best = min(names, key=lambda name: costs[name])
        if cost - costs[best] < enough(cost) + allowance(matcher, len(groups[best]), ROUGH_IMAGES):
            break
        on = [*on, best]
        t = rough(matcher, ends[best], root, on, steps=2)
        t, on = shrink(matcher, t, root, on, rows=ROUGH_IMAGES)
    return t, on


def _finalists(promises: dict[str, float]) -> list[str]:
    best = sorted(promises, key=lambda name: promises[name])[:FINALISTS]
    return [name for name in best if promises[name] <= CLOSE * promises[best[0]]]


def rough(matcher: ConditionMatcher, t: Array, root: Array, on: list[str], *, steps: int) -> Array:
    return descend(matcher, t, root, on, rows=ROUGH_IMAGES, step=ROUGH, steps=steps)


def _promises(
    matcher: ConditionMatcher, t: Array, root: Array, on: list[str], names: Sequence[str]
) -> dict[str, tuple[float, Array]]:
    """What each absent condition could do: the distance that a linear model predicts, and the parameters for it.

    The model's columns are the changes that a few severities of the condition make, and the slopes of the present ones.
    """
    groups = groups_of(matcher.parameters)
    present = [i for name in on for i in groups[name]]

    def at(whole: Array) -> Array:
        return matcher.compare(whole, root, PROBE_IMAGES).residual

    here = at(t)
    moves = [_moved(t, [i], [t[i] + (ROUGH if t[i] + ROUGH <= 1 else -ROUGH)]) - t for i in present]
    known = [(at(t + move) - here, move, 3.0) for move in moves]
    promises = {}
    for name in names:
        tried = [_moved(t, groups[name], v) for v in probes([matcher.parameters[i] for i in groups[name]])]
        promises[name] = _promise(t, here, known, [(at(other) - here, other - t) for other in tried])
    return promises


def _moved(t: Array, places: Sequence[int], values: Sequence[float] | Array) -> Array:
    other = t.copy()
    other[list(places)] = values
    return other


def _promise(
    t: Array, here: Array, known: list[tuple[Array, Array, float]], tried: list[tuple[Array, Array]]
) -> tuple[float, Array]:
    changes = np.stack([c for c, _ in tried] + [c for c, _, _ in known], 1)
    moves = np.stack([m for _, m in tried] + [m for _, m, _ in known], 1)
    low = [0.0] * len(tried) + [-limit for *_, limit in known]
    high = [1.5] * len(tried) + [limit for *_, limit in known]
    share = lsq_linear(changes, -here, bounds=(low, high)).x
    left = here + changes @ share
    return float(left @ left), (t + moves @ share).clip(0, 1)


ALIKE = (
    ("exposure", "brightness", "contrast", "gamma", "fog"),
    ("blur", "defocus", "motion_blur", "downsampling", "jpeg"),
    ("shot_noise", "gaussian_noise", "impulse_noise"),
    ("rotation", "shear"),
)


def exchange(matcher: ConditionMatcher, t: Array, root: Array, on: list[str]) -> tuple[Array, list[str]]:
    """Replace conditions by similar ones where that lowers the distance."""
    groups, none, rows = groups_of(matcher.parameters), nothing(matcher.parameters), EXCHANGE_IMAGES
    cost, probed, seen = (matcher.compare(t, root, n).cost for n in (rows, PROBE_IMAGES, ROUGH_IMAGES))
    for name in on:
        rivals = [n for family in ALIKE if name in family for n in family if n in groups and n not in on]
        if not rivals:
            continue
        rest = [n for n in on if n != name]
        promises = _promises(matcher, _moved(t, groups[name], none[groups[name]]), root, rest, rivals)
        rival = min(promises, key=lambda n: promises[n][0])
        if promises[rival][0] > 2 * probed:
            continue
        end = rough(matcher, promises[rival][1], root, [*rest, rival], steps=2)
        if matcher.compare(end, root, ROUGH_IMAGES).cost > CLOSE * seen:
            continue
        end = descend(matcher, end, root, [*rest, rival], rows=rows, step=ROUGH, steps=1)
        new = matcher.compare(end, root, rows).cost
        if new < 0.9 * cost:
            t, on, cost, seen = end, [*rest, rival], new, matcher.compare(end, root, ROUGH_IMAGES).cost
    return t, on


JUMPS = tuple(product((-0.1, 0.0, 0.1), (0.1, 0.4, 1.0, 2.0)))  # added to a mean; factors of a spread


def jump(matcher: ConditionMatcher, t: Array, root: Array, on: list[str]) -> Array:
    """Move conditions that act in steps farther than slopes can see: the best of a few jumps, if it helps."""
    groups = groups_of(matcher.parameters)

    def cost(at: Array) -> float:
        return matcher.compare(at, root, EXCHANGE_IMAGES).cost

    for name in on:
        places = groups[name]
        if CONDITIONS[name].smooth or [matcher.parameters[i].name for i in places] != ["mean", "std"]:
            continue
        mean, spread = t[places]
        tried = [_moved(t, places, [min(1.0, max(0.0, mean + a)), min(1.0, b * spread)]) for a, b in JUMPS]
        best = min(tried, key=lambda other: matcher.compare(other, root, ROUGH_IMAGES).cost)
        t = min(t, descend(matcher, best, root, on, rows=EXCHANGE_IMAGES, step=ROUGH, steps=2), key=cost)
    return t


def probes(parameters: Sequence[FreeParameter]) -> list[tuple[float, ...]]:
    """Severities to try first: weak, medium and strong ones, in either direction."""
    if len(parameters) == 4:  # movement and its direction
        return [(0.25, 0.04, *angle) for angle in ((0.5, 0.01), (0.0, 0.01), (0.25, 0.01), (0.75, 0.01), (0.5, 1.0))]
    if [p.name for p in parameters] == ["mean", "std"]:
        none = parameters[0].none
        if none < 0.05:
            steep = not CONDITIONS[parameters[0].condition].smooth  # small steps from a medium severity lead nowhere
            return [(0.08, 0.005), (0.35, 0.05), *([(0.65, 0.02)] if steep else [])]
        return [(none, 0.1), (none - 0.2, 0.02), (none + 0.2, 0.02)]
    return list(product((0.05, 0.3), repeat=len(parameters)))


def descend(
    matcher: ConditionMatcher, t: Array, root: Array, on: list[str], *, rows: int | None, step: float, steps: int
) -> Array:
    """The end of a few bounded Gauss-Newton steps from t, moving only the parameters of these conditions."""
    groups = groups_of(matcher.parameters)
    free = [i for name in on for i in groups[name]]
    if not free:
        return t

    def at(part: Array) -> Array:
        whole = t.copy()
        whole[free] = part
        return matcher.compare(whole, root, rows).residual

    here, residual = t[free], at(t[free])
    for _ in range(steps):
        slopes = _slopes(at, here, residual, step)
        low, high = np.maximum(-here, -MAX_MOVE), np.minimum(1 - here, MAX_MOVE)
        move = lsq_linear(slopes, -residual, bounds=(low - 1e-9, high + 1e-9)).x
        found = _first_lower(at, here, move, residual)
        if found is None:
            break
        gain = 1 - (found[1] @ found[1]) / (residual @ residual)
        here, residual = found
        if gain < 0.01:
            break
    end = t.copy()
    end[free] = here
    return end


def _first_lower(at: Callable[[Array], Array], here: Array, move: Array, residual: Array) -> tuple[Array, Array] | None:
    """The whole move or a part of it, whichever first lowers the distance."""
    for part in (1.0, 0.3, 0.1):
        there = (here + part * move).clip(0, 1)
        other = at(there)
        if other @ other < residual @ residual:
            return there, other
    return None


def _slopes(at: Callable[[Array], Array], t: Array, here: Array, step: float) -> Array:
    """One-sided finite differences within the range, one column per parameter."""
    steps = np.where(t + step <= 1, step, -step)
    return np.stack([(at(t + h * e) - here) / h for h, e in zip(steps, np.eye(len(t)), strict=True)], 1)


def wide_slopes(matcher: ConditionMatcher, t: Array, root: Array, places: Sequence[int]) -> Array:
    """Two-sided finite differences, as wide as the parameters are uncertain: narrow ones would follow chance."""
    columns = []
    for i in places:
        left, right = t.copy(), t.copy()
        left[i], right[i] = max(0.0, t[i] - ROUGH), min(1.0, t[i] + ROUGH)
        rise = matcher.compare(right, root).residual - matcher.compare(left, root).residual
        columns.append(rise / (right[i] - left[i]))
    return np.stack(columns, 1)


def shrink(
    matcher: ConditionMatcher, t: Array, root: Array, on: list[str], *, rows: int | None = None, again: bool = False
) -> tuple[Array, list[str]]:
    """Remove conditions without which the distance rises too little; ``again`` searches again over the others first."""
    groups, none = groups_of(matcher.parameters), nothing(matcher.parameters)
    cost = matcher.compare(t, root, rows).cost
    without = {n: _moved(t, groups[n], none[groups[n]]) for n in on}
    costs = {n: matcher.compare(other, root, rows).cost for n, other in without.items()}
    for name in sorted(on, key=lambda n: costs[n]):
        rest = [n for n in on if n != name]
        other = _moved(t, groups[name], none[groups[name]])
        limit = cost + enough(cost) + allowance(matcher, len(groups[name]), rows)
        if again and limit < costs[name] < cost + 10 * (limit - cost):
            other = descend(matcher, other, root, rest, rows=rows, step=ROUGH, steps=1)
        new = matcher.compare(other, root, rows).cost
        if new <= limit:
            t, on, cost = other, rest, new
    return t, on


def enough(cost: float) -> float:
    """How much a condition must lower this squared distance, besides chance, to be worth its name."""
    return max(MIN_GAIN, MIN_SHARE * cost)


def allowance(matcher: ConditionMatcher, parameters: int, rows: int | None = None) -> float:
    """How much (2) rises by chance, over all conditions that are tried, if this many parameters are left out."""
    simulated = len(np.unique(matcher.origin[:rows]))
    equivalent = 1 / (1 / len(matcher.field) + 1 / simulated)  # as many would give d the same noise
    return float(chi2.isf(ALPHA / len(groups_of(matcher.parameters)), parameters) / equivalent)
