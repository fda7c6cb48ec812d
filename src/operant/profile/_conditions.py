"""Estimates the conditions of a field that nobody declared, or says why it cannot."""

import math
from dataclasses import replace

import torch

from operant.conditions import Recipe, default_palette
from operant.data import Samples
from operant.profile._appearance import MIN_SIDE
from operant.profile._checks import blank_rows
from operant.profile.fit_conditions import MIN_IMAGES, FittedConditions, fit_conditions


class NoConditions(ValueError):
    """Conditions cannot be estimated from these inputs; the message says why."""


def usual_conditions(shape: tuple[int, ...], bounds: tuple[float, float], *, padding: str = "border") -> Recipe:
    """The conditions that are looked for in images of this shape if none are declared."""
    if len(shape) != 3:
        raise NoConditions(f"conditions are for images, and inputs have the shape {shape}; leave them out")
    if not math.isfinite(bounds[1] - bounds[0]):
        raise NoConditions(f"conditions need to know black and white, and the bounds are {bounds}; set finite ones")
    return replace(default_palette(shape, bounds=bounds), padding=padding)


def check_estimable(field: Samples, train: Samples) -> None:
    """Raise `NoConditions` if a glance shows that conditions cannot be estimated."""
    if field.x.ndim != 4 or min(field.shape[1:]) < MIN_SIDE:
        needed = f"conditions are for images of at least {MIN_SIDE} by {MIN_SIDE} pixels"
        raise NoConditions(f"{needed}, and inputs have the shape {tuple(field.shape)}; leave them out")
    for name, samples in (("field", field), ("training", train)):
        if len(samples) < MIN_IMAGES:
            raise NoConditions(f"at least {MIN_IMAGES} {name} images are needed, got {len(samples)}; give more")
    if bool(blank_rows(field.x).all()):
        raise NoConditions("each field image has one value throughout (all black, say); give others")


def estimate_conditions(
    field: Samples, train: Samples, *, widest: Recipe, generator: torch.Generator
) -> FittedConditions:
    """Conditions that make training images look like field images, within the widest; or `NoConditions`."""
    check_estimable(field, train)
    try:
        return fit_conditions(field, train, widest=widest, generator=generator, progress=False)
    except ValueError as error:
        raise NoConditions(str(error)) from error
