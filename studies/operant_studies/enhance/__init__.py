"""Retraining with cases of each pattern of uncertainty (Zhang, 2020, section 2.4)."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from rich.console import Console

from operant_studies.defences.suites import SuiteFolders, check_study, make_suites
from operant_studies.enhance.page import write_page
from operant_studies.enhance.results import EnhanceResults
from operant_studies.enhance.retraining import run_retraining
from operant_studies.enhance.settings import enhance_plans
from operant_studies.shared import run_units, sign_folder

__all__ = ["run_study"]


def run_study(
    out: str | Path,
    *,
    data: Path | None,
    scale: str,
    workers: int,
    console: Console,
    kuk: Path | None = None,
    weights: Path | None = None,
) -> Path:
    """Run what is not finished yet, then write the page; arguments as in `operant_studies`.

    ``out`` may also hold the studies of KuK and of defences, or ``kuk`` may name another folder with suites, which are
    then used. ``data`` holds MNIST and CIFAR-10.
    """
    folders, by_name = SuiteFolders(Path(out), kuk), {e.name: e for e in enhance_plans(scale)}
    suites = [e.suites for e in by_name.values()]
    check_study(folders, suites, data=data, scale=scale, weights=weights)
    sign_folder(folders.out / "enhance", scale=scale, enhancements=tuple(by_name.values()))
    made, left_out = make_suites(folders, suites, data=data, workers=workers, console=console)
    chosen = [by_name[plan.name] for plan in made]
    units = [
        (f"{e.title}: retraining, run {run}", partial(run_retraining, e, run, data, folders))
        for e in reversed(chosen)
        for run in range(e.suites.runs)
    ]
    run_units(units, workers=workers, console=console)
    return write_page(folders.out, [EnhanceResults(e, folders) for e in chosen], left_out, scale=scale)
