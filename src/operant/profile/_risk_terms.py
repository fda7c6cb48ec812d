"""What a risk map knows about an input: five log odds of failing, each learned from cases."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import log_softmax
from torch import Tensor

from operant.rng import mix

Array = NDArray[np.float64]
BLOCK = 2**22  # distances in memory at once
SMOOTHING = 1.0  # cases, failing at the average rate of their class, that are added to the neighbours
PENALTY = 1e-5  # on temperature and biases: keeps separable cases finite
MAX_HEAD = 2**27  # cases times features times classes, above which training it would take minutes: it is left out
HEAD_PENALTY = 0.1  # scikit-learn's C of the second head
MAX_LOG_ODDS = 12.0
TERMS = ("neighbours", "labels around", "second head", "corrected confidence", "margin")


@dataclass(frozen=True, kw_only=True, eq=False)
class Outputs:
    """What the model says about inputs: logits ``(N, classes)`` and features ``(N, d)``, in float64 on the CPU."""

    logits: Tensor
    features: Tensor

    def __len__(self) -> int:
        return len(self.logits)

    def __getitem__(self, rows: Tensor) -> "Outputs":
        return Outputs(logits=self.logits[rows], features=self.features[rows])

    @property
    def predicted(self) -> Tensor:
        return self.logits.argmax(1)


@dataclass(frozen=True, kw_only=True, eq=False)
class Known:
    """Cases with their outcome: the label, which inputs belong together (a seed and all its cases), and weights."""

    outputs: Outputs
    label: Tensor
    group: Tensor
    weight: Tensor

    def __len__(self) -> int:
        return len(self.label)

    def __getitem__(self, rows: Tensor) -> "Known":
        return Known(
            outputs=self.outputs[rows], label=self.label[rows], group=self.group[rows], weight=self.weight[rows]
        )

    @property
    def failed(self) -> Tensor:
        return (self.outputs.predicted != self.label).double()


def failing_share(known: Known, asked: Outputs, *, k: int, group: Tensor | None = None) -> Tensor:
    """The weighted share of failing cases among the k nearest with the same prediction, ``(N,)``.

        share = (Σ w failed + s b) / (Σ w + s)        (1)

    with b the failure rate of that class's cases and s the weight of one average case. If fewer than k cases have an
    input's prediction, cases of all classes are its neighbours.

    Args:
        group: of each input; cases of its own group are no neighbours. None: all cases are.
    """
    share, failed = torch.empty(len(asked), dtype=torch.float64), known.failed
    common = known.outputs.predicted.bincount(minlength=known.outputs.logits.shape[1]) >= k
    own = torch.where(common[asked.predicted], asked.predicted, -1)  # -1: neighbours of all classes
    for c in own.unique():
        rows = (own == c).nonzero().flatten()
        pool = torch.arange(len(known)) if c < 0 else (known.outputs.predicted == c).nonzero().flatten()
        w, f = known.weight[pool], failed[pool]
        base, extra = float((w * f).sum() / w.sum()), SMOOTHING * float(w.mean())
        for some, near, weight in _nearest(known, asked, rows, pool, k, group):
            share[some] = ((weight * failed[near]).sum(1) + extra * base) / (weight.sum(1) + extra)  # (1)
    return share


def disagreeing_share(known: Known, asked: Outputs, *, k: int, group: Tensor | None = None) -> Tensor:
    """The weighted share of the k nearest cases, whatever their prediction, with another label than is predicted.

    Smoothed as in `failing_share`, by the failure rate of all cases.
    """
    share, w = torch.empty(len(asked), dtype=torch.float64), known.weight
    base, extra = float((w * known.failed).sum() / w.sum()), SMOOTHING * float(w.mean())
    for some, near, weight in _nearest(known, asked, torch.arange(len(asked)), torch.arange(len(known)), k, group):
        other = (known.label[near] != asked.predicted[some, None]).double()
        share[some] = ((weight * other).sum(1) + extra * base) / (weight.sum(1) + extra)
    return share


def _nearest(
    known: Known, asked: Outputs, rows: Tensor, pool: Tensor, k: int, group: Tensor | None
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """For some rows at a time, the nearest cases of a pool ``(n, k)`` and their weights: 0 for cases of their group."""
    mean = known.outputs.features.mean(0)
    a = known.outputs.features[pool] - mean
    for some in rows.split(max(1, BLOCK // len(pool))):
        distance = squared_distances(asked.features[some] - mean, a)
        if group is not None:
            distance[group[some, None] == known.group[pool]] = torch.inf
        nearest = distance.topk(min(k, len(pool)), largest=False)
        near = pool[nearest.indices]
        yield some, near, known.weight[near] * nearest.values.isfinite()


def squared_distances(a: Tensor, b: Tensor) -> Tensor:
    """Between all rows of both, by one matrix product."""
    return (a.square().sum(1, keepdim=True) + b.square().sum(1) - 2 * a @ b.T).clamp_min(0)


@dataclass(frozen=True, kw_only=True, eq=False)
class Correction:
    """Temperature and biases that make the model's probabilities fit the cases, see `fit_correction`."""

    log_slope: Tensor
    bias: Tensor

    def log_odds(self, outputs: Outputs) -> Tensor:
        return log_odds_of_failing(outputs.logits * self.log_slope.exp() + self.bias, outputs.predicted)


