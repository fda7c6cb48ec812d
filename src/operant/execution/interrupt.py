"""Ctrl-C without losing work: the first one lets the work in progress finish, the second stops at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


class Interrupted(KeyboardInterrupt):
    """The user pressed Ctrl-C; the work in progress was finished and saved, as ``done`` describes."""

    def __init__(self, done: str) -> None:
        super().__init__(f"interrupted: {done}. Run again with the same folder to resume")
        self.done = done


@contextmanager
def defer_interrupt() -> Iterator[Callable[[], bool]]:
    """Defer the first Ctrl-C; yields a function that returns whether it was pressed.

    A second Ctrl-C raises KeyboardInterrupt at once. Outside the main thread, or where Ctrl-C is ignored, nothing
    changes.
    """
    pressed: list[int] = []

    def on_signal(number: int, _frame: object) -> None:
        if pressed:
            raise KeyboardInterrupt
        pressed.append(number)
        with suppress(OSError):
            os.write(2, b"\nStopping when the chunks in progress are finished; press Ctrl-C again to stop at once.\n")

    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT) if main else None
    if before is None or before is signal.SIG_IGN:
        yield lambda: False
        return
    signal.signal(signal.SIGINT, on_signal)
    try:
        yield lambda: bool(pressed)
    finally:
        signal.signal(signal.SIGINT, before)
