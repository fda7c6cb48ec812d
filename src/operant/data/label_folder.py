"""Labellers: labels that are already known, or labels from people, through a folder of pictures and a table."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from operant import results
from operant.data.samples import Samples
from operant.files import check_regular
from operant.types import Labeller

TABLE = "labels.csv"
MARK = "\ufeff"  # byte-order mark, by which spreadsheets recognise UTF-8
CLASSES = "classes.json"
MAX_DIGITS = 18  # of a label; longer ones are no classes
READABLE_SIDE = 224  # pixels; smaller pictures are enlarged by whole factors up to this


class LabelsMissing(Exception):
    """Requested labels are missing; the message says where to write them."""


def labels_of(labelled: Samples) -> Labeller:
    """A labeller for inputs whose labels are known, found by id."""
    if len(labelled) == 0:
        raise ValueError("there are no labelled inputs to take labels from")
    y = labelled.labels.cpu()

    def look_up(asked: Samples) -> Tensor:
        rows = labelled.rows_of(asked.ids)
        if unknown := int((rows < 0).sum()):
            raise ValueError(f"{unknown} of {len(asked)} inputs are not among the labelled ones; label them first")
        return y[rows]

    return look_up


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
    """

    folder: Path
    classes: int
    bounds: tuple[float, float] = (0.0, 1.0)
    table: str = TABLE
    names: tuple[str, ...] = ()

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

    def read(self) -> dict[str, int | None]:
        """The labels so far, by name; None where the table has none.

        Accepts what spreadsheets write: commas or semicolons, a byte-order mark, spaces, capitals, names with file
        suffix, and labels such as 3.0.
        """
        return self._labels(_Table(self.folder / self.table))

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
        if not text.isdecimal() or len(text) > MAX_DIGITS or int(text) >= self.classes:
            highest = self.classes - 1
            raise ValueError(f"line {line} of {path}: a label must be a class from 0 to {highest}, got {text!r:.80}")
        return int(text)

    def _write(self, new: Samples) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        names = [name_of(i) for i in new.ids.tolist()]
        for x, name in zip(new.x.cpu(), names, strict=True):
            _write_input(self.folder / name, x, self.bounds)
        about = {"classes": self.classes, "names": list(self.names)}
        results.write_atomically(self.folder / CLASSES, json.dumps(about).encode() + b"\n")
        with results.locked(self.folder):
            table = _Table(self.folder / self.table)  # read under the lock: another process may have added rows
            known = self._labels(table)
            for name in dict.fromkeys(names):
                if name not in known:
                    table.add(name)
            table.write()

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
    """The table of labels; columns that people added, and their separator, are preserved."""

    def __init__(self, path: Path) -> None:
        if path.exists():
            check_regular(path)
        try:
            text = path.read_text(encoding="utf-8") if path.exists() else "name,label\n"
        except UnicodeDecodeError:
            raise ValueError(f"{path} is not text in UTF-8; save it as CSV (UTF-8) again") from None
        self.path, self.mark = path, MARK if text.startswith(MARK) else ""
        text = text.removeprefix(MARK)
        first = text.partition("\n")[0]
        self.separator = ";" if ";" in first else ","
        try:
            lines = list(csv.reader(io.StringIO(text), delimiter=self.separator)) or [[]]
        except csv.Error as error:
            raise ValueError(f"{path} is not a readable table ({error}); save it as CSV (UTF-8) again") from None
        self.header, self.rows = lines[0], lines[1:]
        names = [cell.strip().lower() for cell in self.header]
        if not {"name", "label"} <= set(names):
            raise ValueError(f"the first line of {path} must be name,label, got {first.strip()!r}; put it there")
        self._name, self._label = names.index("name"), names.index("label")

    def key(self, row: list[str]) -> str:
        """The name of the input in a row; empty if there is none."""
        name = row[self._name] if len(row) > self._name else ""
        return name.strip().lower().removesuffix(".png").removesuffix(".npz")

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
        results.write_atomically(self.path, (self.mark + text.getvalue()).encode())


def name_of(identity: int) -> str:
    """The name of the input with this id; it starts with a letter, so that spreadsheets do not read it as a number."""
    return f"i{identity & (2**64 - 1):016x}"


def _write_input(path: Path, x: Tensor, bounds: tuple[float, float]) -> None:
    content, is_picture = io.BytesIO(), x.ndim == 3 and x.shape[0] in (1, 3)
    if is_picture:
        low, high = bounds
        pixels = ((x - low) / (high - low) * 255).round().clamp(0, 255).to(torch.uint8).permute(1, 2, 0).numpy()
        times = max(1, READABLE_SIDE // max(pixels.shape))
        pixels = pixels.repeat(times, 0).repeat(times, 1)
        Image.fromarray(pixels.squeeze(2) if x.shape[0] == 1 else pixels).save(content, "PNG")
    else:
        np.savez(content, x=x.numpy())
    results.write_atomically(path.with_suffix(".png" if is_picture else ".npz"), content.getvalue())
