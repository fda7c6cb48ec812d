"""What commands print, and the exit codes."""

from __future__ import annotations

import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

import typer

if TYPE_CHECKING:
    from operant.data import Samples
    from operant.model import Classifier

NOT_MET = 1  # the requirement is not met, or the doctor found errors
CANNOT_RUN = 2  # or labels are missing


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
        with suppress(OSError):  # the terminal may be gone
            if self.as_json:
                self.json(error={"what": what, "why": why, "exit_code": code})
            else:
                print_line(why, label=what, colour="bold red" if what == "cannot run" else "yellow", stderr=True)
        raise typer.Exit(code)


def check_model(model: Classifier, labelled: Samples, output: Output) -> None:
    """Print what the doctor finds, and raise an error if it would make every result meaningless."""
    findings = model.doctor(labelled)
    for finding in findings:
        output.warn(str(finding))
    if any(finding.severity == "error" for finding in findings):
        raise ValueError("the doctor found errors that would make every result meaningless; fix them first")


@contextmanager
def exit_on_error(output: Output | None = None, *, resume: str = "") -> Iterator[None]:
    """End the command with one sentence instead of a traceback, with exit code 2, or 128 + n after signal n.

    SIGTERM and SIGHUP are handled like Ctrl-C.

    Args:
        output: where to print the sentence.
        resume: the command that continues after Ctrl-C or missing labels, if there is one.
    """
    from operant.signals import TERMINATION, handling, raise_stopped

    output, begun = output or Output(), False
    with handling(raise_stopped, *TERMINATION):
        try:
            _import_torch(output)
            begun = True
            yield
        except typer.Exit:  # is a RuntimeError
            raise
        except (Exception, KeyboardInterrupt, SystemExit) as error:
            _end(output, error, f". To resume: {resume}" if resume else "", begun=begun)


def _import_torch(output: Output) -> None:
    """Import torch. It takes seconds and cannot be interrupted cleanly: a signal takes effect afterwards."""
    from operant.cli.activities import loading
    from operant.signals import deferred, raise_stopped

    with loading("operant"), deferred() as arrived:
        try:
            import torch  # noqa: F401
        except (ImportError, OSError) as error:
            output.end("cannot run", f"torch cannot be imported ({error}); install it again", CANNOT_RUN)
    if arrived:
        raise_stopped(arrived[0])


def _end(output: Output, error: BaseException, to_resume: str, *, begun: bool) -> NoReturn:
    """Print why the command ends, and end it."""
    from operant.signals import exit_code

    if (stop := _stop_behind(error)) is not None:
        kept = "finished work is kept" if begun else "before any work began"
        kept = kept if to_resume else f"interrupted with {_signal_name(stop)}"
        output.end("stopped", f"{getattr(stop, 'done', kept)}{to_resume}", exit_code(stop))
    from operant.data import LabelsMissing  # needs torch

    if isinstance(error, LabelsMissing):
        output.end("labels needed", f"{error}{to_resume}", CANNOT_RUN)
    output.end("cannot run", sentence_of(error), CANNOT_RUN)


def _stop_behind(error: BaseException | None) -> KeyboardInterrupt | None:
    """The signal that an error came from: closing a terminal that is gone, or half an import, can fail after it."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error


def _signal_name(stop: KeyboardInterrupt) -> str:
    return str(stop) if hasattr(stop, "number") else "Ctrl-C"


def sentence_of(error: BaseException) -> str:
    """An error in one sentence; the traceback of one that nobody expected is written to a file, which is named."""
    from operant.execution.engines import WorkerDied
    from operant.execution.memory import memory_message
    from operant.model.errors import is_out_of_memory

    cause: BaseException | None = error
    while cause is not None and not is_out_of_memory(cause):
        cause = cause.__cause__
    if cause is not None:
        return memory_message(cause)
    if isinstance(error, FileNotFoundError) and error.filename:
        return f"there is no {error.filename}"
    if isinstance(error, (ValueError, OSError, WorkerDied)):
        return str(error) or type(error).__name__
    if isinstance(error, SystemExit):
        return f"the program was ended from within, with exit code {error.code}; remove sys.exit from your code"
    what = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
    return f"{what}. This is a fault of your code or of Operant; {_write_traceback(error)}"


def _write_traceback(error: BaseException) -> str:
    """Where the traceback is; the traceback itself if it cannot be written."""
    text = "".join(traceback.format_exception(error))
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="operant-traceback-", suffix=".txt", delete=False, encoding="utf-8", errors="replace"
        ) as file:
            file.write(text)
    except OSError:
        return f"here is the traceback:\n{text}"
    return f"the traceback is in {file.name}"
