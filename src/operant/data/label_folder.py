"""Labellers: labels that are already known, or labels from people, through a folder of pictures and a table."""

from __future__ import annotations

import csv
import io
import json
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from operant import results
from operant.data.class_texts import COLUMNS, ClassTexts
from operant.data.formats import PICTURES
from operant.data.samples import Samples, name_of
from operant.data.tables import NAME_COLUMNS, CsvTable, read_csv, table_key
from operant.files import check_regular
from operant.formatting import first_few
from operant.types import Labeller

TABLE = "labels.csv"
INPUTS = "inputs.json"
MAX_FAULTS = 3  # faulty labels that a message describes
MAX_NAME = 100  # characters of a file name
NOT_IN_NAMES = r"[^\w.()\[\] -]"  # characters that are replaced in file names
CLASSES = "classes.json"
EXAMPLES = "examples"
ID = "i[0-9a-f]{16}"  # as `name_of` writes it
SUFFIXES = (".png", ".npz")  # of the files that are written
PRIVATE = 0o600  # permissions of a new table; later ones are preserved
MAX_CLASSES = 10**6  # a folder that announces more is damaged
READABLE_SIDE = 224  # pixels; smaller pictures are enlarged by whole factors up to this


class LabelsMissing(Exception):
    """Requested labels are missing; the message says where to write them."""


def labels_of(labelled: Samples) -> Labeller:
    """A labeller for inputs whose labels are known, found by id."""
    if len(labelled) == 0:
        raise ValueError("there are no labelled inputs to take labels from")
    return _LabelsOf(labelled)


@dataclass(frozen=True, eq=False)
class _LabelsOf:
    labelled: Samples

    def __call__(self, asked: Samples) -> Tensor:
        rows = self.labelled.rows_of(asked.ids)
        if unknown := int((rows < 0).sum()):
            raise ValueError(f"{unknown} of {len(asked)} inputs are not among the labelled ones; label them first")
        return self.labelled.labels.cpu()[rows]

    def stored(self, ids: Tensor) -> dict[int, tuple[str, int]]:
        return stored_in(self.labelled, ids)


def stored_in(labelled: Samples, ids: Tensor) -> dict[int, tuple[str, int]]:
    """By id, the names and labels of inputs; see `StoredLabels`."""
    rows = labelled.rows_of(ids)
    known, labels = ids[rows >= 0].tolist(), labelled.labels.cpu()[rows[rows >= 0]].tolist()
    return {i: (name_of(i), label) for i, label in zip(known, labels, strict=True)}


