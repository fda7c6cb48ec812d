"""Field conditions read off field data: the severities under which clean images look most like what the field sends."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress

from operant.conditions import Recipe
from operant.data import Samples
from operant.model import slack_of
from operant.model.doctor import Finding
from operant.profile._appearance import FEWEST_PIXELS, Array
from operant.profile._matching import Trial, Unknown, prepared, searched, shuffled, wide_slopes

FEWEST = 50  # images on either side
MOST_CLASSES = 50  # whose priors can be fitted along
SPLITS = 20  # of field data into halves
LEFT, APART = 0.1, 0.5  # what may be left unexplained: this share of the squared distance, and this distance
STRETCH = 1.5  # of the resampled steps: as they are, their intervals held in 88 % on MNIST, of rotation in 81 %
END = 0.02  # this near to the end of its range a parameter is at the end


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """One number of a severity's distribution, as fitted.

    Attributes:
        condition: whose it is, such as ``"rotation"``.
        name: ``"mean"``, ``"std"``, ``"low"`` or ``"high"``.
        value: as fitted.
        lower, upper: ends of its interval.
        limits: smallest and largest value that was searched.
    """

    condition: str
    name: str
    value: float
    lower: float
    upper: float
    limits: tuple[float, float]

    def __str__(self) -> str:
        return f"{self.condition} {self.name} {self.value:.3g} [{self.lower:.3g}, {self.upper:.3g}]"


@dataclass(frozen=True, kw_only=True)
class FittedConditions:
    """Field conditions as estimated, and how well they explain the field data.

    Attributes:
        recipe: to draw from and to apply, inside the widest that was declared. A condition that the field data do not
            ask for is fixed at 0.
        parameters: what was fitted, with intervals.
        before: distance (2) of `fit_conditions` between field data and clean images as they are.
        after: between field data and clean images under the recipe.
        floor: between two halves of the field data: as near as it gets.
        floor_high: what 19 in 20 splits into halves stay below.
        priors: of the classes in the field, as given or as fitted; empty where clean images have no labels.
        confidence: of each interval.
        findings: what makes the recipe doubtful.
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
            f"Conditions in the field ({self.confidence:.0%} intervals). Distance of field data from clean images "
            f"{self.before:.2f}, under these conditions {self.after:.2f}; between halves of them {self.floor:.2f}:"
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
    """Find the severities under which clean images are hardest to tell from field data.

    An image is described by some fifty numbers: levels of light, sharpness at three scales, directions of edges, where
    its mass lies, principal components. Each number is brought to a value u between 0 and 1, and means of cosines say
    how u is distributed:

        φ(x) = √2 cos(πku), k = 1 to 3, for each number                                              (1)
        distance² = dᵀ Σ⁻¹ d,   d = mean φ(field) - mean φ(simulated),   Σ = cov φ + a small ridge   (2)

    (2) is how many standard deviations apart the best linear test on φ can pull the two, so its smallest value belongs
    to the conditions that are hardest to tell from the field. It was chosen because it is a sum of squares of means:
    with random numbers held fixed it is smooth in the parameters, and a bounded Gauss-Newton search over finite
    differences needs some forty simulations, whether or not a condition has gradients. Σ is first that of field data,
    then that of images simulated at the first answer. A condition is left out where that raises (2) no more than chance
    would. Intervals come from one Gauss-Newton step for each resample of both sides, made half as long again: they
    take Σ and slopes as known and would hold in 88 % in place of 95 % (on MNIST; with that, in 114 of 120).

    That classes occur more or less often must not be mistaken for conditions: simulated images count by the ``priors``
    of their classes. Where none are given and clean images have labels, priors are fitted along, as the mixture of
    class means of φ that is nearest to the field's: no model is needed for it, and none can be misled by conditions.

    Args:
        field: images from use; labels are not looked at.
        clean: other images, to which nothing has happened yet.
        widest: the strongest conditions that could be, within which the fit stays. Each severity keeps its family: of a
            normal one the std is found, up to the declared one, and the mean, up to a declared std away from the
            declared mean; of a half-normal one the std; of a uniform one the ends, between 0 and the declared ends.
            A `fixed` severity is known and stays, as does the probability of being absent.
        priors: of the classes in the field, where they are known.
        simulated: images that each trial simulates.
        resamples: for the intervals.
        confidence: of each parameter's interval.
        generator: draws images, severities, splits and resamples; the same one gives the same fit.
        progress: show a bar where there is a terminal to show it on.

    References:
        | A Method of Simulated Moments for Estimation of Discrete Response Models Without Numerical Integration
        | (McFadden, 1989), https://doi.org/10.2307/1913621
        | Large Sample Properties of Generalized Method of Moments Estimators (Hansen, 1982), for Σ in two steps
        | https://doi.org/10.2307/1912775
        | The Bayesian Bootstrap (Rubin, 1981), for the resamples, https://doi.org/10.1214/aos/1176345338
    """
    _check(field, clean, widest, priors, simulated, resamples, confidence)
    with _bar(progress) as tick:
        trial = prepared(field, clean, widest, priors, simulated, generator, tick)
        t, ruler = searched(trial)
    lower, upper = _intervals(trial, t, ruler, resamples, confidence, generator)
    before, after, halves = _distances(trial, t, ruler, generator)
    floor, floor_high = _root_mean_square(halves), float(np.quantile(halves, 0.95))
    return FittedConditions(
        recipe=trial.recipe(t),
        parameters=tuple(_parameter(u, *v) for u, *v in zip(trial.unknowns, t, lower, upper, strict=True)),
        before=before,
        after=after,
        floor=floor,
        floor_high=floor_high,
        priors=() if clean.y is None else tuple(float(p) for p in trial.compared(t, ruler).priors),
        confidence=confidence,
        findings=_unexplained(before, after, floor, floor_high) + _at_the_end(trial.unknowns, t),
    )


