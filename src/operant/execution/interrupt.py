"""Ctrl-C, SIGTERM and SIGHUP without losing work: after the first, work in progress is finished; a second stops it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from operant.signals import ENDING, handling, raise_stopped


class Interrupted(KeyboardInterrupt):
    """A signal arrived; the work in progress was finished and saved, as ``done`` describes."""

    def __init__(self, done: str, number: int = signal.SIGINT) -> None:
        super().__init__(f"interrupted: {done}. Run again with the same folder to resume")
        self.done, self.number = done, number


@contextmanager
def defer_interrupt() -> Iterator[Callable[[], int]]:
    """Defer the first signal; yields a function that returns its number, 0 if there was none.

    A second one raises KeyboardInterrupt at once. Outside the main thread, or where a signal is ignored, nothing
    changes.
    """
    arrived: list[int] = []

    def on_signal(number: int, _frame: object) -> None:
        if arrived:
            raise_stopped(number)
        arrived.append(number)
        again = "; press Ctrl-C again to stop at once" if number == signal.SIGINT else ""
        with suppress(OSError):
            os.write(2, f"\nStopping when the chunks in progress are finished{again}.\n".encode())

    with handling(on_signal, *ENDING):
        yield lambda: arrived[0] if arrived else 0
