"""Which rows an epoch learns from: drawn by weight, with a limit on how often one row is drawn."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from operant.data import Samples
from operant.retrain.losses import TrainingBatch
from operant.rng import shuffled
from operant.seeds.designs import normalised


def capped_chances(weights: Tensor, cap: float) -> Tensor:
    """Probabilities in proportion to the weights, none above ``cap`` times the mean; float64, summing to 1.

        p_i = min(c w_i, cap / n),  c such that Σ p_i = 1        (1)

    If too few weights are positive for all probabilities to be below the cap, those rows are equally likely.

    >>> capped_chances(torch.tensor([100.0, 1.0, 1.0, 2.0]), 2.0).tolist()
    [0.5, 0.125, 0.125, 0.25]
    """
    p = normalised(weights, len(weights), "weights")
    positive, limit = p > 0, cap / len(p)
    if int(positive.sum()) * cap <= len(p):
        return positive.double() / positive.sum()
    full = torch.zeros_like(positive)
    while bool((over := (p > limit) & ~full).any()):  # ends: every pass fills at least one more row
        full |= over
        rest = 1 - limit * int(full.sum())
        p = torch.where(full, limit, p / p.masked_fill(full, 0).sum() * rest)  # (1)
    return p


def drawn_rows(chances: Tensor, n: int, *, generator: torch.Generator) -> Tensor:
    """n row numbers in ascending order; row i occurs n p_i times on average, rounded down or up.

    Only fractions are drawn at random: if all n p_i are integers, the generator is not used.

    >>> drawn_rows(torch.tensor([0.5, 0.25, 0.25]), 4, generator=torch.Generator()).tolist()
    [0, 0, 1, 2]
    """
    expected = chances.double() * n
    counts = (expected + 1e-9).floor()
    left = n - int(counts.sum())
    if left > 0:
        order = shuffled(len(chances), generator)
        ends = (expected - counts).clamp_min(0)[order].cumsum(0)
        u = torch.rand(1, generator=generator, device=generator.device, dtype=torch.float64).cpu()
        points = (u + torch.arange(left)) / left
        extra = order[torch.searchsorted(ends / ends[-1], points, right=True)]
        counts = counts + torch.bincount(extra, minlength=len(chances))
    return torch.arange(len(chances)).repeat_interleave(counts.long())


def chances_of(samples: Samples, weights: Tensor | None, cap: float, name: str = "weights") -> Tensor:
    """The probability of each sample; equal without weights."""
    if len(samples) == 0:
        return torch.zeros(0, dtype=torch.float64)
    weights = torch.ones(len(samples)) if weights is None else weights
    return capped_chances(normalised(weights, len(samples), name), cap)  # (1)


@dataclass(frozen=True, kw_only=True, eq=False)
class EpochRows:
    """The rows that an epoch draws from training data and cases."""

    train: Samples
    cases: Samples
    chances: tuple[Tensor, Tensor]  # probabilities of the rows of train and cases
    counts: tuple[int, int]  # rows of each per epoch
    seeds: Tensor | None = None  # of the cases, if the loss needs them

    @cached_property
    def data(self) -> Samples:
        """Training data, followed by cases."""
        train, cases = self.train, self.cases
        return Samples.concat([train, cases.to(train.x.device)]) if len(cases) else train

    @property
    def effective_cases(self) -> float:
        return 1 / float(self.chances[1].square().sum()) if len(self.cases) else 0.0

    def order(self, generator: torch.Generator) -> Tensor:
        """The row numbers of one epoch, shuffled."""
        train, cases = (drawn_rows(p, n, generator=generator) for p, n in zip(self.chances, self.counts, strict=True))
        rows = torch.cat([train, cases + len(self.train)])
        return rows[shuffled(len(rows), generator)]

    def batch(self, rows: Tensor) -> TrainingBatch:
        first = len(self.train)
        is_case = rows >= first
        x = self.data.x[rows]
        seeds = x[:0] if self.seeds is None else self.seeds[rows[is_case] - first]
        return TrainingBatch(x=x, y=self.data.labels[rows], rows=rows, is_case=is_case, seeds=seeds)


def every_row(train: Samples, cases: Samples) -> EpochRows:
    """Every row once per epoch."""
    chances = (chances_of(train, None, 1.0), chances_of(cases, None, 1.0))
    return EpochRows(train=train, cases=cases, chances=chances, counts=(len(train), len(cases)))
