"""Estimates field conditions: the severities under which clean images look most like field data."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from operant.activity import activity
from operant.conditions import Recipe, default_palette
from operant.conditions._fields import kept_fields
from operant.data import Samples
from operant.formatting import percent
from operant.model import Finding
from operant.profile._appearance import MIN_SIDE, Array
from operant.profile._checks import blank_rows, check_bounds, check_same_shape, warning
from operant.profile._matching import ConditionMatcher, FreeParameter
from operant.profile._search import Match, nothing, wide_slopes
from operant.profile._views import MIN_REDUCED_SIDE, match_field, reduction
from operant.rng import shuffled
from operant.validation import check_at_least, check_between

Matches = list[tuple[Match, tuple[str, ...]]]
"""Matches, each with the conditions that it decides."""

MIN_IMAGES = 50  # on either side
MAX_CLASSES = 50  # whose priors can be fitted too
SPLITS = 20  # of field data into halves
MAX_UNEXPLAINED, MAX_DISTANCE = 0.1, 0.5  # that may remain: share of the squared distance, and distance
STRETCH = 2.0  # of the resampled steps: on tuning fields 1.5 covered 34 of 38 parameters, and 2 covers 37
GIVEN_THE_OTHERS = (
    "Each interval holds if these are the right conditions; it does not count that others could have been found."
)
END = 0.02  # distance from the end of its range below which a parameter counts as at the end


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A fitted parameter of a severity's distribution, with its interval."""

    condition: str  # such as "rotation"
    name: str  # "mean", "std", "low" or "high"
    value: float
    lower: float
    upper: float
    limits: tuple[float, float]  # smallest and largest value searched

    def __str__(self) -> str:
        return f"{self.condition} {self.name} {self.value:.3g} [{self.lower:.3g}, {self.upper:.3g}]"


@dataclass(frozen=True, kw_only=True)
class FittedConditions:
    """Estimated field conditions, and how well they explain the field data.

    Attributes:
        recipe: the conditions found, within the widest that was declared, and those declared as `fixed`.
        parameters: of the conditions found.
        before, after: distance (2) of `fit_conditions` of field data from clean images, unchanged and under the recipe.
        floor: distance between two halves of the field data, the smallest to be expected.
        floor_high: 95 % quantile of that distance over splits into halves.
        priors: of the classes in the field, given or fitted; empty if clean images have no labels.
        findings: reasons to doubt the recipe.
    """

    recipe: Recipe
    parameters: tuple[Parameter, ...]
    before: float
    after: float
    floor: float
    floor_high: float
    priors: tuple[float, ...]
    confidence: float
    findings: tuple[Finding, ...]

    @property
    def active(self) -> tuple[str, ...]:
        """Names of the conditions found."""
        return tuple(dict.fromkeys(p.condition for p in self.parameters))

    @property
    def unexplained(self) -> float:
        """How much of the difference between clean and field data the recipe leaves, from 0 to 1.

        √((after² - floor²) / (before² - floor²)); 0 if clean and field data do not differ.
        """
        whole, left = self.before**2 - self.floor**2, self.after**2 - self.floor**2
        return 0.0 if whole <= 0 or left <= 0 or not self._differ else min(1.0, math.sqrt(left / whole))

    @property
    def _differ(self) -> bool:
        """Whether clean and field data differ beyond chance, and by more than may remain under a recipe."""
        return self.before > max(self.floor_high, math.hypot(self.floor, MAX_DISTANCE))

    def __str__(self) -> str:
        distances = (
            f"Distance of field data from clean images {self.before:.2f}, under these conditions {self.after:.2f}; "
            f"between halves of the field data {self.floor:.2f}."
        )
        if not self.parameters and not self._differ:
            first = f"Field data look like clean images: no condition was found. {distances}"
        elif not self.parameters:
            first = f"No condition makes clean images look more like field data. {distances}"
        else:
            first = (
                f"Conditions in the field ({percent(self.confidence, 2)} intervals), which leave "
                f"{percent(self.unexplained)} of the difference unexplained. {distances}"
            )
        found = [*(f"  {p}" for p in self.parameters), *([GIVEN_THE_OTHERS] if self.parameters else [])]
        return "\n".join([first, *found, *(str(f) for f in self.findings)])