@dataclass(frozen=True, kw_only=True)
class LabelFolder:
    """A labeller for people: writes inputs into a folder, and reads the labels that people write there.

    Each input becomes a picture (or an npz file, if it is not an image) with a row in a table. It is called by its name
    (``field/0001.png`` becomes ``0001.png``, or ``field_0001.png`` if that is taken), or by its id if it has no name;
    ``inputs.json`` lists, by id, this name and the whole one (``file``). A call for labels that are not filled in adds
    the missing rows and raises `LabelsMissing`; call again once they are filled in. Labels are kept for later calls. A
    label is a class's number or its name; if classes are called by other numbers than their own, the column is
    ``class`` and has names (see `ClassTexts`). ``operant triage`` opens a page for entering them.

    Args:
        folder: created if it does not exist.
        classes: number of classes; labels outside them raise a ValueError.
        bounds: smallest and largest value of an input, black and white in a picture.
        table: file name of the table.
        names: class names to show, in the order of the labels (default: those of the inputs or of the folder, or
            numbers).
        examples: labelled inputs; the first one of each class is shown beside the class name.
    """

    folder: Path
    classes: int
    bounds: tuple[float, float] = (0.0, 1.0)
    table: str = TABLE
    names: tuple[str, ...] = ()
    examples: Samples | None = field(default=None, repr=False)

    def __call__(self, asked: Samples) -> Tensor:
        if not self.names and len(asked.classes) == self.classes:
            return replace(self, names=asked.classes)(asked)
        ids = [name_of(i) for i in asked.ids.tolist()]
        known = self.read_by_id()
        if new := [row for row, i in enumerate(ids) if i not in known]:
            self._write(asked[new])
            known = self.read_by_id()
        missing = [(i, title) for i, title in dict(zip(ids, asked.titles, strict=True)).items() if known.get(i) is None]
        if missing:
            meaning = self._class_texts().meaning(self._table().column)
            example = self._shown_as(*missing[0])
            raise LabelsMissing(
                f"{len(missing)} of {len(set(ids))} inputs have no label yet, such as {example}: view the files "
                f"in {self.folder}, write each one's class ({meaning}) into {self.folder / self.table} (or "
                f"enter them on the page that `operant triage {self.folder}` opens), and run this again"
            )
        return torch.tensor([known[i] for i in ids], dtype=torch.int64)

    def _shown_as(self, identity: str, title: str) -> str:
        """An input in a message: its file in this folder, and where it comes from if that is called otherwise."""
        inputs = self._inputs()
        file = self._file_name(inputs[identity]["name"] if identity in inputs else identity)
        return file if identity not in inputs or title == file else f"{file} ({title})"

    def _file_name(self, name: str) -> str:
        """The name of an input with the suffix of its file."""
        suffix = next((suffix for suffix in SUFFIXES if (self.folder / f"{name}{suffix}").is_file()), "")
        return f"{name}{suffix}"

    def label_text(self, label: int) -> str:
        """How a class is written in the table."""
        return self._class_texts().text(label, self._table().column)

    def _class_texts(self) -> ClassTexts:
        names = self._names()
        return ClassTexts(names if len(names) == self.classes else tuple(map(str, range(self.classes))))

    def _names(self) -> tuple[str, ...]:
        return self.names or classes_in(self.folder) or ()

    def _table(self) -> _Table:
        table = _Table(self.folder / self.table, new_column=self._class_texts().column)
        if table.column == "class" and len(self._names()) != self.classes:
            raise ValueError(
                f"{table.path} has a column class, but the names of the {self.classes} classes are unknown; name them "
                "all, or write their numbers, counted from 0, in a column number"
            )
        return table

    def stored(self, ids: Tensor) -> dict[int, tuple[str, int]]:
        """The labels so far, by id; nothing is written. See `StoredLabels`."""
        known, inputs = self.read_by_id(), self._inputs()
        names = {i: name_of(i) for i in ids.tolist()}
        shown = {name: inputs[name]["file"] if name in inputs else name for name in names.values()}
        return {i: (shown[name], label) for i, name in names.items() if (label := known.get(name)) is not None}

    def read(self) -> dict[str, int | None]:
        """The labels so far, by name; None where the table has none.

        Accepts what spreadsheets write: commas or semicolons, a byte-order mark, spaces, capitals, names with file
        suffix, and labels such as 3.0.
        """
        labels, faults = self.read_sound()
        if faults:
            raise ValueError(faults)
        return labels

    def read_sound(self) -> tuple[dict[str, int | None], str]:
        """The labels so far, as `read` returns them, and a sentence on faulty ones, which count as missing."""
        known = self._labels(self._table())
        return known.labels, known.summary(self.folder / self.table)

    def note_on_unused_rows(self) -> str:
        """A sentence about the rows of the table that name no input of this folder; empty without any."""
        rows = self.read_sound()[0]
        asked = self.asked_for(rows)
        if not (unused := [name for name in rows if name not in asked]):
            return ""
        return (
            f"{self.folder / self.table}: {len(unused)} of {len(rows)} rows are ignored, since they name no input that "
            f"was asked for ({first_few(unused, 3)})"
        )

    def asked_for(self, names: Iterable[str]) -> set[str]:
        """Those of the names that are inputs of this folder: in its ``inputs.json``, ids, or files."""
        own = self.ids()
        return {name for name in names if name in own or re.fullmatch(ID, name) or self._file_name(name) != name}

    def read_by_id(self) -> dict[str, int | None]:
        """The labels so far, by the text of the input's id; rows without an id are known by their name."""
        return self.by_id(self.read())

    def by_id(self, labels: Mapping[str, int | None]) -> dict[str, int | None]:
        """Labels by name, as `read` returns them, by the text of the input's id; see `read_by_id`."""
        ids, known = self.ids(), _Labels()
        for name, label in labels.items():
            known.add(ids.get(name, name), label, f"the row {name} of {self.folder / self.table}")
        if faults := known.summary(self.folder / self.table):
            raise ValueError(faults)
        return known.labels

    def files(self) -> dict[str, str]:
        """Where each input in the table comes from, by name; inputs that have no name of their own are left out."""
        return {one["name"]: one["file"] for one in self._inputs().values()}

    def ids(self) -> dict[str, str]:
        """The id of each input in the table, as text, by name; inputs that have no name of their own are left out."""
        return {one["name"]: i for i, one in self._inputs().items()}

    def _inputs(self) -> dict[str, dict[str, str]]:
        """For each id, as text, the name of the input in this folder, and where it comes from."""
        file = self.folder / INPUTS
        if not file.exists():
            return {}
        check_regular(file)
        try:
            page = json.loads(file.read_bytes())
            inputs = {
                i: {"name": _checked_name(table_key(one["name"])), "file": str(one["file"])} for i, one in page.items()
            }
            if len({one["name"] for one in inputs.values()}) < len(inputs):
                raise ValueError("two inputs have one name")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise ValueError(f"{file} is damaged; restore it, or label in another folder") from None
        return inputs

    def _labels(self, table: _Table) -> _Labels:
        known, texts = _Labels(), self._class_texts()
        for line, row in enumerate(table.rows, 2):
            where = f"line {line} of {table.path}"
            if key := table.key(row):
                try:
                    known.add(key, texts.place(table.label(row), table.column), where)
                except ValueError as error:
                    known.add_faulty(key, f"{where}: {error}")
        return known

    def _write(self, new: Samples) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._write_examples()
        about = {"classes": self.classes, "names": list(self.names)}
        results.write_atomically(self.folder / CLASSES, json.dumps(about).encode() + b"\n")
        with results.locked(self.folder):
            table = self._table()  # read under the lock: another process may have added rows
            known, inputs = set(self._labels(table).labels), self._inputs()
            for x, i, file in zip(new.x.cpu(), new.ids.tolist(), new.names or ("",) * len(new), strict=True):
                name = _name_for(name_of(i), file, inputs, known)
                if name not in known:
                    known.add(name)
                    suffix, content = _written(x, self.bounds)
                    results.write_atomically(self.folder / f"{name}{suffix}", content)
                    table.add(name if name == name_of(i) else f"{name}{suffix}")  # spreadsheets read 0001 as a number
            if inputs:
                named = {i: {"name": self._file_name(one["name"]), "file": one["file"]} for i, one in inputs.items()}
                results.write_atomically(self.folder / INPUTS, json.dumps(named, indent=1).encode() + b"\n")
            table.write()

    def _write_examples(self) -> None:
        for label, x in first_of_each_class(self.examples).items():
            if (picture := picture_of(x, self.bounds)) is not None:
                (self.folder / EXAMPLES).mkdir(exist_ok=True)
                results.write_atomically(example_file(self.folder, label), picture)

    def set_label(self, name: str, label: int | None) -> None:
        """Write a label into the table, or remove it with None; it is on disk when this returns."""
        if label is not None and not 0 <= label < self.classes:
            raise ValueError(f"a label must be a class from 0 to {self.classes - 1}, got {label}")
        with results.locked(self.folder):
            table, texts = self._table(), self._class_texts()
            if name not in self._labels(table).labels:
                raise ValueError(f"{table.path} has no row for {name!r:.80}; request its label first")
            text = "" if label is None else texts.text(label, table.column)
            if texts.place(text, table.column) != label:
                raise ValueError(f"{text!r:.80} is no unambiguous class in {table.path}; rename its column to number")
            table.set_label(name, text)
            table.write()


