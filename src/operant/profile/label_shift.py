"""Estimates class priors in the field without field labels."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax
from scipy.stats import norm as normal
from scipy.stats import t as student
from torch import Tensor

from operant.data import Samples
from operant.data.class_texts import class_names
from operant.formatting import percent
from operant.model import Classifier, Finding
from operant.profile._checks import check_classes, names_of, warning
from operant.validation import check_at_least, check_between, check_one_of

Array = NDArray[np.float64]
TINY = 1e-6  # smaller priors are set to 0, which expectation-maximisation never reaches exactly
MIN_COUNT = 10  # inputs of a class that its interval assumes at least


@dataclass(frozen=True, kw_only=True)
class Priors:
    """Class priors in the field, with bootstrap intervals.

    Attributes:
        values: one prior per class; they sum to 1.
        labelled: class frequencies in the labelled data.
        check: estimates of the other method (BBSE for MLLS, MLLS for the others).
        findings: reasons to doubt the estimates.
        classes: the name of each class; empty if they have only numbers.
    """

    values: tuple[float, ...]
    lower: tuple[float, ...]
    upper: tuple[float, ...]
    confidence: float
    method: str
    labelled: tuple[float, ...]
    check: tuple[float, ...]
    findings: tuple[Finding, ...]
    classes: tuple[str, ...] = ()

    @property
    def weights(self) -> tuple[float, ...]:
        """Prior of each class divided by its frequency in the labelled data."""
        return tuple(v / s for v, s in zip(self.values, self.labelled, strict=True))

    def __str__(self) -> str:
        lines = [f"Class priors in the field ({self.method}, {percent(self.confidence, 2)} intervals):"]
        rows = zip(self.values, self.lower, self.upper, self.labelled, strict=True)
        names = self.classes or tuple(map(str, range(len(self.values))))
        width = max(3, *map(len, names))
        for name, (v, low, high, s) in zip(names, rows, strict=True):
            interval = f"[{percent(low):>6}, {percent(high):>6}]"
            lines.append(f"  {name:>{width}}  {percent(v):>6}  {interval}   labelled {percent(s):>6}")
        return "\n".join([*lines, *(str(finding) for finding in self.findings)])


def shares_of(priors: Priors | Sequence[float]) -> Tensor:
    """Estimated or declared priors as a float64 tensor ``(classes,)``; raises if they are not valid."""
    given = priors.values if isinstance(priors, Priors) else priors
    values = torch.tensor([float(p) for p in given], dtype=torch.float64)
    total = float(values.sum())
    if not (bool((values >= 0).all()) and abs(total - 1) <= 1e-6):
        shown = ", ".join(f"{v:.4g}" for v in values.tolist())
        raise ValueError(f"priors must be 0 or more and sum to 1, got {shown} with the sum {total:.6g}")
    return values / total


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
    outputs = _Outputs.of(model, labelled, field)
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


@dataclass(frozen=True, kw_only=True)
class _Outputs:
    """Logits of labelled and field inputs, and the labels."""

    labelled: Array
    y: NDArray[np.int64]
    field: Array
    start: Array  # initial log temperature and biases for calibration

    @staticmethod
    def of(model: Classifier, labelled: Samples, field: Samples) -> "_Outputs":
        a, b = (model.batched_logits(s.x).cpu().double().numpy() for s in (labelled, field))
        y = labelled.labels.cpu().numpy()
        start = _fit_calibration(a, y, np.zeros(1 + a.shape[1]))
        return _Outputs(labelled=a, y=y, field=b, start=start)

    @property
    def frequencies(self) -> Array:
        return np.bincount(self.y, minlength=self.labelled.shape[1]) / len(self.y)

    def resampled(self, generator: torch.Generator) -> "_Outputs":
        """As many rows drawn with replacement, labelled ones within each class, so that no class is lost."""
        members = [np.flatnonzero(self.y == c) for c in np.unique(self.y)]
        rows = np.concatenate([m[_draw(len(m), generator)] for m in members])
        field = self.field[_draw(len(self.field), generator)]
        return _Outputs(labelled=self.labelled[rows], y=self.y[rows], field=field, start=self.start)


def mlls(outputs: _Outputs) -> Array:
    """(2), by expectation-maximisation on calibrated probabilities."""
    calibration = _fit_calibration(outputs.labelled, outputs.y, outputs.start)
    return saerens(softmax(_calibrated(outputs.field, calibration), axis=1), outputs.frequencies)


def saerens(probabilities: Array, source: Array, *, steps: int = 10_000, tolerance: float = 1e-7) -> Array:
    """The priors π of largest likelihood, given probabilities that are correct under the priors ``source``.

    r_ic ∝ π_c / source_c · p_c(xᵢ),   π_c ← mean of r_ic over i        (1)
    """
    p = probabilities / source
    priors = source.copy()
    for _ in range(steps):
        new = priors * (p / (p @ priors)[:, None]).mean(0)  # (1)
        if np.abs(new - priors).max() < tolerance:
            return _cleaned(new)
        priors = new
    return _cleaned(priors)


def bbse(outputs: _Outputs) -> Array:
    """(3); if C cannot be inverted, the solution of smallest norm."""
    joint, seen = _confusion(outputs)
    weights = np.linalg.lstsq(joint, seen, rcond=None)[0]
    return _cleaned(weights * outputs.frequencies)


def rlls(outputs: _Outputs) -> Array:
    """(4), with Δ a hundredth of the paper's bound on the error of C at 95 % confidence, as in its experiments."""
    joint, seen = _confusion(outputs)
    k, n = len(seen), len(outputs.y)
    gap, logarithm = seen - joint.sum(1), np.log(2 * k / 0.05)
    penalty = 0.01 * 3 * (2 * logarithm / (3 * n) + np.sqrt(2 * logarithm / n))

    def objective(theta: Array) -> float:
        return float(np.sqrt(((joint @ theta - gap) ** 2).sum() + 1e-16) + penalty * np.sqrt((theta**2).sum() + 1e-16))

    theta = minimize(objective, np.zeros(k), method="BFGS").x
    return _cleaned((1 + theta) * outputs.frequencies)


