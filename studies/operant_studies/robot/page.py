"""The page of the RobOT study: claims with their verdicts, tables, pictures, and a file of all numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from operant import results
from operant.results import write_atomically
from operant_studies.robot import rival_tables, tables
from operant_studies.robot.claims import claims
from operant_studies.robot.found import Found
from operant_studies.robot.known import Known
from operant_studies.robot.pictures import draw_fol, draw_loss, draw_selection
from operant_studies.robot.settings import Setting


def write_page(out: Path, settings: Sequence[Setting], *, scale: str) -> Path:
    """Write ``robot.md`` with its pictures, and ``robot.json`` with every number behind it, into ``out``."""
    found = [Found(setting, out / "steps") for setting in settings]
    known = [results.load(path, Known) for path in sorted((out / "steps").glob("known-*.json"))]
    chosen = [f for f in found if len(f.setting.strategies) > 1]
    draw_selection(chosen, out / "robot-selection.svg")
    draw_loss(chosen, out / "robot-loss.svg")
    draw_fol(found, out / "robot-fol.svg")
    sections = [
        _intro(found, scale),
        claims(found, known),
        tables.rq1(found, known),
        tables.selected(chosen),
        tables.rq2(chosen),
        rival_tables.pools(chosen),
        tables.clean(chosen),
        tables.on_adapt([f for f in found if f.setting.race]),
        rival_tables.on_rivals(found),
        tables.rq3([f for f in found if f.setting.race]),
        tables.method(found),
    ]
    _write_numbers(out)
    path = out / "robot.md"
    write_atomically(path, "\n".join(section for section in sections if section).encode())
    return path


def _intro(found: Sequence[Found], scale: str) -> str:
    used = sorted({f.setting.dataset for f in found})
    return f"""# RobOT, run again

The experiments of *RobOT: Robustness-Oriented Testing for Deep Learning Systems* (Wang et al., 2021), by `operant study
robot --scale {scale}`, on {", ".join(used)}. *Static* is the paper's measure: accuracy on FGSM and PGD cases that were
made once against the original model, so that the original scores 0. *Adaptive* is the paper's own Definition 2: the
attacks run against the model being judged. Shares are percent, FOL is in nats; both are means over seeds with 95 %
t-intervals. Every seed has its own test inputs and, but for CIFAR-10 with its given weights, its own original model;
training and validation inputs are the same for all, so the intervals leave that variation out.
"""


def _write_numbers(out: Path) -> None:
    """Every finished step in one file."""
    files = sorted((out / "steps").rglob("*.json"))
    steps = {
        file.relative_to(out / "steps").with_suffix("").as_posix(): json.loads(file.read_bytes())["value"]
        for file in files
        if file.name != "manifest.json"
    }
    write_atomically(out / "robot.json", json.dumps(steps, indent=1).encode() + b"\n")