class _Labels:
    """Labels by name, and sentences on faulty ones: two different labels for one name are a fault of it."""

    def __init__(self) -> None:
        self.labels: dict[str, int | None] = {}
        self.faults: list[str] = []
        self._where: dict[str, str] = {}
        self._faulty: set[str] = set()

    def add(self, name: str, label: int | None, where: str) -> None:
        if label is None or name in self._faulty:
            self.labels.setdefault(name, None)
        elif self.labels.get(name) in (None, label):
            self.labels[name] = label
            self._where.setdefault(name, where)
        else:
            self.add_faulty(name, f"{name} has two different labels, in {self._where[name]} and in {where}; leave one")

    def add_faulty(self, name: str, fault: str) -> None:
        """Add an input whose label cannot be used."""
        self.labels[name] = None
        self._faulty.add(name)
        self.faults.append(fault)

    def summary(self, table: Path) -> str:
        """A sentence on the first faults of a table; empty without any."""
        if len(self.faults) < 2:
            return "".join(self.faults)
        more = f"; and {len(self.faults) - MAX_FAULTS} more" if len(self.faults) > MAX_FAULTS else ""
        return f"{len(self.faults)} labels in {table} are faulty: {'; '.join(self.faults[:MAX_FAULTS])}{more}"


class _Table:
    """The table of labels; columns that people added, and their separator, are preserved.

    Args:
        new_column: heading of the labels if there is no table yet.
    """

    def __init__(self, path: Path, *, new_column: str) -> None:
        text = read_csv(path) if path.exists() else CsvTable(header=["name", new_column], rows=[])
        self.path, self.mark, self.separator = path, text.mark, text.separator
        self.header, self.rows = text.header, text.rows
        names = [cell.strip().lower() for cell in self.header]
        self.column = next((column for column in COLUMNS if column in names), "")
        named = next((column for column in NAME_COLUMNS if column in names), "")
        if not named or not self.column:
            first = self.separator.join(self.header).strip()
            raise ValueError(f"the first line of {path} must be name,{new_column}, got {first!r}; replace it")
        if self.column == "class" and "number" in names:
            raise ValueError(f"{path} must have one column of labels, got class and number; remove or rename one")
        self._name, self._label = names.index(named), names.index(self.column)

    def key(self, row: list[str]) -> str:
        """The name of the input in a row; empty if there is none."""
        return table_key(row[self._name]) if len(row) > self._name else ""

    def label(self, row: list[str]) -> str:
        return row[self._label] if len(row) > self._label else ""

    def set_label(self, name: str, label: str) -> None:
        """Put a label into every row of an input."""
        for row in self.rows:
            if self.key(row) == name:
                row += [""] * (1 + self._label - len(row))
                row[self._label] = label

    def add(self, name: str) -> None:
        self.rows.append([name if i == self._name else "" for i in range(len(self.header))])

    def write(self) -> None:
        text = io.StringIO()
        csv.writer(text, delimiter=self.separator, lineterminator="\n").writerows([self.header, *self.rows])
        mode = stat.S_IMODE(self.path.stat().st_mode) if self.path.exists() else PRIVATE
        results.write_atomically(self.path, (self.mark + text.getvalue()).encode(), mode=mode)


