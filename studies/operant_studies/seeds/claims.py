"""The claims about seeds, and whether they held."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from operant_studies.seeds.outcome import ArmResult, SeedsOutcome, ratio_of_rmse
from operant_studies.seeds.tables import cap, ceiling, interval
from operant_studies.seeds.trials import DEFAULT
from operant_studies.seeds.weighting import CHOSEN
from operant_studies.shared import Mean, compare, mean, table, verdict

TIMES = 10.0


def claims(outcomes: Sequence[SeedsOutcome]) -> str:
    weighted = [o for o in outcomes if o.unit.weighted]
    return f"""## What held

### Ten times the failing mass, at no worse an estimate

*Held*: the design finds at least {TIMES:g} times as much as simple random sampling, and its RMSE is no larger, both
with their whole 95 % intervals; *not held*: one of the two intervals lies on the wrong side; else *not decided*. The
default was fixed beforehand; the best of the grid was chosen by the first repetitions and is judged by fresh ones. *At
most* and *the riskiest* are the upper limits of the next section; *operational* draws by mass alone; these three are
multiples of simple random sampling, too.

{_ten_times(outcomes)}
### The profile matters

The default with the profile against the same without it, where pool inputs differ in mass. *Held*: the whole interval
lies above 0 for the difference, above 1 for the ratio of RMSEs.

{_with_profile(weighted)}"""


def _ten_times(outcomes: Sequence[SeedsOutcome]) -> str:
    rows = []
    for o in outcomes:
        riskiest = f"{ceiling(o)[0].gain.value:.1f}"
        operational = f"{o.facts.operational_found / o.facts.simple_found:.1f}"
        for name, t in ((f"default: {DEFAULT}", o.tried[DEFAULT]), (f"best of {len(o.grid)}: {o.best.arm}", o.best)):
            decided = f"**{ten_times(t)}**"
            rows.append([o.label, name, interval(t.gain, 1, 1), interval(t.loss, 1, 2)])
            rows[-1] += [
                f"{t.rmse.value / o.facts.operational_rmse:.2f}",
                f"{cap(o):.1f}",
                riskiest,
                operational,
                decided,
            ]
    columns = ["set-up", "drawn by", "finds / simple", "RMSE / simple", "RMSE / operational"]
    columns += ["at most", "the riskiest", "operational", ""]
    return table(columns, rows)


def ten_times(t: ArmResult) -> str:
    if t.gain.lower >= TIMES and t.loss.upper <= 1:
        return "held"
    return "not held" if t.gain.upper < TIMES or t.loss.lower > 1 else "not decided"


def _with_profile(outcomes: Sequence[SeedsOutcome]) -> str:
    rows = []
    for o in outcomes:
        a, b = o.tried[DEFAULT], o.tried[replace(DEFAULT, profile=False)]
        found = mean(((a.found - b.found) / o.facts.simple_found).tolist())
        rows.append([o.label, "finds more failing mass, in multiples of simple sampling's", _signed(found)])
        rows[-1].append(f"**{verdict(found)}**")
        ratio = ratio_of_rmse(b, a)
        decided = compare(ratio.lower, ratio.upper, 1)
        rows.append([o.label, "estimates better: RMSE without / with", interval(ratio, 1, 2), f"**{decided}**"])
        nearer = mean(abs(w.way("equal").pmi - w.truth) - abs(w.way(CHOSEN).pmi - w.truth) for w in o.weighed)
        how = f"brings the pool's pmi nearer to the field's than equal masses, points, {nearer.n} seeds"
        rows.append([o.label, how, str(nearer), f"**{verdict(nearer)}**"])
    return table(["set-up", "the profile …", "difference or ratio", ""], rows)


def _signed(value: Mean) -> str:
    return f"{value.value:.1f} [{value.lower:.1f}, {value.upper:.1f}]"
