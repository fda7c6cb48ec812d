"""Finding: the failing mass that each search finds per CPU second, judged in the same way for all."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from operant.conditions import Recipe, apply
from operant.data import Samples
from operant.generate import FGSM, PGD, ConditionMove, FOLFuzz, GeneticMove, GradientMove, OperationalFuzz, hda
from operant.generate.engine import judge as judge_cases
from operant.measure.naturalness import LEVEL, Naturalness
from operant.model import Classifier
from operant.rng import spawn
from operant.suite import Suite
from operant.types import Fuzzer
from operant_studies.operational_fuzz.fields import StudyField, make_field
from operant_studies.operational_fuzz.finding_judge import Judge, JudgeFacts
from operant_studies.operational_fuzz.instruments import FieldInstruments
from operant_studies.operational_fuzz.settings import FieldSetting
from operant_studies.shared import Steps, Units, slug

MOVES = ("conditions", "gradient", "genetic")
ATTACKS = ("FGSM", "PGD", "PGD, L2", "FOL-Fuzz")
PUBLISHED, ENDING = "HDA, as published", "HDA, ending early"
SHARES = {"conditions": 1.0, "gradient": 1.0, "genetic": 0.05}  # weights by which the mix draws one move per seed
MIX, RANDOM = "mix", "random conditions"
ROWS = 8  # random conditions per seed: as many as the move by conditions may try


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """The result of one search. A case counts if it fails, is natural to the judge, and lies where use is dense."""

    seeds: int
    seconds: float  # CPU time of the search
    failures: int  # number of failing cases
    # natural, guided: number of these that are natural to the judge, and to the measure that guides some searches
    natural: int
    guided: int
    origin: Tensor  # row of the seed, for each case that counts
    # cell, mass: the cell of each case that counts, and its mass
    cell: Tensor
    mass: Tensor
    by_features: float  # mass of the distinct cells if naturalness were judged by features alone
    # truly: mass of true field inputs in the distinct cells on which the model fails; independent of any measure of
    # naturalness
    truly: float

    def within(self, seconds: float) -> float:
        """Mass of distinct cells found from the first seeds, as many as this CPU time allows."""
        kept = self.origin < round(self.seeds * min(1.0, seconds / self.seconds))
        return _distinct(self.cell[kept], self.mass[kept])

    @property
    def total(self) -> float:
        return _distinct(self.cell, self.mass)

    @property
    def rate(self) -> float:
        """Mass of distinct cells per CPU second."""
        return self.total / self.seconds

    @property
    def cells(self) -> int:
        return len(self.cell.unique())


def _distinct(cell: Tensor, mass: Tensor) -> float:
    cells, place = cell.unique(return_inverse=True)
    return float(mass.new_zeros(len(cells)).scatter(0, place, mass).sum())


def units(settings: tuple[FieldSetting, ...], data: Path | None, out: Path) -> Units:
    """One unit per field and seed."""
    return [
        (f"finding, {setting.name}, seed {seed}", partial(run, setting, data, out, seed))
        for setting in settings
        for seed in setting.seeds
    ]


def run(setting: FieldSetting, data: Path | None, out: Path, seed: int) -> None:
    """Every search on one field with one seed."""
    steps, names = steps_of(setting, out, seed), arm_names(setting)
    if not searched(steps, names):
        field = make_field(setting, data, seed, out / "networks")
        run_searches(steps, names, field, out, partial(make_arms, field), _warm_up)


def searched(steps: Steps, names: Sequence[str]) -> bool:
    return all(steps.done(slug(name)) for name in ("facts", *names))


def run_searches(
    steps: Steps,
    names: Sequence[str],
    field: StudyField,
    out: Path,
    make: Callable[[FieldInstruments], dict[str, SearchArm]],
    warm_up: Callable[[StudyField, FieldInstruments], None],
) -> None:
    """Run these searches one after the other, and judge their results."""
    instruments = FieldInstruments(field, out / "instruments")
    judge = Judge(field, out / "instruments" / f"{field.setting.name}-{field.seed}-judge")
    steps.step("facts", JudgeFacts, judge.facts)
    arms, seeds = make(instruments), search_seeds(field)
    warm_up(field, instruments)
    for name in names:
        search = partial(run_search, arms[name], field, seeds, judge, instruments.naturalness, name)
        steps.step(slug(name), SearchResult, search)


def steps_of(setting: FieldSetting, out: Path, seed: int) -> Steps:
    return Steps(out / "steps" / f"finding-{setting.name}-{seed}")


def load_results(each: Sequence[Steps], names: Sequence[str]) -> dict[str, list[SearchResult]]:
    """The results by search, one per folder of steps."""
    return {name: [steps.read(slug(name), SearchResult) for steps in each] for name in names}


def load_facts(each: Sequence[Steps]) -> list[JudgeFacts]:
    return [steps.read("facts", JudgeFacts) for steps in each]


# Searches -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class SearchArm:
    """A search and its number of seeds; slow searches get fewer, since results are per CPU second."""

    fuzzer: Fuzzer
    seeds: int


@dataclass(frozen=True, kw_only=True)
class RandomConditions:
    """Every seed under ``rows`` draws of the recipe; every failure is a case."""

    recipe: Recipe
    rows: int = ROWS

    def __call__(self, model: Classifier, seeds: Samples, *, generator: torch.Generator) -> Suite:
        origin = torch.arange(len(seeds)).repeat_interleave(self.rows)
        drawn = self.recipe.draw(len(origin), generator=generator)
        parts = []
        for some in torch.arange(len(origin)).split(4_096):
            x = apply(seeds.x[origin[some]], drawn[some])
            parts.append(judge_cases(model, seeds, x, origin=origin[some], method="random").failures())
        return Suite.concat(parts)


def arm_names(setting: FieldSetting) -> tuple[str, ...]:
    attacks = [attack_name(name, radius) for name in ATTACKS for radius in setting.radii]
    without = [f"mix without {move}" for move in MOVES]
    return (*MOVES, MIX, *without, RANDOM, *attacks, ENDING, PUBLISHED)


def attack_name(name: str, radius: float) -> str:
    return f"{name} {radius:g}"


def recipe_of(field: StudyField, instruments: FieldInstruments) -> Recipe:
    """The declared recipe where field inputs are made under conditions, else the one estimated from field inputs."""
    return field.setting.declared if field.setting.applied else instruments.conditions.recipe


def make_arms(field: StudyField, instruments: FieldInstruments) -> dict[str, SearchArm]:
    """All searches of a field, by name."""
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
            seeds = few if name == "FOL-Fuzz" else all_of
            arms[attack_name(name, radius)] = SearchArm(fuzzer=attacks[name], seeds=seeds)
    published = hda(radius=0.03 if setting.dataset == "cifar10" else 0.1)
    arms[ENDING] = SearchArm(fuzzer=replace(published, stop_after=published.keep), seeds=max(2, setting.genetic // 6))
    arms[PUBLISHED] = SearchArm(fuzzer=published, seeds=max(1, setting.genetic // 15))
    return arms


def _only(fuzz: OperationalFuzz, *names: str) -> OperationalFuzz:
    moves = {name: fuzz.moves[name] for name in names}
    return replace(fuzz, moves=moves, shares={name: fuzz.shares[name] for name in names})


def make_moves(setting: FieldSetting, recipe: Recipe, naturalness: Naturalness) -> dict[str, Fuzzer]:
    """The three moves; what differs from their defaults was tuned on Zipf's MNIST with seed 0.

    There, more draws and no steps after them, fewer and longer gradient steps in a larger ball, and few small
    generations find more mass per CPU second.
    """
    widest = setting.radii[-1]
    return {
        "conditions": ConditionMove(recipe=recipe, naturalness=naturalness, population=ROWS, steps=1, stop_after=3),
        "gradient": GradientMove(naturalness=naturalness, radius=widest * setting.stretch, steps=4),
        "genetic": GeneticMove(naturalness=naturalness, radius=widest, population=12, generations=3, elites=4),
    }


# Running --------------------------------------------------------------------------------------------------------------


def search_seeds(field: StudyField) -> Samples:
    """The seeds of all searches: training inputs, drawn at random."""
    rows = torch.randperm(len(field.train), generator=spawn(field.seed, "hunted"))
    return field.train[rows[: field.setting.hunted]]


def run_search(
    arm: SearchArm, field: StudyField, seeds: Samples, judge: Judge, guide: Naturalness, name: str
) -> SearchResult:
    """Run a search, measure its CPU time, then judge its failures."""
    seeds = seeds[: arm.seeds]
    generator = spawn(field.seed, "finding", name)
    start = time.process_time()
    suite = arm.fuzzer(field.model, seeds, generator=generator)
    seconds = time.process_time() - start
    suite = suite.failures()
    verdicts = judge.judge(suite.x)
    guided = guide(suite.x) >= LEVEL if len(suite) else verdicts.natural
    cell = judge.cells(suite.x)
    return SearchResult(
        seeds=len(seeds),
        seconds=seconds,
        failures=len(suite),
        natural=int(verdicts.natural.sum()),
        guided=int(guided.sum()),
        origin=seeds.rows_of(suite.seed[verdicts.counted]),
        cell=cell[verdicts.counted],
        mass=judge.masses[cell[verdicts.counted]],
        by_features=float(judge.masses[cell[verdicts.counted_by_features].unique()].sum()),
        truly=float(judge.failing[cell[verdicts.counted].unique()].sum()),
    )


def _warm_up(field: StudyField, instruments: FieldInstruments) -> None:
    """Do what happens once per process, so that the first search does not pay for it."""
    few, generator = field.train[:32], spawn(0)
    PGD(radius=field.setting.radii[0], steps=2)(field.model, few, generator=generator)
    instruments.naturalness(few.x)
    instruments.profile.quantile(few.x)
    apply(few.x, recipe_of(field, instruments).draw(len(few), generator=generator))
