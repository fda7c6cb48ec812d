"""Tests whether labelled data, weighted by class, explain what a model makes of field inputs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import norm as normal
from torch import Tensor

from operant.data import Samples
from operant.data.class_texts import class_names
from operant.formatting import p_text
from operant.model import Classifier
from operant.profile._checks import checked_shares, names_of
from operant.rng import shuffled, spawn

Array = NDArray[np.float64]
LEVEL = 0.01  # significance level of the test
FOLDS = 5
MIN_INPUTS = 20  # of either side
COMPONENTS = 24  # principal components of the outputs, and of the features
MAX_FEATURES = 512  # of a layer; more are projected to as many at random, which keeps distances
MAX_SQUARE = 10.0  # largest square of a standardised number
STRETCH = 1.1  # of the standard deviation, since folds share inputs; without it, 1.6 % of 800 nulls were rejected
PENALTY = 0.1  # of the logistic regression, the inverse of the strength of regularisation


@dataclass(frozen=True, kw_only=True)
class Explained:
    """Whether re-weighted labelled data explain the field; made by `explains_field`.

    Attributes:
        auc: how well field inputs are told from re-weighted labelled ones: 0.5 not at all, 1 always.
        p_value: of the hypothesis that they cannot be told apart.
        source, field: number of inputs of either side that were compared.
    """

    auc: float
    p_value: float
    source: int
    field: int

    @property
    def explained(self) -> bool:
        """Whether no difference was found, at level .01. This is no proof that there is none."""
        return self.p_value >= LEVEL

    def __str__(self) -> str:
        verdict = "explain the field" if self.explained else "do not explain the field"
        return (
            f"Labelled data in these class shares {verdict} ({p_text(self.p_value)}): the model's outputs and features "
            f"tell the two apart with an area under the curve of {self.auc:.3f}, where 0.5 is chance."
        )


def explains_field(
    model: Classifier,
    source: Samples,
    field: Samples,
    *,
    priors: Sequence[float],
    origin: Tensor | None = None,
    generator: torch.Generator,
) -> Explained:
    """Test whether labelled data in these class shares look to the model like the field.

    Logistic regression on the model's outputs and penultimate features learns to tell field inputs from labelled ones
    of weight wᵢ, in five folds. The scores s of the fold left out give

        wᵢ = π_c / n_c for the n_c labelled inputs of class c
        AUC = Σ wᵢ P(s(field input) > sᵢ)                                                 (1)
        variance = var(field placements) / field inputs + Σ_c π_c² var_c(placements) / n_c  (2)

    where the placement of an input is its own share in (1), and p = Φ((0.5 - AUC) / standard deviation), the latter
    stretched by a tenth, since folds share training inputs. If priors were estimated by maximum likelihood from the
    same field inputs, AUC varies less than (2) says (Pierce), so the test keeps its level.

    Args:
        source: labelled inputs that nobody trained on, possibly under the conditions of the field.
        field: inputs from operation; labels are ignored. Inputs of one group count as one.
        priors: class shares in the field, one per class, declared or estimated.
        origin: the labelled row that each source input was made from, so that copies of one count as one.
        generator: deals inputs to folds.

    References:
        | Revisiting Classifier Two-Sample Tests (Lopez-Paz and Oquab, 2017), https://arxiv.org/abs/1610.06545
        | Comparing the Areas under Two or More Correlated ROC Curves (DeLong et al., 1988), for (2)
        | The Asymptotic Effect of Substituting Estimators for Parameters in Certain Types of Statistics (Pierce, 1982)
        | https://doi.org/10.1214/aos/1176345788
    """
    weights = _weights(model, source, priors)
    if (few := too_few(source, field, priors, origin)) is not None:
        raise ValueError(few)
    used = weights > 0
    y, weights = source.labels.cpu().numpy()[used], weights[used]
    origins = (source.units if origin is None else origin).cpu().numpy()[used]
    numbers = _numbers(model, [source[torch.from_numpy(used)], field])
    groups = np.unique(origins, return_inverse=True)[1], np.unique(field.units.cpu().numpy(), return_inverse=True)[1]
    scores = _scores(numbers, np.concatenate([_folds(g, generator) for g in groups]), weights)
    auc, variance = _area(scores[: len(y)], scores[len(y) :], weights, y, groups)
    z = (auc - 0.5) / (STRETCH * math.sqrt(max(variance, 1e-12)))
    return Explained(auc=auc, p_value=float(normal.sf(z)), source=len(y), field=len(field))


def too_few(source: Samples, field: Samples, priors: Sequence[float], origin: Tensor | None) -> str | None:
    """Why there are too few independent inputs to compare; None if there are enough."""
    used = torch.tensor([p > 0 for p in priors])[source.labels.cpu()]
    units = (source.units if origin is None else origin).cpu()[used]
    for name, n in (("labelled", len(units.unique())), ("field", len(field.units.unique()))):
        if n < MIN_INPUTS:
            return f"at least {MIN_INPUTS} different {name} inputs are needed, got {n}; a few hundred are usual"
    return None


def _weights(model: Classifier, source: Samples, priors: Sequence[float]) -> Array:
    """The weight of each source input; they sum to 1."""
    shares, y = checked_shares(priors).numpy(), source.labels.cpu().numpy()
    if (k := model.classes(source.x)) != len(shares):
        raise ValueError(f"there must be a prior for each of the model's {k} classes, got {len(shares)}")
    counts = np.bincount(y, minlength=k)
    if len(missing := np.flatnonzero((shares > 0) & (counts == 0))):
        names = class_names(missing.tolist(), names_of(source, k))
        raise ValueError(f"a class with a positive prior must occur in the labelled data, and {names} do not")
    return np.asarray((shares / np.maximum(counts, 1))[y])


def _folds(groups: NDArray[np.int64], generator: torch.Generator) -> NDArray[np.int64]:
    """A fold for each input, the same for all of a group."""
    return np.asarray(shuffled(int(groups.max()) + 1, generator).numpy()[groups] % FOLDS)


# What is compared


def _numbers(model: Classifier, sides: Sequence[Samples]) -> Array:
    """The numbers that describe the inputs of both sides, with a mean of 0 and a standard deviation of 1.

    All inputs count alike: if heavy ones counted more, components would follow them and give their side away.
    """
    logits = torch.cat([model.batched_logits(s.x).cpu() for s in sides]).double()
    features = _features(model, sides)
    logits = logits - logits.mean(1, keepdim=True)
    logp = logits.log_softmax(1)
    top = logp.topk(2).values
    confidence = torch.stack([top[:, 0], top[:, 0] - top[:, 1], -(logp.exp() * logp).sum(1), logits.norm(dim=1)], 1)
    blocks = [confidence.numpy(), _components(logits.numpy())]
    if features is not None:
        size = features.norm(dim=1, keepdim=True).log1p().numpy()
        blocks += [size, _components(features.numpy())]
    plain = _standardised(np.hstack(blocks))
    return _standardised(np.hstack([plain, np.minimum(plain**2, MAX_SQUARE)]))


def _features(model: Classifier, sides: Sequence[Samples]) -> Tensor | None:
    """What the model's last layer reads, one row per input of both sides; None if that is unknown or not finite."""
    parts = [part for s in sides if (part := model.penultimate(s.x)) is not None]
    features = torch.cat(parts).cpu().double() if len(parts) == len(sides) else None
    if features is None or not bool(features.isfinite().all()):
        return None
    if (d := features.shape[1]) <= MAX_FEATURES:
        return features
    axes = torch.randn(d, MAX_FEATURES, dtype=torch.float64, generator=spawn(0, "projection"))
    projected: Tensor = features @ axes / MAX_FEATURES**0.5
    return projected


