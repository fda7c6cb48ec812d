"""The page of the KuK study."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from operant_studies.kuk import causes, search_tables, tables
from operant_studies.kuk.pictures import draw_means, draw_planes
from operant_studies.kuk.results import KukResults
from operant_studies.kuk.summary import summary
from operant_studies.shared import write_numbers, write_sections


def write_page(out: Path, found: Sequence[KukResults], left_out: Sequence[str], *, scale: str) -> Path:
    """Write ``kuk.md`` with its pictures, and ``kuk.json`` with all numbers, into ``out``."""
    draw_means(found, out / "kuk-means.svg")
    draw_planes(found, out)
    sections = [
        _intro(found, left_out, scale),
        summary(found),
        tables.dropout(found),
        tables.rq1(found),
        tables.rq2(found),
        search_tables.rq3(found),
        causes.causes(found),
        search_tables.method(found),
    ]
    write_numbers(out / "kuk.json", out / "steps")
    return write_sections(out / "kuk.md", sections)


def _intro(found: Sequence[KukResults], left_out: Sequence[str], scale: str) -> str:
    models = "; ".join(f.subject.title for f in found)
    without = "".join(f"\n{why}.\n" for why in left_out)
    return f"""# KuK, run again

The experiments of *Towards Characterizing Adversarial Defects of Deep Learning Software from the Lens of Uncertainty*
(Zhang et al., 2020), RQ1 to RQ3, by `operant study kuk --scale {scale}`, on {models}. The paper's
program is not public.

- *PCS* is the confidence of a model: the lead of the predicted class over the next one. Below .3 is low, above .7 high.
- *VRO* is its instability: the share of T passes with dropout whose prediction differs from that without dropout. Each
  pass has its own dropout *mask*. Below .4 is low, above .6 high.
- Patterns are two letters, PCS first: *LL* is not confident, yet stable; *HH* confident, yet unstable; *HL* confident
  and stable, as for inputs that a model classifies well; *LH* neither, as for the cases of most attacks.
- A case is *adversarial* if its predicted class differs from the label of its seed, else *benign*.
{without}"""
