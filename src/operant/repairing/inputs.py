"""Which inputs a repair may learn from: none that a campaign assesses with, and none that measure clean accuracy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor

from operant.data import Samples
from operant.export.failures import read_failures
from operant.export.labelling import learning_half
from operant.formatting import first_few
from operant.retrain import TeachingLabels
from operant.suite import Suite
from operant.validation import check_one_of

RANDOM, CHOSEN = "random", "chosen"  # how labelled inputs were drawn


@dataclass(frozen=True, kw_only=True, eq=False)
class RepairInputs:
    """The data of a repair; made by `repair_inputs`.

    Attributes:
        train, clean: labelled data to learn from, and to measure clean accuracy on.
        field: field inputs to learn from, without labels.
        taught: their labels, as far as they are known.
        failures: of a campaign; None if there are none.
        reserved: ids of the inputs that a campaign assesses with; None without a campaign.
        notes: what was left out, and why.
    """

    train: Samples
    clean: Samples
    field: Samples
    taught: tuple[TeachingLabels, ...] = ()
    failures: Suite | None = None
    reserved: Tensor | None = None
    notes: tuple[str, ...] = ()


def repair_inputs(
    *,
    train: Samples,
    clean: Samples,
    field: Samples,
    labels: Mapping[int, int],
    drawn: str = CHOSEN,
    random_labels: Mapping[int, int] = MappingProxyType({}),
    run: Path | None = None,
    classes: int,
) -> RepairInputs:
    """The inputs and labels that may be learned from.

    Args:
        train, clean: labelled data to learn from, and to measure clean accuracy on.
        field: all field inputs.
        labels: of field inputs, by id; may be empty.
        drawn: how the labelled inputs were drawn: "random", or "chosen".
        random_labels: of further inputs, which were drawn at random; where an input is among both, this draw counts.
        run: folder of a campaign: half of the field inputs is left out, its failures are learned from.
        classes: number of classes of the model.
    """
    check_one_of((RANDOM, CHOSEN), drawn=drawn)
    notes: list[str] = []
    new = _without_known(field, torch.cat([train.ids, clean.ids]), notes)
    half = new if run is None else learning_half(new)
    if len(half) == 0:
        raise ValueError(f"none of the {len(field)} field inputs may be learned from; collect more")
    draws = [(random_labels, RANDOM), ({i: y for i, y in labels.items() if i not in random_labels}, drawn)]
    parts = [(_labelled(half, some), how) for some, how in draws]
    every, taught = {**labels, **random_labels}, Samples.concat([part for part, _ in parts])
    reserved = None if run is None else new.ids[~torch.isin(new.ids, half.ids)].unique()
    notes += _notes_on_labels(every, len(taught), reserved, run)
    if every:
        _check_labels(taught, classes)
        notes += _note_on_classes(taught, train.classes, classes)
    return RepairInputs(
        train=train,
        clean=clean,
        field=half,
        taught=tuple(_drawn(part, how) for part, how in parts if len(part)),
        failures=None if run is None else _failures(run),
        reserved=reserved,
        notes=tuple(notes),
    )


def _without_known(field: Samples, known: Tensor, notes: list[str]) -> Samples:
    """Field inputs that are not training or clean inputs too."""
    new = field[~torch.isin(field.ids, known)]
    if n := len(field) - len(new):
        notes.append(f"{n} of {len(field)} field inputs are left out: they are training or clean inputs too.")
    return new


def _labelled(field: Samples, labels: Mapping[int, int]) -> Samples:
    """The labelled ones among field inputs, each once, in the order of their ids."""
    ids = torch.tensor(sorted(labels), dtype=torch.int64)
    ids = ids[torch.isin(ids, field.ids)]
    return field[field.rows_of(ids)].with_labels(torch.tensor([labels[i] for i in ids.tolist()], dtype=torch.int64))


def _drawn(samples: Samples, drawn: str) -> TeachingLabels:
    if drawn == RANDOM:
        return TeachingLabels(samples=samples, use="teaching, judging and estimates", drawn="at random")
    return TeachingLabels(samples=samples)


def _failures(run: Path) -> Suite | None:
    found = read_failures(run)
    return None if found is None else found.suite


def _notes_on_labels(labels: Mapping[int, int], used: int, reserved: Tensor | None, run: Path | None) -> list[str]:
    if reserved is None or used == len(labels):
        return []
    n = int(torch.isin(torch.tensor(list(labels), dtype=torch.int64), reserved).sum())
    why = f"the campaign in {run} assesses with these inputs; `operant export` lists inputs that may be learned from"
    return [f"{n} of {len(labels)} labels are not used: {why}."] if n else []


def _note_on_classes(taught: Samples, names: tuple[str, ...], classes: int) -> list[str]:
    seen = set(taught.labels.tolist())
    missing = [names[c] if len(names) == classes else str(c) for c in range(classes) if c not in seen]
    if not missing:
        return []
    what = f"{len(missing)} of {classes} classes have no label ({first_few(missing, 5)})"
    return [f"{what}; training data teach these classes alone."]


def _check_labels(taught: Samples, classes: int) -> None:
    """Raise ValueError for labels that would do harm."""
    if len(taught) == 0:
        raise ValueError(
            "none of the labels is of a field input that may be learned from; label some of those that `operant "
            "export` lists, or leave the labels out"
        )
    if classes > 1 and len(seen := taught.labels.unique()) == 1:
        raise ValueError(
            f"labels must be of two classes at least, got {len(taught)} of class number {int(seen)}: a model would "
            "learn to answer nothing else; label inputs of other classes too, or leave the labels out"
        )
