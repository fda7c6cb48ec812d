"""What an observer is, what it sees, and what it contributes to the report."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from operant.activity import activity
from operant.campaign.field import FieldState
from operant.campaign.records import Round
from operant.campaign.risk import CampaignRisk
from operant.data import Samples
from operant.execution.memory import in_batches, with_smaller_batches
from operant.execution.round_state import RoundState
from operant.model import Classifier, Finding
from operant.profile import FittedConditions
from operant.suite import Suite

MAX_POINTS = 600  # points of one kind in a chart
ROUND_FILES = (
    "budget cases drift field judge labels naturalness predictions profile retraining round seeds shares suite weights"
)
PAGE_IDS = (
    "cards checks close cost count drift enlarged failures feedback field large learned more next overview previous "
    "retraining settings sort theme"
)
RESERVED = frozenset(f"{ROUND_FILES} {PAGE_IDS}".split())  # names that an observer cannot have
Points = list[list[float]]


@dataclass(frozen=True, kw_only=True, eq=False)
class ObservedRound:
    """A finished round as observers see it.

    Attributes:
        record: of the round.
        before, after: the model before and after the round.
        labelled: field inputs labelled in this round; may be empty.
        train, clean: the campaign's training and clean samples.
        field: the current field.
        spawn: a random generator for a part of the round, by name.
        load_failures: reads the operational failures; use ``failures``.
        conditions: estimated from the first field inputs; None if they were not.
        known: all labelled inputs of the present field; None if they are not given.
        risk: of the campaign; None if no cases were drawn for it.
        risk_doubts: why its probabilities are not to be believed, by what judges say of its conditions.
    """

    record: Round
    before: Classifier
    after: Classifier
    labelled: Samples
    train: Samples
    clean: Samples
    field: FieldState
    spawn: Callable[[str], torch.Generator]
    load_failures: Callable[[], Suite | None]
    conditions: FittedConditions | None = None
    known: Samples | None = None
    risk: CampaignRisk | None = None
    risk_doubts: tuple[Finding, ...] = ()

    @property
    def failures(self) -> Suite | None:
        """The operational failures of the round; None if there are none."""
        return self.load_failures()


@dataclass(frozen=True, kw_only=True)
class Section:
    """A section of the report.

    Attributes:
        name: of the observer, and of the section in links and in the navigation.
        title: its heading.
        summary: its message in a sentence or two; the Markdown report shows this.
        values: plain JSON values for the observer's template.
        after: the part of the page that it follows.
        lines: details that the Markdown report lists below the summary, folded away.
        caption, table: a table that the Markdown report shows below the summary, its head first; empty without one.
        findings: that the Markdown report lists below both; the template shows them from ``values``.
    """

    name: str
    title: str
    summary: str
    values: dict[str, Any]
    after: Literal["field", "failures"] = "failures"
    lines: tuple[str, ...] = ()
    caption: str = ""
    table: tuple[tuple[str, ...], ...] = ()
    findings: tuple[Finding, ...] = ()


class Observer(Protocol):
    """Records something about every round, and turns the records into a section of the report."""

    @property
    def name(self) -> str:
        """Of its record, ``<name>.json`` in a round's folder, and of its section; lower case, with underscores."""

    @property
    def record(self) -> type[Any]:
        """The frozen dataclass that `observe` returns."""

    @property
    def template(self) -> str:
        """Jinja source of the section's HTML. It can use ``summary``, all ``values``, and the report's filters and
        chart functions (see `operant.report.page`)."""

    def observe(self, seen: ObservedRound) -> Any | None:
        """The record of a round; None if there is nothing to record."""

    def section(self, records: Mapping[int, Any], *, rounds: Sequence[Round], classes: Sequence[str]) -> Section | None:
        """The section for the records of all rounds, by number; None to leave it out."""


def check_names(observers: Sequence[Observer]) -> None:
    """Raise an error if two observers share a name, or if a name is taken by the campaign or the report."""
    names = [observer.name for observer in observers]
    for name in names:
        if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or name in RESERVED or names.count(name) > 1:
            raise ValueError(
                f"each observer needs its own name, in lower case, that campaigns and reports do not use themselves, "
                f"got {name!r} among {', '.join(names)}; choose another"
            )


def observe_round(seen: ObservedRound, observers: Sequence[Observer], state: RoundState) -> None:
    """Let observers record a round; records that are on disk are kept.

    An observer that fails is reported with a warning: it must not stop a campaign that does not depend on it.
    """
    for observer in observers:
        if state.folder.has(f"{state.name}/{observer.name}"):
            continue
        try:
            with activity(f"recording {observer.name.replace('_', ' ')} for the report"):
                value, _ = with_smaller_batches(partial(_observe, observer, seen), seen.before.batch_size)
        except Exception as error:  # a user's observer may raise anything
            what = f"the observer {observer.name} failed in {state.name} ({type(error).__name__}: {error})"
            warnings.warn(f"{what}; the report will lack its record", stacklevel=2)
            continue
        if value is not None:
            state.step(observer.name, observer.record, partial(_same, value))


def _observe(observer: Observer, seen: ObservedRound, rows: int) -> Any | None:
    return observer.observe(replace(seen, before=in_batches(seen.before, rows), after=in_batches(seen.after, rows)))


def _same(value: Any) -> Any:
    return value


def evenly(n: int, most: int) -> Tensor:
    """At most ``most`` of n row numbers, evenly spaced."""
    return torch.linspace(0, n - 1, min(most, n)).round().long()


def chart_points(parts: Sequence[Tensor]) -> Points:
    """At most `MAX_POINTS` of the rows ``(n, 2)`` of several tensors, evenly spaced."""
    if not parts:
        return []
    rows = torch.cat([part.double() for part in parts])
    return [[round(x, 3), round(y, 3)] for x, y in rows[evenly(len(rows), MAX_POINTS)].tolist()]


def flat_codes(codes: Tensor) -> Tensor:
    """The first two codes of each row, ``(n, 2)``; a missing second one is 0."""
    codes = codes.detach().cpu().double()
    return torch.cat([codes, torch.zeros_like(codes)], 1)[:, :2] if codes.shape[1] < 2 else codes[:, :2]


def read_template(module_file: str) -> str:
    """The HTML file beside an observer's module."""
    return Path(module_file).with_suffix(".html").read_text(encoding="utf-8")
