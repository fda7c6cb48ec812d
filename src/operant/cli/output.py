"""What commands print, and the exit codes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NoReturn

import typer

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


def _reason(error: Exception) -> str:
    if isinstance(error, FileNotFoundError) and error.filename:
        return f"there is no {error.filename}"
    return str(error) or type(error).__name__
