"""The ``README.md`` of an export: what each file is, how to use it, and what is missing."""

from __future__ import annotations

import json
import math

from operant.conditions import CONDITIONS
from operant.export.contents import TO_LABEL, TRANSFORM, WEIGHTS, ExportContents
from operant.export.failures import ARRAYS
from operant.seeds.acquisition import SENTENCES


def readme(contents: ExportContents, folder: str) -> str:
    """The text; ``folder`` is the name of the export's folder."""
    parts = [
        "# What Operant knows about the field",
        "Written by `operant export`. The same command replaces these files, if none of them has changed.",
        _table(contents),
        _example(contents, folder),
        _conditions(contents),
        _weights(contents),
        _labels(contents),
        _missing(contents),
        _doubts(contents),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _table(contents: ExportContents) -> str:
    rows = [f"| `{name}` | {what} |" for name, what in contents.files.items()]
    return "\n".join(["| file | content |", "|---|---|", *rows]) if rows else "There is nothing to export yet."


# How to use it


def _example(contents: ExportContents, folder: str) -> str:
    """Ten lines for PyTorch, of what there is."""
    lines = [
        *(_transform_lines(folder) if contents.recipe is not None else []),
        *(_weight_lines(folder) if contents.weights else []),
        *(_failure_lines(folder) if contents.failures is not None else []),
    ]
    if not lines:
        return ""
    imports = [line for line in lines if line.startswith(("import ", "from "))]
    rest = [line for line in lines if line not in imports]
    plain = sorted(dict.fromkeys(line for line in imports if line.startswith("import ")))
    code = [*plain, *rest[:1], *(line for line in imports if line not in plain), *rest[1:]]
    return "\n".join(["## Use it in PyTorch", "", "```python", *code, "```"])


def _transform_lines(folder: str) -> list[str]:
    return [
        "import sys",
        f"sys.path.insert(0, {json.dumps(folder)})",
        "from field_transform import FieldTransform",
        "transform = FieldTransform(strength=1.0)  # below 1: weaker than in the field",
        "x = transform(x)  # a float image (C, H, W) or a batch (N, C, H, W), before normalisation",
    ]


def _weight_lines(folder: str) -> list[str]:
    return [
        "import csv",
        "import torch",
        "from pathlib import Path",
        f"rows = csv.DictReader(Path({json.dumps(f'{folder}/{WEIGHTS}')}).read_text().splitlines())",
        'loss = torch.nn.CrossEntropyLoss(weight=torch.tensor([float(row["weight"] or 0) for row in rows]))',
    ]


def _failure_lines(folder: str) -> list[str]:
    return [
        "import numpy",
        "import torch",
        f"failures = numpy.load({json.dumps(f'{folder}/{ARRAYS}')})",
        'more = torch.utils.data.TensorDataset(torch.tensor(failures["x"]), torch.tensor(failures["y"]))',
    ]


# What to know about each part


def _conditions(contents: ExportContents) -> str:
    if contents.recipe is None:
        return ""
    head = f"## Conditions\n\nThey were {contents.recipe_from}."
    recipe = contents.recipe
    if not recipe.severities:
        return f"{head} None were found, so `{TRANSFORM}` changes nothing."
    rows = [
        f"| {name} | {s.low:.3g} to {s.high:.3g} | {s.absent:.0%} | {CONDITIONS[name].meaning} |"
        for name, s in recipe.severities.items()
    ]
    low, high = recipe.bounds
    place = f"Images must lie between {low:g} and {high:g}, so put the transform before normalisation."
    seeds = "Each DataLoader worker and each epoch draws others; `torch.manual_seed` makes them repeatable."
    table = "\n".join(["| condition | range | absent | meaning |", "|---|---|---|---|", *rows])
    return f"{head} {place} {seeds}\n\n{table}"


def _weights(contents: ExportContents) -> str:
    if not contents.weights:
        return ""
    text = [
        "## Class weights\n\nA weight is the share in the field divided by the share in the training data: with these "
        "weights, each class counts as much as it occurs in the field. Shares are estimates without labels."
    ]
    if any(math.isnan(w.lower) for w in contents.weights):
        text.append("Intervals are empty because they were withheld: more than class shares differs.")
    if lacking := [w.name for w in contents.weights if math.isnan(w.weight)]:
        text.append(f"No training input has the class {', '.join(lacking)}, so it has no weight: collect some.")
    return " ".join(text)


def _labels(contents: ExportContents) -> str:
    if contents.to_label is None:
        return ""
    chosen = contents.to_label.acquired
    half = (
        f"`{TO_LABEL}` lists {len(chosen)} inputs, {chosen.reason}. They come from the half of the field inputs that "
        "is for learning: the other half is kept to assess with, and is never listed."
    )
    return f"## How the labels may be used\n\n{half} {SENTENCES[chosen.use]}"


def _missing(contents: ExportContents) -> str:
    if not contents.missing:
        return ""
    return "\n".join(["## What is missing", "", *(f"- `{part.file}`: {part.why}" for part in contents.missing)])


def _doubts(contents: ExportContents) -> str:
    lines = [*contents.notes, *(f"{part}: {finding}" for part, finding in contents.findings)]
    return "\n".join(["## What to know about the estimates", "", *(f"- {line}" for line in lines)]) if lines else ""
