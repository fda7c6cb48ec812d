"""Checks and warnings that the parts of the profile share."""

from __future__ import annotations

import torch
from torch import Tensor

from operant.data import Samples
from operant.model import Finding, slack_of


def warning(name: str, problem: str, advice: str) -> Finding:
    return Finding(name=name, problem=problem, advice=advice, severity="warning")


def check_finite(name: str, x: Tensor) -> None:
    if bad := int((~x.detach().isfinite()).flatten(1).any(1).sum()):
        raise ValueError(f"{name} contain NaN or infinity in {bad} of {len(x)} rows; remove them")


def check_bounds(name: str, x: Tensor, bounds: tuple[float, float]) -> None:
    low, high = (float(v) for v in torch.aminmax(x.detach()))
    slack = slack_of(bounds)
    if not (low >= bounds[0] - slack and high <= bounds[1] + slack):
        raise ValueError(
            f"{name} must lie within bounds {bounds} and hold no NaN, got values from {low:.4g} to {high:.4g}; "
            "rescale them, or set the bounds of your data"
        )


def check_classes(name: str, samples: Samples, classes: int) -> None:
    if samples.y is not None and int(samples.y.max()) >= classes:
        raise ValueError(
            f"{name} inputs have a class {int(samples.y.max())} that the model does not have: its classes are 0 to "
            f"{classes - 1}; leave such inputs out, or retrain with the class"
        )
