"""A repair in its folder: it can be interrupted and resumed at any point, and is computed once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from operant.conditions import Recipe
from operant.data import Samples
from operant.engine import Engine, serial
from operant.execution.run_folder import MODEL, RunFolder, finished, require_existing
from operant.execution.signature import signature_of
from operant.export.described import FieldDescriber
from operant.model import Classifier
from operant.profile import FieldDescription
from operant.repairing.inputs import RepairInputs
from operant.repairing.record import RepairRecord
from operant.retrain import (
    FieldKnowledge,
    Retrainer,
    Schedule,
    default_arms,
    further_arms,
    hold_out_judges,
    known_field,
    repair,
)
from operant.retrain.knowledge import shares_among
from operant.rng import spawn
from operant.validation import check_share

RECORD, FIELD = "repair", "field"  # names of the results in the folder
RACE = "race"  # folder of the arms


@dataclass(frozen=True, kw_only=True)
class FieldFound:
    """The description of the field that a repair uses, and notes on where it comes from."""

    description: FieldDescription
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class RepairJob:
    """Options of a repair; call it with a model, inputs and a folder.

    Args:
        schedule: steps and learning rate of the default arms.
        max_drop: largest loss of clean accuracy allowed.
        further: names of `further_arms` that race too.
        own: the user's arms, by name.
        own_version: text that changes whenever the code of these arms does.
        describe: finds conditions and class shares of the field; None to do without.
        declared: conditions that are known, and so not estimated.
        engine: trains the arms.
    """

    schedule: Schedule = Schedule()  # noqa: RUF009  # frozen
    max_drop: float = 0.05
    further: tuple[str, ...] = ()
    own: Mapping[str, Retrainer] = field(default_factory=dict)
    own_version: str = ""
    describe: FieldDescriber | None = None
    declared: Recipe | None = None
    engine: Engine = serial

    def __post_init__(self) -> None:
        check_share(max_drop=self.max_drop, advice="0.05 is five points")

    def __call__(self, model: Classifier, inputs: RepairInputs, *, folder: Path, seed: int) -> RepairRecord:
        """Repair the model, or resume it; the record.

        Args:
            model: the original model.
            inputs: what may be learned from; made by `repair_inputs`.
            folder: for ``model.safetensors``, if the model changed, ``repair.json`` and the state of the race.
            seed: random seed.
        """
        with RunFolder(folder, signature=self._signature(model, inputs, seed)) as run:
            if not run.has(RECORD):
                self._repair(run, model, inputs, seed)
            run.clear(RACE)
            return run.step(RECORD, RepairRecord, require_existing(folder))

    def _signature(self, model: Classifier, inputs: RepairInputs, seed: int) -> dict[str, str]:
        labels = [draw.samples for draw in inputs.taught]
        return signature_of(
            self,
            free=("describe", "engine"),
            conditions="none" if self.describe is None else self.describe.widest,
            model=model,
            train=inputs.train,
            clean=inputs.clean,
            field=inputs.field,
            labels=Samples.concat(labels) if labels else "none",
            drawn=", ".join(draw.drawn for draw in inputs.taught),
            failures="none" if inputs.failures is None else inputs.failures.digest(),
            seed=seed,
        )

    def _repair(self, run: RunFolder, model: Classifier, inputs: RepairInputs, seed: int) -> None:
        found, notes = self._known(run, model, inputs, seed)
        known, judges = hold_out_judges(_with_all_classes(found, model))
        with run.writing(RACE):
            done = repair(
                model,
                known,
                judges=judges,
                arms={**default_arms(model, known, self.schedule), **self._more_arms(model)},
                max_drop=self.max_drop,
                engine=self.engine,
                folder=run.path / RACE,
                generator=spawn(seed, "repair"),
            )
        record = RepairRecord.of(
            done,
            judge_names=() if judges is None else tuple(judges.titles),
            taught=len(known.labels),
            clean=model.accuracy(inputs.clean),
            unexplained=known.unexplained,
            notes=(*inputs.notes, *notes),
        )
        if done.changed:
            run.weights(MODEL, model, lambda: done.model)
        run.step(RECORD, RepairRecord, lambda: record)

    def _more_arms(self, model: Classifier) -> dict[str, Retrainer]:
        arms = further_arms(model, self.schedule)
        return {**{name: arms[name] for name in self.further}, **self.own}

    def _known(
        self, run: RunFolder, model: Classifier, inputs: RepairInputs, seed: int
    ) -> tuple[FieldKnowledge, tuple[str, ...]]:
        """What is known of the field, and notes on that."""
        names = ("train", "clean", "field", "taught", "failures", "reserved")
        data: dict[str, Any] = {name: getattr(inputs, name) for name in names}
        if self.declared is not None:
            note = (
                "Conditions are those that [conditions] of operant.toml declares; class shares are the training data's."
            )
            return FieldKnowledge(**data, recipe=self.declared, unexplained=0.0), (note,)
        if self.describe is None:
            return known_field(**data), ("Conditions and class shares were not estimated.",)
        found = run.step(FIELD, FieldFound, lambda: self._find(model, inputs, spawn(seed, "field")))
        description = found.description
        shown = (*found.notes, *description.notes)
        return known_field(**data, conditions=description.conditions, priors=description.priors), shown

    def _find(self, model: Classifier, inputs: RepairInputs, generator: torch.Generator) -> FieldFound:
        assert self.describe is not None
        part = inputs.field
        data = {"learning": part, "train": inputs.train, "labelled": inputs.clean}
        found = self.describe(model, part, **data, generator=generator)
        read = () if found.file is None else (f"Conditions and class shares were read from {found.file}.",)
        return FieldFound(description=found.field, notes=(*read, *found.notes))


def _with_all_classes(known: FieldKnowledge, model: Classifier) -> FieldKnowledge:
    """The same, with the training data's class shares if no others are known: one for each class of the model."""
    if known.priors:
        return known
    shares = shares_among(known.train, model.classes(known.train.x[:1]))
    return replace(known, priors=tuple(shares.tolist()))


def has_begun(folder: Path) -> bool:
    """Whether a repair that is resumed from this folder continues from something."""
    return finished(folder / f"{FIELD}.json") or any((folder / RACE).glob("**/*.safetensors"))
