"""The page of the study of defences."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from operant_studies.defences import tables
from operant_studies.defences.judging import COMMON, UNCOMMON
from operant_studies.defences.pictures import draw_success
from operant_studies.defences.results import DefenceResults
from operant_studies.shared import write_sections

MIN_UNCOMMON = 100  # uncommon cases that each model should have


def write_page(out: Path, found: Sequence[DefenceResults], left_out: Sequence[str], *, scale: str) -> Path:
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
    return write_sections(out / "defences.md", sections)


def _intro(found: Sequence[DefenceResults], left_out: Sequence[str], scale: str) -> str:
    models = "; ".join(
        f"{f.title}: {f.plan.runs} run{'s' * (f.plan.runs > 1)}, {f.size(COMMON)} common and {f.size(UNCOMMON)} "
        f"uncommon cases{f' (fewer than {MIN_UNCOMMON})' if f.size(UNCOMMON) < MIN_UNCOMMON else ''}"
        for f in found
    )
    without = "".join(f"\n{why}.\n" for why in left_out)
    return f"""# Defences against common and uncommon data, run again

RQ4 of *Towards Characterizing Adversarial Defects of Deep Learning Software from the Lens of Uncertainty* (Zhang et
al., 2020), by `operant study defences --scale {scale}`: do defences that succeed on the cases of attacks also succeed
on cases with uncommon patterns of uncertainty? Common data are benign inputs and as many cases of attacks; uncommon
data are the cases that searches for the patterns LL, HH, LH and HL reached, all four together. [The study of
KuK](kuk.md) explains the patterns, [the page on defences](../how-to/defend.md) the defences.

{models}. Each run has its own seeds, fitting inputs, test inputs and random numbers; the model is the same.
{without}"""
