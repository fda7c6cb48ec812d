"""KuK's experiments (RQ1 to RQ3): uncertainty about known kinds of cases, and searches for uncommon patterns."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from rich.console import Console

from operant.measure import with_dropout
from operant.model import Classifier
from operant.suite import Suite
from operant_studies.kuk.causes import next_change
from operant_studies.kuk.dropout import DropoutChoice, choose
from operant_studies.kuk.existing import METHODS, MeasuredCases, measure, step_name
from operant_studies.kuk.models import PreparedModel, check_data, copy_nin, prepare, split_missing, why_missing
from operant_studies.kuk.page import write_page
from operant_studies.kuk.results import KukResults, search_name
from operant_studies.kuk.search import CONTROL, EXTRA_RUNS, MORE_SEEDS, PatternSearch, differing, run_searches
from operant_studies.kuk.settings import PATTERNS, Subject, subjects
from operant_studies.shared import Steps, Units, run_units, sign_folder

__all__ = ["run_study"]


def run_study(
    out: str | Path, *, data: Path | None, scale: str, workers: int, console: Console, weights: Path | None = None
) -> Path:
    """Run what is not finished yet, then write the page; arguments as in `operant_studies`.

    Dropout is chosen first, for each model. Then everything runs that the paper's tables need, and searches without
    selection as a control. Then, for each cell of Table 5 that is off by more than 15 points, experiments change one
    suspected cause after the other, until one brings it within 15 points by more than chance; where the difference
    itself may be chance, more seeds come first.

    ``data`` holds MNIST, CIFAR-10, ResNet-20's weights and, optionally, imagenet-500 and MobileNet's weights.
    """
    out, every = Path(out), subjects(scale)
    check_data(every, data)
    sign_folder(out, scale=scale, subjects=every)
    copy_nin(weights, out, data)
    chosen, left_out = split_missing(every, lambda s: why_missing(s, data, out), console)
    for phase in (_dropout, _tables, _causes):
        run_units(phase(chosen, data, out), workers=workers, console=console)
    return write_page(out, [KukResults(s, out / "steps") for s in chosen], left_out, scale=scale)


def _dropout(chosen: Sequence[Subject], data: Path | None, out: Path) -> Units:
    return [(f"{s.title}: dropout", partial(run_dropout, s, data, out)) for s in chosen]


def _tables(chosen: Sequence[Subject], data: Path | None, out: Path) -> Units:
    units: Units = []
    for s in chosen:
        for pattern in PATTERNS:
            for run in range(s.runs):
                name = f"{s.title}: search for {pattern}, run {run}"
                units.append((name, partial(run_search, s, pattern, run, "", data, out)))
            if s.controlled:
                name = f"{s.title}: control of {pattern}"
                units.append((name, partial(run_search, s, pattern, 0, CONTROL, data, out)))
        units += [(f"{s.title}: {method}", partial(run_measure, s, method, data, out)) for method in METHODS]
    return units


def _causes(chosen: Sequence[Subject], data: Path | None, out: Path) -> Units:
    return [
        (f"{s.title}: why {pattern} differs", partial(run_causes, s, pattern, data, out))
        for s in chosen
        for pattern in differing(s, KukResults(s, out / "steps").searches())
    ]


# Units


def run_dropout(subject: Subject, data: Path | None, out: Path) -> None:
    """Choose the dropout of one model."""
    steps = Steps(out / "steps" / subject.name)
    steps.step("dropout", DropoutChoice, lambda: choose(subject, prepare(subject, data, out)))


def run_measure(subject: Subject, method: str, data: Path | None, out: Path) -> None:
    """Make and measure the cases of one method."""

    def work() -> MeasuredCases:
        given = prepare(subject, data, out)
        keep = partial(_save, out / "suites" / subject.name / step_name(method))
        return measure(subject, given, dropping(subject, given, out), method, keep=keep)

    Steps(out / "steps" / subject.name).step(step_name(method), MeasuredCases, work)


def run_search(subject: Subject, pattern: str, run: int, cause: str, data: Path | None, out: Path) -> None:
    """The searches of one run for one pattern, chunk by chunk."""
    steps, given = Steps(out / "steps" / subject.name), None
    for chunk, first in enumerate(range(0, subject.seeds, subject.chunk)):
        name = search_name(pattern, run, cause, chunk)
        if steps.done(name):
            continue
        given = given or prepare(subject, data, out)
        model = dropping(subject, given, out, cause=cause)
        start = run * subject.seeds
        seeds = given.seeds[start + first : start + min(first + subject.chunk, subject.seeds)]
        path = (pattern, f"run-{run}", f"chunk-{chunk}")
        keep = partial(_save, out / "suites" / subject.name / name)
        work = partial(run_searches, subject, model, seeds, pattern, cause=cause, path=path, keep=keep)
        steps.step(name, PatternSearch, work)


def run_causes(subject: Subject, pattern: str, data: Path | None, out: Path) -> None:
    """Experiments on one cell of Table 5, until one explains its difference or none is left."""
    found = KukResults(subject, out / "steps")
    wide = replace(subject, runs=subject.runs + EXTRA_RUNS)
    while cause := next_change(found, pattern):
        if cause == MORE_SEEDS:
            for run in range(subject.runs, wide.runs):
                run_search(wide, pattern, run, "", data, out)
        else:
            run_search(subject, pattern, 0, cause, data, out)


def _save(place: Path, suite: Suite) -> None:
    """Write cases for other studies, before the step that marks them as finished."""
    shutil.rmtree(place, ignore_errors=True)  # incomplete, from a killed run
    suite.save(place)


def dropping(subject: Subject, given: PreparedModel, out: Path, *, cause: str = "") -> Classifier:
    """The model with the dropout that was chosen, or with that of an experiment."""
    trial = KukResults(subject, out / "steps").dropout.placement(cause, subject.places[-1])
    assert trial is not None  # otherwise the experiment does not run
    return with_dropout(given.model, before=trial.before, rate=trial.rate)
