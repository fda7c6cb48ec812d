"""Semantic tests (papers/3): do they reveal faults that pixels do not, how far are they, and do they transfer?"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from rich.console import Console

from operant_studies.semantic import injected, natural, transfer
from operant_studies.semantic.fields import SemanticImages, check_data
from operant_studies.semantic.instruments import SemanticInstruments, prepare
from operant_studies.semantic.page import write_page
from operant_studies.semantic.settings import settings
from operant_studies.shared import run_units, sign_folder

__all__ = ["run_study"]


def run_study(out: str | Path, *, data: Path | None, scale: str, workers: int, console: Console) -> Path:
    """Run the study and write its page and gallery; it needs MNIST, Fashion-MNIST and, for some parts, given weights.

    First the source and judges of each data set are made, then every seed runs by itself. A data set whose sources are
    all too poor is left out, and the page says so.
    """
    out, chosen = Path(out), settings(scale)
    check_data(chosen, data)
    sign_folder(out, scale=scale, settings=chosen)
    units = [
        (f"source and judges, {s.title}", partial(prepare, SemanticImages(s, data), out / "instruments"))
        for s in chosen
    ]
    if scale != "smoke" and data is not None and natural.available(data):
        units += [(f"CIFAR-10, {kind}", partial(natural.run, data, out, kind)) for kind in natural.STEPS]
    run_units(units, workers=workers, console=console)
    good = [s for s in chosen if SemanticInstruments(SemanticImages(s, data), out / "instruments").rated[-1].passed]
    work = [
        (f"{s.title}, seed {seed}", partial(injected.run if s.flaws else transfer.run, s, data, out, seed))
        for s in good
        for seed in s.seeds
    ]
    run_units(work, workers=workers, console=console)
    return write_page(out, chosen, data, scale=scale)