def _parameter(unknown: Unknown, t: float, lower: float, upper: float) -> Parameter:
    low, high = sorted((unknown.value(lower), unknown.value(upper)))
    first, last = sorted((unknown.first, unknown.last))
    return Parameter(
        condition=unknown.condition,
        name=unknown.name,
        value=unknown.value(t),
        lower=low,
        upper=high,
        limits=(first, last),
    )


# How sure


def _intervals(
    trial: Trial, t: Array, ruler: Array, resamples: int, confidence: float, generator: torch.Generator
) -> tuple[Array, Array]:
    """Percentiles of the parameters over resamples, each by one Gauss-Newton step from t."""
    here = trial.compared(t, ruler)
    slopes = wide_slopes(trial, t, ruler)
    if trial.priors is None and len(here.priors) > 1:  # priors move too, with their sum kept
        slopes = np.hstack([slopes, here.means[:, 1:] - here.means[:, :1]])
    held = replace(trial, priors=here.priors)
    moves, inverse = [], np.linalg.pinv(slopes)
    for _ in range(resamples):
        a, b = _counts(len(trial.field), generator), _counts(int(trial.origin.max()) + 1, generator)[trial.origin]
        other = held.against(here.features, a @ trial.field / a.sum(), ruler, b)
        moves.append((inverse @ (here.residual - other.residual))[: len(t)])
    tails = [(1 - confidence) / 2, (1 + confidence) / 2]
    lower, upper = np.quantile(STRETCH * np.stack(moves), tails, axis=0)
    return np.minimum(t + lower, t).clip(0, 1), np.maximum(t + upper, t).clip(0, 1)


def _counts(n: int, generator: torch.Generator) -> Array:
    """How much each row counts in a resample; 1 on average."""
    u = torch.rand(n, generator=generator, device=generator.device, dtype=torch.float64).cpu()
    counts: Array = -u.clamp_min(1e-12).log().numpy()
    return counts


def _distances(trial: Trial, t: Array, ruler: Array, generator: torch.Generator) -> tuple[float, float, Array]:
    """(2) between the field and clean images, simulated ones, and between halves of the field, one value a split.

    Means of few images are apart by chance. What chance gives is taken from the first two and what it gives between
    halves is added, so that all three can be compared.
    """
    priors = trial.compared(t, ruler).priors
    halves = np.array([_halved(trial.field, ruler, generator) for _ in range(SPLITS)])
    fresh = trial.simulate(trial.recipe(t), len(trial.x), trial.seed + 1)
    before, after = (
        math.hypot(_beyond_chance(trial, features, priors, ruler), _root_mean_square(halves))
        for features in (trial.look(trial.x), fresh)
    )
    return before, after, halves


def _halved(features: Array, ruler: Array, generator: torch.Generator) -> float:
    order, half = shuffled(len(features), generator).numpy(), len(features) // 2
    one, other = features[order[:half]].mean(0), features[order[half : 2 * half]].mean(0)
    return float(np.linalg.norm(ruler @ (one - other)))


def _beyond_chance(trial: Trial, features: Array, priors: Array, ruler: Array) -> float:
    """(2) between the field and these features, with what two samples of one distribution would show taken off."""
    held = replace(trial, priors=priors)
    found = held.against(features, trial.field.mean(0), ruler, np.ones(len(features)))
    within = features @ ruler.T - trial.classes @ found.means.T  # classes are mixed exactly, images are drawn
    shares = np.zeros((trial.origin.max() + 1, within.shape[1]))
    np.add.at(shares, trial.origin, trial.weights(priors)[:, None] * within)  # what each clean image adds to the mean
    n = len(trial.field)
    chance = (shares**2).sum() + (((trial.field - trial.field.mean(0)) @ ruler.T) ** 2).sum() / n**2
    return math.sqrt(max(0.0, float(found.residual @ found.residual - chance)))


