"""The seeds of a suite, each once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from operant.suite.shards import LazyRows

COMPARED_ROWS = 4096  # inputs in memory at once while seeds of one id are compared


@dataclass(frozen=True, eq=False)
class SeedPool:
    """The seeds of a suite, each once, sorted by id; their inputs may still be on disk."""

    rows: LazyRows
    label: Tensor
    ids: Tensor
    names: tuple[str, ...] | None = None

    @staticmethod
    def of(rows: LazyRows, label: Tensor, ids: Tensor, names: tuple[str, ...] | None = None) -> SeedPool:
        """The first occurrence of each seed; raises a ValueError if two different inputs have one id."""
        once, inverse = ids.unique(return_inverse=True)
        if torch.equal(once, ids):
            return SeedPool(rows, label, ids, names)
        first = torch.full_like(once, len(ids)).scatter_reduce(0, inverse, torch.arange(len(ids)), "amin")
        again = (first[inverse] != torch.arange(len(ids))).nonzero().flatten()
        for some in again.split(COMPARED_ROWS):
            here, there = rows.take(some).float(), rows.take(first[inverse][some]).float()
            differ = ~torch.isclose(here, there, rtol=0, atol=0, equal_nan=True).flatten(1).all(1)
            if bool(differ.any()):
                raise ValueError(f"two different seeds have the id {int(ids[some][differ][0])}; give each its own id")
        return SeedPool(rows.choose(first), label[first], once, chosen_names(names, first))

    @staticmethod
    def concat(pools: Sequence[SeedPool]) -> SeedPool:
        labels, ids = torch.cat([p.label for p in pools]), torch.cat([p.ids for p in pools])
        names = [name for p in pools for name in p.names or ("",) * len(p.ids)]
        known = tuple(names) if any(p.names is not None for p in pools) else None
        return SeedPool.of(LazyRows.join([p.rows for p in pools]), labels, ids, known)

    def take(self, ids: Tensor) -> Tensor:
        """The input with each of these ids."""
        return self.rows.take(torch.searchsorted(self.ids, ids))

    def only(self, ids: Tensor) -> SeedPool:
        """The seeds with these ids."""
        kept = torch.isin(self.ids, ids).nonzero().flatten()
        return SeedPool(
            LazyRows([self.rows.take(kept)]), self.label[kept], self.ids[kept], chosen_names(self.names, kept)
        )


def chosen_names(names: tuple[str, ...] | None, rows: Tensor) -> tuple[str, ...] | None:
    """The names of these rows, if rows have names."""
    return None if names is None else tuple(names[row] for row in rows.tolist())
