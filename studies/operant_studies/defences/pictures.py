"""The picture of the study of defences."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from operant_studies.defences import paper
from operant_studies.defences.judging import COMMON, UNCOMMON
from operant_studies.defences.results import DefenceResults
from operant_studies.shared import save_figure

COLOURS = {COMMON: "#2471a3", UNCOMMON: "#c0392b"}


def draw_success(found: Sequence[DefenceResults], path: Path) -> None:
    """Success on common and on uncommon data, with intervals; the paper's hollow."""
    figure = Figure(figsize=(max(3.2 * len(found), 4.8), 3.2), layout="constrained")
    axes = figure.subplots(1, max(len(found), 1), squeeze=False)[0]
    for ax, f in zip(axes, found, strict=False):
        names = list(f.outcomes)
        for y, defence in enumerate(names):
            known = paper.TABLES.get(f.plan.name, {}).get(defence)
            for i, data in enumerate((COMMON, UNCOMMON)):
                place = y + 0.16 * (2 * i - 1)
                if f.pooled(defence, data)[1]:
                    here = f.success(defence, data)
                    ends = [100 * max(here.lower, 0), 100 * min(here.upper, 1)]
                    ax.plot(ends, [place] * 2, color=COLOURS[data], linewidth=1)
                    ax.plot([100 * here.value], [place], "o", color=COLOURS[data], markersize=5)
                if known:
                    ax.plot([100 * known[i]], [place], "o", markerfacecolor="none", markeredgecolor=COLOURS[data])
        ax.set(title=f.title.split(" (")[0], xlim=(-3, 103), xlabel="success, %")
        ax.title.set_fontsize(8)
        ax.set_yticks(range(len(names)), names, fontsize=7)
        ax.invert_yaxis()
    dots = [Line2D([], [], marker="o", linestyle="", color=colour) for colour in COLOURS.values()]
    hollow = Line2D([], [], marker="o", linestyle="", markerfacecolor="none", markeredgecolor="black")
    figure.legend([*dots, hollow], [*COLOURS, "the paper's"], loc="outside lower center", ncols=3, fontsize=7)
    save_figure(figure, path)
