"""``operant assess``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from operant.cli.activities import loading
from operant.cli.options import Bounds, Mean, Model, Seed, Size, Std, Weights, load_classifier
from operant.cli.output import CANNOT_RUN, MODULE_ERRORS, NOT_MET, exit_on_error, print_line

if TYPE_CHECKING:
    from operant.assess import Assessment

LEFT_AFTER_EACH = 0.25  # share of the remaining error probability that an assessment leaves for later ones


def assess(
    model: Model,
    field: Annotated[
        Path, typer.Option(help="Field data: an npz file, or a folder of pictures; with or without labels.")
    ],
    requirement: Annotated[float, typer.Option(help="Share of inputs that may be misclassified, such as 0.01.")],
    labels: Annotated[int, typer.Option(help="Number of labels to use.")] = 300,
    confidence: Annotated[float, typer.Option(help="Confidence of the bound.")] = 0.95,
    trained_on: Annotated[
        Path | None, typer.Option(help="Training data of the model; field inputs among them are rejected.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the result and for inputs to label.")] = Path("operant-assess"),
    weights: Weights = None,
    bounds: Bounds = (0.0, 1.0),
    mean: Mean = None,
    std: Std = None,
    size: Size = None,
    seed: Seed = 0,
) -> None:
    """Estimate the probability that an input is misclassified, with an upper bound.

    A quarter of the field inputs is used to fit the profile; labels are requested for the others. Inputs that have no
    label are written to a folder. The assessment can be repeated with more labels: all assessments in one folder share
    the allowed error probability.

    Exit code 0: the requirement is met with confidence; 1: it is not; 2: undecided, since labels are missing or too
    few, or it could not run.
    """
    with exit_on_error(also=MODULE_ERRORS):
        with loading("operant assess"):
            from operant import results
            from operant.assess import assess_reliability
            from operant.data import LabelFolder, content_ids, labels_of, read_samples
            from operant.profile import fit_profile
            from operant.rng import spawn

        _check_shares(requirement, confidence)
        out.mkdir(parents=True, exist_ok=True)
        classifier = load_classifier(model, weights, bounds, mean, std)
        inputs = classifier.match_dtype(read_samples(field, size=size))
        used = None if trained_on is None else content_ids(read_samples(trained_on, size=size, part="train").x)
        parts = inputs.split(profile=0.25, assessment=0.75)
        pool = parts["assessment"]
        if labels > len(pool):
            raise ValueError(
                f"of {len(inputs)} field inputs, a quarter is used to fit the profile and {len(pool)} remain: --labels "
                f"must be at most {len(pool)}, got {labels}"
            )
        number, history = _read_history(out, labels, seed)
        folder = LabelFolder(folder=out / "to_label", classes=classifier.classes(pool.x), bounds=bounds)
        assessment = assess_reliability(
            classifier,
            fit_profile(parts["profile"], generator=spawn(seed, "profile")),
            folder if pool.y is None else labels_of(pool),
            pool=pool,
            labels=labels,
            confidence=1 - (1 - confidence) * LEFT_AFTER_EACH**number * (1 - LEFT_AFTER_EACH),
            used=used,
            generator=spawn(seed, "assessment"),
        )
        results.save(assessment, out / "assessment.json")
        results.write_atomically(out / "history.json", json.dumps(history).encode() + b"\n")
    print_line(
        f"{assessment}\nThis is assessment {number + 1} in {out}; all of them together hold with {confidence:.10g} "
        "confidence."
    )
    raise typer.Exit(_print_verdict(assessment, requirement))


def _check_shares(requirement: float, confidence: float) -> None:
    if not 0 < requirement < 1:
        raise ValueError(f"--requirement must be a share between 0 and 1, got {requirement}")
    if not 0 < confidence < 1:
        raise ValueError(f"--confidence must be between 0 and 1, got {confidence}; 0.95 is usual")


def _read_history(out: Path, labels: int, seed: int) -> tuple[int, list[list[int]]]:
    """The number of this assessment in its folder, from 0, and all up to now; repeating one does not count."""
    path = out / "history.json"
    history: list[list[int]] = json.loads(path.read_bytes()) if path.exists() else []
    if [labels, seed] not in history:
        history.append([labels, seed])
    return history.index([labels, seed]), history


def _print_verdict(assessment: Assessment, requirement: float) -> int:
    """Print whether the requirement is met; the exit code."""
    required = f"at most {requirement:.3g} is required"
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
