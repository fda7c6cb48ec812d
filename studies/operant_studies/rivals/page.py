"""The page of the study of rivals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from operant_studies.rivals import tables
from operant_studies.rivals.contests import CONTESTS
from operant_studies.rivals.outcome import RivalsOutcome, widened
from operant_studies.rivals.pictures import draw_curves, draw_finding
from operant_studies.rivals.settings import RivalsSetting
from operant_studies.shared import write_sections

INTRO = """# The rivals, run again

DeepXplore, DLFuzz, DeepHunter and TensorFuzz: does their guidance cover more than random mutation with the same
number of model rows, each on its own criterion? How many failures do they find per CPU second, and how natural are
these, compared with FOL-Fuzz and OperationalFuzz? By `operant study rivals --scale {scale}`.

*Beats random*: the 95 % interval of the lead, over {seeds} seeds, lies above 0; *loses*: below. The first search of
each table is as published or, where that leaves a choice, our default; each of the others changes a possible reason.
*Change of lead* is in points, paired by seed.

Of {count} comparisons at 95 %, a few come out by chance alone. The first searches give {answers} answers; for all of
them to hold at once, intervals must be {wider:.1f} times as wide, and the text says which are then no longer decided.
The other {others} rows show what helps: a change that helps is called a reason only if it stays above 0 with an
interval {widest:.1f} times as wide, else a hint.
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
    return write_sections(out / "rivals.md", sections)


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
