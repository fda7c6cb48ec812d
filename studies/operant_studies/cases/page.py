"""The page of the study of cases, with its pictures and a file of all numbers."""

from __future__ import annotations

from pathlib import Path

from operant_studies.cases import tables
from operant_studies.cases.claims import claims
from operant_studies.cases.outcome import Outcome
from operant_studies.cases.pictures import draw_cases, draw_lifts
from operant_studies.cases.settings import CasesSetting
from operant_studies.shared import write_numbers, write_sections


def write_page(out: Path, setting: CasesSetting, *, scale: str) -> Path:
    """Write ``cases.md`` with its pictures and sheets, and ``cases.json`` with all numbers, into ``out``."""
    outcome = Outcome(setting, out)
    draw_lifts(outcome, out / "cases-lift.svg")
    for name in setting.judged:
        draw_cases(outcome.shown(name), setting.case(name).dataset, out / f"cases-{name}.png")
    write_numbers(out / "cases.json", out / "steps")
    sections = [
        _intro(setting, scale),
        claims(outcome),
        tables.judge_section(outcome),
        tables.risk_section(outcome),
        tables.selection_section(outcome),
        tables.cost_section(outcome),
    ]
    return write_sections(out / "cases.md", sections)


def _intro(setting: CasesSetting, scale: str) -> str:
    inputs = setting.inputs
    return f"""# Cases: are they real, and do they predict real failures?

Operational cases are made of labelled clean images under the field's conditions, so their labels are free. This page
measures whether a judge that learns tells real cases from others, whether unseen field inputs fail where cases do, and
whether cases tell good models from bad ones without labels, by `operant study cases --scale {scale}`. Fields are made
of test images under conditions that the program does not know, or come from another source. The program gets
{inputs.seen} unlabelled field inputs at most, {inputs.clean} training images for the fit of conditions, other training
images, and {inputs.labelled} clean labelled inputs that nobody trained on. These give temperatures and class shares,
are seeds of the risk map's cases and of those that compare models, and are known to the rivals as well. At most
{inputs.truth} other labelled field inputs are the truth; no image of theirs, and no field input that the program gets,
has another role. Where class shares follow Zipf's law, images of frequent classes repeat within a role, each time under
conditions drawn anew. Settings and rules were fixed before the reported run, with other seeds. But a seed only divides
the same images anew, so the fields are not new to the risk map: it was chosen on MNIST by Zipf's law, USPS and Tiny
ImageNet with seeds 100 to 102. Of CIFAR-10 at dusk one such seed had been looked at, which chose nothing, of mild MNIST
three. Intervals are 95 %.
"""
