"""KuK's RQ4: success of defences on common and on uncommon data (Tables 6 and 7)."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from rich.console import Console

from operant_studies.defences.judging import run_judging
from operant_studies.defences.page import write_page
from operant_studies.defences.results import DefenceResults
from operant_studies.defences.settings import plans
from operant_studies.defences.suites import SuiteFolders, check_study, make_suites
from operant_studies.shared import run_units

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

    ``out`` may also hold the KuK study, or ``kuk`` may name its folder; its dropout, weights and suites are then used.
    ``data`` holds MNIST, CIFAR-10, ResNet-20's weights and, optionally, imagenet-500 and MobileNet's weights.
    """
    folders, every = SuiteFolders(Path(out), kuk), plans(scale)
    check_study(folders, every, data=data, scale=scale, weights=weights)
    chosen, left_out = make_suites(folders, every, data=data, workers=workers, console=console)
    units = [
        (f"{plan.title}: defences, run {run}", partial(run_judging, plan, run, data, folders))
        for plan in reversed(chosen)
        for run in range(plan.runs)
    ]
    run_units(units, workers=workers, console=console)
    return write_page(folders.out, [DefenceResults(plan, folders) for plan in chosen], left_out, scale=scale)