def fit_correction(known: Known) -> Correction:
    """Corrected probabilities softmax(s z + b) of the logits z, fitted to the labels of the cases by likelihood.

    The biases hold what the priors of the field and its conditions change: no prior has to be divided by another.
    """
    z, k = known.outputs.logits.numpy(), known.outputs.logits.shape[1]
    onehot, w = np.eye(k)[known.label.numpy()], (known.weight / known.weight.sum()).numpy()[:, None]

    def loss(parameters: Array) -> tuple[float, Array]:
        slope = np.exp(parameters[0])
        logp = log_softmax(z * slope + parameters[1:], axis=1)
        error = (np.exp(logp) - onehot) * w
        value = -(logp * onehot * w).sum() + PENALTY * (parameters**2).sum()
        return value, np.concatenate([[(error * z).sum() * slope], error.sum(0)]) + 2 * PENALTY * parameters

    best = minimize(loss, np.zeros(1 + k), jac=True, method="L-BFGS-B", options={"maxiter": 200}).x
    return Correction(log_slope=torch.tensor(best[0]), bias=torch.tensor(best[1:]))


@dataclass(frozen=True, kw_only=True, eq=False)
class Head:
    """A second last layer, trained on cases, see `fit_head`."""

    weight: Tensor  # (d, classes)
    bias: Tensor

    def log_odds(self, outputs: Outputs) -> Tensor:
        return log_odds_of_failing(outputs.features @ self.weight + self.bias, outputs.predicted)


def head_fitter(known: Known) -> tuple[Callable[[Known], Head], bool]:
    """How second heads are made, the same way for all folds, and whether they are left out."""
    too_large = known.outputs.features.numel() * known.outputs.logits.shape[1] > MAX_HEAD
    return (_no_head if too_large else fit_head), too_large


def _no_head(known: Known) -> Head:
    """One that prefers no class, so that its log odds are the same for every input."""
    features, classes = known.outputs.features.shape[1], known.outputs.logits.shape[1]
    return Head(
        weight=torch.zeros(features, classes, dtype=torch.float64), bias=torch.zeros(classes, dtype=torch.float64)
    )


def fit_head(known: Known) -> Head:
    """A linear classifier of the features, trained on the labels of the cases.

    It knows the field's conditions, which the model's own last layer does not: where it prefers another class than the
    model, the model is likely to be wrong. Classes without cases cannot be preferred.
    """
    from sklearn.linear_model import LogisticRegression

    x, classes = known.outputs.features, known.outputs.logits.shape[1]
    scale, centre = torch.std_mean(x, 0)
    scale = torch.where(scale > 0, scale, 1.0)
    weights = (known.weight / known.weight.mean()).numpy()
    weight, bias = torch.zeros(classes, x.shape[1], dtype=x.dtype), torch.full((classes,), -1e3, dtype=x.dtype)
    if len(known.label.unique()) < 2:
        return _no_head(known)
    fitted = LogisticRegression(C=HEAD_PENALTY, max_iter=300, tol=1e-3)
    fitted.fit(((x - centre) / scale).numpy(), known.label.numpy(), sample_weight=weights)
    coefficients, intercept = torch.tensor(fitted.coef_), torch.tensor(fitted.intercept_)
    if len(fitted.classes_) == 2:  # one row for the second class
        coefficients, intercept = torch.cat([-coefficients, coefficients]) / 2, torch.cat([-intercept, intercept]) / 2
    seen = torch.tensor(fitted.classes_)
    weight[seen] = coefficients / scale
    bias[seen] = intercept - weight[seen] @ centre
    return Head(weight=weight.T.contiguous(), bias=bias)


def log_odds_of_failing(logits: Tensor, predicted: Tensor) -> Tensor:
    """log (1 - p) / p for p the softmax probability of the predicted class, limited to a finite range."""
    own = logits.gather(1, predicted[:, None])[:, 0]
    others = logits.scatter(1, predicted[:, None], -torch.inf).logsumexp(1)
    return (others - own).clamp(-MAX_LOG_ODDS, MAX_LOG_ODDS)


def margin_log_odds(outputs: Outputs) -> Tensor:
    """The second largest logit minus the largest: log odds of failing if only two classes were possible."""
    best = outputs.logits.topk(2, dim=1).values
    return (best[:, 1] - best[:, 0]).clamp_min(-MAX_LOG_ODDS)


def folds_of(known: Known, folds: int) -> Tensor:
    """A fold per input, by a hash of its group: groups stay together, and failing ones are in every fold."""
    groups, member = known.group.unique(return_inverse=True)
    failing = torch.zeros(len(groups), dtype=torch.float64).index_add_(0, member, known.failed) > 0
    order = torch.tensor(np.lexsort((mix(groups).numpy(), failing.numpy())))
    fold = torch.empty_like(groups)
    fold[order] = torch.arange(len(groups)) % folds
    return fold[member]
