"""The density ratio of field to pool, from a classifier that separates the two."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from operant.data import Samples
from operant.model import Finding
from operant.networks import PCA, fit_pca
from operant.profile._checks import check_same_shape, warning
from operant.profile.fitting import Features, with_priors
from operant.profile.priors import Priors
from operant.rng import mix
from operant.validation import check_between, check_not_empty

FOLDS = 5
SQUARED = 16  # codes whose squares and products are terms too
PENALTY = 0.1  # scikit-learn's C; small, so that few inputs are not separated by chance
MAX_AUC = 0.98  # area under the curve above which the pool hardly overlaps with the field
MAX_LOGIT = 30.0  # limits the ratios to finite values

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False, kw_only=True)
class Ratio:
    """The density ratio of field to pool; made by `fit_ratio`.

        r(x) = n_pool / n_field · d(x) / (1 - d(x)),  d the probability of being from the field        (1)

    Attributes:
        clip: maximum weight of a pool input, relative to the mean.
        auc: how well pool and field can be separated: from 0.5 (not at all) to 1 (entirely).
        effective: effective number of the pool's inputs under these weights.
        findings: reasons to doubt the weights.
    """

    encoder: PCA  # principal components of pool and field together
    coefficients: Tensor = field(repr=False)  # of each fold's logistic regression, (5, 1 + terms), the constant first
    centre: Tensor = field(repr=False)  # mean of the terms
    scale: Tensor = field(repr=False)  # standard deviation of the terms
    calibration: tuple[float, float]  # slope and offset of the logit, fitted out of fold
    odds: float  # n_pool / n_field
    clip: float
    auc: float
    effective: float
    findings: tuple[Finding, ...]
    features: Features | None = None  # applied to inputs before the encoder

    def __call__(self, x: Tensor) -> Tensor:
        """The unclipped ratio of each input, ``(N,)`` in float64."""
        codes = self.encoder(x if self.features is None else self.features(x)).double()
        terms = (_terms(codes) - self.centre) / self.scale
        logits = (terms @ self.coefficients[:, 1:].T + self.coefficients[:, 0]).mean(1)
        return _ratios(logits, self.calibration, self.odds)

    def weights(self, pool: Samples, *, priors: Priors | Sequence[float] | None = None) -> Tensor:
        """Weights of a pool's inputs, ``(N,)``, summing to 1, none above ``clip`` times the mean.

        An alternative to `Profile.weights` for a pool drawn as the one it was fitted on.
        """
        check_not_empty(pool=pool)
        mass = _clipped(self(pool.x), self.clip)
        return mass if priors is None else with_priors(mass, pool, priors)


def fit_ratio(
    pool: Samples,
    field: Samples,
    *,
    clip: float = 10.0,
    dimensions: int = 32,
    features: Features | None = None,
    generator: torch.Generator,
) -> Ratio:
    """Learn to separate field inputs from a pool's, and from that the weight of each input of the pool.

    Logistic regression on principal components, with squares and products of the first 16, in five folds chosen by
    group or id; the out-of-fold logits are used for calibration (Platt). Ratios are clipped at ``clip`` times the mean,
    so that a few inputs that happen to look like the field do not dominate.

    Args:
        pool: inputs to weight, such as training data.
        dimensions: number of principal components.
        features: applied to inputs before the encoder, such as `layer_features`.

    References:
        | Discriminative Learning Under Covariate Shift (Bickel et al., 2009)
        | Probabilistic Outputs for Support Vector Machines (Platt, 1999)
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score

    _check(pool, field, clip)
    inputs = torch.cat([pool.x, field.x])
    both = Samples(inputs if features is None else features(inputs), ids=torch.cat([pool.ids, field.ids]))
    encoder = fit_pca(both, dimensions=dimensions, generator=generator)
    terms = _terms(encoder(both.x).double())
    scale, centre = torch.std_mean(terms, 0)
    scale = torch.where(scale > 0, scale, 1.0)
    z, y = ((terms - centre) / scale).cpu().numpy(), np.repeat([0, 1], [len(pool), len(field)])
    folds = (mix(torch.cat([pool.units, field.units])) * FOLDS).long().clamp_max(FOLDS - 1).numpy()
    coefficients, logits = _cross_fitted(z, y, folds)
    platt = LogisticRegression(C=1e4, max_iter=2000).fit(logits[:, None], y)
    calibration = float(platt.coef_[0, 0]), float(platt.intercept_[0])
    odds = len(pool) / len(field)
    mass = _clipped(_ratios(torch.from_numpy(logits[y == 0]), calibration, odds), clip)
    auc, effective = float(roc_auc_score(y, logits)), 1 / float(mass.square().sum())
    return Ratio(
        encoder=encoder,
        coefficients=torch.from_numpy(coefficients),
        centre=centre,
        scale=scale,
        calibration=calibration,
        odds=odds,
        clip=clip,
        auc=auc,
        effective=effective,
        findings=_findings(auc, effective, len(pool)),
        features=features,
    )