def fit_conditions(
    field: Samples,
    clean: Samples,
    *,
    widest: Recipe | None = None,
    bounds: tuple[float, float] = (0.0, 1.0),
    priors: Sequence[float] | None = None,
    simulated: int = 1000,
    resamples: int = 200,
    confidence: float = 0.95,
    generator: torch.Generator,
    progress: bool = True,
) -> FittedConditions:
    """Find the severities under which clean images are hardest to distinguish from field data.

    An image is described by about fifty numbers: levels of brightness, sharpness at three scales, directions of edges,
    the position of its mass, principal components. Each is mapped to a value u between 0 and 1, and means of cosines
    describe how u is distributed:

        φ(x) = √2 cos(πku), k = 1 to 3, for each number                                              (1)
        distance² = dᵀ Σ⁻¹ d,   d = mean φ(field) - mean φ(simulated),   Σ = cov φ + a small ridge   (2)

    (2) is the largest separation, in standard deviations, that a linear test on φ can reach, so it is smallest for the
    conditions that are hardest to distinguish from the field. It is a sum of squares of means: with fixed random
    numbers it is smooth in the parameters, and bounded Gauss-Newton steps over finite differences lower it quickly,
    even for conditions without gradients.

    The search is sparse: it starts without conditions, adds the one that lowers (2) most, moves all parameters found so
    far, and goes on until none helps by more than chance; conditions that are no longer needed are removed, and similar
    ones (blur, defocus, ...) are tried in place of those found. At the end, a small network learns to tell field data
    from images under the conditions found; its features join the numbers, so that nothing it sees is ignored.
    Images of more than 64 pixels are compared twice: small copies, which show the scene, and details at full size,
    which show light, lens and sensor; the squared distances of the two are added.
    Intervals come from one Gauss-Newton step per resample of both sides, made twice as long: without that they ignore
    the uncertainty of Σ and of the slopes, and 95 % intervals covered 88 % on MNIST.

    Simulated images are weighted so that, class by class, they resemble five times as many clean images: otherwise the
    sample of clean images decides what is found of rotation, shear or scale.

    So that changed class shares are not mistaken for conditions, simulated images are weighted by the ``priors`` of
    their classes. By default priors are fitted too if clean images have labels, as the mixture of class means of φ
    nearest to the field's; this needs no model, which conditions could mislead. Where no mixture comes near, they stay
    near the shares among clean images; `estimate_priors` combines them with what a model says.

    Args:
        field: images from operation; labels are ignored.
        clean: other images, without any conditions.
        widest: the strongest possible conditions, which limit the fit; by default those of `default_palette`, which a
            camera may meet. Each severity keeps its family. Fitted are: for
            a normal one the std, up to the declared one, and the mean, up to one declared std from the declared mean;
            for a half-normal one the std; for a uniform one the ends, between 0 and the declared ends. `fixed`
            severities and the probability of being absent are kept.
        bounds: smallest and largest value of an image, if ``widest``, which has its own, is not given.
        priors: of the classes in the field, if known.
        simulated: images per simulation.
        resamples, confidence: of the intervals.
        generator: draws images, severities, splits and resamples; the same one gives the same fit.
        progress: show progress on stderr.

    References:
        | A Method of Simulated Moments for Estimation of Discrete Response Models Without Numerical Integration
        | (McFadden, 1989), https://doi.org/10.2307/1913621
        | Large Sample Properties of Generalized Method of Moments Estimators (Hansen, 1982), for Σ in two steps
        | https://doi.org/10.2307/1912775
        | The Bayesian Bootstrap (Rubin, 1981), for the resamples, https://doi.org/10.1214/aos/1176345338
    """
    _check_images(field, clean)
    widest = default_palette(tuple(clean.shape), bounds=bounds) if widest is None else widest
    _check_limits(widest)
    _check_values("field images", field, widest.bounds)
    _check_values("clean images", clean, widest.bounds)
    _check_priors(clean, priors)
    check_at_least(MIN_IMAGES, simulated=simulated)
    check_at_least(20, resamples=resamples, advice="200 is usual")
    check_between(0, 1, confidence=confidence, advice="0.95 is usual")
    with activity("estimating conditions", unit="simulations", show=progress) as work, kept_fields():
        matches = _matches(field, clean, widest, priors, simulated, generator, work.advance)
        before, after, floor, floor_high = np.linalg.norm([_distances(m, generator) for m, _ in matches], axis=0)
        parameters = [p for m, names in matches for p in _parameters(m, names, resamples, confidence, generator)]
    first = matches[0][0]
    return FittedConditions(
        recipe=_merged(widest, matches),
        parameters=tuple(parameters),
        before=float(before),
        after=float(after),
        floor=float(floor),
        floor_high=float(floor_high),
        priors=() if clean.y is None else tuple(float(p) for p in first.matcher.compare(first.t, first.root).priors),
        confidence=confidence,
        findings=_unexplained(before, after, floor, floor_high) + _at_the_end(parameters),
    )


