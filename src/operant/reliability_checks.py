"""Results of `operant.testing.assert_reliable`, and how other code subscribes to them.

This module imports nothing heavy, because the pytest plug-in loads it in every session.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from operant.formatting import at_least, at_most, percent

MAX_CLASSES_NAMED = 3


@dataclass(frozen=True, kw_only=True)
class Check:
    """The result of one `operant.testing.assert_reliable`.

    Attributes:
        test: id of the calling test; empty outside pytest.
        required: largest pmi that is accepted.
        confidence: of each bound.
        estimate: share of labelled field inputs that the model misclassified.
        lower, upper: lower and upper bound of pmi, each with ``confidence``.
        failures, labels: number of misclassified inputs, number of labelled inputs.
        needed: labels that would probably prove the requirement if the estimate is right; None if it is proved
            already, or if no number of labels would prove it.
        worst: classes with failures as (name, failures, labels), most failures first.
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
        """``met``; ``not met``: pmi is too large, with confidence; ``not shown``: too few labels to decide."""
        return "met" if self.met else "not met" if self.lower > self.required else "not shown"

    @property
    def advice(self) -> str:
        """What to do next; empty if the requirement is met."""
        if self.status == "met":
            return ""
        if self.status == "not met":
            return f"With the same confidence pmi is above {percent(self.required, 4)}: improve the model."
        if self.needed is None:
            return (
                "If the estimate is right, no number of labels would prove the requirement. Improve the model, or "
                "label more to decide."
            )
        return (
            f"If the estimate is right, about {self.needed} labels would prove the requirement: "
            f"{self.needed - self.labels} more than now."
        )

    def __str__(self) -> str:
        result = (
            f"{self.status}: pmi must be at most {percent(self.required, 4)} with {at_least(self.confidence)} "
            f"confidence. The estimate is {percent(self.estimate)}, the bound {at_most(self.upper)}: {self.failures} "
            f"of {self.labels} labelled field inputs are misclassified."
        )
        where = ", ".join(f"{name} ({k} of {n})" for name, k, n in self.worst[:MAX_CLASSES_NAMED])
        return " ".join(part for part in (result, self.advice, where and f"Worst classes: {where}.") if part)


@dataclass(frozen=True, kw_only=True)
class InvalidCheck:
    """An `operant.testing.assert_reliable` in a test (empty outside pytest) that could not be evaluated, and why."""

    test: str = ""
    reason: str


Listener = Callable[[Check | InvalidCheck], None]
_listeners: list[Listener] = []


@contextmanager
def subscribed(listener: Listener) -> Iterator[None]:
    """Call ``listener`` with every check while the context is open."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def publish(check: Check | InvalidCheck) -> None:
    """Pass a check to all listeners."""
    for listener in _listeners:
        listener(check)
