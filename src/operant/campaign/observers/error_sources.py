"""Where the error rate comes from: labelled field inputs by class and by region, before and after each round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from operant.campaign.observers.base import ObservedRound, Section, read_template
from operant.campaign.records import Round
from operant.data.class_texts import class_name

MAX_MATRIX_CLASSES = 20  # with more classes, the most confused pairs are shown instead of a matrix
MAX_PAIRS = 12
MAX_SUMMARY_CLASSES = 5
MAX_WRONG = 50  # misclassified field inputs that the report lists


@dataclass(frozen=True, kw_only=True)
class WrongInput:
    """A labelled field input that a model misclassifies: its file or id, its true class and the predicted one."""

    name: str
    label: int
    prediction: int


@dataclass(frozen=True, kw_only=True)
class Confusion:
    """How a round's model classifies labelled inputs; ``error_sources.json`` of a round that bought labels.

    Attributes:
        clean: number of clean inputs by true class (rows) and predicted class (columns).
        before, after: the same for field inputs labelled in this round, for the model before and after it.
        fixed, broken: of these inputs, how many only the model after, or only the one before, classifies correctly.
        cell_mass: share of the field in each cell of the profile.
        cell_labels, cell_failures: labelled inputs in each cell, and how many of them the model after gets wrong.
        wrong: field inputs labelled in this round that the model after it gets wrong.
    """

    clean: Tensor
    before: Tensor
    after: Tensor
    fixed: int
    broken: int
    cell_mass: Tensor
    cell_labels: Tensor
    cell_failures: Tensor
    wrong: tuple[WrongInput, ...] = ()


@dataclass(frozen=True)
class ErrorSources:
    """Records by class and by cell of the profile which labelled field inputs a model gets wrong."""

    name: ClassVar[str] = "error_sources"
    record: ClassVar[type] = Confusion
    template: ClassVar[str] = read_template(__file__)

    def observe(self, seen: ObservedRound) -> Confusion | None:
        """The confusion of the round's models; None if the round bought no labels."""
        labelled, field, clean = seen.labelled, seen.field, seen.clean
        if len(labelled) == 0:
            return None
        y, old, new = (v.cpu() for v in (labelled.labels, *(m.predict(labelled.x) for m in (seen.before, seen.after))))
        classes, n = seen.after.classes(clean.x[:1]), len(field.centres)
        cell, profile = field.cells(labelled.x), field.profile
        home = torch.cdist(profile.codes.detach().cpu().double(), field.centres).argmin(1)
        return Confusion(
            clean=confusion(clean.labels.cpu(), seen.after.predict(clean.x).cpu(), classes),
            before=confusion(y, old, classes),
            after=confusion(y, new, classes),
            fixed=int(((old != y) & (new == y)).sum()),
            broken=int(((old == y) & (new != y)).sum()),
            cell_mass=torch.bincount(home, profile.shares.cpu().double(), minlength=n),
            cell_labels=torch.bincount(cell, minlength=n),
            cell_failures=torch.bincount(cell[new != y], minlength=n),
            wrong=wrong_inputs(labelled.titles, y, new),
        )

    def section(
        self, records: Mapping[int, Confusion], *, rounds: Sequence[Round], classes: Sequence[str]
    ) -> Section | None:
        """Errors of the present model by class and region, and the confusion matrices of every round."""
        if not records:
            return None
        present = [number for number in present_rounds(rounds) if number in records]
        values: dict[str, Any] = {
            "present": present,
            "by_class": [],
            "by_region": [],
            "wrong": [],
            "more_wrong": 0,
            "changes": [self._change(number, records[number], rounds, classes) for number in sorted(records)],
        }
        summary, lines = "No labels were bought for the present model yet.", tuple[str, ...]()
        if present:
            counts = torch.stack([records[number].after for number in present]).sum(0)
            values["by_class"] = _by_class(counts, classes)
            values["by_region"] = _by_region([records[number] for number in present])
            wrong = [_named(one, classes) for number in present for one in records[number].wrong]
            values["wrong"], values["more_wrong"] = wrong[:MAX_WRONG], max(len(wrong) - MAX_WRONG, 0)
            summary, lines = _summary(values["by_class"], present), _lines(values["wrong"], values["more_wrong"])
        title = "Where pmi comes from"
        return Section(name=self.name, title=title, summary=summary, values=values, after="field", lines=lines)

    def _change(self, number: int, record: Confusion, rounds: Sequence[Round], classes: Sequence[str]) -> Any:
        changed = any(r.changed for r in rounds if r.number == number)
        field = "field inputs labelled in this round"
        matrices = [matrix(record.before, classes, f"Before: {field}")] if changed else []
        names = (f"{'After: ' if changed else ''}{what}" for what in (field, "clean inputs"))
        matrices += [
            matrix(counts, classes, name) for counts, name in zip((record.after, record.clean), names, strict=True)
        ]
        return {
            "round": number,
            "changed": changed,
            "fixed": record.fixed,
            "broken": record.broken,
            "matrices": matrices,
        }


