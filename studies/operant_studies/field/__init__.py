"""Is the field known without being declared? Conditions, class shares and error, estimated without labels."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from rich.console import Console

from operant_studies.field import control, downstream, large
from operant_studies.field.fields import check_data
from operant_studies.field.page import write_page
from operant_studies.field.settings import FieldStudySetting, settings
from operant_studies.field.unit import run_network, run_unit
from operant_studies.shared import Units, run_units, sign_folder

__all__ = ["run_study"]


def run_study(out: str | Path, *, data: Path | None, scale: str, workers: int, console: Console) -> Path:
    """Run the study and write its page; needs MNIST, Fashion-MNIST, CIFAR-10, USPS, Tiny ImageNet's and ImageNet's
    images, and the weights of ResNet-20."""
    out, setting = Path(out), settings(scale)
    check_data(setting, data)
    sign_folder(out, scale=scale, setting=setting)
    later = [*control.units(setting, data, out), *large.units(scale, setting, data, out)]
    first, second = network_units(setting, data, out), field_units(setting, data, out)
    for work in (first, [*second, *later], downstream.units(setting, data, out)):
        run_units(work, workers=workers, console=console)
    return write_page(out, setting, scale=scale)


def network_units(setting: FieldStudySetting, data: Path | None, out: Path) -> Units:
    """The networks, which several fields share."""
    names = dict.fromkeys(case.dataset for case in setting.cases if case.dataset != "cifar10")
    return [
        (f"network, {name}, seed {seed}", partial(run_network, setting, name, data, seed, out))
        for name in names
        for seed in setting.seeds
    ]


def field_units(setting: FieldStudySetting, data: Path | None, out: Path) -> Units:
    """One unit per field and seed; the field that others wait for comes first."""
    first = setting.downstream.case
    return [
        (f"{case.name}, seed {seed}", partial(run_unit, setting, case, data, seed, out))
        for seed in setting.seeds
        for case in sorted(setting.cases, key=lambda case: case.name != first)
    ]
