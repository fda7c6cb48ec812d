"""Shows what a command is doing: a status line on a terminal, otherwise lines, or JSON objects with ``--json``."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from operant.activity import Activity, Display


def showing_activities(command: Callable[..., None]) -> Callable[..., None]:
    """The same command; while it runs, everything that takes more than two seconds is shown."""

    @wraps(command)
    def run(**options: Any) -> None:
        from operant.activity import showing

        quiet, json_lines = options.get("quiet", False), options.get("as_json", False)
        stream = sys.stderr if command.__name__ == "study" else sys.stdout  # a study prints the path of its page
        with showing(None if quiet else _display(stream, json_lines=json_lines)):
            command(**options)

    return run


@contextmanager
def loading(what: str) -> Iterator[Activity]:
    """Announce imports. A first import of torch is shown at once: until it is finished, no other thread may run.

    Later imports are part of the same wait, so a log gets another line only if they take long.
    """
    from operant.activity import FIRST_LINES, activity

    first = "torch" not in sys.modules
    with activity(f"{what}: loading", at_once=first) as work:
        work.due = work.due if first else FIRST_LINES[1]
        yield work


def _display(stream: TextIO, *, json_lines: bool) -> Display:
    from operant.activity import Lines, Status, as_json, describe

    if json_lines:
        return Lines(partial(_write, stream, lambda *now: json.dumps(as_json(*now), ensure_ascii=False)))
    if not stream.isatty():
        return Lines(partial(_write, stream, describe))
    from rich.console import Console

    return Status(Console(file=stream, highlight=False))


def _write(
    stream: TextIO,
    text: Callable[[tuple[Activity, ...], float], str],
    running: tuple[Activity, ...],
    now: float,
) -> None:
    stream.write(f"{text(running, now)}\n")  # in one piece, so that no other line gets between
    stream.flush()
