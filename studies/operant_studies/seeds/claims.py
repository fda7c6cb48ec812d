"""The claims about seeds, and whether they held."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from operant_studies.seeds.outcome import ArmResult, SeedsOutcome, ratio_of_rmse
from operant_studies.seeds.tables import cap, ceiling, interval, signed
from operant_studies.seeds.trials import BY_MAP, DEFAULT, DrawArm
from operant_studies.seeds.weighting import CHOSEN
from operant_studies.shared import compare, mean, table, verdict

TIMES = 10.0


def claims(outcomes: Sequence[SeedsOutcome]) -> str:
    weighted = [o for o in outcomes if o.unit.weighted]
    return f"""## What held

### Ten times the failing mass, at no worse an estimate

*Held*: the design finds at least {TIMES:g} times as much as simple random sampling, and its RMSE is no larger, both
with their whole 95 % intervals; *not held*: one of the two intervals lies on the wrong side; else *not decided*. The
default was fixed beforehand, and so was the same design by the risk map. A campaign draws its seeds by that, from
training inputs, and then keeps shares of classes and cells. The best of the grid was chosen by the first repetitions
and is judged by fresh ones. *At most* and *the riskiest* are the upper limits of the section on what is possible;
*operational* draws by mass alone; these three are multiples of simple random sampling, too.

{_ten_times(outcomes)}
### The risk map finds more than the margin

The default by the risk map ({BY_MAP}) against the default, which differs only in the score.
*Held*: the whole interval of the difference in failing mass found, in multiples of simple sampling's, lies above 0; for
the estimate, that of the ratio of RMSEs above 1.
*Best other*: of the scores without cases, the one that finds most with this design, chosen with hindsight. The
intervals are those of one risk map per set-up and network; [other maps](#what-the-risk-map-knows) can find less.

{_by_map(outcomes)}
### The profile matters

The default, and the same by the risk map, each with the profile against the same without it, where pool inputs differ
in mass. *Held*: the whole interval lies above 0 for the difference, above 1 for the ratio of RMSEs.

{_with_profile(weighted)}"""


def _ten_times(outcomes: Sequence[SeedsOutcome]) -> str:
    rows = []
    for o in outcomes:
        riskiest = f"{ceiling(o)[0].gain.value:.1f}"
        operational = f"{o.facts.operational_found / o.facts.simple_found:.1f}"
        drawn = {f"default: {DEFAULT}": o.tried[DEFAULT], f"by the risk map: {BY_MAP}": o.tried[BY_MAP]}
        for name, t in (*drawn.items(), (f"best of {len(o.grid)}: {o.best.arm}", o.best)):
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
        for arm in (DEFAULT, BY_MAP):
            without = replace(arm, profile=False)
            found, better = _found_more(o, arm, without), _estimated_better(o, arm, without)
            rows.append([o.label, f"{arm.score}: finds more failing mass, in multiples of simple sampling's", *found])
            rows.append([o.label, f"{arm.score}: estimates better: RMSE without / with", *better])
        nearer = mean(abs(w.way("equal").pmi - w.truth) - abs(w.way(CHOSEN).pmi - w.truth) for w in o.weighed)
        how = f"brings the pool's pmi nearer to the field's than equal masses, points, {nearer.n} seeds"
        rows.append([o.label, how, str(nearer), f"**{verdict(nearer)}**"])
    return table(["set-up", "the profile …", "difference or ratio", ""], rows)


def _by_map(outcomes: Sequence[SeedsOutcome]) -> str:
    rows = []
    for o in outcomes:
        others = [o.tried[replace(DEFAULT, score=score)] for score in o.setting.scores if score != BY_MAP.score]
        other = max(others, key=lambda t: t.gain.value)
        gains = [f"{o.tried[arm].gain.value:.1f}" for arm in (DEFAULT, BY_MAP)]
        gains.append(f"{other.gain.value:.1f} ({other.arm.score})")
        found, better = _found_more(o, BY_MAP, DEFAULT), _estimated_better(o, BY_MAP, DEFAULT)
        rows.append([o.label, *gains, *found, *better])
    columns = ["set-up", "margin finds", "risk map finds", "best other finds", "risk map - margin", "finds more"]
    return table([*columns, "RMSE margin / risk map", "estimates better"], rows)


def _found_more(o: SeedsOutcome, arm: DrawArm, other: DrawArm) -> tuple[str, str]:
    """The difference in failing mass found, in multiples of simple sampling's, and the verdict."""
    difference = mean(((o.tried[arm].found - o.tried[other].found) / o.facts.simple_found).tolist())
    return signed(difference), f"**{verdict(difference)}**"


def _estimated_better(o: SeedsOutcome, arm: DrawArm, other: DrawArm) -> tuple[str, str]:
    """RMSE of the other divided by that of the arm, and the verdict."""
    ratio = ratio_of_rmse(o.tried[other], o.tried[arm])
    return interval(ratio, 1, 2), f"**{compare(ratio.lower, ratio.upper, 1)}**"
