"""Announces work that may take seconds, so that a command, also one that writes to a log file, is seen to be alive.

    with activity("reading pictures", total=len(files), unit="pictures") as work:
        for file in files:
            ...
            work.advance()

Announcing costs next to nothing, and prints nothing unless a display is in use (`showing`): commands use one, and
functions with a ``progress`` option. This module imports nothing heavy, because commands use it before torch is there.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from operant.formatting import duration

if TYPE_CHECKING:
    from rich.console import Console

FIRST_LINES = (2.0, 10.0, 30.0)  # seconds after which a line is printed about an activity that still lasts
LINE_EVERY = 60.0  # seconds between later lines
GAP = 1.5  # fewest seconds between two lines; less than the first mark, so that every activity is named in time
SAME_GAP = 7.0  # fewest seconds between two lines about the same activities; less than between two marks of one
STATUS_AFTER = 0.3  # seconds until a terminal shows an activity; shorter ones would only flicker
TICK = 0.2  # seconds between two looks at the clock


@dataclass(kw_only=True, eq=False)
class Activity:
    """Work that is under way.

    Attributes:
        what: the work in words.
        total, done, unit: how much there is to do, if known, how much is done, and of what.
        first: how much was done when it began.
        note: describes how much is done, in place of the count.
        began: when, by the clock.
        advanced, advances: when something was last done, and how often.
        due: seconds after which the next line about it is printed; 0 prints one at once.
        clock: of the display.
    """

    what: str
    total: int | None = None
    unit: str = ""
    done: int = 0
    first: int = 0
    note: str = ""
    began: float = 0.0
    advanced: float = 0.0
    advances: int = 0
    due: float = FIRST_LINES[0]
    clock: Callable[[], float] = field(default=time.monotonic, repr=False)

    def advance(self, n: int = 1) -> None:
        """Add to what is done."""
        self.reach(self.done + n)

    def reach(self, done: int) -> None:
        """Change how much is done."""
        if done != self.done:
            self.done, self.advanced, self.advances = done, self.clock(), self.advances + 1

    def describe(self, now: float) -> str:
        """What is done, how much of it, for how long, and how long the rest will take at this speed.

        >>> Activity(what="reading", total=400, done=100, unit="pictures").describe(5.0)
        'reading (100 of 400 pictures, 5 s, about 15 s left)'
        """
        spent = now - self.began
        parts = (self.note or self._count(), duration(spent) if spent >= 1 else "", self._time_left(spent))
        inside = ", ".join(part for part in parts if part)
        return f"{self.what} ({inside})" if inside else self.what

    def _count(self) -> str:
        if self.total is None and not self.done:
            return ""
        if self.total is None:
            return f"{self.done} {self.unit.removesuffix('s') if self.done == 1 else self.unit}".rstrip()
        return f"{self.done} of {self.total} {self.unit}".rstrip()

    def _time_left(self, spent: float) -> str:
        """From the mean time per unit until the last advance; counts down until the next is due, then grows again."""
        gained, missing = self.done - self.first, (self.total or 0) - self.done
        if gained <= 0 or missing <= 0 or spent < 1:
            return ""
        until = self.advanced - self.began
        until = until if until > 0 else spent
        step = gained / max(self.advances, 1)
        expected, late = until / gained * missing - (spent - until), spent / (gained + step) * (missing - step)
        return f"about {duration(max(expected, late))} left"  # they are equal when the next advance is due


def describe(running: Sequence[Activity], now: float) -> str:
    """Activities in words, the outermost first."""
    return ": ".join(work.describe(now) for work in running)


def as_json(running: Sequence[Activity], now: float) -> dict[str, Any]:
    """Activities as plain values; the numbers are those of the innermost."""
    last = running[-1]
    names, seconds = ": ".join(work.what for work in running), round(now - last.began, 1)
    return {"activity": names, "done": last.done, "total": last.total, "seconds": seconds}


@contextmanager
def activity(
    what: str,
    total: int | None = None,
    *,
    unit: str = "",
    at_once: bool = False,
    show: bool = False,
) -> Iterator[Activity]:
    """Announce work for the time of the block; inside another activity, both are shown.

    Args:
        what: the work in words.
        total, unit: how much there is to do, if known, and of what; call ``advance`` of the yielded value.
        at_once: show it without waiting; for work during which no other thread can run, such as imports.
        show: show it on the error stream if no display is in use; for ``progress`` options. Worker processes never do.
    """
    work = Activity(what=what, total=total, unit=unit, due=0.0 if at_once else FIRST_LINES[0])
    with _on_stderr() if show else nullcontext():
        watcher = _watcher
        if watcher is None or watcher.thread != threading.get_ident():
            yield work
            return
        watcher.add(work)
        try:
            yield work
        finally:
            watcher.remove(work)


# Displays


class Display(Protocol):
    """Shows activities."""

    def update(self, running: tuple[Activity, ...], now: float) -> None:
        """Called several times per second while there are activities."""

    def clear(self) -> None:
        """Called when there are none, and at the end."""


@dataclass
class Lines:
    """Calls ``write`` when an activity has lasted 2, 10 and 30 seconds, and then every minute."""

    write: Callable[[tuple[Activity, ...], float], None]
    last: float = -math.inf
    named: tuple[Activity, ...] = ()

    def update(self, running: tuple[Activity, ...], now: float) -> None:
        if now - self.last < GAP:  # the last line named all activities that are due by now
            return
        if any(now - work.began >= work.due for work in running):
            for work in running:
                work.due = next_line(now - work.began)
            if now - self.last < SAME_GAP and running == self.named:  # it would repeat the last line
                return
            self.last, self.named = now, running
            self.write(running, now)

    def clear(self) -> None:
        pass


def next_line(seconds: float) -> float:
    """When the next line is due about an activity that has lasted some seconds.

    >>> [next_line(seconds) for seconds in (0, 2, 10.1, 30, 60, 200)]
    [2.0, 10.0, 30.0, 60.0, 120.0, 240.0]
    """
    return next((mark for mark in FIRST_LINES if mark > seconds), (seconds // LINE_EVERY + 1) * LINE_EVERY)


@dataclass
class Status:
    """One line at the bottom of a terminal, which disappears when there is nothing to show."""

    console: Console
    text: str = ""
    live: Any = field(default=None, repr=False)

    def update(self, running: tuple[Activity, ...], now: float) -> None:
        if self.live is None and not any(work.due == 0 or now - work.began >= STATUS_AFTER for work in running):
            return
        self.text = describe(running, now)
        if self.live is None:
            self._start()
        self.live.refresh()

    def _start(self) -> None:
        from rich.live import Live

        self.live = Live(
            console=self.console,
            get_renderable=self._render,
            auto_refresh=False,
            transient=True,
            redirect_stdout=sys.stdout.isatty(),  # lines are printed above the status; files get what they always get
            redirect_stderr=sys.stderr.isatty(),
        )
        self.live.start()

    def _render(self) -> Any:
        from rich.text import Text

        return Text(self.text, style="dim", no_wrap=True, overflow="ellipsis")

    def clear(self) -> None:
        if self.live is not None:
            self.live.stop()
            self.live = None


def display_on(console: Console) -> Display:
    """A status line if the console is a terminal, otherwise lines."""
    return Status(console) if console.is_terminal else Lines(_printing(console))


def _printing(console: Console) -> Callable[[tuple[Activity, ...], float], None]:
    from rich.markup import escape

    return lambda running, now: console.print(escape(describe(running, now)), soft_wrap=True, highlight=False)


# The activities of this process


class Watcher:
    """The activities of one thread, and another thread that shows them: work that reports nothing is shown too."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock, self.thread = clock, threading.get_ident()
        self.running: tuple[Activity, ...] = ()
        self.display: Display | None = None
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._watch, name="operant activities", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def _watch(self) -> None:
        while not self._ended.wait(TICK):
            self.tick()

    def tick(self) -> None:
        """Show the activities as they are now."""
        with self._lock:
            if self.running and self.display and not self._ended.is_set():
                try:
                    self.display.update(self.running, self.clock())
                except (OSError, ValueError):  # the stream is closed, or its disk is full
                    self.display = None

    def add(self, work: Activity) -> None:
        """Begin an activity."""
        with self._lock:
            work.began, work.clock = self.clock(), self.clock
            self.running = (*self.running, work)
        if work.due == 0:
            self.tick()

    def remove(self, work: Activity) -> None:
        """End an activity; the last one leaves nothing on the screen."""
        with self._lock:
            self.running = tuple(other for other in self.running if other is not work)
            if self.display and not self.running:
                self.display.clear()

    def swap(self, display: Display | None) -> Display | None:
        """Use another display; the one before is returned, cleared."""
        with self._lock:
            before, self.display = self.display, display
            if before:
                before.clear()
        return before

    def end(self) -> None:
        """Show nothing any more."""
        self._ended.set()
        self.swap(None)
        self._thread.join(timeout=1)  # it ends at once, unless its stream is blocked


_watcher: Watcher | None = None


def is_shown() -> bool:
    """Whether a display is in use, perhaps one that shows nothing."""
    return _watcher is not None


@contextmanager
def showing(display: Display | None, *, clock: Callable[[], float] = time.monotonic) -> Iterator[Watcher]:
    """Show activities on a display for the time of the block, in place of any other; with None they are not shown."""
    global _watcher
    if _watcher is not None:
        outer = _watcher
        before = outer.swap(display)
        try:
            yield outer
        finally:
            outer.swap(before)
        return
    _watcher = watcher = Watcher(clock)
    watcher.swap(display)
    watcher.start()
    try:
        yield watcher
    finally:
        _watcher = None
        watcher.end()


@contextmanager
def showing_on(console: Console) -> Iterator[None]:
    """Show activities on a console, unless a display is in use already."""
    with nullcontext() if is_shown() else showing(display_on(console)):
        yield


@contextmanager
def _on_stderr() -> Iterator[None]:
    from multiprocessing import parent_process

    if is_shown() or parent_process() is not None:
        yield
        return
    from rich.console import Console

    with showing(display_on(Console(stderr=True))):
        yield
