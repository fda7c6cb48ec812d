"""Do failures that field use will meet pay? What finds them, what they repair, and whether their labels hold."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from operant.results import write_atomically
from operant_studies.operational_fuzz import finding, finding_tables, labels, repair, repair_tables
from operant_studies.operational_fuzz.fields import check_data
from operant_studies.operational_fuzz.settings import settings
from operant_studies.shared import run_units, sign_folder

__all__ = ["run_study"]

INTRO = """# Operational fuzzing: does it find, does it repair?

Step 3 searches for failures that field use will meet, step 4 retrains with them. This page asks what finds most of
them, how many it takes to repair a model, and whether their labels still hold, by `operant study operational-fuzz
--scale {scale}`. *pmi* is the probability of misclassification per field input.
"""


def run_study(out: str | Path, *, data: Path | None, scale: str, workers: int, console: Console) -> Path:
    """Run what is not there yet, then write the page and its pictures.

    Args:
        out: the folder of this study at this scale; run again, it goes on where it stopped.
        data: where MNIST, USPS, CIFAR-10, cifar10h, Tiny ImageNet's images and the ResNet-20's weights are.
        scale: ``smoke`` or ``small``.
        workers: processes, each with one thread.
        console: where to tell what happens.
    """
    out, chosen = Path(out), settings(scale)
    check_data(chosen, data)
    sign_folder(out, scale=scale, setting=chosen)
    work = [unit for part in (finding, labels, repair) for unit in part.units(chosen, data, out)]
    run_units(work, workers=workers, console=console)
    sections = [part.section(chosen, out) for part in (finding_tables, repair_tables, labels)]
    path = out / "operational_fuzz.md"
    write_atomically(path, "\n".join([INTRO.format(scale=scale), *sections]).encode())
    return path