def _name_for(identity: str, file: str, inputs: dict[str, dict[str, str]], known: set[str]) -> str:
    """The name of an input in the folder; a new one is added to ``inputs``, unless it is the id."""
    if identity in inputs:
        return inputs[identity]["name"]
    taken = known | {one["name"] for one in inputs.values()}
    if identity in taken or (name := next((n for n in _short_names(file) if n not in taken), None)) is None:
        return identity
    inputs[identity] = {"name": name, "file": file}
    return name


def classes_in(folder: Path) -> tuple[str, ...] | None:
    """The class names in a folder of inputs to label, numbers if they have none; None if it does not tell."""
    file = folder / CLASSES
    if not file.is_file():
        return None
    try:
        page = json.loads(file.read_bytes())
        n, names = page["classes"], [str(name) for name in page["names"]]
        if type(n) is not int or not 1 <= n <= MAX_CLASSES:
            raise ValueError
    except (ValueError, LookupError, TypeError, RecursionError):
        raise ValueError(f"{file} is damaged; name the classes with --classes, such as 10 or cat,dog") from None
    return tuple(names) if len(names) == n else tuple(map(str, range(n)))


def example_file(folder: Path, label: int) -> Path:
    """The picture with an example of a class, in a folder of inputs to label."""
    return folder / EXAMPLES / f"{label}.png"


