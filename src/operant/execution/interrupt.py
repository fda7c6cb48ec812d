"""Ctrl-C without losing work: the first one lets the work in progress finish, the second stops at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


class Interrupted(KeyboardInterrupt):
    """Somebody asked to stop; what was begun is finished and kept, as ``done`` says."""

    def __init__(self, done: str) -> None:
        super().__init__(f"stopped as asked: {done}. Run again with the same folder to go on")
        self.done = done


@contextmanager
def defer_interrupt() -> Iterator[Callable[[], bool]]:
    """Whether somebody pressed Ctrl-C in the meantime; the second time is not waited for.

    Outside the main thread, or where Ctrl-C is ignored, nothing changes.
    """
    pressed: list[int] = []

    def note(number: int, _frame: object) -> None:
        if pressed:
            raise KeyboardInterrupt
        pressed.append(number)
        with suppress(OSError):
            os.write(2, b"\nStopping as soon as the chunks in work are done; Ctrl-C again stops at once.\n")

    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT) if main else None
    if before is None or before is signal.SIG_IGN:
        yield lambda: False
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(pressed)
    finally:
        signal.signal(signal.SIGINT, before)
