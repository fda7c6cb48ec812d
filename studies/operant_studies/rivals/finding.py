"""Failures: how many each search finds per CPU second, and how natural they are to a judge that guides no search."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from operant.generate.baselines import DeepHunter, DeepXplore, DLFuzz, TensorFuzz
from operant.rng import spawn
from operant.types import Fuzzer
from operant_studies.operational_fuzz.fields import StudyField, make_field
from operant_studies.operational_fuzz.finding import (
    MIX,
    RANDOM,
    SearchArm,
    attack_name,
    make_arms,
    run_searches,
    searched,
)
from operant_studies.operational_fuzz.instruments import FieldInstruments
from operant_studies.rivals.contests import BALLS, SECTIONS, ContestData
from operant_studies.rivals.curves import prepare_contests
from operant_studies.rivals.settings import RivalsSetting
from operant_studies.shared import Steps

CONSTRAINTS = ("light", "occlusion", "blackout")
OURS = "OperationalFuzz"
WARM_UP = 16  # inputs of the passes before the first search


def arm_names(setting: RivalsSetting) -> tuple[str, ...]:
    """All searches, in the order of the page."""
    radii = setting.field.radii[-2:]
    return (
        OURS,
        *(attack_name("FOL-Fuzz", radius) for radius in radii),
        *(f"DeepXplore, {constraint}" for constraint in CONSTRAINTS),
        *(f"DLFuzz {ball:g}" for ball in BALLS.values()),
        "DeepHunter, NC",
        "DeepHunter, KMNC",
        *(attack_name("TensorFuzz", radius) for radius in radii),
        RANDOM,
    )


def make_searches(
    setting: RivalsSetting, field: StudyField, context: ContestData, instruments: FieldInstruments
) -> dict[str, SearchArm]:
    """All searches by name; ours and FOL-Fuzz as in the study of operational fuzzing, the others with defaults."""
    theirs, rows, radii = make_arms(field, instruments), setting.hunted_rows, setting.field.radii[-2:]
    arms = {OURS: theirs[MIX], RANDOM: theirs[RANDOM]}
    arms |= {name: theirs[name] for radius in radii if (name := attack_name("FOL-Fuzz", radius))}
    rivals: dict[str, Fuzzer] = {
        **{
            f"DeepXplore, {constraint}": DeepXplore(others=context.others, constraint=constraint, rows_per_seed=rows)
            for constraint in CONSTRAINTS
        },
        **{f"DLFuzz {ball:g}": DLFuzz(radius=ball, rows_per_seed=rows) for ball in BALLS.values()},
        "DeepHunter, NC": DeepHunter(rows_per_seed=rows),
        "DeepHunter, KMNC": DeepHunter(rows_per_seed=rows, criterion=context.kmnc(SECTIONS)),
        **{
            attack_name("TensorFuzz", radius): TensorFuzz(radius=radius, std=radius / 3, rows_per_seed=rows)
            for radius in radii
        },
    }
    return arms | {name: SearchArm(fuzzer=fuzzer, seeds=setting.hunted) for name, fuzzer in rivals.items()}


def run(setting: RivalsSetting, data: Path | None, out: Path, seed: int) -> None:
    """Every search with one seed, and the judge's verdicts on its failures."""
    steps, names = steps_of(setting, out, seed), arm_names(setting)
    if not searched(steps, names):
        field = make_field(setting.field, data, seed, out / "networks")
        context, _ = prepare_contests(setting, data, field, out)
        run_searches(steps, names, field, out, partial(make_searches, setting, field, context), _warm_up)


def _warm_up(field: StudyField, instruments: FieldInstruments) -> None:
    """Do what happens once per process, so that the first search does not pay for it."""
    few = field.train[:WARM_UP]
    instruments.naturalness(few.x)
    instruments.profile.quantile(few.x)
    DLFuzz(radius=BALLS["dlfuzz"], rows_per_seed=6)(field.model, few, generator=spawn(0))
    DeepHunter(rows_per_seed=2)(field.model, few, generator=spawn(0))


def steps_of(setting: RivalsSetting, out: Path, seed: int) -> Steps:
    return Steps(out / "steps" / f"finding-{setting.name}-{seed}")
