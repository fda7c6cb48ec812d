"""What a proof sees of a model: its predictions for the pool, and a risk bin for each input."""

import hashlib
from dataclasses import dataclass, field
from typing import Self

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from operant.assess.betting import Array, Integers

CUTS = (0.7, 0.9, 0.97, 0.99)  # quantiles of the risk at which bins begin
PRIOR_LABELS = 60.0  # labels that the prior of a bin's error rate counts for
STEEPNESS = (0.0, 0.35, 0.7, 1.0, 1.4, 1.9)  # powers of the model's own risk that may describe its error rates
MAX_RATE = 0.95  # of a bin, before a label


@dataclass(frozen=True, eq=False, kw_only=True)
class ScoredModel:
    """A model's predictions and risk bins for the pool of a proof, all computed before its first proof label.

    Attributes:
        predictions: class per input of the pool, ``(n,)``.
        bins: risk bin per input, 0 the safest, ``(n,)``.
        masses: share of the field in each bin, ``(J,)``.
        risks: mean risk of each bin, ``(J,)``; only its shape matters.
        auc: how well the risk ranks failures (`ranking`), on teaching labels and clean data.
    """

    predictions: Integers = field(repr=False)
    bins: Integers = field(repr=False)
    masses: Array
    risks: Array
    auc: float

    def __len__(self) -> int:
        return len(self.predictions)

    @property
    def digest(self) -> str:
        """Equal for equal predictions and bins; `auc` may change as teaching labels come in."""
        parts = (self.predictions, self.bins, self.masses, self.risks)
        return hashlib.blake2b(b"".join(a.tobytes() for a in parts), digest_size=8).hexdigest()


def scored_model(predictions: Integers, risk: Array, *, profile_risk: Array, auc: float) -> ScoredModel:
    """What a proof needs of a model, from its risk for the pool and for other field inputs.

    Args:
        predictions: class per input of the pool.
        risk: of each input of the pool, 0 or more: larger is riskier, for example one minus the margin.
        profile_risk: the same for field inputs that are not in the pool. They define the bins, since a proof must not
            look at inputs before their block comes; 100 or more are better.
        auc: from `ranking`. With several scores, give the one with the largest.
    """
    predictions, risk = np.asarray(predictions, dtype=np.int64), np.asarray(risk, dtype=np.float64)
    profile_risk = np.asarray(profile_risk, dtype=np.float64)
    if predictions.ndim != 1 or predictions.shape != risk.shape:
        raise ValueError(f"risk must be one number per prediction, got {risk.shape} and {predictions.shape}")
    for name, values in (("risk", risk), ("profile_risk", profile_risk)):
        if bad := int((~(np.isfinite(values) & (values >= 0))).sum()):
            raise ValueError(
                f"{name} must be finite and 0 or more, got NaN, infinity or less in {bad} of {len(values)} rows; "
                "check the model's outputs for these inputs"
            )
    if profile_risk.ndim != 1 or len(profile_risk) == 0:
        raise ValueError("profile_risk must be one number per field input outside the pool, got none")
    if not 0 <= auc <= 1:
        raise ValueError(f"auc must be a share from 0 to 1, got {auc}; compute it with `ranking`")
    edges = np.unique(np.quantile(profile_risk, CUTS))
    edges = edges[edges > profile_risk.min()]  # no bin is empty
    places = np.searchsorted(edges, profile_risk, side="right")
    counts = np.bincount(places, minlength=len(edges) + 1)
    risks = np.bincount(places, profile_risk, minlength=len(counts)) / counts
    bins = np.searchsorted(edges, risk, side="right").astype(np.int64)
    return ScoredModel(predictions=predictions, bins=bins, masses=counts / counts.sum(), risks=risks, auc=float(auc))


def ranking(risk: Array, failed: NDArray[np.bool_]) -> float:
    """The AUC of a risk: the chance that a failure is riskier than a success; .5 if there are none of one kind.

    >>> ranking(np.array([0.1, 0.2, 0.9]), np.array([False, False, True]))
    1.0
    """
    risk, failed = np.asarray(risk, dtype=np.float64), np.asarray(failed, dtype=bool)
    if risk.shape != failed.shape or np.isnan(risk).any():
        raise ValueError(f"risk must be one number per label and not NaN, got {risk.shape} for {failed.shape} labels")
    bad, good = int(failed.sum()), int((~failed).sum())
    if not bad or not good:
        return 0.5
    return float((rankdata(risk)[failed].sum() - bad * (bad + 1) / 2) / (bad * good))


@dataclass(frozen=True, eq=False, kw_only=True)
class RatePrior:
    """Error rates of the J bins that are thought possible before a label is seen, with their weights.

        theta_j = min(.95, p r_j^g / sum_i mass_i r_i^g),  weight proportional to sqrt(p) exp(-p / requirement)      (1)

    r is the model's own risk; g = 0 ignores it, g > 1 trusts it more than it claims; p is the overall error rate.
    """

    masses: Array
    rates: Array  # (K, J)
    log_weights: Array  # (K,)

    @classmethod
    def of(cls, masses: Array, risks: Array, *, requirement: float) -> Self:
        p = np.geomspace(requirement / 30, min(3 * requirement, MAX_RATE), 24)
        shapes = np.maximum(risks / risks.max(), 1e-9) ** np.array(STEEPNESS)[:, None] if risks.max() > 0 else None
        shapes = np.ones((1, len(masses))) if shapes is None else shapes
        shapes = shapes / (shapes @ masses)[:, None]
        rates = np.minimum(MAX_RATE, p[:, None, None] * shapes)  # (1)
        log_weights = np.repeat(0.5 * np.log(p) - p / requirement, len(shapes))
        return cls(masses=masses, rates=rates.reshape(-1, len(masses)), log_weights=log_weights)

    def estimate(self, failures: Array, labels: Array) -> Array:
        """The rate of each bin after these labels, ``(..., J)``: the posterior mean counts for 60 more labels.

        s_j = (failures_j + 60 E[theta_j | labels]) / (labels_j + 60)        (2)
        """
        log = self.log_weights + failures @ np.log(self.rates).T + (labels - failures) @ np.log1p(-self.rates).T
        weights = np.exp(log - log.max(-1, keepdims=True))
        mean = weights @ self.rates / weights.sum(-1, keepdims=True)
        rates: Array = (failures + PRIOR_LABELS * mean) / (labels + PRIOR_LABELS)  # (2)
        return rates
