"""How long a run takes: the wall-clock time of all its sessions, by part."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from operant.files import check_regular, read_regular

TIMING = "timing.jsonl"
START, OTHER = "start", "other"  # the parts of everything before the first step, and of whatever is in no other part


class Stopwatch:
    """Splits the time of a session over the parts of a run: every second belongs to exactly one part.

    Times are appended to a file, a line at a time, so that those of several sessions add up and a kill loses only the
    time since the last line. They are not part of a run's digest, and never an error.

    Args:
        started: when the session started, by the clock (default: now).
        clock: in seconds.
    """

    def __init__(self, *, started: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock, self.part = clock, START
        self._mark = clock() if started is None else started
        self._file: Path | None = None
        self._unwritten: list[str] = []

    def write_to(self, file: Path) -> None:
        """Write times to a file from now on, with those so far."""
        if file.exists():
            check_regular(file)  # opening a pipe would wait for its reader
        self._file = file
        self.lap()

    def start_is_over(self) -> None:
        """What is in no part from now on belongs to `OTHER`."""
        self.lap()
        self.part = OTHER

    def lap(self) -> None:
        """Add the time since the last lap to the current part."""
        if seconds := round(self.clock() - self._mark, 3):
            self._mark += seconds  # so that rounding errors do not add up
            self._unwritten.append(json.dumps({self.part: seconds}) + "\n")
        if self._file is not None and self._unwritten:
            with suppress(OSError), open(self._file, "a", encoding="utf-8") as opened:
                opened.write("".join(self._unwritten))
                self._unwritten.clear()

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Add the time of the block to a part; inside the block of another part, to that one."""
        before = self.part
        self.lap()
        self.part = part if before in (START, OTHER) else before
        try:
            yield
        finally:
            self.lap()
            self.part = before


def read_times(file: Path) -> dict[str, float]:
    """Seconds by part, over all sessions; their sum is the wall-clock time of the run."""
    total: dict[str, float] = {}
    with suppress(OSError, ValueError):
        for line in read_regular(file).decode("utf-8", errors="replace").splitlines():
            with suppress(ValueError, TypeError, AttributeError, OverflowError, RecursionError):  # cut off by a kill
                for name, seconds in json.loads(line).items():
                    total[name] = total.get(name, 0.0) + float(seconds)
    return total
