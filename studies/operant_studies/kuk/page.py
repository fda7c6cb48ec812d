"""The page of the KuK study: tables beside the paper's, pictures, and a file of all numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from operant.results import write_atomically
from operant_studies.kuk import causes, search_tables, tables
from operant_studies.kuk.found import Found
from operant_studies.kuk.pictures import draw_means, draw_planes
from operant_studies.kuk.summary import summary


def write_page(out: Path, found: Sequence[Found], left_out: Sequence[str], *, scale: str) -> Path:
    """Write ``kuk.md`` with its pictures, and ``kuk.json`` with every number behind it, into ``out``."""
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
    _write_numbers(out)
    path = out / "kuk.md"
    write_atomically(path, "\n".join(sections).encode())
    return path


def _intro(found: Sequence[Found], left_out: Sequence[str], scale: str) -> str:
    models = "; ".join(f.subject.title for f in found)
    without = "".join(f"\n{why}.\n" for why in left_out)
    return f"""# KuK, run again

The experiments of *Towards Characterizing Adversarial Defects of Deep Learning Software from the Lens of Uncertainty*
(Zhang et al., 2020), RQ1 to RQ3, by `operant study kuk --scale {scale}`, on {models}. No program of the paper is
public.

- *PCS*, how decided a model is: by how much the predicted class leads the next one. Below .3 is low, above .7 high.
- *VRO*, how unstable it is: the share of T passes with dropout that say something else than the model without it. Each
  pass drops by another *mask*. Below .4 is low, above .6 high.
- Patterns are two letters, PCS first: *LL* undecided, yet stable; *HH* decided, yet unstable; *HL* decided and stable,
  as a model is of inputs that it reads well; *LH* undecided and unstable, as it is of most attacks.
- A case is *adversarial* if the model does not give it its seed's label, else *benign*.
{without}"""


def _write_numbers(out: Path) -> None:
    """Every finished step in one file, tensors as lists."""
    files = sorted((out / "steps").rglob("*.json"))
    steps = {file.relative_to(out / "steps").with_suffix("").as_posix(): _value(file) for file in files}
    write_atomically(out / "kuk.json", json.dumps(steps, indent=None).encode() + b"\n")


def _value(file: Path) -> Any:
    page = json.loads(file.read_bytes())
    tensors = load_file(file.with_name(page["tensors"])) if "tensors" in page else {}

    def plain(value: Any) -> Any:
        if isinstance(value, dict) and value.keys() == {"tensor"}:
            return [round(number, 6) for number in tensors[value["tensor"]].tolist()]
        return {name: plain(v) for name, v in value.items()} if isinstance(value, dict) else value

    return plain(page["value"])
