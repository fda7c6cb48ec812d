"""Are cases real, and do they predict real failures? A judge that learns, a risk map, and models without labels."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from rich.console import Console

from operant_studies.cases import judging, ranking, selection
from operant_studies.cases.page import write_page
from operant_studies.cases.settings import CasesSetting, settings
from operant_studies.cases.unit import run_known, run_network
from operant_studies.field.fields import check_data
from operant_studies.shared import Units, run_units, sign_folder
from operant_studies.subjects import read_dataset

__all__ = ["run_study"]


def run_study(out: str | Path, *, data: Path | None, scale: str, workers: int, console: Console) -> Path:
    """Run the study and write its page; needs MNIST, Fashion-MNIST, CIFAR-10, USPS, Tiny ImageNet's and ImageNet's
    images, and the weights of ResNet-20."""
    out, setting = Path(out), settings(scale)
    check_data(setting.inputs, data)
    if "mnist" in {case.dataset for case in setting.inputs.cases}:
        read_dataset("fashion-mnist", data)
    sign_folder(out, scale=scale, setting=setting)
    parts = [work for part in (ranking, judging, selection) for work in part.units(setting, data, out)]
    for work in (network_units(setting, data, out), known_units(setting, data, out), parts):
        run_units(work, workers=workers, console=console)
    return write_page(out, setting, scale=scale)


def network_units(setting: CasesSetting, data: Path | None, out: Path) -> Units:
    """The networks, which several fields share."""
    names = dict.fromkeys(case.dataset for case in setting.inputs.cases if case.dataset != "cifar10")
    return [
        (f"network, {name}, seed {seed}", partial(run_network, setting, name, data, seed, out))
        for name in names
        for seed in setting.seeds
    ]


def known_units(setting: CasesSetting, data: Path | None, out: Path) -> Units:
    """What is estimated of each field, which all parts share."""
    return [
        (f"{case.name}, seed {seed}", partial(run_known, setting, case, data, seed, out))
        for seed in setting.seeds
        for case in setting.inputs.cases
    ]
