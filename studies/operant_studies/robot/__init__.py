"""RobOT's experiments (RQ1 to RQ3), with a control, three seeds, and robustness measured both ways."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from rich.console import Console

from operant_studies.robot.known import Known, judge_known
from operant_studies.robot.page import write_page
from operant_studies.robot.settings import RIVALS, Setting, settings
from operant_studies.robot.unit import Unit
from operant_studies.shared import Steps, run_units, sign_folder
from operant_studies.subjects import find_mnist_networks

__all__ = ["run_study"]


def run_study(
    out: str | Path, *, data: Path | None, scale: str, workers: int, console: Console, rivals: bool = False
) -> Path:
    """Run what is not there yet, then write the page, its pictures and the numbers behind it.

    Args:
        out: the folder of this study at this scale; run again, it goes on where it stopped.
        data: where the data sets are.
        scale: ``smoke``, ``small`` or ``paper``.
        workers: processes, each with one thread.
        console: where to tell what happens.
        rivals: whether DeepXplore, DLFuzz, DeepHunter and TensorFuzz race too, and give pools to choose from. A study
            that was run without them goes on with them in the same folder.
    """
    out = Path(out)
    chosen = tuple(replace(s, rivals=RIVALS if rivals and s.race else ()) for s in settings(scale, data))
    for setting in chosen:
        setting.read(data)  # what is not there is better told now than in an hour
    sign_folder(out, scale=scale, settings=chosen)
    units = [(s, seed) for s in sorted(chosen, key=lambda s: s.dataset != "cifar10") for seed in s.seeds]
    work = [(f"{s.name}, seed {seed}", partial(run_unit, s, seed, data, out / "steps")) for s, seed in units]
    if data is not None:
        for kind, path in find_mnist_networks(data).items():
            work.append((f"{kind} network", partial(run_known, kind, path, data, out / "steps", scale)))
    run_units(work, workers=workers, console=console)
    return write_page(out, chosen, scale=scale)


def run_unit(setting: Setting, seed: int, data: Path | None, folder: Path) -> None:
    """One setting with one seed; a function of its own so that another process can be asked for it."""
    Unit(setting, seed, data=data, folder=folder).run()


def run_known(kind: str, weights: Path, data: Path, folder: Path, scale: str) -> None:
    """One of the networks whose robustness is known."""
    n = 10_000 if scale == "paper" else 1_000
    Steps(folder).step(f"known-{kind}", Known, lambda: judge_known(kind, weights, data, n=n))
