"""``operant repair``."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from operant.cli.activities import loading
from operant.cli.field_data import FieldData, read_field_data
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
    load_classifier,
    read_labels_file,
)
from operant.cli.output import Output, exit_on_error, print_line

if TYPE_CHECKING:
    from operant.campaign.config import Config
    from operant.model import Classifier
    from operant.repairing import RepairInputs, RepairRecord
    from operant.retrain import Retrainer

MAX_DROP, STEPS = 0.05, 400


def repair(
    model: ModelOrConfig = None,
    labels_file: Annotated[
        Path | None,
        typer.Option(
            help="Labels of field inputs: a table (csv) with name,label, or an npz file with x and y.",
            show_default="no labels",
        ),
    ] = None,
    drawn: Annotated[
        str,
        typer.Option(
            help="How the labelled inputs were drawn: random, or chosen. Of random ones, some judge; chosen ones teach."
        ),
    ] = "chosen",
    random_labels_file: Annotated[
        Path | None,
        typer.Option(
            help="Labels of further field inputs, drawn at random: some of them judge. For chosen labels beside them.",
            show_default="none",
        ),
    ] = None,
    field: FieldFile = None,
    train: TrainFile = None,
    clean: CleanFile = None,
    groups: FieldGroups = None,
    run: Annotated[
        Path | None,
        typer.Option(
            help="Folder of a campaign: its failures are learned from, inputs that it assesses with are left out.",
            show_default="[run] folder of operant.toml, or operant-run, if it exists",
        ),
    ] = None,
    described: Annotated[
        Path, typer.Option(help="Folder that `operant field` wrote; what it has estimated is used.")
    ] = Path("operant-field"),
    conditions: Annotated[
        bool | None,
        typer.Option(
            help="Estimate conditions and class shares if they are not known yet, which takes long.",
            show_default="[conditions] of operant.toml",
        ),
    ] = None,
    max_drop: Annotated[
        float | None,
        typer.Option(
            help="Maximum loss of clean accuracy.",
            show_default=f"[requirement] max_drop of operant.toml if it is there, or {MAX_DROP}",
        ),
    ] = None,
    steps: Annotated[int, typer.Option(help="Training steps of an arm.", min=1)] = STEPS,
    learning_rate: Annotated[
        float | None,
        typer.Option(
            help="Highest learning rate.",
            show_default="[retrain] learning_rate of operant.toml if it is there, or found by a short test",
        ),
    ] = None,
    optimiser: Annotated[
        str | None,
        typer.Option(
            help="adam, or sgd with momentum.",
            show_default="[retrain] optimiser of operant.toml if it is there, or adam",
        ),
    ] = None,
    arm: Annotated[
        list[str] | None,
        typer.Option(
            help="A further arm: your own training function, file.py:function; or simulated field alone, information "
            "maximisation, operational failures alone, uncertainty patterns. Can be repeated."
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            help="Number of processes; does not change the result.",
            show_default="[run] workers of operant.toml, or 1",
            min=1,
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the repair; an interrupted one is resumed.")] = Path(
        "operant-repair"
    ),
    weights: Weights = None,
    bounds: Bounds = None,
    mean: Mean = None,
    std: Std = None,
    size: Size = None,
    seed: Seed = 0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per line: notes, then the result or an error.")
    ] = False,
) -> None:
    """Train the model for its field with the labels that there are, and keep the result only if it is better.

    Several ways to learn (arms) race. With random labels, some of them judge; without, teaching labels that an arm did
    not learn from or simulated field inputs do. Writes repair.json and, if the model changed, model.safetensors. What
    is not given is taken from the operant.toml of the current folder, if there is one.

    Exit code 0: repaired, or the original model was kept, with the reason; 2: it could not run; 130, 143 or 129:
    stopped with Ctrl-C, SIGTERM or SIGHUP. The same command resumes.
    """
    output = Output(as_json=as_json)
    with exit_on_error(output, resume=f"run the same command again (folder {out})", kept=partial(_keeps_work, out)):
        with loading("operant repair"):
            from operant.campaign.build import data_options
            from operant.execution.engines import pool
            from operant.export.described import FieldDescriber
            from operant.repairing import RepairJob
            from operant.retrain import Schedule

        config, campaign = config_here(), campaign_folder(run)
        schedule = Schedule(
            steps=steps,
            learning_rate=_option(learning_rate, config, "retrain", "learning_rate", None),
            optimiser=_option(optimiser, config, "retrain", "optimiser", "adam"),
        )
        further, functions = _split_arms(arm or [])
        own = _own_arms(functions)
        classifier = load_classifier(model, weights, bounds, mean, std, config=config)
        options = data_options(config, train=train, clean=clean, field=field, size=size, groups=groups)
        data = read_field_data(classifier, options, config, output)
        estimate = data.table.wanted if conditions is None else conditions
        job = RepairJob(
            schedule=schedule,
            max_drop=_option(max_drop, config, "requirement", "max_drop", MAX_DROP),
            further=further,
            own=own,
            own_version=_version(functions),
            describe=FieldDescriber(described=described, run=campaign, widest=data.limits) if estimate else None,
            declared=data.declared(classifier) if estimate else None,
            engine=pool(workers or (1 if config is None else config.run.workers)),
        )
        inputs = _inputs(classifier, data, (labels_file, random_labels_file), drawn, campaign, output)
        early = (*data.notes, *inputs.notes)
        for note in early:
            output.note(note)
        record = job(classifier, inputs, folder=out, seed=seed)
        for note in record.notes:
            if note not in early:
                output.note(note)
        _print_record(record, out, output)
        _print_next(record, out, model, configured=config is not None, arms=arm or [], output=output)


def _keeps_work(out: Path) -> bool:
    from operant.repairing.job import has_begun

    return has_begun(out)


def _option(given: Any, config: Config | None, table: str, key: str, default: Any) -> Any:
    """The option, or what the configuration says; its own defaults are for campaigns."""
    if given is not None or config is None:
        return default if given is None else given
    options = getattr(config, table)
    return getattr(options, key) if key in options.model_fields_set else default


def _split_arms(given: list[str]) -> tuple[tuple[str, ...], list[str]]:
    """Names of our further arms, and the user's training functions."""
    from operant.retrain.default_arms import FURTHER

    named, functions = [name for name in given if ":" not in name], [name for name in given if ":" in name]
    if unknown := [name for name in named if name not in FURTHER]:
        known = ", ".join(FURTHER)
        raise ValueError(
            f"there is no arm named {unknown[0]}; choose one of {known}, or name your own as file.py:function"
        )
    return tuple(named), functions


