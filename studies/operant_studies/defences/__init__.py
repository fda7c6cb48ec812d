"""KuK's RQ4: what defences stop of common and of uncommon data (Tables 6 and 7)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from rich.console import Console

from operant_studies.defences import suites
from operant_studies.defences.found import Found
from operant_studies.defences.judging import run_judging
from operant_studies.defences.page import write_page
from operant_studies.defences.settings import Plan, plans
from operant_studies.defences.suites import Home
from operant_studies.kuk.models import check_data, take_nin
from operant_studies.kuk.paper import ATTACKS
from operant_studies.kuk.settings import PATTERNS
from operant_studies.shared import run_units

__all__ = ["run_study", "suite_units"]

Units = list[tuple[str, Callable[[], None]]]


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
        out: the folder of this study at this scale; run again, it goes on where it stopped. It may hold the KuK study
            too, whose dropout, weights and suites are then used.
        data: where MNIST, CIFAR-10, ResNet-20's weights, and if there are any imagenet-500 and MobileNet's are.
        scale: ``smoke`` or ``small``.
        workers: processes, each with one thread.
        console: where to tell what happens.
        kuk: the folder of a KuK study, or of another one with its suites.
        weights: NIN's, from ``python -m operant_studies.train_nin``; they are copied to ``out``.
    """
    home, every = Home(Path(out), kuk), plans(scale)
    check_data(tuple(plan.subject for plan in every), data)
    suites.check_home(home, scale, weights)
    suites.sign(home, scale)
    take_nin(weights, home.out, data)
    left_out = [why for plan in every if (why := suites.left_out(plan, data, home))]
    for why in left_out:
        console.print(why, highlight=False, markup=False)
    chosen = [plan for plan in every if not suites.left_out(plan, data, home)]
    for units in suite_units(chosen, data, home):
        run_units(units, workers=workers, console=console)
    judging = [
        (f"{plan.title}: defences, run {run}", partial(run_judging, plan, run, data, home))
        for plan in reversed(chosen)
        for run in range(plan.runs)
    ]
    run_units(judging, workers=workers, console=console)
    return write_page(home.out, [Found(plan, home) for plan in chosen], left_out, scale=scale)


def suite_units(chosen: Sequence[Plan], data: Path | None, home: Home) -> tuple[Units, Units]:
    """Where dropout sits; then, what takes longest first, all suites."""
    dropout: Units = [(f"{p.title}: dropout", partial(suites.run_dropout, p, data, home)) for p in chosen]
    making: Units = []
    for p in reversed(chosen):
        for pattern in PATTERNS:
            for run in range(p.runs):
                name = f"{p.title}: search for {pattern}, run {run}"
                making.append((name, partial(suites.run_search, p, pattern, run, data, home)))
        making += [(f"{p.title}: {method}", partial(suites.run_attack, p, method, data, home)) for method in ATTACKS]
    return dropout, making
