"""What a test asked of a model in use, and what came of it.

Nothing heavy is imported here: the pytest plug-in reads this in every session.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

MOST = 3  # classes named in a sentence


@dataclass(frozen=True, kw_only=True)
class Check:
    """One `operant.testing.assert_reliable`.

    Attributes:
        test: id of the test that asked; empty outside pytest.
        required: pmi had to be at most this.
        confidence: of the bound.
        estimate: the share of labelled field inputs that the model got wrong.
        upper: pmi is at most this, with ``confidence``.
        failures, labels: how many were wrong, of how many.
        needed: so many labels would probably show that the requirement holds, if the estimate is right; None where it
            is shown already, or where no number would do.
        worst: classes with failures, as name, failures and labels; most failures first.
    """

    test: str = ""
    required: float
    confidence: float
    estimate: float
    upper: float
    failures: int
    labels: int
    needed: int | None = None
    worst: tuple[tuple[str, int, int], ...] = ()

    @property
    def met(self) -> bool:
        return self.upper <= self.required

    @property
    def status(self) -> str:
        """``met``; ``not met``: not even the estimate is small enough; ``not shown``: labels are too few to tell."""
        return "met" if self.met else "not met" if self.estimate >= self.required else "not shown"

    @property
    def advice(self) -> str:
        """What would help; empty where nothing is missing."""
        if self.met:
            return ""
        if self.needed is None:
            return "The estimate itself is too large, and no number of labels will do: improve the model."
        return (
            f"If the estimate is right, about {self.needed} labels would show it, {self.needed - self.labels} more "
            "than there are."
        )

    def __str__(self) -> str:
        told = (
            f"{self.status}: pmi must be at most {100 * self.required:.4g} % with {self.confidence:.10g} confidence. "
            f"The estimate is {100 * self.estimate:.3g} %, the bound {at_most(self.upper)}: {self.failures} of "
            f"{self.labels} labelled field inputs are misclassified."
        )
        where = ", ".join(f"{name} ({k} of {n})" for name, k, n in self.worst[:MOST])
        return " ".join(part for part in (told, self.advice, where and f"Worst classes: {where}.") if part)


def at_most(share: float) -> str:
    """A share that another is at most, in per cent: three digits, rounded up.

    >>> at_most(0.0200001), at_most(0.02), at_most(1.0)
    ('2.01 %', '2 %', '100 %')
    """
    if not share > 0:
        return "0 %"
    unit = 10.0 ** (math.floor(math.log10(share)) - 2)
    return f"{100 * unit * math.ceil(round(share / unit, 6)):.4g} %"


# Who is told ----------------------------------------------------------------------------------------------------------

_listeners: list[Callable[[Check], None]] = []


@contextmanager
def listening(listener: Callable[[Check], None]) -> Iterator[None]:
    """While this lasts, the listener is told of every check."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def tell(check: Check) -> None:
    """Tell everyone who listens."""
    for listener in _listeners:
        listener(check)
