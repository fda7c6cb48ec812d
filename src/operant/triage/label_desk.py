"""The desk for inputs that wait for labels: the folder that a campaign or an assessment writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from secrets import token_hex
from threading import Lock
from typing import Any

import numpy as np

from operant.data.formats import read_npz
from operant.data.label_folder import (
    CLASSES,
    EXAMPLES,
    TABLE,
    LabelFolder,
    classes_in,
    example_file,
    first_of_each_class,
    picture_of,
)
from operant.data.samples import Samples
from operant.triage.desk import NotFound, RequestFields, RowLists
from operant.validation import check_one_of

MAX_VALUES = 40  # shown of an input that is not a picture
FILTERS = ("all", "todo", "done")


class LabelDesk:
    """A desk on which people label the inputs of a `LabelFolder`.

    The table is read again at every request, so inputs can be added, and labels written elsewhere count. Faulty labels
    count as missing, and rows that name no input are left out; ``state`` has a note on both.

    Args:
        classes: names of the classes (default: those in the folder).
        examples: labelled inputs; the first one of each class is shown beside its name (default: those in the folder).
        bounds: smallest and largest value of an example, black and white in a picture.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        classes: Sequence[str] = (),
        by: str = "me",
        examples: Samples | None = None,
        bounds: tuple[float, float] = (0.0, 1.0),
    ) -> None:
        self.folder, self.by = Path(folder), by
        written = _classes_of(self.folder, tuple(classes))
        self.classes = tuple(classes) or written
        self._examples = {label: picture_of(x, bounds) for label, x in first_of_each_class(examples).items()}
        self._table = LabelFolder(folder=self.folder, classes=len(self.classes), names=written)
        self._names: list[str] = []  # the order never changes: pages refer to inputs by place
        self._steps: list[tuple[str, int | None]] = []
        self._lists, self._lock = RowLists(), Lock()
        self._version = token_hex(4)  # so that browsers do not reuse another desk's pictures
        self._read()

    def _read(self) -> dict[str, int | None]:
        """The labels so far; appends new inputs to the names."""
        rows, _ = self._table.read_sound()
        asked = self._table.asked_for(rows)
        table = {name: label for name, label in rows.items() if name in asked}
        known = set(self._names)
        self._names += [name for name in table if name not in known]
        return table

    def about(self) -> dict[str, Any]:
        with self._lock:
            self._read()
        return {
            "mode": "labels",
            "title": self.folder.resolve().name,
            "by": self.by,
            "blind": False,
            "tests": len(self._names),
            "pictured": any(self._file(name, ".png") for name in self._names[:1]),
            "small": False,
            "version": self._version,
            "classes": list(enumerate(self.classes)),
            "examples": [label for label in range(len(self.classes)) if self._example(label) is not None],
        }

    def arrange(self, fields: RequestFields) -> dict[str, Any]:
        show = fields.text("show", "all")
        check_one_of(FILTERS, show=show)
        with self._lock:
            table = self._read()
            done = np.array([table.get(name) is not None for name in self._names], dtype=np.bool_)
        rows = np.flatnonzero({"all": done | True, "todo": ~done, "done": done}[show])
        return self._lists.arranged(rows, done[rows])

    def rows(self, fields: RequestFields) -> dict[str, Any]:
        start, rows = self._lists.rows(fields)
        with self._lock:
            table = self._read()
        titles = self._table.files()
        return {"start": start, "rows": [{**self._row(row, table), **self._title(row, titles)} for row in rows]}

    def _title(self, row: int, titles: Mapping[str, str]) -> dict[str, Any]:
        """How an input is called."""
        name = self._names[row]
        title = titles.get(name, name)
        return {"title": title, "facts": [("name", name)] if title != name else []}

    def _row(self, row: int, table: dict[str, int | None]) -> dict[str, Any]:
        name = self._names[row]
        label = table.get(name)
        return {
            "row": row,
            "name": name,
            "given": label,
            "verdict": "" if label is None else self.classes[label],
            "values": self._values(name),
            "tags": [],
            "others": [],
        }

    def mark(self, fields: RequestFields) -> dict[str, Any]:
        """Write a label to the table; it is on disk when this returns."""
        row, label = fields.number("row"), fields.optional_number("label")
        with self._lock:
            table = self._read()
            if row >= len(self._names):
                raise ValueError(f"row must be one of the {len(self._names)} inputs, got {row}")
            name = self._names[row]
            self._table.set_label(name, label)
            self._steps.append((name, table.get(name)))
        return self._row(row, table | {name: label})

    def undo(self, fields: RequestFields) -> dict[str, Any]:
        with self._lock:
            if not self._steps:
                return {"row": None}
            name, before = self._steps[-1]
            self._table.set_label(name, before)
            self._steps.pop()
        return self._row(self._names.index(name), {name: before})

    def state(self, fields: RequestFields) -> dict[str, Any]:
        with self._lock:
            table = self._read()
            notes = self.notes()
        given = [label for label in table.values() if label is not None]
        counts = {self.classes[label]: given.count(label) for label in sorted(set(given))}
        done = {"mine": counts, "tests": len(table), "labelled": len(given), "notes": notes}
        return {**done, "tags": [], "people": {}, "agreement": []}

    def notes(self) -> list[str]:
        """Sentences on the rows of the table that do not count."""
        return [note for note in (self._table.read_sound()[1], self._table.note_on_unused_rows()) if note]

    def counts(self) -> tuple[int, int]:
        """How many inputs have labels, and how many inputs there are."""
        with self._lock:
            table = self._read()
        return sum(label is not None for label in table.values()), len(table)

    def _example(self, label: int) -> bytes | Path | None:
        """A picture of a class, or its file if it is inside the folder."""
        file = example_file(self.folder, label)
        inside = file.is_file() and file.resolve().parent == self.folder.resolve() / EXAMPLES
        return self._examples.get(label) or (file if inside else None)

    def picture(self, row: int, what: str, factor: int) -> bytes:
        """The picture of an input, or, if ``what`` is "example", of the class ``row``."""
        if what == "example" and (example := self._example(row)) is not None:
            return example if isinstance(example, bytes) else example.read_bytes()
        file = self._file(self._names[row], ".png") if what == "case" and 0 <= row < len(self._names) else None
        if file is None:
            raise NotFound("there is no such picture")
        return file.read_bytes()

    def table(self) -> str:
        return (self.folder / TABLE).read_text(encoding="utf-8-sig")

    def _file(self, name: str, suffix: str) -> Path | None:
        """The file of an input, if it is inside the folder."""
        file = self.folder / f"{name}{suffix}"
        inside = "/" not in name and "\\" not in name and "\0" not in name and file.is_file()
        return file if inside and file.resolve().parent == self.folder.resolve() else None

    def _values(self, name: str) -> list[tuple[str, str]]:
        """The first values of an input that is not a picture."""
        if (file := self._file(name, ".npz")) is None:
            return []
        try:
            x = np.asarray(read_npz(file)["x"], dtype=np.float64).ravel()[:MAX_VALUES]
        except (ValueError, TypeError, KeyError, OSError):
            return [("file", "cannot be read")]
        return [(f"value {i}", f"{value:.4g}") for i, value in enumerate(x.tolist())]


def _classes_of(folder: Path, given: tuple[str, ...]) -> tuple[str, ...]:
    """The class names that the table of a folder uses: its own, also if the page shows others, or the given ones."""
    try:
        own = classes_in(folder)
    except ValueError:
        if not given:
            raise
        own = None
    if own is None and not given:
        raise ValueError(f"{folder} has no {CLASSES}; name the classes with --classes, such as 10 or cat,dog")
    if own is not None and given and len(own) != len(given):
        raise ValueError(f"there must be a name for each of the {len(own)} classes in {folder}, got {len(given)}")
    return own or given
