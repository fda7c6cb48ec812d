"""What the recipe is worth downstream: augmentation alone and the loop, with recipes of before and of now."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from operant import results
from operant_studies.field.settings import VARIANTS, WAYS, DownstreamSetting, FieldCase, FieldStudySetting
from operant_studies.field.unit import FieldUnit, steps_of
from operant_studies.operational.unit import LoopCurve, LoopUnit, TimedConditions, TimedRecipe
from operant_studies.operational_fuzz.fields import StudyField
from operant_studies.shared import Steps, Units, slug

STEP_OF = {"before": "before", "palette": "conditions"}  # steps of the field that hold the recipes


def units(setting: FieldStudySetting, data: Path | None, out: Path) -> Units:
    """One unit per arm and seed; they need the steps of the field."""
    each = [(seed, way, variant) for seed in setting.downstream.seeds for way in WAYS for variant in VARIANTS]
    return [
        (f"downstream, seed {seed}: {variant}, {way}", partial(run_arm, setting, data, out, seed, way, variant))
        for seed, way, variant in each
    ]


def run_arm(setting: FieldStudySetting, data: Path | None, out: Path, seed: int, way: str, variant: str) -> None:
    """One arm, if it is not finished; a module-level function, so that other processes can run it."""
    steps = arm_steps(setting.downstream, out, seed, way)
    if not steps.done(slug(variant)):
        unit = FieldUnit(setting=setting, case=case_of(setting), data=data, seed=seed, out=out)
        field = study_field(unit, way)
        loop = replace(setting.downstream.loop, field=field.setting)
        arm = LoopUnit(setting=loop, field=field, steps=steps, out=out, given=recipe_of(setting, out, seed, way))
        steps.step(slug(variant), LoopCurve, partial(arm.run, variant))


def case_of(setting: FieldStudySetting) -> FieldCase:
    return next(case for case in setting.cases if case.name == setting.downstream.case)


def arm_steps(setting: DownstreamSetting, out: Path, seed: int, way: str) -> Steps:
    return Steps(out / "steps" / f"downstream-{setting.case}-{way}-{seed}")


def recipe_of(setting: FieldStudySetting, out: Path, seed: int, way: str) -> TimedRecipe:
    """The recipe of an arm; for *before*, that in ``before-CASE-SEED.json``, if an older version has estimated one."""
    given = before_file(setting.downstream, out, seed)
    if way == "before" and given.exists():
        return results.load(given, TimedRecipe)
    found = steps_of(out, case_of(setting), seed).read(STEP_OF[way], TimedConditions)
    return TimedRecipe(recipe=found.conditions.recipe, seconds=found.seconds)


def before_file(setting: DownstreamSetting, out: Path, seed: int) -> Path:
    return out / f"before-{setting.case}-{seed}.json"


def study_field(unit: FieldUnit, way: str) -> StudyField:
    """The field in the roles of the study of campaigns; both ways have the same inputs."""
    inputs, setting = unit.inputs, unit.setting.downstream.loop.field
    half = len(inputs.seen) // 2
    return StudyField(
        setting=replace(setting, name=f"{unit.case.name}-{way}", title=unit.case.title),
        seed=unit.seed,
        model=unit.model,
        train=inputs.fresh[: setting.train],
        clean=inputs.labelled,
        clean_test=inputs.unchanged,
        seen=inputs.seen[:half],
        judging=inputs.seen[half:],
        watched=inputs.seen[:0],
        truth=inputs.truth,
    )
