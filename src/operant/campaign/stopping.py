"""When a campaign ends, and what it advises then."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from operant.assess import clopper_pearson_interval
from operant.campaign.assessing import FUTILE, SequentialAssessment, could_decide, what_it_takes
from operant.campaign.records import Round, StopReason, StopRecord
from operant.execution.round_state import weights_after
from operant.execution.run_folder import MODEL
from operant.formatting import at_most
from operant.retrain import FinetuneRecord

if TYPE_CHECKING:
    from operant.campaign.campaign import Campaign

MAX_IDLE_ROUNDS = 2  # stop after this many rounds without a change
ROUNDING = 1e-6  # of accuracies


def stop_reason(
    options: Campaign, rounds: Sequence[Round], *, labels: int, cases: int, unlabelled: int
) -> StopReason | None:
    """Why the campaign ends after the last of these rounds; None if it continues.

    Args:
        options: of the campaign.
        rounds: finished so far, at least one.
        labels, cases: used so far.
        unlabelled: number of field inputs that are left to assess with.
    """
    last, more = rounds[-1], min(options.labels - labels, unlabelled)
    assessed = latest_assessment(rounds)
    undecided = could_decide(assessed, options.requirement, more)  # after idle rounds: the budget was raised since
    rules: list[tuple[StopReason, bool]] = [
        ("field changed", last.drift is not None and options.when_drifted == "stop"),
        ("requirement met", assessed.upper <= options.requirement),
        ("labels spent", labels >= options.labels),
        ("field assessed", not unlabelled),
        ("cases spent", cases >= options.cases),
        ("no change", idle_rounds(rounds) >= MAX_IDLE_ROUNDS and not undecided),
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
    parts = (takes, _unspent(options, reason, rounds), _better_before(rounds), _obstacle(options, rounds, clean))
    return " ".join(part for part in parts if part)


def _unspent(options: Campaign, reason: StopReason, rounds: Sequence[Round]) -> str:
    """How many labels were not bought and why, and which part of the budget a further round needs."""
    left = options.labels - sum(r.assessment.bought for r in rounds if r.assessment)
    sentences, why = [], latest_assessment(rounds).reason
    if reason not in ("labels spent", "field assessed") and left > 0 and why:
        sentences.append(f"{left} of {options.labels} labels were not bought: {why}.")
    spent = {"labels spent": "labels", "cases spent": "cases", "rounds spent": "rounds"}
    if reason in spent:
        needed = [spent[reason], *["rounds"] * (reason != "rounds spent" and rounds[-1].number >= options.rounds)]
        sentences.append(f"For a further round, raise {' and '.join(needed)} of the budget and run again.")
    return " ".join(sentences)


def _better_before(rounds: Sequence[Round]) -> str:
    """Names an earlier model of the present field, and its file, if its bound is smaller."""
    last = latest_assessment(rounds)
    drifts = [r.number for r in rounds if r.drift]
    since = [r for r in rounds if r.assessment and r.number >= (drifts[-1] if drifts else 0)]
    best = min(since, key=lambda r: r.assessment.upper if r.assessment else 1.0)
    changed_later = any(r.changed for r in rounds[best.number + 1 :])
    if best.assessment is None or best.assessment.upper >= last.upper or not changed_later:
        return ""
    where = weights_after(rounds[: best.number + 1])
    return (
        f"The model after round {best.number} has the smallest bound, {at_most(best.assessment.upper)}: {where}. "
        f"{MODEL}.safetensors has those after the last round."
    )


def _obstacle(options: Campaign, rounds: Sequence[Round], clean: int) -> str:
    """Why the last round left the model unchanged, and what could be done about it."""
    last = rounds[-1]
    if not last.idle:
        return ""
    if last.nothing_to_search:
        return f"Nothing was searched. {_what_judges_say(last)}"
    if last.retraining is None and last.operational:
        return f"The last round chose none of its {last.operational} operational failures to learn from."
    if last.retraining is None:
        said = _what_judges_say(last) or "Declare wider conditions or larger radii in a new folder."
        return f"The last round found no operational failure. {said}"
    left = max(options.max_drop - (rounds[0].clean - last.retraining.accuracy_before), 0.0)
    advice = _what_limits(last.retraining, left, clean)
    return " ".join([f"The last retraining was not kept: {last.retraining.reason}.", *advice])


def _what_judges_say(last: Round) -> str:
    """What was found about the moves of a round, and what to do about it; empty if all look like the field."""
    findings = [finding for test in last.tests for finding in test.findings]
    if not findings:
        return ""
    problems = "; ".join(finding.problem for finding in findings)
    return " ".join([f"{problems}.", *dict.fromkeys(f"{finding.advice}." for finding in findings)])


def _accuracy_in_the_way(lost: int, left: float, clean: int) -> str:
    """What to do if the epoch that came closest lost this many clean samples, and the share ``left`` may be lost."""
    clear = clopper_pearson_interval(lost, clean, confidence=2 * FUTILE - 1).lower > left
    counted = f"Clean accuracy stood in the way: of {clean} clean samples, at least {lost} were lost"
    allowed = f"{counted}, and {left * clean:.0f} more may be lost"
    if clear:
        return (
            f"{allowed}, a clear loss. Retrain more gently in a new folder, with a smaller learning rate or fewer "
            "steps; or allow a larger max_drop."
        )
    return (
        f"{allowed}, which chance may explain. Give more clean samples in a new folder, retrain more gently, or allow "
        "a larger max_drop."
    )


def _what_limits(record: FinetuneRecord, left: float, clean: int) -> list[str]:
    """What to do about the limits, clean accuracy and the monitor, that no epoch met."""
    if record.diverged or any(epoch.kept for epoch in record.history):
        return []
    before = math.inf if record.monitor_before is None else record.monitor_before
    accurate = [epoch.accuracy >= record.accuracy_before - left - ROUNDING for epoch in record.history]
    better = [epoch.monitor < before for epoch in record.history]
    neither = not any(accurate) and not any(better)
    advice = []
    if neither or any(b and not a for a, b in zip(accurate, better, strict=True)):
        lost = min(record.accuracy_before - e.accuracy for e, a in zip(record.history, accurate, strict=True) if not a)
        advice.append(_accuracy_in_the_way(round(lost * clean), left, clean))
    if neither or any(a and not b for a, b in zip(accurate, better, strict=True)):
        advice.append(
            "The monitor stood in the way: on the labelled field inputs the model did not improve. Raise the number of "
            "labels, so that the monitor sees more, or declare conditions closer to the field in a new folder."
        )
    return advice
