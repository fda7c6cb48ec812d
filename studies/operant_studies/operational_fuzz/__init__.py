"""Operational failures: what finds them, what they repair, and whether their labels hold."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from operant_studies.operational_fuzz import finding, finding_tables, labels, repair, repair_tables
from operant_studies.operational_fuzz.fields import check_data
from operant_studies.operational_fuzz.settings import settings
from operant_studies.shared import run_units, sign_folder, write_sections

__all__ = ["run_study"]

INTRO = """# Operational fuzzing: does it find, does it repair?

Step 3 searches for failures that the field will meet; step 4 retrains with them. This page measures what finds most of
them, how many are needed to repair a model, and whether their labels still hold, by `operant study operational-fuzz
--scale {scale}`. *pmi* is the probability of misclassification per field input.
"""


def run_study(out: str | Path, *, data: Path | None, scale: str, workers: int, console: Console) -> Path:
    """Run the study and write its page; needs MNIST, USPS, CIFAR-10, cifar10h, Tiny ImageNet's images and ResNet-20."""
    out, chosen = Path(out), settings(scale)
    check_data(chosen, data)
    sign_folder(out, scale=scale, setting=chosen)
    work = [unit for part in (finding, labels, repair) for unit in part.units(chosen, data, out)]
    run_units(work, workers=workers, console=console)
    sections = [part.section(chosen, out) for part in (finding_tables, repair_tables, labels)]
    return write_sections(out / "operational_fuzz.md", [INTRO.format(scale=scale), *sections])
