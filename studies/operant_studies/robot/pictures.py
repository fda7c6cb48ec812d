"""The pictures of the RobOT study."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from operant_studies.robot.results import RobotStudyResults
from operant_studies.robot.unit import CasePool, FirstOrderLosses, Quantiles
from operant_studies.shared import save_figure

COLOURS = {"be-st": "#c0392b", "km-st": "#2471a3", "deepgini": "#b7950b", "random": "#566573"}


def draw_selection(found: Sequence[RobotStudyResults], path: Path) -> None:
    """Static robustness and PGD at a third of the radius, by share of cases, one line per strategy."""
    figure, axes = _panels(len(found), rows=2)
    for column, f in enumerate(found):
        shares = f.setting.shares
        for strategy in f.setting.strategies:
            for row, value in enumerate((lambda j: j.pooled, lambda j: j.near.value)):
                values = [f.over_seeds(strategy, share, value).value for share in shares]
                axes[row][column].plot(shares, values, "o-", color=COLOURS[strategy], label=strategy, markersize=3)
        control = f.over_seeds("control", 0, lambda j: j.near.value).value
        axes[1][column].axhline(control, color="black", linestyle=":", label="clean data alone")
        axes[0][column].set(title=f.setting.label, ylim=(0, 1))
        axes[1][column].set(xlabel="share of the pool, %", ylim=(0, None))
    axes[0][0].set_ylabel("static robustness")
    axes[1][0].set_ylabel("adaptive, a third of the radius")
    axes[1][0].legend(fontsize=7)
    save_figure(figure, path)


def draw_loss(found: Sequence[RobotStudyResults], path: Path) -> None:
    """Loss of the chosen cases: 5 to 95 % thin, the middle half thick, the median a dot."""
    figure, axes = _panels(len(found))
    for ax, f in zip(axes[0], found, strict=True):
        values = {"pool": [p.loss for p in f.of("pool", CasePool)]}
        for strategy in f.setting.strategies:
            judged = f.judged(strategy, f.setting.shares[-1])
            values[strategy] = [j.loss for j in judged if j.loss is not None]
        _bars(ax, values)
        ax.set(title=f.setting.label, xlabel="loss of the chosen cases")
    save_figure(figure, path)


def draw_fol(found: Sequence[RobotStudyResults], path: Path) -> None:
    """FOL of each model's adversarial examples of FGSM and of PGD."""
    figure, axes = _panels(len(found))
    for ax, f in zip(axes[0], found, strict=True):
        values = {}
        for model in ("original", "be-st-5", "be-st-10"):
            fols = f.of(f"fol-{model}", FirstOrderLosses)
            for attack in ("fgsm", "pgd"):
                values[f"{model}, {attack.upper()}"] = [s for x in fols if (s := getattr(x, attack)).n]
        _bars(ax, values)
        ax.set(title=f.setting.label, xlabel="FOL")
    save_figure(figure, path)


def _bars(ax: Any, values: dict[str, list[Quantiles]]) -> None:
    for y, (_, several) in enumerate(values.items()):
        if several:
            q = [sum(values) / len(values) for values in zip(*(s.quantiles for s in several), strict=True)]
            ax.plot([q[0], q[4]], [y, y], color="#7f8c8d", linewidth=1)
            ax.plot([q[1], q[3]], [y, y], color="#2471a3", linewidth=5, solid_capstyle="butt")
            ax.plot([q[2]], [y], "o", color="black", markersize=4)
    ax.set_yticks(range(len(values)), list(values), fontsize=8)
    ax.invert_yaxis()


def _panels(columns: int, *, rows: int = 1) -> tuple[Figure, Any]:
    figure = Figure(figsize=(max(3.4 * columns, 4.0), 2.8 * rows), layout="constrained")
    return figure, figure.subplots(rows, max(columns, 1), squeeze=False)
