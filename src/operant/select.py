"""Which cases to retrain with: one value per case and a number in, that many row numbers out.

Every function here can stand for every other: ``(values, n, *, generator)`` gives n different rows, int64, in no
particular order. Equal values are taken in random order, since a first-order loss is often exactly 0.

>>> fol = torch.tensor([0.0, 0.0, 0.1, 0.2, 5.0, 9.0])
>>> sorted(be_st(fol, 4, generator=torch.Generator().manual_seed(0)).tolist())
[0, 1, 4, 5]
"""

from __future__ import annotations

import torch
from torch import Tensor

SECTIONS = {"range": 10, "rank": 1000}  # unless told; the paper names no number, its released program has 1000
HUGE = 1e300  # beyond this a range would overflow


def km_st(values: Tensor, n: int, *, k: int | None = None, by: str = "range", generator: torch.Generator) -> Tensor:
    """K-multisection: the same number of cases at random from each of k sections of the values.

        R_i = [min + (i - 1) w, min + i w),  w = (max - min) / k,  i = 1 … k        (1)
        n / k at random from each R_i                                               (2)

    The largest value belongs to the last section. What a section lacks is spread evenly over those that have more, and
    what cannot be spread evenly goes to sections drawn at random; the paper says nothing about either.

    Args:
        values: one per case, the first-order loss in the paper.
        n: how many cases to choose.
        k: how many sections, at most n; 10 unless given, or n if that is fewer.
        by: ``"range"`` for (1), or ``"rank"`` for what the released program does: the ranking is cut into k blocks of
            equal count (1000 unless given, at most as many as there are cases), and blocks drawn at random are taken
            whole until there are n cases. The last one is cut, where that program would stop short of n.

    References:
        | RobOT: Robustness-Oriented Testing for Deep Learning Systems (Wang et al., 2021), Algorithm 2
        | https://arxiv.org/abs/2102.05913
    """
    values = _checked(values, n)
    if by not in SECTIONS:
        raise ValueError(f'by must be "range" or "rank", got {by!r}')
    limit, meaning = (n, "cases to choose") if by == "range" else (len(values), "cases there are")
    k = min(SECTIONS[by], limit) if k is None else k
    if not 1 <= k <= limit:
        raise ValueError(f"k must be from 1 to the number of {meaning} ({limit}), got {k}")
    return _spread(values, n, k, generator) if by == "range" else _blocks(values, n, k, generator)


def be_st(values: Tensor, n: int, *, generator: torch.Generator) -> Tensor:
    """Bi-end: half of the cases from the smallest values, half from the largest; of an odd n, one more of the largest.

    Args:
        values: one per case, the first-order loss in the paper.
        n: how many cases to choose.

    References:
        | RobOT: Robustness-Oriented Testing for Deep Learning Systems (Wang et al., 2021), Section III-D
        | https://arxiv.org/abs/2102.05913
    """
    order = _ranked(_checked(values, n), generator)
    small = n // 2
    return torch.cat([order[:small], order[len(order) - (n - small) :]])


def gini(values: Tensor, n: int, *, generator: torch.Generator) -> Tensor:
    """DeepGini: the cases of the largest values, largest first.

    Args:
        values: one per case, the Gini impurity 1 - Σ p² of the model's probabilities in the paper.
        n: how many cases to choose.

    References:
        | DeepGini: Prioritizing Massive Tests to Enhance the Robustness of Deep Neural Networks (Feng et al., 2020)
        | https://arxiv.org/abs/1903.00661
    """
    return _ranked(_checked(values, n), generator).flip(0)[:n]


def random(values: Tensor, n: int, *, generator: torch.Generator) -> Tensor:
    """Any n cases, whatever their values: what the others must beat."""
    return _shuffled(len(_checked(values, n)), generator)[:n]


def _spread(values: Tensor, n: int, k: int, generator: torch.Generator) -> Tensor:
    low, width = values.amin(), values.amax() - values.amin()
    section = ((values - low) * k / width if width > 0 else values - low).long().clamp_max(k - 1)  # (1)
    counts = section.bincount(minlength=k)
    quota = _quotas(counts, n, generator)  # (2)
    order = _ranked(section, generator)  # section by section, in random order within each
    place = torch.arange(len(order)) - (counts.cumsum(0) - counts)[section[order]]
    return order[place < quota[section[order]]]


def _quotas(counts: Tensor, n: int, generator: torch.Generator) -> Tensor:
    """How many to take from sections that hold ``counts``, as evenly as they allow: n in all."""
    quota = torch.zeros_like(counts)
    while left := n - int(quota.sum()):
        open_ = (quota < counts).nonzero().flatten()
        if left < len(open_):
            quota[open_[_shuffled(len(open_), generator)[:left]]] += 1
        else:
            quota[open_] = torch.minimum(quota[open_] + left // len(open_), counts[open_])
    return quota


def _blocks(values: Tensor, n: int, k: int, generator: torch.Generator) -> Tensor:
    blocks = _ranked(values, generator).tensor_split(k)
    drawn = [blocks[i] for i in _shuffled(k, generator).tolist()]
    return torch.cat([block[_shuffled(len(block), generator)] for block in drawn])[:n]


def _ranked(values: Tensor, generator: torch.Generator) -> Tensor:
    """Row numbers from the smallest value to the largest; equal values in random order."""
    order = _shuffled(len(values), generator)
    return order[values[order].argsort(stable=True)]


def _shuffled(n: int, generator: torch.Generator) -> Tensor:
    return torch.randperm(n, generator=generator, device=generator.device).cpu()


def _checked(values: Tensor, n: int) -> Tensor:
    """The values as float64 on the CPU, if n of them can be chosen."""
    if not isinstance(values, Tensor) or values.ndim != 1 or values.is_complex():
        got = f"shape {tuple(values.shape)}" if isinstance(values, Tensor) else f"a {type(values).__name__}"
        raise ValueError(f"values must be a tensor (N,) with one number per case, got {got}")
    if len(values) == 0:
        raise ValueError("there are no cases to choose from; give at least one value")
    values = values.detach().cpu().double()
    if bad := int((~(values.abs() < HUGE)).sum()):
        raise ValueError(f"values must be finite, got NaN or infinity for {bad} of {len(values)} cases; leave them out")
    if not 1 <= n <= len(values):
        raise ValueError(f"n must be from 1 to the number of cases ({len(values)}), got {n}; choose fewer or make more")
    return values
