"""Estimates class priors in the field without field labels."""

from collections.abc import Sequence

import numpy as np
import torch
from scipy.stats import norm as normal
from scipy.stats import t as student

from operant.data import Samples
from operant.data.class_texts import class_names
from operant.formatting import percent
from operant.model import Classifier, Finding
from operant.profile._checks import check_classes, names_of, warning
from operant.profile._estimators import ESTIMATORS, Array, Outputs
from operant.profile.priors import Priors
from operant.validation import check_at_least, check_between, check_one_of

MIN_COUNT = 10  # inputs of a class that its interval assumes at least


def estimate_priors(
    model: Classifier,
    labelled: Samples,
    field: Samples,
    *,
    method: str = "mlls",
    resamples: int = 200,
    confidence: float = 0.95,
    generator: torch.Generator,
) -> Priors:
    """Estimate class priors in the field from a model's outputs, assuming that only the priors differ.

        w_c = π_c / πˢ_c, π the priors in the field, πˢ those among the labelled        (1)

        "mlls"   maximise Σᵢ log Σ_c w_c p_c(xᵢ) over the field inputs xᵢ               (2)
        "bbse"   C w = μ, C_ij = share of labelled with prediction i and label j,
                 μ_i = share of field inputs with prediction i                          (3)
        "rlls"   w = 1 + θ, θ minimises ‖Cθ - (μ - C1)‖ + Δ‖θ‖                          (4)

    (2) is solved by expectation-maximisation on probabilities that are first calibrated on the labelled data by a
    temperature and one bias per class. (3), or (2) if the method is not MLLS, is run as a check: if the two differ by
    more than chance allows, field data differ in more than priors, and a finding reports it. No finding is no proof: a
    change that moves all inputs alike can mislead both. Intervals are percentiles over resamples of both data sets,
    widened for small samples as Hesterberg advises.

    Args:
        labelled: labelled inputs *outside* the training data; every class must occur.
        field: inputs from operation; labels are ignored.
        resamples, confidence, generator: of each class's interval.

    References:
        | Adjusting the Outputs of a Classifier to New a Priori Probabilities (Saerens et al., 2002)
        | Maximum Likelihood with Bias-Corrected Calibration is Hard-To-Beat at Label Shift Adaptation
        | (Alexandari et al., 2020), https://arxiv.org/abs/1901.06852
        | Detecting and Correcting for Label Shift with Black Box Predictors (Lipton et al., 2018)
        | https://arxiv.org/abs/1802.03916
        | Regularized Learning for Domain Adaptation under Label Shifts (Azizzadenesheli et al., 2019)
        | https://arxiv.org/abs/1903.09734
        | What Teachers Should Know About the Bootstrap (Hesterberg, 2015), https://arxiv.org/abs/1411.5279
    """
    _check(model, labelled, field, method, resamples, confidence)
    outputs = Outputs.of(model, labelled, field)
    other = "mlls" if method != "mlls" else "bbse"
    first, second = (ESTIMATORS[name](outputs) for name in (method, other))
    draws: dict[str, list[Array]] = {method: [], other: []}
    for _ in range(resamples):
        resample = outputs.resampled(generator)
        for name, estimates in draws.items():
            estimates.append(ESTIMATORS[name](resample))
    a, b = (np.stack(estimates) for estimates in draws.values())
    counts = np.minimum(outputs.frequencies * len(outputs.y), first * len(outputs.field))  # inputs behind each prior
    lower, upper = _percentiles(a, np.clip(counts, MIN_COUNT, None), confidence)
    classes = names_of(labelled, len(first))
    names = classes or tuple(map(str, range(len(first))))
    return Priors(
        values=tuple(first.tolist()),
        lower=tuple(np.minimum(lower, first).tolist()),
        upper=tuple(np.maximum(upper, first).tolist()),
        confidence=confidence,
        method=method,
        labelled=tuple(outputs.frequencies.tolist()),
        check=tuple(second.tolist()),
        findings=_disagreement(method, other, first - second, a - b, names) + _one_class(outputs, names),
        classes=classes,
    )


def _percentiles(resampled: Array, counts: Array, confidence: float) -> tuple[Array, Array]:
    """Percentiles at the tails of a t-interval from that many inputs; the usual percentiles are too narrow.

    tail = Φ(-√(n / (n - 1)) t(n - 1))        (1)
    """
    t = student.ppf((1 + confidence) / 2, counts - 1)
    tails = normal.cdf(-np.sqrt(counts / (counts - 1)) * t)  # (1)
    ends = [np.quantile(column, [tail, 1 - tail]) for column, tail in zip(resampled.T, tails, strict=True)]
    lower, upper = np.array(ends).T
    return lower, upper


def _disagreement(
    method: str, other: str, difference: Array, resampled: Array, names: Sequence[str]
) -> tuple[Finding, ...]:
    """Reports classes whose two estimates differ by more than chance, at 1 % over all classes together."""
    limit = float(normal.isf(0.01 / len(difference) / 2)) * resampled.std(0, ddof=1) + 0.01
    far = np.flatnonzero(np.abs(difference) > limit)
    if len(far) == 0:
        return ()
    worst = int(np.abs(difference).argmax())
    problem = (
        f"{method} and {other} disagree on the prior of class {names[worst]} by {percent(abs(difference[worst]))}, "
        f"more than chance allows (so for {len(far)} classes)"
    )
    advice = (
        "Field data differ from the labelled data in more than class frequencies; label some field inputs, or use "
        "fit_conditions and a density instead of priors alone"
    )
    return (warning("not pure label shift", problem, advice),)


def _one_class(outputs: Outputs, names: Sequence[str]) -> tuple[Finding, ...]:
    predicted = np.unique(outputs.field.argmax(1))
    if len(predicted) > 1:
        return ()
    problem = f"the model predicts class {names[predicted[0]]} for all {len(outputs.field)} field inputs"
    advice = "If other classes occur in operation, collect field data again; if not, no classifier is needed"
    return (warning("one class", problem, advice),)


def _check(
    model: Classifier, labelled: Samples, field: Samples, method: str, resamples: int, confidence: float
) -> None:
    check_one_of(ESTIMATORS, method=method)
    check_at_least(20, resamples=resamples, advice="200 is usual")
    check_between(0, 1, confidence=confidence, advice="0.95 is usual")
    model.check(labelled)
    model.check_inputs(field.x)
    if len(field) < 2:
        raise ValueError(f"priors need at least 2 field inputs, got {len(field)}")
    k = model.classes(labelled.x)
    check_classes("field", field, k)
    if missing := sorted(set(range(k)) - set(labelled.labels.tolist())):
        names = class_names(missing, names_of(labelled, k))
        raise ValueError(f"every class must occur in the labelled data, and {names} do not; label some of those")
