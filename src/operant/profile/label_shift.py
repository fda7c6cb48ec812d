"""Estimates class priors in the field without field labels."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.stats import norm as normal
from scipy.stats import t as student
from torch import Tensor

from operant.data import Samples
from operant.data.class_texts import class_names
from operant.formatting import p_text
from operant.model import Classifier, Finding
from operant.profile._checks import check_classes, names_of, warning
from operant.profile._estimators import ESTIMATORS, Array, Outputs, mlls
from operant.profile._field_like import under_conditions
from operant.profile.explained import Explained, explains_field, too_few
from operant.profile.fit_conditions import FittedConditions
from operant.profile.priors import Priors
from operant.validation import check_at_least, check_between, check_one_of

MIN_COUNT = 10  # inputs of a class that its interval assumes at least
MARGIN = 0.25  # of (6), for which stated intervals covered at least 95 % in trials on three data sets
MAX_MARGIN = 0.07  # beyond which intervals are withheld
ENOUGH = 100  # labels of field inputs that give class shares to about ten points
NOT_PURE = "not pure label shift"
OR_CONDITIONS = ", or, if inputs are images, give the conditions that fit_conditions finds"


def estimate_priors(
    model: Classifier,
    labelled: Samples,
    field: Samples,
    *,
    method: str = "mlls",
    conditions: FittedConditions | None = None,
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
    temperature and one bias per class. Intervals are percentiles over resamples of both data sets, widened for small
    samples as Hesterberg advises.

    With ``conditions``, the labelled inputs are first put under them, so that only the class shares are left to
    differ. The shares m that follow are combined with those that the conditions were fitted with, f, the more the
    closer these are, compared with the variance of m (Green and Strawderman):

        π = m + a (f - m),   a = min(1, (K - 3) / (K - 1) · Σ_c var(m_c) / ‖f - m‖²)    (5)

    where the variance lacks that of drawing the field inputs, which m and f share. So fitted shares help a model that
    conditions have made uncertain, and hardly count where they are far off.

    Then `explains_field` tests whether labelled inputs in these shares look to the model like the field. If not, more
    than the shares differs. With conditions, plain labelled inputs are then tried too, and the ones more like the field
    are used. Estimates are the mean of the method and its check, since hard predictions (3) suffer less from outputs
    that are too sure. Intervals are widened to hold those of both, and by

        0.25 (AUC - 0.5) (max_i D_ci - min_i D_ci),   D = inverse of P(prediction i | label j)    (6)

    on both sides: a change of the predictions by no more than d moves the share of c by no more than d times that
    range. If (6) is above 0.07 for any class, all intervals are withheld (NaN). A finding says what was done. No
    finding is no proof: a change that looks like other class shares cannot be noticed.

    Args:
        labelled: labelled inputs *outside* the training data; every class must occur.
        field: inputs from operation; labels are ignored.
        method: the check is BBSE for MLLS, and MLLS for the others.
        conditions: of the field, from `fit_conditions`.
        resamples, confidence, generator: of each class's interval; the generator also draws conditions.

    References:
        | Adjusting the Outputs of a Classifier to New a Priori Probabilities (Saerens et al., 2002)
        | Maximum Likelihood with Bias-Corrected Calibration is Hard-To-Beat at Label Shift Adaptation
        | (Alexandari et al., 2020), https://arxiv.org/abs/1901.06852
        | Detecting and Correcting for Label Shift with Black Box Predictors (Lipton et al., 2018)
        | https://arxiv.org/abs/1802.03916
        | Regularized Learning for Domain Adaptation under Label Shifts (Azizzadenesheli et al., 2019)
        | https://arxiv.org/abs/1903.09734
        | What Teachers Should Know About the Bootstrap (Hesterberg, 2015), https://arxiv.org/abs/1411.5279
        | A James-Stein Type Estimator for Combining Unbiased and Possibly Biased Estimators
        | (Green and Strawderman, 1991), https://doi.org/10.1080/01621459.1991.10475144
    """
    _check(model, labelled, field, method, resamples, confidence)
    source = _chosen_source(model, labelled, field, conditions, generator)
    estimate = _estimated(source.outputs, method, resamples, generator)
    fitted = None if conditions is None else _fitted(conditions, estimate.value)
    values = estimate.value if fitted is None else _combined(estimate, fitted)
    lower, upper = estimate.interval(confidence)
    if not source.is_explained:
        values = (values + estimate.check) / 2
        lower, upper = _doubtful(estimate, source, confidence)
    classes = names_of(labelled, len(values))
    names = classes or tuple(map(str, range(len(values))))
    return Priors(
        values=tuple(values.tolist()),
        lower=tuple(np.minimum(lower, values).tolist()),  # NaN stays NaN
        upper=tuple(np.maximum(upper, values).tolist()),
        confidence=confidence,
        method=_method_name(method, source, fitted is not None),
        labelled=tuple(source.plain.frequencies.tolist()),
        check=tuple(estimate.check.tolist()),
        findings=_not_explained(source, tried=conditions is not None) + _one_class(source.plain, names),
        classes=classes,
        explained=source.explained,
    )


