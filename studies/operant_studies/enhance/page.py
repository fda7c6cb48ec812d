"""The page of the study of enhancement."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from operant_studies.enhance import tables
from operant_studies.enhance.pictures import draw_groups
from operant_studies.enhance.results import EnhanceResults
from operant_studies.shared import write_sections


def write_page(out: Path, found: Sequence[EnhanceResults], left_out: Sequence[str], *, scale: str) -> Path:
    """Write ``enhance.md`` and its picture into ``out``."""
    draw_groups(found, out / "enhance.svg")
    without = "".join(f"\n{why}.\n" for why in left_out)
    intro = f"""# Retraining with cases, by their pattern

Section 2.4 of *Uncertainty-Guided Testing and Robustness Enhancement for Deep Learning Systems* (Zhang, 2020): a model
is retrained with cases of one pattern of uncertainty, or of one attack. Which of them raise its accuracy, and with
which does it classify attacks on the old model correctly? Measured by `operant study enhance --scale {scale}`, on
{"; ".join(f.title for f in found)}. [The study of KuK](kuk.md) explains the patterns; retraining is by [manifold
mixup](../how-to/defend.md#what-retraining-brought).
{without}"""
    parts = (tables.claims, tables.groups, tables.by_attack, tables.method)
    return write_sections(out / "enhance.md", [intro, *(part(found) for part in parts), tables.again(scale)])
