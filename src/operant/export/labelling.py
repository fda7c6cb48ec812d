"""Which field inputs to label: only those that no campaign will assess with."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from operant import results
from operant.data import Samples
from operant.data.samples import name_of
from operant.execution.round_state import LabelBatch
from operant.execution.run_folder import finished
from operant.model import Classifier
from operant.seeds import Acquired, acquire
from operant.seeds.strategies import Badge, Strategy
from operant.triage.export import csv_text, safe_cell

COLUMNS = ("rank", "name", "file", "id", "why", "use")
DEFAULT_STRATEGY = Badge()


@dataclass(frozen=True, kw_only=True, eq=False)
class ToLabel:
    """Inputs to label, the most useful first; made by `choose_to_label`.

    Attributes:
        inputs: the chosen ones.
        acquired: why they were chosen, and what their labels may be used for.
        root: folder that the names of inputs start from.
    """

    inputs: Samples
    acquired: Acquired
    root: Path = Path()


def learning_half(inputs: Samples) -> Samples:
    """The field inputs to learn from, as campaigns split them; a campaign assesses with the others.

    An input that is in two groups may have both roles; it is for assessment.
    """
    halves = inputs.split(profile=0.5, assessment=0.5)
    profile = halves["profile"]
    return profile[~torch.isin(profile.ids, halves["assessment"].ids)]


def labelled_ids(run: Path) -> Tensor:
    """Ids of the inputs whose labels a campaign has bought."""
    files = sorted(file for file in run.glob("round-*/labels-*.json") if finished(file))
    return torch.cat([torch.empty(0, dtype=torch.int64), *(results.load(file, LabelBatch).ids for file in files)])


def choose_to_label(
    model: Classifier,
    inputs: Samples,
    n: int,
    *,
    strategy: Strategy = DEFAULT_STRATEGY,
    already: Tensor,
    root: Path = Path(),
    generator: torch.Generator,
) -> ToLabel | None:
    """At most n inputs of the learning half; None if all of them are labelled.

    Args:
        model: the model that the labels will teach.
        inputs: all field inputs.
        n: how many to choose; fewer if there are not so many.
        strategy: how; see `operant.seeds.strategies`.
        already: ids of inputs that are labelled.
        root: folder that the names of inputs start from.
        generator: random numbers.
    """
    pool = learning_half(inputs)
    free = pool.ids[~torch.isin(pool.ids, already)].unique()
    if len(free) == 0:
        return None
    found = acquire(model, pool, min(n, len(free)), strategy=strategy, already=already, generator=generator)
    return ToLabel(inputs=found.samples(pool), acquired=found, root=root)


def to_label_csv(chosen: ToLabel) -> str:
    """The table: one row per input, in the order of their ranks."""
    names = chosen.inputs.names or ("",) * len(chosen.inputs)
    rows = [
        (rank, safe_cell(title), safe_cell(_file_of(name, chosen.root)), name_of(i), *_reason(chosen.acquired))
        for rank, (title, name, i) in enumerate(
            zip(chosen.inputs.titles, names, chosen.inputs.ids.tolist(), strict=True), 1
        )
    ]
    return csv_text([COLUMNS, *rows])


def _reason(acquired: Acquired) -> tuple[str, str]:
    return acquired.reason, acquired.use


def _file_of(name: str, root: Path) -> str:
    """The file that an input is in; empty if that is not known. ``field.npz[3]`` is row 3 of ``field.npz``."""
    file = root / re.sub(r"\[\d+\]$", "", name)
    return file.as_posix() if name and file.is_file() else ""
