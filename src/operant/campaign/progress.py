"""The progress of a campaign: a bar on a terminal, plain lines elsewhere, or one JSON object per event."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from operant.activity import STATUS_AFTER, Activity, Lines, describe, is_shown, showing, showing_on
from operant.activity import as_json as activity_json
from operant.campaign.assessing import SequentialAssessment
from operant.campaign.records import CampaignResult, Round
from operant.execution.events import STEADY, Event, EventHandler, StepActivity, ignore
from operant.execution.timing import OTHER, START
from operant.formatting import duration

STEPS = {
    "profile": "learning the profile of the field",
    "judge": "judging the moves",
    "risk": "drawing cases for the risk map",
    "generate": "searching for failures",
    "retrain": "retraining",
    "assess": "assessing",
}
COUNTS = {
    "risk": "chunk {done} of {total}",
    "generate": "chunk {done} of {total}",
    "retrain": "{done} of at most {total} epochs",
    "assess": "{done} of at most {total} labels",
}
SHOWN_SECONDS = 0.5  # of a part; shorter ones are left out
PARTS = {
    START: "starting",
    "conditions": "estimating conditions",
    "profile": STEPS["profile"],
    "naturalness": "learning naturalness",
    **STEPS,
    "observers": "gathering facts for the report",
    "report": "writing the report",
    OTHER: "other work",
}  # of the time of a run
PART_OF_FILE = {
    "info": START,
    "field": "profile",
    "drift": "profile",
    "teaching": "risk",
    "wider": "risk",
    "judging": "risk",
    "seeds": "generate",
    "shares": "generate",
    "suite": "generate",
    "cases": "generate",
    "retraining": "retrain",
    "budget": "assess",
    "labels": "assess",
    "predictions": "assess",
}  # which part the time of a file belongs to, if it is not called like the part


@contextmanager
def show_progress(console: Console, *, quiet: bool = False, as_json: bool = False) -> Iterator[EventHandler]:
    """An ``on_event`` for a campaign, to use while it runs; activities between its events are shown too.

    Args:
        console: where to print.
        quiet: print nothing.
        as_json: print one JSON object per line, for programs.
    """
    if quiet and not as_json:
        with showing(None):
            yield ignore
    elif console.is_terminal and not as_json:
        with _progress(console) as progress, showing(bar := ProgressBar(progress=progress)):
            yield bar
    else:
        with _showing_steps(console, as_json=as_json) as announce:
            lines = ProgressLines(console=console)

            def show(event: Event) -> None:
                print_json(console, event_json(event)) if as_json else lines(event)
                announce(event)

            yield show


@contextmanager
def _showing_steps(console: Console, *, as_json: bool) -> Iterator[EventHandler]:
    """Further lines about a step that lasts, by time."""
    display = Lines(lambda running, now: print_json(console, activity_json(running, now)))
    with nullcontext() if is_shown() else showing(display) if as_json else showing_on(console):
        announce = StepActivity(lambda e: step_title(e) if e.step in STEPS else "", _count)
        try:
            yield announce
        finally:
            announce.close()


# For people


@dataclass(kw_only=True)
class ProgressState:
    """The current step, when it began and with how much done, and the last assessment."""

    clock: Callable[[], float] = time.monotonic
    step: tuple[str, int] = ("", 0)
    began: float = 0.0
    first: int = 0
    assessment: SequentialAssessment | None = None

    def update(self, event: Event) -> bool:
        """Take in an event; True if it is the first of its step."""
        new = (event.step, event.round) != self.step
        if new:
            self.step, self.began, self.first = (event.step, event.round), self.clock(), event.done
        self.assessment = event.details.get("assessment", self.assessment)
        return new

    def text(self, event: Event, *, assessment: bool = True) -> str:
        """How much is done, and what to print beside it, with the last assessment if wanted."""
        details = event.details
        failures = f"{details['failures']} failures so far" if "failures" in details else ""
        smaller = f"little memory, batches of {details['batch_size']} rows" if "batch_size" in details else ""
        known = str(self.assessment) if assessment and self.assessment else ""
        return ", ".join(part for part in (_count(event), failures, smaller, self.time_left(event), known) if part)

    def time_left(self, event: Event) -> str:
        """How long the rest of the step will take at the present speed."""
        gained, missing = event.done - self.first, event.total - event.done
        if gained <= 0 or missing <= 0 or event.step not in STEADY:
            return ""
        return f"about {duration((self.clock() - self.began) / gained * missing)} left"


@dataclass(kw_only=True)
class ProgressLines:
    """Prints a line per chunk, retraining, assessment and round; an assessment is repeated only when it is new."""

    console: Console
    state: ProgressState = field(default_factory=ProgressState)
    printed: SequentialAssessment | None = None

    def __call__(self, event: Event) -> None:
        new = self.state.update(event)
        for line in permanent_lines(event):
            self._print(line)
            if event.step == "round":
                self.printed = self.state.assessment
        if event.step == "generate" or (new and event.step in STEPS):
            text = self.state.text(event, assessment=self.state.assessment != self.printed)
            self.printed = self.state.assessment
            self._print(step_title(event) + f": {text}" * bool(text))

    def _print(self, line: str) -> None:
        self.console.print(escape(line), soft_wrap=True)


@dataclass(kw_only=True)
class ProgressBar:
    """One bar for the current step, below the lines for finished rounds."""

    progress: Progress
    state: ProgressState = field(default_factory=ProgressState)
    task: TaskID | None = None
    lock: Lock = field(default_factory=Lock, repr=False)  # activities are shown by another thread

    def __call__(self, event: Event) -> None:
        with self.lock:
            self._show(event)

    def _show(self, event: Event) -> None:
        if self.state.update(event):
            if self.task is not None:
                self.progress.remove_task(self.task)
            self.task = self._add_task(step_title(event)) if event.step in STEPS else None
        for line in permanent_lines(event):
            self.progress.console.print(escape(line), soft_wrap=True)
        if self.task is not None:
            total = event.total if event.step in COUNTS else None  # other steps do not know how far they are
            text = escape(self.state.text(event))
            self.progress.update(self.task, completed=event.done if total else 0, total=total, text=text)

    def update(self, running: tuple[Activity, ...], now: float) -> None:
        """Show what is done within the step, or before the first one."""
        if any(now - work.began >= STATUS_AFTER for work in running):
            with self.lock:
                if self.task is None:
                    self.task = self._add_task("")
                self.progress.update(self.task, activity=escape(describe(running, now)))

    def clear(self) -> None:
        """Show the step alone."""
        with self.lock:
            if self.task is not None:
                self.progress.update(self.task, activity="")

    def _add_task(self, title: str) -> TaskID:
        return self.progress.add_task(title, total=None, text="", activity="")


def permanent_lines(event: Event) -> list[str]:
    """Lines to keep on the screen: what is estimated of a new field, finished rounds, decisions, tests and findings."""
    if event.step == "round":
        return [*event.details.get("field", ()), str(event.details["record"])]
    return [str(line) for name in ("decisions", "tests", "findings") for line in event.details.get(name, ())]


def step_title(event: Event) -> str:
    """The step of an event in words.

    >>> step_title(Event(step="generate", round=2, done=0, total=3))
    'round 2, searching for failures'
    """
    return f"round {event.round}, {STEPS.get(event.step, event.step)}"


def _count(event: Event) -> str:
    if "no_labels" in event.details:
        return f"no labels are bought, because {event.details['no_labels']}"
    return COUNTS.get(event.step, "").format(done=event.done, total=event.total)


def _progress(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=30), TimeElapsedColumn())
    texts = (TextColumn("{task.fields[text]}"), TextColumn("[dim]{task.fields[activity]}[/]"))
    return Progress(*columns, *texts, console=console, transient=True)


def seconds_by_part(times: Mapping[str, float]) -> dict[str, float]:
    """Seconds of each of `PARTS` over all rounds, from `RunFolder.times`, and their sum as ``total``.

    >>> seconds_by_part({"round-001/suite": 9.5, "round-002/suite": 0.5, "conditions": 3.0})
    {'conditions': 3.0, 'generate': 10.0, 'total': 13.0}
    """
    found: dict[str, float] = {}
    for name, seconds in times.items():
        file = re.split(r"[.-]", name.rpartition("/")[2])[0]
        part = PART_OF_FILE.get(file, file if file in PARTS else OTHER)
        found[part] = found.get(part, 0.0) + seconds
    ordered = {part: found[part] for part in PARTS if part in found}
    return ordered | ({"total": sum(found.values())} if found else {})


def describe_times(seconds: Mapping[str, float]) -> str:
    """The same in words; parts below half a second are left out.

    >>> describe_times({"conditions": 300.0, "generate": 600.0, "other": 0.1, "total": 900.1})
    '15 min: estimating conditions 5 min, searching for failures 10 min'
    """
    parts = [f"{PARTS[part]} {duration(s)}" for part, s in seconds.items() if part in PARTS and s >= SHOWN_SECONDS]
    return f"{duration(seconds['total'])}{': ' if parts else ''}{', '.join(parts)}"


# For programs


def event_json(event: Event) -> dict[str, Any]:
    """An event as plain values."""
    details = {name: v if isinstance(v, int | float | str | None) else _plain(v) for name, v in event.details.items()}
    return {"step": event.step, "round": event.round, "done": event.done, "total": event.total, "details": details}


def _plain(value: Any) -> Any:
    return [str(item) for item in value] if isinstance(value, tuple | list) else str(value)


def result_json(result: CampaignResult, **more: Any) -> dict[str, Any]:
    """The result of a campaign as plain values."""
    last = result.assessment
    page = {"met": result.met, "reason": result.reason, "pmi": last.pmi, "upper": last.upper}
    page |= {"confidence": last.confidence, "labels": result.labels, "rounds": [_round(r) for r in result.rounds]}
    return {"result": page | more}


def _round(r: Round) -> dict[str, Any]:
    page = {name: getattr(r, name) for name in ("number", "arrived", "attempted", "found", "operational", "by_move")}
    page |= {"chosen": r.chosen, "cases": r.cases, "clean": r.clean, "changed": r.changed}
    page |= {"tests": [str(test) for test in r.tests]} if r.tests else {}
    page |= {"drift": str(r.drift) if r.drift else "", "decisions": [str(decision) for decision in r.decisions]}
    if a := r.assessment:
        page |= {"pmi": a.pmi, "upper": a.upper, "labels": a.labels, "failures": a.failures}
    return page


def print_json(console: Console, page: dict[str, Any]) -> None:
    """One line, neither wrapped nor coloured."""
    console.out(json.dumps(_finite(page), ensure_ascii=False, allow_nan=False), highlight=False)


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: they become null."""
    if isinstance(value, dict):
        return {name: _finite(v) for name, v in value.items()}
    if isinstance(value, list):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
