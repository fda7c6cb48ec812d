"""The pictures of the study: lifts by ranking, and sheets of cases beside their seeds."""

from __future__ import annotations

from pathlib import Path

import torch
from matplotlib.figure import Figure

from operant_studies.cases.judging import ShownCases
from operant_studies.cases.outcome import Outcome
from operant_studies.cases.ranking import RISK
from operant_studies.cases.rivals import RIVALS
from operant_studies.field.pictures import COLOURS
from operant_studies.operational_fuzz.sheets import draw_sheet, names_of
from operant_studies.shared import save_figure

SCALE = 3  # pixels per pixel of an image


def draw_lifts(outcome: Outcome, path: Path) -> None:
    """Lift at 5 % of each ranking, one dot per seed; the ceiling as a line."""
    figure = Figure(figsize=(11, 4), layout="constrained")
    ax = figure.subplots()
    for k, ranking in enumerate((RISK, *RIVALS)):
        points = [(i, r.lift5[ranking]) for i, each in enumerate(outcome.ranked.values()) for r in each]
        x = [i + 0.11 * (k - len(RIVALS) / 2) for i, _ in points]
        colour = COLOURS[k - 1] if k else "black"
        ax.scatter(x, [y for _, y in points], s=18, color=colour, alpha=0.8, linewidths=0, label=ranking)
    ceilings = [sum(min(1 / r.pmi, 20) for r in each) / len(each) for each in outcome.ranked.values()]
    ax.plot(range(len(ceilings)), ceilings, "_", color="black", markersize=60, label="ceiling")
    ax.set_xticks(range(len(ceilings)), list(outcome.ranked))
    ax.set(ylabel="lift of the riskiest 5 %", ylim=(0, None))
    ax.legend(fontsize=7)
    save_figure(figure, path)


def draw_cases(shown: ShownCases, dataset: str, path: Path) -> None:
    """Each seed (left) and its case (right) as one picture, numbered, with label and prediction."""
    pairs = torch.cat([shown.seeds, torch.ones_like(shown.seeds[..., :1]), shown.cases], 3)
    draw_sheet(pairs, shown.labels, shown.predictions, names_of(dataset), path, scale=SCALE)
