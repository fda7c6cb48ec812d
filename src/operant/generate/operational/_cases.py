"""Shared by the moves: p-values of failures, and their level."""

from __future__ import annotations

import torch
from torch import Tensor

from operant.measure.naturalness import Naturalness
from operant.validation import check_between

LEVEL = 0.05  # p-value from which a case counts as natural


def p_values(naturalness: Naturalness | None, x: Tensor, failing: Tensor) -> Tensor:
    """The p-value of each failing row; 1 for the others, which would be costly to rate, and for all without one."""
    p = torch.ones(len(x), dtype=torch.float64, device=x.device)
    if naturalness is not None and bool(failing.any()):
        p[failing] = naturalness(x[failing]).to(p)
    return p


def check_level(level: float) -> None:
    check_between(0, 1, level=level, advice="0.05 rejects one in twenty genuine inputs")
