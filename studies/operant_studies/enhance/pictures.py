"""The picture of the study of enhancement."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from operant_studies.enhance.results import EnhanceResults, change, rate
from operant_studies.enhance.settings import CONTROL
from operant_studies.kuk.settings import PATTERNS
from operant_studies.shared import save_figure


def draw_groups(found: Sequence[EnhanceResults], path: Path) -> None:
    """Accuracy change and transfer calibration of each group, one row of panels per model; dots are runs."""
    figure = Figure(figsize=(8.0, 2.8 * max(len(found), 1)), layout="constrained")
    axes = figure.subplots(max(len(found), 1), 2, squeeze=False)
    panels = ((change, "accuracy change, points"), (rate, "transfer calibration, %"))
    for line, f in zip(axes, found, strict=False):
        names = list(f.runs)
        for ax, (of, title) in zip(line, panels, strict=True):
            for y, group in enumerate(names):
                colour = "#566573" if group == CONTROL else "#c0392b" if group in PATTERNS else "#2471a3"
                values = [100 * value for value in f.values(group, of).values()]
                ax.plot(values, [y] * len(values), "o", color=colour, markersize=3, alpha=0.5)
                if values:
                    ax.plot([sum(values) / len(values)], [y], "|", color=colour, markersize=14, markeredgewidth=2)
            if of is change:
                ax.axvline(0, color="#b2babb", linewidth=0.8)
            ax.set_yticks(range(len(names)), names, fontsize=7)
            ax.invert_yaxis()
            ax.set_xlabel(title, fontsize=8)
            ax.set_title(f.title, fontsize=8)
    save_figure(figure, path)
