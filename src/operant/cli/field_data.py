"""The data that commands about a field read, checked against the model."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from operant.cli.options import CONFIG
from operant.cli.output import Output, check_model

if TYPE_CHECKING:
    from operant.campaign.build import DataOptions
    from operant.campaign.config import ConditionsTable, Config
    from operant.conditions import Recipe
    from operant.data import Samples
    from operant.model import Classifier


@dataclass(frozen=True, kw_only=True, eq=False)
class FieldData:
    """Training, clean and field inputs, and what is declared of the conditions; made by `read_field_data`.

    Attributes:
        train, clean: labelled data that the model was trained on, and that it was not.
        inputs: of the field, without labels.
        table: [conditions] of the configuration, or its defaults.
        limits: the strongest conditions that an estimate may find; None if there cannot be any.
        notes: choices that were made for the user.
    """

    train: Samples
    clean: Samples
    inputs: Samples
    table: ConditionsTable
    limits: Recipe | None
    notes: tuple[str, ...]

    def declared(self, model: Classifier) -> Recipe | None:
        """The conditions of the configuration, if they are not to be estimated."""
        from operant.campaign.build import declared_recipe

        declared = bool(self.table.severities) and not self.table.estimated
        return declared_recipe(self.table, model.bounds) if declared else None


def read_field_data(
    model: Classifier, options: DataOptions, config: Config | None, output: Output | None = None
) -> FieldData:
    """Read all data and check the model with them; an error if the doctor finds results meaningless."""
    from operant.campaign.build import configured_classes, field_files, limits_of, read_known
    from operant.campaign.config import ConditionsTable
    from operant.profile._conditions import NoConditions

    if options.train is None or not options.field:
        missing = "training" if options.train is None else "field"
        option = "--train" if options.train is None else "--field"
        raise ValueError(f"there are no {missing} data: give {option}, or run this in a folder with {CONFIG}")
    notes: list[str] = []
    train, clean = read_known(options, model, notes)
    if config is not None:
        train = replace(train, classes=configured_classes(config, model, train))
    check_model(model, clean, output or Output())
    inputs = field_files(options, model, train, clean).read()
    table = config.conditions if config is not None and config.conditions is not None else ConditionsTable()
    limits = None
    with suppress(NoConditions):  # the description says why
        limits = limits_of(table, train, model.bounds)
    said = tuple(f"{note}." for note in notes)
    return FieldData(train=train, clean=clean, inputs=inputs, table=table, limits=limits, notes=said)
