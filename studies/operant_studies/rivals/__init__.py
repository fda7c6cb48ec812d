"""Rivals: does the guidance of four coverage-guided fuzzers pay, and what do they find compared with ours?"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from rich.console import Console

from operant_studies.operational_fuzz.fields import check_data
from operant_studies.rivals import curves, finding
from operant_studies.rivals.models import NETWORKS, prepare
from operant_studies.rivals.page import write_page
from operant_studies.rivals.settings import settings
from operant_studies.shared import run_units, sign_folder

__all__ = ["run_study"]


def run_study(out: str | Path, *, data: Path | None, scale: str, workers: int, console: Console) -> Path:
    """Run the study and write its page; it needs MNIST, CIFAR-10 and the weights of ResNet-20."""
    out, chosen = Path(out), settings(scale)
    check_data(tuple(setting.field for setting in chosen), data)
    sign_folder(out, scale=scale, setting=chosen)
    networks = [
        (f"network {number}, {setting.name}", partial(prepare, setting, data, number, out / "networks"))
        for setting in chosen
        for number in range(NETWORKS)
    ]
    run_units(networks, workers=workers, console=console)  # first, because all searches share them
    work = [
        (f"{name}, {setting.name}, seed {seed}", partial(part.run, setting, data, out, seed))
        for setting in reversed(chosen)  # the longest first
        for name, part in (("coverage", curves), ("finding", finding))
        for seed in setting.seeds
    ]
    run_units(work, workers=workers, console=console)
    return write_page(out, chosen, scale=scale)
