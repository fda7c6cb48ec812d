"""The command line: thin wrappers around what the library does."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from torch import nn

from operant import results
from operant.assess import Assessment, assess_reliability, field_bound, plan
from operant.campaign.build import read_samples
from operant.cli_campaign import add_commands
from operant.cli_report import add_report
from operant.cli_train import add_train
from operant.cli_triage import add_triage
from operant.data import LabelFolder, LabelsMissing, Samples, content_ids, labels_of
from operant.demo import run_demo
from operant.execution.engines import WorkerDied
from operant.generate import FGSM, PGD, FOLFuzz
from operant.model import Classifier
from operant.model.doctor import Finding
from operant.model.importing import build_module
from operant.networks import load_weights, save_weights
from operant.profile import fit_profile
from operant.retrain import Finetune
from operant.rng import spawn
from operant.robot import RobOT

FOUND_ERRORS = 1
NOT_MET = 1
CANNOT_RUN = 2
CANNOT_TELL = 2
LOOKS = 0.25  # each look gets three quarters of the allowed error that is left
STUDIES = (
    "robot",
    "seeds",
    "reliability",
    "operational-fuzz",
    "operational",
    "kuk",
    "rivals",
    "defences",
    "enhance",
    "semantic",
)  # packages of operant_studies, read when asked for

OPTIONS = {"rivals": ("robot",), "kuk": ("defences", "enhance"), "weights": ("kuk", "defences", "enhance")}

app = typer.Typer(
    help="Tests and hardens deep-learning classifiers for the way they will be used.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


add_commands(app)
add_report(app)
add_train(app)
add_triage(app)


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
    """Harden a small network for digits as a camera sends them, and report; about a minute of CPU time."""
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
        classifier = _classifier(model, weights, bounds, mean, std)
        samples = _in_type_of(classifier.unwrap(), read_samples(data, size=size))
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


# robot


@app.command()
def robot(
    model: Annotated[str, typer.Argument(help="package.module:callable that builds the module without arguments")],
    train: Annotated[Path, typer.Option(help="training data: an npz file with x and y, or a folder of pictures")],
    test: Annotated[Path, typer.Option(help="what the requirement is checked on; never learned from")],
    radius: Annotated[float, typer.Option(help="how much every value of an input may change")],
    requirement: Annotated[float, typer.Option(help="share of test inputs that must withstand FGSM and PGD, 0 to 1")],
    out: Annotated[Path, typer.Option(help="folder of the run; named again, the run goes on")] = Path("operant-robot"),
    weights: Annotated[Path | None, typer.Option(help="safetensors file with the module's weights")] = None,
    bounds: Annotated[tuple[float, float], typer.Option(help="smallest and largest value of an input")] = (0.0, 1.0),
    mean: Annotated[str | None, typer.Option(help="what the module expects subtracted: 0.5, or 0.49,0.48,0.45")] = None,
    std: Annotated[str | None, typer.Option(help="what it expects divided by: one number, or one a channel")] = None,
    size: Annotated[tuple[int, int] | None, typer.Option(help="resize pictures to this height and width")] = None,
    mode: Annotated[str, typer.Option(help="adaptive: attack the model being judged; static: ready-made cases")] = (
        "adaptive"
    ),
    rounds: Annotated[int, typer.Option(help="how often to fuzz and retrain, at most")] = 5,
    seeds_per_round: Annotated[int, typer.Option(help="training inputs to fuzz in each round")] = 1000,
    cases_per_round: Annotated[int, typer.Option(help="failures to retrain with in each round, at most")] = 1000,
    epochs: Annotated[int, typer.Option(help="of each retraining")] = 10,
    learning_rate: Annotated[float, typer.Option(help="of each retraining")] = 1e-3,
    max_drop: Annotated[float, typer.Option(help="clean accuracy that may be lost in all")] = 0.01,
    seed: Annotated[int, typer.Option(help="of everything random")] = 0,
) -> None:
    """Retrain a model with the failures that FOL-Fuzz finds until it is robust enough.

    A tenth of the training data chooses the epoch. Exit code 0: the requirement is met; 1: it is not; 2: could not run.
    """
    console = Console(highlight=False)
    try:
        classifier = _classifier(model, weights, bounds, mean, std)
        parts = _robot_data(classifier, train, test, size)
        findings = classifier.doctor(parts["test"])
        if any(finding.severity == "error" for finding in findings):
            print_findings(console, classifier, parts["test"], findings)
            raise ValueError("the doctor found errors that would make every result meaningless")
        loop = RobOT(
            fuzz=FOLFuzz(radius=radius),
            attacks={"fgsm": FGSM(radius=radius), "pgd": PGD(radius=radius)},
            requirement=requirement,
            mode=mode,
            rounds=rounds,
            seeds_per_round=seeds_per_round,
            cases_per_round=cases_per_round,
            finetune=Finetune(epochs=epochs, learning_rate=learning_rate, max_drop=max_drop),
        )
        hardened = loop(
            classifier,
            parts["train"],
            validation=parts["validation"],
            test=parts["test"],
            folder=out,
            seed=seed,
            console=console,
        )
        save_weights(hardened.model.unwrap(), out / "model.safetensors")
    except (ValueError, OSError) as error:
        _cannot_run(error)
    except KeyboardInterrupt:
        _stopped(out)
    console.print(escape(str(hardened)), soft_wrap=True)
    console.print(escape(f"weights: {out / 'model.safetensors'}"), soft_wrap=True)
    if not hardened.met:
        raise typer.Exit(NOT_MET)


# assess


@app.command()
def assess(
    model: Annotated[str, typer.Argument(help="package.module:callable that builds the module without arguments")],
    field: Annotated[Path, typer.Option(help="inputs from use: an npz file, or a folder of pictures; labels or not")],
    requirement: Annotated[float, typer.Option(help="share of inputs that may be misclassified, such as 0.01")],
    labels: Annotated[int, typer.Option(help="how many labels to use")] = 300,
    confidence: Annotated[float, typer.Option(help="of the bound")] = 0.95,
    trained_on: Annotated[Path | None, typer.Option(help="what the model learned from; refused in --field")] = None,
    out: Annotated[Path, typer.Option(help="folder for the result, and for what is to be labelled")] = Path(
        "operant-assess"
    ),
    weights: Annotated[Path | None, typer.Option(help="safetensors file with the module's weights")] = None,
    bounds: Annotated[tuple[float, float], typer.Option(help="smallest and largest value of an input")] = (0.0, 1.0),
    mean: Annotated[str | None, typer.Option(help="what the module expects subtracted: 0.5, or 0.49,0.48,0.45")] = None,
    std: Annotated[str | None, typer.Option(help="what it expects divided by: one number, or one a channel")] = None,
    size: Annotated[tuple[int, int] | None, typer.Option(help="resize pictures to this height and width")] = None,
    seed: Annotated[int, typer.Option(help="of everything random")] = 0,
) -> None:
    """Say how likely the next input is to be misclassified, with a bound.

    A quarter of the field inputs teaches the profile, and labels are asked for of the others: if there are none, those
    to be labelled are written to a folder. Looking again with more labels is allowed: all looks into one folder share
    the allowed error. Exit code 0: the requirement is met with confidence; 1: it is not; 2: it cannot be told yet,
    since labels are missing or too few, or it could not run.
    """
    console = Console(highlight=False)
    try:
        if not 0 < requirement < 1:
            raise ValueError(f"--requirement must be a share between 0 and 1, got {requirement}")
        if not 0 < confidence < 1:
            raise ValueError(f"--confidence must be between 0 and 1, got {confidence}; 0.95 is usual")
        out.mkdir(parents=True, exist_ok=True)
        classifier = _classifier(model, weights, bounds, mean, std)
        inputs = _in_type_of(classifier.unwrap(), read_samples(field, size=size))
        used = None if trained_on is None else content_ids(read_samples(trained_on, size=size, part="train").x)
        parts = inputs.split(profile=0.25, assessment=0.75)
        pool = parts["assessment"]
        if labels > len(pool):
            raise ValueError(
                f"of {len(inputs)} field inputs a quarter teaches the profile and {len(pool)} are left to draw from: "
                f"--labels must be at most {len(pool)}, got {labels}"
            )
        number, looks = _look(out, labels, seed)
        folder = LabelFolder(folder=out / "to_label", classes=classifier.classes(pool.x), bounds=bounds)
        told = assess_reliability(
            classifier,
            fit_profile(parts["profile"], generator=spawn(seed, "profile")),
            folder if pool.y is None else labels_of(pool),
            pool=pool,
            labels=labels,
            confidence=1 - (1 - confidence) * LOOKS**number * (1 - LOOKS),
            used=used,
            generator=spawn(seed, "assessment"),
        )
        results.save(told, out / "assessment.json")
        results.write_atomically(out / "looks.json", json.dumps(looks).encode() + b"\n")
    except LabelsMissing as missing:
        Console(stderr=True, highlight=False).print(f"[yellow]labels needed:[/] {escape(str(missing))}", soft_wrap=True)
        raise typer.Exit(CANNOT_TELL) from None
    except (ValueError, OSError, RuntimeError) as error:  # RuntimeError: the user's module, on inputs it cannot take
        _cannot_run(error)
    console.print(escape(str(told)), soft_wrap=True)
    console.print(f"Look {number + 1} into {escape(str(out))}; all looks together have {confidence:.10g} confidence.")
    raise typer.Exit(_verdict(console, told, requirement))


def _look(out: Path, labels: int, seed: int) -> tuple[int, list[list[int]]]:
    """Which look this is, counted from 0, and all so far; the same labels again are no new look."""
    path = out / "looks.json"
    looks: list[list[int]] = json.loads(path.read_bytes()) if path.exists() else []
    if [labels, seed] not in looks:
        looks.append([labels, seed])
    return looks.index([labels, seed]), looks


def _verdict(console: Console, told: Assessment, requirement: float) -> int:
    met = told.meets(requirement)
    if met:
        console.print(f"[green]met[/]: at most {requirement:.3g} is required")
        return 0
    if met is False:
        console.print(f"[red]not met[/]: at most {requirement:.3g} is required")
        return NOT_MET
    console.print(f"[yellow]cannot be told yet[/]: at most {requirement:.3g} is required; {_advice(told, requirement)}")
    return CANNOT_TELL


def _advice(told: Assessment, requirement: float) -> str:
    """What would help: more labels, or more field inputs where even all labels would not do."""
    if told.pmi >= requirement * (1 - 1e-9):
        return "the estimate is as large as that: improve the model"
    if told.labels >= told.pool or field_bound(told.pmi, told.pool, told.confidence) > requirement:
        return f"{told.pool} inputs are too few for that claim, even if all are labelled: gather more field inputs"
    needed = plan(requirement, confidence=told.confidence, expected=told.pmi).labels or told.pool
    few = f"{told.labels} labels are too few"
    return f"{few}; if the estimate is right, about {min(needed, told.pool)} will do (--labels)"


# study


@app.command()
def study(
    name: Annotated[str, typer.Argument(help=f"which paper's experiments: {', '.join(STUDIES)}")],
    data: Annotated[Path | None, typer.Option(help="folder with the data sets; smoke needs none")] = None,
    scale: Annotated[str, typer.Option(help="smoke (minutes), small (hours) or paper")] = "small",
    out: Annotated[
        Path | None,
        typer.Option(help="folder to write to; named again, the study goes on"),
    ] = None,
    workers: Annotated[int, typer.Option(help="processes, each with one thread")] = 2,
    rivals: Annotated[bool, typer.Option("--rivals", help="for robot: with four more fuzzers to compare with")] = False,
    kuk: Annotated[Path | None, typer.Option(help="for defences, enhance: a study kuk whose suites to use")] = None,
    weights: Annotated[
        Path | None, typer.Option(help="for kuk, defences, enhance: NIN's, as `operant train-nin` wrote them")
    ] = None,
) -> None:
    """Run a paper's experiments again, with a control and intervals, and write a page of tables and pictures."""
    try:
        if name not in STUDIES:
            raise ValueError(f"there is no study named {name}; there are: {', '.join(STUDIES)}")
        folder = Path(f"operant-study-{name}-{scale}") if out is None else out
        chosen = import_module(f"operant_studies.{name.replace('-', '_')}")
        more = {key: value for key, value in (("rivals", rivals), ("kuk", kuk), ("weights", weights)) if value}
        for option in more:
            if name not in OPTIONS[option]:
                takes = ", ".join(OPTIONS[option])
                raise ValueError(f"--{option} is an option of {takes} alone, not of {name}; leave it out")
        page = chosen.run_study(folder, data=data, scale=scale, workers=workers, console=Console(stderr=True), **more)
    except (ValueError, OSError, WorkerDied) as error:
        _cannot_run(error)
    except KeyboardInterrupt:
        _stopped(folder)
    print(page)


