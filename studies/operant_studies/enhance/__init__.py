"""What cases teach a model by their pattern of uncertainty (Zhang, 2020, section 2.4)."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from rich.console import Console

from operant_studies.defences import suite_units
from operant_studies.defences.suites import Home, check_home, left_out, sign
from operant_studies.enhance.found import Found
from operant_studies.enhance.page import write_page
from operant_studies.enhance.retraining import run_retraining
from operant_studies.enhance.settings import enhancements
from operant_studies.kuk.models import check_data, take_nin
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
    """Run what is not there yet, then write the page and its picture.

    Args:
        out: the folder of this study at this scale; run again, it goes on where it stopped. It may hold the studies of
            KuK and of defences too, whose suites are then used.
        data: where MNIST and CIFAR-10 are.
        scale: ``smoke`` or ``small``.
        workers: processes, each with one thread.
        console: where to tell what happens.
        kuk: the folder of another study with suites.
        weights: NIN's, from ``python -m operant_studies.train_nin``; they are copied to ``out``.
    """
    home, every = Home(Path(out), kuk), enhancements(scale)
    check_data(tuple(e.plan.subject for e in every), data)
    check_home(home, scale, weights)
    sign(home, scale)
    sign_folder(home.out / "enhance", scale=scale, enhancements=every)
    take_nin(weights, home.out, data)
    missing = [why for e in every if (why := left_out(e.plan, data, home))]
    for why in missing:
        console.print(why, highlight=False, markup=False)
    chosen = [e for e in every if not left_out(e.plan, data, home)]
    for units in suite_units([e.plan for e in chosen], data, home):
        run_units(units, workers=workers, console=console)
    retraining = [
        (f"{e.title}: retraining, run {run}", partial(run_retraining, e, run, data, home))
        for e in reversed(chosen)
        for run in range(e.plan.runs)
    ]
    run_units(retraining, workers=workers, console=console)
    return write_page(home.out, [Found(e, home) for e in chosen], missing, scale=scale)
