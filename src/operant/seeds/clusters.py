"""Diverse choices among many vectors: k-means++ seeding, weighted k-means, and the vector nearest to each centre.

Memory is linear in the number of vectors: no table of all pairs is built.
"""

from collections.abc import Iterator
from math import inf
from typing import NamedTuple

import torch
from torch import Tensor

MAX_PAIRS = 2**22  # pairs of a vector and a centre in memory at once
MAX_STEPS = 30  # of k-means
MIN_GAIN = 1e-3  # k-means ends with the step that lowers its loss by a smaller share than this
ROUNDING = 16  # a squared distance below this many units of rounding is 0


class Seeding(NamedTuple):
    """Chosen rows, and how many of them were drawn at random because all others were equal to a chosen one."""

    rows: Tensor
    at_random: int


def kmeans_seeding(
    h: Tensor,
    n: int,
    *,
    first: int,
    factor: Tensor | None = None,
    weights: Tensor | None = None,
    generator: torch.Generator,
) -> Seeding:
    """n rows, each likely to be far from those before it: k-means++ on vectors g = a ⊗ h that are never computed.

        |g_i - g_j|² = |a_i|² |h_i|² + |a_j|² |h_j|² - 2 (a_i · a_j) (h_i · h_j)        (1)
        P(i is next) ∝ w_i min_j |g_i - g_j|²,  over the rows j chosen so far           (2)

    So a step takes O(N (C + d)) for h ``(N, d)`` and a ``(N, C)``, as does memory. Once no row has a chance, the rest
    is drawn at random.

    Args:
        first: the first row.
        factor: a (default: 1, so that g = h).
        weights: w, 0 or more (default: 1).

    References:
        | k-means++: The Advantages of Careful Seeding (Arthur and Vassilvitskii, 2007)
    """
    a = h.new_ones(len(h), 1) if factor is None else factor
    w = torch.ones(len(h), dtype=torch.float64) if weights is None else weights.double()
    sizes = a.square().sum(1) * h.square().sum(1)
    nearest, rows, at_random = torch.full_like(sizes, inf), [first], 0
    for u in torch.rand(n - 1, generator=generator, device=generator.device, dtype=torch.float64).tolist():
        nearest = torch.minimum(nearest, _apart(a, h, sizes, rows[-1]))
        nearest[rows[-1]] = 0
        chances = w * nearest  # (2)
        if not bool(chances.any()):
            at_random += 1
            chances = torch.ones_like(chances).index_fill_(0, torch.tensor(rows), 0)
        sums = chances.cumsum(0)
        rows.append(int(torch.searchsorted(sums / sums[-1], u, right=True)))
    return Seeding(torch.tensor(rows), at_random)


def _apart(a: Tensor, h: Tensor, sizes: Tensor, row: int) -> Tensor:
    """(1) between all rows and one."""
    both = sizes + sizes[row]
    apart = both - 2 * (a @ a[row]) * (h @ h[row])
    return torch.where(apart > ROUNDING * torch.finfo(h.dtype).eps * both, apart, 0)


def kmeans_centres(h: Tensor, centres: Tensor, *, weights: Tensor) -> Tensor:
    """Centres that lower Σ_i w_i min_c |h_i - c|², by Lloyd's steps from the given ones.

    A centre without weight stays where it is.
    """
    loss = inf
    for _ in range(MAX_STEPS):
        sums = torch.zeros(len(centres), h.shape[1] + 1, dtype=torch.float64)  # of w h, and of w
        now = 0.0
        for part in _blocks(h, centres):
            apart, which = _squared(h[part], centres).min(1)
            w = weights[part].double()
            now += float(w @ apart.double())
            sums.index_add_(0, which, w[:, None] * torch.cat([h[part].double(), torch.ones(len(w), 1)], 1))
        if not now < (1 - MIN_GAIN) * loss:
            break
        loss, mass = now, sums[:, -1:]
        centres = torch.where(mass > 0, sums[:, :-1] / mass.clamp_min(torch.finfo(mass.dtype).tiny), centres).to(h)
    return centres


def nearest_rows(h: Tensor, centres: Tensor) -> Tensor:
    """A different row for each centre: the nearest that no centre before it has."""
    best = torch.full((len(centres),), inf, dtype=h.dtype)
    nearest = torch.zeros(len(centres), dtype=torch.int64)
    for part in _blocks(h, centres):
        apart, rows = _squared(h[part], centres).min(0)
        nearest = torch.where(apart < best, rows + part.start, nearest)
        best = torch.minimum(best, apart)
    taken = torch.zeros(len(h), dtype=torch.bool)
    for k, row in enumerate(nearest.tolist()):
        if taken[row]:
            nearest[k] = row = int(_squared(h, centres[k : k + 1])[:, 0].masked_fill(taken, inf).argmin())
        taken[row] = True
    return nearest


def _blocks(h: Tensor, centres: Tensor) -> Iterator[slice]:
    """Rows to compare with all centres at once."""
    step = max(1, MAX_PAIRS // len(centres))
    return (slice(start, start + step) for start in range(0, len(h), step))


def _squared(h: Tensor, centres: Tensor) -> Tensor:
    """Squared distances between rows and centres."""
    sizes = h.square().sum(1)[:, None] + centres.square().sum(1)
    return torch.addmm(sizes, h, centres.T, alpha=-2).clamp_min_(0)
