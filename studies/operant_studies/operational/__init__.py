"""The headline study: campaigns against the same loop with parts replaced."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from rich.console import Console

from operant.results import write_atomically
from operant_studies.operational.page import write_page
from operant_studies.operational.settings import seeds_of, trials
from operant_studies.operational.unit import run_unit
from operant_studies.operational_fuzz.fields import check_data
from operant_studies.shared import run_units, sign_folder

__all__ = ["run_study"]


def run_study(out: str | Path, *, data: Path | None, scale: str, workers: int, console: Console) -> Path:
    """Run what is not there yet, then write the page and its picture.

    Args:
        out: the folder of this study at this scale; run again, it goes on where it stopped.
        data: where MNIST, USPS, CIFAR-10 and the ResNet-20's weights are.
        scale: ``smoke`` or ``small``.
        workers: processes, each with one thread.
        console: where to tell what happens.
    """
    out, chosen = Path(out), trials(scale)
    check_data(tuple(trial.field for trial in chosen), data)
    sign_folder(out, scale=scale, trials=chosen)
    todo = [(seed, trial, name) for trial in chosen for seed in seeds_of(trial) for name in trial.variants]
    units = [
        (f"{trial.field.name}, seed {seed}: {name}", partial(run_unit, trial, data, seed, name, out))
        for seed, trial, name in sorted(todo, key=lambda each: each[0])
    ]
    run_units(units, workers=workers, console=console)
    path = out / "operational.md"
    write_atomically(path, write_page(chosen, out, scale=scale).encode())
    return path
