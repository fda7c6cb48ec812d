"""``operant assess``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from operant.cli.activities import loading
from operant.cli.options import (
    CONFIG,
    Bounds,
    Mean,
    ModelOrConfig,
    Seed,
    Size,
    Std,
    Weights,
    config_here,
    load_classifier,
)
from operant.cli.output import CANNOT_RUN, NOT_MET, exit_on_error, print_line

if TYPE_CHECKING:
    from torch import Tensor

    from operant.assess import Assessment
    from operant.campaign.config import Config
    from operant.data import Samples
    from operant.model import Classifier
    from operant.types import Labeller

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
        typer.Option(help="Table (csv) with file,group for all field inputs; inputs of a group stay together."),
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
            from operant.assess import assess_reliability
            from operant.formatting import percent
            from operant.profile import fit_profile
            from operant.rng import spawn

        config = config_here() if None in (model, field, requirement) else None
        requirement, confidence = _claim(requirement, confidence, config)
        out.mkdir(parents=True, exist_ok=True)
        classifier = load_classifier(model, weights, bounds, mean, std, config=config)
        inputs, labeller, used = _read(classifier, field, trained_on, size, groups, out / "to_label", config)
        parts = inputs.split(profile=0.25, assessment=0.75)
        pool = parts["assessment"]
        if labels > len(pool):
            raise ValueError(
                f"of {len(inputs)} field inputs, a quarter is used to fit the profile and {len(pool)} remain: --labels "
                f"must be at most {len(pool)}, got {labels}"
            )
        number, history = _read_history(out, labels, seed)
        assessment = assess_reliability(
            classifier,
            fit_profile(parts["profile"], generator=spawn(seed, "profile")),
            labeller,
            pool=pool,
            labels=labels,
            confidence=1 - (1 - confidence) * LEFT_AFTER_EACH**number * (1 - LEFT_AFTER_EACH),
            used=used,
            generator=spawn(seed, "assessment"),
        )
        results.save(assessment, out / "assessment.json")
        results.write_atomically(out / "history.json", json.dumps(history).encode() + b"\n")
        print_line(
            f"{assessment}\nThis is assessment {number + 1} in {out}; all of them together hold with "
            f"{percent(confidence, 4)} confidence."
        )
        raise typer.Exit(_print_verdict(assessment, requirement))


def _read(
    model: Classifier,
    field: Path | None,
    trained_on: Path | None,
    size: tuple[int, int] | None,
    groups: Path | None,
    to_label: Path,
    config: Config | None,
) -> tuple[Samples, Labeller, Tensor | None]:
    """Field inputs, who labels them, and ids of inputs that the model was trained on."""
    from operant.campaign.build import build_labeller, class_names, read_data
    from operant.data import LabelFolder, content_ids, labels_of, read_samples

    train = None if trained_on is None else read_samples(trained_on, size=size, part="train")
    used = None if train is None else content_ids(train.x)
    if field is not None:
        inputs = _in_classes(model, read_samples(field, size=size, groups=groups), train)
        if inputs.y is not None:
            return inputs, labels_of(inputs), used
        n, names = model.classes(inputs.x), inputs.classes
        folder = LabelFolder(folder=to_label, classes=n, bounds=model.bounds, names=names, examples=train)
        return inputs, folder, used
    if config is None:
        raise ValueError(f"there are no field data: give --field, or run this in a folder with {CONFIG}")
    train, _, arrived = read_data(config, model, [])
    inputs = arrived(0)  # first: it finds the names that a table of labels may use
    labeller = build_labeller(config, model, train, arrived.names, class_names(config, model, train))
    return inputs, labeller, content_ids(train.x) if used is None else used


def _in_classes(model: Classifier, inputs: Samples, train: Samples | None) -> Samples:
    """The inputs in the type of the module, labels numbered by the class names of the training data, if it has any."""
    inputs = model.match_dtype(inputs)
    if train is not None and train.classes:
        inputs = inputs.in_classes(train.classes)
    if inputs.classes and len(inputs.classes) != (n := model.classes(inputs.x)):
        source = "training data" if train is not None and train.classes else "field"
        raise ValueError(
            f"{source} must have one folder for each of the model's {n} classes, got {len(inputs.classes)}; give all "
            "of them, with --trained-on if field inputs do not show every class"
        )
    return inputs


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


def _read_history(out: Path, labels: int, seed: int) -> tuple[int, list[list[int]]]:
    """The number of this assessment in its folder, from 0, and all up to now; repeating one does not count."""
    from operant.files import read_regular

    path = out / "history.json"
    try:
        history: list[list[int]] = json.loads(read_regular(path)) if path.exists() else []
        if not isinstance(history, list) or not all(_is_pair(entry) for entry in history):
            raise ValueError("it must be a list of pairs, labels and seed")
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({error}); choose a new folder for this assessment") from None
    if [labels, seed] not in history:
        history.append([labels, seed])
    return history.index([labels, seed]), history


def _is_pair(entry: object) -> bool:
    return isinstance(entry, list) and len(entry) == 2 and all(type(value) is int for value in entry)


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

    pmi, pool, confidence = assessment.pmi, assessment.pool, assessment.confidence
    if pmi >= requirement * (1 - 1e-9):
        return "the estimate is at least as large: improve the model"
    if assessment.labels >= pool or field_bound(pmi, pool, confidence) > requirement:
        return f"{pool} inputs are too few for that claim, even if all are labelled: collect more field inputs"
    needed = min(plan(requirement, confidence=confidence, expected=pmi).labels or pool, pool)
    return f"{assessment.labels} labels are too few; if the estimate is right, about {needed} suffice (--labels)"
