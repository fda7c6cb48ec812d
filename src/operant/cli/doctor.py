"""``operant doctor``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from operant.cli.activities import loading
from operant.cli.options import Bounds, Mean, Model, Size, Std, Weights, load_classifier
from operant.cli.output import MODULE_ERRORS, NOT_MET, exit_on_error, print_line

if TYPE_CHECKING:
    from operant.data import Samples
    from operant.model import Classifier
    from operant.model.doctor import Finding


def doctor(
    model: Model,
    data: Annotated[
        Path, typer.Option(help="An npz file with x and y, or a folder of pictures with one folder per class.")
    ],
    weights: Weights = None,
    bounds: Bounds = (0.0, 1.0),
    mean: Mean = None,
    std: Std = None,
    size: Size = None,
) -> None:
    """Check a model and its data for mistakes that make test results meaningless.

    Exit code 0: no errors, though there may be warnings; 1: errors were found; 2: the checks could not run.
    """
    with exit_on_error(also=MODULE_ERRORS):
        with loading("operant doctor"):
            from operant.data import read_samples

        classifier = load_classifier(model, weights, bounds, mean, std)
        samples = classifier.match_dtype(read_samples(data, size=size))
        findings = classifier.doctor(samples)
    print_findings(classifier, samples, findings)
    if any(finding.severity == "error" for finding in findings):
        raise typer.Exit(NOT_MET)


def print_findings(model: Classifier, samples: Samples, findings: Sequence[Finding]) -> None:
    """Print how the model is run and what the doctor found."""
    from rich.console import Console
    from rich.markup import escape

    console = Console(highlight=False)
    print_line(f"{model} on {samples}")
    for note in model.notes:
        console.print(f"  {escape(note)}", style="dim", soft_wrap=True)
    for finding in findings:
        colour = "red" if finding.severity == "error" else "yellow"
        console.print(f"[bold {colour}]{finding.severity}[/] [bold]{escape(finding.name)}[/]", soft_wrap=True)
        print_line(f"  {finding.problem}.\n  {finding.advice}.")
    if not findings:
        unchecked = "" if samples.y is not None else "; accuracy was not checked, since there are no labels"
        print_line(f"the model is ready to be tested{unchecked}", label="nothing found", colour="green")
