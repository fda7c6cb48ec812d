"""The sequential probability ratio test: stop as soon as a small rate can be distinguished from a large one."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from operant.validation import check_between

BENIGN, OPEN, ADVERSARIAL = -1, 0, 1
GRID = 2**20  # resolution of thresholds


@dataclass(frozen=True, kw_only=True)
class SequentialTest:
    """A test whether labels change at a rate above a threshold, which stops as early as possible.

        L(c, n) = c ln(p₁/p₀) + (n - c) ln((1 - p₁)/(1 - p₀)),    p₀, p₁ = threshold · (1 ∓ indifference)        (1)
        adversarial once L ≥ ln((1 - β)/α),  benign once L ≤ ln(β/(1 - α))                                       (2)

    for c changes in n observations. If the rate is at most p₀, the answer is "adversarial" with probability at most α;
    if it is at least p₁, "benign" with probability at most β; overshooting (2) makes both smaller.

    Args:
        threshold: the rate to test for.
        indifference: relative distance from it within which either answer is acceptable.
        alpha, beta: the two error rates.

    References:
        | Sequential Tests of Statistical Hypotheses (Wald, 1945), https://doi.org/10.1214/aoms/1177731118
    """

    threshold: float
    indifference: float = 0.5
    alpha: float = 0.05
    beta: float = 0.05

    def __post_init__(self) -> None:
        check_between(0, 1, indifference=self.indifference)
        check_between(0, 0.5, alpha=self.alpha, beta=self.beta)
        if not 0 < self.threshold * (1 + self.indifference) < 1:
            most = 1 / (1 + self.indifference)
            raise ValueError(f"threshold must be above 0 and below {most:.4g}, got {self.threshold}")

    @property
    def steps(self) -> tuple[float, float]:
        """The increments of L for a change and for no change."""
        p0, p1 = self.threshold * (1 - self.indifference), self.threshold * (1 + self.indifference)
        return math.log(p1 / p0), math.log1p(-p1) - math.log1p(-p0)

    @property
    def bounds(self) -> tuple[float, float]:
        """The values of L at which the answer is benign, and adversarial."""
        return math.log(self.beta / (1 - self.alpha)), math.log((1 - self.beta) / self.alpha)  # (2)

    @property
    def shortest(self) -> int:
        """Number of observations without a change after which the answer is benign."""
        return math.ceil(self.bounds[0] / self.steps[1])

    def decide(self, changes: Tensor, seen: Tensor | int) -> Tensor:
        """``BENIGN``, ``OPEN`` or ``ADVERSARIAL`` for these counts; int8."""
        up, down = self.steps
        return self.answer(changes.double() * up + (seen - changes).double() * down)  # (1)

    def answer(self, ratio: Tensor) -> Tensor:
        """The answer for values of L."""
        low, high = self.bounds
        return (ratio >= high).to(torch.int8) - (ratio <= low).to(torch.int8)

    def finish(self, changes: Tensor, seen: int) -> Tensor:
        """The answer for undecided counts when no more can be observed: by the rate itself."""
        return torch.where(changes > self.threshold * seen, ADVERSARIAL, BENIGN).to(torch.int8)

    def run(self, changed: Tensor) -> tuple[Tensor, Tensor]:
        """The answer for each row of booleans ``(N, observations)``, and the number of observations it took."""
        return _run(changed, [self] * len(changed))


def critical_thresholds(
    changed: Tensor, *, indifference: float = 0.5, alpha: float = 0.05, beta: float = 0.05
) -> Tensor:
    """The smallest threshold at which the test calls each row of booleans ``(N, observations)`` benign; float64.

    A larger threshold lowers L where labels did not change and does not change it where they did; so an answer of
    "benign" stays one as the threshold grows, and the test's decision is a comparison of this number with its
    threshold. So it can be calibrated as a score. It is found by bisection on a grid.
    """
    low = torch.zeros(len(changed), dtype=torch.int64, device=changed.device)
    high = torch.full_like(low, GRID)
    for _ in range(GRID.bit_length() - 1):
        middle = (low + high) // 2
        tests = [
            SequentialTest(threshold=on_grid(place, indifference), indifference=indifference, alpha=alpha, beta=beta)
            for place in middle.tolist()
        ]
        benign = _run(changed, tests)[0] == BENIGN
        low, high = torch.where(benign, low, middle), torch.where(benign, middle, high)
    return torch.tensor([on_grid(place, indifference) for place in high.tolist()], dtype=torch.float64)


def on_grid(place: int, indifference: float) -> float:
    """The threshold at a place of the grid: even steps up to place ``GRID``, where p₁ is 1."""
    return place / GRID / (1 + indifference)


def _run(changed: Tensor, tests: Sequence[SequentialTest]) -> tuple[Tensor, Tensor]:
    """As `SequentialTest.run`, with one test per row; they differ only in their thresholds."""
    if len(changed) == 0:
        return changed.new_zeros(0, dtype=torch.int8), changed.new_zeros(0, dtype=torch.int64)
    n = changed.shape[1]
    changes = changed.cumsum(1)
    seen = torch.arange(1, n + 1, device=changed.device)
    up, down = (
        torch.tensor(v, dtype=torch.float64).to(changed.device) for v in zip(*(t.steps for t in tests), strict=True)
    )
    answers = tests[0].answer(changes.double() * up[:, None] + (seen - changes).double() * down[:, None])  # (1)
    first = (answers != OPEN).to(torch.int8).argmax(1)  # also 0 where all are open
    answer = answers.gather(1, first[:, None])[:, 0]
    limit = torch.tensor([t.threshold * n for t in tests], dtype=torch.float64, device=changed.device)
    last = torch.where(changes[:, -1] > limit, ADVERSARIAL, BENIGN).to(torch.int8)
    still = answer == OPEN
    return torch.where(still, last, answer), torch.where(still, n, first + 1)
