"""Labellers: from samples that have labels already, or from people, through a folder of pictures and a table."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from operant import results
from operant.data.samples import Samples
from operant.types import Labeller

try:
    import fcntl
except ImportError:  # not on every system
    fcntl = None  # type: ignore[assignment]

TABLE = "labels.csv"
GUARD = ".lock.guard"
MARK = "\ufeff"  # a byte-order mark, by which spreadsheets know UTF-8
CLASSES = "classes.json"
LARGE = 224  # pixels of a picture's longer side that people can read


class LabelsMissing(Exception):
    """Labels that were asked for are not there yet; the message says where to write them."""


def labels_of(labelled: Samples) -> Labeller:
    """A labeller for inputs whose labels are known: finds each by its id."""
    if len(labelled) == 0:
        raise ValueError("there are no labelled inputs to look labels up in")
    y = labelled.labels.cpu()

    def look_up(asked: Samples) -> Tensor:
        rows = labelled.rows_of(asked.ids)
        if unknown := int((rows < 0).sum()):
            raise ValueError(f"{unknown} of {len(asked)} inputs are not among the labelled ones; label them first")
        return y[rows]

    return look_up


@dataclass(frozen=True, kw_only=True)
class LabelFolder:
    """A labeller for people: writes what is to be labelled into a folder, and reads the labels they write there.

    Each input becomes a picture, enlarged if it is small (or an npz file, if it is no picture), named by its id, with a
    row in a table.
    Asked for labels that are not filled in, it adds the missing rows and raises `LabelsMissing`; asked again when they
    are, it goes on. Labels once written serve every later question. ``operant triage`` opens a page to give them on.

    Args:
        folder: where; made if it is not there.
        classes: how many there are; other labels are refused.
        bounds: smallest and largest value of an input, black and white in a picture.
        table: the name of the table.
        names: of the classes, for people; in their order.
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
        missing = [name for name in dict.fromkeys(names) if known.get(name) is None]
        if missing:
            raise LabelsMissing(
                f"{len(missing)} of {len(set(names))} inputs have no label yet: look at the files in {self.folder}, "
                f"write each one's class (0 to {self.classes - 1}) into {self.folder / self.table} (or give them on "
                f"the page that `operant triage {self.folder}` opens), and run this again"
            )
        return torch.tensor([known[name] for name in names], dtype=torch.int64)

    def read(self) -> dict[str, int | None]:
        """The labels so far, by name; None where the table has none.

        Spreadsheets may have been at work: commas or semicolons, a byte-order mark, spaces, capitals, names with the
        file's suffix and labels such as 3.0 are understood.
        """
        return self._labels(_Table(self.folder / self.table))

    def _labels(self, table: _Table) -> dict[str, int | None]:
        known: dict[str, int | None] = {}
        for line, row in enumerate(table.rows, 2):
            if key := table.key(row):
                told = self._label(table.told(row), line, table.path)
                known[key] = known.get(key) if told is None else told
        return known

    def _label(self, text: str, line: int, path: Path) -> int | None:
        text = text.strip().removesuffix(".0")
        if not text:
            return None
        if not text.isdecimal() or int(text) >= self.classes:
            raise ValueError(
                f"line {line} of {path}: a label must be a class from 0 to {self.classes - 1}, got {text!r}"
            )
        return int(text)

    def _write(self, new: Samples) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        names = [name_of(i) for i in new.ids.tolist()]
        for x, name in zip(new.x.cpu(), names, strict=True):
            _write_input(self.folder / name, x, self.bounds)
        about = {"classes": self.classes, "names": list(self.names)}
        results.write_atomically(self.folder / CLASSES, json.dumps(about).encode() + b"\n")
        with _alone(self.folder):
            table = _Table(self.folder / self.table)  # only now: somebody may be at work
            known = self._labels(table)
            for name in dict.fromkeys(names):
                if name not in known:
                    table.add(name)
            table.write()

    def tell(self, name: str, label: int | None) -> None:
        """Write a label into the table, or take it out again with None; it is on disk when this returns."""
        if label is not None and not 0 <= label < self.classes:
            raise ValueError(f"a label must be a class from 0 to {self.classes - 1}, got {label}")
        with _alone(self.folder):
            table = _Table(self.folder / self.table)
            if name not in self._labels(table):
                raise ValueError(f"{table.path} has no row for {name!r:.80}; ask for its label first")
            table.tell(name, "" if label is None else str(label))
            table.write()


class _Table:
    """The table as people left it: their own columns, and what they put between them, stay."""

    def __init__(self, path: Path) -> None:
        try:
            text = path.read_text(encoding="utf-8") if path.exists() else "name,label\n"
        except UnicodeDecodeError:
            raise ValueError(f"{path} is not text in UTF-8; save it as CSV (UTF-8) again") from None
        self.path, self.mark = path, MARK if text.startswith(MARK) else ""
        text = text.removeprefix(MARK)
        first = text.partition("\n")[0]
        self.between = ";" if ";" in first else ","
        lines = list(csv.reader(io.StringIO(text), delimiter=self.between)) or [[]]
        self.header, self.rows = lines[0], lines[1:]
        names = [cell.strip().lower() for cell in self.header]
        if not {"name", "label"} <= set(names):
            raise ValueError(f"the first line of {path} must be name,label, got {first.strip()!r}; put it there")
        self._name, self._label = names.index("name"), names.index("label")

    def key(self, row: list[str]) -> str:
        """The name of the input that a row is about; empty if it is about none."""
        name = row[self._name] if len(row) > self._name else ""
        return name.strip().lower().removesuffix(".png").removesuffix(".npz")

    def told(self, row: list[str]) -> str:
        return row[self._label] if len(row) > self._label else ""

    def tell(self, name: str, label: str) -> None:
        """Put a label into every row about an input."""
        for row in self.rows:
            if self.key(row) == name:
                row += [""] * (1 + self._label - len(row))
                row[self._label] = label

    def add(self, name: str) -> None:
        self.rows.append([name if i == self._name else "" for i in range(len(self.header))])

    def write(self) -> None:
        text = io.StringIO()
        csv.writer(text, delimiter=self.between, lineterminator="\n").writerows([self.header, *self.rows])
        results.write_atomically(self.path, (self.mark + text.getvalue()).encode())


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process of this machine at a time; where the file system knows no such thing, everyone."""
    with open(folder / GUARD, "ab") as gate:
        if fcntl is not None:
            with suppress(OSError):
                fcntl.flock(gate, fcntl.LOCK_EX)
        yield


def name_of(identity: int) -> str:
    """The name of the input with this id; it starts with a letter, lest spreadsheets take it for a number."""
    return f"i{identity & (2**64 - 1):016x}"


def _write_input(path: Path, x: Tensor, bounds: tuple[float, float]) -> None:
    content = io.BytesIO()
    if x.ndim == 3 and x.shape[0] in (1, 3):
        low, high = bounds
        pixels = ((x - low) / (high - low) * 255).round().clamp(0, 255).to(torch.uint8).permute(1, 2, 0).numpy()
        times = max(1, LARGE // max(pixels.shape))
        pixels = pixels.repeat(times, 0).repeat(times, 1)
        Image.fromarray(pixels.squeeze(2) if x.shape[0] == 1 else pixels).save(content, "PNG")
        results.write_atomically(path.with_suffix(".png"), content.getvalue())
    else:
        np.savez(content, x=x.numpy())
        results.write_atomically(path.with_suffix(".npz"), content.getvalue())
