"""Judge models without field labels: how often they fail on unselected operational cases."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from scipy.stats import beta
from torch import Tensor

from operant.assess.bounds import check_confidence
from operant.data import Samples, content_ids
from operant.data.class_texts import class_names
from operant.formatting import percent
from operant.model import Classifier, Finding
from operant.profile.priors import Priors, shares_of
from operant.suite import Suite
from operant.validation import check_not_empty


@dataclass(frozen=True, kw_only=True)
class CaseRate:
    """How often a model fails on operational cases; made by `failure_rate`.

    Attributes:
        value, lower, upper, confidence: the failure rate, with its interval over draws of seeds and conditions.
        cases, seeds: their numbers.
        findings: reasons to doubt the rate.
    """

    value: float
    lower: float
    upper: float
    confidence: float
    cases: int
    seeds: int
    findings: tuple[Finding, ...]

    def __str__(self) -> str:
        interval = f"[{percent(self.lower)}, {percent(self.upper)}]"
        first = f"{percent(self.value)} {interval} of {self.cases} cases from {self.seeds} seeds fail."
        return "\n".join([first, *(str(finding) for finding in self.findings)])


def failure_rate(
    model: Classifier,
    cases: Suite,
    *,
    priors: Priors | Sequence[float] | None = None,
    used: Tensor | None = None,
    confidence: float = 0.95,
) -> CaseRate:
    """The model's failure rate on cases: compares models, such as checkpoints, where no field input is labelled.

        rate = Σ_c π_c r_c,   var = Σ_c π_c² s_c² / n_c,   n = rate (1 - rate) / var        (1)

    with r_c the mean over the n_c seeds of class c of the share of their cases that fail, and s_c its standard
    deviation. The interval is the exact one for ``n · rate`` failures in n trials (Korn and Graubard). It covers chance
    only: if the recipe of the cases is wrong, so is the rate, and then it can only rank models.

    Cases must be unselected (such as those of `operant.generate.RecipeDraws`, not failures of another model), and
    nothing may have been trained on them: a model that learned from cases passes them while it still fails in the
    field.

    Args:
        priors: π, of the classes in the field. None: the class shares of the seeds.
        used: `content_ids` of all inputs that were learned from; raises a ValueError if a case is among them.
        confidence: of the interval.

    References:
        | Confidence Intervals for Proportions with Small Expected Number of Positive Counts Estimated from Survey Data
        | (Korn and Graubard, 1998)
    """
    check_not_empty(cases=cases, advice="draw cases with operant.generate.RecipeDraws")
    check_confidence(confidence)
    model.check(Samples(cases.x, cases.label, classes=cases.classes))
    if used is not None and (learned := int(torch.isin(content_ids(cases.x), used.cpu()).sum())):
        raise ValueError(f"{learned} of {len(cases)} cases were used for training; draw new cases from other seeds")
    failed = (model.predict(cases.x).cpu() != cases.label).double()
    ids, member = cases.seed.unique(return_inverse=True)
    share = torch.zeros(len(ids), dtype=torch.float64).index_add_(0, member, failed) / member.bincount()
    label = torch.empty(len(ids), dtype=torch.int64).index_copy_(0, member, cases.label)
    shares, findings = _class_shares(label, priors, model.classes(cases.x), cases.classes)
    value, variance = _stratified(share, label, shares)
    lower, upper = _interval(value, variance, len(ids), confidence)
    return CaseRate(
        value=value,
        lower=lower,
        upper=upper,
        confidence=confidence,
        cases=len(cases),
        seeds=len(ids),
        findings=(*findings, *_selected(cases, failed)),
    )


def _class_shares(
    label: Tensor, priors: Priors | Sequence[float] | None, classes: int, names: Sequence[str]
) -> tuple[Tensor, tuple[Finding, ...]]:
    """π of (1) over the classes that have seeds."""
    counts = label.bincount(minlength=classes).double()
    if priors is None:
        return counts / counts.sum(), ()
    values = shares_of(priors)
    if len(values) != classes:
        raise ValueError(f"priors must have one value for each of the model's {classes} classes, got {len(values)}")
    missing = ((values > 0) & (counts == 0)).nonzero().flatten().tolist()
    kept = torch.where(counts > 0, values, 0.0)
    if not float(kept.sum()) > 0:
        raise ValueError("no case has a class with a positive prior; draw cases of the classes that occur in the field")
    if not missing:
        return kept, ()
    lost = percent(1 - float(kept.sum()))
    problem = f"no case is of class {class_names(missing, names)}, {lost} of the field, which the rate leaves out"
    return kept / kept.sum(), (Finding(name="class without cases", problem=problem, advice="Draw cases of it"),)


def _stratified(share: Tensor, label: Tensor, shares: Tensor) -> tuple[float, float]:
    """Rate and variance of (1)."""
    value = variance = 0.0
    for c in label.unique().tolist():
        here, weight = share[label == c], float(shares[c])
        spread = float(here.var()) if len(here) > 1 else 0.25
        value, variance = value + weight * float(here.mean()), variance + weight**2 * spread / len(here)
    return value, variance


def _interval(value: float, variance: float, seeds: int, confidence: float) -> tuple[float, float]:
    n = value * (1 - value) / variance if variance > 0 and 0 < value < 1 else seeds
    k, tail = n * value, (1 - confidence) / 2
    lower = float(beta.ppf(tail, k, n - k + 1)) if k > 0 else 0.0
    upper = float(beta.isf(tail, k + 1, n - k)) if k < n else 1.0
    return min(lower, value), max(upper, value)


def _selected(cases: Suite, failed: Tensor) -> tuple[Finding, ...]:
    """Cases that all failed when they were made were selected."""
    if len(cases) < 2 or not bool((cases.prediction != cases.label).all()):
        return ()
    now = percent(float(failed.mean()))
    problem = f"all {len(cases)} cases failed when they were made ({now} do now), so they were selected"
    advice = "Judge with unselected cases, which hold those that pass: operant.generate.RecipeDraws"
    return (Finding(name="selected cases", problem=problem, advice=advice),)
