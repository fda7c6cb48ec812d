"""``operant export``."""

from __future__ import annotations

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
    campaign_folder,
    config_here,
    from_here,
    load_classifier,
)
from operant.cli.output import exit_on_error, print_line

if TYPE_CHECKING:
    from operant.export import ExportContents
    from operant.model import Classifier
    from operant.seeds.strategies import Strategy

STRATEGIES = ("badge", "risk-badge", "clue", "margin", "random", "disagreement")


def export(
    model: ModelOrConfig = None,
    field: FieldFile = None,
    train: TrainFile = None,
    clean: CleanFile = None,
    groups: FieldGroups = None,
    run: Annotated[
        Path | None,
        typer.Option(
            help="Folder of a campaign: its failures are exported, and what it has estimated is used.",
            show_default="[run] folder of operant.toml, or operant-run, if it exists",
        ),
    ] = None,
    described: Annotated[
        Path, typer.Option(help="Folder that `operant field` wrote; what it has estimated is used.")
    ] = Path("operant-field"),
    conditions: Annotated[
        bool | None,
        typer.Option(
            help="Estimate conditions if they are not known yet, which takes longest.",
            show_default="[conditions] of operant.toml",
        ),
    ] = None,
    labels: Annotated[int, typer.Option(help="Number of inputs to list for labelling.", min=1)] = 100,
    strategy: Annotated[str, typer.Option(help=f"How to choose them: {', '.join(STRATEGIES)}.")] = "badge",
    out: Annotated[Path, typer.Option(help="Folder for the export; an earlier export in it is replaced.")] = Path(
        "operant-export"
    ),
    weights: Weights = None,
    bounds: Bounds = None,
    mean: Mean = None,
    std: Std = None,
    size: Size = None,
    seed: Seed = 0,
) -> None:
    """Write what is known of the field for your own training code.

    Writes a transform with the conditions of the field, class weights, a list of inputs to label, the operational
    failures of a campaign, and a README.md that explains them. What is not given is taken from the operant.toml of the
    current folder, if there is one.

    Exit code 0: written, with the reason for each part that is missing; 2: it could not be written.
    """
    with exit_on_error():
        with loading("operant export"):
            from operant.campaign.build import data_options
            from operant.export import ExportPlan, write_export
            from operant.export.writing import check_replaceable
            from operant.rng import spawn

        check_replaceable(out)  # before anything that takes long
        config = config_here()
        campaign = campaign_folder(run)
        classifier = load_classifier(model, weights, bounds, mean, std, config=config)
        chooser, present = _strategy(strategy, classifier, campaign)
        options = data_options(config, train=train, clean=clean, field=field, size=size, groups=groups)
        data = read_field_data(classifier, options, config)
        plan = ExportPlan(
            run=campaign,
            described=described,
            declared=data.declared(classifier),
            widest=data.limits,
            estimate=data.table.wanted if conditions is None else conditions,
            labels=labels,
            strategy=chooser,
            present=present,
            root=from_here(options.root),
            held_out=options.clean is None,
        )
        known = {"train": data.train, "labelled": data.clean}
        contents = plan(classifier, data.inputs, **known, generator=spawn(seed, "export"))
        _print_summary(contents, write_export(replace(contents, notes=(*data.notes, *contents.notes)), out))


def _strategy(word: str, model: Classifier, run: Path | None) -> tuple[Strategy, Classifier | None]:
    """The strategy of a word, and the model to choose for, if it is not the given one."""
    from operant.seeds.strategies import AtRandom, Badge, ByDisagreement, Clue, DiverseMargin

    plain: dict[str, Strategy] = {"badge": Badge(), "clue": Clue(), "margin": DiverseMargin(), "random": AtRandom()}
    if word in plain:
        return plain[word], None
    if word == "risk-badge":
        return _risk_badge(model, run), None
    if word != "disagreement":
        raise ValueError(f"--strategy must be one of {', '.join(STRATEGIES)}, got {word!r}")
    from operant.export.stored import retrained_model

    present = None if run is None else retrained_model(run, model)
    if present is None:
        raise ValueError(
            f"--strategy disagreement compares the model with its retrained one, and {_place(run)} has none; choose "
            "another strategy, such as badge"
        )
    return ByDisagreement(original=model), present


def _risk_badge(model: Classifier, run: Path | None) -> Strategy:
    from operant.campaign.risk import DRAWS, TEACHING, teaching_cases
    from operant.execution.run_folder import finished
    from operant.profile import fit_risk
    from operant.seeds.strategies import RiskBadge

    if run is None or not finished(run / DRAWS / TEACHING):
        raise ValueError(
            f"--strategy risk-badge needs the risk map of a campaign with conditions, and {_place(run)} has none; "
            "choose another strategy, such as badge"
        )
    taught = teaching_cases(run)
    return RiskBadge(risk=fit_risk(model, taught.cases, wider=taught.wider, priors=taught.shares))


def _place(run: Path | None) -> str:
    return "this folder" if run is None else f"the campaign in {run}"


def _print_summary(contents: ExportContents, readme: Path) -> None:
    for name, what in contents.files.items():
        print_line(f"{readme.parent / name}: {what}")
    for part in contents.missing:
        print_line(f"{part.file} is missing: {part.why}")
    if contents.to_label is not None:
        from operant.seeds.acquisition import SENTENCES

        print_line(f"Inputs to label: {SENTENCES[contents.to_label.acquired.use]}")
    print_line(f"how to use them: {readme}")
