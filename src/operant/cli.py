"""The command line: thin wrappers around what the library does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from torch import nn

from operant._importing import build_module
from operant.data import Samples, samples_from_folder, samples_from_npz
from operant.demo import run_demo
from operant.doctor import Finding
from operant.model import Classifier
from operant.networks import load_weights

FOUND_ERRORS = 1
CANNOT_RUN = 2

app = typer.Typer(
    help="Tests and hardens deep-learning classifiers for the way they will be used.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def main() -> None:
    """Tests and hardens deep-learning classifiers for the way they will be used."""


# demo


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="folder to write to: a new one, or that of an earlier demo")] = Path(
        "operant-demo"
    ),
    seed: Annotated[int, typer.Option(help="of everything random")] = 0,
) -> None:
    """Train a small network on handwritten digits, find inputs it fails on, and show them; under a minute of CPU."""
    try:
        run_demo(out, seed=seed)
    except (ValueError, OSError) as error:
        _cannot_run(error)


# doctor


@app.command()
def doctor(
    model: Annotated[str, typer.Argument(help="package.module:callable that builds the module without arguments")],
    data: Annotated[Path, typer.Option(help="an npz file with x and y, or a folder of pictures, one folder a class")],
    weights: Annotated[Path | None, typer.Option(help="safetensors file with the module's weights")] = None,
    bounds: Annotated[tuple[float, float], typer.Option(help="smallest and largest value of an input")] = (0.0, 1.0),
    mean: Annotated[str | None, typer.Option(help="what the module expects subtracted: 0.5, or 0.49,0.48,0.45")] = None,
    std: Annotated[str | None, typer.Option(help="what it expects divided by: one number, or one a channel")] = None,
    size: Annotated[tuple[int, int] | None, typer.Option(help="resize pictures to this height and width")] = None,
) -> None:
    """Look for the mistakes that make test results meaningless.

    Exit code 0: nothing grave was found; 1: errors were found; 2: the doctor could not run.
    """
    console = Console(highlight=False)
    try:
        module = build_module(model)
        if weights is not None:
            load_weights(module, weights)
        classifier = Classifier(module, bounds=bounds, mean=_numbers(mean, "mean"), std=_numbers(std, "std"))
        samples = _in_type_of(module, read_samples(data, size=size))
    except (ValueError, OSError) as error:
        _cannot_run(error)
    findings = classifier.doctor(samples)
    print_findings(console, classifier, samples, findings)
    if any(finding.severity == "error" for finding in findings):
        raise typer.Exit(FOUND_ERRORS)


def print_findings(console: Console, model: Classifier, samples: Samples, findings: Sequence[Finding]) -> None:
    """The doctor's findings and what `Classifier` did to the module, for people."""
    console.print(escape(f"{model} on {samples}"), soft_wrap=True)
    for note in model.notes:
        console.print(f"  {escape(note)}", style="dim", soft_wrap=True)
    for finding in findings:
        colour = "red" if finding.severity == "error" else "yellow"
        console.print(f"[bold {colour}]{finding.severity}[/] [bold]{escape(finding.name)}[/]", soft_wrap=True)
        console.print(f"  {escape(finding.problem)}.", soft_wrap=True)
        console.print(f"  {escape(finding.advice)}.", soft_wrap=True)
    if not findings:
        unseen = "" if samples.y is not None else "; without labels, accuracy was not looked at"
        console.print(f"[green]nothing found[/]: the model is fit to be tested{unseen}")


# Reading what the user names


def read_samples(path: Path, *, size: tuple[int, int] | None = None) -> Samples:
    """Samples from a folder of pictures, or from an npz file with x and y, or with x_test and y_test."""
    return samples_from_folder(path, size=size) if path.is_dir() else samples_from_npz(path)


def _in_type_of(module: nn.Module, samples: Samples) -> Samples:
    """Files are read as float32; a module in double precision gets them so."""
    kinds = [p.dtype for p in module.parameters() if p.is_floating_point()]
    return replace(samples, x=samples.x.to(kinds[0])) if kinds else samples


def _numbers(text: str | None, name: str) -> float | list[float] | None:
    """One number, or several with commas between them."""
    if text is None:
        return None
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"--{name} must be a number, or numbers with commas between them, got {text!r}") from None
    return values[0] if len(values) == 1 else values


def _cannot_run(error: Exception) -> NoReturn:
    """Tell why in one sentence, without a traceback."""
    why = f"there is no {error.filename}" if isinstance(error, FileNotFoundError) and error.filename else str(error)
    Console(stderr=True, highlight=False).print(f"[bold red]cannot run:[/] {escape(why)}", soft_wrap=True)
    raise typer.Exit(CANNOT_RUN)
