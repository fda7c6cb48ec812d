"""Distributions of the severity of a condition."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from operant.validation import check_share


@dataclass(frozen=True, kw_only=True)
class Severity:
    """The distribution of a parameter: normal, truncated to a range, and absent with some probability.

        value = 0 with probability ``absent``, else N(mean, std²) given low ≤ value ≤ high        (1)

    Made by `uniform`, `normal`, `half_normal` and `fixed`.

    Args:
        low, high: the declared range; equal for a fixed value.
        mean, std: of the normal distribution before truncation; an infinite ``std`` gives the uniform distribution.
        absent: probability that the condition does not occur.
    """

    low: float
    high: float
    mean: float = 0.0
    std: float = math.inf
    absent: float = 0.0

    def __post_init__(self) -> None:
        if not -math.inf < self.low <= self.high < math.inf:
            raise ValueError(f"a severity's low must not exceed its high, both finite, got {self.low} and {self.high}")
        if not (math.isfinite(self.mean) and self.std > 0):
            raise ValueError(f"mean must be finite and std positive, got {self.mean} and {self.std}; see `fixed`")
        check_share(absent=self.absent)
        if self.low < self.high and not self._mass() > 1e-9:
            far = f"the range {self.low} to {self.high} lies too far from the mean {self.mean} with std {self.std}"
            raise ValueError(f"{far}; move the mean into it")

    def value(self, u: Tensor) -> Tensor:
        """The ``u`` quantile of the values that are present, in float64."""
        if math.isinf(self.std) or self.low == self.high:
            return (self.low + (self.high - self.low) * u).clamp(self.low, self.high)
        a = _below((self.low - self.mean) / self.std)
        z: Tensor = torch.special.ndtri(a + u * self._mass())
        return (self.mean + self.std * z).clamp(self.low, self.high)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log of the density of (1), differentiable in the value.

        A fixed value, and 0 if the condition may be absent, have a probability instead of a density.
        """
        inside = (value >= self.low) & (value <= self.high)
        present = value.new_full((), math.log1p(-self.absent) if self.absent < 1 else -math.inf)
        if self.low < self.high and math.isinf(self.std):
            present = present - math.log(self.high - self.low)
        elif self.low < self.high:
            z = (value - self.mean) / self.std
            present = present - z**2 / 2 - math.log(self.std * math.sqrt(2 * math.pi) * self._mass())  # (1)
        result = torch.where(inside, present, -math.inf)
        if self.absent == 0:
            return result
        never = 1.0 if self.low == self.high == 0 else self.absent
        return torch.where(value == 0, math.log(never), result)

    def _mass(self) -> float:
        """Probability of the range under the normal distribution."""
        if math.isinf(self.std):
            return 1.0
        return _below((self.high - self.mean) / self.std) - _below((self.low - self.mean) / self.std)


def uniform(low: float, high: float, *, absent: float = 0.0) -> Severity:
    """Uniform between ``low`` and ``high``."""
    return Severity(low=low, high=high, absent=absent)


def normal(
    std: float, *, mean: float = 0.0, low: float | None = None, high: float | None = None, absent: float = 0.0
) -> Severity:
    """Normal around ``mean``, truncated to ``low`` and ``high`` (default: three standard deviations away)."""
    low, high = mean - 3 * std if low is None else low, mean + 3 * std if high is None else high
    return Severity(low=low, high=high, mean=mean, std=std, absent=absent)


def half_normal(std: float, *, high: float | None = None, absent: float = 0.0) -> Severity:
    """From 0 upwards, less likely the larger, truncated at ``high`` (default: three times ``std``)."""
    return normal(std, low=0.0, high=high, absent=absent)


def fixed(value: float, *, absent: float = 0.0) -> Severity:
    """Always this value."""
    return Severity(low=value, high=value, absent=absent)


def _below(z: float) -> float:
    """The standard normal distribution function."""
    return math.erfc(-z / math.sqrt(2)) / 2
