"""When a campaign ends, and what it advises then."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from operant.campaign.assessing import SequentialAssessment, what_it_takes
from operant.campaign.records import Round, StopReason, StopRecord
from operant.formatting import at_most

if TYPE_CHECKING:
    from operant.campaign.campaign import Campaign

MAX_IDLE_ROUNDS = 2  # stop after this many rounds without a change


def stop_reason(
    options: Campaign, rounds: Sequence[Round], *, labels: int, cases: int, unlabelled: bool
) -> StopReason | None:
    """Why the campaign ends after the last of these rounds; None if it continues.

    Args:
        options: of the campaign.
        rounds: finished so far, at least one.
        labels, cases: used so far.
        unlabelled: whether field inputs are left to assess with.
    """
    last = rounds[-1]
    rules: list[tuple[StopReason, bool]] = [
        ("field changed", last.drift is not None and options.when_drifted == "stop"),
        ("requirement met", latest_assessment(rounds).upper <= options.requirement),
        ("labels spent", labels >= options.labels),
        ("field assessed", not unlabelled),
        ("cases spent", cases >= options.cases),
        ("no change", idle_rounds(rounds) >= MAX_IDLE_ROUNDS),
        ("rounds spent", last.number >= options.rounds),
    ]
    return next((reason for reason, holds in rules if holds), None)


def stop_record(options: Campaign, reason: StopReason, rounds: Sequence[Round], *, clean: int) -> StopRecord:
    """How the campaign ended, and what would help.

    Args:
        options: of the campaign.
        reason: why it ended.
        rounds: all of them.
        clean: number of clean samples.
    """
    met = reason != "field changed" and latest_assessment(rounds).upper <= options.requirement
    budget = {name: getattr(options, name) for name in ("rounds", "cases", "labels")}
    return StopRecord(
        met=met,
        reason=reason,
        sentence=_sentence(reason, rounds[-1]),
        advice="" if met else _advice(options, reason, rounds, clean),
        last=rounds[-1].number,
        **budget,
    )


def latest_assessment(rounds: Sequence[Round]) -> SequentialAssessment:
    """The last assessment; round 0 always has one."""
    return next(r.assessment for r in reversed(rounds) if r.assessment)


def idle_rounds(rounds: Sequence[Round]) -> int:
    """Number of consecutive rounds, up to the last one, that left the model unchanged."""
    return [r.idle for r in reversed(rounds)].index(False)


def _sentence(reason: StopReason, last: Round) -> str:
    n, drift = last.number, f" ({last.drift.summary.rstrip('.')})" if last.drift else ""
    sentences = {
        "requirement met": f"The requirement was met after round {n}",
        "field changed": f"Stopped in round {n} because the field has changed{drift}",
        "labels spent": f"All labels are spent after round {n}",
        "field assessed": f"All field inputs are labelled after round {n}",
        "cases spent": f"All cases are spent after round {n}",
        "no change": f"Rounds {n - 1} and {n} changed nothing",
        "rounds spent": f"All rounds are finished after round {n}",
    }
    return sentences[reason]


def _advice(options: Campaign, reason: StopReason, rounds: Sequence[Round], clean: int) -> str:
    if reason == "field changed":
        return 'To continue, start a new folder with the present field data, or set when_drifted="update".'
    takes = f"To meet it: {what_it_takes(latest_assessment(rounds), options.requirement)}."
    return " ".join(part for part in (takes, _better_before(rounds), _obstacle(options, rounds, clean)) if part)


def _better_before(rounds: Sequence[Round]) -> str:
    """Names an earlier model of the present field if its bound is smaller."""
    last = latest_assessment(rounds)
    drifts = [r.number for r in rounds if r.drift]
    since = [r for r in rounds if r.assessment and r.number >= (drifts[-1] if drifts else 0)]
    best = min(since, key=lambda r: r.assessment.upper if r.assessment else 1.0)
    changed_later = any(r.changed for r in rounds[best.number + 1 :])
    if best.assessment is None or best.assessment.upper >= last.upper or not changed_later:
        return ""
    return f"The model after round {best.number} has the smallest bound, {at_most(best.assessment.upper)}."


def _obstacle(options: Campaign, rounds: Sequence[Round], clean: int) -> str:
    """Why the last round left the model unchanged, and what could be done about it."""
    if idle_rounds(rounds) == 0:
        return ""
    if (record := rounds[-1].retraining) is None:
        return "The last round found no operational failure: declare wider conditions, or larger radii."
    allowed = options.max_drop * clean
    few = f" Of {clean} clean samples {allowed:.0f} may be lost: add more, or raise max_drop." if allowed < 5 else ""
    return f"The last retraining was not kept: {record.reason}.{few}"
