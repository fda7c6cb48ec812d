"""Does the profile matter when seeds are drawn? Failing mass found and estimates made, by design, score and mass."""

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
    """Run what is not there yet, then write the page, its pictures and the numbers behind it.

    Args:
        out: the folder of this study at this scale; run again, it goes on where it stopped.
        data: where MNIST, USPS and the networks' weights are.
        scale: ``smoke`` or ``small``.
        workers: processes, each with one thread.
        console: where to tell what happens.
    """
    out = Path(out)
    setting = setting_of(scale)
    SeedsSources(setting, data).check()
    sign_folder(out, scale=scale, setting=setting)
    work = [
        (f"{name}, {kind} network", partial(run_unit, setting, name, kind, data, out / "steps"))
        for kind in setting.networks
        for name in SETUPS
    ]
    run_units(work, workers=workers, console=console)
    return write_page(out, setting, scale=scale)


def run_unit(setting: SeedsSetting, name: str, kind: str, data: Path | None, folder: Path) -> None:
    """One set-up with one network; a function of its own so that another process can be asked for it."""
    SeedsUnit(setting, name, kind, data, folder).run()