def _own_arms(targets: list[str]) -> dict[str, Retrainer]:
    """The user's training functions, by how they were named."""
    from operant.model.importing import find_callable
    from operant.retrain import OwnTraining

    return {target: OwnTraining(function=find_callable(target)) for target in targets}


def _version(targets: list[str]) -> str:
    """Hashes of the files of the user's training functions: other code is another repair."""
    from operant.model.hashing import fingerprint

    files = [Path(target.rpartition(":")[0]).expanduser() for target in targets]
    return " ".join(fingerprint(file) for file in files if file.suffix == ".py")


def _inputs(
    model: Classifier,
    data: FieldData,
    files: tuple[Path | None, Path | None],
    drawn: str,
    run: Path | None,
    output: Output,
) -> RepairInputs:
    """What may be learned from, with the labels of the two files; those of the second were drawn at random."""
    from operant.repairing import repair_inputs

    classes = model.classes(data.train.x[:1])
    labels, random = (_labels_of(file, model, data, classes, output) for file in files)
    parts = {"train": data.train, "clean": data.clean, "field": data.inputs}
    return repair_inputs(**parts, labels=labels, drawn=drawn, random_labels=random, run=run, classes=classes)


def _labels_of(file: Path | None, model: Classifier, data: FieldData, classes: int, output: Output) -> dict[int, int]:
    """The labels in a file, by id."""
    if file is None:
        return {}
    field, names = data.inputs, data.train.classes
    known = dict(zip(field.names or (), field.ids.tolist(), strict=False))
    words = names if len(names) == classes else ()
    labeller = read_labels_file(file, model, field.x, known, words, note=output.note)
    labels = {i: label for i, (_, label) in labeller.stored(field.ids).items()}
    if not labels:
        raise ValueError(f"{file} has no label of a field input; give a file with labels of the field data")
    return labels


def _judged_from() -> int:
    """The smallest number of random labels of which some judge."""
    from operant.retrain.repairing import MIN_JUDGES, judge_labels

    return next(labels for labels in count(1) if judge_labels(labels) >= MIN_JUDGES)


def _print_record(record: RepairRecord, out: Path, output: Output) -> None:
    """Print the race, and where the files are."""
    files = {"model": out / "model.safetensors"} if record.changed else {}
    files["record"] = out / "repair.json"
    if output.as_json:
        page = asdict(record) | {"arms": [asdict(arm) for arm in record.arms]}
        output.json(result=page | {name: str(path) for name, path in files.items()})
        return
    print_line(str(record))
    for name, path in files.items():
        print_line(f"{name}: {path}")


def _print_next(
    record: RepairRecord, out: Path, model: str | None, *, configured: bool, arms: list[str], output: Output
) -> None:
    """Print what to do next."""
    if output.as_json:
        return
    if arms and not record.judges:
        print_line(
            "Your own arm did not run: only the default arm does without judge labels. Give labels of at least "
            f"{_judged_from()} inputs; some of them must be drawn at random, to judge (--random-labels-file)."
        )
    name = f"{model} " if model else ""
    if not record.changed:
        data = "" if configured else " with the same --weights, --train, --clean and --field"
        print_line(f"Next: operant export {name}--labels 100{data} lists field inputs that are worth a label.")
        return
    required = "" if configured else " --requirement 0.05"
    print_line(
        f"Next: operant assess {name}--weights {out / 'model.safetensors'} --field NEW{required}\n"
        "NEW are field inputs that were not given to this command, with labels of random draws. Labels that taught or "
        "judged must not be used for a bound."
    )
