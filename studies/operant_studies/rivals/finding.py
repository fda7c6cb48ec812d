"""Failures: how many each search finds in a CPU second, and how natural they are to a judge that guides none."""

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
    SearchResult,
    attack_name,
    hunt,
    hunted,
    make_arms,
)
from operant_studies.operational_fuzz.finding_judge import Judge, JudgeFacts
from operant_studies.operational_fuzz.instruments import FieldInstruments
from operant_studies.rivals.contests import BALLS, SECTIONS, ContestData
from operant_studies.rivals.curves import learn, missing
from operant_studies.rivals.settings import RivalsSetting
from operant_studies.shared import Steps

CONSTRAINTS = ("light", "occlusion", "blackout")
OURS = "OperationalFuzz"
WARM = 16  # inputs of the passes before the first search


def arm_names(setting: RivalsSetting) -> tuple[str, ...]:
    """Of all searches, in the order of the page."""
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
    setting: RivalsSetting, field: StudyField, instruments: FieldInstruments, known: ContestData
) -> dict[str, SearchArm]:
    """All searches by name. Ours and FOL-Fuzz are those of the study of operational fuzzing, the others defaults."""
    theirs, rows, radii = make_arms(field, instruments), setting.hunted_rows, setting.field.radii[-2:]
    arms = {OURS: theirs[MIX], RANDOM: theirs[RANDOM]}
    arms |= {name: theirs[name] for radius in radii if (name := attack_name("FOL-Fuzz", radius))}
    rivals: dict[str, Fuzzer] = {
        **{
            f"DeepXplore, {constraint}": DeepXplore(others=known.others, constraint=constraint, rows_per_seed=rows)
            for constraint in CONSTRAINTS
        },
        **{f"DLFuzz {ball:g}": DLFuzz(radius=ball, rows_per_seed=rows) for ball in BALLS.values()},
        "DeepHunter, NC": DeepHunter(rows_per_seed=rows),
        "DeepHunter, KMNC": DeepHunter(rows_per_seed=rows, criterion=known.kmnc(SECTIONS)),
        **{
            attack_name("TensorFuzz", radius): TensorFuzz(radius=radius, std=radius / 3, rows_per_seed=rows)
            for radius in radii
        },
    }
    return arms | {name: SearchArm(fuzzer=fuzzer, seeds=setting.hunted) for name, fuzzer in rivals.items()}


def run(setting: RivalsSetting, data: Path | None, out: Path, seed: int) -> None:
    """Every search with one seed, by the clock; then what the judge says of its failures."""
    steps = steps_of(setting, out, seed)
    names = arm_names(setting)
    if all(steps.done(_file(name)) for name in ("facts", *names)):
        return
    field = make_field(setting.field, data, seed, out / "networks")
    instruments = FieldInstruments(field, out / "instruments")
    judge = Judge(field, out / "instruments" / f"{setting.field.name}-{seed}-judge")
    steps.step("facts", JudgeFacts, judge.facts)
    known, _ = learn(setting, data, field, out)
    arms, seeds = make_searches(setting, field, instruments, known), hunted(field)
    _warm(field, instruments)
    for name in names:
        work = partial(hunt, arms[name], field, seeds, judge, instruments.naturalness, name)
        steps.step(_file(name), SearchResult, work)


def _warm(field: StudyField, instruments: FieldInstruments) -> None:
    """What is done once in a process is not held against the search that comes first."""
    few = field.train[:WARM]
    instruments.naturalness(few.x)
    instruments.profile.quantile(few.x)
    DLFuzz(radius=BALLS["dlfuzz"], rows_per_seed=6)(field.model, few, generator=spawn(0))
    DeepHunter(rows_per_seed=2)(field.model, few, generator=spawn(0))


def steps_of(setting: RivalsSetting, out: Path, seed: int) -> Steps:
    return Steps(out / "steps" / f"finding-{setting.name}-{seed}")


def _file(name: str) -> str:
    return name.replace(", ", "-").replace(" ", "-")


def load_found(setting: RivalsSetting, out: Path, seed: int) -> dict[str, SearchResult]:
    steps = steps_of(setting, out, seed)
    return {name: steps.step(_file(name), SearchResult, missing) for name in arm_names(setting)}


def load_judge(setting: RivalsSetting, out: Path, seed: int) -> JudgeFacts:
    return steps_of(setting, out, seed).step("facts", JudgeFacts, missing)
