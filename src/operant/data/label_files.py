"""Labellers that look labels up: in an npz file, in a table by name, or with a user's function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from operant.data.label_folder import LabelFolder, LabelsMissing, labels_of, stored_in
from operant.data.reading import read_samples
from operant.data.samples import Samples, name_of
from operant.data.tables import NAME_COLUMNS, cell, read_csv, table_key, unambiguous_endings
from operant.formatting import first_few
from operant.types import Labeller, StoredLabels


def labels_from_npz(path: str | Path, *, classes: int) -> StoredLabels:
    """A labeller that finds inputs in an npz file with x and y, read at every request: more may have been added.

    ``classes`` is the number of classes of the model; other labels raise a ValueError.
    """
    return _NpzLabels(Path(path), classes)


def labels_from_table(
    path: str | Path, *, classes: int, names: Mapping[str, int] | None = None, class_names: tuple[str, ...] = ()
) -> StoredLabels:
    """A labeller that reads a csv table with name,label, as `LabelFolder` writes it.

    The columns may also be called file, and class or number.

    A name is the text of an id, or the name of an input: all of it, or as many of its last parts as no other shares.

    Args:
        path, classes: the table, and the number of classes of the model.
        names: id of each input that may be asked for, by name.
        class_names: names that labels may have in place of numbers; see `LabelFolder`.
    """
    return _TableLabels(Path(path), classes, {} if names is None else names, class_names)


def note_on_unused_rows(path: str | Path, names: Mapping[str, int]) -> str:
    """A sentence about the rows of a table that `labels_from_table` ignores with these ``names``; empty without any.

    Raises a ValueError if it would ignore every row.
    """
    path = Path(path)
    table = read_csv(path)
    column = table.column(*NAME_COLUMNS)
    given = [name for row in table.rows if (name := cell(row, column))]
    called = _called(set(names.values()), names)
    known = {table_key(name) for each in called.values() for name in each}
    ids = LabelFolder(folder=path.parent, classes=1).ids()  # if it is the table of such a folder
    unused = [name for name in given if not {table_key(name), ids.get(table_key(name))} & known]
    if not unused:
        return ""
    some = first_few(unused, 3)
    if len(unused) == len(given):
        name = next(each[-1] for each in called.values())
        raise ValueError(
            f"{path} must name inputs, but none of its {len(given)} rows names one ({some}); write names such as {name}"
        )
    return (
        f"{path}: {len(unused)} of {len(given)} rows are ignored, since they name no input, or more than one ({some})"
    )


def labels_from_function(function: Callable[[Samples], Any], *, name: str, classes: int) -> Labeller:
    """A labeller that calls a user's function, from samples to one label per row, and checks what it returns.

    ``name`` is the function's name in errors, ``classes`` the number of classes of the model.
    """
    return partial(_from_function, function, name, classes)


def _from_function(function: Callable[[Samples], Any], name: str, classes: int, asked: Samples) -> Tensor:
    inputs = f"{len(asked)} inputs of shape {tuple(asked.shape)}, the first is {asked.titles[0]}"
    try:
        labels = torch.as_tensor(function(asked))
    except LabelsMissing:
        raise
    except Exception as error:  # the user's code may raise anything
        why = " ".join(f"{type(error).__name__}: {error}".split())
        raise ValueError(f"{name} failed on {inputs} ({why}); fix it and run again") from error
    whole = not (labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool)
    if labels.shape != (len(asked),) or not whole or not bool(((labels >= 0) & (labels < classes)).all()):
        raise ValueError(
            f"{name} must return {len(asked)} whole numbers from 0 to {classes - 1}, one for each of {inputs}, got "
            f"{labels.dtype} of shape {tuple(labels.shape)}"
        )
    return labels.long()


@dataclass(frozen=True)
class _NpzLabels:
    path: Path
    classes: int

    def __call__(self, asked: Samples) -> Tensor:
        labelled = self._read()
        if labelled.shape != asked.shape:
            shapes = f"{tuple(asked.shape)}, got {tuple(labelled.shape)}"
            raise ValueError(f"{self.path} must contain inputs of the field data's shape {shapes}")
        if unknown := int((~torch.isin(asked.ids, labelled.ids)).sum()):
            first = asked[~torch.isin(asked.ids, labelled.ids)].titles[0]
            advice = "add them to its x and their classes to its y, and run this again"
            raise LabelsMissing(f"{unknown} of {len(asked)} inputs are not in {self.path}, such as {first}; {advice}")
        return labels_of(labelled)(asked)

    def stored(self, ids: Tensor) -> dict[int, tuple[str, int]]:
        return stored_in(self._read(), ids)

    def _read(self) -> Samples:
        labelled = read_samples(self.path, part="field")
        if labelled.y is None:
            raise ValueError(f"{self.path} has no labels; save y beside x")
        if (largest := int(labelled.labels.max())) >= self.classes:
            highest = self.classes - 1
            raise ValueError(f"{self.path} must contain labels from 0 to {highest}, the model's classes, got {largest}")
        return labelled


@dataclass(frozen=True)
class _TableLabels:
    path: Path
    classes: int
    names: Mapping[str, int]
    class_names: tuple[str, ...]

    def __call__(self, asked: Samples) -> Tensor:
        ids = asked.ids.tolist()
        found = self.stored(asked.ids)
        if missing := [i for i in ids if i not in found]:
            name = _called(missing[:1], self.names)[missing[0]][-1]
            advice = f"add rows such as {name},{self._folder.label_text(self.classes - 1)}, and run this again"
            raise LabelsMissing(f"{len(missing)} of {len(asked)} inputs have no label in {self.path}; {advice}")
        return torch.tensor([found[i][1] for i in ids], dtype=torch.int64)

    def stored(self, ids: Tensor) -> dict[int, tuple[str, int]]:
        by_name = self._folder.read()
        by_id = self._folder.by_id(by_name)  # here a row that belongs to an id has no other name
        found: dict[int, tuple[str, int]] = {}
        for i, names in _called(ids.tolist(), self.names).items():
            if rows := _rows(names, by_id) or _rows(names, by_name):
                found[i] = rows[0]
                if other := next((row for row in rows if row[1] != rows[0][1]), None):
                    raise ValueError(
                        f"{self.path} has two different labels for one input, in the rows {rows[0][0]} and {other[0]}; "
                        "leave one"
                    )
        return found

    @property
    def _folder(self) -> LabelFolder:
        path, names = self.path, self.class_names
        return LabelFolder(folder=path.parent, classes=self.classes, table=path.name, names=names)


def _called(ids: Iterable[int], known: Mapping[str, int]) -> dict[int, list[str]]:
    """What each input may be called in a table: its id, and every unambiguous ending of its name."""
    called = {i: [name_of(i)] for i in ids}
    for i, endings in zip(known.values(), unambiguous_endings(list(known)), strict=True):
        if i in called:
            called[i] += endings
    return called


def _rows(names: list[str], labels: Mapping[str, int | None]) -> list[tuple[str, int]]:
    """The rows of an input that has these names, with their labels."""
    return [(name, label) for name in names if (label := labels.get(table_key(name))) is not None]
