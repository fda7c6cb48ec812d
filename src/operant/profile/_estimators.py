"""Estimates class priors from a model's outputs: MLLS, BBSE and RLLS."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from operant.data import Samples
from operant.model import Classifier

Array = NDArray[np.float64]
TINY = 1e-6  # smaller priors are set to 0, which expectation-maximisation never reaches exactly


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """Logits of labelled and field inputs, and the labels."""

    labelled: Array
    y: NDArray[np.int64]
    field: Array
    start: Array  # initial log temperature and biases for calibration

    @staticmethod
    def of(model: Classifier, labelled: Samples, field: Samples) -> "Outputs":
        a, b = (model.batched_logits(s.x).cpu().double().numpy() for s in (labelled, field))
        y = labelled.labels.cpu().numpy()
        start = _fit_calibration(a, y, np.zeros(1 + a.shape[1]))
        return Outputs(labelled=a, y=y, field=b, start=start)

    @property
    def frequencies(self) -> Array:
        return np.bincount(self.y, minlength=self.labelled.shape[1]) / len(self.y)

    @property
    def confusion(self) -> tuple[Array, Array]:
        """C and μ of (3) in `estimate_priors`."""
        k = self.labelled.shape[1]
        joint = np.zeros((k, k))
        np.add.at(joint, (self.labelled.argmax(1), self.y), 1 / len(self.y))
        return joint, np.bincount(self.field.argmax(1), minlength=k) / len(self.field)

    def resampled(self, generator: torch.Generator) -> "Outputs":
        """As many rows drawn with replacement, labelled ones within each class, so that no class is lost."""
        members = [np.flatnonzero(self.y == c) for c in np.unique(self.y)]
        rows = np.concatenate([m[_draw(len(m), generator)] for m in members])
        field = self.field[_draw(len(self.field), generator)]
        return Outputs(labelled=self.labelled[rows], y=self.y[rows], field=field, start=self.start)


def mlls(outputs: Outputs) -> Array:
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


def bbse(outputs: Outputs) -> Array:
    """(3); if C cannot be inverted, the solution of smallest norm."""
    joint, seen = outputs.confusion
    weights = np.linalg.lstsq(joint, seen, rcond=None)[0]
    return _cleaned(weights * outputs.frequencies)


def rlls(outputs: Outputs) -> Array:
    """(4), with Δ a hundredth of the paper's bound on the error of C at 95 % confidence, as in its experiments."""
    joint, seen = outputs.confusion
    k, n = len(seen), len(outputs.y)
    gap, logarithm = seen - joint.sum(1), np.log(2 * k / 0.05)
    penalty = 0.01 * 3 * (2 * logarithm / (3 * n) + np.sqrt(2 * logarithm / n))

    def objective(theta: Array) -> float:
        return float(np.sqrt(((joint @ theta - gap) ** 2).sum() + 1e-16) + penalty * np.sqrt((theta**2).sum() + 1e-16))

    theta = minimize(objective, np.zeros(k), method="BFGS").x
    return _cleaned((1 + theta) * outputs.frequencies)


ESTIMATORS: dict[str, Callable[[Outputs], Array]] = {"mlls": mlls, "bbse": bbse, "rlls": rlls}


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


def _cleaned(priors: Array) -> Array:
    """Normalised, with negative and tiny values set to 0."""
    priors = np.where(priors < TINY, 0.0, priors)
    cleaned: Array = priors / priors.sum()
    return cleaned


def _draw(n: int, generator: torch.Generator) -> NDArray[np.int64]:
    return torch.randint(n, (n,), generator=generator, device=generator.device).cpu().numpy()
