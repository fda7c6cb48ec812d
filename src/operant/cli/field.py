"""``operant field``."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from operant.cli.activities import loading
from operant.cli.field_data import read_field_data
from operant.cli.options import (
    Bounds,
    CleanFile,
    FieldFile,
    FieldGroups,
    Mean,
    ModelOrConfig,
    Seed,
    Size,
    Std,
    TrainFile,
    Weights,
    config_here,
    load_classifier,
)
from operant.cli.output import exit_on_error, print_line

if TYPE_CHECKING:
    from operant.campaign.build import DataOptions
    from operant.campaign.config import Config
    from operant.model import Classifier
    from operant.profile import FieldDescription


def field(
    model: ModelOrConfig = None,
    field: FieldFile = None,
    train: TrainFile = None,
    clean: CleanFile = None,
    groups: FieldGroups = None,
    conditions: Annotated[
        bool | None,
        typer.Option(help="Estimate conditions, which takes longest.", show_default="[conditions] of operant.toml"),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the description.")] = Path("operant-field"),
    weights: Weights = None,
    bounds: Bounds = None,
    mean: Mean = None,
    std: Std = None,
    size: Size = None,
    seed: Seed = 0,
) -> None:
    """Describe the field without labels: what it looks like, its conditions and class shares, and what has changed.

    Writes field.html and field.json. Run again when new inputs have arrived, it compares them with those of last time.
    What is not given is taken from the operant.toml of the current folder, if there is one.

    Exit code 0: the field is described, whatever was found; 2: it could not be described.
    """
    with exit_on_error():
        with loading("operant field"):
            from operant.campaign.build import data_options
            from operant.report.field import write_field

        config = config_here()
        classifier = load_classifier(model, weights, bounds, mean, std, config=config)
        options = data_options(config, train=train, clean=clean, field=field, size=size, groups=groups)
        last, where = _last(out, config)
        described = _describe(classifier, options, config, conditions, last, seed)
        page = write_field(described, out)
        print_line(str(described))
        print_line(f"{f'last time: {where}' if where else ''}\npage: {page}".strip())


def _describe(
    model: Classifier,
    options: DataOptions,
    config: Config | None,
    conditions: bool | None,
    last: FieldDescription | None,
    seed: int,
) -> FieldDescription:
    """Read all data, check the model and describe the field."""
    from operant.profile import describe_field
    from operant.rng import spawn

    data = read_field_data(model, options, config)
    described = describe_field(
        model,
        data.inputs,
        train=data.train,
        labelled=data.clean,
        estimate=data.table.wanted if conditions is None else conditions,
        widest=data.limits,
        last=last,
        generator=spawn(seed, "field"),
    )
    return replace(described, notes=(*data.notes, *described.notes))


def _last(out: Path, config: Config | None) -> tuple[FieldDescription | None, str]:
    """The description of last time and where it is: that of the same folder, or else the campaign's newest."""
    from operant import results
    from operant.campaign.observers import DescriptionOfField
    from operant.profile import FieldDescription

    own = out / "field.json"
    if own.exists():
        try:
            return results.load(own, FieldDescription), str(own)
        except ValueError as error:
            raise ValueError(f"{error}. To begin anew, delete {own}") from None
    folder = None if config is None else config.path(config.run.folder)
    rounds = [] if folder is None else sorted(folder.glob(f"round-*/{DescriptionOfField.name}.json"))
    with suppress(ValueError):  # of another version; the campaign itself reports that
        return (results.load(rounds[-1], FieldDescription), str(rounds[-1])) if rounds else (None, "")
    return None, ""
