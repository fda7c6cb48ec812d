"""The pictures of the KuK study."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from operant.measure import plot_plane
from operant.suite import Suite
from operant_studies.kuk import paper
from operant_studies.kuk.existing import FIXED
from operant_studies.kuk.results import KukResults
from operant_studies.shared import save_figure

COLOURS = {
    "benign": "#2e8b57",
    "BIM": "#c0392b",
    "C&W": "#8e44ad",
    "DeepFool": "#2471a3",
    "FGSM": "#e67e22",
    "DeepHunter-KMNC": "#7f8c8d",
    "DeepHunter-NC": "#34495e",
    "TensorFuzz": "#b7950b",
}


def draw_planes(found: Sequence[KukResults], out: Path) -> None:
    """Cases of the searches in the plane of PCS and VRO, as in Fig. 3: one picture per model, the first run."""
    for f in found:
        suites = [f.by_run(pattern)[0].suite() for pattern in f.searches()]
        if suites:
            rows = [_numbered(suite, i) for i, suite in enumerate(suites)]
            figure = plot_plane(Suite.concat(rows), title=f.subject.title)
            save_figure(figure, out / f"kuk-plane-{f.subject.name}.svg")


def _numbered(suite: Suite, i: int) -> Suite:
    """The suite with ids of its own, so that rows of several suites differ."""
    seeds = suite.seeds
    apart = type(seeds)(seeds.x + 1e6 * i, seeds.labels, seeds.ids + 10**6 * i)
    return Suite.of(
        suite.x, seeds=apart, origin=suite.seed, prediction=suite.prediction, method="kuk", columns=suite.columns
    )


def draw_means(found: Sequence[KukResults], path: Path) -> None:
    """Mean PCS and VRO of each method: ours filled, the paper's hollow, squares for a fixed radius."""
    figure = Figure(figsize=(max(3.4 * len(found), 4.6), 3.6), layout="constrained")
    axes = figure.subplots(1, max(len(found), 1), squeeze=False)[0]
    for ax, f in zip(axes, found, strict=True):
        for method, m in f.measured.items():
            if not len(m.values["pcs"]):
                continue
            here = float(m.values["pcs"].mean()), float(m.values["vro"].mean())
            name = method.removesuffix(", fixed radius")
            colour = COLOURS[name]
            ax.plot(*here, "s" if method in FIXED else "o", color=colour, markersize=6, label=method)
            if method not in FIXED:
                there = [paper.mean_of(f.subject.name, method, measure) for measure in ("pcs", "vro")]
                ax.plot(*there, "o", markerfacecolor="none", markeredgecolor=colour, markersize=6)
                ax.plot(*zip(here, there, strict=True), color=colour, linewidth=0.6)
        ax.set(title=f.subject.title, xlim=(-0.03, 1.03), ylim=(-0.03, 1.03), xlabel="mean PCS")
        ax.title.set_fontsize(9)
    axes[0].set_ylabel("mean VRO")
    if any(f.measured for f in found):
        most = max(zip(axes, found, strict=True), key=lambda pair: len(pair[1].measured))[0]
        axes[-1].legend(*most.get_legend_handles_labels(), fontsize=6, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    save_figure(figure, path)
