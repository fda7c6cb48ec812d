"""Signals that end a program: Ctrl-C, SIGTERM and SIGHUP.

This module imports nothing heavy, because the command line needs it while torch is being imported.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

TERMINATION = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
ENDING = (signal.SIGINT, *TERMINATION)  # Windows has no SIGHUP


class Stopped(KeyboardInterrupt):
    """SIGTERM or SIGHUP, handled like Ctrl-C."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


def exit_code(stop: BaseException) -> int:
    """The exit code of a program that was stopped: 130 for Ctrl-C, 143 for SIGTERM, 129 for SIGHUP.

    >>> exit_code(KeyboardInterrupt()), exit_code(Stopped(signal.SIGTERM))
    (130, 143)
    """
    return 128 + int(getattr(stop, "number", signal.SIGINT))


def raise_stopped(number: int, _frame: object = None) -> None:
    """A signal handler that raises `KeyboardInterrupt` for Ctrl-C and `Stopped` for the others."""
    raise KeyboardInterrupt if number == signal.SIGINT else Stopped(number)


@contextmanager
def handling(handler: Callable[[int, object], object], *numbers: int) -> Iterator[None]:
    """Handle signals with a function inside the block; ignored signals stay ignored, as nohup wants it.

    Nothing changes outside the main thread, where Python allows no handlers.
    """
    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in numbers} if main else {}
    before = {number: old for number, old in before.items() if old not in (None, signal.SIG_IGN)}
    for number in before:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


@contextmanager
def deferred() -> Iterator[list[int]]:
    """Collect signals inside the block instead of acting on them."""
    arrived: list[int] = []
    with handling(lambda number, _frame: arrived.append(number), *ENDING):
        yield arrived
