"""Shared by the three moves: p-values of failures, and the suite of a search's cases."""

from __future__ import annotations

import torch
from torch import Tensor

from operant.data import Samples
from operant.generate.engine import Rows, judge
from operant.measure.naturalness import Naturalness
from operant.model import Classifier
from operant.suite import Suite
from operant.validation import check_between

LEVEL = 0.05  # p-value from which a case counts as natural


def p_values(naturalness: Naturalness | None, x: Tensor, failing: Tensor) -> Tensor:
    """The p-value of each failing row; 1 for the others, which would be costly to rate, and for all without one."""
    p = torch.ones(len(x), dtype=torch.float64, device=x.device)
    if naturalness is not None and bool(failing.any()):
        p[failing] = naturalness(x[failing]).to(p)
    return p


class CaseList:
    """The cases that a search has found, with the row of their seed (``origin``) and further columns."""

    def __init__(self, seeds: Samples, *names: str) -> None:
        none = torch.empty(0, dtype=torch.float64)
        origin = torch.empty(0, dtype=torch.int64, device=seeds.x.device)
        self.seeds = seeds
        self.parts: list[Rows] = [{"x": seeds.x[:0], "origin": origin, **dict.fromkeys(names, none)}]

    def add(self, rows: Rows, which: Tensor) -> None:
        self.parts.append({name: rows[name][which] for name in self.parts[0]})

    def suite(self, model: Classifier, *, method: str) -> Suite:
        """All cases after a final pass of the model, in seed order, then in the order they were found."""
        rows = {name: torch.cat([part[name] for part in self.parts]) for name in self.parts[0]}
        order = rows["origin"].argsort(stable=True)
        x, origin = rows.pop("x")[order], rows.pop("origin")[order]
        suite = judge(model, self.seeds, x, origin=origin, method=method)
        return suite.with_columns(**{name: values[order] for name, values in rows.items()})


def check_level(level: float) -> None:
    check_between(0, 1, level=level, advice="0.05 rejects one in twenty genuine inputs")
