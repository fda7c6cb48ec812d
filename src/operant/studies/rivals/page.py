"""The page of the study of rivals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from operant.results import write_atomically
from operant.studies.rivals import tables
from operant.studies.rivals.contests import CONTESTS
from operant.studies.rivals.outcome import Outcome
from operant.studies.rivals.pictures import draw_curves, draw_finding
from operant.studies.rivals.settings import Setting

INTRO = """# The rivals, run again

DeepXplore, DLFuzz, DeepHunter and TensorFuzz: does their guidance cover more than random mutation does with as many
model rows, each on its own criterion? How many failures do they find in a CPU second, and how natural are these, beside
FOL-Fuzz and OperationalFuzz? By `operant study rivals --scale {scale}`.

*Beats random*: the 95 % interval of the lead, over {seeds} seeds, lies above 0; *loses*: below. The first search of
each table is as published or, where that leaves a choice, our default; the others change what may be the reason.
*Change of lead* is in points, paired by seed. With {count} rows at 95 % a few would come out by chance alone.
"""


def write_page(out: Path, settings: Sequence[Setting], *, scale: str) -> Path:
    """Write ``rivals.md`` and its pictures into ``out``."""
    outcomes = [Outcome(setting, out) for setting in settings]
    for o in outcomes:
        draw_curves(o, out / _picture(o))
    draw_finding(outcomes, out / "rivals-finding.svg")
    count = len(outcomes) * sum(len(contest.arms) for contest in CONTESTS)
    sections = [
        INTRO.format(scale=scale, seeds=len(settings[0].seeds), count=count),
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


def _picture(outcome: Outcome) -> str:
    return f"rivals-{outcome.setting.name}.svg"
