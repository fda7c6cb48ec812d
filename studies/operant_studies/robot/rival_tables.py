"""Tables of the rivals on the page of the RobOT study; empty without rivals."""

from __future__ import annotations

from collections.abc import Sequence

from operant_studies.robot.results import MEASURES, RobotStudyResults
from operant_studies.robot.rivals import BALL, rows_of
from operant_studies.robot.tables import accuracy_rows
from operant_studies.robot.unit import MIN_RIVAL_CASES
from operant_studies.shared import mean, table


def on_rivals(found: Sequence[RobotStudyResults]) -> str:
    """Table IV's other columns."""
    rows = [
        [f.setting.label, rival, *row] for f in found for rival in f.setting.rivals for row in accuracy_rows(f, rival)
    ]
    if not rows:
        return ""
    columns = ["data, radius", "cases of", "chosen by", "cases", "paper", "here"]
    return "### The same against the rivals' cases\n\n" + table(columns, rows)


def pools(found: Sequence[RobotStudyResults]) -> str:
    """Fig. 7's other columns: cases chosen from those of each rival."""
    rows = []
    for f in found:
        share = f.setting.shares[-1]
        for rival in f.setting.rivals:
            for strategy in f.setting.strategies:
                arm = f"{rival}.{strategy}"
                n = f"{mean(j.n for j in f.judged(arm, share)).value:.0f}"
                cells = [f.over_seeds(arm, share, measure).share for measure in MEASURES.values()]
                rows.append([f.setting.label, rival, strategy, n, *cells])
    if not rows:
        return ""
    budget = " and ".join(sorted({f"{rows_of(f.setting)}" for f in found if f.setting.rivals}))
    text = f"""### Cases of the rivals to choose from

The pool has the cases that each rival found in the race; the largest share of it is chosen, or all of it where it has
fewer than {MIN_RIVAL_CASES} cases. DeepXplore (occlusion, two more LeNet-5 to compare with), DeepHunter (neuron
coverage) and TensorFuzz (in the ball of the attacks) have {budget} model rows per seed, DLFuzz as many as ADAPT, in a
ball of {BALL} of the seed's length. Cases may lie outside the ball for which FOL is defined.

"""
    return text + table(["data, radius", "cases of", "chosen by", "cases", *MEASURES], rows)
