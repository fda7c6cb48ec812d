"""Verdicts for other tools: a table, and a folder of pictures."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from operant._verdicts import VERDICTS, Judgement, columns_of
from operant.report.failures import is_picture
from operant.report.gallery import _shades
from operant.results import write_atomically
from operant.suite import Suite
from operant.triage.drawing import pair_of, png, range_of, unit
from operant.triage.verdicts import read_verdicts

ORDERS = re.compile(r"^[=+\-@\t\r]")  # what spreadsheets take for a formula


def export_csv(path: str | Path, file: str | Path, *, classes: Sequence[str] = ()) -> Path:
    """Write a table of all cases of a suite: what they are, what was measured, and what each person says.

    Args:
        path: the suite's folder.
        file: to write.
        classes: the name of each label; the number stands for itself unless given.
    """
    place = Path(file)
    place.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(place, csv_of(Suite.open(path), read_verdicts(path), classes).encode())
    return place


def csv_of(suite: Suite, said: Iterable[Judgement], classes: Sequence[str] = ()) -> str:
    """The table as text."""
    said = list(said)
    told = {name: values for name, values in suite.columns.items() if name not in columns_of((), 0)}
    people = sorted({judgement.by for judgement in said if judgement.verdict})
    each = {name: [""] * len(suite) for name in people}
    for judgement in said:
        if judgement.verdict:
            each[judgement.by][judgement.row] = judgement.verdict
    columns: dict[str, Sequence[Any]] = {
        "row": range(len(suite)),
        "seed": suite.seed.tolist(),
        "label": [_name(classes, label) for label in suite.label.tolist()],
        "prediction": [_name(classes, label) for label in suite.prediction.tolist()],
        "method": [_safe(str(method)) for method in suite.method],
        **{_safe(name): _cells(values) for name, values in told.items()},
        **{name: [_safe(str(cell)) for cell in values] for name, values in columns_of(said, len(suite)).items()},
        **{_safe(f"verdict of {name}"): values for name, values in each.items()},
    }
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return text.getvalue()


def export_pictures(
    path: str | Path,
    folder: str | Path,
    *,
    verdict: str = "valid",
    classes: Sequence[str] = (),
    bounds: tuple[float, float] | None = None,
) -> int:
    """Write the cases of one verdict as PNG files, a folder for each label.

    `operant.samples_from_folder` reads them. Values are rounded to the 256 shades that such a file has.

    Args:
        path: the suite's folder.
        folder: a new one, or an empty one.
        verdict: ``"valid"``, ``"invalid"``, ``"unsure"`` or ``"disputed"``.
        classes: the name of each label, which becomes the folder's.
        bounds: smallest and largest value of a pixel; as the cases have them unless given.

    Returns:
        How many were written.
    """
    suite, place = Suite.open(path), Path(folder)
    if not is_picture(tuple(suite.rows.shape)):
        raise ValueError(f"cases of shape {tuple(suite.rows.shape)} are no pictures; export them as a table")
    if verdict not in (*VERDICTS, "disputed"):
        raise ValueError(f"verdict must be one of {', '.join((*VERDICTS, 'disputed'))}, got {verdict!r}")
    if place.exists() and any(place.iterdir()):
        raise ValueError(f"{place} already holds files; choose a new folder")
    if "verdict" not in suite.columns:
        raise ValueError(f"nobody has judged the cases of {path}; `operant triage {path}` opens a page to do so")
    chosen = (suite["verdict"] == verdict).nonzero()[0].tolist()
    low_high = range_of(suite, bounds)
    for row in chosen:
        home = place / _folder_name(int(suite.label[row]), classes)
        home.mkdir(parents=True, exist_ok=True)
        (home / f"case-{row:06d}.png").write_bytes(png(_shades(unit(pair_of(suite, row)[1], low_high))))
    return len(chosen)


def _name(classes: Sequence[str], label: int) -> str:
    return _safe(classes[label]) if 0 <= label < len(classes) else str(label)


def _cells(values: Any) -> list[str]:
    if isinstance(values, Tensor):
        return ["" if value != value else f"{value:.9g}" for value in values.tolist()]
    return [_safe(str(value)) for value in values]


def _safe(text: str) -> str:
    """A text that no spreadsheet takes for a formula."""
    return f"'{text}" if ORDERS.match(text) else text


def _folder_name(label: int, classes: Sequence[str]) -> str:
    """A name that is one folder on every system, and no other class's."""
    name = classes[label] if 0 <= label < len(classes) else str(label)
    plain = re.sub(r"[^\w ()-]", "_", name).strip()
    return name if plain == name else f"{plain}-{label}"
