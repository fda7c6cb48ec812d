"""The page of the study of rivals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from operant.results import write_atomically
from operant_studies.rivals import tables
from operant_studies.rivals.contests import CONTESTS
from operant_studies.rivals.outcome import RivalsOutcome, widened
from operant_studies.rivals.pictures import draw_curves, draw_finding
from operant_studies.rivals.settings import RivalsSetting

INTRO = """# The rivals, run again

DeepXplore, DLFuzz, DeepHunter and TensorFuzz: does their guidance cover more than random mutation does with as many
model rows, each on its own criterion? How many failures do they find in a CPU second, and how natural are these, beside
FOL-Fuzz and OperationalFuzz? By `operant study rivals --scale {scale}`.

*Beats random*: the 95 % interval of the lead, over {seeds} seeds, lies above 0; *loses*: below. The first search of
each table is as published or, where that leaves a choice, our default; the others change what may be the reason.
*Change of lead* is in points, paired by seed.

Many comparisons: with {count} rows at 95 % a few come out by chance alone. The first searches give {answers} answers;
for all of them to hold at once, intervals must be {wider:.1f} times as wide, and it is said which are then no longer
decided. The other {others} rows were looked through for what helps: a change that helps is called a reason only if it
stays above 0 with an interval {widest:.1f} times as wide, else a hint.
"""


def write_page(out: Path, settings: Sequence[RivalsSetting], *, scale: str) -> Path:
    """Write ``rivals.md`` and its pictures into ``out``."""
    outcomes = [RivalsOutcome(setting, out) for setting in settings]
    for o in outcomes:
        draw_curves(o, out / _picture(o))
    draw_finding(outcomes, out / "rivals-finding.svg")
    sections = [
        _intro(settings, scale),
        tables.reasons(outcomes),
        "## Coverage by model rows\n",
        *(f"![Coverage by model rows, {o.setting.title}]({_picture(o)})\n" for o in outcomes),
        *(tables.contest(outcomes, contest) for contest in CONTESTS),
        tables.finding(outcomes),
        tables.method(outcomes),
    ]
    path = out / "rivals.md"
    write_atomically(path, "\n".join(sections).encode())
    return path


def _intro(settings: Sequence[RivalsSetting], scale: str) -> str:
    seeds, answers = len(settings[0].seeds), len(settings) * len(CONTESTS)
    count = len(settings) * sum(len(contest.arms) for contest in CONTESTS)
    others = count - answers
    return INTRO.format(
        scale=scale,
        seeds=seeds,
        count=count,
        answers=answers,
        others=others,
        wider=widened(seeds, answers),
        widest=widened(seeds, others),
    )


def _picture(outcome: RivalsOutcome) -> str:
    return f"rivals-{outcome.setting.name}.svg"
