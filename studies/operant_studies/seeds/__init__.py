"""Do profile and risk map matter for the choice of seeds? Failing mass found and estimates, by design and score."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from rich.console import Console

from operant_studies.seeds.page import write_page
from operant_studies.seeds.settings import SETUPS, SeedsSetting, SeedsSources, setting_of
from operant_studies.seeds.unit import SeedsUnit
from operant_studies.shared import run_units, sign_folder

__all__ = ["run_study"]


def run_study(out: str | Path, *, data: Path | None, scale: str, workers: int, console: Console) -> Path:
    """Run the study and write its page and a file of its numbers; needs MNIST, USPS and the networks' weights."""
    out, setting = Path(out), setting_of(scale)
    SeedsSources(setting, data).check()
    sign_folder(out, scale=scale, setting=setting)
    work = [
        (f"{name}, {kind} network", partial(run_unit, setting, name, kind, data, out / "steps"))
        for kind in setting.networks
        for name in SETUPS
    ]
    fits = [(f"conditions of {name}", partial(run_conditions, setting, name, data, out / "steps")) for name in SETUPS]
    run_units(fits, workers=workers, console=console)
    run_units(work, workers=workers, console=console)
    return write_page(out, setting, scale=scale)


def run_conditions(setting: SeedsSetting, name: str, data: Path | None, folder: Path) -> None:
    """The conditions of one set-up, before the networks that share them."""
    unit = SeedsUnit(setting, name, setting.networks[0], data, folder)
    for seed in setting.seeds:
        unit.conditions(seed)


def run_unit(setting: SeedsSetting, name: str, kind: str, data: Path | None, folder: Path) -> None:
    """One set-up with one network; a module-level function, so that other processes can run it."""
    SeedsUnit(setting, name, kind, data, folder).run()
