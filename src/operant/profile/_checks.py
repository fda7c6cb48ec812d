"""Checks and warnings that the parts of the profile share."""

from collections.abc import Sequence

import torch
from torch import Tensor

from operant.data import Samples
from operant.data.class_texts import class_name
from operant.model import Finding, slack_of
from operant.validation import check_within


def warning(name: str, problem: str, advice: str) -> Finding:
    return Finding(name=name, problem=problem, advice=advice, severity="warning")


def blank_rows(x: Tensor) -> Tensor:
    """Whether each input has one value throughout, ``(n,)``."""
    rows = x.flatten(1)
    return rows.amin(1) == rows.amax(1)


def check_bounds(name: str, x: Tensor, bounds: tuple[float, float]) -> None:
    advice = "rescale them, or set the bounds of your data"
    check_within(bounds, slack=slack_of(bounds), advice=advice, **{name: x})


def check_same_shape(one: str, a: Samples, other: str, b: Samples) -> None:
    if a.shape != b.shape:
        shapes = f"{tuple(a.shape)} and {tuple(b.shape)}"
        raise ValueError(f"{one} and {other} inputs must have one shape, got {shapes}; resize them")


def check_classes(name: str, samples: Samples, classes: int) -> None:
    if samples.y is not None and (largest := int(samples.y.max())) >= classes:
        number = f" (number {largest})" if largest < len(samples.classes) else ""
        raise ValueError(
            f"{name} inputs have a class {class_name(largest, samples.classes)}{number} that the model does not have: "
            f"its classes are 0 to {classes - 1}; leave such inputs out, or retrain with the class"
        )


def names_of(samples: Samples, classes: int) -> tuple[str, ...]:
    """The names of the model's classes, if the samples have a name for each."""
    return samples.classes if len(samples.classes) == classes else ()


def checked_shares(shares: Sequence[float]) -> Tensor:
    """Shares as a float64 tensor whose sum is exactly 1; raises if they are not 0 or more with a sum of 1."""
    values = torch.tensor([float(p) for p in shares], dtype=torch.float64)
    total = float(values.sum())
    if not (bool((values >= 0).all()) and abs(total - 1) <= 1e-6):
        shown = ", ".join(f"{v:.4g}" for v in values.tolist())
        raise ValueError(f"priors must be 0 or more and sum to 1, got {shown} with the sum {total:.6g}")
    return values / total
