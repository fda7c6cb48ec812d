"""Conformal p-values: how strange a score is, relative to the scores of held-out genuine inputs."""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from operant.validation import check_between

MIN_SCORES_ABOVE = 5  # calibration scores at or above the last knot of `Conformal.smooth_log_p`


def conformal_p_values(scores: Tensor, calibration: Tensor) -> Tensor:
    """The share of genuine inputs that are at least as strange as each of these; a higher score is stranger.

        p(x) = (1 + #{i: aᵢ ≥ a(x)}) / (n + 1)        (1)

    If a(x) and the n calibration scores are exchangeable (x is drawn as the calibration inputs were, and none of them
    was used to learn the score), then P(p(x) ≤ level) ≤ level for every level. The probability is over the joint draw
    of the calibration inputs and x, not for one fixed calibration set. Ties count as stranger (≥), so they make p
    larger and keep the guarantee. The smallest possible p-value is 1 / (n + 1). p-values are in float64, without
    gradients.

    Args:
        scores: a(x), ``(N,)``.
        calibration: aᵢ of held-out genuine inputs, ``(n,)``, in any order.

    >>> conformal_p_values(torch.tensor([0.0, 3.0, 9.0]), torch.tensor([1.0, 2.0, 3.0])).tolist()
    [1.0, 0.5, 0.25]

    References:
        | Algorithmic Learning in a Random World (Vovk, Gammerman and Shafer, 2005)
        | Testing for Outliers with Conformal p-values (Bates et al., 2023), https://arxiv.org/abs/2104.08279
    """
    _check_scores(calibration, "calibration scores")
    return Conformal(calibration.sort().values).p_values(scores)


def min_bonferroni(p: Tensor) -> Tensor:
    """One p-value per row from k p-values ``(N, k)`` of the same input, valid under any dependence between them.

        p = min(1, k · minⱼ pⱼ)        (1)

    >>> min_bonferroni(torch.tensor([[0.01, 0.5], [0.7, 0.9]]))
    tensor([0.0200, 1.0000])
    """
    if p.ndim != 2 or p.shape[1] == 0:
        raise ValueError(f"p-values to combine must have shape (N, k), one column per test, got {tuple(p.shape)}")
    if not bool(((p > 0) & (p <= 1)).all()):
        raise ValueError("p-values must lie in (0, 1], got 0, NaN or values outside; use conformal_p_values")
    return (p.shape[1] * p.amin(1)).clamp_max(1)  # (1)


def check_level(level: float, n: int, *, tests: int = 1) -> None:
    """Raise if no p-value from n calibration scores can fall below the level, if ``tests`` of them are combined."""
    check_between(0, 1, level=level)
    if not tests / (n + 1) < level:
        combined = f" and {tests} tests combined" if tests > 1 else ""
        raise ValueError(
            f"no p-value can fall below level {level}: with {n} calibration scores{combined} the smallest is "
            f"{tests / (n + 1):.4g}; calibrate on at least {min_calibration_size(level, tests=tests)}, or raise the "
            "level"
        )


def min_calibration_size(level: float, *, tests: int = 1) -> int:
    """The smallest number of calibration scores with which a p-value can fall below this level.

    >>> min_calibration_size(0.05), min_calibration_size(0.05, tests=3)
    (20, 60)
    """
    n = max(1, math.floor(tests / level) - 1)
    while not tests / (n + 1) < level:
        n += 1
    return n


@dataclass(frozen=True, eq=False)
class Conformal:
    """Sorted calibration scores that give p-values to other scores; made by `fit_conformal`."""

    calibration: Tensor = field(repr=False)  # sorted

    def __len__(self) -> int:
        return len(self.calibration)

    @property
    def varies(self) -> bool:
        """Whether any two scores differ."""
        return bool(self.calibration[0] < self.calibration[-1])

    def p_values(self, scores: Tensor) -> Tensor:
        """As `conformal_p_values`."""
        _check_scores(scores, "scores")
        kind = torch.promote_types(scores.dtype, self.calibration.dtype)
        below = torch.searchsorted(self.calibration.to(scores.device, kind), scores.detach().to(kind).contiguous())
        return (1 + (len(self) - below)).double() / (len(self) + 1)  # (1) of conformal_p_values

    def threshold(self, level: float) -> float:
        """The score above which, and only above which, p-values fall below ``level``."""
        check_level(level, len(self))
        below = torch.arange(1, len(self) + 2, dtype=torch.float64) / (len(self) + 1) < level
        return float(self.calibration[-int(below.sum())])

    def smooth_log_p(self, scores: Tensor) -> Tensor:
        """A differentiable surrogate for log p: exact at a few knots, linear between and beyond them.

        Each knot is a calibration score with about half as many scores above it as the previous one, down to five.
        Beyond the last knot log p keeps falling at the same slope (an exponential tail), where p itself stays at
        1 / (n + 1); below the first it rises above 0. So it ranks scores whose p-values are equal, and its gradient
        never vanishes. It guarantees nothing about error rates: use it to search and p to decide.
        """
        _check_scores(scores, "scores")
        a = scores.double()
        knots, heights = (v.to(a.device) for v in self._knots())
        right = torch.searchsorted(knots, a.detach().contiguous()).clamp(1, len(knots) - 1)
        slope = heights.diff() / knots.diff()
        return heights[right] + (a - knots[right]) * slope[right - 1]

    def _knots(self) -> tuple[Tensor, Tensor]:
        """Strictly increasing scores, and log p at each."""
        n = len(self)
        above = [n >> halvings for halvings in range(n.bit_length()) if n >> halvings >= MIN_SCORES_ABOVE]
        knots = self.calibration[[n - m for m in above]].unique()
        if len(knots) < 2:  # few scores, or many ties
            knots = self.calibration.unique()
        if not self.varies:
            raise ValueError("log p has no slope to follow: all calibration scores are equal; use another score")
        return knots.double(), self.p_values(knots).log()


def fit_conformal(calibration: Tensor) -> Conformal:
    """Sort the scores ``(n,)`` of held-out genuine inputs, to rate others by; a higher score is stranger."""
    _check_scores(calibration, "calibration scores")
    if not bool(calibration.isfinite().all()):
        bad = int((~calibration.isfinite()).sum())
        raise ValueError(f"calibration scores must be finite, got {bad} of {len(calibration)} infinite; fix the score")
    return Conformal(calibration.detach().sort().values)


def _check_scores(scores: Tensor, name: str) -> None:
    if scores.ndim != 1 or scores.is_complex():
        raise ValueError(f"{name} must be real numbers of shape (n,), got {scores.dtype} of {tuple(scores.shape)}")
    if name != "scores" and len(scores) == 0:
        raise ValueError(f"there are no {name}; give those of at least one held-out genuine input")
    if bad := int(scores.detach().isnan().sum()):
        raise ValueError(f"{name} contain NaN in {bad} of {len(scores)} rows; fix the score or remove those rows")
