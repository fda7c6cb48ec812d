"""``operant assess``."""

from __future__ import annotations

import filecmp
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from operant.cli.activities import loading
from operant.cli.options import (
    CONFIG,
    Bounds,
    LabelsFile,
    Mean,
    ModelOrConfig,
    Seed,
    Size,
    Std,
    Weights,
    config_here,
    load_classifier,
    read_labels_file,
)
from operant.cli.output import CANNOT_RUN, NOT_MET, Output, check_model, exit_on_error, print_line

if TYPE_CHECKING:
    from torch import Tensor

    from operant.assess import Assessment
    from operant.campaign.build import DataOptions
    from operant.campaign.config import Config
    from operant.data import Samples
    from operant.model import Classifier
    from operant.types import Labeller, Score

LEFT_AFTER_EACH = 0.25  # share of the remaining error probability that an assessment leaves for later ones


def assess(
    model: ModelOrConfig = None,
    field: Annotated[
        Path | None,
        typer.Option(
            help="Field data: an npz file, or a folder of pictures; with or without labels.",
            show_default="[data] field and [labels] of operant.toml",
        ),
    ] = None,
    requirement: Annotated[
        float | None,
        typer.Option(
            help="Share of inputs that may be misclassified, such as 0.01.",
            show_default="[requirement] pmi of operant.toml",
        ),
    ] = None,
    labels_file: LabelsFile = None,
    labels: Annotated[int, typer.Option(help="Number of labels to use.")] = 300,
    confidence: Annotated[
        float | None,
        typer.Option(help="Confidence of the bound.", show_default="[requirement] confidence of operant.toml, or 0.95"),
    ] = None,
    trained_on: Annotated[
        Path | None,
        typer.Option(
            help="Training data of the model; field inputs among them are rejected.",
            show_default="[data] train of operant.toml",
        ),
    ] = None,
    groups: Annotated[
        Path | None,
        typer.Option(
            help="Table (csv) with file,group for all field inputs; inputs of a group stay together.",
            show_default="[data] groups of operant.toml, for its field",
        ),
    ] = None,
    risk: Annotated[
        Path | None,
        typer.Option(
            help="Folder of a campaign, or of unselected cases: labels go where these say that the model fails.",
            show_default="where its margin is small",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the result and for inputs to label.")] = Path("operant-assess"),
    weights: Weights = None,
    bounds: Bounds = None,
    mean: Mean = None,
    std: Std = None,
    size: Size = None,
    seed: Seed = 0,
) -> None:
    """Estimate the probability that an input is misclassified, with an upper bound.

    A quarter of the field inputs is used to fit the profile; labels are requested for the others. Inputs that have no
    label are written to a folder. The assessment can be repeated with more labels: all assessments in one folder share
    the allowed error probability. What is not given is taken from the operant.toml of the current folder, if there is
    one.

    Exit code 0: the requirement is met with confidence; 1: it is not; 2: undecided, since labels are missing or too
    few, or it could not run.
    """
    with exit_on_error():
        with loading("operant assess"):
            from operant import results
            from operant.campaign.build import data_options
            from operant.formatting import at_least

        config = config_here()
        requirement, confidence = _claim(requirement, confidence, config)
        out.mkdir(parents=True, exist_ok=True)
        classifier = load_classifier(model, weights, bounds, mean, std, config=config)
        options = data_options(config, train=trained_on, size=size, groups=groups, field=field)
        if field is None:
            source = _read_configured(classifier, config, options, labels_file)
        else:
            source = _read_files(classifier, field, options, labels_file, out / "to_label")
        _print_weights(weights, config if model is None else None, risk)
        score, mark = _read_risk(classifier, risk)
        number, history = _read_history(out, labels, seed, mark)
        level = 1 - (1 - confidence) * LEFT_AFTER_EACH**number * (1 - LEFT_AFTER_EACH)
        assessment = _assess(classifier, *source, risk=score, labels=labels, confidence=level, seed=seed)
        results.save(assessment, out / "assessment.json")
        results.write_atomically(out / "history.json", json.dumps(history).encode() + b"\n")
        print_line(
            f"{assessment}\nThis is assessment {number + 1} in {out}; all of them together hold with "
            f"{at_least(confidence)} confidence."
        )
        raise typer.Exit(_print_verdict(assessment, requirement))


def _assess(
    model: Classifier,
    inputs: Samples,
    labeller: Labeller,
    used: Tensor | None,
    *,
    risk: Score,
    labels: int,
    confidence: float,
    seed: int,
) -> Assessment:
    """Fit the profile to a quarter of the inputs, and assess with labels of the others."""
    from operant.assess import assess_reliability
    from operant.profile import fit_profile
    from operant.rng import spawn

    parts = inputs.split(profile=0.25, assessment=0.75)
    pool = parts["assessment"]
    if labels > len(pool):
        raise ValueError(
            f"of {len(inputs)} field inputs, a quarter is used to fit the profile and {len(pool)} remain: --labels "
            f"must be at most {len(pool)}, got {labels}"
        )
    return assess_reliability(
        model,
        fit_profile(parts["profile"], generator=spawn(seed, "profile")),
        labeller,
        pool=pool,
        risk=risk,
        labels=labels,
        confidence=confidence,
        used=used,
        generator=spawn(seed, "assessment"),
    )


def _read_files(
    model: Classifier, field: Path, options: DataOptions, labels_file: Path | None, to_label: Path
) -> tuple[Samples, Labeller, Tensor | None]:
    """Given field inputs, who labels them, and ids of inputs that the model was trained on."""
    from operant.campaign.build import names_from
    from operant.data import LabelFolder, content_ids, labels_of, read_samples

    train = None if options.train is None else options.read(options.train, part="train")
    used = None if train is None else content_ids(train.x)
    if train is not None and train.y is not None:
        check_model(model, model.match_dtype(train), Output())
    if labels_file is not None:  # as in a campaign, folders are then no classes
        found = read_samples(field, size=options.size, part="field", groups=options.groups)
        inputs = _named(model, replace(found, y=None, classes=()), options)
        names = dict(zip(names_from(Path(), field, inputs), inputs.ids.tolist(), strict=True))
        return inputs, read_labels_file(labels_file, model, inputs.x, names, inputs.classes), used
    inputs = _named(model, options.read(field, part="field", groups=options.groups), options)
    if inputs.y is not None:
        return inputs, labels_of(inputs), used
    n, classes = model.classes(inputs.x), inputs.classes
    labeller = LabelFolder(folder=to_label, classes=n, bounds=model.bounds, names=classes, examples=train)
    labeller.read_by_id()  # faulty labels are noticed before the profile is fitted
    if note := labeller.note_on_unused_rows():
        print_line(note)
    return inputs, labeller, used


def _read_configured(
    model: Classifier, config: Config | None, options: DataOptions, labels_file: Path | None
) -> tuple[Samples, Labeller, Tensor | None]:
    """The same for the field inputs and labels of the configuration."""
    import torch

    from operant.campaign.build import build_labeller, check_label_table, configured_classes, read_data
    from operant.data import content_ids

    if config is None:
        raise ValueError(f"there are no field data: give --field, or run this in a folder with {CONFIG}")
    if labels_file is None:
        check_label_table(config)
    train, clean, arrived = read_data(options, model, [], [])
    check_model(model, clean, Output())
    inputs = arrived(0)  # first: it finds the names that a table of labels may use
    names = configured_classes(config, model, train)
    notes: list[str] = []
    if labels_file is not None:
        labeller: Labeller = read_labels_file(labels_file, model, inputs.x, arrived.names, names)
    else:
        labeller = build_labeller(config, model, train, arrived.names, names, notes)
    for note in notes:
        print_line(note)
    learned = [train.x] if config.data.clean else [train.x, clean.x]  # without clean, a part of train was held out
    return replace(inputs, classes=names), labeller, torch.cat([content_ids(x) for x in learned])


def _named(model: Classifier, inputs: Samples, options: DataOptions) -> Samples:
    """The inputs in the type of the module, with a name for each of its classes, if they are known."""
    inputs = model.match_dtype(inputs)
    names = options.classes or options.folders or inputs.classes
    if names and len(names) != (n := model.classes(inputs.x)):
        if options.classes:
            raise ValueError(f"[data] classes must name each of the model's {n} classes, got {len(names)} names")
        raise ValueError(
            f"{'training data' if options.folders else 'field'} must have one folder for each of the model's {n} "
            f"classes, got {len(names)}; give all of them, with --trained-on if field inputs do not show every class"
        )
    return replace(inputs, classes=names)


def _claim(requirement: float | None, confidence: float | None, config: Config | None) -> tuple[float, float]:
    """The share of misclassified inputs that is accepted, and the confidence: given, or the configuration's."""
    if config is not None:
        requirement = config.requirement.pmi if requirement is None else requirement
        confidence = config.requirement.confidence if confidence is None else confidence
    if requirement is None:
        raise ValueError(f"there is no requirement: give --requirement, or run this in a folder with {CONFIG}")
    confidence = 0.95 if confidence is None else confidence
    _check_shares(requirement, confidence)
    return requirement, confidence


def _check_shares(requirement: float, confidence: float) -> None:
    if not 0 < requirement < 1:
        raise ValueError(f"--requirement must be a share between 0 and 1, got {requirement}")
    if not 0 < confidence < 1:
        raise ValueError(f"--confidence must be between 0 and 1, got {confidence}; 0.95 is usual")


def _print_weights(given: Path | None, config: Config | None, campaign: Path | None) -> None:
    """Say which weights are assessed, and how to assess the final ones of the campaign, if they differ."""
    from operant.execution.run_folder import MODEL

    configured = None if config is None or config.model.weights is None else config.path(config.model.weights)
    file = configured if given is None else given
    print_line(f"Assessed weights: {file or 'those that the callable of the module gives it'}")
    final = None if campaign is None else campaign / f"{MODEL}.safetensors"
    if final is not None and final.is_file() and (file is None or not filecmp.cmp(file, final, shallow=False)):
        print_line(f"The final weights of the campaign in {campaign} are others: to assess them, add --weights {final}")


def _read_risk(model: Classifier, folder: Path | None) -> tuple[Score, list[int]]:
    """The score that decides where labels go, and a number that tells apart the cases it was learned from."""
    from operant.seeds import margin_risk

    if folder is None:
        return margin_risk, []
    from operant.campaign.risk import teaching_cases
    from operant.profile import fit_risk

    taught = teaching_cases(folder)
    found = fit_risk(model, taught.cases, wider=taught.wider, priors=taught.shares)
    print_line(str(found))
    return found, [int(taught.digest()[:12], 16)]


def _read_history(out: Path, labels: int, seed: int, mark: Sequence[int] = ()) -> tuple[int, list[list[int]]]:
    """The number of this assessment in its folder, from 0, and all up to now; repeating one does not count."""
    from operant.files import read_regular

    path = out / "history.json"
    try:
        history: list[list[int]] = json.loads(read_regular(path)) if path.exists() else []
        if not isinstance(history, list) or not all(_is_entry(entry) for entry in history):
            raise ValueError("it must list labels, seed and cases of each assessment")
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({error}); choose a new folder for this assessment") from None
    entry = [labels, seed, *mark]
    if entry not in history:
        history.append(entry)
    return history.index(entry), history


def _is_entry(entry: object) -> bool:
    return isinstance(entry, list) and len(entry) in (2, 3) and all(type(value) is int for value in entry)


def _print_verdict(assessment: Assessment, requirement: float) -> int:
    """Print whether the requirement is met; the exit code."""
    from operant.formatting import percent

    required = f"at most {percent(requirement)} is required"
    met = assessment.meets(requirement)
    if met is None:
        print_line(f"{required}; {_advice(assessment, requirement)}", label="undecided", colour="yellow")
        return CANNOT_RUN
    print_line(required, label="met" if met else "not met", colour="green" if met else "red")
    return 0 if met else NOT_MET


def _advice(assessment: Assessment, requirement: float) -> str:
    """What would decide it: a better model, more field inputs or more labels."""
    from operant.assess import field_bound, plan

    pmi, pool, labels = assessment.pmi, assessment.pool, assessment.labels
    confidence = 1 - (1 - assessment.confidence) * LEFT_AFTER_EACH  # of the next assessment
    if pmi >= requirement * (1 - 1e-9):
        return "the estimate is at least as large: improve the model"
    if labels >= pool or field_bound(pmi, pool, confidence) > requirement:
        return f"{pool} inputs are too few for that claim, even if all are labelled: collect more field inputs"
    needed = min(plan(requirement, confidence=confidence, expected=pmi).labels or pool, pool)
    if needed <= labels:  # the plan is for the exact bound of simple sampling, and the bound in use was larger
        return (
            f"{labels} labels are too few; how many suffice cannot be estimated: give more, at most {pool} (--labels)"
        )
    return f"{labels} labels are too few; if the estimate is right, about {needed} suffice (--labels)"