def first_of_each_class(examples: Samples | None) -> dict[int, Tensor]:
    """The first input of each class, by label; empty without labels.

    >>> x = torch.arange(5.0)[:, None]
    >>> {label: float(row) for label, row in first_of_each_class(Samples(x, torch.tensor([2, 0, 2, 0, 1]))).items()}
    {0: 1.0, 1: 4.0, 2: 0.0}
    """
    if examples is None or examples.y is None:
        return {}
    labels = examples.y.cpu().numpy()
    classes, rows = np.unique(labels, return_index=True)  # the first row of each
    return {label: examples.x[row].cpu() for label, row in zip(classes.tolist(), rows.tolist(), strict=True)}


def picture_of(x: Tensor, bounds: tuple[float, float]) -> bytes | None:
    """An image as a PNG file, enlarged if it is small; None if the input is not an image."""
    if x.ndim != 3 or x.shape[0] not in (1, 3):
        return None
    content, (low, high) = io.BytesIO(), bounds
    pixels = ((x - low) / (high - low) * 255).round().clamp(0, 255).to(torch.uint8).permute(1, 2, 0).numpy()
    times = max(1, READABLE_SIDE // max(pixels.shape))
    pixels = pixels.repeat(times, 0).repeat(times, 1)
    Image.fromarray(pixels.squeeze(2) if x.shape[0] == 1 else pixels).save(content, "PNG")
    return content.getvalue()


def _short_names(file: str) -> Iterator[str]:
    """Names for an input of this file, the shortest first; they are valid file names on every system, and table keys.

    >>> list(_short_names("field/Monday/0001.jpg"))
    ['0001', 'monday_0001', 'field_monday_0001']
    """
    suffix = Path(file).suffix.lower()
    parts = file[: -len(suffix)].split("/") if suffix in PICTURES else file.split("/")
    for n in range(1, 1 + len(parts)):
        name = re.sub(NOT_IN_NAMES, "_", "_".join(parts[-n:]).lower()).strip(" .-")
        while name != table_key(name):
            name = table_key(name).strip(" .-")
        if 0 < len(name) <= MAX_NAME:
            yield name


def _checked_name(name: str) -> str:
    """The name, if `_short_names` can give it: others could be files outside the folder."""
    if (
        re.search(NOT_IN_NAMES, name)
        or name.strip(" .-") != name
        or name != table_key(name)
        or not 0 < len(name) <= MAX_NAME
    ):
        raise ValueError(f"it has the name {name!r:.80}")
    return name


def _written(x: Tensor, bounds: tuple[float, float]) -> tuple[str, bytes]:
    """Suffix and content of an input's file: a picture, or an npz file if it is not an image."""
    if (picture := picture_of(x, bounds)) is not None:
        return ".png", picture
    content = io.BytesIO()
    np.savez(content, x=x.numpy())
    return ".npz", content.getvalue()
