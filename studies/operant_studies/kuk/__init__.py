"""KuK's experiments (RQ1 to RQ3): how sure models are of known cases, and searches for what those miss."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from rich.console import Console

from operant.measure import with_dropout
from operant.model import Classifier
from operant.suite import Suite
from operant_studies.kuk.causes import next_change
from operant_studies.kuk.dropout import Dropout, choose
from operant_studies.kuk.existing import METHODS, Measured, measure, step_name
from operant_studies.kuk.found import Found, search_name
from operant_studies.kuk.models import Ready, check_data, missing, ready, take_nin
from operant_studies.kuk.page import write_page
from operant_studies.kuk.search import CONTROL, MORE, MORE_RUNS, Bred, breed, to_explain
from operant_studies.kuk.settings import PATTERNS, Subject, subjects
from operant_studies.shared import Steps, run_units, sign_folder

__all__ = ["run_study"]

Units = list[tuple[str, Callable[[], None]]]


def run_study(
    out: str | Path, *, data: Path | None, scale: str, workers: int, console: Console, weights: Path | None = None
) -> Path:
    """Run what is not there yet, then write the page, its pictures and the numbers behind it.

    First dropout is chosen and frozen for each model; then everything runs that the paper's tables need, and searches
    without selection as a control; then, for each cell of Table 5 that is off by more than 15 points, experiments that
    change one suspected cause after the other, until one brings it within these 15 points by more than chance; more
    seeds come first where the difference itself may be chance.

    Args:
        out: the folder of this study at this scale; run again, it goes on where it stopped.
        data: where MNIST, CIFAR-10, ResNet-20's weights, and if there are any imagenet-500 and MobileNet's are.
        scale: ``smoke`` or ``small``.
        workers: processes, each with one thread.
        console: where to tell what happens.
        weights: NIN's, from ``python -m operant_studies.train_nin``; they are copied to ``out``. Without any, NIN is
            left out.
    """
    out, every = Path(out), subjects(scale)
    check_data(every, data)
    sign_folder(out, scale=scale, subjects=every)
    take_nin(weights, out, data)
    left_out = [why for s in every if (why := missing(s, data, out))]
    for why in left_out:
        console.print(why, highlight=False, markup=False)
    chosen = [s for s in every if not missing(s, data, out)]
    for phase in (_dropout, _tables, _causes):
        run_units(phase(chosen, data, out), workers=workers, console=console)
    return write_page(out, [Found(s, out / "steps") for s in chosen], left_out, scale=scale)


def _dropout(chosen: list[Subject], data: Path | None, out: Path) -> Units:
    return [(f"{s.title}: dropout", partial(run_dropout, s, data, out)) for s in chosen]


def _tables(chosen: list[Subject], data: Path | None, out: Path) -> Units:
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


def _causes(chosen: list[Subject], data: Path | None, out: Path) -> Units:
    return [
        (f"{s.title}: why {pattern} differs", partial(run_causes, s, pattern, data, out))
        for s in chosen
        for pattern in to_explain(s, Found(s, out / "steps").searches())
    ]


# Units; functions of their own so that another process can be asked for them


def run_dropout(subject: Subject, data: Path | None, out: Path) -> None:
    """Where dropout sits in one model."""
    steps = Steps(out / "steps" / subject.name)
    steps.step("dropout", Dropout, lambda: choose(subject, ready(subject, data, out)))


def run_measure(subject: Subject, method: str, data: Path | None, out: Path) -> None:
    """The cases of one method, measured."""

    def work() -> Measured:
        given = ready(subject, data, out)
        keep = partial(_keep, out / "suites" / subject.name / step_name(method))
        return measure(subject, given, dropping(subject, given, out), method, keep=keep)

    Steps(out / "steps" / subject.name).step(step_name(method), Measured, work)


def run_search(subject: Subject, pattern: str, run: int, cause: str, data: Path | None, out: Path) -> None:
    """The searches of one run for one pattern, a chunk of seeds at a time."""
    steps, given = Steps(out / "steps" / subject.name), None
    for chunk, first in enumerate(range(0, subject.seeds, subject.chunk)):
        name = search_name(pattern, run, cause, chunk)
        if steps.done(name):
            continue
        given = given or ready(subject, data, out)
        model = dropping(subject, given, out, cause=cause)
        start = run * subject.seeds
        seeds = given.seeds[start + first : start + min(first + subject.chunk, subject.seeds)]
        path = (pattern, f"run-{run}", f"chunk-{chunk}")
        keep = partial(_keep, out / "suites" / subject.name / name)
        work = partial(breed, subject, model, seeds, pattern, cause=cause, path=path, keep=keep)
        steps.step(name, Bred, work)


def run_causes(subject: Subject, pattern: str, data: Path | None, out: Path) -> None:
    """Experiments on one cell of Table 5, until one tells why it differs or none is left."""
    found = Found(subject, out / "steps")
    wide = replace(subject, runs=subject.runs + MORE_RUNS)
    while cause := next_change(found, pattern):
        if cause == MORE:
            for run in range(subject.runs, wide.runs):
                run_search(wide, pattern, run, "", data, out)
        else:
            run_search(subject, pattern, 0, cause, data, out)


def _keep(place: Path, suite: Suite) -> None:
    """Write cases that other studies go on with, before the step that says they are there."""
    shutil.rmtree(place, ignore_errors=True)  # what a kill left of it
    suite.save(place)


def dropping(subject: Subject, given: Ready, out: Path, *, cause: str = "") -> Classifier:
    """The model with the dropout that was chosen, or with what an experiment has instead."""
    place = Found(subject, out / "steps").dropout.place(cause, subject.places[-1])
    assert place is not None  # else it would not be tried
    return with_dropout(given.model, before=place.before, rate=place.rate)
