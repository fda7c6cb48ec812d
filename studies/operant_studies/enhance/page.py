"""The page of the study of enhancement."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from operant.results import write_atomically
from operant_studies.enhance import tables
from operant_studies.enhance.found import Found
from operant_studies.enhance.pictures import draw_groups


def write_page(out: Path, found: Sequence[Found], left_out: Sequence[str], *, scale: str) -> Path:
    """Write ``enhance.md`` and its picture into ``out``."""
    draw_groups(found, out / "enhance.svg")
    without = "".join(f"\n{why}.\n" for why in left_out)
    intro = f"""# What cases teach, by their pattern

Section 2.4 of *Uncertainty-Guided Testing and Robustness Enhancement for Deep Learning Systems* (Zhang, 2020): a model
is retrained with cases of one pattern of uncertainty, or of one attack. Which of them raise its accuracy, and which
make it read attacks on the old model correctly? Measured by `operant study enhance --scale {scale}`, on
{"; ".join(f.title for f in found)}. What the patterns are, [the study of KuK](kuk.md) tells; retraining is by [manifold
mixup](../how-to/defend.md#what-retraining-brought).
{without}"""
    sections = [intro, tables.claims(found), tables.groups(found), tables.by_attack(found), tables.method(found)]
    path = out / "enhance.md"
    write_atomically(path, ("\n".join(sections) + tables.again(scale)).encode())
    return path
