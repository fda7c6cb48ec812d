"""Finding: how much failing mass each search finds in a CPU second, judged alike for all."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NoReturn

import torch
from torch import Tensor

from operant.conditions import Recipe, apply
from operant.data import Samples
from operant.generate import FGSM, PGD, ConditionMove, FOLFuzz, GeneticMove, GradientMove, OperationalFuzz, hda
from operant.generate.engine import judge as judged
from operant.measure.naturalness import LEVEL, Naturalness
from operant.model import Classifier
from operant.rng import spawn
from operant.suite import Suite
from operant.types import Fuzzer
from operant_studies.operational_fuzz.fields import StudyField, make_field
from operant_studies.operational_fuzz.finding_judge import Judge, JudgeFacts
from operant_studies.operational_fuzz.instruments import FieldInstruments
from operant_studies.operational_fuzz.settings import FieldSetting
from operant_studies.shared import Steps

MOVES = ("conditions", "gradient", "genetic")
ATTACKS = ("FGSM", "PGD", "PGD, L2", "FOL-Fuzz")
PUBLISHED, ENDING = "HDA, as published", "HDA, ending early"
SHARES = {"conditions": 1.0, "gradient": 1.0, "genetic": 0.05}  # of the mix: one move a seed, drawn by these
MIX, RANDOM = "mix", "random conditions"
ROWS = 8  # conditions that are drawn for a seed by chance: as many as the move by conditions may try


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """What one search found.

    Attributes:
        seeds: how many it was given.
        seconds: CPU time that it took.
        failures: its cases that fail.
        natural: how many of them are natural, by the judge.
        guided: how many of them are natural, by the measure that guides some searches.
        origin: the row of the seed of each case that counts.
        cell: the cell of each case that counts.
        mass: of that cell.
        by_features: mass of the distinct cells, were naturalness judged by features alone.
        truly: mass of the true field inputs that lie in the distinct cells and on which the model fails: no measure of
            naturalness decides about that part.
    """

    seeds: int
    seconds: float
    failures: int
    natural: int
    guided: int
    origin: Tensor
    cell: Tensor
    mass: Tensor
    by_features: float
    truly: float

    def within(self, seconds: float) -> float:
        """Mass of distinct cells found from as many of the first seeds as this CPU time suffices for."""
        kept = self.origin < round(self.seeds * min(1.0, seconds / self.seconds))
        return _distinct(self.cell[kept], self.mass[kept])

    @property
    def total(self) -> float:
        return _distinct(self.cell, self.mass)

    @property
    def rate(self) -> float:
        """Mass of distinct cells for a CPU second."""
        return self.total / self.seconds

    @property
    def cells(self) -> int:
        return len(self.cell.unique())


def _distinct(cell: Tensor, mass: Tensor) -> float:
    cells, place = cell.unique(return_inverse=True)
    return float(mass.new_zeros(len(cells)).scatter(0, place, mass).sum())


def units(settings: tuple[FieldSetting, ...], data: Path | None, out: Path) -> list[tuple[str, Callable[[], None]]]:
    """One piece of work for each field and seed."""
    return [
        (f"finding, {setting.name}, seed {seed}", partial(run, setting, data, out, seed))
        for setting in settings
        for seed in setting.seeds
    ]


def run(setting: FieldSetting, data: Path | None, out: Path, seed: int) -> None:
    """Every search on one field with one seed."""
    steps = steps_of(setting, out, seed)
    names = arm_names(setting)
    if all(steps.done(_file(name)) for name in ("facts", *names)):
        return
    field = make_field(setting, data, seed, out / "networks")
    instruments = FieldInstruments(field, out / "instruments")
    judge = Judge(field, out / "instruments" / f"{setting.name}-{seed}-judge")
    steps.step("facts", JudgeFacts, judge.facts)
    arms, seeds = make_arms(field, instruments), hunted(field)
    _warm(field, instruments)
    for name in names:
        steps.step(
            _file(name), SearchResult, partial(hunt, arms[name], field, seeds, judge, instruments.naturalness, name)
        )


def steps_of(setting: FieldSetting, out: Path, seed: int) -> Steps:
    return Steps(out / "steps" / f"finding-{setting.name}-{seed}")


def load_found(setting: FieldSetting, out: Path, seed: int) -> dict[str, SearchResult]:
    steps = steps_of(setting, out, seed)
    return {name: steps.step(_file(name), SearchResult, _missing) for name in arm_names(setting)}


def load_facts(setting: FieldSetting, out: Path, seed: int) -> JudgeFacts:
    return steps_of(setting, out, seed).step("facts", JudgeFacts, _missing)


def _missing() -> NoReturn:
    raise ValueError("a search has not been run yet; run the study to its end first")


def _file(name: str) -> str:
    return name.replace(", ", "-").replace(" ", "-")


# Searches -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class SearchArm:
    """A search, and how many of the seeds it is given: slow ones get fewer, since all is told for a CPU second."""

    fuzzer: Fuzzer
    seeds: int


@dataclass(frozen=True, kw_only=True)
class RandomConditions:
    """Every seed under ``rows`` draws of the recipe; what fails is a case. Nothing guides it, nothing is left out."""

    recipe: Recipe
    rows: int = ROWS

    def __call__(self, model: Classifier, seeds: Samples, *, generator: torch.Generator) -> Suite:
        origin = torch.arange(len(seeds)).repeat_interleave(self.rows)
        drawn = self.recipe.draw(len(origin), generator=generator)
        parts = []
        for some in torch.arange(len(origin)).split(4_096):
            x = apply(seeds.x[origin[some]], drawn[some])
            parts.append(judged(model, seeds, x, origin=origin[some], method="random").failures())
        return Suite.concat(parts)


def arm_names(setting: FieldSetting) -> tuple[str, ...]:
    attacks = [attack_name(name, radius) for name in ATTACKS for radius in setting.radii]
    without = [f"mix without {move}" for move in MOVES]
    return (*MOVES, MIX, *without, RANDOM, *attacks, ENDING, PUBLISHED)


def attack_name(name: str, radius: float) -> str:
    return f"{name} {radius:g}"


def recipe_of(field: StudyField, instruments: FieldInstruments) -> Recipe:
    """As declared, where field inputs are made under conditions; else as estimated from unlabelled field inputs."""
    return field.setting.declared if field.setting.applied else instruments.conditions.recipe


def make_arms(field: StudyField, instruments: FieldInstruments) -> dict[str, SearchArm]:
    """All searches of a field by name."""
    setting, naturalness, recipe = field.setting, instruments.naturalness, recipe_of(field, instruments)
    moves = make_moves(setting, recipe, naturalness)
    fuzz = OperationalFuzz(
        moves=moves, naturalness=naturalness, profile=instruments.profile, shares=SHARES, moves_per_seed=1
    )
    few, all_of = 2 * setting.genetic, setting.hunted
    arms = {name: SearchArm(fuzzer=_only(fuzz, name), seeds=few if name == "genetic" else all_of) for name in MOVES}
    arms[MIX] = SearchArm(fuzzer=fuzz, seeds=all_of)
    for name in MOVES:
        others = [other for other in MOVES if other != name]
        arms[f"mix without {name}"] = SearchArm(fuzzer=_only(fuzz, *others), seeds=all_of)
    arms[RANDOM] = SearchArm(fuzzer=RandomConditions(recipe=recipe), seeds=all_of)
    for radius in setting.radii:
        attacks: dict[str, Fuzzer] = {
            "FGSM": FGSM(radius=radius),
            "PGD": PGD(radius=radius, stop_early=True),
            "PGD, L2": PGD(radius=radius * setting.stretch, norm="l2", stop_early=True),
            "FOL-Fuzz": FOLFuzz(radius=radius),
        }
        for name in ATTACKS:
            arms[attack_name(name, radius)] = SearchArm(
                fuzzer=attacks[name], seeds=few if name == "FOL-Fuzz" else all_of
            )
    published = hda(radius=0.03 if setting.dataset == "cifar10" else 0.1)
    arms[ENDING] = SearchArm(fuzzer=replace(published, enough=published.keep), seeds=max(2, setting.genetic // 6))
    arms[PUBLISHED] = SearchArm(fuzzer=published, seeds=max(1, setting.genetic // 15))
    return arms


def _only(fuzz: OperationalFuzz, *names: str) -> OperationalFuzz:
    moves = {name: fuzz.moves[name] for name in names}
    return replace(fuzz, moves=moves, shares={name: fuzz.shares[name] for name in names})


def make_moves(setting: FieldSetting, recipe: Recipe, naturalness: Naturalness) -> dict[str, Fuzzer]:
    """The three moves; what differs from their defaults was tried on one seed of one field.

    On Zipf's MNIST, seed 0: more draws and no steps after them, fewer and longer gradient steps in a larger ball, and
    few small generations find more mass in a CPU second.
    """
    widest = setting.radii[-1]
    return {
        "conditions": ConditionMove(recipe=recipe, naturalness=naturalness, population=ROWS, steps=1, enough=3),
        "gradient": GradientMove(naturalness=naturalness, radius=widest * setting.stretch, steps=4),
        "genetic": GeneticMove(naturalness=naturalness, radius=widest, population=12, generations=3, elites=4),
    }


# Hunting --------------------------------------------------------------------------------------------------------------


def hunted(field: StudyField) -> Samples:
    """The seeds that all searches start from: training inputs, drawn at random."""
    rows = torch.randperm(len(field.train), generator=spawn(field.seed, "hunted"))
    return field.train[rows[: field.setting.hunted]]


def hunt(
    arm: SearchArm, field: StudyField, seeds: Samples, judge: Judge, guide: Naturalness, name: str
) -> SearchResult:
    """Run a search by the clock, then judge what it found."""
    seeds = seeds[: arm.seeds]
    generator = spawn(field.seed, "finding", name)
    start = time.process_time()
    suite = arm.fuzzer(field.model, seeds, generator=generator)
    seconds = time.process_time() - start
    suite = suite.failures()
    told = judge.judge(suite.x)
    guided = guide(suite.x) >= LEVEL if len(suite) else told.natural
    row_of = {int(id_): row for row, id_ in reversed(list(enumerate(seeds.ids)))}
    cell = judge.cells(suite.x)
    return SearchResult(
        seeds=len(seeds),
        seconds=seconds,
        failures=len(suite),
        natural=int(told.natural.sum()),
        guided=int(guided.sum()),
        origin=torch.tensor([row_of[int(id_)] for id_ in suite.seed[told.counted]], dtype=torch.int64),
        cell=cell[told.counted],
        mass=judge.masses[cell[told.counted]],
        by_features=float(judge.masses[cell[told.counted_by_features].unique()].sum()),
        truly=float(judge.failing[cell[told.counted].unique()].sum()),
    )


def _warm(field: StudyField, instruments: FieldInstruments) -> None:
    """What is done once in a process is not held against the search that comes first."""
    few, generator = field.train[:32], spawn(0)
    PGD(radius=field.setting.radii[0], steps=2)(field.model, few, generator=generator)
    instruments.naturalness(few.x)
    instruments.profile.quantile(few.x)
    apply(few.x, recipe_of(field, instruments).draw(len(few), generator=generator))
