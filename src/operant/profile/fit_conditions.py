"""Estimates field conditions: the severities under which clean images look most like field data."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from operant.activity import activity
from operant.conditions import Recipe
from operant.data import Samples
from operant.formatting import percent
from operant.model import Finding
from operant.profile._appearance import MIN_SIDE, Array
from operant.profile._checks import check_bounds, check_same_shape, warning
from operant.profile._matching import ConditionMatcher, FreeParameter, best_match, make_matcher, wide_slopes
from operant.rng import shuffled
from operant.validation import check_at_least, check_between

MIN_IMAGES = 50  # on either side
MAX_CLASSES = 50  # whose priors can be fitted too
SPLITS = 20  # of field data into halves
MAX_UNEXPLAINED, MAX_DISTANCE = 0.1, 0.5  # that may remain: share of the squared distance, and distance
STRETCH = 1.5  # of the resampled steps; without it, 95 % intervals covered 88 % on MNIST, and 81 % for rotation
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
        recipe: within the widest that was declared. A condition that the field data do not need is fixed at 0.
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

    def __str__(self) -> str:
        first = (
            f"Conditions in the field ({percent(self.confidence, 2)} intervals). Distance of field data from clean "
            f"images {self.before:.2f}, under these conditions {self.after:.2f}; between halves of the field data "
            f"{self.floor:.2f}:"
        )
        return "\n".join([first, *(f"  {p}" for p in self.parameters), *(str(f) for f in self.findings)])


def fit_conditions(
    field: Samples,
    clean: Samples,
    *,
    widest: Recipe,
    priors: Sequence[float] | None = None,
    simulated: int = 3000,
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
    numbers it is smooth in the parameters, and a bounded Gauss-Newton search over finite differences needs about forty
    simulations, even for conditions without gradients. Σ is first that of field data, then that of images simulated at
    the first solution. A condition is left out if that raises (2) no more than chance would. Intervals come from one
    Gauss-Newton step per resample of both sides, lengthened by half: without that they ignore the uncertainty of Σ and
    of the slopes, and 95 % intervals covered 88 % on MNIST (with it, 114 of 120).

    So that changed class shares are not mistaken for conditions, simulated images are weighted by the ``priors`` of
    their classes. By default priors are fitted too if clean images have labels, as the mixture of class means of φ
    nearest to the field's; this needs no model, which conditions could mislead.

    Args:
        field: images from operation; labels are ignored.
        clean: other images, without any conditions.
        widest: the strongest possible conditions, which limit the fit. Each severity keeps its family. Fitted are: for
            a normal one the std, up to the declared one, and the mean, up to one declared std from the declared mean;
            for a half-normal one the std; for a uniform one the ends, between 0 and the declared ends. `fixed`
            severities and the probability of being absent are kept.
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
    _check(field, clean, widest, priors)
    check_at_least(MIN_IMAGES, simulated=simulated)
    check_at_least(20, resamples=resamples, advice="200 is usual")
    check_between(0, 1, confidence=confidence, advice="0.95 is usual")
    with activity("estimating conditions", unit="simulations", show=progress) as work:
        matcher = make_matcher(field, clean, widest, priors, simulated, generator, work.advance)
        t, root = best_match(matcher)
        lower, upper = _intervals(matcher, t, root, resamples, confidence, generator)
        before, after, floor, floor_high = _distances(matcher, t, root, generator)
    return FittedConditions(
        recipe=matcher.recipe(t),
        parameters=tuple(_parameter(p, *v) for p, *v in zip(matcher.parameters, t, lower, upper, strict=True)),
        before=before,
        after=after,
        floor=floor,
        floor_high=floor_high,
        priors=() if clean.y is None else tuple(float(p) for p in matcher.compare(t, root).priors),
        confidence=confidence,
        findings=_unexplained(before, after, floor, floor_high) + _at_the_end(matcher.parameters, t),
    )


def _parameter(p: FreeParameter, t: float, lower: float, upper: float) -> Parameter:
    low, high = sorted((p.value(lower), p.value(upper)))
    first, last = sorted((p.first, p.last))
    return Parameter(condition=p.condition, name=p.name, value=p.value(t), lower=low, upper=high, limits=(first, last))


def _intervals(
    matcher: ConditionMatcher, t: Array, root: Array, resamples: int, confidence: float, generator: torch.Generator
) -> tuple[Array, Array]:
    """Percentiles of the parameters over resamples, each by one Gauss-Newton step from t."""
    here = matcher.compare(t, root)
    slopes = wide_slopes(matcher, t, root)
    if matcher.priors is None and len(here.priors) > 1:  # priors move too, with their sum kept
        slopes = np.hstack([slopes, here.means[:, 1:] - here.means[:, :1]])
    held = replace(matcher, priors=here.priors)
    moves, inverse, images = [], np.linalg.pinv(slopes), int(matcher.origin.max()) + 1
    for _ in range(resamples):
        a, b = _counts(len(matcher.field), generator), _counts(images, generator)[matcher.origin]
        other = held.compare_features(here.features, a @ matcher.field / a.sum(), root, b)
        moves.append((inverse @ (here.residual - other.residual))[: len(t)])
    tails = [(1 - confidence) / 2, (1 + confidence) / 2]
    lower, upper = np.quantile(STRETCH * np.stack(moves), tails, axis=0)
    return np.minimum(t + lower, t).clip(0, 1), np.maximum(t + upper, t).clip(0, 1)


def _counts(n: int, generator: torch.Generator) -> Array:
    """Weight of each row in a resample; 1 on average."""
    u = torch.rand(n, generator=generator, device=generator.device, dtype=torch.float64).cpu()
    return np.asarray(-u.clamp_min(1e-12).log())


def _distances(matcher: ConditionMatcher, t: Array, root: Array, generator: torch.Generator) -> tuple[float, ...]:
    """(2) of the field from clean and from simulated images; root mean square and quantile of (2) between its halves.

    Means of few images differ by chance. The expected chance distance is subtracted from the first two, and the one
    between halves is added, so that all three can be compared.
    """
    priors = matcher.compare(t, root).priors
    halves = np.array([_halved(matcher.field, root, generator) for _ in range(SPLITS)])
    fresh = matcher.simulate(matcher.recipe(t), len(matcher.x), matcher.seed + 1)
    before, after = (_beyond_chance(matcher, v, priors, root) for v in (matcher.descriptor(matcher.x), fresh))
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
        f"field data differ in something that no declared condition explains: their distance is {before:.2f} from "
        f"clean images, {after:.2f} under the fitted conditions, and {floor:.2f} between halves of themselves"
    )
    advice = "Compare field images with simulated ones and declare what is missing, or give clean images of that kind"
    return (warning("conditions do not explain the field", problem, advice),)


def _at_the_end(parameters: Sequence[FreeParameter], t: Array) -> tuple[Finding, ...]:
    far = [
        f"{p.condition} {p.name} {p.value(v):.3g}"
        for p, v in zip(parameters, t, strict=True)
        if v > 1 - END or (p.name == "mean" and v < END)
    ]
    if not far:
        return ()
    problem = f"the best value is at the end of the range searched: {', '.join(far)}"
    advice = "Declare a wider recipe, if stronger conditions are possible"
    return (warning("parameter at the end of its range", problem, advice),)


def _check(field: Samples, clean: Samples, widest: Recipe, priors: Sequence[float] | None) -> None:
    for name, samples in (("field", field), ("clean", clean)):
        if samples.x.ndim != 4 or min(samples.shape[1:]) < MIN_SIDE:
            raise ValueError(
                f"conditions are for images: {name} must be (n, channels, height, width) of at least {MIN_SIDE} by "
                f"{MIN_SIDE} pixels, got {tuple(samples.x.shape)}"
            )
        if len(samples) < MIN_IMAGES:
            raise ValueError(f"at least {MIN_IMAGES} {name} images are needed, got {len(samples)}; give more")
        check_bounds(f"{name} images", samples.x, widest.bounds)
    check_same_shape("field", field, "clean", clean)
    for name, s in widest.severities.items():
        if s.low < s.high and not s.low <= 0 <= s.high:
            raise ValueError(
                f"the range of each condition must hold 0, no change, got {s.low} to {s.high} for {name}; widen it, or "
                "declare a `fixed` severity if it is known"
            )
    if not any(s.low < s.high for s in widest.severities.values()):
        raise ValueError("widest must declare at least one condition that is not fixed; there is nothing to fit")
    if priors is not None and clean.y is None:
        raise ValueError("priors need labels on the clean images; label them, or leave the priors out")
    if priors is None and clean.y is not None and len(clean.y.unique()) > MAX_CLASSES:
        raise ValueError(
            f"priors can be fitted for at most {MAX_CLASSES} classes, the clean images have {len(clean.y.unique())}; "
            "give priors, such as those of `estimate_priors`"
        )