ESTIMATORS: dict[str, Callable[[_Outputs], Array]] = {"mlls": mlls, "bbse": bbse, "rlls": rlls}


def _confusion(outputs: _Outputs) -> tuple[Array, Array]:
    k = outputs.labelled.shape[1]
    joint = np.zeros((k, k))
    np.add.at(joint, (outputs.labelled.argmax(1), outputs.y), 1 / len(outputs.y))
    return joint, np.bincount(outputs.field.argmax(1), minlength=k) / len(outputs.field)


def _calibrated(logits: Array, parameters: Array) -> Array:
    calibrated: Array = logits * np.exp(-parameters[0]) + parameters[1:]
    return calibrated


def _fit_calibration(logits: Array, y: NDArray[np.int64], start: Array) -> Array:
    """The log temperature and biases that minimise cross-entropy."""
    onehot = np.eye(logits.shape[1])[y]

    def loss(parameters: Array) -> tuple[float, Array]:
        z = _calibrated(logits, parameters)
        logp = log_softmax(z, axis=1)
        error = (np.exp(logp) - onehot) / len(y)
        temperature = -(error * logits).sum() * np.exp(-parameters[0])
        value = -(logp * onehot).sum() / len(y) + 1e-6 * (parameters**2).sum()  # keeps separable data finite
        return value, np.concatenate([[temperature], error.sum(0)]) + 2e-6 * parameters

    best: Array = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 200}).x
    return best


def _percentiles(resampled: Array, counts: Array, confidence: float) -> tuple[Array, Array]:
    """Percentiles at the tails of a t-interval from that many inputs; the usual percentiles are too narrow.

    tail = Φ(-√(n / (n - 1)) t(n - 1))        (1)
    """
    t = student.ppf((1 + confidence) / 2, counts - 1)
    tails = normal.cdf(-np.sqrt(counts / (counts - 1)) * t)  # (1)
    ends = [np.quantile(column, [tail, 1 - tail]) for column, tail in zip(resampled.T, tails, strict=True)]
    lower, upper = np.array(ends).T
    return lower, upper


def _cleaned(priors: Array) -> Array:
    """Normalised, with negative and tiny values set to 0."""
    priors = np.where(priors < TINY, 0.0, priors)
    cleaned: Array = priors / priors.sum()
    return cleaned


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


def _one_class(outputs: _Outputs, names: Sequence[str]) -> tuple[Finding, ...]:
    predicted = np.unique(outputs.field.argmax(1))
    if len(predicted) > 1:
        return ()
    problem = f"the model predicts class {names[predicted[0]]} for all {len(outputs.field)} field inputs"
    advice = "If other classes occur in operation, collect field data again; if not, no classifier is needed"
    return (warning("one class", problem, advice),)


def _draw(n: int, generator: torch.Generator) -> NDArray[np.int64]:
    return torch.randint(n, (n,), generator=generator, device=generator.device).cpu().numpy()


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
