"""How estimates compare with the truth: names, parameters, class shares, and coverage."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scipy.stats import binom, binomtest

from operant.conditions import Recipe
from operant.profile import FittedConditions, Parameter
from operant_studies.field.unit import ShareEstimate
from operant_studies.shared import HELD, NOT_DECIDED, NOT_HELD

PART_OF = {"motion_angle": "motion_blur"}  # a direction is found with its movement
ALIKE = {
    "blurred": ("blur", "defocus", "motion_blur", "downsampling"),
    "light": ("exposure", "brightness", "gamma", "contrast", "fog"),
    "noisy": ("shot_noise", "gaussian_noise", "impulse_noise"),
}
LEVEL = 0.01  # of the test against the nominal level
MIN_JUDGED = 30  # intervals, below which coverage is not decided
NO_INTERVAL = 0.99  # width from which an interval of a share says nothing


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Conditions found and true ones, over one or more fits."""

    right: int = 0
    found: int = 0
    true: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(right=self.right + other.right, found=self.found + other.found, true=self.true + other.true)

    @property
    def precision(self) -> float:
        """Share of those found that are true; 1 if none was found."""
        return self.right / self.found if self.found else 1.0

    @property
    def recall(self) -> float:
        return self.right / self.true if self.true else 1.0


def names_of(names: Iterable[str], *, kinds: bool = False) -> frozenset[str]:
    """Names of conditions, without those that are part of another; with ``kinds``, similar ones share a name.

    >>> sorted(names_of(["motion_blur", "motion_angle", "tint"], kinds=True))
    ['blurred', 'tint']
    """
    kind = {name: kind for kind, members in ALIKE.items() for name in members} if kinds else {}
    return frozenset(kind.get(PART_OF.get(n, n), PART_OF.get(n, n)) for n in names)


def counts(fitted: FittedConditions, recipe: Recipe, *, kinds: bool = False) -> Counts:
    """How many conditions were found rightly."""
    found, true = names_of(fitted.active, kinds=kinds), names_of(recipe.names, kinds=kinds)
    return Counts(right=len(found & true), found=len(found), true=len(true))


def inside(fitted: FittedConditions, recipe: Recipe) -> list[tuple[Parameter, float, bool]]:
    """Parameters of conditions found rightly, with the true value and whether the interval holds it."""
    known = [(p, true_value(recipe, p)) for p in fitted.parameters if p.condition in recipe.names]
    return [(p, value, p.lower <= value <= p.upper) for p, value in known]


def true_value(recipe: Recipe, parameter: Parameter) -> float:
    severity = recipe.severities[parameter.condition]
    return severity.mean if parameter.name == "mean" else severity.std


def coverage_verdict(hits: int, n: int, nominal: float = 0.95) -> str:
    """*Held* if so few hits, or fewer, happen by chance at the nominal level in at least one of a hundred studies.

    >>> coverage_verdict(89, 100), coverage_verdict(88, 100)
    ('held', 'not held')
    """
    if n < MIN_JUDGED:
        return NOT_DECIDED
    return HELD if binom.cdf(hits, n, nominal) >= LEVEL else NOT_HELD


def proportion(hits: int, n: int) -> str:
    """Hits of n, with an exact 95 % interval of the share.

    >>> proportion(9, 10)
    '9 of 10 (90 [55, 100] %)'
    """
    if n == 0:
        return "0 of 0"
    interval = binomtest(hits, n).proportion_ci()
    return f"{hits} of {n} ({100 * hits / n:.0f} [{100 * interval.low:.0f}, {100 * interval.high:.0f}] %)"


# Class shares ---------------------------------------------------------------------------------------------------------


def total_variation(a: Sequence[float], b: Sequence[float]) -> float:
    """Half the sum of absolute differences; classes that one side lacks have a share of 0 there."""
    longest = max(len(a), len(b))
    one, other = (list(v) + [0.0] * (longest - len(v)) for v in (a, b))
    return sum(abs(x - y) for x, y in zip(one, other, strict=True)) / 2


def withheld(estimate: ShareEstimate) -> bool:
    """Whether no interval says anything."""
    widths = _widths(estimate)
    return not widths or all(not math.isfinite(w) or w >= NO_INTERVAL for w in widths)


def doubted(estimate: ShareEstimate) -> bool:
    """Whether intervals are stated, with a reason to doubt them."""
    return not withheld(estimate) and bool(estimate.findings)


def covered(estimate: ShareEstimate, true: Sequence[float]) -> tuple[int, int]:
    """How many of the stated intervals hold the true share, and how many there are; withheld ones do not count."""
    if withheld(estimate):
        return 0, 0
    rows = list(zip(estimate.lower, estimate.upper, true, strict=True))
    return sum(low <= value <= high for low, high, value in rows), len(rows)


def _widths(estimate: ShareEstimate) -> list[float]:
    return [high - low for low, high in zip(estimate.lower, estimate.upper, strict=True)]
