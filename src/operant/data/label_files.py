"""Labellers that look labels up: in an npz file, in a table by name, or with a user's function."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from operant.data.label_folder import LabelFolder, LabelsMissing, labels_of, name_of, stored_in
from operant.data.reading import read_samples
from operant.data.samples import Samples
from operant.types import Labeller, StoredLabels


def labels_from_npz(path: str | Path, *, classes: int) -> StoredLabels:
    """A labeller that finds inputs in an npz file with x and y, read at every request: more may have been added.

    ``classes`` is the number of classes of the model; other labels raise a ValueError.
    """
    return _NpzLabels(Path(path), classes)


def labels_from_table(
    path: str | Path, *, classes: int, pictures: Mapping[int, Path] | None = None, root: str | Path = "."
) -> StoredLabels:
    """A labeller that reads a csv table with name,label, as `LabelFolder` writes it.

    A name is that of an input, or of its image file: its path from ``root``, or as many of its last parts as no other
    image shares.

    Args:
        path, classes: the table, and the number of classes of the model.
        pictures: image files of the inputs, by id.
        root: folder that the paths of image files start from.
    """
    return _TableLabels(Path(path), classes, {} if pictures is None else pictures, Path(root))


def labels_from_function(function: Callable[[Samples], Any], *, name: str, classes: int) -> Labeller:
    """A labeller that calls a user's function, from samples to one label per row, and checks what it returns.

    ``name`` is the function's name in errors, ``classes`` the number of classes of the model.
    """
    return partial(_from_function, function, name, classes)


def _from_function(function: Callable[[Samples], Any], name: str, classes: int, asked: Samples) -> Tensor:
    inputs = f"{len(asked)} inputs of shape {tuple(asked.shape)}, the first is {name_of(int(asked.ids[0]))}"
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
            advice = "add them to its x and their classes to its y, and run this again"
            raise LabelsMissing(f"{unknown} of {len(asked)} inputs are not in {self.path}; {advice}")
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
    pictures: Mapping[int, Path]
    root: Path

    def __call__(self, asked: Samples) -> Tensor:
        ids = asked.ids.tolist()
        found = self.stored(asked.ids)
        if missing := [i for i in ids if i not in found]:
            name = [name_of(missing[0]), *_short_names(self.pictures, self.root).get(missing[0], ())][-1]
            advice = f"add rows such as {name},3, and run this again"
            raise LabelsMissing(f"{len(missing)} of {len(asked)} inputs have no label in {self.path}; {advice}")
        return torch.tensor([found[i][1] for i in ids], dtype=torch.int64)

    def stored(self, ids: Tensor) -> dict[int, tuple[str, int]]:
        known = LabelFolder(folder=self.path.parent, classes=self.classes, table=self.path.name).read()
        files = _short_names(self.pictures, self.root)
        found: dict[int, tuple[str, int]] = {}
        for i in ids.tolist():
            names = [name_of(i), *files.get(i, ())]
            labels = [(name, y) for name in names if (y := known.get(_table_key(name))) is not None]
            found |= {i: labels[0]} if labels else {}
        return found


def _short_names(pictures: Mapping[int, Path], root: Path) -> dict[int, list[str]]:
    """By id, the names of an image in a table: its whole path and every unambiguous ending of it."""
    paths = {i: Path(os.path.relpath(file, root)).parts for i, file in pictures.items()}
    names = {i: ["/".join(parts[-n:]) for n in range(len(parts), 0, -1)] for i, parts in paths.items()}
    times = Counter(_table_key(name) for each in names.values() for name in each)
    return {i: [name for name in each if times[_table_key(name)] == 1] for i, each in names.items()}


def _table_key(name: str) -> str:
    """A name as `LabelFolder.read` returns it."""
    return name.lower().removesuffix(".png").removesuffix(".npz")
