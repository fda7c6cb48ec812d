"""What a campaign shows while it runs: a bar on a terminal, plain lines elsewhere, or one JSON object an event."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from operant.campaign.result import CampaignResult, Round
from operant.execution.events import Event, EventHandler
from operant.formatting import duration

STEPS = {
    "profile": "learning what the field is like",
    "suite": "searching failures",
    "retrain": "retraining",
    "assess": "assessing",
}
COUNTED = {
    "suite": "chunk {done} of {total}",
    "retrain": "{done} of at most {total} epochs",
    "assess": "{done} of at most {total} labels",
}
FILES = {
    "naturalness": "profile",
    "drift": "profile",
    "retraining": "retrain",
    "labels": "assess",
    "answers": "assess",
}  # whose time it is


@contextmanager
def show_progress(console: Console, *, quiet: bool = False, as_json: bool = False) -> Iterator[EventHandler]:
    """Something to give a campaign as its ``watch``, for as long as it runs.

    Args:
        console: where to show it.
        quiet: show nothing.
        as_json: one JSON object a line, for programs.
    """
    if as_json:
        yield lambda event: print_json(console, event_json(event))
    elif quiet:
        yield lambda event: None
    elif console.is_terminal:
        with _progress(console) as progress:
            yield ProgressBar(progress=progress)
    else:
        yield ProgressLines(console=console)


# For people


@dataclass(kw_only=True)
class ProgressState:
    """What earlier events said: the present step, when it began and with how much done, and the last assessment."""

    clock: Callable[[], float] = time.monotonic
    step: str = ""
    began: float = 0.0
    first: int = 0
    pmi: str = ""

    def take(self, event: Event) -> bool:
        """Take an event in; True if it is the first of its step."""
        new = event.step != self.step
        if new:
            self.step, self.began, self.first = event.step, self.clock(), event.done
        self.pmi = str(event.told.get("assessed", self.pmi)).partition(" (")[0]
        return new

    def words(self, event: Event, *, pmi: bool = True) -> str:
        """How much is done, and what to say beside it, the last assessment with it unless it is known."""
        count = COUNTED.get(last_of(event.step), "").format(done=event.done, total=event.total)
        failures = f"{event.told['failures']} failures so far" if "failures" in event.told else ""
        smaller = f"memory is short, {event.told['batch_size']} rows at once" if "batch_size" in event.told else ""
        parts = (count, failures, smaller, self.left(event), self.pmi if pmi else "")
        return ", ".join(part for part in parts if part)

    def left(self, event: Event) -> str:
        """How long the step will take, if it goes on like this."""
        gained, missing = event.done - self.first, event.total - event.done
        if gained <= 0 or missing <= 0 or last_of(event.step) not in ("suite", "retrain"):
            return ""
        return f"about {duration((self.clock() - self.began) / gained * missing)} left"


@dataclass(kw_only=True)
class ProgressLines:
    """A line for every chunk, retraining, assessment and round; how reliable the model is, is said when it is news."""

    console: Console
    seen: ProgressState = field(default_factory=ProgressState)
    said: str = ""

    def __call__(self, event: Event) -> None:
        new = self.seen.take(event)
        for line in lines_of(event):
            self._print(line)
        if last_of(event.step) == "suite" or (new and last_of(event.step) in STEPS):
            words = self.seen.words(event, pmi=self.seen.pmi != self.said)
            self._print(name_of_step(event.step) + f": {words}" * bool(words))

    def _print(self, line: str) -> None:
        if self.seen.pmi in line:
            self.said = self.seen.pmi
        self.console.print(escape(line), soft_wrap=True)


@dataclass(kw_only=True)
class ProgressBar:
    """One bar for the present step; what is done stands in lines above it."""

    progress: Progress
    seen: ProgressState = field(default_factory=ProgressState)
    task: TaskID | None = None

    def __call__(self, event: Event) -> None:
        if self.seen.take(event):
            if self.task is not None:
                self.progress.remove_task(self.task)
            working = last_of(event.step) in STEPS
            self.task = self.progress.add_task(name_of_step(event.step), total=None, words="") if working else None
        for line in lines_of(event):
            self.progress.console.print(escape(line), soft_wrap=True)
        if self.task is not None:
            total = event.total if last_of(event.step) in COUNTED else None  # of others nobody knows how far they are
            words = escape(self.seen.words(event))
            self.progress.update(self.task, completed=event.done if total else 0, total=total, words=words)


def lines_of(event: Event) -> list[str]:
    """What an event says that shall stay to be read: finished rounds, and what was decided."""
    last = last_of(event.step)
    return [str(told) for name, told in event.told.items() if last == "decide" or (last == name == "round")]


def last_of(step: str) -> str:
    """The step without its place.

    >>> last_of("round-002/suite")
    'suite'
    """
    return step.rpartition("/")[2]


def name_of_step(step: str) -> str:
    """What a step does, in words.

    >>> name_of_step("round-002/suite")
    'round 2, searching failures'
    """
    number = re.match(r"round-(\d+)/", step)
    return (f"round {int(number[1])}, " if number else "") + STEPS.get(last_of(step), last_of(step))


def _progress(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=30), TimeElapsedColumn())
    return Progress(*columns, TextColumn("{task.fields[words]}"), console=console, transient=True)


def seconds_of(times: Mapping[str, float]) -> dict[str, float]:
    """How long each of the steps took over all rounds, from `RunFolder.times`.

    >>> seconds_of({"round-001/suite": 9.5, "round-002/suite": 0.5, "round-000/labels-000.json": 3.0})
    {'suite': 10.0, 'assess': 3.0}
    """
    total: dict[str, float] = {}
    for name, seconds in times.items():
        file = re.split(r"[.-]", last_of(name))[0]
        if (step := FILES.get(file, file)) in STEPS:
            total[step] = total.get(step, 0.0) + seconds
    return total


def told_times(seconds: Mapping[str, float]) -> str:
    """The same in words."""
    return ", ".join(f"{STEPS[step]} {duration(s)}" for step, s in seconds.items())


# For programs


def event_json(event: Event) -> dict[str, Any]:
    """An event as plain values."""
    told = {name: v if isinstance(v, int | float | str | None) else str(v) for name, v in event.told.items()}
    return {"step": event.step, "done": event.done, "total": event.total, "told": told}


def result_json(delivered: CampaignResult, **more: Any) -> dict[str, Any]:
    """What a campaign handed back, as plain values."""
    last = delivered.assessment
    told = {"met": delivered.met, "reason": delivered.reason, "pmi": last.pmi, "upper": last.upper}
    told |= {"confidence": last.confidence, "labels": delivered.labels, "rounds": [_round(r) for r in delivered.rounds]}
    return {"result": told | more}


def _round(r: Round) -> dict[str, Any]:
    told = {name: getattr(r, name) for name in ("number", "arrived", "drifted", "attempted", "found", "operational")}
    told |= {"by_move": r.by_move, "chosen": r.chosen, "cases": r.cases, "clean": r.clean, "changed": r.changed}
    told["decisions"] = [str(decision) for decision in r.decisions]
    if a := r.assessment:
        told |= {"pmi": a.pmi, "upper": a.upper, "labels": a.labels, "failures": a.failures}
    return told


def print_json(console: Console, page: dict[str, Any]) -> None:
    """One line, neither wrapped nor coloured."""
    console.out(json.dumps(_finite(page), ensure_ascii=False, allow_nan=False), highlight=False)


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: they are null."""
    if isinstance(value, dict):
        return {name: _finite(v) for name, v in value.items()}
    if isinstance(value, list):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
