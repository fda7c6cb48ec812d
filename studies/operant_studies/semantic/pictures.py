"""The picture of the study of semantic tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

from operant_studies.semantic.outcome import SemanticOutcome
from operant_studies.semantic.plain_tables import TITLES
from operant_studies.semantic.transfer import HUNTS
from operant_studies.shared import save_figure

COLOURS = ("#2471a3", "#1e8449", "#17a589", "#b7950b")
BOUND = "#c0392b"


def draw_distances(plain: SemanticOutcome, path: Path) -> None:
    """Distances from seed to test of failing tests, filled where valid; a line at the usual bound, as in Fig. 2."""
    figure = Figure(figsize=(8.4, 7.0), layout="constrained")
    norms = (("linf", plain.setting.bounds[0], "L-infinity"), ("l2", plain.setting.bounds[1], "L2"))
    for row, axes in zip(HUNTS, figure.subplots(len(HUNTS), 2, squeeze=False, sharex="col"), strict=True):
        shots = [h.shots[row] for h in plain.hunted]
        failing, valid = (torch.cat([getattr(s, name) for s in shots]) > 0 for name in ("failing", "valid"))
        for ax, (norm, bound, name) in zip(axes, norms, strict=True):
            far = torch.cat([getattr(s, norm) for s in shots])
            top = 1.0 if norm == "linf" else max(1.2 * bound, float(far.max()))
            bins = np.linspace(0, top, 31)
            colour = COLOURS[HUNTS.index(row)]
            ax.hist(far[failing].numpy(), bins, histtype="step", color=colour, label="failing")
            ax.hist(far[failing & valid].numpy(), bins, color=colour, alpha=0.5, label="failing and valid")
            ax.axvline(bound, color=BOUND, linewidth=1.2, label="usual bound")
            ax.set_title(f"{TITLES[row]}, {name}", fontsize=8)
            ax.tick_params(labelsize=7)
            ax.legend(fontsize=6)
    save_figure(figure, path)
