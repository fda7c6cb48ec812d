"""Error rates of a model estimated from its outputs, given labelled inputs and unlabelled ones from the field."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize, minimize_scalar
from scipy.special import xlogy

Array = NDArray[np.float64]
Labels = NDArray[np.int64]
LOG_TEMPERATURES = (-4.0, 4.0)  # smallest and largest
SMOOTHING = (0.1, 0.01, 0.001, 0.0001)  # of the transport's minimum over classes, one after the other


def negative_entropy(p: Array) -> Array:
    """Σ_c p_c log p_c of each row: 0 for a certain prediction, -log(classes) for a guess."""
    return np.asarray(xlogy(p, p).sum(1))


def fit_temperature(logits: Array, y: Labels, weights: Array) -> float:
    """The temperature T that minimises the weighted cross-entropy of softmax(logits / T).

    References:
        | On Calibration of Modern Neural Networks (Guo et al., 2017)
        | https://arxiv.org/abs/1706.04599
    """
    z = logits - logits.max(1, keepdims=True)  # at most 0, so that nothing overflows
    of_label = z[np.arange(len(y)), y]

    def loss(log_temperature: float) -> float:
        sharpness = np.exp(-log_temperature)
        return float(weights @ (np.log(np.exp(z * sharpness).sum(1)) - of_label * sharpness))

    found = minimize_scalar(loss, bounds=LOG_TEMPERATURES, method="bounded", options={"xatol": 0.01})
    return float(np.exp(found.x))


@dataclass(frozen=True, kw_only=True)
class Threshold:
    """Inputs with scores below it count as wrong, and a part of those with scores equal to it."""

    value: float
    part: float

    def error(self, scores: Array) -> float:
        """The share of inputs that count as wrong."""
        return float((scores < self.value).mean() + self.part * (scores == self.value).mean())


def fit_threshold(scores: Array, wrong: NDArray[np.bool_], weights: Array) -> Threshold:
    r"""Average-thresholded confidence: the score below which as many labelled inputs lie as the model gets wrong.

        t: Σᵢ wᵢ 1[sᵢ < t] = Σᵢ wᵢ 1[input i is wrong],   estimate = share of field inputs with s < t        (1)

    Of inputs whose score is t, the part that makes (1) exact counts as below it; so ties do no harm, and the estimate
    for the labelled inputs themselves is their error rate.

    Args:
        scores: of labelled inputs, such as `negative_entropy`.
        wrong: whether the model gets them wrong.
        weights: of labelled inputs; they sum to 1.

    References:
        | Leveraging Unlabeled Data to Predict Out-of-Distribution Performance (Garg et al., 2022)
        | https://arxiv.org/abs/2201.04234
    """
    error, order = float(weights[wrong].sum()), np.argsort(scores)
    below = np.cumsum(weights[order])
    t = float(scores[order[min(int(np.searchsorted(below, error)), len(scores) - 1)]])
    less, equal = (float(weights[some].sum()) for some in (scores < t, scores == t))
    return Threshold(value=t, part=min(1.0, max(0.0, (error - less) / equal)) if equal > 0 else 0.0)  # (1)


def confidence_error(p: Array, predicted: Labels) -> float:
    """1 - the mean probability of the predicted class: the error rate of a calibrated model."""
    return float(1 - p[np.arange(len(p)), predicted].mean())


def transport_error(p: Array, shares: Array) -> float:
    r"""Confidence optimal transport: how far outputs must be moved to become certain labels in the given class shares.

        min over T of Σᵢ_c Tᵢ_c (1 - pᵢ_c),   Σ_c Tᵢ_c = 1/n,   Σᵢ Tᵢ_c = share_c        (1)

    1 - p_c is half the L1 distance of p from the corner of class c. At least `confidence_error`, and larger where the
    predictions do not have the class shares.

    References:
        | Predicting Out-of-Distribution Error with Confidence Optimal Transport (Lu et al., 2023)
        | https://arxiv.org/abs/2305.15640
    """
    used = shares > 0
    cost, shares = 1 - p[:, used], shares[used]
    return transport_value(cost, shares, transport_potentials(cost, shares))


def transport_value(cost: Array, shares: Array, potentials: Array) -> float:
    """The dual of a transport: never more than its cost, and equal to it for the best potentials v.

    Σ_c share_c v_c + mean over i of min_c (cost_ic - v_c)        (1)
    """
    return float(shares @ potentials + (cost - potentials).min(1).mean())  # (1)


def transport_potentials(cost: Array, shares: Array) -> Array:
    """The potentials that maximise `transport_value`, with a soft minimum that is made harder step by step."""

    def negated(v: Array, smoothing: float) -> tuple[float, Array]:
        scaled = (v - cost) / smoothing
        top = scaled.max(1, keepdims=True)
        powers = np.exp(scaled - top)
        total = powers.sum(1)
        value = shares @ v - smoothing * (np.log(total) + top[:, 0]).mean()
        return -float(value), (1 / total) @ powers / len(cost) - shares

    best = np.zeros(len(shares))
    for smoothing in SMOOTHING:
        best = minimize(negated, best, args=(smoothing,), jac=True, method="L-BFGS-B", options={"maxiter": 200}).x
    return np.asarray(best)
