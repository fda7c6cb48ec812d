"""Progress events: how far a step is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Event:
    """How much of a step is done.

    Attributes:
        step: name of the step, for instance ``"generate"``; ``"round"`` when a whole round is finished.
        round: number of the round.
        done, total: units of work that are finished, and units in all.
        details: further values by name.
    """

    step: str
    round: int
    done: int
    total: int
    details: Mapping[str, Any] = field(default_factory=dict)


EventHandler = Callable[[Event], None]
"""Called with every progress event."""


def ignore(event: Event) -> None:
    """An `EventHandler` that does nothing."""
