"""What the rivals add to the page of the RobOT study; nothing where they were not asked for."""

from __future__ import annotations

from collections.abc import Sequence

from operant_studies.robot.found import MEASURES, Found, label
from operant_studies.robot.rivals import BALL, rows_of
from operant_studies.robot.unit import FEW, OnAdapt
from operant_studies.shared import mean, table

PAPER_IV = {
    "deepxplore": {
        "mnist": {"be-st": 86.12, "km-st": 80.56, "deepgini": 73.74},
        "fashion-mnist": {"be-st": 51.57, "km-st": 47.97, "deepgini": 34.14},
        "svhn": {"be-st": 37.10, "km-st": 38.29, "deepgini": 27.26},
    },
    "dlfuzz": {
        "mnist": {"be-st": 76.39, "km-st": 74.73, "deepgini": 65.59},
        "fashion-mnist": {"be-st": 38.15, "km-st": 35.44, "deepgini": 27.16},
        "svhn": {"be-st": 32.83, "km-st": 34.83, "deepgini": 25.34},
    },
}


def on_rivals(found: Sequence[Found]) -> str:
    """Table IV's other columns."""
    rows = []
    for f in found:
        for rival in f.setting.rivals:
            told, paper = f.of(f"on-{rival}", OnAdapt), PAPER_IV.get(rival, {}).get(f.setting.dataset, {})
            for name in told[0].accuracy:
                strategy, shares = name.rsplit("-", 1)[0], [t.accuracy[name] for t in told if t.cases]
                cases = f"{mean(t.cases for t in told).value:.0f}"
                here = mean(shares).share if shares else "no cases"
                rows.append([label(f.setting), rival, strategy, cases, paper.get(strategy, ""), here])
    if not rows:
        return ""
    columns = ["data, radius", "cases of", "chosen by", "cases", "paper", "here"]
    return "### The same against the rivals' cases\n\n" + table(columns, rows)


def pools(found: Sequence[Found]) -> str:
    """Fig. 7's other columns: chosen from what each rival found."""
    rows = []
    for f in found:
        share = f.setting.shares[-1]
        for rival in f.setting.rivals:
            for strategy in f.setting.strategies:
                arm = f"{rival}.{strategy}"
                n = f"{mean(j.n for j in f.judged(arm, share)).value:.0f}"
                cells = [f.over_seeds(arm, share, measure).share for measure in MEASURES.values()]
                rows.append([label(f.setting), rival, strategy, n, *cells])
    if not rows:
        return ""
    budget = " and ".join(sorted({f"{rows_of(f.setting)}" for f in found if f.setting.rivals}))
    text = f"""### Cases of the rivals to choose from

The pool is what each rival found in the race; the largest share of it is chosen, or all of it where it has fewer than
{FEW} cases. DeepXplore (occlusion, two more LeNet-5 to compare with), DeepHunter (neuron coverage) and TensorFuzz (in
the ball of the attacks) have {budget} model rows a seed, DLFuzz as many as ADAPT, in a ball of {BALL} of the seed's
length. Cases may lie outside the ball that FOL is told for.

"""
    return text + table(["data, radius", "cases of", "chosen by", "cases", *MEASURES], rows)
