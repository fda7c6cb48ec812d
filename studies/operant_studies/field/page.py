"""The page of the study of the field, with its pictures and a file of all numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from operant_studies.field import tables
from operant_studies.field.claims import Curves, claims
from operant_studies.field.control import found_in_controls
from operant_studies.field.downstream import arm_steps, case_of
from operant_studies.field.large import LargeFit, large_steps
from operant_studies.field.outcome import FieldOutcome, outcomes_of
from operant_studies.field.pictures import draw_errors, draw_sheet
from operant_studies.field.settings import VARIANTS, WAYS, FieldStudySetting
from operant_studies.field.unit import ShownInputs, shown_steps
from operant_studies.operational.unit import LoopCurve
from operant_studies.shared import slug, write_numbers, write_sections


def write_page(out: Path, setting: FieldStudySetting, *, scale: str) -> Path:
    """Write ``field.md`` with its pictures, and ``field.json`` with all numbers, into ``out``."""
    outcomes, controls = outcomes_of(setting, out), found_in_controls(setting, out)
    large = [large_steps(out).read(f"fit-{seed}", LargeFit) for seed in setting.seeds]
    curves = downstream_curves(setting, out)
    draw_sheet(_shown(outcomes, out), out / "field-sheet.jpg")
    if any(o.errors for o in outcomes):
        draw_errors(outcomes, out / "field-error.svg")
    write_numbers(out / "field.json", out / "steps")
    sections = [
        _intro(setting, scale),
        claims(outcomes, controls, large, curves),
        tables.conditions_section(outcomes),
        tables.shares_section(outcomes),
        tables.errors_section(outcomes),
        tables.downstream_section(case_of(setting), curves),
        tables.cost_section(outcomes, large),
        tables.control_section(controls),
    ]
    return write_sections(out / "field.md", sections)


def downstream_curves(setting: FieldStudySetting, out: Path) -> Curves:
    down = setting.downstream
    return {
        variant: {
            way: [arm_steps(down, out, seed, way).read(slug(variant), LoopCurve) for seed in down.seeds] for way in WAYS
        }
        for variant in VARIANTS
    }


def _shown(outcomes: Sequence[FieldOutcome], out: Path) -> dict[str, ShownInputs]:
    return {o.case.title: shown_steps(out).read(o.case.name, ShownInputs) for o in outcomes}


def _intro(setting: FieldStudySetting, scale: str) -> str:
    return f"""# The field: is it known without being declared?

Everything in a campaign rests on what it believes about the field: conditions, class shares, error. This page
measures how well they are estimated from unlabelled field inputs, by `operant study field --scale {scale}`, with
{len(setting.seeds)} seeds. Fields are made of test images under conditions that the program does not know, or come
from another source. No image has two roles: {setting.seen} unlabelled field inputs and {setting.clean} training
images are all that the fit gets; {setting.labelled} clean labelled inputs that nobody trained on serve class shares
and error; at most {setting.truth} other labelled field inputs are the truth. Where class shares follow Zipf's law,
images of frequent classes repeat within a role, each time under conditions drawn anew. One field is distorted by
waves, which no condition of the palette can imitate. Settings and rules were fixed before the reported run, with
other seeds. Intervals are 95 %.

![Field inputs beside training images under the fitted recipe](field-sheet.jpg)
"""
