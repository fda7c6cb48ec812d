"""The pictures of the study of seeds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter

from operant_studies.seeds.outcome import ArmResult, SeedsOutcome
from operant_studies.seeds.settings import SETUPS
from operant_studies.seeds.tables import cap
from operant_studies.seeds.trials import BY_MAP, DEFAULT
from operant_studies.seeds.weighting import CHOSEN
from operant_studies.shared import save_figure

WITH, WITHOUT, DARK, MAP = "#2471a3", "#b7950b", "#c0392b", "#1e8449"


def draw_designs(outcomes: Sequence[SeedsOutcome], path: Path) -> None:
    """Failing mass found against RMSE, both relative to simple random sampling; one dot per arm."""
    kinds = list(dict.fromkeys(o.kind for o in outcomes))
    figure = Figure(figsize=(12, 3.1 * len(kinds)), layout="constrained")
    axes = figure.subplots(len(kinds), len(SETUPS), squeeze=False)
    for o in outcomes:
        ax = axes[kinds.index(o.kind)][list(SETUPS).index(o.name)]
        without = [t for t in o.tried.values() if t.arm.score and t.estimates and not t.arm.profile]
        _dots(ax, without, WITHOUT, "without it")
        _dots(ax, o.grid, WITH, "with the profile")
        _dots(ax, [o.tried[DEFAULT]], DARK, "default", size=60)
        _dots(ax, [o.tried[BY_MAP]], MAP, "default, by the risk map", size=60)
        f = o.facts
        point = f.operational_rmse / f.simple_rmse, f.operational_found / f.simple_found
        ax.plot(*point, "s", color="black", markersize=5, label="operational")
        ax.plot(1, 1, "x", color="black", label="simple random")
        ax.axhline(10, color="black", linewidth=0.6, linestyle=":")
        ax.axvline(1, color="black", linewidth=0.6, linestyle=":")
        ax.axhline(cap(o), color=DARK, linewidth=0.8, linestyle="--", label="at most")
        ax.set(xscale="log", yscale="log", xlabel="RMSE / simple")
        _label(ax.xaxis, (0.01, 0.03, 0.1, 0.3, 0.5, 1, 2), ax.get_xlim())
        _label(ax.yaxis, (1, 3, 10, 30), ax.get_ylim())
        ax.set_title(f"{SETUPS[o.name]}, {o.kind}", fontsize=8)
    axes[0][0].set_ylabel("failing mass found / simple")
    figure.legend(*axes[0][0].get_legend_handles_labels(), fontsize=8, loc="outside lower center", ncols=7)
    save_figure(figure, path)


def _dots(ax: Axes, tried: Sequence[ArmResult], colour: str, label: str, *, size: float = 9) -> None:
    if tried:
        x, y = [t.loss.value for t in tried], [t.gain.value for t in tried]
        ax.scatter(x, y, s=size, color=colour, alpha=0.7, linewidths=0, label=label)


def _label(axis: Axis, ticks: Sequence[float], limits: tuple[float, float]) -> None:
    """Label these ticks with plain numbers, where they lie within the limits."""
    shown = [tick for tick in ticks if limits[0] <= tick <= limits[1]]
    axis.set_major_locator(FixedLocator(shown))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def draw_weightings(outcomes: Sequence[SeedsOutcome], path: Path) -> None:
    """The pool's pmi under each weighting, one dot per seed; the line is the field's."""
    shown = [o for o in outcomes if o.weighed]
    figure = Figure(figsize=(11, 2.9 * ((len(shown) + 1) // 2)), layout="constrained")
    axes = figure.subplots((len(shown) + 1) // 2, 2, squeeze=False).ravel()
    for ax, o in zip(axes, shown, strict=False):
        names = [way.name for way in o.weighed[0].ways]
        for y, name in enumerate(names):
            values = [100 * w.way(name).pmi for w in o.weighed]
            ax.plot(values, [y] * len(values), "o", markersize=4, color=DARK if name == CHOSEN else WITH)
        ax.axvline(100 * sum(w.truth for w in o.weighed) / len(o.weighed), color="black", linewidth=0.8)
        ax.set_yticks(range(len(names)), names, fontsize=6)
        ax.invert_yaxis()
        ax.set_title(f"{o.label}: pmi, %", fontsize=8)
    for ax in axes[len(shown) :]:
        ax.set_visible(False)
    save_figure(figure, path)
