"""Class priors in the field, estimated or declared."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from operant.formatting import percent
from operant.model import Finding
from operant.profile._checks import checked_shares
from operant.profile.explained import Explained


@dataclass(frozen=True, kw_only=True)
class Priors:
    """Class priors in the field, with bootstrap intervals.

    Attributes:
        values: one prior per class; they sum to 1.
        lower, upper: of each class's interval; NaN if they are withheld, and a finding says why.
        labelled: class frequencies in the labelled data.
        check: estimates of the other method (BBSE for MLLS, MLLS for the others).
        findings: reasons to doubt the estimates.
        classes: the name of each class; empty if they have only numbers.
        explained: whether labelled inputs in these shares look to the model like the field; None if not tested.
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
    explained: Explained | None = None

    @property
    def withheld(self) -> bool:
        """Whether there are no intervals, since more than class shares differs."""
        return any(map(math.isnan, (*self.lower, *self.upper)))

    @property
    def weights(self) -> tuple[float, ...]:
        """Prior of each class divided by its frequency in the labelled data."""
        return tuple(v / s for v, s in zip(self.values, self.labelled, strict=True))

    @property
    def interval_words(self) -> str:
        """What kind of intervals there are."""
        return "intervals withheld" if self.withheld else f"{percent(self.confidence, 2)} intervals"

    def __str__(self) -> str:
        lines = [f"Class priors in the field ({self.method}, {self.interval_words}):"]
        rows = zip(self.values, self.lower, self.upper, self.labelled, strict=True)
        names = self.classes or tuple(map(str, range(len(self.values))))
        width = max(3, *map(len, names))
        for name, (v, low, high, s) in zip(names, rows, strict=True):
            interval = f"[{percent(low):>6}, {percent(high):>6}]"
            lines.append(f"  {name:>{width}}  {percent(v):>6}  {interval}   labelled {percent(s):>6}")
        return "\n".join([*lines, *(str(finding) for finding in self.findings)])


def shares_of(priors: Priors | Sequence[float]) -> Tensor:
    """Estimated or declared priors as a float64 tensor ``(classes,)``; raises if they are not valid."""
    return checked_shares(priors.values if isinstance(priors, Priors) else priors)
