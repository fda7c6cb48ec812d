"""What commands print, and the exit codes."""

from __future__ import annotations

import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
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


def check_model(model: Classifier, labelled: Samples, output: Output, *, resumed: bool = False) -> None:
    """Print what the doctor finds, and raise an error if it would make every result meaningless.

    A resumed run has the same model and data, and only counts the warnings that were printed when it began.
    """
    findings = model.doctor(labelled)
    if resumed and findings and all(finding.severity == "warning" for finding in findings):
        n = "1 warning" if len(findings) == 1 else f"{len(findings)} warnings"
        output.note(f"The doctor has {n}, as when this run began; `operant doctor` prints them.")
        return
    for finding in findings:
        output.warn(str(finding))
    if any(finding.severity == "error" for finding in findings):
        raise ValueError("the doctor found errors that would make every result meaningless; fix them first")


@contextmanager
def exit_on_error(
    output: Output | None = None, *, resume: str = "", kept: Callable[[], bool] = lambda: True
) -> Iterator[None]:
    """End the command with one sentence instead of a traceback, with exit code 2, or 128 + n after signal n.

    SIGTERM and SIGHUP are handled like Ctrl-C.

    Args:
        output: where to print the sentence.
        resume: the command that continues after Ctrl-C or missing labels, if there is one.
        kept: whether it would continue from something, rather than from the beginning.
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
            _end(output, error, resume, kept if begun else None)


def keeps_work(folder: Path) -> bool:
    """Whether a run that is resumed from its folder continues from something."""
    from operant.execution.run_folder import has_finished_work  # needs torch

    return has_finished_work(folder)


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


def _end(output: Output, error: BaseException, resume: str, kept: Callable[[], bool] | None) -> NoReturn:
    """Print why the command ends, and end it; ``kept`` is None before it has begun."""
    from operant.signals import exit_code

    to_resume = f". To resume: {resume}" if resume else ""
    if (stop := _stop_behind(error)) is not None:
        if hasattr(stop, "done"):
            why = f"{stop.done}{to_resume}"
        elif not resume:
            why = f"interrupted with {_signal_name(stop)}"
        elif kept is None:
            why = f"before any work began{to_resume}"
        elif kept():
            why = f"finished work is kept{to_resume}"
        else:
            why = f"nothing was finished yet. To start again: {resume}"
        output.end("stopped", why, exit_code(stop))
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