def _matches(field: Samples, clean: Samples, *options: Any) -> Matches:
    try:
        return match_field(field, clean, *options)
    except np.linalg.LinAlgError:
        raise ValueError("field or clean images hardly differ from each other; give more, and different ones") from None


def _merged(widest: Recipe, matches: Matches) -> Recipe:
    """The conditions that each match decides, in the order of the widest."""
    found = {n: s for match, names in matches for n, s in match.recipe.severities.items() if n in names}
    return replace(widest, severities={n: found[n] for n in widest.names if n in found})


def _parameters(
    match: Match, names: Sequence[str], resamples: int, confidence: float, generator: torch.Generator
) -> list[Parameter]:
    if not match.places:
        return []
    lower, upper = _intervals(match, resamples, confidence, generator)
    found = [match.matcher.parameters[i] for i in match.places]
    values = zip(found, match.t[match.places], lower, upper, strict=True)
    return [_parameter(p, *v) for p, *v in values if p.condition in names]


def _parameter(p: FreeParameter, t: float, lower: float, upper: float) -> Parameter:
    low, high = sorted((p.value(lower), p.value(upper)))
    first, last = sorted((p.first, p.last))
    return Parameter(condition=p.condition, name=p.name, value=p.value(t), lower=low, upper=high, limits=(first, last))


def _intervals(match: Match, resamples: int, confidence: float, generator: torch.Generator) -> tuple[Array, Array]:
    """Percentiles of the parameters found over resamples, each by one Gauss-Newton step."""
    matcher, t, _, root = match
    here = matcher.compare(t, root)
    slopes = wide_slopes(matcher, t, root, match.places)
    if matcher.priors is None and len(here.priors) > 1:  # priors move too, with their sum kept
        slopes = np.hstack([slopes, here.means[:, 1:] - here.means[:, :1]])
    held = replace(matcher, priors=here.priors)
    moves, inverse, images = [], np.linalg.pinv(slopes), int(matcher.origin.max()) + 1
    for _ in range(resamples):
        a, b = _counts(len(matcher.field), generator), _counts(images, generator)[matcher.origin]
        other = held.compare_features(here.features, a @ matcher.field / a.sum(), root, b)
        moves.append((inverse @ (here.residual - other.residual))[: len(match.places)])
    tails, found = [(1 - confidence) / 2, (1 + confidence) / 2], t[match.places]
    lower, upper = np.quantile(STRETCH * np.stack(moves), tails, axis=0)
    return np.minimum(found + lower, found).clip(0, 1), np.maximum(found + upper, found).clip(0, 1)


def _counts(n: int, generator: torch.Generator) -> Array:
    """Weight of each row in a resample; 1 on average."""
    u = torch.rand(n, generator=generator, device=generator.device, dtype=torch.float64).cpu()
    return np.asarray(-u.clamp_min(1e-12).log())


def _distances(match: Match, generator: torch.Generator) -> tuple[float, ...]:
    """(2) of the field from clean and from simulated images; root mean square and quantile of (2) between its halves.

    Means of few images differ by chance. The expected chance distance is subtracted from the first two, and the one
    between halves is added, so that all three can be compared.
    """
    matcher, t, _, root = match
    priors, n = matcher.compare(t, root).priors, len(matcher.x)
    halves = np.array([_halved(matcher.field, root, generator) for _ in range(SPLITS)])
    clean, fresh = (matcher.simulate(matcher.recipe(v), n, matcher.seed + 1) for v in (nothing(matcher.parameters), t))
    before, after = (_beyond_chance(matcher, v, priors, root) for v in (clean, fresh))
    floor = float(np.sqrt((halves**2).mean()))
    return math.hypot(before, floor), math.hypot(after, floor), floor, float(np.quantile(halves, 0.95))


def _halved(features: Array, root: Array, generator: torch.Generator) -> float:
    order, half = shuffled(len(features), generator).numpy(), len(features) // 2
    one, other = features[order[:half]].mean(0), features[order[half : 2 * half]].mean(0)
    return float(np.linalg.norm(root @ (one - other)))