def _components(x: Array) -> Array:
    """The first principal components."""
    centred = x - x.mean(0)
    _, vectors = np.linalg.eigh(centred.T @ centred)
    return np.asarray(centred @ vectors[:, ::-1][:, : min(COMPONENTS, max(2, len(x) // 20))])


def _standardised(x: Array) -> Array:
    centred, spread = x - x.mean(0), x.std(0)
    return np.asarray(centred[:, spread > 1e-9] / spread[spread > 1e-9])


# How well the sides are told apart


def _scores(numbers: Array, folds: NDArray[np.int64], weights: Array) -> Array:
    """For each input the logit that it is from the field, learned from other folds."""
    from sklearn.linear_model import LogisticRegression

    n = len(numbers) - len(weights)
    y = np.repeat([0, 1], [len(weights), n])
    mass = np.concatenate([weights, np.full(n, 1 / n)]) * len(numbers) / 2
    scores = np.zeros(len(numbers))
    for fold in range(FOLDS):
        out = folds == fold
        mass_in = mass * ~out
        for side in (0, 1):  # the same mass on both sides, so that folds have comparable scores
            mass_in[y == side] *= (~out).sum() / 2 / mass_in[y == side].sum()
        learned = LogisticRegression(C=PENALTY, max_iter=300).fit(numbers[~out], y[~out], mass_in[~out])
        scores[out] = learned.decision_function(numbers[out]) if out.any() else 0
    return scores


def _area(
    source: Array, field: Array, weights: Array, y: NDArray[np.int64], groups: tuple[NDArray[np.int64], ...]
) -> tuple[float, float]:
    """(1) and (2), where inputs of a group count as one."""
    order = np.argsort(source)
    below = np.concatenate([[0], weights[order].cumsum()])
    at = [np.searchsorted(source[order], field, side=side) for side in ("left", "right")]
    field_places = (below[at[0]] + below[at[1]]) / 2
    ranks = [np.searchsorted(np.sort(field), source, side=side) for side in ("left", "right")]
    places = 1 - (ranks[0] + ranks[1]) / 2 / len(field)
    auc = float(field_places.mean())  # (1)
    totals = np.bincount(groups[1], field_places - auc) / len(field)
    variance = (totals**2).sum() * len(totals) / max(1, len(totals) - 1)
    for c in np.unique(y):
        variance += _class_variance(places[y == c], weights[y == c], groups[0][y == c], auc)
    return auc, float(variance)  # (2)


def _class_variance(places: Array, weights: Array, groups: NDArray[np.int64], auc: float) -> float:
    """Of the weighted sum over one class; of a class with one group, around the mean of all."""
    members = np.unique(groups, return_inverse=True)[1]
    n = int(members.max()) + 1
    centre = auc if n == 1 else float(weights @ places / weights.sum())
    totals = np.bincount(members, weights * (places - centre))
    return float((totals**2).sum() * n / max(1, n - 1))
