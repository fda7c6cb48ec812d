"""Class priors in the field, estimated or declared."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from operant.formatting import percent
from operant.model import Finding


@dataclass(frozen=True, kw_only=True)
class Priors:
    """Class priors in the field, with bootstrap intervals.

    Attributes:
        values: one prior per class; they sum to 1.
        labelled: class frequencies in the labelled data.
        check: estimates of the other method (BBSE for MLLS, MLLS for the others).
        findings: reasons to doubt the estimates.
        classes: the name of each class; empty if they have only numbers.
    """

    values: tuple[float, ...]
    lower: tuple[float, ...]
    upper: tuple[float, ...]
    confidence: float
    method: str
    labelled: tuple[float, ...]
    check: tuple[float, ...]
    findings: tuple[Finding, ...]
    classes: tuple[str, ...] = ()

    @property
    def weights(self) -> tuple[float, ...]:
        """Prior of each class divided by its frequency in the labelled data."""
        return tuple(v / s for v, s in zip(self.values, self.labelled, strict=True))

    def __str__(self) -> str:
        lines = [f"Class priors in the field ({self.method}, {percent(self.confidence, 2)} intervals):"]
        rows = zip(self.values, self.lower, self.upper, self.labelled, strict=True)
        names = self.classes or tuple(map(str, range(len(self.values))))
        width = max(3, *map(len, names))
        for name, (v, low, high, s) in zip(names, rows, strict=True):
            interval = f"[{percent(low):>6}, {percent(high):>6}]"
            lines.append(f"  {name:>{width}}  {percent(v):>6}  {interval}   labelled {percent(s):>6}")
        return "\n".join([*lines, *(str(finding) for finding in self.findings)])


def shares_of(priors: Priors | Sequence[float]) -> Tensor:
    """Estimated or declared priors as a float64 tensor ``(classes,)``; raises if they are not valid."""
    given = priors.values if isinstance(priors, Priors) else priors
    values = torch.tensor([float(p) for p in given], dtype=torch.float64)
    total = float(values.sum())
    if not (bool((values >= 0).all()) and abs(total - 1) <= 1e-6):
        shown = ", ".join(f"{v:.4g}" for v in values.tolist())
        raise ValueError(f"priors must be 0 or more and sum to 1, got {shown} with the sum {total:.6g}")
    return values / total
