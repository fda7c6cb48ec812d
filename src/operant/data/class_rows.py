"""Draws rows with a given number of each class."""

from collections.abc import Sequence

import torch
from torch import Tensor

from operant.rng import shuffled


def rows_per_class(labels: Tensor, counts: Sequence[int], *, generator: torch.Generator) -> Tensor:
    """Row numbers in random order within each class, class after class, so many of each.

    No row of a class repeats before all others were used; a class without rows gives none.

    >>> rows_per_class(torch.tensor([0, 1, 1]), [2, 1], generator=torch.Generator().manual_seed(0))[:2]
    tensor([0, 0])
    """
    parts = [torch.empty(0, dtype=torch.int64)]
    for label, count in enumerate(counts):
        members = (labels == label).nonzero().flatten()
        mixed = members[shuffled(len(members), generator)]
        parts.append(mixed.repeat(-(-count // max(1, len(mixed))))[:count])
    return torch.cat(parts)