def present_rounds(rounds: Sequence[Round]) -> list[int]:
    """The rounds of the present model in the present field: the last one that changed either, and those after it."""
    first = next((i for i, r in reversed(list(enumerate(rounds))) if not r.idle), 0)
    return [r.number for r in rounds[first:]]


def confusion(true: Tensor, predicted: Tensor, classes: int) -> Tensor:
    """Counts ``(classes, classes)``: rows are true classes, columns predicted ones."""
    counts = torch.bincount(true * classes + predicted, minlength=classes * classes)
    return counts.view(classes, classes).to(torch.int32)


def wrong_inputs(names: Sequence[str], true: Tensor, predicted: Tensor) -> tuple[WrongInput, ...]:
    """The inputs whose predicted class is not the true one, in order."""
    rows = zip(names, true.tolist(), predicted.tolist(), strict=True)
    return tuple(WrongInput(name=name, label=y, prediction=p) for name, y, p in rows if y != p)


def matrix(counts: Tensor, classes: Sequence[str], name: str) -> dict[str, Any]:
    """A confusion matrix for the report; with too many classes, the pairs that are confused most often."""
    names = [class_name(c, classes) for c in range(len(counts))]
    rows = counts.tolist()
    wrong = [[names[t], names[p], n] for t, row in enumerate(rows) for p, n in enumerate(row) if t != p and n]
    large = len(rows) > MAX_MATRIX_CLASSES
    return {
        "name": name[0].upper() + name[1:],
        "names": names,
        "rows": [] if large else [[[n, n / (sum(row) or 1)] for n in row] for row in rows],
        "pairs": sorted(wrong, key=lambda pair: -pair[2])[:MAX_PAIRS] if large else [],
        "right": int(counts.diagonal().sum()),
        "total": int(counts.sum()),
    }


def _by_class(counts: Tensor, classes: Sequence[str]) -> list[dict[str, Any]]:
    """Failures and labelled inputs of each class, and its share of the labelled inputs."""
    labels = counts.sum(1)
    failures = labels - counts.diagonal()
    rows = zip(failures.tolist(), labels.tolist(), (labels / max(int(labels.sum()), 1)).tolist(), strict=True)
    return [
        {"name": class_name(c, classes), "failures": k, "labels": n, "expected": share}
        for c, (k, n, share) in enumerate(rows)
    ]


def _by_region(records: Sequence[Confusion]) -> list[dict[str, Any]]:
    """Failures and labelled inputs of each cell, and its share of the field."""
    failures, labels = (
        torch.stack([getattr(r, name) for r in records]).sum(0) for name in ("cell_failures", "cell_labels")
    )
    rows = zip(failures.tolist(), labels.tolist(), records[-1].cell_mass.tolist(), strict=True)
    return [
        {"name": f"region {i}", "failures": k, "labels": n, "expected": mass} for i, (k, n, mass) in enumerate(rows)
    ]


def _summary(by_class: Sequence[Mapping[str, Any]], present: Sequence[int]) -> str:
    worst = sorted((row for row in by_class if row["failures"]), key=lambda row: (-row["failures"], -row["labels"]))
    when = f"round {present[0]}" if len(present) == 1 else f"rounds {', '.join(map(str, present))}"
    names = ", ".join(f"{r['name']} ({r['failures']} of {r['labels']})" for r in worst[:MAX_SUMMARY_CLASSES])
    if not names:
        return f"No labelled input failed in {when}."
    others = worst[MAX_SUMMARY_CLASSES:]
    more = f"; {sum(r['failures'] for r in others)} more in {len(others)} other class{'es' * (len(others) > 1)}"
    return f"Failures by class in {when}: {names}{more * bool(others)}."


def _named(wrong: WrongInput, classes: Sequence[str]) -> dict[str, str]:
    label, prediction = (class_name(c, classes) for c in (wrong.label, wrong.prediction))
    return {"name": wrong.name, "label": label, "prediction": prediction}


def _lines(wrong: Sequence[Mapping[str, str]], more: int) -> tuple[str, ...]:
    lines = [f"{one['name']}: {one['label']} taken for {one['prediction']}" for one in wrong]
    return (*lines, *[f"and {more} more"] * bool(more))
