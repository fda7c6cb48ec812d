"""The headline study: campaigns against the same loop with parts replaced."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from rich.console import Console

from operant_studies.operational.page import write_page
from operant_studies.operational.settings import seeds_of, settings
from operant_studies.operational.unit import run_unit
from operant_studies.operational_fuzz.fields import check_data
from operant_studies.shared import run_units, sign_folder, write_sections

__all__ = ["run_study"]


def run_study(out: str | Path, *, data: Path | None, scale: str, workers: int, console: Console) -> Path:
    """Run the study and write its page; it needs MNIST, USPS, CIFAR-10 and the weights of ResNet-20."""
    out, chosen = Path(out), settings(scale)
    check_data(tuple(setting.field for setting in chosen), data)
    sign_folder(out, scale=scale, settings=chosen)
    todo = [(seed, setting, name) for setting in chosen for seed in seeds_of(setting) for name in setting.variants]
    units = [
        (f"{setting.field.name}, seed {seed}: {name}", partial(run_unit, setting, data, seed, name, out))
        for seed, setting, name in sorted(todo, key=lambda each: each[0])
    ]
    run_units(units, workers=workers, console=console)
    return write_sections(out / "operational.md", write_page(chosen, out, scale=scale))
