"""The description of the field that other steps use: an earlier one if it fits, else a new one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from operant.conditions import Recipe
from operant.data import Samples
from operant.export.stored import campaign_conditions, stored_description
from operant.model import Classifier
from operant.profile import FieldDescription, describe_field


@dataclass(frozen=True, kw_only=True, eq=False)
class Described:
    """A description of the field, the file that it was read from, and what to know about it.

    Attributes:
        field: the description.
        file: where it was found; None if it is new.
        notes: why an earlier description was not used, or what it does not know.
    """

    field: FieldDescription
    file: Path | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class FieldDescriber:
    """Describes the field; nothing is estimated twice.

    Args:
        described: folder that ``operant field`` wrote; it need not exist.
        run: folder of a campaign; None if there is none.
        widest: the strongest conditions that an estimate may find; see `describe_field`.
        estimate: whether to estimate conditions that are not known yet; this takes longest.
    """

    described: Path = Path("operant-field")
    run: Path | None = None
    widest: Recipe | None = None
    estimate: bool = True

    def __call__(
        self,
        model: Classifier,
        inputs: Samples,
        *,
        learning: Samples,
        train: Samples,
        labelled: Samples,
        generator: torch.Generator,
    ) -> Described:
        """The description.

        Args:
            model: the model that the field was recorded for.
            inputs: the field inputs that a stored description must be about.
            learning: the field inputs that a new description is made from.
            train: training data of the model.
            labelled: labelled inputs that it was not trained on.
            generator: random numbers.
        """
        notes: list[str] = []
        stored = stored_description(self.described, self.run, inputs.ids.cpu(), notes)
        if stored is not None:
            lacks = stored.description.conditions is None and self.estimate and len(inputs.shape) == 3
            if not lacks:
                return Described(field=stored.description, file=stored.file, notes=tuple(notes))
        found = describe_field(
            model,
            learning,
            train=train,
            labelled=labelled,
            conditions=None if self.run is None else campaign_conditions(self.run),
            widest=self.widest,
            estimate=self.estimate,
            generator=generator,
        )
        return Described(field=found, notes=tuple(notes))
