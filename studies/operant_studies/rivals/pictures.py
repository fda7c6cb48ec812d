"""The pictures of the study of rivals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from operant_studies.operational_fuzz.finding import RANDOM
from operant_studies.rivals.contests import CONTESTS, Contest
from operant_studies.rivals.curves import CoverageCurve
from operant_studies.rivals.finding import OURS
from operant_studies.rivals.outcome import RivalsOutcome
from operant_studies.shared import mean, save_figure

ACROSS = 4  # panels per row
COLOURS = ("#c0392b", "#2471a3", "#b7950b", "#1e8449", "#7d3c98", "#ca6f1e", "#17a589")
CHANCE = "#566573"
POINTS = 60  # per line


def draw_curves(outcome: RivalsOutcome, path: Path) -> None:
    """Coverage by model rows, one panel per contest: rivals solid, random dashed; a band for the first of each."""
    lines = -(-len(CONTESTS) // ACROSS)
    figure = Figure(figsize=(4.0 * ACROSS, 3.2 * lines), layout="constrained")
    axes = figure.subplots(lines, ACROSS, squeeze=False).flatten()
    for ax, contest in zip(axes, CONTESTS, strict=False):
        _panel(ax, outcome, contest)
    for ax in axes[len(CONTESTS) :]:
        ax.axis("off")
    save_figure(figure, path)


def _panel(ax: Any, outcome: RivalsOutcome, contest: Contest) -> None:
    each, drawn = outcome.curves[contest.key], set[str]()
    for number, arm in enumerate(contest.arms):
        colour = COLOURS[number % len(COLOURS)]
        _line(ax, [curves[arm.name] for curves in each], colour, "-", label=arm.name, band=number == 0)
        for name in arm.controls:  # grey for the first arm, else the colour of the arm that has to beat them
            if name not in drawn:
                first = number == 0 and name == arm.controls[0]
                _line(ax, [c[name] for c in each], colour if number else CHANCE, "--", label=name, band=first)
                drawn.add(name)
    if max(curve.coverage[-1] for curves in each for curve in curves.values()) > 1:
        ax.set_yscale("log")
    ax.set_title(f"{contest.title}\n{contest.criterion}", fontsize=7)
    ax.set_xlabel("model rows for each input", fontsize=7)
    ax.tick_params(which="both", labelsize=7)
    ax.legend(fontsize=5, ncols=1 + (len(contest.names) > 8))


def _line(ax: Any, curves: Sequence[CoverageCurve], colour: str, style: str, *, label: str | None, band: bool) -> None:
    """The mean over seeds, as far as all of them have data; the band is its 95 % t-interval."""
    rows = np.linspace(max(c.rows[0] for c in curves), min(c.rows[-1] for c in curves), POINTS)
    means = [mean(c.at(row) for c in curves) for row in rows]
    ax.plot(rows, [m.value for m in means], style, color=colour, linewidth=1.6 if band else 0.9, label=label)
    if band and len(curves) > 1:
        ax.fill_between(rows, [m.lower for m in means], [m.upper for m in means], color=colour, alpha=0.12, linewidth=0)


def draw_finding(outcomes: Sequence[RivalsOutcome], path: Path) -> None:
    """Failures per CPU second, one bar per search, natural ones darker; one dot per seed."""
    figure = Figure(figsize=(5.5 * len(outcomes), 3.8), layout="constrained")
    for ax, o in zip(figure.subplots(1, len(outcomes), squeeze=False)[0], outcomes, strict=True):
        names = list(o.found)
        for y, name in enumerate(names):
            each, colour = o.found[name], COLOURS[1] if name == OURS else CHANCE if name == RANDOM else COLOURS[2]
            ax.barh(y, mean(f.failures / f.seconds for f in each).value, color=colour, alpha=0.35)
            ax.barh(y, mean(f.natural / f.seconds for f in each).value, color=colour)
            ax.plot([f.failures / f.seconds for f in each], [y] * len(each), "o", color="black", markersize=2.5)
        ax.set_yticks(range(len(names)), names, fontsize=7)
        ax.invert_yaxis()
        ax.set_xscale("symlog", linthresh=0.1)
        ax.set_xlabel("failures per CPU second, darker: natural")
        ax.set_title(o.setting.title, fontsize=9)
    save_figure(figure, path)
