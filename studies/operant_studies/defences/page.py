"""The page of the study of defences."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from operant.results import write_atomically
from operant_studies.defences import tables
from operant_studies.defences.found import Found
from operant_studies.defences.judging import COMMON, UNCOMMON
from operant_studies.defences.pictures import draw_success

FEW = 100  # uncommon cases that the study promises for each model


def write_page(out: Path, found: Sequence[Found], left_out: Sequence[str], *, scale: str) -> Path:
    """Write ``defences.md`` and its picture into ``out``."""
    draw_success(found, out / "defences.svg")
    sections = [
        _intro(found, left_out, scale),
        tables.claims(found),
        tables.success(found),
        tables.by_pattern(found),
        tables.method(found),
        tables.DIFFERENCES,
        tables.again(scale),
    ]
    path = out / "defences.md"
    write_atomically(path, "\n".join(sections).encode())
    return path


def _intro(found: Sequence[Found], left_out: Sequence[str], scale: str) -> str:
    models = "; ".join(
        f"{f.title}: {f.plan.runs} run{'s' * (f.plan.runs > 1)}, {f.size(COMMON)} common and {f.size(UNCOMMON)} "
        f"uncommon cases{f' (fewer than {FEW})' if f.size(UNCOMMON) < FEW else ''}"
        for f in found
    )
    without = "".join(f"\n{why}.\n" for why in left_out)
    return f"""# Defences against common and uncommon data, run again

RQ4 of *Towards Characterizing Adversarial Defects of Deep Learning Software from the Lens of Uncertainty* (Zhang et
al., 2020), by `operant study defences --scale {scale}`: do defences that succeed on what attacks make also succeed on
cases with uncommon patterns of uncertainty? Common data are benign inputs and as many cases of attacks; uncommon data
are what searches for the patterns LL, HH, LH and HL reached, all four together. What the patterns are, [the study of
KuK](kuk.md) tells; what the defences do, [the page on defences](../how-to/defend.md).

{models}. A run has its own seeds, inputs to fit on, judged inputs and random numbers; the model is the same.
{without}"""
