"""The commands of a campaign: `operant init` writes an example configuration, `operant run` runs it."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.markup import escape

from operant.campaign.build import CampaignJob, build
from operant.campaign.config import load_config
from operant.campaign.init import NAME, Found, write_example
from operant.campaign.progress import name_of_step, print_json, result_json, seconds_of, show_progress, told_times
from operant.campaign.result import CampaignResult
from operant.data import LabelsMissing
from operant.execution.events import Event
from operant.execution.interrupt import Interrupted
from operant.execution.run_folder import RunFolder
from operant.networks.weights import conversion
from operant.report import write_report

NOT_MET = 1
CANNOT_RUN = 2
STOPPED = 130


def add_commands(app: typer.Typer) -> None:
    """Give an app the commands ``run`` and ``init``."""
    app.command("init")(init)
    app.command("run")(run)


# init


def init(
    folder: Annotated[Path, typer.Argument(help="folder that holds your model and data")] = Path(),
) -> None:
    """Look at the files of a folder and write an example operant.toml there; one that is there already is kept."""
    voice = Voice()
    try:
        path, found = write_example(folder)
    except (ValueError, OSError) as error:
        voice.end("cannot run", str(error), CANNOT_RUN)
    voice.note(f"wrote {path}")
    voice.note(_next_steps(path, found))


def _next_steps(path: Path, found: Found) -> str:
    """What was found, and what is left to do."""
    shown = ("model", "data", "labels")
    lines = [f"  [{table}] {key} = {value}" for (table, key), value in found.values.items() if table in shown]
    lines += [f"  {key}: not found, fill it in" for key in found.missing]
    if found.pickled:
        lines.append(
            f"  [model] weights: {found.pickled[0]} found, which must be converted, with your network as module:"
        )
        lines.append(textwrap.indent(conversion(found.pickled[0]), "    "))
    lines.append(f"Look through {path}, above all [requirement] pmi, which is yours to decide. Then:")
    return "\n".join([*lines, f"  operant run {path}"])


# run


def run(
    config: Annotated[Path, typer.Argument(help="the configuration; `operant init` writes one")] = Path(NAME),
    quiet: Annotated[bool, typer.Option("--quiet", help="say nothing before the result")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="one JSON object a line: notes and events, then the result or what is wrong")
    ] = False,
    workers: Annotated[int | None, typer.Option(help="processes; in place of the configuration's", min=1)] = None,
) -> None:
    """Find operational failures, retrain with them and assess, until the requirement is met; or go on with it.

    Exit code 0: the requirement is met with confidence; 1: it is not; 2: labels are missing, or it could not run; 130:
    stopped with Ctrl-C. The same command goes on where it stopped.
    """
    voice, again = Voice(quiet=quiet, as_json=as_json), f"To go on: operant run {config}"
    try:
        ready = build(load_config(config), workers=workers)
        for note in ready.notes:
            voice.note(note)
        _see_the_doctor(ready, voice)
        delivered = _run(ready, voice)
        voice.result(delivered, _places(ready.folder, voice), seconds_of(RunFolder(ready.folder).times()))
    except LabelsMissing as missing:
        voice.end("labels needed", f"{missing}. {again}", CANNOT_RUN)
    except KeyboardInterrupt as stop:
        done = stop.done if isinstance(stop, Interrupted) else "what was finished is kept"
        voice.end("stopped", f"{done}. {again}", STOPPED)
    except (ValueError, TypeError, OSError, RuntimeError, MemoryError) as error:  # the user's module may raise any
        voice.end("cannot run", str(error) or type(error).__name__, CANNOT_RUN)
    if not delivered.met:
        raise typer.Exit(NOT_MET)


def _places(folder: Path, voice: Voice) -> dict[str, Path]:
    """Where what was delivered is; a report that cannot be written does not change how the campaign ended."""
    places = {"model": folder / "model.safetensors", "suite": folder / "cases"}
    try:
        places["report"] = write_report(folder)
    except (ValueError, OSError) as error:
        voice.warn(f"the report could not be written: {error}. To try again: operant report {folder}")
    return {name: place for name, place in places.items() if place.exists()}


def _see_the_doctor(ready: CampaignJob, voice: Voice) -> None:
    """Refuse what would make every result meaningless, and tell what could."""
    findings = ready.model.doctor(ready.clean)
    for finding in findings:
        voice.warn(str(finding))
    if any(finding.severity == "error" for finding in findings):
        raise ValueError("the doctor found errors that would make every result meaningless; mend them first")


def _run(ready: CampaignJob, voice: Voice) -> CampaignResult:
    """Run the campaign; where labels are missing, say how far the round is, and how many more there may be."""
    last: list[Event] = []
    with show_progress(voice.out, quiet=voice.quiet, as_json=voice.as_json) as watch:

        def seen(event: Event) -> None:
            last[:] = [event]
            watch(event)

        try:
            return ready.run(watch=seen)
        except LabelsMissing as missing:
            options, now = ready.campaign, last[0] if last else None
            step = f"{name_of_step(now.step)}: {now.done} of at most {now.total} labels are there. " if now else ""
            raise LabelsMissing(
                f"{missing}. {step[:1].upper()}{step[1:]}Labels are asked for {options.label_batch} at a time, until "
                f"they suffice, and {options.labels} in all rounds at most ([budget] label_batch and labels)"
            ) from None


# What is told


@dataclass(frozen=True, kw_only=True)
class Voice:
    """Tells people what happens, in lines; or programs, in one JSON object a line."""

    quiet: bool = False
    as_json: bool = False

    @property
    def out(self) -> Console:
        return Console(highlight=False)

    def note(self, text: str) -> None:
        """Something that people may want to know."""
        if self.as_json:
            print_json(self.out, {"note": text})
        elif not self.quiet:
            self.out.print(escape(text), soft_wrap=True)

    def warn(self, text: str) -> None:
        """Something that people must know."""
        if self.as_json:
            self.note(text)
        else:
            Console(stderr=True, highlight=False).print(escape(text), soft_wrap=True)

    def end(self, what: str, why: str, code: int) -> NoReturn:
        """Tell in one sentence why there is no result, without a traceback."""
        if self.as_json:
            print_json(self.out, {"error": {"what": what, "why": why, "exit_code": code}})
        else:
            colour = "bold red" if what == "cannot run" else "yellow"
            Console(stderr=True, highlight=False).print(f"[{colour}]{what}:[/] {escape(why)}", soft_wrap=True)
        raise typer.Exit(code)

    def result(self, delivered: CampaignResult, places: dict[str, Path], seconds: dict[str, float]) -> None:
        """What the campaign has come to, where it is, and how long it took."""
        if self.as_json:
            more = {name: str(place) for name, place in places.items()}
            print_json(self.out, result_json(delivered, **more, seconds=seconds))
            return
        already = delivered.met and len(delivered.rounds) == 1
        colour, word = ("green", "already met" if already else "met") if delivered.met else ("red", "not met")
        self.out.print(f"[{colour}]{word}[/]: {escape(str(delivered))}", soft_wrap=True)
        told = ["The model was good enough as it came: nothing was searched or retrained."] if already else []
        told += [f"{name}: {place}" for name, place in places.items()]
        told += [f"time: {told_times(seconds)}"] if seconds else []
        self.out.print(escape("\n".join(told)), soft_wrap=True)
