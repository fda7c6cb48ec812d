"""Abstention: which field inputs to hand to a person, so that few of the others fail."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from operant.assess.bounds import Interval, clopper_pearson_interval
from operant.data import Samples
from operant.formatting import percent
from operant.model import Classifier
from operant.types import Score
from operant.validation import check_between, check_not_empty

Risks = Tensor | NDArray[Any] | Sequence[float]


@dataclass(frozen=True, kw_only=True)
class Abstention:
    """Which inputs to hand to a person; made by `abstain`. Errors are estimates, usually too low, and not bounds.

    Attributes:
        threshold: inputs with a larger risk are handed over; infinite if none are.
        share: of the inputs that are handed over.
        expected: expected error of the rest; 0 if there is no rest.
        target: what it should be at most.
        inputs: number of inputs that this was computed from.
    """

    threshold: float
    share: float
    expected: float
    target: float
    inputs: int

    def hands_over(self, risk: Risks) -> Tensor:
        """Which inputs a person should decide."""
        return _tensor(risk) > self.threshold

    @property
    def labels(self) -> int:
        """Labelled field inputs, drawn at random, that decide whether the rest fails at the target or twice as often.

        If as many of those that the model keeps fail as the target says, their exact 95 % interval ends below twice the
        target; 0 if the model keeps none.
        """
        return math.ceil(labels_that_decide(self.target) / (1 - self.share)) if self.share < 1 else 0

    def __str__(self) -> str:
        if self.share == 1:
            return f"Hand over everything: no part of the inputs is estimated to fail at {percent(self.target)} or less"
        error = f"an estimated {percent(self.expected)}"
        if self.share == 0:
            first = f"Hand over nothing: {error} fail (target {percent(self.target)})"
        else:
            handed = f"Hand over {percent(self.share)} of the inputs, those with a risk above {self.threshold:.3g}"
            first = f"{handed}, so that {error} of the rest fail (target {percent(self.target)})"
        labels = f"about {self.labels} labelled field inputs"
        return f"{first}.\nSuch an estimate is usually too low: test it with check_abstention and {labels}."


@dataclass(frozen=True, kw_only=True)
class AbstentionCheck:
    """An abstention on labelled inputs: what the inputs that the model keeps really do; made by `check_abstention`.

    Attributes:
        labels: number of labelled inputs.
        kept, failures: inputs that the model decides, and how many of them it gets wrong.
        interval: of the error of the rest.
        all_failures: failures among all inputs, handed over or not.
        target: of the abstention.
    """

    labels: int
    kept: int
    failures: int
    interval: Interval
    all_failures: int
    target: float

    @property
    def refuted(self) -> bool:
        """Whether the rest fails more often than the target, at the confidence of the interval."""
        return self.interval.lower > self.target

    def __str__(self) -> str:
        ends = f"[{percent(self.interval.lower)}, {percent(self.interval.upper)}]"
        known = f"{self.failures} of {self.kept} labelled inputs that the model keeps fail, {ends}"
        verdict = "more than the target" if self.refuted else "which does not refute the target"
        return (
            f"{known}, {verdict} of {percent(self.target)}; of all {self.labels}, {self.all_failures} fail "
            f"({percent(self.interval.confidence)} confidence)"
        )


def labels_that_decide(target: float) -> int:
    """Labels after which an error at the target is known, with 95 % confidence, not to be twice the target.

    >>> labels_that_decide(0.05), labels_that_decide(0.01)
    (160, 800)
    """
    for failures in count(1):
        n = math.ceil(round(failures / target, 6))
        if clopper_pearson_interval(failures, n, confidence=0.95).upper < 2 * target:
            return n
    raise AssertionError("unreachable")


def abstain(risk: Risks, *, target: float) -> Abstention:
    """The fewest inputs to hand over so that the expected error of the rest is at most the target.

        threshold = max { t : mean of r over r ≤ t is at most the target }        (1)

    The error is an estimate: it is as right as the probabilities r are, such as those of `fit_risk` for the recipe of
    its cases. It is usually too low: in trials with a target of 5 %, 7.1 % of the rest failed (81 of 1137).
    `check_abstention` compares it with labels; `Abstention.labels` says about how many decide it.

    Args:
        risk: r, the probability that the model fails on each field input; ``risk_map(model, x)`` for instance.
        target: largest expected error of the rest.

    >>> print(abstain(torch.tensor([0.0, 0.02, 0.04, 0.9]), target=0.03))
    Hand over 25 % of the inputs, those with a risk above 0.04, so that an estimated 2 % of the rest fail (target 3 %).
    Such an estimate is usually too low: test it with check_abstention and about 356 labelled field inputs.

    References:
        | On Optimum Recognition Error and Reject Tradeoff (Chow, 1970)
        | https://doi.org/10.1109/TIT.1970.1054406
    """
    check_between(0, 1, target=target)
    risk = _tensor(risk)
    check_not_empty(risk=risk)
    if risk.ndim != 1 or not bool(((risk >= 0) & (risk <= 1)).all()):
        raise ValueError(f"risk must be probabilities (N,), from 0 to 1, got shape {tuple(risk.shape)}; use fit_risk")
    values = risk.detach().cpu().double().sort().values
    means = values.cumsum(0) / torch.arange(1, len(values) + 1)
    last = torch.cat([values.diff() > 0, torch.ones(1, dtype=torch.bool)])  # of equal risks all are kept or none
    possible = ((means <= target) & last).nonzero().flatten()
    kept = int(possible[-1]) + 1 if len(possible) else 0
    threshold = torch.inf if kept == len(values) else float(values[kept - 1]) if kept else -torch.inf
    return Abstention(
        threshold=threshold,
        share=1 - kept / len(values),
        expected=float(means[kept - 1]) if kept else 0.0,
        target=target,
        inputs=len(values),
    )


def _tensor(risk: Risks) -> Tensor:
    try:
        return risk if isinstance(risk, Tensor) else torch.as_tensor(risk, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"risk must be a tensor, an array or a list of numbers, got {type(risk).__name__}") from None


def check_abstention(
    plan: Abstention, model: Classifier, labelled: Samples, risk: Score, *, confidence: float = 0.95
) -> AbstentionCheck:
    """What the inputs that an abstention leaves to the model really do, on labelled field inputs drawn at random.

    Args:
        labelled: field inputs that neither the risk nor the model learned from.
        risk: the score that the abstention is by.
        confidence: of the exact interval.
    """
    check_not_empty(labelled=labelled)
    model.check(labelled)
    predicted = model.predict(labelled.x)
    failed = predicted.cpu() != labelled.labels.cpu()
    kept = ~plan.hands_over(risk(model, labelled.x, predicted)).cpu()
    n, failures = int(kept.sum()), int((failed & kept).sum())
    none = Interval(lower=0.0, upper=1.0, confidence=confidence)
    return AbstentionCheck(
        labels=len(labelled),
        kept=n,
        failures=failures,
        interval=clopper_pearson_interval(failures, n, confidence=confidence) if n else none,
        all_failures=int(failed.sum()),
        target=plan.target,
    )
