"""Labellers that look labels up: in an npz file, in a table by name, or with a user's function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from operant.data.label_folder import LabelFolder, LabelsMissing, labels_of
from operant.data.reading import read_samples
from operant.data.samples import Samples, name_of
from operant.data.tables import table_key, unambiguous_endings
from operant.types import Labeller


def labels_from_npz(path: str | Path, *, classes: int) -> Labeller:
    """A labeller that finds inputs in an npz file with x and y, read at every request: more may have been added.

    ``classes`` is the number of classes of the model; other labels raise a ValueError.
    """
    return partial(_from_npz, Path(path), classes)


def labels_from_table(
    path: str | Path, *, classes: int, names: Mapping[str, int] | None = None, class_names: tuple[str, ...] = ()
) -> Labeller:
    """A labeller that reads a csv table with name,label, as `LabelFolder` writes it.

    A name is the text of an id, or the name of an input: all of it, or as many of its last parts as no other shares.

    Args:
        path, classes: the table, and the number of classes of the model.
        names: id of each input that may be asked for, by name.
        class_names: names that labels may have in place of numbers.
    """
    return partial(_from_table, Path(path), classes, {} if names is None else names, class_names)


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


def _from_npz(path: Path, classes: int, asked: Samples) -> Tensor:
    labelled = read_samples(path, part="field")
    if labelled.y is None:
        raise ValueError(f"{path} has no labels; save y beside x")
    if labelled.shape != asked.shape:
        shapes = f"{tuple(asked.shape)}, got {tuple(labelled.shape)}"
        raise ValueError(f"{path} must contain inputs of the field data's shape {shapes}")
    if (largest := int(labelled.labels.max())) >= classes:
        raise ValueError(f"{path} must contain labels from 0 to {classes - 1}, the model's classes, got {largest}")
    if unknown := int((~torch.isin(asked.ids, labelled.ids)).sum()):
        first = asked[~torch.isin(asked.ids, labelled.ids)].titles[0]
        advice = "add them to its x and their classes to its y, and run this again"
        raise LabelsMissing(f"{unknown} of {len(asked)} inputs are not in {path}, such as {first}; {advice}")
    return labels_of(labelled)(asked)


def _from_table(
    path: Path, classes: int, names: Mapping[str, int], class_names: tuple[str, ...], asked: Samples
) -> Tensor:
    table = LabelFolder(folder=path.parent, classes=classes, table=path.name, names=class_names)
    known = table.read() | table.read_by_id()
    called: dict[int, list[str]] = {i: [name_of(i)] for i in asked.ids.tolist()}
    for i, endings in zip(names.values(), unambiguous_endings(list(names)), strict=True):
        if i in called:
            called[i] += endings
    found = {i: [y for name in each if (y := known.get(table_key(name))) is not None] for i, each in called.items()}
    if missing := [called[i][-1] for i in asked.ids.tolist() if not found[i]]:
        advice = f"add rows such as {missing[0]},3, and run this again"
        raise LabelsMissing(f"{len(missing)} of {len(asked)} inputs have no label in {path}; {advice}")
    return torch.tensor([found[i][0] for i in asked.ids.tolist()], dtype=torch.int64)
