"""Which rows an epoch learns from: drawn by weight, none more often than the cap allows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from operant.data import Samples
from operant.retrain._loop import shuffled
from operant.retrain._losses import Batch
from operant.seeds.designs import normalised


def capped_chances(weights: Tensor, cap: float) -> Tensor:
    """In proportion to the weights, but none above ``cap`` times the mean; float64, summing to 1.

        p_i = min(c w_i, cap / n),  c such that Σ p_i = 1        (1)

    Where so few weights are positive that not all chances can be below the cap, those are equal.

    >>> capped_chances(torch.tensor([100.0, 1.0, 1.0, 2.0]), 2.0).tolist()
    [0.5, 0.125, 0.125, 0.25]
    """
    p = normalised(weights, len(weights), "weights")
    positive, limit = p > 0, cap / len(p)
    if int(positive.sum()) * cap <= len(p):
        return positive.double() / positive.sum()
    full = torch.zeros_like(positive)
    while bool((over := (p > limit) & ~full).any()):  # more rows are full each time, after a few times none
        full |= over
        rest = 1 - limit * int(full.sum())
        p = torch.where(full, limit, p / p.masked_fill(full, 0).sum() * rest)  # (1)
    return p


def drawn_rows(chances: Tensor, n: int, *, generator: torch.Generator) -> Tensor:
    """n row numbers in which row i is met n p_i times on average, rounded down or up, in ascending order.

    What is certain is not drawn: where all n p_i are whole numbers, the generator stays as it is.

    >>> drawn_rows(torch.tensor([0.5, 0.25, 0.25]), 4, generator=torch.Generator()).tolist()
    [0, 0, 1, 2]
    """
    expected = chances.double() * n
    counts = (expected + 1e-9).floor()
    left = n - int(counts.sum())
    if left > 0:
        order = torch.randperm(len(chances), generator=generator, device=generator.device).cpu()
        ends = (expected - counts).clamp_min(0)[order].cumsum(0)
        u = torch.rand(1, generator=generator, device=generator.device, dtype=torch.float64).cpu()
        points = (u + torch.arange(left)) / left
        extra = order[torch.searchsorted(ends / ends[-1], points, right=True)]
        counts = counts + torch.bincount(extra, minlength=len(chances))
    return torch.arange(len(chances)).repeat_interleave(counts.long())


def chances_of(samples: Samples, weights: Tensor | None, cap: float, name: str = "weights") -> Tensor:
    """The chance of each sample; equal ones unless weights are given."""
    if len(samples) == 0:
        return torch.zeros(0, dtype=torch.float64)
    weights = torch.ones(len(samples)) if weights is None else weights
    return capped_chances(normalised(weights, len(samples), name), cap)  # (1)


@dataclass(frozen=True, kw_only=True, eq=False)
class Rows:
    """Training data and, after them, cases; with the chance of each, and how many of both an epoch has."""

    data: Samples
    seeds: Tensor | None
    chances: tuple[Tensor, Tensor]
    counts: tuple[int, int]

    def order(self, generator: torch.Generator) -> Tensor:
        """The rows of one epoch, as they are met."""
        train, cases = (drawn_rows(p, n, generator=generator) for p, n in zip(self.chances, self.counts, strict=True))
        rows = torch.cat([train, cases + len(self.chances[0])])
        return rows[shuffled(len(rows), generator=generator).cpu()]

    def batch(self, rows: Tensor) -> Batch:
        first = len(self.chances[0])
        cases = rows >= first
        x = self.data.x[rows]
        seeds = x[:0] if self.seeds is None else self.seeds[rows[cases] - first]
        return Batch(x=x, y=self.data.labels[rows], cases=cases, seeds=seeds)
