"""The parts of a description, called in one place: conditions and class shares."""

import math
from dataclasses import replace
from importlib import import_module

import numpy as np
import torch

from operant.conditions import Recipe, half_normal, normal, uniform
from operant.data import Samples
from operant.model import Classifier
from operant.profile._appearance import MIN_SIDE
from operant.profile.fit_conditions import MIN_IMAGES, FittedConditions, fit_conditions
from operant.profile.label_shift import estimate_priors
from operant.profile.priors import Priors


class NoConditions(ValueError):
    """Conditions cannot be estimated from these inputs; the message says why."""


def usual_conditions(shape: tuple[int, ...], bounds: tuple[float, float], *, padding: str = "border") -> Recipe:
    """The conditions that are looked for in images of this shape if none are declared."""
    if len(shape) != 3:
        raise NoConditions(f"conditions are for images, and inputs have the shape {shape}; leave them out")
    if not math.isfinite(bounds[1] - bounds[0]):
        raise NoConditions(f"conditions need to know black and white, and the bounds are {bounds}; set finite ones")
    palette = getattr(import_module("operant.conditions"), "default_palette", None)
    if palette is not None:
        usual: Recipe = replace(palette(shape, bounds=bounds), padding=padding)
        return usual
    severities = {
        "rotation": normal(20),
        "scale": normal(0.2),
        "shift_x": uniform(-0.2, 0.2),
        "shift_y": uniform(-0.2, 0.2),
        "blur": uniform(0, 3),
        "brightness": normal(0.3),
        "contrast": normal(0.4),
        "gaussian_noise": half_normal(0.2, high=0.5),
    }
    return Recipe(severities=severities, bounds=bounds, padding=padding)


def check_estimable(field: Samples, train: Samples) -> None:
    """Raise `NoConditions` if a glance shows that conditions cannot be estimated."""
    if field.x.ndim != 4 or min(field.shape[1:]) < MIN_SIDE:
        needed = f"conditions are for images of at least {MIN_SIDE} by {MIN_SIDE} pixels"
        raise NoConditions(f"{needed}, and inputs have the shape {tuple(field.shape)}; leave them out")
    for name, samples in (("field", field), ("training", train)):
        if len(samples) < MIN_IMAGES:
            raise NoConditions(f"at least {MIN_IMAGES} {name} images are needed, got {len(samples)}; give more")
    x = field.x.flatten(1)
    if bool((x.amin(1) == x.amax(1)).all()):
        raise NoConditions("each field image has one value throughout (all black, say); give others")


def estimate_conditions(
    field: Samples, train: Samples, *, widest: Recipe, generator: torch.Generator
) -> FittedConditions:
    """Conditions that make training images look like field images, within the widest; or `NoConditions`."""
    check_estimable(field, train)
    try:
        return fit_conditions(field, train, widest=widest, generator=generator, progress=False)
    except np.linalg.LinAlgError:
        raise NoConditions("field images hardly differ from each other; give more, and different ones") from None
    except ValueError as error:
        raise NoConditions(str(error)) from error


def active_conditions(fitted: FittedConditions) -> tuple[str, ...]:
    """Names of the conditions that were found."""
    names = getattr(fitted, "active", None)
    if names is not None:
        return tuple(names)
    if fitted.before <= fitted.floor_high:  # there is nothing to explain
        return ()
    return tuple(name for name, s in fitted.recipe.severities.items() if s.low < 0 or s.high > 0)


def unexplained_share(fitted: FittedConditions) -> float:
    """How much of the difference between training and field inputs the recipe leaves, from 0 to 1."""
    share = getattr(fitted, "unexplained", None)
    if share is not None:
        return float(share)
    difference, left = (v**2 - fitted.floor**2 for v in (fitted.before, fitted.after))
    if fitted.before <= fitted.floor_high or difference <= 0:
        return 0.0
    return min(1.0, math.sqrt(max(0.0, left) / difference))


def class_shares(
    model: Classifier,
    labelled: Samples,
    field: Samples,
    conditions: FittedConditions | None,
    *,
    resamples: int,
    generator: torch.Generator,
) -> Priors:
    """Class shares in the field."""
    return estimate_priors(model, labelled, field, conditions=conditions, resamples=resamples, generator=generator)
