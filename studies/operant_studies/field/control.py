"""The control: other images of the training source, without any condition; nothing is there to be found."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from operant.rng import shuffled, spawn
from operant_studies.field.settings import FieldStudySetting
from operant_studies.field.unit import fit_timed
from operant_studies.operational.unit import TimedConditions
from operant_studies.shared import Steps, Units
from operant_studies.subjects import read_dataset


def units(setting: FieldStudySetting, data: Path | None, out: Path) -> Units:
    """One unit per data set."""
    return [(f"control, {name}", partial(run_control, setting, data, out, name)) for name in setting.controls]


def control_steps(out: Path, dataset: str) -> Steps:
    return Steps(out / "steps" / f"control-{dataset}")


def run_control(setting: FieldStudySetting, data: Path | None, out: Path, dataset: str) -> None:
    """Fit conditions on several resamples; a module-level function, so that other processes can run it."""
    steps = control_steps(out, dataset)
    for i in range(setting.resamples):
        steps.step(f"fit-{i}", TimedConditions, partial(_fit, setting, data, dataset, i))


def _fit(setting: FieldStudySetting, data: Path | None, dataset: str, number: int) -> TimedConditions:
    known = read_dataset(dataset, data)
    path = ("control", dataset, number)
    field = known.test[shuffled(len(known.test), spawn(0, *path, "field"))[: setting.seen]]
    clean = known.train[shuffled(len(known.train), spawn(0, *path, "clean"))[: setting.clean]]
    return fit_timed(field, clean, generator=spawn(0, *path, "fit"))


def found_in_controls(setting: FieldStudySetting, out: Path) -> dict[str, list[TimedConditions]]:
    """The fits by data set."""
    return {
        name: [control_steps(out, name).read(f"fit-{i}", TimedConditions) for i in range(setting.resamples)]
        for name in setting.controls
    }
