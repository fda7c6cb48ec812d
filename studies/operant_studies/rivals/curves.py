"""How coverage grows: every search of every contest, from the same inputs."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from operant.data import Samples
from operant.measure import fit_ranges
from operant.model import Classifier
from operant.rng import spawn
from operant_studies.operational_fuzz.fields import StudyField, make_field
from operant_studies.operational_fuzz.finding import search_seeds
from operant_studies.rivals.contests import CONTESTS, Contest, ContestData, Explorer, build, logit_move
from operant_studies.rivals.models import others
from operant_studies.rivals.settings import RivalsSetting
from operant_studies.shared import Steps


@dataclass(frozen=True, kw_only=True)
class CoverageCurve:
    """The coverage of one search by model rows."""

    rows: tuple[float, ...]  # model rows spent per input, mean
    coverage: tuple[float, ...]  # a share, or a number of points
    failures: int  # found on the way
    seconds: float  # of CPU time

    def at(self, rows: float) -> float:
        """Coverage after so many rows, interpolated linearly."""
        return float(np.interp(rows, self.rows, self.coverage))


@dataclass(frozen=True, kw_only=True)
class CoverageCurves:
    """The curves of all searches of a contest, by name."""

    of: dict[str, CoverageCurve]


@dataclass(frozen=True, kw_only=True)
class ContestFacts:
    """Measured before the searches."""

    explored: int  # seeds
    move: float  # distance by which one mutation of TensorFuzz moves the logits, median
    accuracy: tuple[float, ...]  # of the model and of the two others on unseen clean inputs


def run(setting: RivalsSetting, data: Path | None, out: Path, seed: int) -> None:
    """Every search with one seed."""
    steps = steps_of(setting, out, seed)
    if all(steps.done(name) for name in ("facts", *(contest.key for contest in CONTESTS))):
        return
    field = make_field(setting.field, data, seed, out / "networks")
    context, seeds = prepare_contests(setting, data, field, out)
    steps.step("facts", ContestFacts, partial(_facts, context, field, seeds))
    for contest in CONTESTS:
        steps.step(contest.key, CoverageCurves, partial(run_contest, contest, context, field, seeds))


def prepare_contests(
    setting: RivalsSetting, data: Path | None, field: StudyField, out: Path
) -> tuple[ContestData, Samples]:
    """What searches are built from, and their seeds, which all three models classify correctly."""
    theirs = others(setting, data, field.seed, out / "networks")
    seeds = search_seeds(field)
    for model in (field.model, *theirs):
        seeds = model.correct(seeds)
    seeds, generator = seeds[: setting.explored], spawn(field.seed, "rivals", "move")
    context = ContestData(
        setting=setting,
        others=theirs,
        ranges=fit_ranges(field.model, field.train[: setting.profiled]),
        move=logit_move(field.model, seeds, setting.noise, generator=generator),
        numel=seeds.x[0].numel(),
        size=(seeds.x.shape[2], seeds.x.shape[3]),
    )
    return context, seeds


def _facts(context: ContestData, field: StudyField, seeds: Samples) -> ContestFacts:
    clean = field.clean
    right = [float((m.predict(clean.x) == clean.labels).double().mean()) for m in (field.model, *context.others)]
    return ContestFacts(explored=len(seeds), move=context.move, accuracy=tuple(right))


def run_contest(contest: Contest, context: ContestData, field: StudyField, seeds: Samples) -> CoverageCurves:
    """Run all searches of a contest."""
    searches = build(contest.key, context)
    each = {name: spawn(field.seed, "rivals", contest.key, name) for name in contest.names}
    return CoverageCurves(of={name: trace(searches[name], field.model, seeds, generator=g) for name, g in each.items()})


def trace(search: Explorer, model: Classifier, seeds: Samples, *, generator: torch.Generator) -> CoverageCurve:
    """Run one search and record its coverage, averaged over seeds or models."""
    start = time.process_time()
    found = search.explore(model, seeds, generator=generator)
    return CoverageCurve(
        rows=tuple(found.rows.double().tolist()),
        coverage=tuple(found.coverage.double().mean(0).tolist()),
        failures=len(found.suite.failures()),
        seconds=time.process_time() - start,
    )


def steps_of(setting: RivalsSetting, out: Path, seed: int) -> Steps:
    return Steps(out / "steps" / f"coverage-{setting.name}-{seed}")
