"""The claims of the study, and whether they held."""

from __future__ import annotations

from collections.abc import Sequence

from operant_studies.field.large import LargeFit
from operant_studies.field.outcome import MAX_OFF, FieldOutcome, at_most, average, off, sum_of
from operant_studies.field.scores import coverage_verdict, covered, proportion
from operant_studies.field.settings import VARIANTS
from operant_studies.field.unit import ALONE, COMBINED
from operant_studies.operational.settings import FULL
from operant_studies.operational.unit import LoopCurve, TimedConditions
from operant_studies.shared import HELD, NOT_DECIDED, NOT_HELD, Mean, mean, table, verdict

MAX_AUC, MAX_EXCESS, MAX_SECONDS, MAX_MEMORY = 0.6, 0.03, 60.0, 3e9
Row = list[object]
Curves = dict[str, dict[str, list[LoopCurve]]]
"""Loops by variant and way, one per seed."""


def claims(
    outcomes: Sequence[FieldOutcome],
    controls: dict[str, list[TimedConditions]],
    large: Sequence[LargeFit],
    curves: Curves,
) -> str:
    rows = [
        *_found(outcomes),
        *_likeness(outcomes),
        *_shares(outcomes),
        *_errors(outcomes),
        *_downstream(curves),
        *_cost(outcomes, large),
        _control(controls),
    ]
    return f"""## What held

Means are over fields, each the mean over its seeds, with 95 % t-intervals: *held* if the whole interval keeps the
limit, *not held* if none of it does. Coverage is *held* if so few hits are not rejected against 95 % at the .01 level.

{table(["claim", "measured", ""], [[claim, value, f"**{decided}**"] for claim, value, decided in rows])}"""


def _found(outcomes: Sequence[FieldOutcome]) -> list[Row]:
    known = [o for o in outcomes if o.case.covered]
    rows = [inside for o in known for *_, inside in o.parameters()]
    total = sum_of(o.counts() for o in known)
    names = f"precision {100 * total.precision:.0f} %, recall {100 * total.recall:.0f} %"
    decided = HELD if total.precision >= 0.9 and total.recall >= 0.9 else NOT_HELD
    return [
        [
            "conditions are found: precision and recall of their names at least 90 %",
            f"{names}, n = {total.true}",
            decided,
        ],
        [
            "95 % intervals hold the parameters",
            proportion(sum(rows), len(rows)),
            coverage_verdict(sum(rows), len(rows)),
        ],
    ]


def _likeness(outcomes: Sequence[FieldOutcome]) -> list[Row]:
    fitted = [average([each.fitted for each in o.likeness]) for o in outcomes if o.case.covered]
    value, decided = at_most(fitted, MAX_AUC)
    rows: list[Row] = [
        [
            f"AUC between field and simulated is at most {MAX_AUC:g} where the palette holds the truth",
            value.plain,
            decided,
        ]
    ]
    for o in outcomes:
        if o.case.recipe is None:
            gain = mean(each.before - each.fitted for each in o.likeness)
            rows.append([f"{o.case.name}: the recipe lowers the AUC", gain.plain, verdict(gain)])
    return rows


def _shares(outcomes: Sequence[FieldOutcome]) -> list[Row]:
    excess = {o.case.name: average(o.excess()) for o in outcomes if o.excess()}
    rows: list[Row] = []
    if excess:
        claim = f"combined class shares are at most {MAX_EXCESS:g} farther from the truth than the better of the two"
        value, decided = at_most(list(excess.values()), MAX_EXCESS)
        far = [name for name, e in excess.items() if e > MAX_EXCESS]
        rows.append([f"{claim}, on average", value.plain, decided])
        rows.append([f"{claim}, in every field", f"farther in: {', '.join(far) or 'none'}", NOT_HELD if far else HELD])
    for name in (COMBINED, ALONE):
        each = [covered(e, s.true) for o in outcomes for s in o.shares if (e := s.of(name)) is not None]
        hits, n = (sum(column) for column in zip(*each, strict=True)) if each else (0, 0)
        if n:
            rows.append(
                [f"{name}: stated 95 % intervals hold the shares", proportion(hits, n), coverage_verdict(hits, n)]
            )
    return rows


def _errors(outcomes: Sequence[FieldOutcome]) -> list[Row]:
    each = [e for o in outcomes for e in o.errors]
    if not each:
        return []
    wrong, right = [e for e in each if off(e)], [e for e in each if not off(e)]
    said, warned = (sum(bool(e.unreliable) for e in some) for some in (wrong, right))
    decided = NOT_DECIDED if not wrong else HELD if said == len(wrong) else NOT_HELD
    size, limit = at_most([average([abs(e.value - e.true) for e in o.errors]) for o in outcomes if o.errors], MAX_OFF)
    points = f"{100 * MAX_OFF:g} points"
    return [
        [f"the error without labels is off by at most {points}, on average", f"{size} points", limit],
        [
            f"where it is off by more than {points}, the program calls it unreliable",
            proportion(said, len(wrong)),
            decided,
        ],
        [
            f"where it is off by at most {points}, the program does not",
            proportion(len(right) - warned, len(right)),
            NOT_DECIDED if not right else HELD if warned <= len(right) / 4 else NOT_HELD,
        ],
    ]


def _downstream(curves: Curves) -> list[Row]:
    rows: list[Row] = []
    for variant in VARIANTS:
        lower = lowered(curves, variant)
        what = "the loop" if variant == FULL else "augmentation alone"
        rows.append([f"downstream: {what} ends with a lower error by the palette", f"{lower} points", verdict(lower)])
    return rows


def lowered(curves: Curves, variant: str) -> Mean:
    """By how much the last error is lower with the palette than with the conditions of before."""
    ends = [[curve.points[-1].pmi for curve in curves[variant][way]] for way in ("before", "palette")]
    return mean(a - b for a, b in zip(*ends, strict=True))


def _cost(outcomes: Sequence[FieldOutcome], large: Sequence[LargeFit]) -> list[Row]:
    colour = [fit.seconds for o in outcomes if o.case.dataset == "cifar10" for fit in o.fits]
    rows: list[Row] = []
    for what, seconds in (("32 x 32 x 3", colour), (_size(large), [fit.seconds for fit in large])):
        if seconds:
            mixed = NOT_HELD if average(seconds) > MAX_SECONDS else NOT_DECIDED
            decided = HELD if max(seconds) <= MAX_SECONDS else mixed
            worst = f"{average(seconds):.0f} s, at most {max(seconds):.0f}, n = {len(seconds)}"
            rows.append([f"a fit takes at most {MAX_SECONDS:g} s of CPU time at {what}", worst, decided])
    if large:
        most = max(fit.memory for fit in large)
        rows.append(
            [
                f"its memory stays below {MAX_MEMORY / 1e9:g} GB at {_size(large)}",
                f"{most / 1e9:.2f} GB",
                HELD if most < MAX_MEMORY else NOT_HELD,
            ]
        )
    return rows


def _size(large: Sequence[LargeFit]) -> str:
    return f"{large[0].side} x {large[0].side}" if large else ""


def _control(controls: dict[str, list[TimedConditions]]) -> Row:
    fits = [fit.conditions for each in controls.values() for fit in each]
    none = sum(not fit.active for fit in fits)
    claim = "in other images of the training source, no condition is found"
    return [claim, proportion(none, len(fits)), HELD if none == len(fits) else NOT_HELD]
