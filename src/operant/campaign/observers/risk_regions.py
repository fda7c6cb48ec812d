"""Where in the field failures are expected: among the riskiest inputs, and by predicted class."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from operant.data import Samples
from operant.data.class_texts import class_name
from operant.formatting import percent
from operant.model import Classifier
from operant.profile import RiskMap

RISKIEST = (0.05, 0.1, 0.25)  # shares of the field inputs whose expected failures are counted
MAX_CLASSES = 12  # in the table
HEAD = (
    "Part of the field",
    "Inputs",
    "Expected failures",
    "Mean risk",
    "Labelled inputs that fail",
    "Labelled failures",
)


@dataclass(frozen=True, kw_only=True)
class RiskRegion:
    """A part of the field, how many failures are expected in it without labels, and what labels say.

    Attributes:
        riskiest: the share of riskiest inputs that it is; None if it is a class.
        prediction: the class that is predicted for its inputs; None if it is the riskiest inputs.
        inputs: share of the rated field inputs.
        expected: share of the expected failures, which are the sum of all risks.
        risk: mean risk.
        labels, failures: labelled inputs in it, and how many of them the model gets wrong.
    """

    riskiest: float | None = None
    prediction: int | None = None
    inputs: float
    expected: float
    risk: float
    labels: int
    failures: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Rated:
    """Risk and prediction of some inputs."""

    risk: Tensor
    predicted: Tensor


def rate(model: Classifier, risk: RiskMap, inputs: Samples) -> Rated:
    """Risk and prediction of any number of inputs, also of none."""
    if len(inputs) == 0:
        return Rated(risk=torch.empty(0, dtype=torch.float64), predicted=torch.empty(0, dtype=torch.int64))
    return Rated(risk=risk(model, inputs.x).cpu(), predicted=model.predict(inputs.x).cpu())


def regions_of(field: Rated, labelled: Rated, failed: Tensor) -> tuple[RiskRegion, ...]:
    """The riskiest inputs, then the predicted classes, those with the most expected failures first.

    Args:
        field: field inputs, at least one.
        labelled: those that have labels; may be empty.
        failed: which of these the model gets wrong.
    """
    order = field.risk.argsort(descending=True, stable=True)
    riskiest = []
    for share in RISKIEST:
        top = order[: math.ceil(share * len(order))]
        here = labelled.risk >= field.risk[top[-1]]
        riskiest.append(_region(field.risk, top, failed[here], riskiest=share))
    classes = [
        _region(field.risk, field.predicted == c, failed[labelled.predicted == c], prediction=c)
        for c in field.predicted.unique().tolist()
    ]
    return (*riskiest, *sorted(classes, key=lambda region: -region.expected))


def _region(
    risk: Tensor, rows: Tensor, failed: Tensor, *, riskiest: float | None = None, prediction: int | None = None
) -> RiskRegion:
    own = risk[rows]
    return RiskRegion(
        riskiest=riskiest,
        prediction=prediction,
        inputs=len(own) / len(risk),
        expected=float(own.sum() / risk.sum()),
        risk=float(own.mean()),
        labels=len(failed),
        failures=int(failed.sum()),
    )


def region_table(regions: Sequence[RiskRegion], failures: int, classes: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """The regions as a table, its head first; without labels, the last columns are empty.

    Args:
        regions: of a round.
        failures: labelled inputs that the model gets wrong.
        classes: names.
    """
    named = [region for region in regions if region.prediction is not None][:MAX_CLASSES]
    shown = [*(region for region in regions if region.prediction is None), *named]
    return (HEAD, *(_row(region, failures, classes) for region in shown))


def _row(region: RiskRegion, failures: int, classes: Sequence[str]) -> tuple[str, ...]:
    return (
        region_name(region, classes),
        percent(region.inputs, 2),
        percent(region.expected, 2),
        percent(region.risk, 2),
        f"{region.failures} of {region.labels}" if region.labels else "",
        percent(region.failures / failures, 2) if failures else "",
    )


def region_name(region: RiskRegion, classes: Sequence[str]) -> str:
    """What a region is called in the report."""
    if region.prediction is None:
        return f"riskiest {percent(region.riskiest or 0.0)}"
    return f"predicted {class_name(region.prediction, classes)}"
