"""What commands print, and the exit codes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

import typer

if TYPE_CHECKING:
    from operant.activity import Activity, Display

NOT_MET = 1  # the requirement is not met, or the doctor found errors
CANNOT_RUN = 2  # or labels are missing
STOPPED = 130  # with Ctrl-C
MODULE_ERRORS = (TypeError, RuntimeError, MemoryError)  # what a user's module may raise besides ValueError and OSError


def print_line(text: str, *, label: str = "", colour: str = "", stderr: bool = False) -> None:
    """Print text without wrapping or markup, after a coloured label if there is one."""
    from rich.console import Console
    from rich.markup import escape

    start = f"[{colour}]{label}[/]: " if label else ""
    Console(stderr=stderr, highlight=False).print(start + escape(text), soft_wrap=True)


@dataclass(frozen=True, kw_only=True)
class Output:
    """Prints sentences for people or, with ``as_json``, one JSON object per line for programs."""

    quiet: bool = False
    as_json: bool = False

    def json(self, **page: object) -> None:
        """Print one JSON object."""
        from rich.console import Console

        from operant.campaign.progress import print_json

        print_json(Console(highlight=False), page)

    def note(self, text: str) -> None:
        """Print information that may be skipped."""
        if self.as_json:
            self.json(note=text)
        elif not self.quiet:
            print_line(text)

    def warn(self, text: str) -> None:
        """Print a warning, even if quiet."""
        if self.as_json:
            self.json(note=text)
        else:
            print_line(text, stderr=True)

    def end(self, what: str, why: str, code: int) -> NoReturn:
        """Print why there is no result and exit."""
        if self.as_json:
            self.json(error={"what": what, "why": why, "exit_code": code})
        else:
            print_line(why, label=what, colour="bold red" if what == "cannot run" else "yellow", stderr=True)
        raise typer.Exit(code)


@contextmanager
def exit_on_error(
    output: Output | None = None, *, also: tuple[type[Exception], ...] = (), resume: str = ""
) -> Iterator[None]:
    """End the command with one sentence instead of a traceback.

    Args:
        output: where to print the sentence.
        also: errors that get a sentence besides ValueError and OSError.
        resume: the command that continues after Ctrl-C or missing labels, if there is one.
    """
    output = output or Output()
    to_resume = f". To resume: {resume}" if resume else ""
    try:
        yield
    except typer.Exit:  # is a RuntimeError
        raise
    except KeyboardInterrupt as stop:
        from operant.execution.interrupt import Interrupted

        kept = "finished work is kept" if resume else "interrupted with Ctrl-C"
        output.end("stopped", (stop.done if isinstance(stop, Interrupted) else kept) + to_resume, STOPPED)
    except Exception as error:
        from operant.data import LabelsMissing

        if isinstance(error, LabelsMissing):
            output.end("labels needed", str(error) + to_resume, CANNOT_RUN)
        if not isinstance(error, (ValueError, OSError, *also)):
            raise
        output.end("cannot run", _reason(error), CANNOT_RUN)


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


def loading(what: str) -> AbstractContextManager[Activity]:
    """Announce imports. A first import of torch is shown at once: until it is finished, no other thread may run."""
    from operant.activity import activity

    return activity(f"{what}: loading", at_once="torch" not in sys.modules)


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


def _reason(error: Exception) -> str:
    if isinstance(error, FileNotFoundError) and error.filename:
        return f"there is no {error.filename}"
    return str(error) or type(error).__name__