def _terms(codes: Tensor) -> Tensor:
    """The codes, and squares and products of the first ones."""
    first = codes[:, :SQUARED]
    i, j = torch.triu_indices(first.shape[1], first.shape[1])
    return torch.cat([codes, first[:, i] * first[:, j]], 1)


def _cross_fitted(z: Array, y: Array, folds: NDArray[np.int64]) -> tuple[Array, Array]:
    from sklearn.linear_model import LogisticRegression

    rows, logits = [], np.zeros(len(y))
    for fold in range(FOLDS):
        out = folds == fold
        if len(np.unique(y[~out])) < 2:
            raise ValueError(f"{len(y)} inputs are too few to compare pool and field in {FOLDS} folds; give more")
        learned = LogisticRegression(C=PENALTY, max_iter=2000).fit(z[~out], y[~out])
        rows.append(np.concatenate([learned.intercept_, learned.coef_[0]]))
        logits[out] = learned.decision_function(z[out]) if out.any() else 0
    return np.stack(rows), logits


def _ratios(logits: Tensor, calibration: tuple[float, float], odds: float) -> Tensor:
    slope, offset = calibration
    return (slope * logits + offset).clamp(-MAX_LOGIT, MAX_LOGIT).exp() * odds  # (1), since d / (1 - d) = exp(logit)


def _clipped(ratios: Tensor, clip: float) -> Tensor:
    """Weights that sum to 1, none above ``clip`` times the mean; clipped mass goes to the others."""
    mass = ratios / ratios.sum()
    for _ in range(100):
        over = mass >= clip / len(mass) * (1 - 1e-12)
        rest = 1 - float(over.sum()) * clip / len(mass)
        scaled = mass * (rest / float(mass[~over].sum().clamp_min(torch.finfo(mass.dtype).tiny)))
        mass = torch.where(over, torch.full_like(mass, clip / len(mass)), scaled)
        if not bool((mass > clip / len(mass) * (1 + 1e-9)).any()):
            break
    return mass / mass.sum()


def _findings(auc: float, effective: float, n: int) -> tuple[Finding, ...]:
    if auc <= MAX_AUC:
        return ()
    problem = (
        f"pool and field can nearly always be distinguished (area under the curve {auc:.3f}), and the effective size "
        f"of the pool after weighting is only {effective:.0f} of {n}"
    )
    advice = "No weighting turns this pool into the field: use field inputs themselves, or synthesise a pool"
    return (warning("pool unlike field", problem, advice),)


def _check(pool: Samples, field: Samples, clip: float) -> None:
    check_between(1, math.inf, clip=clip, advice="10 is usual")
    check_same_shape("pool", pool, "field", field)
    if min(len(pool), len(field)) < 50:
        raise ValueError(f"at least 50 inputs of each are needed, got {len(pool)} and {len(field)}; collect more")
    if shared := int(torch.isin(pool.ids, field.ids).sum()):
        raise ValueError(f"{shared} inputs are in both the pool and the field; leave them out of one")
