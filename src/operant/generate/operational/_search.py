"""What the three moves share: how natural failures are, and the suite of those a search has met."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from operant.data import Samples
from operant.generate.engine import Rows, judge
from operant.measure.naturalness import Naturalness
from operant.model import Classifier
from operant.suite import Suite

LEVEL = 0.05  # p-value from which a case counts as natural


def rated(naturalness: Naturalness | None, x: Tensor, failing: Tensor) -> Tensor:
    """The p-value of each failing row; 1 for the others, and for all where nothing judges naturalness.

    Rows that do not fail are not looked at: judging one costs more than asking a small network.
    """
    p = torch.ones(len(x), dtype=torch.float64, device=x.device)
    if naturalness is not None and bool(failing.any()):
        p[failing] = naturalness(x[failing]).to(p)
    return p


class Met:
    """The cases that a search has met, with the row of the seed they came from and what else is known of them."""

    def __init__(self, seeds: Samples, *names: str) -> None:
        none = torch.empty(0, dtype=torch.float64)
        origin = torch.empty(0, dtype=torch.int64, device=seeds.x.device)
        self.seeds = seeds
        self.parts: list[Rows] = [{"x": seeds.x[:0], "origin": origin, **dict.fromkeys(names, none)}]

    def add(self, rows: Rows, which: Tensor) -> None:
        self.parts.append({name: rows[name][which] for name in self.parts[0]})

    def suite(self, model: Classifier, *, method: str) -> Suite:
        """All of them after the model's final word, in the order of their seeds and, for one seed, of being met."""
        rows = {name: torch.cat([part[name] for part in self.parts]) for name in self.parts[0]}
        order = rows["origin"].argsort(stable=True)
        x, origin = rows.pop("x")[order], rows.pop("origin")[order]
        suite = judge(model, self.seeds, x, origin=origin, method=method)
        return suite.with_columns(**{name: values[order] for name, values in rows.items()})


def check_search(*, weight: float, enough: int | None, level: float) -> None:
    if not 0 <= weight < math.inf:
        raise ValueError(f"weight must be 0 or more and finite, got {weight}")
    if enough is not None and enough < 1:
        raise ValueError(f"enough must be at least 1 natural failure a seed, or None for no end, got {enough}")
    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1, got {level}; 0.05 rejects one in twenty genuine inputs")
