"""What the field looks like: field inputs beside training inputs under the estimated conditions, and all estimates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from torch import Tensor

from operant.campaign.observers.base import ObservedRound, Section, read_template
from operant.campaign.records import Round
from operant.formatting import percent
from operant.profile import ErrorEstimate, FieldDescription, Parameter, describe_field
from operant.profile._words import (
    ERROR_TERMS,
    describe_condition,
    describe_error,
    describe_intervals,
    describe_shares,
    describe_terms,
    describe_unexplained,
    share,
)
from operant.profile.describe import SHOWN, unpacked
from operant.suite.drawing import MAX_SMALL, data_uri, is_faint, is_picture, shades, shrunk, stretched, unit

MAX_SIDE = 96  # pixels of an image's longer side
RESAMPLES, MAX_ROWS = 50, 2000  # for class shares and their intervals


class DescriptionOfField:
    """Describes the field when a round has learned a new profile of it."""

    name: ClassVar[str] = "field_description"
    record: ClassVar[type] = FieldDescription
    template: ClassVar[str] = read_template(__file__)

    def observe(self, seen: ObservedRound) -> FieldDescription | None:
        """The description for the model before the round; None if the field is the one that is known."""
        if not seen.field.profile_is_new:
            return None
        first = seen.record.number == 0
        described = describe_field(
            seen.before,
            seen.field.inputs,
            train=seen.train,
            labelled=seen.clean,
            conditions=seen.conditions if first else None,  # they were estimated from the first inputs
            estimate=False,
            resamples=RESAMPLES,
            rows=MAX_ROWS,
            generator=seen.spawn(self.name),
            progress=False,
        )
        since = "" if first else f"This is the field since round {seen.record.number}."
        return replace(described, comparison=since, drift=seen.record.drift)

    def section(
        self, records: Mapping[int, FieldDescription], *, rounds: Sequence[Round], classes: Sequence[str]
    ) -> Section | None:
        """The newest description."""
        if not records:
            return None
        newest = records[max(records)]
        newest = replace(newest, classes=tuple(classes)) if classes else newest
        return Section(
            name=self.name,
            title="What the field looks like",
            summary=summary_of(newest),
            values=section_values(newest),
            after="field",
            lines=tuple(str(finding) for _, finding in newest.doubts),
        )


def campaign_lines(d: FieldDescription, requirement: float) -> tuple[str, ...]:
    """Class shares and the error without labels as `operant field` prints them, and how the error compares."""
    missing = tuple(note for note in d.notes if not note.startswith("Conditions "))  # the campaign has its own on these
    shares = (describe_shares(d.priors, d.names),) if d.priors else ()
    error = (f"{describe_error(d.error, d.inputs)} {compare_error(d.error, requirement)}",) if d.error else ()
    return missing + shares + error


def compare_error(error: ErrorEstimate, requirement: float) -> str:
    """How an estimate without labels compares with the requirement."""
    required = f"The requirement is {percent(requirement)}"
    if error.unreliable:
        return f"{required}; this estimate cannot tell whether it is met."
    if error.lower > requirement:
        return f"{required}, so it is probably not met yet."
    if error.upper < requirement:
        return f"{required}, so it is probably met; only labels can show it."
    return f"{required}, within that range, so it is open whether it is met."


def summary_of(d: FieldDescription) -> str:
    """The description in a few sentences."""
    sentences = [d.overview]
    if d.conditions is not None:
        found = ", ".join(dict.fromkeys(p.condition for p in d.active))
        sentences += [f"Conditions found: {found}."] if found else []
        sentences.append(describe_unexplained(d.conditions))
    sentences += [describe_error(d.error, d.inputs)] if d.error else []
    sentences += [d.drift.summary] if d.drift else []
    return " ".join(sentences)


def section_values(d: FieldDescription) -> dict[str, Any]:
    """Everything that the section shows, as plain values."""
    return {
        "overview": d.overview,
        "notes": list(d.notes),
        "sheets": _sheets(d),
        "small": max(d.shape, default=0) <= MAX_SMALL,
        "parameters": [_parameter_row(p) for p in d.active],
        "meanings": _meanings(d),
        "intervals": "" if d.conditions is None else describe_intervals(d.conditions),
        "unexplained": "" if d.conditions is None else describe_unexplained(d.conditions),
        "unexplained_rows": _unexplained_rows(d),
        "confidence": None if d.conditions is None else d.conditions.confidence,
        "shares": _share_rows(d),
        "shares_method": "" if d.priors is None else d.priors.method,
        "shares_terms": "" if d.priors is None else describe_terms(d.priors.method),
        "shares_intervals": "" if d.priors is None else d.priors.interval_words,
        "error": "" if d.error is None else describe_error(d.error, d.inputs),
        "error_methods": _error_rows(d),
        "moved": [[v.name, _number(v.train), _number(v.field), f"{v.moved:+.2g}"] for v in d.moved],
        "comparison": d.comparison,
        "changes": list(d.changes),
        "drift": None if d.drift is None else [d.drift.summary, d.drift.details],
        "sources": [[s.name, s.inputs] for s in d.sources],
        "groups": [[g.name, g.inputs] for g in d.groups],
        "doubts": [[where, f.name, f.severity, f.problem, f.advice] for where, f in d.doubts],
    }


# Pictures


def _sheets(d: FieldDescription) -> list[dict[str, Any]]:
    """Field inputs, and training inputs under the conditions that were found."""
    if not is_picture(d.shape) or not math.isfinite(d.bounds[1] - d.bounds[0]):
        return []
    under = "Training inputs under the conditions found" if d.active else "Training inputs"
    alike = ", in the estimated class shares" if d.priors else ""
    return [
        _sheet("Field inputs", d.kept[:SHOWN], d.bounds),
        _sheet(f"{under}{alike}", d.simulated[:SHOWN], d.bounds),
    ]


def _sheet(title: str, kept: Tensor, bounds: tuple[float, float]) -> dict[str, Any]:
    pictures = [unit(x, bounds) for x in shrunk(unpacked(kept, bounds), MAX_SIDE)]
    faint = [picture for picture in pictures if is_faint(picture)]
    return {
        "title": title,
        "pictures": [data_uri(shades(picture)) for picture in pictures],
        "stretched": [data_uri(shades(stretched(picture))) for picture in faint],
    }


# Rows of charts


def _parameter_row(p: Parameter) -> dict[str, Any]:
    return {
        "name": f"{p.condition} {p.name}".replace("_", " "),
        "value": p.value,
        "lower": p.lower,
        "upper": p.upper,
        "low": min(p.limits[0], p.lower),
        "high": max(p.limits[1], p.upper),
        "text": f"{p.value:.2g} [{p.lower:.2g}, {p.upper:.2g}]",
    }


def _meanings(d: FieldDescription) -> list[list[str]]:
    if d.conditions is None:
        return []
    return [[name.replace("_", " "), describe_condition(d.conditions, name)] for name in d.conditions.active]


def _error_rows(d: FieldDescription) -> list[list[str]]:
    """Each method with its estimate, and what it is."""
    if d.error is None:
        return []
    return [[name, share(value), ERROR_TERMS.get(name, "")] for name, value in d.error.by_method.items()]


def _unexplained_rows(d: FieldDescription) -> list[dict[str, Any]]:
    left = d.unexplained
    if left is None or not d.active:
        return []
    row = {"name": "unexplained", "value": left, "text": percent(left, 2), "low": 0.0, "high": 1.0}
    return [row | {"lower": 0.0, "upper": left}]


def _share_rows(d: FieldDescription) -> list[dict[str, Any]]:
    if d.priors is None:
        return []
    p = d.priors
    rows = zip(d.names, p.values, p.lower, p.upper, p.labelled, strict=True)
    return [
        {"name": name, "value": v, "lower": _finite(low), "upper": _finite(high), "text": share(v), "mark": known}
        for name, v, low, high, known in rows
    ]


def _finite(value: float) -> float | None:
    """JSON has no NaN."""
    return value if math.isfinite(value) else None


def _number(value: float) -> str:
    return f"{value:.3g}"
