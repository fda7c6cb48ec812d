"""Does repair win? Ways to learn from a field at several budgets of labels, and whether repair ever makes it worse."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from operant_studies.field.fields import check_data
from operant_studies.repair import hard, unit
from operant_studies.repair.page import write_page
from operant_studies.repair.settings import settings
from operant_studies.shared import run_units, sign_folder

__all__ = ["run_study"]


def run_study(out: str | Path, *, data: Path | None, scale: str, workers: int, console: Console) -> Path:
    """Run the study and write its page; needs MNIST, Fashion-MNIST, CIFAR-10, USPS, Tiny ImageNet's images, and the
    weights of ResNet-20."""
    out, setting = Path(out), settings(scale)
    check_data(setting.inputs, data)
    sign_folder(out, scale=scale, setting=setting)
    for part in (unit.known_units, unit.units, hard.units):
        run_units(part(setting, data, out), workers=workers, console=console)
    return write_page(out, setting, scale=scale)
