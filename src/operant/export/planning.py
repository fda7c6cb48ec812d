"""Collects the contents of an export: what is known already, and what has to be estimated."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from operant.conditions import Recipe
from operant.data import Samples
from operant.export.class_weights import ClassWeight, class_weights
from operant.export.contents import TO_LABEL, TRANSFORM, WEIGHTS, ExportContents, Missing
from operant.export.described import Described, FieldDescriber
from operant.export.failures import ARRAYS, FOLDER, read_failures
from operant.export.labelling import DEFAULT_STRATEGY, choose_to_label, labelled_ids, learning_half
from operant.model import Classifier
from operant.profile import FieldDescription
from operant.profile._words import describe_unexplained
from operant.seeds.strategies import Strategy

PARTS = {"field", "conditions", "class shares"}  # of a description whose findings concern an export
LEARNING = "estimated from the half of the field inputs that is for learning"


@dataclass(frozen=True, kw_only=True, eq=False)
class ExportPlan:
    """What to export, and which earlier results to use; call it with the model and the data.

    Args:
        run: folder of a campaign; None if there is none.
        described: folder that ``operant field`` wrote; it need not exist.
        declared: conditions that are known, and so not estimated.
        widest: the strongest conditions that an estimate may find; see `describe_field`.
        estimate: whether to estimate conditions that are not known yet; this takes longest.
        labels: maximum number of inputs to list for labelling.
        strategy: that chooses them; see `operant.seeds.strategies`.
        present: the model that they are chosen for (default: the one that the plan is called with).
        root: folder that the names of field inputs start from.
        held_out: whether the labelled inputs are a part of the training data.
    """

    run: Path | None = None
    described: Path = Path("operant-field")
    declared: Recipe | None = None
    widest: Recipe | None = None
    estimate: bool = True
    labels: int = 100
    strategy: Strategy = DEFAULT_STRATEGY
    present: Classifier | None = None
    root: Path = Path()
    held_out: bool = False

    def __call__(
        self, model: Classifier, inputs: Samples, *, train: Samples, labelled: Samples, generator: torch.Generator
    ) -> ExportContents:
        """The contents of the export.

        Args:
            model: the model that the field was recorded for.
            inputs: all field inputs.
            train: training data of the model.
            labelled: labelled inputs that it was not trained on.
            generator: random numbers.
        """
        if len(learning_half(inputs)) == 0:
            halves = "half of them is kept to assess with, by content or by group"
            raise ValueError(f"none of the {len(inputs)} field inputs is for learning ({halves}); collect more")
        known = torch.cat([train.ids.cpu(), labelled.ids.cpu()])
        parts = [
            self._inputs_to_label(self.present or model, inputs, known, generator),
            self._failures(),
            *self._field(model, inputs, train, labelled, generator),
        ]
        return _joined(parts)

    # From labels and failures

    def _inputs_to_label(
        self, model: Classifier, inputs: Samples, known: torch.Tensor, generator: torch.Generator
    ) -> ExportContents:
        already = known if self.run is None else torch.cat([known, labelled_ids(self.run)])
        options: dict[str, Any] = {"strategy": self.strategy, "root": self.root, "generator": generator}
        chosen = choose_to_label(model, inputs, self.labels, already=already, **options)
        if chosen is None:
            return _lacking(TO_LABEL, "all field inputs that are for learning are labelled already")
        few = len(chosen.inputs)
        notes = (f"Only {few} inputs are for learning and not labelled yet.",) if few < self.labels else ()
        findings = tuple((TO_LABEL, finding) for finding in chosen.acquired.findings)
        return ExportContents(to_label=chosen, notes=notes, findings=findings)

    def _failures(self) -> ExportContents:
        if self.run is None:
            return _lacking(ARRAYS, "there is no campaign; `operant run` searches for failures")
        found = read_failures(self.run)
        if found is None:
            return _lacking(ARRAYS, f"the campaign in {self.run} has found no operational failure yet")
        shape = tuple(found.suite.rows.shape)
        tables = Missing(file=f"{FOLDER}/", why=f"inputs of the shape {shape} are not pictures; {ARRAYS} has them")
        findings = tuple((ARRAYS, finding) for finding in found.findings)
        return ExportContents(failures=found, missing=() if found.pictures else (tables,), findings=findings)

    # From a description of the field

    def _field(
        self, model: Classifier, inputs: Samples, train: Samples, labelled: Samples, generator: torch.Generator
    ) -> tuple[ExportContents, ...]:
        """Conditions, class weights, and what to know about both."""
        found = self._describe(model, inputs, train, labelled, generator)
        doubts = tuple((part, finding) for part, finding in found.field.doubts if part in PARTS)
        if self.declared is not None:
            doubts = tuple((part, finding) for part, finding in doubts if part != "conditions")
        known = Samples.concat([train, labelled]) if self.held_out else train
        return self._conditions(found), _weights(found, known), ExportContents(notes=found.notes, findings=doubts)

    def _describe(
        self, model: Classifier, inputs: Samples, train: Samples, labelled: Samples, generator: torch.Generator
    ) -> Described:
        """The description of the field: an earlier one if it is about these inputs, else a new one."""
        describe = FieldDescriber(
            described=self.described,
            run=self.run,
            widest=self.widest,
            estimate=self.estimate and self.declared is None,
        )
        half = learning_half(inputs)
        return describe(model, inputs, learning=half, train=train, labelled=labelled, generator=generator)

    def _conditions(self, found: Described) -> ExportContents:
        if self.declared is not None:
            return ExportContents(recipe=self.declared, recipe_from="declared in [conditions] of operant.toml")
        if found.field.conditions is not None:
            fitted = found.field.conditions
            explained = (describe_unexplained(fitted),) if fitted.parameters else ()
            return ExportContents(recipe=fitted.recipe, recipe_from=_source(found), notes=explained)
        return _lacking(TRANSFORM, _note_on(found.field, "Conditions", "conditions were not estimated"))


def _weights(found: Described, train: Samples) -> ExportContents:
    """The weight of each class of the model."""
    priors, names = found.field.priors, found.field.names
    names = train.classes if len(train.classes) == len(names) else names
    if priors is None:
        return _lacking(WEIGHTS, _note_on(found.field, "Class shares", "class shares were not estimated"))
    counts = torch.bincount(train.labels.cpu(), minlength=len(names)).tolist()
    weights: tuple[ClassWeight, ...] = class_weights(priors, counts, names)
    return ExportContents(weights=weights, weights_from=_source(found))


def _source(found: Described) -> str:
    return LEARNING if found.file is None else f"estimated in {found.file}"


def _note_on(described: FieldDescription, start: str, otherwise: str) -> str:
    """Why a description lacks a part: its own note on it, without the full stop."""
    notes = [note for note in described.notes if note.startswith(start)]
    return (notes[0] if notes else otherwise).removesuffix(".")


def _lacking(file: str, why: str) -> ExportContents:
    return ExportContents(missing=(Missing(file=file, why=why),))


def _joined(parts: list[ExportContents]) -> ExportContents:
    """One export of several; tuples are joined, and of other values the one that is not empty is kept."""
    whole = ExportContents()
    for part in parts:
        given = {name: value for name, value in vars(part).items() if value}
        lists = {name: getattr(whole, name) + given.pop(name, ()) for name in ("missing", "notes", "findings")}
        whole = replace(whole, **given, **lists)
    return whole
