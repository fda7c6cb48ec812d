"""``operant doctor``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from operant.cli.options import (
    CONFIG,
    Bounds,
    LabelsFile,
    Mean,
    ModelOrConfig,
    Size,
    Std,
    Weights,
    config_here,
    load_classifier,
    read_labels_file,
)
from operant.cli.output import NOT_MET, exit_on_error, print_line

if TYPE_CHECKING:
    from operant.campaign.build import DataOptions
    from operant.campaign.config import Config
    from operant.data import Samples
    from operant.model import Classifier
    from operant.model.doctor import Finding


def doctor(
    model: ModelOrConfig = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="An npz file with x and y, or a folder of pictures with one folder per class.",
            show_default="[data] clean or train of operant.toml",
        ),
    ] = None,
    labels_file: LabelsFile = None,
    weights: Weights = None,
    bounds: Bounds = None,
    mean: Mean = None,
    std: Std = None,
    size: Size = None,
    expect: Annotated[
        float | None, typer.Option(help="Fail if the accuracy on all these data is below this share, such as 0.9.")
    ] = None,
) -> None:
    """Check a model and its data for mistakes that make test results meaningless.

    What is not given is taken from the operant.toml of the current folder, if there is one.

    Exit code 0: no errors, though there may be warnings; 1: errors were found; 2: the checks could not run.
    """
    with exit_on_error():
        config = config_here()
        classifier = load_classifier(model, weights, bounds, mean, std, config=config)
        samples = _read(classifier, data, labels_file, size, config)
        findings = classifier.doctor(samples, expect=expect)
        print_findings(classifier, samples, findings)
    if any(finding.severity == "error" for finding in findings):
        raise typer.Exit(NOT_MET)


def _read(
    model: Classifier, data: Path | None, labels_file: Path | None, size: tuple[int, int] | None, config: Config | None
) -> Samples:
    """The samples to check, as the configuration reads them: the given ones, or its clean or training data."""
    from operant.campaign.build import data_options

    options = data_options(config, size=size)
    if data is not None and labels_file is not None:
        return _read_labelled(model, data, labels_file, options)
    if labels_file is not None:
        raise ValueError("--labels-file labels the inputs of --data: give --data too")
    if data is not None:
        return model.match_dtype(options.read(data))
    if config is None:
        raise ValueError(f"there are no data: give --data, or run this in a folder with {CONFIG}")
    table = config.data
    part = "train" if table.clean is None else "test"
    return model.match_dtype(options.read(config.path(table.clean or table.train), part=part))


def _read_labelled(model: Classifier, data: Path, labels_file: Path, options: DataOptions) -> Samples:
    """The inputs of a file or folder that have a label in a file of their own."""
    import torch

    from operant.campaign.build import names_from
    from operant.data import read_samples

    inputs = model.match_dtype(replace(read_samples(data, size=options.size), y=None, classes=()))
    names = dict(zip(names_from(Path(), data, inputs), inputs.ids.tolist(), strict=True))
    classes = options.classes or options.folders
    found = read_labels_file(labels_file, model, inputs.x, names, classes).stored(inputs.ids)
    rows = [row for row, i in enumerate(inputs.ids.tolist()) if i in found]
    if not rows:
        raise ValueError(f"{labels_file} must have labels of inputs in {data}, got none; fill them in")
    if len(rows) < len(inputs):
        print_line(f"{labels_file} has labels of {len(rows)} of {len(inputs)} inputs; the others are left out")
    labels = torch.tensor([found[i][1] for i in inputs.ids[rows].tolist()])
    return replace(inputs[rows].with_labels(labels), classes=classes)


def print_findings(model: Classifier, samples: Samples, findings: Sequence[Finding]) -> None:
    """Print how the model is run and what the doctor found."""
    from rich.console import Console
    from rich.markup import escape

    from operant.model.doctor import measured_accuracy

    console = Console(highlight=False)
    print_line(f"{model} on {samples}")
    if samples.classes:
        shown = ", ".join(f"{i} is {name!r}" for i, name in enumerate(samples.classes[:20]))
        print_line(f"  classes: {shown}{', …' if len(samples.classes) > 20 else ''}")
    for note in model.notes:
        console.print(f"  {escape(note)}", style="dim", soft_wrap=True)
    if accuracy := measured_accuracy(model, samples):
        print_line(f"  accuracy {accuracy}")
    for finding in findings:
        colour = "red" if finding.severity == "error" else "yellow"
        console.print(f"[bold {colour}]{finding.severity}[/] [bold]{escape(finding.name)}[/]", soft_wrap=True)
        print_line(f"  {finding.problem}.\n  {finding.advice}.")
    if not findings:
        unchecked = "" if samples.y is not None else "; accuracy was not checked, since there are no labels"
        print_line(f"the model is ready to be tested{unchecked}", label="nothing found", colour="green")
