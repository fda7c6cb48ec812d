"""Exports of verdicts for other tools: a table, and a folder of pictures."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from operant.results import write_atomically
from operant.suite import Suite
from operant.suite.drawing import is_picture, pair_of, png, range_of, shades, unit
from operant.suite.verdicts import VERDICTS, Judgement, columns_of
from operant.triage.verdicts import read_verdicts
from operant.validation import check_one_of

TABLE = "labels.csv"
FORMULA = re.compile(r"^[=+\-@\t\r]")  # spreadsheets run cells that start like this


def export_csv(path: str | Path, file: str | Path, *, classes: Sequence[str] = ()) -> Path:
    """Write a table of a suite's cases, their columns and each person's verdict.

    ``classes`` is the name of each label (default: the suite's).
    """
    place = Path(file)
    place.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(place, csv_of(Suite.open(path), read_verdicts(path), classes).encode())
    return place


def csv_of(suite: Suite, judgements: Sequence[Judgement], classes: Sequence[str] = ()) -> str:
    """The table as text."""
    measured = {name: values for name, values in suite.columns.items() if name not in columns_of((), 0)}
    people = sorted({judgement.by for judgement in judgements if judgement.verdict})
    each = {name: [""] * len(suite) for name in people}
    for judgement in judgements:
        if judgement.verdict:
            each[judgement.by][judgement.row] = judgement.verdict
    classes = classes or suite.classes
    files = {} if suite.pool.names is None else {"seed file": [safe_cell(name) for name in suite.seed_names]}
    columns: dict[str, Sequence[Any]] = {
        "row": range(len(suite)),
        "seed": suite.seed.tolist(),
        **files,
        "label": [_name(classes, label) for label in suite.label.tolist()],
        "prediction": [_name(classes, label) for label in suite.prediction.tolist()],
        "method": [safe_cell(str(method)) for method in suite.method],
        **{safe_cell(name): _cells(values) for name, values in measured.items()},
        **{
            name: [safe_cell(str(cell)) for cell in values]
            for name, values in columns_of(judgements, len(suite)).items()
        },
        **{safe_cell(f"verdict of {name}"): values for name, values in each.items()},
    }
    return csv_text([tuple(columns), *zip(*columns.values(), strict=True)])


def export_pictures(
    path: str | Path,
    folder: str | Path,
    *,
    verdict: str = "valid",
    classes: Sequence[str] = (),
    bounds: tuple[float, float] | None = None,
) -> int:
    """Write the cases of one verdict as PNG files, one folder per label, and their table; returns their number.

    Folder names begin with the label, ``02-cat``, so that they sort by label. Readers that number classes by folder,
    such as `operant.samples_from_folder`, assign other numbers where a label has no case: ``labels.csv`` has the label
    of each file, in that reader's order. Values are rounded to the 256 shades of such a file.

    Args:
        verdict: ``"valid"``, ``"invalid"``, ``"unsure"`` or ``"disputed"``.
        classes: the name of each label, which becomes part of the folder's (default: the suite's).
        bounds: smallest and largest value of a pixel (default: those of the cases).
    """
    suite, place = Suite.open(path), Path(folder)
    if not is_picture(tuple(suite.rows.shape)):
        raise ValueError(f"cases of shape {tuple(suite.rows.shape)} are not pictures; export them as a table")
    check_one_of((*VERDICTS, "disputed"), verdict=verdict)
    if place.exists() and any(place.iterdir()):
        raise ValueError(f"{place} is not empty; choose a new folder")
    if "verdict" not in suite.columns:
        raise ValueError(f"nobody has judged the cases of {path}; `operant triage {path}` opens a page to do so")
    chosen = (suite["verdict"] == verdict).nonzero()[0].tolist()
    classes = classes or suite.classes
    files = picture_names(suite, numbered_folders(suite.label.tolist(), classes))
    write_pictures(suite, {row: files[row] for row in chosen}, place, bounds=bounds)
    rows = [(files[row], int(suite.label[row]), _name(classes, int(suite.label[row]))) for row in chosen]
    place.mkdir(parents=True, exist_ok=True)
    write_atomically(place / TABLE, csv_text([("file", "label", "class"), *sorted(rows)]).encode())
    return len(chosen)


def picture_names(suite: Suite, folders: Mapping[int, str]) -> list[str]:
    """The file of each case, in the folder of its label."""
    return [f"{folders[label]}/case-{row:06d}.png" for row, label in enumerate(suite.label.tolist())]


def write_pictures(
    suite: Suite, files: Mapping[int, str], folder: Path, *, bounds: tuple[float, float] | None = None
) -> None:
    """Write rows of a suite as PNG files below a folder; ``bounds`` are those of a pixel (default: of the cases)."""
    limits = range_of(suite, bounds)
    for row, file in files.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(png(shades(unit(pair_of(suite, row)[1], limits))))


def _name(classes: Sequence[str], label: int) -> str:
    return safe_cell(classes[label]) if 0 <= label < len(classes) else str(label)


def _cells(values: Any) -> list[str]:
    if isinstance(values, Tensor):
        return ["" if value != value else f"{value:.9g}" for value in values.tolist()]
    return [safe_cell(str(value)) for value in values]


def safe_cell(text: str) -> str:
    """A text that spreadsheets do not run as a formula."""
    return f"'{text}" if FORMULA.match(text) else text


def csv_text(rows: Iterable[Sequence[Any]]) -> str:
    """Rows as the text of a CSV file."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def numbered_folders(labels: Iterable[int], classes: Sequence[str]) -> dict[int, str]:
    """For each label a folder name such as ``02-cat`` that is valid on every system; the names sort by label."""
    known = sorted(set(labels))
    digits = len(str(max([len(classes) - 1, *known])))
    names = class_folders(known, classes)
    return {label: f"{label:0{digits}d}{f'-{names[label]}' if names[label] != str(label) else ''}" for label in known}


def class_folders(labels: Iterable[int], classes: Sequence[str]) -> dict[int, str]:
    """For each label the name of its class, its number if it has none, without what is not valid on every system."""
    names = {label: classes[label] if 0 <= label < len(classes) else str(label) for label in set(labels)}
    return {label: re.sub(r"[^\w ()-]", "_", name).strip() for label, name in names.items()}
