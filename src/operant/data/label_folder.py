"""Labellers: labels that are already known, or labels from people, through a folder of pictures and a table."""

from __future__ import annotations

import csv
import io
import json
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from operant import results
from operant.data.samples import Samples
from operant.types import Labeller

TABLE = "labels.csv"
MARK = "\ufeff"  # byte-order mark, by which spreadsheets recognise UTF-8
CLASSES = "classes.json"
EXAMPLES = "examples"
PRIVATE = 0o600  # permissions of a new table; later ones are preserved
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

    Each input becomes a picture (or an npz file, if it is not an image), named by its id, with a row in a table. A call
    for labels that are not filled in adds the missing rows and raises `LabelsMissing`; call again once they are filled
    in. Labels are kept for later calls. ``operant triage`` opens a page for entering them.

    Args:
        folder: created if it does not exist.
        classes: number of classes; labels outside them raise a ValueError.
        bounds: smallest and largest value of an input, black and white in a picture.
        table: file name of the table.
        names: class names to show, in the order of the labels.
        examples: labelled inputs; the first one of each class is shown beside the class name.
        files: files of inputs by id, whose names help people to recognise them; written into a column of a new table.
    """

    folder: Path
    classes: int
    bounds: tuple[float, float] = (0.0, 1.0)
    table: str = TABLE
    names: tuple[str, ...] = ()
    examples: Samples | None = field(default=None, repr=False)
    files: Mapping[int, Path] = field(default_factory=dict, repr=False)

    def __call__(self, asked: Samples) -> Tensor:
        names = [name_of(i) for i in asked.ids.tolist()]
        known = self.read()
        if new := [row for row, name in enumerate(names) if name not in known]:
            self._write(asked[new])
            known = self.read()
        if missing := [name for name in dict.fromkeys(names) if known.get(name) is None]:
            raise LabelsMissing(
                f"{len(missing)} of {len(set(names))} inputs have no label yet: view the files in {self.folder}, "
                f"write each one's class (0 to {self.classes - 1}) into {self.folder / self.table} (or enter them on "
                f"the page that `operant triage {self.folder}` opens), and run this again"
            )
        return torch.tensor([known[name] for name in names], dtype=torch.int64)

    def stored(self, ids: Tensor) -> dict[int, tuple[str, int]]:
        """The labels so far, by id; nothing is written. See `StoredLabels`."""
        known, names = self.read(), {i: name_of(i) for i in ids.tolist()}
        return {i: (name, label) for i, name in names.items() if (label := known.get(name)) is not None}

    def read(self) -> dict[str, int | None]:
        """The labels so far, by name; None where the table has none.

        Accepts what spreadsheets write: commas or semicolons, a byte-order mark, spaces, capitals, names with file
        suffix, and labels such as 3.0.
        """
        return self._labels(_Table(self.folder / self.table))

    def read_files(self) -> dict[str, str]:
        """The file names in the table, by name of the input."""
        table = _Table(self.folder / self.table)
        return {table.key(row): file for row in table.rows if (file := table.file(row))}

    def _labels(self, table: _Table) -> dict[str, int | None]:
        known: dict[str, int | None] = {}
        for line, row in enumerate(table.rows, 2):
            if key := table.key(row):
                label = self._label(table.label(row), line, table.path)
                known[key] = known.get(key) if label is None else label
        return known

    def _label(self, text: str, line: int, path: Path) -> int | None:
        text = text.strip().removesuffix(".0")
        if not text:
            return None
        if not text.isdecimal() or int(text) >= self.classes:
            highest = self.classes - 1
            raise ValueError(f"line {line} of {path}: a label must be a class from 0 to {highest}, got {text!r}")
        return int(text)

    def _write(self, new: Samples) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        names = [name_of(i) for i in new.ids.tolist()]
        for x, name in zip(new.x.cpu(), names, strict=True):
            _write_input(self.folder / name, x, self.bounds)
        self._write_examples()
        about = {"classes": self.classes, "names": list(self.names)}
        results.write_atomically(self.folder / CLASSES, json.dumps(about).encode() + b"\n")
        files = {
            name: self.files[i].name if i in self.files else "" for i, name in zip(new.ids.tolist(), names, strict=True)
        }
        with results.locked(self.folder):
            # Read under the lock: another process may have added rows.
            table = _Table(self.folder / self.table, files=any(files.values()))
            known = self._labels(table)
            for name, file in files.items():
                if name not in known:
                    table.add(name, file)
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
            table = _Table(self.folder / self.table)
            if name not in self._labels(table):
                raise ValueError(f"{table.path} has no row for {name!r:.80}; request its label first")
            table.set_label(name, "" if label is None else str(label))
            table.write()


class _Table:
    """The table of labels; columns that people added, and their separator, are preserved.

    Args:
        files: whether a new table has a column of file names.
    """

    def __init__(self, path: Path, *, files: bool = False) -> None:
        try:
            new = "name,label,file\n" if files else "name,label\n"
            text = path.read_text(encoding="utf-8") if path.exists() else new
        except UnicodeDecodeError:
            raise ValueError(f"{path} is not text in UTF-8; save it as CSV (UTF-8) again") from None
        self.path, self.mark = path, MARK if text.startswith(MARK) else ""
        text = text.removeprefix(MARK)
        first = text.partition("\n")[0]
        self.separator = ";" if ";" in first else ","
        lines = list(csv.reader(io.StringIO(text), delimiter=self.separator)) or [[]]
        self.header, self.rows = lines[0], lines[1:]
        names = [cell.strip().lower() for cell in self.header]
        if not {"name", "label"} <= set(names):
            raise ValueError(f"the first line of {path} must be name,label, got {first.strip()!r}; put it there")
        self._name, self._label = names.index("name"), names.index("label")
        self._file = names.index("file") if "file" in names else None

    def key(self, row: list[str]) -> str:
        """The name of the input in a row; empty if there is none."""
        name = row[self._name] if len(row) > self._name else ""
        return name.strip().lower().removesuffix(".png").removesuffix(".npz")

    def label(self, row: list[str]) -> str:
        return row[self._label] if len(row) > self._label else ""

    def file(self, row: list[str]) -> str:
        """The file name of the input in a row; empty if there is none."""
        return row[self._file] if self._file is not None and len(row) > self._file else ""

    def set_label(self, name: str, label: str) -> None:
        """Put a label into every row of an input."""
        for row in self.rows:
            if self.key(row) == name:
                row += [""] * (1 + self._label - len(row))
                row[self._label] = label

    def add(self, name: str, file: str) -> None:
        cells = {self._name: name, self._file: file}
        self.rows.append([cells.get(i, "") for i in range(len(self.header))])

    def write(self) -> None:
        text = io.StringIO()
        csv.writer(text, delimiter=self.separator, lineterminator="\n").writerows([self.header, *self.rows])
        mode = stat.S_IMODE(self.path.stat().st_mode) if self.path.exists() else PRIVATE
        results.write_atomically(self.path, (self.mark + text.getvalue()).encode(), mode=mode)


def name_of(identity: int) -> str:
    """The name of the input with this id; it starts with a letter, so that spreadsheets do not read it as a number."""
    return f"i{identity & (2**64 - 1):016x}"


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


def _write_input(path: Path, x: Tensor, bounds: tuple[float, float]) -> None:
    if (picture := picture_of(x, bounds)) is not None:
        results.write_atomically(path.with_suffix(".png"), picture)
        return
    content = io.BytesIO()
    np.savez(content, x=x.numpy())
    results.write_atomically(path.with_suffix(".npz"), content.getvalue())