# The labelled inputs that priors are estimated from


@dataclass(frozen=True, kw_only=True)
class _Source:
    """Model outputs of labelled inputs, plain or under conditions, and whether they explain the field."""

    outputs: Outputs
    plain: Outputs
    explained: Explained | None  # None if there are too few inputs to test it
    under_conditions: bool

    @property
    def is_explained(self) -> bool:
        return self.explained is None or self.explained.explained

    @property
    def margins(self) -> Array:
        """(6)."""
        inverse = np.linalg.pinv(self.outputs.confusion[0] / self.outputs.frequencies)
        auc = 0.5 if self.is_explained or self.explained is None else self.explained.auc
        return np.asarray(MARGIN * (auc - 0.5) * np.maximum(1, np.ptp(inverse, axis=1)))

    @property
    def withheld(self) -> bool:
        return bool(self.margins.max() > MAX_MARGIN)


def _chosen_source(
    model: Classifier,
    labelled: Samples,
    field: Samples,
    conditions: FittedConditions | None,
    generator: torch.Generator,
) -> _Source:
    """Labelled inputs under the conditions; plain ones if there are none, or if only these are more like the field."""
    like, rows = under_conditions(labelled, conditions, generator=generator)
    plain = Outputs.of(model, labelled, field)
    if like is labelled:
        tested = _tested(model, labelled, field, plain, None, generator)
        return _Source(outputs=plain, plain=plain, explained=tested, under_conditions=False)
    outputs = Outputs.of(model, like, field)
    found = _tested(model, like, field, outputs, rows, generator)
    if found is not None and not found.explained:
        without = _tested(model, labelled, field, plain, None, generator)
        if without is not None and without.auc < found.auc:
            return _Source(outputs=plain, plain=plain, explained=without, under_conditions=False)
    return _Source(outputs=outputs, plain=plain, explained=found, under_conditions=True)


def _tested(
    model: Classifier,
    source: Samples,
    field: Samples,
    outputs: Outputs,
    origin: Tensor | None,
    generator: torch.Generator,
) -> Explained | None:
    priors = mlls(outputs).tolist()
    if too_few(source, field, priors, origin) is not None:
        return None
    return explains_field(model, source, field, priors=priors, origin=origin, generator=generator)


# Estimates and their intervals


@dataclass(frozen=True, kw_only=True)
class _Estimate:
    """Priors by the method and by its check, with resamples of both, one per row."""

    value: Array
    check: Array
    resampled: Array
    check_resampled: Array
    counts: Array  # inputs behind each prior
    inputs: int  # in the field

    def interval(self, confidence: float) -> tuple[Array, Array]:
        return _percentiles(self.resampled, self.counts, confidence)

    def check_interval(self, confidence: float) -> tuple[Array, Array]:
        return _percentiles(self.check_resampled, self.counts, confidence)


