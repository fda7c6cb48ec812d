"""What a test asked of a model in use, and what came of it.

Nothing heavy is imported here: the pytest plug-in reads this in every session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from operant.formatting import at_most, percent

MOST = 3  # classes named in a sentence


@dataclass(frozen=True, kw_only=True)
class Check:
    """One `operant.testing.assert_reliable`.

    Attributes:
        test: id of the test that asked; empty outside pytest.
        required: pmi had to be at most this.
        confidence: of each bound.
        estimate: the share of labelled field inputs that the model got wrong.
        lower: pmi is at least this, with ``confidence``.
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
    lower: float = 0.0
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
        """``met``; ``not met``: pmi is too large, with confidence; ``not shown``: labels are too few to tell."""
        return "met" if self.met else "not met" if self.lower > self.required else "not shown"

    @property
    def advice(self) -> str:
        """What would help; empty where nothing is missing."""
        if self.status == "met":
            return ""
        if self.status == "not met":
            return f"With the same confidence pmi is above {percent(self.required, 4)}: improve the model."
        if self.needed is None:
            return (
                "If the estimate is right, no number of labels would show it, and the model must be improved; labels "
                "are too few to say whether it is: more would tell."
            )
        return (
            f"If the estimate is right, about {self.needed} labels would show it, {self.needed - self.labels} more "
            "than there are."
        )

    def __str__(self) -> str:
        told = (
            f"{self.status}: pmi must be at most {percent(self.required, 4)} with {self.confidence:.10g} confidence. "
            f"The estimate is {percent(self.estimate)}, the bound {at_most(self.upper)}: {self.failures} of "
            f"{self.labels} labelled field inputs are misclassified."
        )
        where = ", ".join(f"{name} ({k} of {n})" for name, k, n in self.worst[:MOST])
        return " ".join(part for part in (told, self.advice, where and f"Worst classes: {where}.") if part)


@dataclass(frozen=True, kw_only=True)
class Refused:
    """An `operant.testing.assert_reliable` that could not be answered.

    Attributes:
        test: id of the test that asked; empty outside pytest.
        why: what must hold, and did not.
    """

    test: str = ""
    why: str


# Who is told ----------------------------------------------------------------------------------------------------------

Listener = Callable[[Check | Refused], None]
_listeners: list[Listener] = []


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """While this lasts, the listener is told of every check."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def tell(check: Check | Refused) -> None:
    """Tell everyone who listens."""
    for listener in _listeners:
        listener(check)