# Reading what the user names


def _classifier(
    model: str, weights: Path | None, bounds: tuple[float, float], mean: str | None, std: str | None
) -> Classifier:
    module = build_module(model)
    if weights is not None:
        load_weights(module, weights)
    return Classifier(module, bounds=bounds, mean=_numbers(mean, "mean"), std=_numbers(std, "std"))


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


def _robot_data(model: Classifier, train: Path, test: Path, size: tuple[int, int] | None) -> dict[str, Samples]:
    """What to learn from, a tenth of it to choose epochs by, and what to judge on; all labelled."""
    read = {}
    for part, path in {"train": train, "test": test}.items():
        read[part] = _in_type_of(model.unwrap(), read_samples(path, size=size, part=part))
        if read[part].y is None:
            raise ValueError(f"{path} holds no labels, and --{part} needs them; save y beside x")
    parts = read["train"].split(train=0.9, validation=0.1)
    if not all(map(len, parts.values())):
        raise ValueError(f"{train} holds only {len(read['train'])} inputs; a tenth must be left to choose epochs by")
    return {**parts, "test": read["test"]}


def _stopped(folder: Path) -> NoReturn:
    """Say after Ctrl-C that nothing is lost."""
    told = f"stopped; what is finished lies in {folder}: the same command goes on from there"
    Console(stderr=True, highlight=False).print(escape(told), soft_wrap=True)
    raise typer.Exit(130)


def _cannot_run(error: Exception) -> NoReturn:
    """Tell why in one sentence, without a traceback."""
    why = f"there is no {error.filename}" if isinstance(error, FileNotFoundError) and error.filename else str(error)
    Console(stderr=True, highlight=False).print(f"[bold red]cannot run:[/] {escape(why)}", soft_wrap=True)
    raise typer.Exit(CANNOT_RUN)
