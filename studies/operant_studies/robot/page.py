"""The page of the RobOT study."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from operant.results import load
from operant_studies.robot import rival_tables, tables
from operant_studies.robot.claims import claims
from operant_studies.robot.mnist_networks import NetworkRobustness
from operant_studies.robot.pictures import draw_fol, draw_loss, draw_selection
from operant_studies.robot.results import RobotStudyResults
from operant_studies.robot.settings import RobotSetting
from operant_studies.shared import write_numbers, write_sections


def write_page(out: Path, settings: Sequence[RobotSetting], *, scale: str) -> Path:
    """Write ``robot.md`` with its pictures, and ``robot.json`` with all numbers, into ``out``."""
    found = [RobotStudyResults(setting, out / "steps") for setting in settings]
    known = [load(path, NetworkRobustness) for path in sorted((out / "steps").glob("known-*.json"))]
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
    write_numbers(out / "robot.json", out / "steps")
    return write_sections(out / "robot.md", sections)


def _intro(found: Sequence[RobotStudyResults], scale: str) -> str:
    used = sorted({f.setting.dataset for f in found})
    return f"""# RobOT, run again

The experiments of *RobOT: Robustness-Oriented Testing for Deep Learning Systems* (Wang et al., 2021), by `operant study
robot --scale {scale}`, on {", ".join(used)}. *Static* is the paper's measure: accuracy on FGSM and PGD cases that were
made once against the original model, so that the original scores 0. *Adaptive* is the paper's own Definition 2: the
attacks run against the model under test. Shares are in percent, FOL is in nats; both are means over seeds with 95 %
t-intervals. Every seed has its own test inputs and, except for CIFAR-10 with its existing weights, its own original
model; training and validation inputs are the same for all seeds, so the intervals do not include that variation.
"""