def _beyond_chance(matcher: ConditionMatcher, features: Array, priors: Array, root: Array) -> float:
    """(2) between the field and these features, minus the expected value for two samples of one distribution."""
    held = replace(matcher, priors=priors)
    comparison = held.compare_features(features, matcher.field.mean(0), root, np.ones(len(features)))
    within = features @ root.T - matcher.classes @ comparison.means.T  # classes are mixed exactly, images are drawn
    shares = np.zeros((matcher.origin.max() + 1, within.shape[1]))
    np.add.at(shares, matcher.origin, matcher.weights(priors)[:, None] * within)  # of each clean image in the mean
    n = len(matcher.field)
    chance = (shares**2).sum() + (((matcher.field - matcher.field.mean(0)) @ root.T) ** 2).sum() / n**2
    return math.sqrt(max(0.0, float(comparison.cost - chance)))


def _unexplained(before: float, after: float, floor: float, floor_high: float) -> tuple[Finding, ...]:
    left = after**2 - floor**2
    if after <= floor_high or left <= max(MAX_DISTANCE**2, MAX_UNEXPLAINED * (before**2 - floor**2)):
        return ()
    problem = (
        f"field data differ in something that no condition explains: their distance is {before:.2f} from "
        f"clean images, {after:.2f} under the fitted conditions, and {floor:.2f} between halves of themselves"
    )
    advice = "Compare field images with simulated ones and declare what is missing, or give clean images of that kind"
    return (warning("conditions do not explain the field", problem, advice),)


def _at_the_end(parameters: Sequence[Parameter]) -> tuple[Finding, ...]:
    far = [f"{p.condition} {p.name} {p.value:.3g}" for p in parameters if p.condition != "motion_angle" and _far(p)]
    if not far:
        return ()
    problem = f"the best value is at the end of the range searched: {', '.join(far)}"
    advice = "Declare a wider recipe, if stronger conditions are possible"
    return (warning("parameter at the end of its range", problem, advice),)


def _far(p: Parameter) -> bool:
    """Whether a parameter is as far from no change as its limits allow."""
    low, high = p.limits
    near = END * (high - low)
    return (high > 0 and p.value > high - near) or (low < 0 and p.value < low + near)


def _check_images(field: Samples, clean: Samples) -> None:
    for name, samples in (("field", field), ("clean", clean)):
        if samples.x.ndim != 4 or min(samples.shape[1:]) < MIN_SIDE:
            raise ValueError(
                f"conditions are for images: {name} must be (n, channels, height, width) of at least {MIN_SIDE} by "
                f"{MIN_SIDE} pixels, got {tuple(samples.x.shape)}"
            )
        if len(samples) < MIN_IMAGES:
            raise ValueError(f"at least {MIN_IMAGES} {name} images are needed, got {len(samples)}; give more")
    check_same_shape("field", field, "clean", clean)
    height, width = clean.shape[1:]
    if min(height, width) // reduction(clean.shape) < MIN_REDUCED_SIDE:
        raise ValueError(f"images of {height} by {width} pixels are too narrow for their length; cut them into parts")


def _check_values(name: str, samples: Samples, bounds: tuple[float, float]) -> None:
    check_bounds(name, samples.x, bounds)
    if bool(blank_rows(samples.x).all()):
        raise ValueError(f"each of the {name} has one value throughout (all black, say); give others")


def _check_limits(widest: Recipe) -> None:
    for name, s in widest.severities.items():
        if s.low < s.high and not s.low <= 0 <= s.high:
            raise ValueError(
                f"the range of each condition must hold 0, no change, got {s.low} to {s.high} for {name}; widen it, or "
                "declare a `fixed` severity if it is known"
            )
    if not any(s.low < s.high for s in widest.severities.values()):
        raise ValueError("widest must declare at least one condition that is not fixed; there is nothing to fit")


def _check_priors(clean: Samples, priors: Sequence[float] | None) -> None:
    if priors is not None and clean.y is None:
        raise ValueError("priors need labels on the clean images; label them, or leave the priors out")
    if priors is None and clean.y is not None and len(clean.y.unique()) > MAX_CLASSES:
        raise ValueError(
            f"priors can be fitted for at most {MAX_CLASSES} classes, the clean images have {len(clean.y.unique())}; "
            "give priors, such as those of `estimate_priors`"
        )
