"""What a count says about the probability behind it."""

from __future__ import annotations

from dataclasses import dataclass

from scipy.stats import beta


@dataclass(frozen=True, kw_only=True)
class Interval:
    """Covers the truth in at least ``confidence`` of all repetitions."""

    lower: float
    upper: float
    confidence: float


def clopper_pearson_interval(k: int, n: int, *, confidence: float = 0.95) -> Interval:
    """The exact two-sided interval for a probability of which n independent trials showed k successes.

        lower = B(α/2; k, n - k + 1),  upper = B(1 - α/2; k + 1, n - k),  α = 1 - confidence        (1)

    B(q; a, b) is the q-quantile of the beta distribution; the lower end is 0 for k = 0, the upper one 1 for k = n.
    Never too short, whatever the probability; for that it is somewhat too long.

    >>> clopper_pearson_interval(0, 10).upper
    0.3084...

    References:
        | The Use of Confidence or Fiducial Limits Illustrated in the Case of the Binomial (Clopper and Pearson, 1934)
        | https://doi.org/10.1093/biomet/26.4.404
    """
    if n < 1:
        raise ValueError(f"n must be at least 1 trial, got {n}")
    if not 0 <= k <= n or k != int(k) or n != int(n):
        raise ValueError(f"k must be a whole number of successes from 0 to n, got k={k} of n={n}")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1, got {confidence}; 0.95 is usual")
    tail = (1 - confidence) / 2
    lower = float(beta.ppf(tail, k, n - k + 1)) if k > 0 else 0.0  # (1)
    upper = float(beta.isf(tail, k + 1, n - k)) if k < n else 1.0
    return Interval(lower=lower, upper=upper, confidence=confidence)