def _root_mean_square(values: Array) -> float:
    return float(np.sqrt((values**2).mean()))


def _unexplained(before: float, after: float, floor: float, floor_high: float) -> tuple[Finding, ...]:
    left = after**2 - floor**2
    if after <= floor_high or left <= max(APART**2, LEFT * (before**2 - floor**2)):
        return ()
    problem = (
        f"field data differ in something that no declared condition explains: their distance is {before:.2f} from "
        f"clean images, {after:.2f} under the fitted conditions, and {floor:.2f} between halves of themselves"
    )
    advice = "Look at field images beside simulated ones and declare what is missing, or give clean images of that kind"
    return (Finding(name="conditions do not explain the field", problem=problem, advice=advice, severity="warning"),)


def _at_the_end(unknowns: Sequence[Unknown], t: Array) -> tuple[Finding, ...]:
    far = [
        f"{u.condition} {u.name} {u.value(v):.3g}"
        for u, v in zip(unknowns, t, strict=True)
        if v > 1 - END or (u.name == "mean" and v < END)
    ]
    if not far:
        return ()
    problem = f"the best value is at the end of what was searched: {', '.join(far)}"
    advice = "Declare a wider recipe, if stronger conditions are possible"
    return (Finding(name="parameter at the end of its range", problem=problem, advice=advice, severity="warning"),)


# Small things


@contextmanager
def _bar(progress: bool) -> Iterator[Callable[[], None]]:
    """A bar on the terminal's error stream that shows that trials go on, and the function to call at each."""
    console = Console(stderr=True)
    with Progress(console=console, disable=not (progress and console.is_terminal), transient=True) as bar:
        task = bar.add_task("fitting conditions", total=None)
        yield lambda: bar.advance(task)


def _check(
    field: Samples,
    clean: Samples,
    widest: Recipe,
    priors: Sequence[float] | None,
    simulated: int,
    resamples: int,
    confidence: float,
) -> None:
    for name, samples in (("field", field), ("clean", clean)):
        if samples.x.ndim != 4 or min(samples.shape[1:]) < FEWEST_PIXELS:
            raise ValueError(
                f"conditions are for images: {name} must be (n, channels, height, width) of at least 8 by 8 pixels, "
                f"got {tuple(samples.x.shape)}"
            )
        if len(samples) < FEWEST:
            raise ValueError(f"at least {FEWEST} {name} images are needed, got {len(samples)}; give more")
        low, high = (float(v) for v in torch.aminmax(samples.x.detach()))
        slack = slack_of(widest.bounds)
        if not (low >= widest.bounds[0] - slack and high <= widest.bounds[1] + slack):
            raise ValueError(
                f"{name} images must lie within bounds {widest.bounds} and hold no NaN, got values from {low:.4g} to "
                f"{high:.4g}; rescale them, or give the recipe the bounds of your data"
            )
    if field.shape != clean.shape:
        raise ValueError(f"field and clean images must have one shape, got {tuple(field.shape)} and {clean.shape}")
    _check_options(clean, widest, priors, simulated, resamples, confidence)


def _check_options(
    clean: Samples,
    widest: Recipe,
    priors: Sequence[float] | None,
    simulated: int,
    resamples: int,
    confidence: float,
) -> None:
    for name, s in widest.severities.items():
        if s.low < s.high and not s.low <= 0 <= s.high:
            raise ValueError(
                f"the range of each condition must hold 0, no change, got {s.low} to {s.high} for {name}; widen it, or "
                "declare a `fixed` severity where it is known"
            )
    if not any(s.low < s.high for s in widest.severities.values()):
        raise ValueError("widest must declare at least one condition that is not fixed; there is nothing to fit")
    if priors is not None and clean.y is None:
        raise ValueError("priors need labels on the clean images; label them, or leave the priors out")
    if priors is None and clean.y is not None and len(clean.y.unique()) > MOST_CLASSES:
        raise ValueError(
            f"priors can be fitted along for at most {MOST_CLASSES} classes, the clean images have "
            f"{len(clean.y.unique())}; give priors, such as those of `estimate_priors`"
        )
    if simulated < FEWEST or resamples < 20 or not 0 < confidence < 1:
        raise ValueError(
            f"simulated must be at least {FEWEST}, resamples at least 20 and confidence between 0 and 1, got "
            f"{simulated}, {resamples} and {confidence}"
        )
