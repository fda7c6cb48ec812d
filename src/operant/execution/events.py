"""Progress events: how far a step is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from operant.activity import Activity, activity

STEADY = ("risk", "generate", "retrain")  # their units take about equally long: the time left can be estimated


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


class StepActivity:
    """An `EventHandler` that announces the step of the latest event as an activity until the step is finished.

    Args:
        title: the step of an event in words; empty if it takes no time.
        count: how much of it is done; empty for steps that cannot tell, which last until the next step.
    """

    def __init__(self, title: Callable[[Event], str], count: Callable[[Event], str]) -> None:
        self.title, self.count = title, count
        self._step, self._open, self._work = ("", 0), ExitStack(), Activity(what="")

    def __call__(self, event: Event) -> None:
        step, title, count = (event.step, event.round), self.title(event), self.count(event)
        if step != self._step or (count and event.done >= event.total):
            self.close()
        if not title or (count and event.done >= event.total):
            return
        if step != self._step:
            self._step, self._work = step, self._open.enter_context(activity(title))
            self._work.first = self._work.done = event.done
        self._work.reach(event.done)
        self._work.note = count
        self._work.total = event.total if event.step in STEADY else None

    def close(self) -> None:
        """End the activity."""
        self._step = ("", 0)
        self._open.close()
