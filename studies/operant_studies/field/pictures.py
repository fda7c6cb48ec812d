"""The pictures of the study: field inputs beside simulated ones, and what the estimates of the error miss."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from PIL import Image, ImageDraw
from torch import Tensor

from operant_studies.field.outcome import FieldOutcome, average
from operant_studies.field.unit import SHOWN, ShownInputs
from operant_studies.operational_fuzz.sheets import pictures
from operant_studies.shared import save_figure

SIDE, GAP, CAPTION = 56, 2, 14  # pixels: of an image, between images, and of the text above a row
DARK = 0.5  # fields whose bright values lie below this are also shown brightened
COLOURS = ("#154360", "#c0392b", "#b7950b", "#27774a", "#a569bd", "#7f8c8d")


def draw_sheet(shown: dict[str, ShownInputs], path: Path) -> None:
    """Field inputs to the left, simulated ones to the right, one row per field; dark rows a second time, brightened."""
    rows = [row for title, each in shown.items() for row in _rows(title, each)]
    width, height = SHOWN * (SIDE + GAP), CAPTION + SIDE + GAP
    sheet = Image.new("RGB", (2 * width + 4 * GAP, height * len(rows)), "white")
    pen = ImageDraw.Draw(sheet)
    for i, (title, field, simulated) in enumerate(rows):
        pen.text((2, i * height + 1), title, fill="black")
        for start, x in ((0, field), (width + 4 * GAP, simulated)):
            for place, picture in enumerate(pictures(x)):
                image = Image.fromarray(picture).convert("RGB").resize((SIDE, SIDE), Image.Resampling.NEAREST)
                sheet.paste(image, (start + place * (SIDE + GAP), i * height + CAPTION))
    sheet.save(path, quality=80, optimize=True)


def _rows(title: str, each: ShownInputs) -> list[tuple[str, Tensor, Tensor]]:
    field, simulated = each.field[:SHOWN], each.simulated[:SHOWN]
    rows = [(f"{title}: field inputs (left), simulated (right)", field, simulated)]
    bright = float(np.quantile(field.numpy(), 0.98))
    if bright < DARK:
        rows.append((f"{title}, brightened", field / bright, simulated / bright))
    return rows


def draw_errors(outcomes: Sequence[FieldOutcome], path: Path) -> None:
    """By how much each estimate of the error is off, one dot per seed, a line through the means of the stated one."""
    some = [o for o in outcomes if o.errors]
    methods = list(dict.fromkeys(m for o in some for e in o.errors for m in e.by_method))
    figure = Figure(figsize=(11, 4), layout="constrained")
    ax = figure.subplots()
    for k, method in enumerate(methods):
        points = [(i, e) for i, o in enumerate(some) for e in o.errors if method in e.by_method]
        x = [i + 0.12 * (k - (len(methods) - 1) / 2) for i, _ in points]
        y = [100 * abs(e.by_method[method] - e.true) for _, e in points]
        ax.scatter(x, y, s=16, color=COLOURS[k % len(COLOURS)], alpha=0.8, linewidths=0, label=method)
    stated = [100 * average([abs(e.value - e.true) for e in o.errors]) for o in some]
    ax.plot(range(len(some)), stated, "_", color="black", markersize=24, label="stated, mean")
    ax.axhline(3, color="black", linewidth=0.6, linestyle=":")
    ax.set_xticks(range(len(some)), [o.case.name for o in some])
    ax.set(ylabel="off by, percentage points", ylim=(0, None))
    ax.legend(fontsize=7)
    save_figure(figure, path)