def _estimated(outputs: Outputs, method: str, resamples: int, generator: torch.Generator) -> _Estimate:
    other = "mlls" if method != "mlls" else "bbse"
    first, second = (ESTIMATORS[name](outputs) for name in (method, other))
    draws: dict[str, list[Array]] = {method: [], other: []}
    for _ in range(resamples):
        resample = outputs.resampled(generator)
        for name, estimates in draws.items():
            estimates.append(ESTIMATORS[name](resample))
    counts = np.minimum(outputs.frequencies * len(outputs.y), first * len(outputs.field))
    return _Estimate(
        value=first,
        check=second,
        resampled=np.stack(draws[method]),
        check_resampled=np.stack(draws[other]),
        counts=np.clip(counts, MIN_COUNT, None),
        inputs=len(outputs.field),
    )


def _fitted(conditions: FittedConditions, found: Array) -> Array | None:
    """The shares that conditions were fitted with; classes that the clean images lack have the found ones."""
    known = len(conditions.priors)
    if known == 0 or known > len(found):
        return None
    lacking = found[known:]
    return np.concatenate([np.array(conditions.priors) * (1 - lacking.sum()), lacking])


def _combined(estimate: _Estimate, fitted: Array) -> Array:
    """(5)."""
    k, far = len(fitted), float(((fitted - estimate.value) ** 2).sum())
    drawn = float((estimate.value * (1 - estimate.value)).sum()) / estimate.inputs
    variance = max(0.0, float(estimate.resampled.var(0, ddof=1).sum()) - drawn)
    share = min(1.0, max(0, k - 3) / (k - 1) * variance / max(far, 1e-12))
    return np.asarray(estimate.value + share * (fitted - estimate.value))


def _doubtful(estimate: _Estimate, source: _Source, confidence: float) -> tuple[Array, Array]:
    """Intervals for a field that is not explained: widened, or NaN if it is far from explained."""
    if source.withheld:
        return np.full_like(estimate.value, np.nan), np.full_like(estimate.value, np.nan)
    margin, plain = source.margins, mlls(source.plain)
    ends = [estimate.interval(confidence), estimate.check_interval(confidence), (plain, plain)]
    lower, upper = np.min([low for low, _ in ends], 0), np.max([high for _, high in ends], 0)
    return np.clip(lower - margin, 0, 1), np.clip(upper + margin, 0, 1)


def _percentiles(resampled: Array, counts: Array, confidence: float) -> tuple[Array, Array]:
    """Percentiles at the tails of a t-interval from that many inputs; the usual percentiles are too narrow.

    tail = Φ(-√(n / (n - 1)) t(n - 1))        (1)
    """
    t = student.ppf((1 + confidence) / 2, counts - 1)
    tails = normal.cdf(-np.sqrt(counts / (counts - 1)) * t)  # (1)
    ends = [np.quantile(column, [tail, 1 - tail]) for column, tail in zip(resampled.T, tails, strict=True)]
    lower, upper = np.array(ends).T
    return lower, upper


# Words


def _method_name(method: str, source: _Source, combined: bool) -> str:
    """
    >>> from types import SimpleNamespace
    >>> _method_name("mlls", SimpleNamespace(under_conditions=True, is_explained=True), True)
    'mlls under the conditions, combined with fitted shares'
    """
    other = "mlls" if method != "mlls" else "bbse"
    name = method if source.is_explained else f"mean of {method} and {other}"
    where = " under the conditions" if source.under_conditions else ""
    return f"{name}{where}{', combined with fitted shares' if combined else ''}"


def _not_explained(source: _Source, *, tried: bool) -> tuple[Finding, ...]:
    """More than class shares changed; conditions are advised unless they were tried."""
    if source.is_explained:
        return ()
    assert source.explained is not None
    kind = "labelled inputs under the estimated conditions" if source.under_conditions else "labelled inputs"
    doubt = "may be far off and no interval is given" if source.withheld else "may be off, and intervals were widened"
    problem = (
        f"in these class shares, {kind} do not look like field inputs to the model (area under the curve "
        f"{source.explained.auc:.2f}, where 0.5 is alike; {p_text(source.explained.p_value, 1)}): more than class "
        f"shares changed, so the shares {doubt}"
    )
    inputs = len(source.plain.field)
    advice = f"Label {'a hundred random' if inputs > ENOUGH else f'all {inputs}'} field inputs and count"
    return (warning(NOT_PURE, problem, advice + OR_CONDITIONS * (not tried)),)


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
