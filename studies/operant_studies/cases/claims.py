"""The claims of the study, and whether they held."""

from __future__ import annotations

from operant_studies.cases.outcome import REJECTS_P, Outcome, first_kind, together, too_many_rejects
from operant_studies.cases.ranking import RISK
from operant_studies.cases.selection import CASES, difference, without_cases
from operant_studies.cases.settings import BAD
from operant_studies.field.scores import proportion
from operant_studies.shared import HELD, NOT_DECIDED, NOT_HELD, Mean, compare, mean, table, verdict

MIN_ACCEPTED, MAX_ACCEPTED = 0.8, 0.1
MIN_RATIO, MIN_FIELDS = 1.5, 4
MAX_JUDGE_SECONDS, MAX_RISK_SECONDS = 15.0, 60.0
MIN_RIGHT = 0.95
Row = list[object]


def claims(outcome: Outcome) -> str:
    rows = [
        *_accepted(outcome),
        *_rejects(outcome),
        *_labels(outcome),
        *_gains(outcome),
        *_ratios(outcome),
        *_selections(outcome),
        *_costs(outcome),
    ]
    return f"""## What held

Intervals are 95 % t-intervals over seeds, of checkpoints by bootstrap. *Held* if the whole interval keeps the limit,
*not held* if none of it does. A claim about several fields is *not held* if one of them breaks it.

{table(["claim", "measured", ""], [[claim, value, f"**{decided}**"] for claim, value, decided in rows])}"""


def at_least(value: Mean, limit: float) -> str:
    """Held if the whole interval is at least the limit."""
    return HELD if value.lower >= limit else compare(value.lower, value.upper, limit)


def at_most(value: Mean, limit: float) -> str:
    """Held if the whole interval is at most the limit."""
    return HELD if value.upper <= limit else NOT_HELD if value.lower > limit else NOT_DECIDED


# The judge ------------------------------------------------------------------------------------------------------------


def _accepted(outcome: Outcome) -> list[Row]:
    firsts = {name: outcome.accepted(name, first_kind(kinds)) for name, kinds in outcome.judged.items()}
    decided = together([at_least(value, MIN_ACCEPTED) for value in firsts.values()])
    claim = f"the judge accepts at least {100 * MIN_ACCEPTED:.0f} % of cases from the field's recipe"
    rows: list[Row] = [[f"{claim} (estimated for real fields)", _by_field(firsts), decided]]
    for kind in (kind for kind in BAD if kind in outcome.setting.kinds):
        found = {name: outcome.accepted(name, kind) for name, kinds in outcome.judged.items() if kind in kinds}
        decided = together([at_most(value, MAX_ACCEPTED) for value in found.values()])
        rows.append([f"at most {100 * MAX_ACCEPTED:.0f} % of: {kind}", _by_field(found), decided])
    return rows


def _by_field(values: dict[str, Mean]) -> str:
    return "; ".join(f"{name} {value.share} %" for name, value in values.items())


def _rejects(outcome: Outcome) -> list[Row]:
    rows: list[Row] = []
    for name, fits in outcome.rejects.items():
        rate, p = mean(fit.rejected / fit.n for fit in fits), too_many_rejects(fits)
        measured = f"{rate.share} %, {len(fits)} fits, p = {p:.2g}"
        decided = NOT_HELD if p < REJECTS_P else HELD
        rows.append([f"{name}: the judge rejects at most 5 % of field inputs (not refuted at .01)", measured, decided])
    return rows


def _labels(outcome: Outcome) -> list[Row]:
    rows: list[Row] = []
    for name in outcome.judged:
        read = outcome.right_labels(name)
        measured = "not read" if read is None else proportion(*read)
        decided = NOT_DECIDED if read is None else HELD if read[0] >= MIN_RIGHT * read[1] else NOT_HELD
        rows.append([f"{name}: at least 95 % of accepted cases have the right label, read by eye", measured, decided])
    return rows


# The risk map ---------------------------------------------------------------------------------------------------------


def _gains(outcome: Outcome) -> list[Row]:
    gains = {name: outcome.gain(name, outcome.best_rival(name)) for name in outcome.ranked}
    rows: list[Row] = [
        [f"{name}: lift at 5 % above that of the best rival, {outcome.best_rival(name)}", gain.plain, verdict(gain)]
        for name, gain in gains.items()
    ]
    above, below = (sum(verdict(gain) == wanted for gain in gains.values()) for wanted in (HELD, NOT_HELD))
    decided = HELD if above >= MIN_FIELDS else NOT_HELD if len(gains) - below < MIN_FIELDS else NOT_DECIDED
    rows.append([f"that gain is above 0 on at least {MIN_FIELDS} fields", f"{above} of {len(gains)}", decided])
    return rows


def _ratios(outcome: Outcome) -> list[Row]:
    found = {name: outcome.ratio(name, RISK) for name in outcome.ranked}
    claim = f"within class and margin, riskier inputs fail at least {MIN_RATIO:g} times as often"
    return [[f"{name}: {claim}", value.plain, at_least(value, MIN_RATIO)] for name, value in found.items()]


# Models and costs -----------------------------------------------------------------------------------------------------


def _selections(outcome: Outcome) -> list[Row]:
    rows: list[Row] = []
    for selection in outcome.setting.selections:
        runs = outcome.compared(selection)
        rival = without_cases(runs)
        found = difference(runs, CASES, rival)
        claim = f"{selection.case}: failure rate on cases ranks checkpoints better than the best rival, {rival}"
        rows.append([claim, str(found), compare(found.lower, found.upper)])
    return rows


def _costs(outcome: Outcome) -> list[Row]:
    seconds = [j.seconds for kinds in outcome.judged.values() for each in kinds.values() for j in each]
    cost = outcome.cost
    total = cost.fit + cost.rate
    risk = f"{cost.fit:.1f} s to fit {cost.cases} cases, {cost.rate:.1f} s to rate {cost.inputs} inputs"
    worst = f"{sum(seconds) / len(seconds):.1f} s, at most {max(seconds):.1f}, n = {len(seconds)}"
    return [
        [
            f"fitting a judge takes at most {MAX_JUDGE_SECONDS:g} s of CPU time, on average",
            worst,
            HELD if sum(seconds) <= MAX_JUDGE_SECONDS * len(seconds) else NOT_HELD,
        ],
        [
            f"a risk map takes less than {MAX_RISK_SECONDS:g} s of CPU time besides the model's passes",
            risk,
            HELD if total < MAX_RISK_SECONDS else NOT_HELD,
        ],
    ]
