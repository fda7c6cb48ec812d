"""RobOT's experiments (RQ1 to RQ3), with a control, three seeds, and robustness measured both ways."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from rich.console import Console

from operant_studies.robot.mnist_networks import NetworkRobustness, attack_network
from operant_studies.robot.page import write_page
from operant_studies.robot.settings import RIVALS, RobotSetting, settings
from operant_studies.robot.unit import RobotUnit
from operant_studies.shared import Steps, run_units, sign_folder
from operant_studies.subjects import find_mnist_networks, read_dataset

__all__ = ["run_study"]


def run_study(
    out: str | Path, *, data: Path | None, scale: str, workers: int, console: Console, rivals: bool = False
) -> Path:
    """Run what is not finished yet, then write the page; arguments as in `operant_studies`.

    With ``rivals``, DeepXplore, DLFuzz, DeepHunter and TensorFuzz also race and give pools to choose from; they can be
    added to a study that was run without them.
    """
    out = Path(out)
    chosen = tuple(replace(s, rivals=RIVALS if rivals and s.race else ()) for s in settings(scale, data))
    for setting in chosen:
        read_dataset(setting.dataset, data)  # fails now rather than after an hour
    sign_folder(out, scale=scale, settings=chosen)
    units = [(s, seed) for s in sorted(chosen, key=lambda s: s.dataset != "cifar10") for seed in s.seeds]
    work = [(f"{s.name}, seed {seed}", partial(run_unit, s, seed, data, out / "steps")) for s, seed in units]
    if data is not None:
        for kind, path in find_mnist_networks(data).items():
            work.append((f"{kind} network", partial(run_network, kind, path, data, out / "steps", scale)))
    run_units(work, workers=workers, console=console)
    return write_page(out, chosen, scale=scale)


def run_unit(setting: RobotSetting, seed: int, data: Path | None, folder: Path) -> None:
    """One setting with one seed."""
    RobotUnit(setting, seed, data=data, folder=folder).run()


def run_network(kind: str, weights: Path, data: Path, folder: Path, scale: str) -> None:
    """One of the networks of known robustness."""
    n = 10_000 if scale == "paper" else 1_000
    Steps(folder).step(f"known-{kind}", NetworkRobustness, lambda: attack_network(kind, weights, data, n=n))
